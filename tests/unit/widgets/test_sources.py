"""The line of generated code that computes each tensor."""

import re

import pytest
from fuser_lab_widgets import sources
from needs import needs

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition

SOURCE = """\
# head of T2
#   T2 = exp(T0)
def kernel(T0, T1, T2):
    for i in range(4):
        t0 = T0[i]
        # T2 = exp(T0)
        t2 = exp(t0)
        T2[i] = t2
    return
"""


def test_a_line_belongs_to_what_it_assigns_or_to_the_comment_above():
    found = dict(zip(SOURCE.split("\n"), sources.origins(SOURCE, {"T0", "T1", "T2"}), strict=True))
    assert found["        t0 = T0[i]"] == "T0"
    assert found["        t2 = exp(t0)"] == found["        # T2 = exp(T0)"] == found["        T2[i] = t2"] == "T2"
    assert found["    return"] == found["#   T2 = exp(T0)"] == found["def kernel(T0, T1, T2):"] == ""


def test_machine_code_is_linked_through_its_source_lines():
    ptx = "\t.loc\t1 7 0\n\tex2.approx.f32 %f2, %f1;\n\t.loc\t1 9 0\n\tret;\n}"
    assert sources.machine_origins(ptx, sources.origins(SOURCE, {"T2"})) == ["", "T2", "", "", ""]


def test_linked_source_is_escaped():
    html = sources.link_lines('x = "<script>"', ['"><b>'])
    assert "<script>" not in html
    assert "<b>" not in html
    assert html.startswith('<span class="fx-at" data-name="&quot;&gt;&lt;b&gt;">')


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_every_op_of_a_real_kernel_has_lines(target):
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 256], contiguity=True, dtype=DataType.Float)
        a = fd.ops.exp(x)
        rows = fd.ops.broadcast(fd.ops.sum(a, dims=[1]), is_broadcast_dim=[False, True])
        fd.add_output(fd.ops.truediv(a, rows))
    (segment,) = fl.segment(fd).segments
    html = sources.source(segment, target)["html"]
    computed = [e.out.name for e in segment.exprs if e.op.name != "broadcast"]
    for name in computed:
        assert f'data-name="{name}"' in html


@pytest.mark.ptx
def test_the_machine_code_of_a_segment_is_linked_to_its_ops():
    needs("numba.cuda")
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 256], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.sqrt(fd.ops.exp(x)))
    (segment,) = fl.segment(fd).segments
    found = sources.machine(segment, "cuda")
    lines = {name: [] for name in ("T0", "T1", "T2")}  # T1 is an exponential, whose function was inlined
    for name, text in re.findall(r'data-name="(T\d)">(.*?)</span>', found["html"]):
        lines[name].append(text)
    assert any("ld.global" in line for line in lines["T0"])
    assert any("sqrt" in line for line in lines["T2"])
    assert any("st.global" in line for line in lines["T2"])
    assert ".debug" not in found["text"]

"""Selections that users write: names of tensors, variables of the user's code, edges and segments."""

from dataclasses import replace

import pytest
from fuser_lab_widgets import selections

import fuser_lab as fl
from fuser_lab.report.parts import Part, Parts
from fuser_lab.report.view_model import view_plan

SCRIPT = """
with FusionDefinition() as fd:
    x = fd.define_tensor(shape=[-1], contiguity=True, dtype=DataType.Float)
    wave = fd.ops.sin(x)
    T1 = fd.ops.exp(fd.ops.cos(wave))  # a variable with the name of another tensor
    fd.add_output(T1)
inputs = [torch.randn(4)]
fd.execute(inputs)
"""


@pytest.fixture(scope="module")
def view():
    return view_plan(fl.segment(*fl.load_repro(SCRIPT)))


@pytest.mark.parametrize(("words", "selected"), [
    ("T1", "op:0"), ("x", "in:T0"), ("wave", "op:0"), ("wave -> T2", "T1|op:0|op:1"), ("S0", "segment:0"),
    ("T3 -> output", "T3|op:2|out:0:T3"), ("absent", ""),
])  # fmt: skip
def test_text_selects_a_tensor_an_edge_or_a_segment(view, words, selected):
    assert selections.find(view, words) == selected


def test_a_variable_of_two_tensors_selects_none(view):
    nodes = [replace(node, called=("same",)) if node.kind == "op" else node for node in view.nodes]
    assert not selections.find(replace(view, nodes=Parts([Part(segment=None, rough=tuple(nodes))])), "same")


def test_an_edge_stays_selected_when_a_segment_set_is_inserted_into_it_and_removed():
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=fl.DataType.Float)
        wave = fd.ops.sin(x)
        fd.add_output(fd.ops.mul(fd.ops.exp(wave), fd.ops.cos(wave)))
    plan = fl.segment(fd, [fl.spec((8, 8))])
    marked = plan.annotate("T1", "T3")
    before, after = view_plan(plan), view_plan(marked)
    (annotation,) = after.annotations
    for reader in ("T2", "T3"):
        edge = selections.find(before, f"T1 -> {reader}")
        moved = selections.again(before, after, edge)
        assert selections.name(after, moved) == f"{annotation.hint if reader == 'T3' else 'T1'} -> {reader}"
        assert selections.again(after, before, moved) == edge
    assert selections.again(before, after, "absent") == ""

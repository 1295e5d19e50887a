"""fl.report, and the commands that only call public functions."""

import json
import re

import numpy as np
import pytest
from fuser_lab_widgets import baked

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.cli.commands import main
from fuser_lab.errors import ArgumentTypeError, InputError

SCRIPT = """\
import torch
from nvfuser_direct import FusionDefinition, DataType

def nvfuser_fusion_id0(fd : FusionDefinition) -> None :
    T0 = fd.define_tensor(shape=[64, 64], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)
    T1 = fd.ops.sum(T0, dims=[1], keepdim=False, dtype=DataType.Null)
    T2 = fd.ops.broadcast(T1, is_broadcast_dim=[False, True])
    T3 = fd.ops.add(T0, T2)
    fd.add_output(T3)

with FusionDefinition() as fd:
    nvfuser_fusion_id0(fd)

inputs = [torch.randn(4096, dtype=torch.float32, device='cuda:0').as_strided((64, 64), (64, 1))]
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def chain(count):
    with FusionDefinition() as fd:
        t = x = fd.define_tensor([1024, 512], contiguity=True, dtype=DataType.Float)
        for n in range(count // 2):
            t = fd.ops.add(fd.ops.neg(t) if n % 2 else fd.ops.exp(t), x)
        fd.add_output(t)
    return fl.segment(fd)


def test_a_report_of_two_plans_of_300_ops_is_small_and_asks_for_nothing(tmp_path):
    plan = chain(300)
    assert len(plan.fusion.exprs) == 300
    path = fl.report([plan, plan.cut("T100").cut("T200")], tmp_path / "out.html")
    assert path.stat().st_size < 500_000
    text = path.read_text()
    assert not re.findall(r"https?://(?!www\.w3\.org/)", text)
    assert "default-src 'none'" in text
    assert not re.search(r"<(?:link|img|iframe|script[^>]+src)\b", text)


def test_the_report_escapes_what_the_user_named(tmp_path):
    name = "</script><img src=x onerror=alert(1)>"
    plan = chain(4).renamed(name)
    text = fl.report(plan, tmp_path / "out.html", title=name).read_text()
    assert "<img" not in text
    assert text.count("</script>") == text.count("<script ") == 2


def test_plans_that_differ_in_annotations_stand_beside_each_other(tmp_path):
    plan = chain(6)
    plans = [plan, plan.annotate("T2")]
    assert fl.report(plans, tmp_path / "out.html").exists()
    # The content of the page is compressed in the file.
    page = baked.bake(plans)
    _, annotated = page["plans"]
    assert "fl-hinted" in str(page["chunks"])
    assert "fl-hinted" not in str(baked.bake(plans[:1])["chunks"])
    assert "only after" in annotated["panels"]["compare"]["html"]


def test_what_cannot_be_reported_is_told(tmp_path):
    plan = chain(4)
    with pytest.raises(InputError, match=r"must end in \.html, given 'out\.pdf'"):
        fl.report(plan, tmp_path / "out.pdf")
    with pytest.raises(InputError, match="of one definition"):
        fl.report([plan, chain(6)], tmp_path / "out.html")
    for nothing in ([], "plan", [plan, None]):
        with pytest.raises(ArgumentTypeError, match=r"report: (a list must contain plans|the subject is 'plan')"):
            fl.report(nothing, tmp_path / "out.html")
    assert not list(tmp_path.iterdir())


def sums(rows):
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.exp(fd.ops.sum(x, dims=[1])))
    inputs = [np.ones((rows, 8), np.float32)]
    return fl.segment(fd, inputs), inputs


def test_a_report_takes_times_of_its_own_plans_only(tmp_path):
    plan, inputs = sums(4)
    cut = plan.cut("T1").renamed("cut")
    out = tmp_path / "out.html"
    times = fl.time([plan, cut], inputs, peers={"numpy": lambda x: np.exp(x.sum(1))}, seconds=0.01, progress=False)
    assert [row.plan_hash for row in times.totals] == [plan.hash, cut.hash, ""]
    assert fl.report([plan, cut], out, times) == out
    assert fl.report(plan, out, times) == out
    out.unlink()
    longer, _ = sums(5)
    assert longer.name == plan.name
    with pytest.raises(InputError, match="the times of 'bottom-up' are of another plan of that name, or of other size"):
        fl.report(longer, out, times)
    with pytest.raises(InputError, match="the times of 'cut' are of another plan of that name"):
        fl.report([plan, plan.renamed("cut")], out, times)
    with pytest.raises(InputError, match=r"the times are of 'bottom-up', 'cut', none of which is a plan of the report"):
        fl.report(longer.renamed("longer"), out, times)
    with pytest.raises(ArgumentTypeError, match="times must be what time.* or explain.* returns, given "):
        fl.report(plan, out, times=[1.0])
    assert not out.exists()


def test_the_command_writes_a_report(script, tmp_path, capsys):
    out = tmp_path / "r.html"
    assert main(["report", script, "-o", str(out), "--strategies", "bottom_up,unfused", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {
        "schema": "fuser_lab.report", "version": 1, "path": str(out), "plans": ["bottom-up", "unfused"],
    }
    assert out.read_text().startswith("<!DOCTYPE html>")


def test_the_command_compares_two_plans_or_more(script, capsys):
    assert main(["diff", script, "--strategies", "bottom_up,unfused", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    fd, inputs = fl.load_repro(SCRIPT)
    found = fl.diff(fl.segment(fd, inputs), fl.segment(fd, inputs, strategy="unfused"))
    assert data == json.loads(json.dumps(found.to_dict()))
    assert (data["schema"], data["version"]) == ("fuser_lab.diff", 1)
    assert main(["diff", script, "--strategies", "bottom_up,unfused,top_down"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["bottom-up", "unfused", "top-down"]


def test_commands_that_cannot_be_followed_say_why(script, tmp_path, capsys):
    assert main(["diff", script, "--strategies", "bottom_up"]) == 2
    assert "must name two strategies or more" in capsys.readouterr().err
    assert main(["report", script, "-o", str(tmp_path / "r.svg")]) == 2
    assert "must end in .html" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "none.py")]) == 2
    assert "none.py cannot be read" in capsys.readouterr().err


def test_several_plans_stand_beside_each_other():
    plan = chain(6)
    cut = plan.cut("T2")
    found = fl.diff(plan, cut, plan)
    rows = found.table().rows
    assert [row[:2] for row in rows] == [(plan.name, "1"), (cut.name, "2"), (plan.name, "1")]
    assert rows[0][4] == rows[2][4] == "1.00"
    assert [bool(d) for d in found.diffs] == [True, False]
    assert json.loads(json.dumps(found.to_dict()))["version"] == 1

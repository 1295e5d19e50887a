"""Why segments are separate, the log as data, two plans compared, targets, and the output of the command."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import fuser_lab as fl
from fuser_lab import examples
from fuser_lab.cli import commands as cli
from fuser_lab.cost.device import H200
from fuser_lab.definition.spec import spec
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError, IllegalEdit, InputError
from fuser_lab.runtime.gpu import this_gpu
from fuser_lab.runtime.gpu.this_gpu import describe_device
from fuser_lab.segmentation import Relation
from fuser_lab.segmentation.events import DecisionLog

DATA = Path(__file__).parents[2] / "data"
GALLERY = json.loads((DATA / "gallery.json").read_text())


def gallery_plan(case, **options):
    """Return a plan of a gallery fusion."""
    with fl.FusionDefinition() as fd:
        exec(case["python"], {"fd": fd, "DataType": DataType})
    inputs = [spec(x["shape"], x["dtype"], x.get("strides")) if "shape" in x else x["scalar"] for x in case["inputs"]]
    return fl.segment(fd, inputs, **options)


def check_boundaries(plan):
    """Assert that any two segments with a tensor between them have a reason, and refused ones a code."""
    after = plan.segmented.successors
    boundaries = plan.boundaries()
    assert {why.segments for why in boundaries} == {(a, b) for a, targets in enumerate(after) for b in targets}
    for why in boundaries:
        assert why.relation in {Relation.REFUSED, Relation.CYCLE, Relation.NEVER_TRIED}
        assert why.text.endswith(".")
        if why.relation is Relation.CYCLE:
            assert "through segment" in why.text
        else:
            assert why.verdicts


@pytest.mark.parametrize("strategy", ["bottom_up", "top_down"])
@pytest.mark.parametrize("case", GALLERY, ids=lambda c: c["id"])
def test_every_boundary_of_the_gallery_has_a_reason(case, strategy):
    check_boundaries(gallery_plan(case, strategy=strategy))


@pytest.mark.parametrize("strategy", ["bottom_up", "top_down", "unfused"])
@pytest.mark.parametrize("name", examples.names())
def test_every_boundary_of_the_examples_has_a_reason(name, strategy):
    check_boundaries(fl.segment(*fl.example(name, "full"), strategy=strategy))


def test_hints_are_named_where_they_keep_segments_apart():
    plan = gallery_plan(next(c for c in GALLERY if c["id"] == "segment_set_extra"))
    hinted = [why for why in plan.boundaries() if "a hint keeps them apart" in why.text]
    assert hinted
    assert "segment_set" in hinted[0].text


def test_a_hint_is_the_reason_also_where_no_scheduler_would_accept_both():
    plan = fl.segment(*fl.example("sum_broadcast_add")).annotate("T2")
    why = plan.why("T2_hint", "T3")
    refusals = [attempt for attempt in plan.decisions if not attempt.accepted]
    assert {attempt.code for attempt in refusals} == {"segment_set_inside"}
    tried = "{T2, T2_hint} + {T3, T4} in the final merge"
    assert f"a hint keeps them apart (tried as {tried}, attempt {refusals[-1].seq})" in why.text
    assert why.text.endswith("Without the hint, no scheduler would accept both segments as one either.")
    assert why.refusal.startswith("reduction: T4 expands T3")


def softmax(rows, columns):
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([rows, columns], contiguity=True)
        power = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, dims=[1], keepdim=True)))
        fd.add_output(fd.ops.truediv(power, fd.ops.sum(power, dims=[1], keepdim=True)))
    return fd


def test_the_log_has_phases_groups_verdicts_with_numbers_and_times():
    log = fl.segment(softmax(512, 65536), target="A100").decisions
    refusal = log.filter(code="buffer_too_large")[0]
    verdict = next(v for v in refusal.verdicts if v.code == "buffer_too_large")
    assert dict(verdict.params)["bytes"] == 262144
    assert refusal.seconds > 0
    again = DecisionLog.from_json(log.to_json())
    assert again == log
    assert [a.seconds for a in again] == pytest.approx([a.seconds for a in log], abs=1e-8)
    assert again.filter(code="buffer_too_large")[0].verdicts == refusal.verdicts
    assert len(log.filter(accepted=True)) + len(log.filter(accepted=False)) == len(log)
    assert {a.phase for a in log.filter(phase="level round")} >= {"level round 1"}
    assert all("T1" in a.names for a in log.filter(op="T1"))
    assert all(any(v.scheduler == "reduction" for v in a.verdicts) for a in log.filter(scheduler="reduction"))


def test_an_attempt_prints_as_its_line_of_the_log():
    log = fl.segment(softmax(512, 65536), target="A100").decisions
    lines = str(log).splitlines()
    assert all(str(attempt) in lines for attempt in log)
    assert all(repr(attempt) == f"<Attempt {str(attempt).lstrip()}>" for attempt in log)
    assert str(log[0]).startswith("   0 - whole fusion: merge 7 groups of {T1, T2, T3, ..., T6, T7}  ")
    assert str(log[-1]).count("{") <= 4


def test_one_fusion_for_two_targets_is_two_plans():
    fd = softmax(512, 65536)
    old, new = (fl.segment(fd, target=name, name=name) for name in ("A100", "H200"))
    assert (len(old.segments), len(new.segments)) == (3, 1)
    found = fl.diff(old, new)
    assert found
    assert {m.name: (m.before, m.after) for m in found.moved}["T7"] == ((2,), (0,))
    assert {c.name: c.bytes for c in found.no_longer_crossing} == {"T2": 2048, "T4": 134217728, "T6": 2048}
    assert found.now_crossing == ()
    assert found.bytes_saved == sum(s.bytes for s in old.segments) - sum(s.bytes for s in new.segments) > 0
    assert found.headline == "A100 → H200, for A100 and for H200: 3 → 1 segment, 671 MB → 268 MB moved (403 MB less)"
    assert "T4  " in str(found)
    assert "<table" in found._repr_html_()
    back = fl.diff(new, old)
    assert back.now_crossing == found.no_longer_crossing
    assert back.bytes_saved == -found.bytes_saved


def test_equal_plans_have_no_difference():
    plan = fl.segment(softmax(64, 64))
    assert not fl.diff(plan, plan)
    assert str(fl.diff(plan, plan)) == "bottom-up and bottom-up: the same 1 segment"


def test_an_edit_compared_with_what_it_was_made_of():
    plan = fl.segment(softmax(64, 64))
    found = fl.diff(plan, plan.cut("T4"))
    assert [c.name for c in found.now_crossing] == ["T4"]
    assert {m.name for m in found.moved} & {"T4", "T5", "T6", "T7"}
    with pytest.raises(InputError, match="of one definition"):
        fl.diff(plan, fl.segment(softmax(64, 65)))
    with pytest.raises(ArgumentTypeError, match="after must be a Plan, given '"):
        fl.diff(plan, "plan")


def test_targets_by_name_of_ones_own_and_of_this_machine(monkeypatch):
    fd = softmax(512, 65536)
    small = fl.Device(
        name="small", cc=(8, 0), sms=4, shared_per_sm=2**16, shared_per_block=2**15, l2=2**20, bandwidth=100, fp32=1,
        bf16=2, registers=16384,
    )
    assert len(fl.segment(fd, target=small).segments) == 3
    assert fl.segment(fd, target=small).target == "small"
    names = "A100, H100, H200, B200, 'this machine', 'this CPU' and 'typical CPU'"
    with pytest.raises(InputError, match=f"'H900'; choose from {names}"):
        fl.segment(fd, target="H900")
    this_gpu.this_gpu.cache_clear()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=NoGpu))
    with pytest.raises(InputError, match=r"no CUDA GPU was found; choose from A100, H100, H200, B200"):
        fl.segment(fd, target="this machine")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=OneGpu))
    assert fl.segment(fd, target="this machine").target == "H200"
    this_gpu.this_gpu.cache_clear()


class NoGpu:
    @staticmethod
    def is_available():
        return False


def driver_says(**changes):
    """Return torch's properties of an H200, or of another GPU."""
    found = {
        "name": "NVIDIA H200", "major": 9, "minor": 0, "multi_processor_count": 132, "clock_rate": 1_980_000,
        "memory_clock_rate": 3_201_000, "memory_bus_width": 6144, "shared_memory_per_multiprocessor": 233472,
        "shared_memory_per_block_optin": 232448, "L2_cache_size": 62914560, "regs_per_multiprocessor": 65536,
    }
    return SimpleNamespace(**(found | changes))


class OneGpu:
    @staticmethod
    def is_available():
        return True

    @staticmethod
    def get_device_properties(_):
        return driver_says()


def test_gpus_that_are_not_listed_are_described_by_their_driver():
    assert describe_device(driver_says()) == H200
    other = describe_device(driver_says(name="NVIDIA RTX 6000 Ada", minor=9, major=8, multi_processor_count=142))
    assert (other.name, other.cc, other.sms) == ("NVIDIA RTX 6000 Ada", (8, 9), 142)
    assert other.bandwidth == pytest.approx(4917, rel=0.01)
    assert other.fp32 == pytest.approx(72, rel=0.01)


REPRO = """
def nvfuser_fusion(fd: FusionDefinition) -> None:
    T0 = fd.define_tensor(shape=[64, 32], contiguity=[True, True], dtype=DataType.Float)
    T1 = fd.define_tensor(shape=[64, 32], contiguity=[True, True], dtype=DataType.Float)
    T2 = fd.ops.sum(T0, dims=[1], keepdim=False, dtype=DataType.Null)
    T3 = fd.ops.broadcast(T2, is_broadcast_dim=[False, True])
    T4 = fd.ops.add(T1, T3)
    fd.add_output(T4)

with FusionDefinition() as fd:
    nvfuser_fusion(fd)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "repro.py"
    path.write_text(REPRO)
    return str(path)


def test_explain_as_text(script, capsys):
    assert cli.main(["explain", script]) == 0
    text = capsys.readouterr().out
    assert "3 ops in 2 segments" in text
    assert "S0       reduction" in text
    assert "Between S0 and S1 (T3, 256 B): segment 0 and segment 1 are separate; no scheduler accepts both" in text
    assert "T4 expands T3, a result of the reduction, back to 32 elements: that needs a second walk" in text
    assert "target: H200; options: nvFuser's defaults" in text
    assert cli.main(["explain", script, "--log", "--target", "A100", "--strategy", "top_down"]) == 0
    text = capsys.readouterr().out
    assert "target: A100" in text
    assert "top-down: merge" in text


def test_explain_as_json(script, capsys):
    assert cli.main(["explain", script, "--json", "--segment-set", "cut"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["plan"]["options"]["segment_set"] == "cut"
    assert [s["scheduler"] for s in data["segments"]] == ["reduction", "pointwise"]
    (boundary,) = data["boundaries"]
    assert boundary["segments"] == [0, 1]
    assert boundary["tensors"] == ["T3"]
    assert boundary["relation"] == "refused"
    refusal = next(v for v in boundary["verdicts"] if v["scheduler"] == "reduction")
    assert refusal["code"] == "broadcast_after_reduction"
    assert refusal["params"]["extent"] == 32
    assert data["log"]["attempts"][0]["phase"] == "whole fusion"
    assert all("seconds" in attempt and attempt["verdicts"] for attempt in data["log"]["attempts"])


def test_explain_says_what_it_cannot_do(script, capsys, tmp_path):
    assert cli.main(["explain", str(tmp_path / "none.py")]) == 2
    assert "none.py cannot be read" in capsys.readouterr().err
    assert cli.main(["explain", script, "--strategy", "best"]) == 2
    assert "unknown strategy 'best'" in capsys.readouterr().err
    assert cli.main(["explain", script, "--target", "H900"]) == 2
    assert "unknown target 'H900'" in capsys.readouterr().err
    (tmp_path / "empty.py").write_text("x = 1\n")
    assert cli.main(["explain", str(tmp_path / "empty.py")]) == 2
    assert capsys.readouterr().err.startswith("fuser_lab: ")


def test_edits_that_do_nothing_or_cannot_be():
    plan = fl.segment(softmax(64, 64), strategy="unfused")
    for edit, text in (
        (lambda: plan.cut("T1"), "nothing to cut"),
        (lambda: plan.cut("T99"), "no tensor called 'T99'"),
        (lambda: plan.cut(("T1", "T99")), "no tensor called 'T99'"),
        (lambda: plan.glue(0, 2), "would close a cycle through 0 -> "),
        (lambda: plan.move("T99", 0), "no tensor called 'T99'"),
    ):
        with pytest.raises(IllegalEdit, match=text):
            edit()


@pytest.mark.parametrize("strategy", ["bottom_up", "top_down"])
def test_long_chains(strategy, few_frames):
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([8], contiguity=True)
        y = x
        for _ in range(1000):
            y = fd.ops.add(y, x)
        fd.add_output(y)
    plan = fl.segment(fd, strategy=strategy)
    assert len(plan.segments) == 1
    cut = plan.cut("T500")
    assert len(cut.segments) == 2
    assert cut.why("T500", "T501").relation is Relation.EDITED

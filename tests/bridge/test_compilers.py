"""A compiler that a stranger adds: a reader of its kernels and a way to force a partition, and nothing else."""

import ast
from pathlib import Path

import pytest

import fuser_lab as fl
from fuser_lab.compilers.plan import CompiledPlan, Editing, EditTimes
from fuser_lab.compilers.record import (
    KernelRecord,
    PlanRecord,
    RecordedPlan,
    Recording,
    TracedCall,
    text_of_recording,
)
from fuser_lab.errors import IllegalEdit, UnsupportedError
from fuser_lab.segmentation.events import Attempt, Kind, Outcome, VerdictRecord

CHAIN = ("load", "exp", "sum", "scale")  # each reads the one before it


def toy_record(groups, attempts=()):
    """What the toy compiler makes of a chain: kernels of neighbours."""
    writes = {name: f"b{place}" for place, name in enumerate(CHAIN)}
    before = dict(zip(CHAIN[1:], CHAIN, strict=False))
    kernels = tuple(
        KernelRecord(
            names=tuple(group), writes=tuple(writes[name] for name in group),
            reads=tuple(writes[before[name]] for name in group if name in before), nodes=tuple(group), bytes=64,
            function="blas.sum" if group == ["sum"] else f"toy_{launch}", launch=launch, opaque=group == ["sum"],
            loops="[8]",
        )
        for launch, group in enumerate(groups)
    )
    return PlanRecord(
        compiler="toy", number=0, kind="inference", digest="chain",
        calls={name: TracedCall(target=f"toy.{name}", original="", place=f"user.py:{place + 1}")
               for place, name in enumerate(CHAIN)},
        attempts=tuple(attempts), kernels=kernels, groups=tuple(map(tuple, groups)), through={},
        writers={buffer: name for name, buffer in writes.items()},
        read_by={name: (source,) for name, source in before.items()}, output_code="toy",
        sources={kernel.function: f"kernel of {kernel.names}" for kernel in kernels if not kernel.opaque},
        sizes=dict.fromkeys(writes.values(), 32),
    )


def toy_plan(groups, attempts=()):
    def applied(plan, parts, count):
        names = ([name for group in part for name in group] for part in parts)
        made = sorted(names, key=lambda group: CHAIN.index(group[0]))
        if ["sum"] not in made:
            msg = "toy: a sum is a kernel of its own."
            raise IllegalEdit(msg)
        assert len(made) == count
        edited = toy_plan(made)
        return CompiledPlan(
            record=edited.record, editing=edited.editing, edited=EditTimes(before=2e-6, after=1e-6, difference=0.0),
        )

    return CompiledPlan(
        record=toy_record(groups, attempts),
        editing=Editing(
            apply=applied, code=lambda plan: f"toy.force({plan.groups})", run=lambda: None, measure=lambda plans: (),
        ),
    )


REFUSED = Attempt(
    phase="toy", kind=Kind.MERGE, subjects=(("load", "exp"), ("sum",)), outcome=Outcome.REFUSED, code="toy", seq=0,
    text="sums go to the library",
    verdicts=(VerdictRecord(scheduler="toy", accepted=False, code="toy", text="sums go to the library"),),
)


@pytest.fixture
def plan():
    return toy_plan([["load", "exp"], ["sum"], ["scale"]], [REFUSED])


def test_kernels_and_reasons_of_a_new_compiler(plan):
    assert [kernel.opaque for kernel in plan.segments] == [False, True, False]
    assert str(plan.why("exp", "sum")) == "kernels 0 and 1 are separate: sums go to the library [toy]"
    assert plan.why("user.py:3", "scale").by == "fuser_lab"
    assert plan.reasons().rows[0] == ("0 and 1", "sums go to the library", "toy")
    assert "kernel 0" in plan._repr_html_()
    assert "blas.sum" in plan._repr_html_()


def test_edits_of_a_new_compiler(plan):
    edited = plan.cut("b0")
    assert edited.groups == (("load",), ("exp",), ("sum",), ("scale",))
    assert edited.glue("load", "exp").groups == plan.groups
    assert edited.to_code() == f"toy.force({edited.groups})"
    assert "2.00 µs before the edit, 1.00 µs after" in str(edited)
    with pytest.raises(IllegalEdit, match="a sum is a kernel of its own"):
        plan.glue(0, 1)
    assert (plan.can_cut("b0"), plan.can_cut("b1")) == (True, False)


def test_plans_of_a_new_compiler_open_from_a_file(plan, tmp_path):
    path = tmp_path / "toy.fusions.json"
    path.write_text(text_of_recording(Recording(plans=(RecordedPlan(plan=plan.record),))), encoding="utf-8")
    (loaded,) = fl.load_recorded(path).plans
    assert (str(loaded), loaded.segments[0].source()) == (str(plan), plan.segments[0].source())
    with pytest.raises(UnsupportedError, match="without a capture of its graph"):
        fl.compare([loaded, "optimal"])


def test_the_explorer_shows_and_edits_plans_of_a_new_compiler(plan):
    explorer = fl.explore(plan)
    press = explorer.map._receive
    press(None, {"type": "box", "id": "kernel 0"}, None)
    side = explorer.map.view["side"]
    assert "kernel of ('load'" in side
    assert "sums go to the library [toy]" in side
    assert "Cut after b0" in side
    press(None, {"type": "cut", "at": "b0"}, None)
    explorer.map.wait()
    assert "1.00 µs after" in explorer.map.view["below"]
    assert len(explorer.map.plan.segments) == 4
    press(None, {"type": "edited"}, None)
    assert explorer.map.plan is plan
    press(None, {"type": "glue", "n": 0, "with": 1}, None)
    explorer.map.wait()
    assert explorer.map.view["status"] == "toy: a sum is a kernel of its own."
    press(None, {"type": "open", "graph": 0, "region": 0}, None)
    assert "without a capture of its graph" in explorer.map.view["status"]
    explorer.close()


def test_only_its_package_knows_a_compiler(repository: Path):
    compilers = repository / "fuser_lab" / "compilers"
    packages = {path for path in compilers.iterdir() if path.is_dir()} | {compilers / "xla.py"}
    named = []
    for folder in (repository / "fuser_lab", repository / "widgets" / "fuser_lab_widgets"):
        for path in folder.rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            if path in packages or packages & set(path.parents) or ".compiler" not in source:
                continue
            named += [
                f"{path.name}:{node.lineno}" for node in ast.walk(ast.parse(source))
                if isinstance(node, ast.Compare) and any(
                    isinstance(part, ast.Attribute) and part.attr == "compiler"
                    for part in (node.left, *node.comparators)
                ) and not all(isinstance(part, ast.Attribute) for part in (node.left, *node.comparators))
            ]
    assert named == []

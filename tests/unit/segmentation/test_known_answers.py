"""The segmentations that nvFuser's own tests assert, and counts observed in public issues."""

import json
from pathlib import Path

import pytest

from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.definition.binding import bind
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.spec import spec
from fuser_lab.dtypes import DataType
from fuser_lab.plan.planning import rewrite_fusion
from fuser_lab.schedule.registry import SchedulerRegistry
from fuser_lab.segmentation import SegmentedFusion, SegmenterOptions, replay, segment
from fuser_lab.segmentation.events import DecisionLog

DATA = Path(__file__).parents[2] / "data"
CASES = json.loads((DATA / "segmentation_cases.json").read_text())
GALLERY = json.loads((DATA / "gallery.json").read_text())

NAMES = {kind.value.replace("_", ""): kind.value for kind in SchedulerType}  # by nvFuser's names in lower case

# Counts that nvFuser's tests do not assert, that were derived from its rules, and that these rules contradict.
CONTRADICTED = {
    "forwarded_then_slice": (
        2,
        # The slice is an output and a view of neg's result, so MarkAliasesPrepare splits it off: nvFuser's
        # own test asserts that for the same shape of fusion in dynamic_reshape_slice.
        "MarkAliasesPrepare",
    ),
}


def plain(options: dict) -> dict:
    """Return a case's options without the remark beside a name, as in "resize_scheduler (default at HEAD)"."""
    return {key: [n.partition(" (")[0] for n in v] if isinstance(v, list) else v for key, v in options.items()}


def segmented(case: dict) -> SegmentedFusion:
    """Return a case segmented bottom-up with nvFuser's passes and options."""
    with FusionBuilder() as fd:
        exec(case["python"], {"fd": fd, "DataType": DataType})
    inputs = [
        spec(x["shape"], x["dtype"], x.get("strides")) if "shape" in x else x["scalar"] for x in case["inputs"]
    ]
    options = SegmenterOptions.from_nvfuser(**plain(case.get("options", {})))
    log = DecisionLog()
    fusion = rewrite_fusion(bind(fd.fusion, inputs).fusion, options, log)
    oracle = SchedulerRegistry(
        disabled=frozenset(map(SchedulerType, options.disabled_schedulers)),
        memory_promotion=options.memory_promotion, fuse_matmul=options.fuse_matmul,
    )
    result = segment(fusion, oracle, options=options, log=log)
    assert replay(fusion, log, oracle) == result
    assert all(group.scheduler is not None for group in result.groups)
    return result


def count_holds(case: dict, count: int) -> bool:
    """Return whether a number of segments is as stated."""
    return {"==": count == case["segments"], "<=": count <= case["segments"], ">=": count >= case["segments"]}[
        case["relation"]
    ]


def stated_schedulers(case: dict) -> list[str] | None:
    """Return the names of the schedulers that a case states, in alphabetical order; None if it states none."""
    stated = case.get("schedulers")
    return None if stated is None else sorted(NAMES[name.lower()] for name in stated)


def schedulers(result: SegmentedFusion) -> list[str]:
    """Return the names of the schedulers of all segments in alphabetical order."""
    return sorted(group.scheduler.value if group.scheduler else "none" for group in result.groups)


def holds(case: dict, result: SegmentedFusion) -> bool:
    """Return whether the number of segments, and the schedulers if they are stated, are as stated."""
    stated = stated_schedulers(case)
    return count_holds(case, len(result.groups)) and stated in (None, schedulers(result))


@pytest.mark.parametrize("case", [c for c in CASES if c["id"] not in CONTRADICTED], ids=lambda c: c["id"])
def test_known_answer(case):
    result = segmented(case)
    assert count_holds(case, len(result.groups)), f"expected {case['relation']} {case['segments']}: {case['notes']}"
    assert stated_schedulers(case) in (None, schedulers(result))


@pytest.mark.parametrize("case", [c for c in CASES if c["id"] in CONTRADICTED], ids=lambda c: c["id"])
def test_what_the_rules_contradict(case):
    assert case["segments_status"] == "derived"
    assert len(segmented(case).groups) == CONTRADICTED[case["id"]][0]


def test_the_table_names_cases():
    assert {c["id"] for c in CASES} >= set(CONTRADICTED)


def at_head(case: dict) -> bool:
    """Return whether nvFuser is stated to give this count for this definition today."""
    stated = case["segments_status"] == "stated" and case.get("holds_at_head")
    return bool(stated and case.get("count_is_for") == "this definition")


@pytest.mark.parametrize("case", [c for c in GALLERY if at_head(c)], ids=lambda c: c["id"])
def test_gallery(case):
    assert holds(case, segmented(case))


@pytest.mark.parametrize("case", GALLERY, ids=lambda c: c["id"])
def test_every_gallery_fusion_segments(case):
    assert segmented(case).groups

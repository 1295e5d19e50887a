"""The segmentations that nvFuser's own tests assert, and counts observed in public issues.

`WAITS` lists the cases that need something that does not exist here yet, with what it is. Such a case must fail:
as soon as it holds, its line has to go.
"""

import json
from pathlib import Path

import pytest

from fuser_lab.definition.binding import bind
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.spec import spec
from fuser_lab.dtypes import DataType
from fuser_lab.errors import UnsupportedError
from fuser_lab.events import DecisionLog
from fuser_lab.schedule.registry import SchedulerRegistry
from fuser_lab.segmentation import SegmentedFusion, replay, segment

DATA = Path(__file__).parents[2] / "data"
CASES = json.loads((DATA / "segmentation_cases.json").read_text())
GALLERY = json.loads((DATA / "gallery.json").read_text())

ALIASES = "the pass MarkAliasesPrepare, which splits off outputs that are views"
WAITS = {
    "reshape_alias_and_compute": ALIASES,
    "set_alias_and_compute": ALIASES,
    "compute_then_permute_outputs": ALIASES,
    "bookend_input_side": ALIASES,
    "bookend_output_side": ALIASES,
    "inplace_across_segments": "the pass SegmentInplaceUpdate",
    "copy_input_into_input": "the pass SegmentInplaceUpdate",
    "reshape_cross_segment_extent": "symbolic sizes across segments: here sizes are known before the cut",
    "dynamic_reshape_slice": ALIASES,
    "cat_after_broadcast_cat_dim": "the pass MovePad, for when the resize scheduler is off",
    "matmul_k1": "the pass TranslateNoReductionMatmulToMulSqueeze",
}


def segmented(case: dict) -> SegmentedFusion:
    """Return a case segmented bottom-up with nvFuser's defaults."""
    with FusionBuilder() as fd:
        exec(case["python"], {"fd": fd, "DataType": DataType})
    inputs = [
        spec(x["shape"], x["dtype"], x.get("strides")) if "shape" in x else x["scalar"] for x in case["inputs"]
    ]
    fusion = bind(fd.fusion, inputs).fusion
    log = DecisionLog()
    enabled = case.get("options", {}).get("enable", ())
    oracle = SchedulerRegistry(memory_promotion="memory_promotion" in enabled, fuse_matmul="fuse_matmul" in enabled)
    result = segment(fusion, oracle, log=log)
    assert replay(fusion, log, oracle) == result
    assert all(group.scheduler is not None for group in result.groups)
    return result


def holds(case: dict) -> bool:
    """Return whether the number of segments is as stated."""
    count = len(segmented(case).groups)
    return {"==": count == case["segments"], "<=": count <= case["segments"], ">=": count >= case["segments"]}[
        case["relation"]
    ]


@pytest.mark.parametrize("case", [c for c in CASES if c["id"] not in WAITS], ids=lambda c: c["id"])
def test_known_answer(case):
    assert holds(case), f"expected {case['relation']} {case['segments']}: {case['notes']}"


@pytest.mark.parametrize("case", [c for c in CASES if c["id"] in WAITS], ids=lambda c: c["id"])
def test_what_waits_does_not_hold_yet(case):
    try:
        held = holds(case)
    except UnsupportedError:
        held = False
    assert not held, f"{case['id']} holds: take it out of WAITS ({WAITS[case['id']]})"


def test_the_table_names_cases():
    assert {c["id"] for c in CASES} >= set(WAITS)


def at_head(case: dict) -> bool:
    """Return whether nvFuser is said to give this count for this very definition today."""
    stated = case["segments_status"] == "stated" and case.get("holds_at_head")
    return bool(stated and case.get("count_is_for") == "this definition")


@pytest.mark.parametrize("case", [c for c in GALLERY if at_head(c)], ids=lambda c: c["id"])
def test_gallery(case):
    assert holds(case)


@pytest.mark.parametrize("case", GALLERY, ids=lambda c: c["id"])
def test_every_gallery_fusion_segments(case):
    assert segmented(case).groups

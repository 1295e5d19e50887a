"""A plan printed as nvFuser's dump and read again is the same plan."""

import json
from pathlib import Path

import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition, SegmenterOptions, examples, spec
from fuser_lab.report.diff import plan_diff

DATA = Path(__file__).parents[2] / "data"
CASES = [case for name in ("gallery", "segmentation_cases") for case in json.loads((DATA / f"{name}.json").read_text())]


def check(plan):
    """Check that names, ops, axes, layouts, segments and schedulers are restored."""
    read = fl.load_dump(plan.to_dump())
    assert read.plan.segmented.key == plan.segmented.key
    assert read.plan.segmented.fusion.tensors.keys() == plan.fusion.tensors.keys()
    assert [s.scheduler for s in read.plan.segments] == [s.scheduler for s in plan.segments]
    assert not plan_diff(plan, read.plan)


@pytest.mark.parametrize("name", examples.names())
def test_examples(name):
    check(fl.segment(*fl.example(name)))


def options_of(case):
    """Return a case's options without the remarks beside names."""
    given = case.get("options", {}).items()
    plain = {key: [n.partition(" (")[0] for n in v] if isinstance(v, list) else v for key, v in given}
    return SegmenterOptions.from_nvfuser(**plain)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_gallery_and_known_answers(case):
    with FusionDefinition() as fd:
        exec(case["python"], {"fd": fd, "DataType": DataType})
    inputs = [
        spec(x["shape"], x["dtype"], x.get("strides")) if "shape" in x else x["scalar"] for x in case["inputs"]
    ]
    check(fl.segment(fd, inputs, options=options_of(case)))


def test_an_edited_plan():
    check(fl.segment(*fl.example("softmax", "full")).cut("T2"))

"""A plan printed as nvFuser's dump and read again is the same plan."""

import json
from pathlib import Path

import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition, SegmenterOptions, examples, spec
from fuser_lab.report.diff import plan_diff
from tests.campaign import Trial
from tests.fuzz.check import defined
from tests.fuzz.runner import draw
from tests.thorough import share

DATA = Path(__file__).parents[2] / "data"
CASES = [case for name in ("gallery", "segmentation_cases") for case in json.loads((DATA / f"{name}.json").read_text())]


def check(plan):
    """Check that both forms restore names, ops, axes, layouts, segments and schedulers."""
    for form in ("math", "print"):
        check_form(plan, form)


def check_form(plan, form):
    """Check that one form restores names, ops, axes, layouts, segments and schedulers."""
    read = fl.load_dump(plan.to_dump(form))
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


@pytest.mark.sampled(4)
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


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("index", range(share(500)))
def test_random_fusions(index):
    program = draw(Trial(seed=91, number=index))
    program, fd = defined(program)
    check(fl.segment(fd, program.arrays()))


def test_a_layout_is_read_from_the_domains_that_are_listed():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, stride_order=[0, 1])
        fd.add_output(fd.ops.relu(x))
    plan = fl.segment(fd, [spec((64, 32), "float32", (1, 64))])
    text = plan.to_dump("print")
    assert " allocation domain: (" in text
    assert "// fuser_lab" not in text
    assert fl.load_dump(text).plan.fusion.tensor_inputs[0].domain.allocation == (1, 0)

"""How the work of segmenting grows with the fusion: twice the size takes about twice the calls."""

import sys
from types import FrameType

import pytest

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.segmentation import grouping, reduction_sets


def sums_of_two_kinds(count: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([16, 64], contiguity=True)
        for number in range(count):
            fd.add_output(fd.ops.sum(fd.ops.mul(x, float(number)), [number % 2]))
    return fd


def calls_in(modules: set[str], fd: FusionDefinition) -> int:
    """Return how often functions of some files are called, and generators resumed, while a plan is made."""
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename in modules

    sys.setprofile(count)
    try:
        plan = fl.segment(fd)
    finally:
        sys.setprofile(None)
    assert len(plan.segments) == 2
    return calls


@pytest.mark.parametrize("small", [24])
def test_sets_of_reductions_follow_merges_in_linear_work(small: int) -> None:
    modules = {str(module.__file__) for module in (grouping, reduction_sets)}
    few, many = (calls_in(modules, sums_of_two_kinds(count)) for count in (small, 2 * small))
    assert many < 3 * few

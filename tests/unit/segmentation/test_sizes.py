"""How the work of segmenting grows with the fusion: twice the size takes about twice the calls."""

import random
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType, ModuleType

import pytest

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.analysis import bit_masks, buffer_sizes, coverage, domain_map, reductions
from fuser_lab.analysis.bit_masks import mask_of
from fuser_lab.cost.traffic import CostModel
from fuser_lab.schedule import facts
from fuser_lab.segmentation import (
    SegmenterOptions,
    bounds,
    forwarding,
    grouping,
    local_search,
    oracle,
    reduction_sets,
)
from fuser_lab.segmentation.local_search import Partition, merges
from fuser_lab.segmentation.reduction_sets import Cores
from fuser_lab.segmentation.space import Space
from tests.benchmarks.optimal import irregular
from tests.benchmarks.segmentation import additions, many_outputs
from tests.benchmarks.sizes import FAMILIES


def sums_of_two_kinds(count: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([16, 64], contiguity=True)
        for number in range(count):
            fd.add_output(fd.ops.sum(fd.ops.mul(x, float(number)), [number % 2]))
    return fd


def calls_in(modules: set[str], work: Callable[[], object]) -> int:
    """Return how often functions of some files are called, and generators resumed, while something is computed."""
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename in modules

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def files_of(*modules: ModuleType) -> set[str]:
    return {str(module.__file__) for module in modules}


@pytest.mark.parametrize("small", [24])
def test_sets_of_reductions_follow_merges_in_linear_work(small: int) -> None:
    files = files_of(grouping, reduction_sets)
    few, many = (calls_in(files, partial(fl.segment, sums_of_two_kinds(count))) for count in (small, 2 * small))
    assert many < 3 * few


def test_facts_about_a_group_that_grows_follow_in_linear_work() -> None:
    files = files_of(domain_map, facts, oracle, reductions)
    few, many = (calls_in(files, partial(fl.segment, many_outputs(3 * count))) for count in (32, 64))
    assert many < 2.4 * few


GROWING = [
    pytest.param("persistent chain", SegmenterOptions(), id="buffers of a chain of norms"),
    pytest.param("skip connections", SegmenterOptions(whole_fusion=False), id="norms pair by pair"),
    pytest.param("disconnected", SegmenterOptions(), id="parts that share nothing"),
    pytest.param("reshapes", SegmenterOptions(), id="reshapes"),
]


@pytest.mark.parametrize(("family", "options"), GROWING)
def test_calls_grow_with_the_number_of_groups(family: str, options: SegmenterOptions) -> None:
    files = files_of(bit_masks, buffer_sizes, coverage, forwarding, grouping, reduction_sets, reductions)
    few, many = (calls_in(files, partial(fl.segment, FAMILIES[family](ops), options=options)) for ops in (48, 96))
    assert many < 2.5 * few


def test_pairs_beside_an_input_that_all_ops_read_are_priced_in_linear_work() -> None:
    def calls(ops: int) -> int:
        plan = fl.segment(additions(ops))
        space = Space(plan.fusion, plan.oracle, SegmenterOptions(), CostModel())
        partition = Partition.single(space)
        found = calls_in(files_of(bounds, local_search), lambda: list(merges(partition, most=4)))
        assert len(partition.segments) == 1
        return found

    assert calls(96) < 3.5 * calls(48)


def answers(fd: FusionDefinition, *, whole: bool) -> list[tuple[object, ...]]:
    plan = fl.segment(fd, options=SegmenterOptions(whole_fusion=whole))
    return [(one.phase, one.subjects, one.outcome, one.code, one.text, one.verdicts) for one in plan.decisions]


GRAPHS = [
    pytest.param(many_outputs(60), id="many outputs"),
    *(pytest.param(irregular(seed, 40, 64, 32), id=f"irregular {seed}") for seed in range(4)),
]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("fd", GRAPHS)
def test_answers_that_begin_with_a_part_are_those_about_the_whole(
    fd: FusionDefinition, whole: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[object] = []
    monkeypatch.setattr(oracle, "LEAST_PART", len(fd.fusion.exprs) + 1)
    plain = answers(fd, whole=whole)
    monkeypatch.setattr(oracle, "LEAST_PART", 2)
    monkeypatch.setattr(oracle, "LEAST_RATIO", 0)
    extended = facts.extended_map
    monkeypatch.setattr(facts, "extended_map", lambda *given: used.append(found := extended(*given)) or found)
    assert answers(fd, whole=whole) == plain
    assert any(used)


def test_sums_of_unions_and_rests_are_those_of_the_sets() -> None:
    plan = fl.segment(irregular(3, 40), strategy="unfused")
    space, fresh = (Space(plan.fusion, plan.oracle, SegmenterOptions(), CostModel()) for _ in range(2))
    dice = random.Random(3)
    for _ in range(200):
        a, b = dice.getrandbits(len(space.units)), dice.getrandbits(len(space.units))
        for mask in (space.join(a & ~b, b), space.split(a | b, a & b), space.split(a, a & b)):
            if mask:
                assert space.sums(mask) == fresh.sums(mask)


def test_a_set_contains_a_core_also_after_groups_were_merged() -> None:
    dice = random.Random(1)
    for _ in range(50):
        cores, plain = Cores(), list[int]()
        for _ in range(6):
            core = mask_of(dice.sample(range(10), dice.choice([2, 2, 3])))
            cores.add(core)
            plain.append(core)
        members = dice.sample(range(10), 3)
        mask = mask_of(members)
        if not any(core & ~mask == 0 for core in plain):
            cores.merge(members, 10)
            plain = [core & ~mask | 1 << 10 if core & mask else core for core in plain]
        for _ in range(40):
            asked = dice.getrandbits(11)
            assert cores.within(asked) == any(asked & core == core for core in plain)

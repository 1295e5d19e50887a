"""Small changes of a partition: the cycles found are those of a search of the whole quotient graph."""

import random

import pytest

import fuser_lab as fl
from fuser_lab.analysis.bit_masks import bits
from fuser_lab.cost.traffic import CostModel
from fuser_lab.segmentation import SegmenterOptions
from fuser_lab.segmentation.local_search import Partition
from fuser_lab.segmentation.space import Space
from tests.benchmarks.optimal import irregular


def has_cycle(space, segments):
    owner = {i: mask for mask in segments for i in bits(mask)}
    left = {
        mask: {owner[m] for f in space.flows if f.readers & mask for m in bits(f.producer & ~mask)} for mask in segments
    }
    while ready := [mask for mask, needed in left.items() if not needed & left.keys()]:
        for mask in ready:
            del left[mask]
    return bool(left)


@pytest.mark.parametrize("seed", range(3))
def test_a_change_is_refused_exactly_if_it_makes_a_cycle(seed):
    plan = fl.segment(irregular(seed, 25, 64, 64), strategy="unfused")
    space = Space(plan.fusion, plan.oracle, SegmenterOptions(), CostModel())
    partition = Partition(space, {1 << i: 0 for i in range(len(space.units))})
    dice, seen = random.Random(seed), [0, 0]
    for _ in range(400):
        if len(partition.segments) < 4:
            partition = Partition(space, {1 << i: 0 for i in range(len(space.units))})
        a, b = dice.sample(sorted(partition.segments), 2)
        parts = [1 << i for i in bits(a)]
        moved = sum(dice.sample(parts, dice.randint(1, len(parts))))
        new = [mask for mask in ((a & ~moved, b | moved) if dice.random() < 0.7 else (moved, a & ~moved)) if mask]
        gone = (a, b) if b | moved in new else (a,)
        if set(new) == set(gone):
            continue
        after = {*partition.segments} - set(gone) | set(new)
        through = partition.cycle_with(gone, new)
        assert bool(through) == has_cycle(space, after)
        seen[bool(through)] += 1
        if not through:
            partition.replace(gone, dict.fromkeys(new, 0))
            assert set(partition.segments) == after
    assert min(seen) > 20

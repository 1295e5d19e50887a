"""Groups after merges are the same as groups that are made again."""

import random

import pytest

import fuser_lab as fl
from fuser_lab.segmentation.grouping import Grouping


def sums(count):
    with fl.FusionDefinition() as fd:
        read = fd.ops.sin(fd.define_tensor(shape=[8, 8], contiguity=True))
        for number in range(count):
            total = fd.ops.sum(fd.ops.mul(read, number + 2.0), dims=[number % 2], keepdim=True)
            read = fd.ops.add(read, total) if number % 3 else read
            fd.add_output(total)
        fd.add_output(read)
    return fl.segment(fd).fusion


def described(grouping):
    """Return what leads in and out of each group, and its level, by the names in the groups."""
    names, level = grouping.names, grouping.levels()
    return {
        names(group): (
            level[group],
            [(names(a), tensor.name, names(b)) for a, tensor, b in grouping.edges(group)],
            *([names(n) for n in near(group)] for near in (grouping.producers, grouping.consumers, grouping.proposals)),
            [tensor.name for tensor in grouping.aux_values(group)],
        )
        for group in grouping.groups
    }


@pytest.mark.parametrize("seed", range(12))
def test_boundaries_and_levels_follow_merges(seed):
    rng, fusion = random.Random(seed), sums(9)
    grouping = Grouping(fusion, [[expr] for expr in fusion.tensor_exprs], frozenset())
    grouping.levels()
    while len(grouping.groups) > 2:
        pairs = [
            (group, consumer)
            for group in grouping.groups for consumer in grouping.consumers(group)
            if not any(grouping.reach().leads(c, consumer) for c in grouping.consumers(group))
        ]
        grouping.merge(rng.choice(pairs))
        if rng.random() < 0.5:  # levels are also right if several merges precede a question
            assert described(grouping) == described(Grouping(fusion, grouping.groups.values(), frozenset()))
    assert described(grouping) == described(Grouping(fusion, grouping.groups.values(), frozenset()))

"""Top-down presegmentation where it moves fewer bytes."""

import pytest

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.search.presegmentation import alternatives, bytes_moved, cheapest
from tests.presegmentation_study import random_definition, random_plans, tallied


def test_a_fusion_in_which_a_reshape_decides():
    fd, specs = fl.example("reshape_decides", "full")
    plan = fl.segment(fd, specs)
    assert (len(plan.segments), bytes_moved(plan)) == (4, 37_748_736)
    (found,) = alternatives(plan)
    assert (len(found.plan.segments), bytes_moved(found.plan)) == (2, 29_360_128)
    assert str(found) == "top-down with reshape cuts: 22 % fewer bytes"
    # The bound counts views as free.
    assert found.plan.certificate().status == "at most 6.6 % more costly than the cheapest possible plan"
    assert bytes_moved(fl.segment(fd, specs, strategy="optimal")) == bytes_moved(found.plan)
    assert cheapest(plan).plan == found.plan
    # There is no remark on a plan that is not more expensive.
    assert cheapest(found.plan) is None


def test_nothing_is_said_where_there_is_nothing_to_cut():
    assert alternatives(fl.segment(*fl.example("softmax", "full"))) == ()
    with FusionDefinition() as fd:
        # The operand of a reshape of an input is in memory anyway.
        fd.add_output(fd.ops.exp(fd.ops.reshape(fd.define_tensor([4, 6]), [24])))
    assert alternatives(fl.segment(fd)) == ()


@pytest.mark.parametrize("index", [0, 7])
def test_the_study_makes_the_same_fusions_again(index):
    assert random_definition(17, index).fusion == random_definition(17, index).fusion


def test_the_study_counts_each_fusion_once():
    tallies = tallied(random_plans(17, 12))
    assert tallies["reshape cuts"].shares
    for tally in tallies.values():
        assert tally.fewer + tally.same + tally.more == len(tally.shares)

"""One time for one plan, wherever it is predicted."""

from functools import cache

import pytest

import fuser_lab as fl
from fuser_lab.cost.traffic import CostModel
from fuser_lab.plan.clock import ScheduledClock, clock_of, given_strides
from fuser_lab.segmentation.previews import Amount, Previews

EXAMPLES = fl.corpus(kind="example")
OTHERS = [entry for entry in fl.corpus() if entry.kind != "example" and entry.small_script][::60]
ENTRIES = [entry.name for entry in (*EXAMPLES, *OTHERS)][:20]


@cache
def loaded(name):
    return fl.corpus(name)[0].load(small=True)


def test_there_are_twenty_plans():
    assert len(ENTRIES) == 20


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ENTRIES)
def test_a_plan_has_one_predicted_time(name):
    fd, inputs = loaded(name)
    plan = fl.segment(fd, inputs)
    predicted = plan.predicted_time()
    assert predicted.seconds == sum(part.seconds for part in plan.segment_times)
    assert predicted.seconds == fl.price(fd, inputs).seconds
    search = ScheduledClock(plan.oracle.device, 0, given_strides(plan.inputs))
    assert predicted.seconds == sum(search.seconds(plan.segmented, limited=False))
    assert predicted.seconds == clock_of(plan).amount(plan.segmented).seconds
    if len(plan.segments) > 1:
        assert plan.preview_glue(0, 1).before.seconds == predicted.seconds
    edits = plan.best_edits(2, seconds=1.0)
    if len(plan.fusion.tensor_exprs) > 1 and len(plan.segments) == 1:
        cut = plan.preview_cut(plan.fusion.tensor_exprs[0].out.name)
        edits = (*edits, *([cut] if cut.legal else []))
    for edit in edits:
        assert edit.before.seconds == predicted.seconds
        after = plan.with_edit(edit)
        assert edit.after.seconds == after.predicted_time().seconds
        assert edit.after.moved == sum(segment.bytes for segment in after.segments)


def test_the_fastest_plans_are_compared_by_the_time_that_they_predict():
    fd, inputs = loaded("example/reshape_decides")
    found = fl.fastest(fd, inputs)
    assert [choice.predicted for choice in found.plans] == [
        choice.plan.predicted_time().seconds for choice in found.plans
    ]
    assert found.plan.predicted_time().seconds == min(choice.predicted for choice in found.plans)


def test_an_edit_that_is_predicted_to_be_slower_is_not_recommended():
    fd, inputs = loaded("example/reshape_decides")
    plan = fl.segment(fd, inputs, strategy="unfused")
    assert len(plan.best_edits(10)) > 1
    assert all(edit.seconds < 0 for edit in plan.best_edits(10))

    def slower_if_merged(segmented):
        return Amount(segments=len(segmented.groups), moved=0, seconds=1.0 / len(segmented.groups))

    previews = Previews(plan.segmented, plan.oracle, CostModel(), slower_if_merged)
    assert previews.glue(0, 1).legal
    assert previews.best(60.0) == ()

"""The automatic kernel is its schedule: setting it changes nothing, and its numbers are the kernel's parameters."""

import random

import pytest
from schedule_coverage import agrees, gives_itself, number_changes, plans

import fuser_lab as fl
from fuser_lab.codegen.pipeline import evaluated_because
from fuser_lab.schedule.suggestions import suggestions

CORPUS = 4
# Their kernels take longest, or are of the same kinds as those of another example.
MORE = {"llama3_rope_backward", "dropout_add_layer_norm", "rms_norm", "rms_norm_backward", "softmax_backward"}
PLANS = {name: plan for _, name, plan in plans(CORPUS)}
NAMES = [pytest.param(name, marks=pytest.mark.matrix) if name in MORE else name for name in PLANS]


def kernels(plan: fl.Plan) -> list[int]:
    found = [
        segment.index for segment in plan.segments
        if segment.scheduler is not None and not evaluated_because(segment.fusion, segment.scheduler)
    ]
    return found[:2]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_given_back_changes_nothing(name: str) -> None:
    plan = PLANS[name]
    for index in kernels(plan):
        assert plan.segments[index].schedule.transforms
        assert gives_itself(plan, plan.segments[index]), plan.segments[index].schedule


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_a_changed_number_is_that_parameter(name: str) -> None:
    plan, rng = PLANS[name], random.Random(name)
    index = rng.choice(kernels(plan))
    segment = plan.segments[index]
    for target in ("cuda", "cpu"):
        known = list(number_changes(segment, target))
        for change in rng.sample(known, min(2, len(known))):
            assert agrees(plan, segment, change), f"{change.values}\n{change.text}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_read_back_from_their_schedule(name: str) -> None:
    plan, rng = PLANS[name], random.Random(name)
    index = rng.choice(kernels(plan))
    for target in ("cuda", "cpu"):
        nest = rng.choice(plan.segments[index].params(target))
        options = suggestions(nest)
        if not options:
            continue
        given = plan.with_params(index, target=target, nest=nest.number, **dict(rng.choice(options)))
        for schedule in (given.segments[index].schedule, given.segments[index].schedule_for(target)):
            again = plan.with_schedule(index, str(schedule))
            assert again.hash == given.hash, schedule
            assert again.segments[index].source(target) == given.segments[index].source(target)

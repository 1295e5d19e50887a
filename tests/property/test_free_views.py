"""Segments of random plans that only make views cost nothing: in totals, times, previews, certificates and bounds."""

import math
import random

import pytest
from thorough import share

import fuser_lab as fl
from fuser_lab.cost.traffic import may_view
from fuser_lab.plan.clock import clock_of
from fuser_lab.report.view_model import view_plan
from fuser_lab.segmentation import verify
from fuser_lab.segmentation.optimal import plan_cost
from tests.fuzz.check import defined
from tests.fuzz.choices import Seeded
from tests.fuzz.generator import Generator

pytestmark = pytest.mark.property
STRATEGIES = ("bottom_up", "unfused", "top_down")
MOST_STEPS = 14  # ops of a definition, with which certificates take a tenth of a second


def drawn(seed, number):
    program, fd = defined(Generator(Seeded(seed, number)).program(MOST_STEPS))
    return fd, list(program.arrays())


def edited(plan, dice):
    """Return a plan with up to two random cuts."""
    for _ in range(dice.randrange(3)):
        inside = sorted({tv.name for s in plan.segments for e in s.exprs[:-1] for tv in e.tensor_outputs})
        if inside:
            try:
                plan = plan.cut(dice.choice(inside))
            except fl.errors.IllegalEdit:
                break
    return plan


def check_plan(plan):
    certificate = plan.certificate(states=300, seconds=1)
    launch, moved = certificate.model.launch_bytes, sum(s.bytes for s in plan.segments)
    for segment, time, priced in zip(plan.segments, plan.segment_times, certificate.segments, strict=True):
        if segment.is_view:
            assert segment.bytes == time.seconds == priced.cost == 0
            assert all(map(may_view, segment.exprs))
        else:
            assert segment.bytes == segment.group.moved == priced.cost - launch
    assert view_plan(plan).header.bytes_moved == moved
    assert math.isclose(sum(time.seconds for time in plan.segment_times), plan.predicted_time().seconds, abs_tol=1e-12)
    before = clock_of(plan).amount(plan.segmented)
    assert before.moved == moved
    assert math.isclose(before.seconds, plan.predicted_time().seconds, abs_tol=1e-12)
    assert certificate.cost == moved + launch * certificate.launches
    if not certificate.obstacle:
        assert certificate.bound <= certificate.known <= certificate.cost
    assert verify(certificate, plan.segmented, plan.oracle, seconds=1).problems == ()
    by_bytes = plan.time_bound()
    assert by_bytes.bound <= by_bytes.seconds * (1 + 1e-9)
    return certificate


def check_program(number):
    """Check plans of one random definition against each other; return how many of their segments only make views."""
    fd, inputs = drawn(3, number)
    dice = random.Random(number)
    plans = [edited(fl.segment(fd, inputs, strategy=strategy), dice) for strategy in STRATEGIES]
    certificates = [check_plan(plan) for plan in plans]
    for plan, certificate in zip(plans, certificates, strict=True):
        for other in plans:
            if not (certificate.obstacle or other.segmented.replicas or plan.segmented.replicas):
                assert certificate.bound <= plan_cost(other.segmented, certificate.model, clock_of(other).idle)
    return sum(segment.is_view for plan in plans for segment in plan.segments)


def test_segments_of_views_are_free_and_no_bound_is_above_a_plan():
    views = [check_program(number) for number in range(share(100))]
    assert sum(map(bool, views)) > len(views) // 4

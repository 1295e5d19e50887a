"""Kernels of a plan one after the other: gaps, what stays in the cache, and shipped rates against measured plans."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fuser_lab.cost.device import H100, H200
from fuser_lab.cost.kernel_time import kernel_model
from fuser_lab.cost.plan_fitting import fitted_plans, predicted_plans, read_plans
from fuser_lab.cost.plan_time import KernelInPlan, plan_seconds, shares_in_cache
from fuser_lab.errors import InputError
from tests.benchmarks.plans import Timed, ranks
from tests.unit.test_kernel_time import kernel

DATA = Path(__file__).parents[1] / "data" / "kernels" / "H200.plans.json.gz"
FEATURES = replace(kernel(0, np.random.default_rng(0)), launches=1)
MB = 10**6


def one(reads: dict[str, int], writes: dict[str, int]) -> KernelInPlan:
    return KernelInPlan(features=FEATURES, reads=tuple(reads.items()), writes=tuple(writes.items()))


def test_what_was_just_written_is_found_in_the_cache_and_what_was_displaced_is_not():
    kernels = [one({"a": MB}, {"b": MB}), one({"b": MB}, {"c": 60 * MB}), one({"a": MB}, {"d": MB})]
    assert shares_in_cache(kernels, 50 * MB) == [0.0, pytest.approx(0.99), 0.0]
    assert shares_in_cache(kernels, 0.0) == [0.0] * 3
    half = shares_in_cache([one({"a": MB}, {"b": MB}), one({"b": MB, "x": MB}, {})], 50 * MB)
    assert half[1] == pytest.approx(0.99 / 2), "the other half was never touched"


def test_a_later_kernel_takes_a_gap_instead_of_a_launch():
    model = kernel_model(H200)
    apart = [one({"a": MB}, {"b": MB}), one({"c": MB}, {"d": MB})]
    first, second = plan_seconds(apart, model)
    assert first == pytest.approx(model.seconds(FEATURES))
    assert first - second == pytest.approx(model.rates.launch - model.together.gap)
    phases = replace(FEATURES, launches=3)
    (longer,) = plan_seconds([KernelInPlan(features=phases, reads=(), writes=())], model)
    assert longer - first == pytest.approx(2 * model.together.phase)


def test_what_is_no_kernel_of_ours_has_no_time_but_displaces():
    library = KernelInPlan(features=None, reads=(("b", 60 * MB),), writes=())
    kernels = [one({"a": MB}, {"b": MB}), library, one({"a": MB}, {})]
    seconds = plan_seconds(kernels, kernel_model(H200))
    assert np.isnan(seconds).tolist() == [False, True, False]
    assert shares_in_cache(kernels, 50 * MB)[2] == 0.0


def test_the_shipped_rates_are_those_of_the_measured_plans():
    plans, model = read_plans(DATA), kernel_model(H200)
    found = fitted_plans(plans, model)
    assert found.source == model.together.source
    for name in ("gap", "phase", "held"):
        assert getattr(found, name) == pytest.approx(getattr(model.together, name), rel=0.02)
    assert kernel_model(H100).together.source == ""
    with pytest.raises(InputError, match="at least 30 measured plans are needed, given 3"):
        fitted_plans(plans[:3], model)


def test_four_of_five_plans_take_the_predicted_time_and_plans_of_a_fusion_are_in_order():
    plans, model = read_plans(DATA), kernel_model(H200)
    predicted = predicted_plans(plans, model)
    near = np.array([abs(guess / plan.median - 1) <= 0.2 for guess, plan in zip(predicted, plans, strict=True)])
    assert near.mean() >= 0.85
    rows = [
        Timed(fusion=p.fusion, plan=p.plan, predicted=float(guess), median=p.median, low=p.low, high=p.high)
        for guess, p in zip(predicted, plans, strict=True)
    ]
    assert np.mean(ranks(rows, tied=True)) >= 0.88

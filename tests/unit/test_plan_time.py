"""Kernels of a plan in sequence: gaps, data that stays in the cache, and shipped rates against measured plans."""

import gzip
import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from fuser_lab.cost.device import H100, H200
from fuser_lab.cost.kernel_time import PlanRates, kernel_model
from fuser_lab.cost.plan_time import KernelInPlan, kernel_seconds, plan_seconds, shares_in_cache
from fuser_lab.errors import InputError
from tests.benchmarks.plans import Timed, ranks
from tests.fitting import __main__ as command
from tests.fitting.measurements import Measurements, save
from tests.fitting.plans import MeasuredPlan, fitted_together, predicted_plans, read_plans
from tests.unit.test_kernel_time import PLANTED, kernel, planted

DATA = Path(__file__).parents[1] / "data" / "kernels"
TOGETHER = PlanRates(gap=1.2e-6, phase=1.5e-6, held=0.5)
FEATURES = replace(kernel(0, np.random.default_rng(0)), launches=1)
MB = 10**6


def one(reads: dict[str, int], writes: dict[str, int]) -> KernelInPlan:
    return KernelInPlan(features=FEATURES, reads=tuple(reads.items()), writes=tuple(writes.items()))


def test_what_was_just_written_is_found_in_the_cache_and_what_was_displaced_is_not():
    kernels = [one({"a": MB}, {"b": MB}), one({"b": MB}, {"c": 60 * MB}), one({"a": MB}, {"d": MB})]
    assert shares_in_cache(kernels, 50 * MB) == [0.0, pytest.approx(0.99), 0.0]
    assert shares_in_cache(kernels, 0.0) == [0.0] * 3
    half = shares_in_cache([one({"a": MB}, {"b": MB}), one({"b": MB, "x": MB}, {})], 50 * MB)
    assert half[1] == pytest.approx(0.99 / 2), "the other half was never accessed"


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


def planted_plans(count: int, seed: int) -> list[MeasuredPlan]:
    """Return plans whose times correspond exactly to gaps that differ from the default ones."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        names = [f"t{n}" for n in range(int(rng.integers(2, 5)))]
        kernels = tuple(
            KernelInPlan(
                features=kernel(number, rng), reads=((before, 8 * MB),), writes=((after, 8 * MB),),
            )
            for before, after in itertools.pairwise(names)
        )
        seconds = float(kernel_seconds(kernels, PLANTED, TOGETHER, H200).sum())
        found.append(MeasuredPlan(
            fusion=f"f{number // 2}", plan=str(number), kernels=kernels, median=seconds, low=seconds, high=seconds,
        ))
    return found


def test_gaps_are_found_from_plans_and_kernels():
    plans = planted_plans(120, 7)
    found = fitted_together(planted(60), plans, H200)
    assert found.within > 0.9
    assert found.in_order > 0.9
    assert (found.kernels, found.plans, found.fusions) == (60, 120, 60)
    assert found.model.source == "180 measurements"
    assert predicted_plans(plans, found.model) == pytest.approx([plan.median for plan in plans], rel=0.2)
    assert "120 plans of 60 fusions from others" in str(found)
    with pytest.raises(InputError, match="at least 30 measured plans of 4 fusions are needed, given 3 of 2"):
        fitted_together(planted(60), plans[:3], H200)


def test_the_command_fits_plans_as_well(tmp_path, capsys):
    rows, plans = tmp_path / "rows.csv", tmp_path / "plans.json.gz"
    save(Measurements(facts={"name": "H200"}, rows=tuple(planted(60))), rows)
    with gzip.open(plans, "wt") as file:
        file.writelines(json.dumps(asdict(plan)) + "\n" for plan in planted_plans(40, 3))
    assert command.main([str(rows), "--plans", str(plans)]) == 0
    assert "60 kernels; 40 plans of 20 fusions" in capsys.readouterr().out
    with pytest.raises(InputError, match="cannot read plans from"):
        command.main([str(rows), "--plans", str(rows)])
    with gzip.open(plans, "wt") as file:
        file.write("{}\n")
    with pytest.raises(InputError, match="does not hold plans"):
        command.main([str(rows), "--plans", str(plans)])


@pytest.mark.parametrize("device", [H100, H200], ids=lambda device: device.name)
def test_nine_of_ten_plans_take_the_predicted_time_and_plans_of_a_fusion_are_in_order(device):
    plans, model = read_plans(DATA / f"{device.name}.plans.json.gz"), kernel_model(device)
    assert model.together.source == f"{len(plans)} plans"
    predicted = predicted_plans(plans, model)
    near = np.array([abs(guess / plan.median - 1) <= 0.2 for guess, plan in zip(predicted, plans, strict=True)])
    assert near.mean() >= 0.9
    rows = [
        Timed(fusion=p.fusion, plan=p.plan, predicted=float(guess), median=p.median, low=p.low, high=p.high)
        for guess, p in zip(predicted, plans, strict=True)
    ]
    assert len({row.fusion for row in rows}) >= 300
    assert np.mean(ranks(rows, tied=True)) >= 0.9


def test_a_plan_that_does_less_of_the_same_is_faster_where_predictions_are_close():
    """Pairs of plans whose predicted times differ by less than the errors of most predictions."""
    plans, model = read_plans(DATA / "H200.plans.json.gz"), kernel_model(H200)
    predicted = predicted_plans(plans, model)
    groups: dict[str, list[tuple[float, MeasuredPlan]]] = {}
    for guess, plan in zip(predicted, plans, strict=True):
        groups.setdefault(plan.fusion, []).append((float(guess), plan))

    def does_less(plan: MeasuredPlan, other: MeasuredPlan) -> bool:
        moved, more = (sum(kernel.nbytes for kernel in each.kernels) for each in (plan, other))
        return moved < more and len(plan.kernels) < len(other.kernels) and all(
            np.nansum(plan_seconds(plan.kernels, case)) < np.nansum(plan_seconds(other.kernels, case))
            for case in model.with_errors()
        )

    speeds = [
        other.median / plan.median for group in groups.values() for (fast, plan), (slow, other)
        in itertools.permutations(group, 2) if 0.5e-6 < slow - fast < 0.1 * slow and does_less(plan, other)
    ]
    assert len(speeds) > 80
    assert np.mean(np.array(speeds) > 1) > 0.9
    assert np.mean(np.array(speeds) < 0.97) < 0.05

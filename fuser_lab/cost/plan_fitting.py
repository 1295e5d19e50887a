"""How kernels of a plan follow each other, fitted by least squares to measured plans, kernel by kernel from a model."""

import gzip
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from fuser_lab.cost.kernel_time import KernelFeatures, KernelModel, Numbers, PlanRates, columns
from fuser_lab.cost.plan_time import KernelInPlan, in_plan, shares_in_cache
from fuser_lab.errors import InputError

FEWEST: Final = 30  # plans
_NAMES: Final = ("gap", "phase", "held")
_MOST: Final = 8.0  # largest factor by which a fitted rate may differ from the default
_OUTLIER: Final = 0.1  # residuals beyond this count linearly


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPlan:
    """The kernels of a plan in their order, and the seconds that it took as one CUDA graph: median and quartiles."""

    fusion: str
    plan: str
    kernels: tuple[KernelInPlan, ...]
    median: float
    low: float
    high: float


def read_plans(path: Path) -> tuple[MeasuredPlan, ...]:
    """Return the plans in a file that ``python -m tests.benchmarks.plans_on_gpu --out FILE`` wrote."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    return tuple(
        MeasuredPlan(
            fusion=record["fusion"], plan=record["plan"],
            kernels=tuple(
                KernelInPlan(
                    features=KernelFeatures(**one["features"]), reads=tuple(map(tuple, one["reads"])),
                    writes=tuple(map(tuple, one["writes"])),
                )
                for one in record["kernels"]
            ),
            **{name: record[name] for name in ("median", "low", "high")},
        )
        for record in records
    )


def predicted_plans(plans: Sequence[MeasuredPlan], model: KernelModel, together: PlanRates | None = None) -> Numbers:
    """Return the predicted seconds of plans, with the model's rates for consecutive kernels or the given ones."""
    rates = model.together if together is None else together
    features = columns([kernel.features for plan in plans for kernel in plan.kernels if kernel.features is not None])
    cache = rates.held * model.device.l2
    shares = np.array([share for plan in plans for share in shares_in_cache(plan.kernels, cache)])
    owners = np.repeat(np.arange(len(plans)), [len(plan.kernels) for plan in plans])
    later = np.array([float(number > 0) for plan in plans for number in range(len(plan.kernels))])
    seconds = in_plan(features, shares, later, model.rates, rates, model.device)
    return np.bincount(owners, seconds, minlength=len(plans)).astype(np.float64)


def fitted_plans(plans: Sequence[MeasuredPlan], model: KernelModel) -> PlanRates:
    """Return the rates for consecutive kernels that best explain the times of plans.

    Raises
    ------
    InputError
        If there are fewer than 30 plans.
    """
    if len(plans) < FEWEST:
        msg = f"fit: at least {FEWEST} measured plans are needed, given {len(plans)}."
        raise InputError(msg)
    from scipy.optimize import least_squares

    first = PlanRates()
    begin = np.log([getattr(first, name) for name in _NAMES])
    measured = np.log([plan.median for plan in plans])

    def rates(change: Numbers) -> PlanRates:
        values = map(float, np.exp(begin + change))
        return PlanRates(**dict(zip(_NAMES, values, strict=True)), source=f"{len(plans)} plans")

    def residuals(change: Numbers) -> Numbers:
        return np.asarray(np.log(predicted_plans(plans, model, rates(change))) - measured)

    most = math.log(_MOST)
    found = least_squares(residuals, np.zeros(3), bounds=(-most, most), loss="soft_l1", f_scale=_OUTLIER)
    return rates(found.x)

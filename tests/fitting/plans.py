"""The rates of a device fitted to kernels and to whole plans together, by least squares.

Kernels that are measured alone, each with several schedules, tell the rates apart; plans show what they are for: which
of two plans is faster, with the gaps between kernels and what the L2 cache still holds of the ones before.
"""

import gzip
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from fuser_lab.cost.device import Device
from fuser_lab.cost.host_fitting import within
from fuser_lab.cost.kernel_time import (
    NAMES,
    Columns,
    KernelFeatures,
    KernelModel,
    Numbers,
    PlanRates,
    Rates,
    columns,
    predicted_seconds,
)
from fuser_lab.cost.plan_time import KernelInPlan, in_plan, read_again, share_kept
from fuser_lab.errors import InputError
from fuser_lab.files.reading import UnreadableError, content_of, decode, parse_json, record_of
from tests.fitting.kernels import fitted, good_rows, intervals
from tests.fitting.measurements import Measurement

FEWEST: Final = 30  # plans
FOLDS: Final = 4
_TOGETHER: Final = ("gap", "phase", "held")
_MOST: Final = 30.0  # times by which a fitted rate may differ from the data sheet's
_OUTLIER: Final = 0.12  # residuals beyond it count linearly
_PRIOR: Final = 0.3  # weight of the residual of a rate that is three times its default
_CHOSEN: Final = 0.5  # weight of a kernel as it is scheduled; that of a plan is 1
_OTHER: Final = 0.1  # of a kernel with other parameters


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
    """Return the plans in a file that ``python -m tests.benchmarks.plans_on_gpu --out FILE`` wrote.

    Raises
    ------
    InputError
        If the file cannot be read, or is of another form.
    """
    try:
        lines = decode(gzip.decompress(content_of(path))).splitlines()
    except (OSError, EOFError, zlib.error, UnreadableError) as error:  # of gzip, or of the file
        msg = f"fit: cannot read plans from {path}: {error}."
        raise InputError(msg) from error
    try:
        return tuple(record_of(MeasuredPlan, parse_json(line)) for line in lines or [""])
    except UnreadableError as error:
        msg = f"fit: {path} does not hold plans as python -m tests.benchmarks.plans_on_gpu --out FILE writes them."
        raise InputError(msg) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFit:
    """A model that is fitted to kernels and plans, and how it predicts plans of fusions that it was not fitted to.

    Attributes
    ----------
    model
        The model, fitted to all measurements.
    kernels, plans, fusions
        Number of measured kernels and plans, and of the fusions of the plans.
    within, typical
        Share of the plans within 20 % of the measured time, and median of the factor, at least 1, between the two.
    in_order, pairs
        Share of the pairs of plans of one fusion that are predicted in the measured order, and their number; pairs
        whose quartiles overlap are left out.
    before
        Share of the plans within 20 % if only kernels are fitted to, with the default gaps.
    """

    model: KernelModel
    kernels: int
    plans: int
    fusions: int
    within: float
    typical: float
    in_order: float
    pairs: int
    before: float

    def __str__(self) -> str:
        """Return the validation and the rates as text."""
        together, device = self.model.together, self.model.device
        return "\n".join([
            f"{device.name}: {self.kernels} kernels; {self.plans} plans of {self.fusions} fusions from others",
            f"within 20 %       {self.within:.1%} of the plans (fitted to kernels alone {self.before:.1%})",
            f"median factor     {self.typical:.3f}",
            f"in order          {self.in_order:.1%} of {self.pairs} pairs of plans that differ by more than the spread",
            "",
            str(self.model),
            f"between kernels   gap {together.gap:.3g}, phase {together.phase:.3g}, held {together.held:.3g}",
        ])


@dataclass(frozen=True, slots=True)
class _Plans:
    """The kernels of plans in one row: their features, plans and places, and what each reads again."""

    kernels: Columns
    owners: npt.NDArray[np.int_]
    later: Numbers
    read: Numbers
    again: Numbers  # bytes, bytes moved since, and the kernel, a row for each tensor
    count: int

    @classmethod
    def of(cls, plans: Sequence[MeasuredPlan]) -> "_Plans":
        kernels = [kernel for plan in plans for kernel in plan.kernels]
        features = [kernel.features for kernel in kernels if isinstance(kernel.features, KernelFeatures)]
        if len(features) < len(kernels):
            msg = "fit: each kernel of a measured plan needs its features."
            raise InputError(msg)
        tensors = [tensor for plan in plans for tensor in read_again(plan.kernels)]
        again = [(tensor.nbytes, tensor.since, number) for number, group in enumerate(tensors) for tensor in group]
        return cls(
            kernels=columns(features), owners=np.repeat(np.arange(len(plans)), [len(p.kernels) for p in plans]),
            later=np.array([float(number > 0) for plan in plans for number in range(len(plan.kernels))]),
            read=np.array([max(sum(size for _, size in kernel.reads), 1) for kernel in kernels], np.float64),
            again=np.array(again, np.float64).reshape(-1, 3), count=len(plans),
        )

    def seconds(self, rates: Rates, together: PlanRates, device: Device) -> Numbers:
        """Return the predicted seconds of each plan."""
        nbytes, since, owner = self.again.T
        bytes_kept = share_kept(nbytes, since, together.held * device.l2) * nbytes
        shares = np.bincount(owner.astype(int), bytes_kept, minlength=len(self.read)) / self.read
        seconds = in_plan(self.kernels, shares, self.later, rates, together, device)
        return np.bincount(self.owners, seconds, minlength=self.count).astype(np.float64)


def predicted_plans(plans: Sequence[MeasuredPlan], model: KernelModel) -> Numbers:
    """Return the predicted seconds of plans."""
    return _Plans.of(plans).seconds(model.rates, model.together, model.device)


def fitted_together(rows: Sequence[Measurement], plans: Sequence[MeasuredPlan], device: Device) -> PlanFit:
    """Return the model of a device that explains kernels measured alone and plans best.

    Raises
    ------
    InputError
        If there are fewer than 30 kernels or 30 plans, or all are of one fusion.
    """
    names = sorted({plan.fusion for plan in plans})
    if len(plans) < FEWEST or len(names) < FOLDS:
        msg = (
            f"fit: at least {FEWEST} measured plans of {FOLDS} fusions are needed, given {len(plans)} of {len(names)}."
        )
        raise InputError(msg)
    alone = fitted(rows, device).model
    good = good_rows(rows)
    kernels, measured = columns([row.features for row in good]), np.array([row.median for row in good])
    weights = np.array([_OTHER if row.params else _CHOSEN for row in good])
    medians = np.array([plan.median for plan in plans])
    fold_of = {name: number % FOLDS for number, name in enumerate(names)}
    places = np.array([fold_of[plan.fusion] for plan in plans])

    def fit(which: npt.NDArray[np.bool_], first: KernelModel) -> KernelModel:
        chosen = _Plans.of([plan for plan, selected in zip(plans, which, strict=True) if selected])
        return _least_squares(chosen, np.log(medians[which]), kernels, np.log(measured), weights, first)

    model = fit(np.full(len(plans), fill_value=True), alone)
    left_out = np.empty(len(plans))
    for fold in range(FOLDS):
        out = places == fold
        here = [plan for plan, chosen in zip(plans, out, strict=True) if chosen]
        left_out[out] = predicted_plans(here, fit(~out, model))
    factors = measured / predicted_seconds(kernels, model.rates, device)
    model = replace(
        model, source=f"{len(good) + len(plans)} measurements",
        intervals=intervals(factors, np.array([row.features.style for row in good])),
    )
    in_order, pairs = _in_order(plans, left_out)
    return PlanFit(
        model=model, kernels=len(good), plans=len(plans), fusions=len(names), within=within(left_out, medians),
        typical=float(np.exp(np.median(np.abs(np.log(left_out / medians))))), in_order=in_order, pairs=pairs,
        before=within(predicted_plans(plans, alone), medians),
    )


def _least_squares(
    plans: _Plans, times: Numbers, kernels: Columns, kernel_times: Numbers, weights: Numbers, first: KernelModel,
) -> KernelModel:
    """Return the model whose rates explain the logarithms of times best; the search starts from ``first``."""
    from scipy.optimize import least_squares

    device, sheet, default = first.device, Rates.of(first.device), PlanRates()
    middle = np.log([*(getattr(sheet, n) for n in NAMES), *(getattr(default, n) for n in _TOGETHER)])
    begin = np.log([*(getattr(first.rates, n) for n in NAMES), *(getattr(first.together, n) for n in _TOGETHER)])

    def rates(change: Numbers) -> tuple[Rates, PlanRates]:
        values = list(map(float, np.exp(middle + change)))
        gap, phase, held = values[len(NAMES):]
        of_kernels = Rates(**dict(zip(NAMES, values[: len(NAMES)], strict=True)))
        return of_kernels, PlanRates(gap=gap, phase=phase, held=held)

    def residuals(change: Numbers) -> Numbers:
        of_kernels, together = rates(change)
        return np.concatenate([
            np.log(plans.seconds(of_kernels, together, device)) - times,
            weights * (np.log(predicted_seconds(kernels, of_kernels, device)) - kernel_times),
            _PRIOR * change / math.log(3.0),
        ])

    most = math.log(_MOST)
    solution = least_squares(
        residuals, np.clip(begin - middle, -0.99 * most, 0.99 * most), bounds=(-most, most), loss="soft_l1",
        f_scale=_OUTLIER, max_nfev=25, xtol=1e-4, ftol=1e-5,
    )
    of_kernels, together = rates(solution.x)
    return replace(first, rates=of_kernels, together=replace(together, source=f"{plans.count} plans"))


def _in_order(plans: Sequence[MeasuredPlan], predicted: Numbers) -> tuple[float, int]:
    """Return the share of pairs of plans of one fusion in the measured order, and the number of pairs."""
    groups: dict[str, list[int]] = {}
    for number, plan in enumerate(plans):
        groups.setdefault(plan.fusion, []).append(number)
    concordant = [
        (plans[a].median < plans[b].median) == (predicted[a] < predicted[b])
        for group in groups.values() for place, a in enumerate(group) for b in group[place + 1 :]
        if plans[a].high < plans[b].low or plans[b].high < plans[a].low
    ]
    return (float(np.mean(concordant)) if concordant else math.nan), len(concordant)

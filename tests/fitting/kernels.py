"""Rates of the model of a kernel's time, fitted to measurements by least squares.

The residuals are logarithms of predicted over measured times, with a loss that grows linearly for outliers. A weak
prior keeps each rate that no measurement depends on near the data sheet. Predictions are cross-validated: those for a
fusion use rates fitted without any kernel of that fusion.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fuser_lab.cost.device import Device
from fuser_lab.cost.host_fitting import within
from fuser_lab.cost.kernel_time import (
    NAMES,
    Columns,
    Interval,
    KernelModel,
    Numbers,
    Rates,
    columns,
    predicted_seconds,
)
from fuser_lab.errors import InputError
from tests.fitting.measurements import Measurement

FEWEST = 30  # measurements
FOLDS = 5  # folds of the cross-validation; no fusion is in both parts of a fold
_PRIOR = 3.0  # factor from the data sheet's rate at which the prior's residual is one
_OUTLIER = 0.15  # residuals beyond this count linearly
_MOST = 30.0  # largest factor by which a fitted rate may differ from the data sheet's
_COVERED = 0.8  # share of the measurements inside an interval
_OF_A_STYLE = 20  # minimum number of measurements for a style to have its own interval
_WEIGHT = 0.3  # of the residual of a prior
_GATHERED = 0.1  # largest share of bytes read at data-dependent indices, because the measured indices repeat a few rows
_APART = 1.1  # ratio of times above which two candidates count as different
_CANDIDATES = 3  # minimum number of candidates of a segment whose ranks are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A fitted model, and how well its predictions for fusions that it was not fitted to agree with measurements.

    Attributes
    ----------
    model
        The model, fitted to all measurements.
    count, fusions
        Number of measurements, and of fusions among them.
    within, chosen
        Share of the cross-validated predictions within 20 % of the measured time: for all kernels, and for those with
        the heuristics' parameters.
    typical
        Median of the factor, at least 1, between predicted and measured time.
    rank
        Mean of Spearman's rank correlation of candidates of one segment, over segments with three or more candidates;
        NaN if there are none.
    covered
        Share of the measurements within the interval of their cross-validated prediction.
    concordant
        Share of the pairs of candidates of one segment, differing by 10 % or more, that are predicted in the right
        order.
    best_of_heuristics, best_of_model
        Geometric means of the time of the heuristics' candidate, and of the one predicted to be fastest, over that of
        the fastest one measured.
    before
        The share of predictions from the data sheet that are within 20 %.
    worst
        Measurements with the worst predictions, with the predicted seconds.
    """

    model: KernelModel
    count: int
    fusions: int
    within: float
    chosen: float
    typical: float
    rank: float
    concordant: float
    best_of_heuristics: float
    best_of_model: float
    covered: float
    before: float
    worst: tuple[tuple[Measurement, float], ...]

    def __str__(self) -> str:
        """Return the rates and the validation as text."""
        rows = [
            f"{self.model.device.name}: {self.count} kernels of {self.fusions} fusions, each predicted from others",
            f"within 20 %       {self.within:.1%} (from the data sheet {self.before:.1%})",
            f"                  {self.chosen:.1%} of those with the heuristics' parameters",
            f"median factor     {self.typical:.3f}",
            f"rank correlation  {self.rank:.3f} of candidates of one segment",
            f"in order          {self.concordant:.1%} of pairs of candidates that differ by {_APART - 1:.0%} or more",
            f"over the fastest  {self.best_of_heuristics - 1:.1%} the heuristics' candidates",
            f"                  {self.best_of_model - 1:.1%} those predicted to be fastest",
            f"in the interval   {self.covered:.1%}",
            "",
            str(self.model),
            *(f"{name or 'all':>10}: {interval.low:.2f} to {interval.high:.2f} times the prediction"
              for name, interval in (self.model.intervals or {}).items()),
            "",
            "worst predictions:",
            *(f"  {1e6 * seconds:9.1f} µs, measured {1e6 * row.median:9.1f} µs  {row.fusion} {row.params}"
              for row, seconds in self.worst),
        ]
        return "\n".join(rows)


def fusion_of(row: Measurement) -> str:
    """Return the name of the fusion whose segment was measured, without sizes and segment numbers."""
    kind, *rest = row.fusion.partition("#")[0].split("/")
    return "/".join(rest[:1] if kind in {"built", "second", "example"} else rest)


def good_rows(rows: Sequence[Measurement]) -> list[Measurement]:
    """Return the rows that rates are fitted to: of kernels that ran and do not mostly read at positions in data."""
    return [row for row in rows if row.is_good and row.features.gathered <= _GATHERED * row.features.read]


def fitted(rows: Sequence[Measurement], device: Device) -> Fit:
    """Return the model of a device that is fitted to measurements.

    Raises
    ------
    InputError
        If fewer than 30 kernels were measured, or all belong to one fusion.
    """
    good = good_rows(rows)
    names = sorted({fusion_of(row) for row in good})
    if len(good) < FEWEST or len(names) < 2:
        msg = f"fit: at least {FEWEST} measured kernels of several fusions are needed, given {len(good)}."
        raise InputError(msg)
    start = Rates.of(device)
    measured = np.array([row.median for row in good])
    kernels = columns([row.features for row in good])
    rates = _least_squares(kernels, measured, start, start, device)
    left_out = np.empty(len(good))
    folds = min(FOLDS, len(names))
    fold_of = {name: number % folds for number, name in enumerate(names)}
    places = np.array([fold_of[fusion_of(row)] for row in good])
    for fold in range(folds):
        training, out = places != fold, places == fold
        without = _least_squares(_selected_rows(kernels, training), measured[training], start, rates, device)
        left_out[out] = predicted_seconds(_selected_rows(kernels, out), without, device)
    factors = measured / left_out
    styles = np.array([row.features.style for row in good])
    model = KernelModel(
        device=device, rates=rates, source=f"{len(good)} measurements", intervals=intervals(factors, styles),
    )
    groups = segments_of(good)
    heuristics, by_model = _choices(good, groups, measured, left_out)
    ours = np.array([not row.params for row in good])
    sheet = predicted_seconds(kernels, start, device)
    worst = sorted(range(len(good)), key=lambda n: -abs(math.log(factors[n])))[:12]
    low, high = (
        np.array([getattr(_interval_of(model, row), name) for row in good]) for name in ("low", "high")
    )
    return Fit(
        model=model, count=len(good), fusions=len(names), within=within(left_out, measured),
        chosen=within(left_out[ours], measured[ours]) if ours.any() else math.nan,
        typical=float(np.exp(np.median(np.abs(np.log(factors))))), rank=rank(groups, measured, left_out),
        concordant=concordant(groups, measured, left_out), best_of_heuristics=heuristics, best_of_model=by_model,
        covered=float(np.mean((factors >= low) & (factors <= high))), before=within(sheet, measured),
        worst=tuple((good[n], float(left_out[n])) for n in worst),
    )


def _selected_rows(kernels: Columns, which: npt.NDArray[np.bool_]) -> Columns:
    return {name: values[which] for name, values in kernels.items()}


def _least_squares(kernels: Columns, measured: Numbers, sheet: Rates, first: Rates, device: Device) -> Rates:
    """Return the rates that explain measured times best; the search starts from ``first``."""
    from scipy.optimize import least_squares

    times = np.log(measured)
    middle = np.log([getattr(sheet, name) for name in NAMES])

    def rates(change: Numbers) -> Rates:
        return Rates(**dict(zip(NAMES, map(float, np.exp(middle + change)), strict=True)))

    def residuals(change: Numbers) -> Numbers:
        errors = np.log(predicted_seconds(kernels, rates(change), device)) - times
        return np.concatenate([errors, _WEIGHT * change / math.log(_PRIOR)])

    begin = np.log([getattr(first, name) for name in NAMES]) - middle
    most = math.log(_MOST)
    solution = least_squares(
        residuals, begin, bounds=(-most, most), loss="soft_l1", f_scale=_OUTLIER, max_nfev=60, xtol=1e-4, ftol=1e-5,
    )
    return rates(solution.x)


def intervals(
    factors: Numbers, styles: npt.NDArray[np.str_],
) -> dict[str, Interval]:
    """Return the middle 80 % of the factors between measured and predicted times, by style and overall."""
    outside = (1 - _COVERED) / 2
    bounds = {}
    for style in ("", *sorted(set(styles))):
        here = factors if style == "" else factors[styles == style]
        if style == "" or len(here) >= _OF_A_STYLE:
            low, high = np.quantile(here, (outside, 1 - outside))
            bounds[style] = Interval(low=min(float(low), 1.0), high=max(float(high), 1.0))
    return bounds


def _interval_of(model: KernelModel, row: Measurement) -> Interval:
    by_style = model.intervals or {}
    return by_style.get(row.features.style) or by_style[""]


def segments_of(rows: Sequence[Measurement]) -> list[npt.NDArray[np.int_]]:
    """Return the indices of the candidates of each segment that has several."""
    groups: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(row.fusion, []).append(number)
    return [np.array(group) for group in groups.values() if len(group) > 1]


def rank(groups: Sequence[npt.NDArray[np.int_]], measured: Numbers, predicted: Numbers) -> float:
    """Return the mean rank correlation of predicted and measured times of candidates of one segment."""
    from scipy.stats import spearmanr

    correlations = []
    for group in groups:
        first, second = predicted[group], measured[group]
        if len(group) >= _CANDIDATES and len(set(first)) > 1 and len(set(second)) > 1:
            correlations.append(float(spearmanr(first.tolist(), second.tolist()).statistic))
    return float(np.mean(correlations)) if correlations else math.nan


def concordant(groups: Sequence[npt.NDArray[np.int_]], measured: Numbers, predicted: Numbers) -> float:
    """Return the share of pairs of clearly different candidates that are predicted in their measured order."""
    agreeing: list[bool] = []
    for group in groups:
        first, second = (group[places] for places in np.triu_indices(len(group), 1))
        apart = np.abs(np.log(measured[first] / measured[second])) >= math.log(_APART)
        same = (measured[first] < measured[second]) == (predicted[first] < predicted[second])
        agreeing += same[apart].tolist()
    return float(np.mean(agreeing)) if agreeing else math.nan


def _choices(
    rows: Sequence[Measurement], groups: Sequence[npt.NDArray[np.int_]], measured: Numbers, predicted: Numbers,
) -> tuple[float, float]:
    """Return how much slower than the fastest candidate the heuristics' choice and the predicted one are."""
    slowdowns = []
    for group in groups:
        heuristic = [number for number in group if not rows[number].params]
        if heuristic:
            best = measured[group].min()
            slowdowns.append((measured[heuristic[0]] / best, measured[group[predicted[group].argmin()]] / best))
    if not slowdowns:
        return math.nan, math.nan
    heuristics, model = np.exp(np.log(np.array(slowdowns)).mean(axis=0))
    return float(heuristics), float(model)

"""Rates of a CPU, fitted by least squares to the times of kernels whose features are known.

The residuals are logarithms of predicted over measured times, with a loss that grows linearly for outliers. A weak
prior keeps each rate that no measurement depends on near a typical one. Predictions are checked by cross-validation:
those for a form of kernel use rates fitted without any kernel of it.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product as pairs
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fuser_lab.cost.amounts import bytes_label, seconds_label, three_digits
from fuser_lab.cost.host_plan import begun_phases
from fuser_lab.cost.host_time import HostCaches, HostColumns, HostPhase, HostRates, Numbers, host_columns, phase_seconds
from fuser_lab.errors import InputError

FEWEST: Final = 20  # kernels
WITHIN: Final = 0.2  # of the measured time
FOLDS: Final = 5  # folds of the cross-validation; no form of kernel is in both parts of a fold
# Typical seconds and seconds per unit of a core: where the search for the best rates begins.
TYPICAL: Final = {
    "call": 1e-6, "cold": 5e-6, "fork": 5e-6, "simple": 3e-12, "dividing": 3e-11, "converted": 4e-12, "vectors": 3e-12,
    "function": 3e-10, "called": 8e-9, "single": 3e-10, "whole": 3e-10, "apart": 3e-10, "turned": 4e-11,
    "scanned": 4e-10, "start": 1e-9, "wait": 8e-9, "near": 9e-12, "far": 1e-11, "loaded": 5e-11,
    "stored": 6e-11, "together": 3e-11, "jump": 2e-9, "memory_jump": 1e-8, "sharpness": 5.0,
}
_PRODUCT: Final = 1e11  # operations of matrix products per second of a core: 2 x 8 products and sums at 3 GHz (AVX2)
_MOST: Final = 30.0  # factor by which a fitted rate may differ from a typical one
_OUTLIER: Final = 0.2  # residuals beyond it count linearly
_WEIGHT: Final = 0.3  # of the residual of a rate that differs from a typical one
_STEPS: Final = 40  # of the search
_FEW: Final = 6  # after which the sizes of caches are compared
_COVERED: Final = 0.8  # share of the measurements in an interval
_PARTS_OF_SECOND: Final = (0.5, 1.0)  # of a cache that may hold what kernels before have touched
_PARTS_OF_LAST: Final = (0.125, 0.25, 0.5, 1.0)  # of the last cache, which cores share


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """Kernels that were measured one after another, again and again.

    ``form`` names the kind of their computation, ``kernels`` are their phases, and ``seconds`` their measured times,
    NaN for one that only comes between others.
    """

    form: str
    kernels: tuple[tuple[HostPhase, ...], ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFit:
    """Fitted rates, and how well kernels are predicted by rates that were fitted to kernels of other forms.

    ``within`` is the share of these predictions within 20 % of the measured time, ``typical`` the median of the factor,
    at least 1, between the two.
    """

    rates: HostRates
    count: int
    within: float
    typical: float

    def __str__(self) -> str:
        """Return the rates and the validation as text."""
        rates = self.rates
        rows = (
            ("call", f"{seconds_label(rates.call)}, {seconds_label(rates.cold)} more with cold caches"),
            ("threads", f"{seconds_label(rates.fork)} to start {rates.caches.threads}"),
            ("vectors", f"{_rate(rates.simple / 4)} additions of Float per second and core"),
            ("", f"{_rate(rates.dividing / 4)} divisions, {_rate(rates.function)} exponentials"),
            ("one at a time", f"{_rate(rates.single)} operations, {_rate(rates.called)} functions of the library"),
            ("innermost loop", f"{seconds_label(rates.start)} to start"),
            ("caches", f"{_bandwidth(rates.near)} to the first of a core, {_bandwidth(rates.far)} to the second"),
            ("memory", f"{_bandwidth(rates.loaded)} to a core, {_bandwidth(rates.together)} to all together"),
            ("found in caches", f"{bytes_label(rates.second)} of a core, {bytes_label(rates.last)} of all"),
            ("matrix products", f"{_rate(1 / rates.product)} operations per second"),
            ("interval", f"{rates.low:.2f} to {rates.high:.2f} times the prediction"),
            ("within 20 %", f"{self.within:.0%} of {self.count} kernels, each predicted from kernels of other forms"),
            ("median factor", f"{self.typical:.2f}"),
        )
        return "\n".join(f"{name:<18}{text}" for name, text in rows)


def _rate(each: float) -> str:
    return f"{three_digits(1e-9 / each)} G"


def _bandwidth(each: float) -> str:
    return f"{three_digits(1e-9 / each)} GB/s"


@dataclass(frozen=True, slots=True)
class _Rows:
    """Features of phases, the kernel of each, and the measured seconds and forms of kernels."""

    columns: HostColumns
    owners: npt.NDArray[np.int64]
    times: Numbers
    forms: npt.NDArray[np.int64]

    def of(self, selected: npt.NDArray[np.bool_]) -> "_Rows":
        """Return the rows of some kernels."""
        phases = selected[self.owners]
        numbers = np.cumsum(selected) - 1
        return _Rows(
            {name: values[phases] for name, values in self.columns.items()}, numbers[self.owners[phases]],
            self.times[selected], self.forms[selected],
        )

    def seconds(self, rates: HostRates) -> Numbers:
        """Return the predicted time of each kernel."""
        seconds = phase_seconds(self.columns, rates)
        return np.bincount(self.owners, seconds, minlength=len(self.times)).astype(np.float64)


def fitted_host(samples: Sequence[HostSample], caches: HostCaches, product: float) -> HostFit:
    """Return the rates that best explain times; ``product`` is the rate of matrix products in operations per second.

    Raises
    ------
    InputError
        If there are fewer than 20 measured kernels, or all are of one form.
    """
    forms = sorted({sample.form for sample in samples})
    count = sum(not math.isnan(time) for sample in samples for time in sample.seconds)
    if count < FEWEST or len(forms) < 2:
        raise InputError(f"fit: at least {FEWEST} measured kernels of several forms are needed, given {count}.")
    first = replace(typical_rates(caches), product=product, source=f"{count} measurements")
    fits = []
    for second, last in pairs(_PARTS_OF_SECOND, _PARTS_OF_LAST):
        start = replace(first, second=second * caches.second, last=last * caches.last)
        rows = _rows(samples, start)
        fits.append((*_least_squares(rows, start, _FEW), rows))
    _, rough, rows = min(fits, key=lambda fit: fit[0])
    _, best = _least_squares(rows, rough)
    left_out = np.empty(count)
    for fold in range(min(FOLDS, len(forms))):
        out = rows.forms % FOLDS == fold
        _, without = _least_squares(rows.of(~out), best)
        left_out[out] = rows.of(out).seconds(without)
    factors = rows.times / left_out
    outside = (1 - _COVERED) / 2
    low, high = np.quantile(factors, (outside, 1 - outside))
    return HostFit(
        rates=replace(best, low=min(float(low), 1.0), high=max(float(high), 1.0)), count=count,
        within=within(left_out, rows.times),
        typical=float(np.exp(np.median(np.abs(np.log(factors))))),
    )


def typical_rates(caches: HostCaches) -> HostRates:
    """Return the rates of a CPU that was not measured, of which only the caches and their threads are known."""
    return HostRates(
        caches=caches, second=_PARTS_OF_SECOND[0] * caches.second, last=float(caches.last),
        product=_PRODUCT * caches.threads, low=1.0, high=1.0, source="typical rates of a CPU", **TYPICAL,
    )


def within(predicted: Numbers, measured: Numbers) -> float:
    """Return the share of predicted times within 20 % of the measured ones."""
    return float(np.mean(np.abs(predicted / measured - 1) <= WITHIN))


def _rows(samples: Sequence[HostSample], rates: HostRates) -> _Rows:
    """Return the measured kernels, with what they find in caches of the sizes in ``rates``."""
    names = {form: number for number, form in enumerate(sorted({sample.form for sample in samples}))}
    begun, owners = [], []
    times: list[float] = []
    forms: list[int] = []
    for sample in samples:
        phases = iter(begun_phases(sample.kernels, rates.caches.threads, rates.second, rates.last))
        for kernel, seconds in zip(sample.kernels, sample.seconds, strict=True):
            here = [next(phases) for _ in kernel]
            if not math.isnan(seconds):
                begun += here
                owners += [len(times)] * len(here)
                times.append(seconds)
                forms.append(names[sample.form])
    return _Rows(host_columns(begun), np.array(owners), np.array(times), np.array(forms))


def _least_squares(rows: _Rows, start: HostRates, steps: int = _STEPS) -> tuple[float, HostRates]:
    """Return the cost and the rates that explain measured times best; the search begins at ``start``."""
    from scipy.optimize import least_squares

    middle, measured = np.log(list(TYPICAL.values())), np.log(rows.times)

    def rates(change: Numbers) -> HostRates:
        values: dict[str, Any] = dict(zip(TYPICAL, map(float, np.exp(middle + change)), strict=True))
        return replace(start, **values)

    def residuals(change: Numbers) -> Numbers:
        return np.concatenate([np.log(rows.seconds(rates(change))) - measured, _WEIGHT * change])

    values = asdict(start)
    begin = np.log([values[name] for name in TYPICAL]) - middle
    most = math.log(_MOST)
    solution = least_squares(
        residuals, np.clip(begin, -0.99 * most, 0.99 * most), bounds=(-most, most), loss="soft_l1", f_scale=_OUTLIER,
        max_nfev=steps, xtol=1e-4, ftol=1e-4,
    )
    return float(solution.cost), rates(solution.x)

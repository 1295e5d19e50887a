"""Rates of a CPU, fitted by least squares to the times of kernels that move known bytes and do known arithmetic."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fuser_lab.cost.amounts import bytes_label, seconds_label
from fuser_lab.cost.device import HostRates
from fuser_lab.cost.work import Work
from fuser_lab.errors import InputError

FEWEST = 20  # kernels
FOLDS = 5  # folds of the cross-validation; no form of kernel is in both parts of a fold
WITHIN = 0.2  # of the measured time
_COVERED = 0.8  # share of the measurements in an interval
_CACHES = tuple(1 << power for power in range(18, 28))  # bytes
_NAMES = ("launch", "memory", "cached", "simple", "dividing", "special", "reducing")
_FIRST = (2e-6, 5e-11, 2e-11, 2e-10, 5e-10, 1e-9, 2e-10)  # seconds: the starting point of the search for the best rates
_MOST = 100.0  # largest factor by which a fitted rate may differ from these
_OUTLIER = 0.3  # residuals beyond this count linearly
_WEIGHT = 0.05  # of the residual of a rate that differs from the starting point
_Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """One kernel: its form, the bytes that it moves, its arithmetic, and its measured seconds."""

    form: str
    moved: int
    work: Work
    seconds: float


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
        one = self.rates
        rows = (
            ("launch", seconds_label(one.launch)),
            ("memory", f"{one.bandwidth / 1e9:.3g} GB/s"),
            ("caches", f"{one.cache_bandwidth / 1e9:.3g} GB/s up to {bytes_label(one.cache)}"),
            *(
                (name, f"{getattr(one, name) / 1e9:.3g} G per second")
                for name in ("simple", "dividing", "special", "reducing", "product")
            ),
            ("overlap", "memory and arithmetic overlap" if one.overlaps else "memory and arithmetic add up"),
            ("interval", f"{one.low:.2f} to {one.high:.2f} times the prediction"),
            ("within 20 %", f"{self.within:.0%} of {self.count} kernels, each predicted from kernels of other forms"),
            ("median factor", f"{self.typical:.2f}"),
        )
        return "\n".join(f"{name:<15}{text}" for name, text in rows)


def fitted_host(samples: Sequence[HostSample], product: float) -> HostFit:
    """Return the rates that best explain times; ``product`` is the rate of matrix products in operations per second.

    Raises
    ------
    InputError
        If there are fewer than 20 kernels, or all have one form.
    """
    forms = sorted({sample.form for sample in samples})
    if len(samples) < FEWEST or len(forms) < 2:
        msg = f"fit: at least {FEWEST} measured kernels of several forms are needed, given {len(samples)}."
        raise InputError(msg)
    rows, moved = _rows(samples)
    times = np.array([sample.seconds for sample in samples])
    cache, overlaps = min(
        ((size, both) for size in _CACHES for both in (True, False)),
        key=lambda form: _fit(rows, moved, times, *form)[1],
    )
    best, _ = _fit(rows, moved, times, cache, overlaps)
    left_out = np.empty(len(samples))
    fold_of = {form: number % FOLDS for number, form in enumerate(forms)}
    places = np.array([fold_of[sample.form] for sample in samples])
    for fold in range(min(FOLDS, len(forms))):
        kept, out = places != fold, places == fold
        rates, _ = _fit(rows[kept], moved[kept], times[kept], cache, overlaps)
        left_out[out] = _seconds(rows[out], moved[out], rates, cache, overlaps)
    factors = times / left_out
    outside = (1 - _COVERED) / 2
    low, high = np.quantile(factors, (outside, 1 - outside))
    each = dict(zip(_NAMES, map(float, best), strict=True))
    return HostFit(
        rates=HostRates(
            launch=each["launch"], bandwidth=1 / each["memory"], cache=cache, cache_bandwidth=1 / each["cached"],
            simple=1 / each["simple"], dividing=1 / each["dividing"], special=1 / each["special"],
            reducing=1 / each["reducing"], product=product, overlaps=overlaps, low=min(float(low), 1.0),
            high=max(float(high), 1.0), source=f"{len(samples)} measurements",
        ),
        count=len(samples), within=float(np.mean(np.abs(left_out / times - 1) <= WITHIN)),
        typical=float(np.exp(np.median(np.abs(np.log(factors))))),
    )


def _rows(samples: Sequence[HostSample]) -> tuple[_Numbers, _Numbers]:
    """Return the arithmetic of each kernel by class, and the bytes that it moves."""
    work = [(s.work.simple, s.work.dividing, s.work.special, s.work.reducing) for s in samples]
    return np.array(work, np.float64), np.array([s.moved for s in samples], np.float64)


def _seconds(rows: _Numbers, moved: _Numbers, each: _Numbers, cache: int, overlaps: bool) -> _Numbers:
    """Return predicted times for the given seconds per byte and per operation, as `TimeModel.seconds` does."""
    memory = moved * np.where(moved <= cache, each[2], each[1])
    arithmetic = rows @ each[3:]
    found: _Numbers = each[0] + (np.maximum(memory, arithmetic) if overlaps else memory + arithmetic)
    return found


def _fit(
    rows: _Numbers, moved: _Numbers, times: _Numbers, cache: int, overlaps: bool,
) -> tuple[_Numbers, float]:
    """Return the seconds of a launch, per byte and per operation that explain times best, and the residual."""
    from scipy.optimize import least_squares

    begin, measured = np.log(_FIRST), np.log(times)

    def residuals(change: _Numbers) -> _Numbers:
        found = np.log(_seconds(rows, moved, np.exp(begin + change), cache, overlaps)) - measured
        return np.concatenate([found, _WEIGHT * change])

    most = math.log(_MOST)
    found = least_squares(
        residuals, np.zeros(len(begin)), bounds=(-most, most), loss="soft_l1", f_scale=_OUTLIER, max_nfev=60,
    )
    rest = residuals(found.x) / _OUTLIER
    return np.exp(begin + found.x), float(np.sum(np.sqrt(1 + rest * rest) - 1))

"""Weights of the model that ranks candidates, fitted by ridge regression, and how well it ranks other fusions.

Each fusion is predicted from weights and rates that were fitted to other fusions, on all devices: a fusion that was
measured on two GPUs is left out on both.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fuser_lab.cost.candidate_model import MARGIN, CandidateModel, model_record, products, terms
from fuser_lab.cost.device import Device
from fuser_lab.cost.fitting import FOLDS, concordant, fitted_rates, fusion_of, good_rows, rank
from fuser_lab.cost.kernel_time import (
    STYLES,
    KernelFeatures,
    Numbers,
    Rates,
    columns,
    kernel_model,
    predicted_seconds,
)
from fuser_lab.cost.measurements import Measurement
from fuser_lab.errors import InputError

FEWEST = 100  # candidates of a style
_RIDGE = 3.0  # in units of a feature's variance over all candidates
_CLIPPED = 0.7  # largest logarithm of a ratio that is fitted: how slow a slow candidate is does not matter
_APART = 1.05
_AFTER = (1, 2, 4, 8)

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How well candidates of fusions that a model was not fitted to are ranked on one device.

    Attributes
    ----------
    device
        Name of the device.
    kernels, segments
        Number of measured kernels, and of segments with several candidates, one of them the heuristics' choice.
    concordant, rank
        Share of the pairs of candidates of one segment, apart by 10 % or more, in the right order; mean of Spearman's
        rank correlation of the candidates of one segment.
    plain_concordant, plain_rank
        The same by the predicted time of each kernel alone, before it is compiled.
    heuristics, best, guarded
        Geometric means of a choice's time over that of the fastest candidate: of the heuristics' choice, of the
        candidate that is predicted to be the fastest, and of this one only where it is predicted to be `MARGIN` times
        as fast as the heuristics' choice.
    slower, faster
        Share of segments for which the last of these is slower, or faster, than the heuristics' choice by 5 % or more.
    after, at_random
        Geometric means of the fastest of the heuristics' choice and the first 1, 2, 4 and 8 candidates over the fastest
        of all: in the predicted order, and on average in a random one.
    """

    device: str
    kernels: int
    segments: int
    concordant: float
    rank: float
    plain_concordant: float
    plain_rank: float
    heuristics: float
    best: float
    guarded: float
    slower: float
    faster: float
    after: tuple[float, ...]
    at_random: tuple[float, ...]

    def __str__(self) -> str:
        """Return the numbers as text."""
        within = ", ".join(
            f"{count}: {chosen - 1:.1%} ({other - 1:.1%})"
            for count, chosen, other in zip(_AFTER, self.after, self.at_random, strict=True)
        )
        plain = f"{self.plain_concordant:.1%} and {self.plain_rank:.3f} by predicted times before compilation"
        changed = f"slower by 5 % in {self.slower:.1%} of the segments, faster in {self.faster:.1%}"
        return "\n".join([
            f"{self.device}: {self.kernels} kernels of {self.segments} segments, each predicted from other fusions",
            f"in order          {self.concordant:.1%} of pairs that differ by 10 % or more",
            f"rank correlation  {self.rank:.3f} ({plain})",
            f"over the fastest  {self.heuristics - 1:.1%} the heuristics' choice",
            f"                  {self.best - 1:.1%} the candidate predicted to be the fastest",
            f"                  {self.guarded - 1:.1%} this one if by {MARGIN} times: {changed}",
            f"after measuring   {within} (in a random order)",
        ])


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateFit:
    """A fitted model, and how well it ranks candidates of other fusions on each device."""

    model: CandidateModel
    agreement: tuple[Agreement, ...]

    def record(self) -> dict[str, Any]:
        """Return the model and the agreement as plain data."""
        return {**model_record(self.model), "agreement": [asdict(agreement) for agreement in self.agreement]}

    def __str__(self) -> str:
        """Return the agreement as text."""
        return "\n\n".join([f"From {self.model.source}", *map(str, self.agreement)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """The measured kernels of one device, with what the fit needs of each."""

    device: Device
    rows: tuple[Measurement, ...]
    groups: tuple[npt.NDArray[np.int_], ...]  # candidates of one segment, the heuristics' choice first
    measured: Numbers
    fusions: tuple[str, ...]
    styles: npt.NDArray[np.str_]  # of the heuristics' choice

    def changes(self, rates: Rates) -> Numbers:
        """Return the differences between each kernel's features and those of the heuristics' choice."""
        values = products(terms(columns([row.features for row in self.rows]), rates, self.device))
        changes = np.zeros_like(values)
        for group in self.groups:
            changes[group] = values[group] - values[group[0]]
        return changes

    def logarithms(self) -> Numbers:
        """Return the logarithms of the measured ratios, bounded."""
        logarithms = np.zeros(len(self.rows))
        for group in self.groups:
            logarithms[group] = np.log(self.measured[group] / self.measured[group[0]])
        return _clipped(logarithms)


def fitted_candidates(
    measured: Sequence[tuple[Device, Sequence[Measurement]]], *, refit: bool = True,
) -> CandidateFit:
    """Return the model that ranks candidates, fitted to measurements of several devices.

    Parameters
    ----------
    measured
        Runs of a measurement: the device, and its kernels. Segments without a measured heuristics' choice, and kernels
        that mostly read at data-dependent indices, are left out.
    refit
        Whether the validation also fits the rates of a device to the other fusions; otherwise predictions have the
        rates that the package has.

    Raises
    ------
    InputError
        If fewer than `FEWEST` candidates were measured, or those of one fusion only.
    """
    sets = [_rows_of(device, rows) for device, rows in measured]
    names = sorted({name for each_set in sets for name in each_set.fusions})
    count = sum(len(each_set.rows) for each_set in sets)
    if count < FEWEST or len(names) < 2:
        msg = f"fit: at least {FEWEST} measured candidates of several fusions are needed, given {count}."
        raise InputError(msg)
    fold_of = {name: number % min(FOLDS, len(names)) for number, name in enumerate(names)}
    places = [np.array([fold_of[name] for name in each_set.fusions]) for each_set in sets]
    shipped = [kernel_model(each_set.device).rates for each_set in sets]
    ratios, plain = ([np.ones(len(each_set.rows)) for each_set in sets] for _ in range(2))
    for fold in sorted(set(fold_of.values())):
        training = [place != fold for place in places]
        here = shipped
        if refit:
            here = [
                fitted_rates([row for row, used in zip(each_set.rows, mask, strict=True) if used], each_set.device)
                for each_set, mask in zip(sets, training, strict=True)
            ]
        weights = _weights(sets, here, training)
        for device_rows, using, mask, ratio, alone in zip(sets, here, training, ratios, plain, strict=True):
            out = ~mask
            change = device_rows.changes(using)
            for style, style_weights in weights.items():
                where = out & (device_rows.styles == style)
                ratio[where] = np.exp(change[where] @ style_weights)
            alone[out] = predicted_seconds(columns(_uncompiled(device_rows.rows)), using, device_rows.device)[out]
    return CandidateFit(
        model=_model(sets),
        agreement=tuple(
            _agreement(measurements, ratio, alone)
            for measurements, ratio, alone in zip(sets, ratios, plain, strict=True)
        ),
    )


def fitted_model(measured: Sequence[tuple[Device, Sequence[Measurement]]]) -> CandidateModel:
    """Return the model that `fitted_candidates` returns, without a validation."""
    return _model([_rows_of(device, rows) for device, rows in measured])


def _model(sets: Sequence[_Rows]) -> CandidateModel:
    rates = [kernel_model(measurements.device).rates for measurements in sets]
    fitted_weights = _weights(sets, rates, [np.ones(len(measurements.rows), bool) for measurements in sets])
    devices = " and ".join(dict.fromkeys(measurements.device.name for measurements in sets))
    return CandidateModel(
        weights={style: tuple(float(f"{w:.6g}") for w in weights) for style, weights in fitted_weights.items()},
        source=f"{sum(len(measurements.rows) for measurements in sets)} kernels on {devices}",
    )


def _rows_of(device: Device, rows: Sequence[Measurement]) -> _Rows:
    """Return the rows of segments with a measured heuristics' choice and others, these choices first."""
    by_segment: dict[str, list[Measurement]] = {}
    for row in good_rows(rows):
        by_segment.setdefault(row.fusion, []).append(row)
    ordered = [sorted(group, key=lambda row: bool(row.params)) for group in by_segment.values()]
    ordered = [group for group in ordered if len(group) > 1 and not group[0].params and group[1].params]
    kernels = tuple(row for group in ordered for row in group)
    ends = np.cumsum([0, *map(len, ordered)])
    styles = np.array([group[0].features.style for group in ordered for _ in group])
    return _Rows(
        device=device, rows=kernels, groups=tuple(np.arange(a, b) for a, b in pairwise(ends)),
        measured=np.array([row.median for row in kernels]), fusions=tuple(map(fusion_of, kernels)), styles=styles,
    )


def _clipped(values: Numbers) -> Numbers:
    return np.clip(values, -_CLIPPED, _CLIPPED)


def _uncompiled(rows: Sequence[Measurement]) -> list[KernelFeatures]:
    return [replace(row.features, registers=0, spilled=0, resident=0) for row in rows]


def _weights(sets: Sequence[_Rows], rates: Sequence[Rates], used: Sequence[Mask]) -> dict[str, Numbers]:
    """Return the weights by style that explain the ratios of the kept rows best.

    What the penalty keeps small is the difference from the predicted time of each kernel alone, so that this time
    decides where few candidates were measured.
    """
    changes = [measurements.changes(using) for measurements, using in zip(sets, rates, strict=True)]
    rest = [
        measurements.logarithms() - _clipped(change[:, 0]) for measurements, change in zip(sets, changes, strict=True)
    ]
    scale = np.concatenate([change[mask] for change, mask in zip(changes, used, strict=True)]).std(axis=0) + 1e-9
    solutions = {}
    for style in STYLES:
        masks = [mask & (measurements.styles == style) for measurements, mask in zip(sets, used, strict=True)]
        if sum(int(mask.sum()) for mask in masks) < FEWEST:
            continue
        rows = np.concatenate([change[mask] for change, mask in zip(changes, masks, strict=True)]) / scale
        targets = np.concatenate([part[mask] for part, mask in zip(rest, masks, strict=True)])
        solutions[style] = np.linalg.solve(rows.T @ rows + _RIDGE * np.eye(rows.shape[1]), rows.T @ targets) / scale
        solutions[style][0] += 1
    return solutions


def _agreement(measurements: _Rows, ratios: Numbers, plain: Numbers) -> Agreement:
    heuristics, best, guarded, changes = [], [], [], []
    for group in measurements.groups:
        fastest = measurements.measured[group].min()
        choice = group[ratios[group].argmin()]
        careful = choice if ratios[choice] * MARGIN <= ratios[group[0]] else group[0]
        heuristics.append(measurements.measured[group[0]] / fastest)
        best.append(measurements.measured[choice] / fastest)
        guarded.append(measurements.measured[careful] / fastest)
        changes.append(measurements.measured[careful] / measurements.measured[group[0]])
    random = np.random.default_rng(0)
    orders = [random.random(len(measurements.rows)) for _ in range(20)]
    return Agreement(
        device=measurements.device.name, kernels=len(measurements.rows), segments=len(measurements.groups),
        concordant=concordant(measurements.groups, measurements.measured, ratios),
        rank=rank(measurements.groups, measurements.measured, ratios),
        plain_concordant=concordant(measurements.groups, measurements.measured, plain),
        plain_rank=rank(measurements.groups, measurements.measured, plain),
        heuristics=_mean(heuristics), best=_mean(best), guarded=_mean(guarded),
        slower=float(np.mean(np.array(changes) >= _APART)), faster=float(np.mean(np.array(changes) <= 1 / _APART)),
        after=tuple(_after(measurements, ratios, count) for count in _AFTER),
        at_random=tuple(float(np.mean([_after(measurements, order, count) for order in orders])) for count in _AFTER),
    )


def _after(measurements: _Rows, order: Numbers, count: int) -> float:
    """Return how much slower than the fastest the best of the heuristics' choice and the first candidates is."""
    slowdowns = []
    for group in measurements.groups:
        first = group[1:][np.argsort(order[group[1:]], kind="stable")[:count]]
        slowdowns.append(measurements.measured[[group[0], *first]].min() / measurements.measured[group].min())
    return _mean(slowdowns)


def _mean(values: Sequence[float]) -> float:
    return math.exp(float(np.mean(np.log(values)))) if values else math.nan

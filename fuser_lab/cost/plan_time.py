"""Time of the kernels of a plan one after the other, which differs from that of each alone.

A kernel alone begins with cold caches, and its time counts from before its launch. In a plan the next launch is ready
while a kernel still runs, so that only a short gap is between two of them, and a kernel finds in the L2 cache what the
kernels shortly before it have read or written.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fuser_lab.cost.device import Device
from fuser_lab.cost.kernel_time import (
    Columns,
    KernelFeatures,
    KernelModel,
    Numbers,
    PlanRates,
    Rates,
    columns,
    predicted_seconds,
)

Touched = tuple[tuple[str, int], ...]  # tensors in memory, with the bytes of each
_OWN: Final = 0.5  # part of a tensor that displaces its own beginning before it is read again


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelInPlan:
    """What a kernel's time depends on, and the tensors that it reads and writes.

    ``features`` are None for what is no kernel of ours: then only its tensors matter, to the kernels after it.
    """

    features: KernelFeatures | None
    reads: Touched
    writes: Touched

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(size for _, size in (*self.reads, *self.writes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A tensor that a kernel reads and that one before it has touched: its bytes, and those that were moved since."""

    nbytes: int
    since: int


def read_again(kernels: Sequence[KernelInPlan]) -> list[tuple[Again, ...]]:
    """Return for each kernel which tensors it reads that kernels before it have touched."""
    touched: dict[str, int] = {}
    moved, found = 0, []
    for kernel in kernels:
        found.append(tuple(
            Again(nbytes=size, since=moved - touched[name]) for name, size in kernel.reads if name in touched
        ))
        moved += kernel.nbytes
        touched.update((name, moved) for name, _ in (*kernel.reads, *kernel.writes))
    return found


def shares_in_cache(kernels: Sequence[KernelInPlan], cache: float) -> list[float]:
    """Return the part of the bytes that each kernel reads which it finds in a cache of a size."""
    found = []
    for kernel, again in zip(kernels, read_again(kernels), strict=True):
        kept = sum(
            one.nbytes * min(max(1 - (one.since + _OWN * one.nbytes) / cache, 0.0), 1.0) if cache else 0.0
            for one in again
        )
        found.append(kept / max(sum(size for _, size in kernel.reads), 1))
    return found


def kernel_seconds(
    kernels: Sequence[KernelInPlan], rates: Rates, together: PlanRates, device: Device,
) -> Numbers:
    """Return the seconds of each kernel of a plan; NaN for what is no kernel of ours."""
    seconds = np.full(len(kernels), np.nan)
    places = [n for n, kernel in enumerate(kernels) if kernel.features is not None]
    if places:
        features = columns([kernel.features for kernel in kernels if kernel.features is not None])
        shares = np.array(shares_in_cache(kernels, together.held * device.l2))[places]
        seconds[places] = in_plan(features, shares, (np.array(places) > 0).astype(np.float64), rates, together, device)
    return seconds


def in_plan(
    features: Columns, shares: Numbers, later: Numbers, rates: Rates, together: PlanRates,
    device: Device,
) -> Numbers:
    """Return times of kernels that find a share of what they read in the cache; ``later`` are not the first ones."""
    cold = dict(features)
    cold["read"] = features["read"] * (1 - shares)
    further = features["launches"] - 1
    alone = predicted_seconds(cold, rates, device)
    found: Numbers = alone + further * (together.phase - rates.phase) + later * (together.gap - rates.launch)
    return found


def plan_seconds(kernels: Sequence[KernelInPlan], model: KernelModel) -> Numbers:
    """Return the predicted seconds of each kernel of a plan on a model's device; NaN for what is no kernel of ours."""
    return kernel_seconds(kernels, model.rates, model.together, model.device)

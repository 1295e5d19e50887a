"""Time of the kernels of a plan that run one after another, which differs from their times in isolation.

In isolation, a kernel begins with cold caches, and its time includes the launch. In a plan, the next launch is ready
while a kernel still runs, so there is only a short gap between two kernels, and a kernel finds in the L2 cache what
preceding kernels have recently read or written.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fuser_lab.cost.device import Device
from fuser_lab.cost.host_time import HostFeatures
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
_OWN: Final = 0.5  # share of a tensor that evicts its own beginning before the tensor is read again


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelInPlan:
    """The features of a kernel and the tensors that it reads and writes.

    ``features`` is None for segments that fuser_lab does not generate a kernel for; their tensors still affect the
    cache of later kernels.
    """

    features: KernelFeatures | HostFeatures | None
    reads: Touched
    writes: Touched

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(size for _, size in (*self.reads, *self.writes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A tensor that a kernel reads after an earlier kernel accessed it: its bytes, and the bytes moved in between."""

    nbytes: int
    since: int


def read_again(kernels: Sequence[KernelInPlan]) -> list[tuple[Again, ...]]:
    """Return, for each kernel, the tensors that it reads and that earlier kernels accessed."""
    touched: dict[str, int] = {}
    moved, tensors = 0, []
    for kernel in kernels:
        tensors.append(tuple(
            Again(nbytes=size, since=moved - touched[name]) for name, size in kernel.reads if name in touched
        ))
        moved += kernel.nbytes
        touched.update((name, moved) for name, _ in (*kernel.reads, *kernel.writes))
    return tensors


def share_kept(nbytes: Numbers, since: Numbers, cache: float) -> Numbers:
    """Return the share of tensors of ``nbytes`` that a cache still holds after ``since`` bytes were moved."""
    if not cache:
        return np.zeros_like(nbytes)
    share: Numbers = np.clip(1 - (since + _OWN * nbytes) / cache, 0.0, 1.0)
    return share


def shares_in_cache(kernels: Sequence[KernelInPlan], cache: float) -> list[float]:
    """Return the share of the bytes read by each kernel that a cache of the given size holds."""
    shares = []
    for kernel, again in zip(kernels, read_again(kernels), strict=True):
        nbytes, since = np.array([(tensor.nbytes, tensor.since) for tensor in again], np.float64).reshape(-1, 2).T
        cached = float((nbytes * share_kept(nbytes, since, cache)).sum())
        shares.append(cached / max(sum(size for _, size in kernel.reads), 1))
    return shares


def kernel_seconds(
    kernels: Sequence[KernelInPlan], rates: Rates, together: PlanRates, device: Device,
) -> Numbers:
    """Return the seconds of each kernel of a plan; NaN for segments without a generated kernel."""
    seconds = np.full(len(kernels), np.nan)
    places = [n for n, kernel in enumerate(kernels) if isinstance(kernel.features, KernelFeatures)]
    if places:
        features = columns([kernel.features for kernel in kernels if isinstance(kernel.features, KernelFeatures)])
        shares = np.array(shares_in_cache(kernels, together.held * device.l2))[places]
        seconds[places] = in_plan(features, shares, (np.array(places) > 0).astype(np.float64), rates, together, device)
    return seconds


def in_plan(
    features: Columns, shares: Numbers, later: Numbers, rates: Rates, together: PlanRates,
    device: Device,
) -> Numbers:
    """Return times of kernels with a share of their reads in the cache; ``later`` marks those that are not first."""
    cold = dict(features)
    cold["read"] = features["read"] * (1 - shares)
    further = features["launches"] - 1
    alone = predicted_seconds(cold, rates, device)
    seconds: Numbers = alone + further * (together.phase - rates.phase) + later * (together.gap - rates.launch)
    return seconds


def plan_seconds(kernels: Sequence[KernelInPlan], model: KernelModel) -> Numbers:
    """Return the predicted seconds of each kernel of a plan; NaN for segments without a generated kernel."""
    return kernel_seconds(kernels, model.rates, model.together, model.device)

"""The time of the kernels of a plan on a CPU, which find in its caches what those before them have read or written.

A plan is run again and again, as when it is measured: the first kernel finds what the last ones of the previous run
have left. A cache holds what was touched last, so an element is found if what was touched since then fits into the
cache. A phase touches its tensors side by side, from beginning to end.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from fuser_lab.cost.host_time import (
    Begun,
    HostFeatures,
    HostPhase,
    HostRates,
    InCaches,
    Numbers,
    host_columns,
    phase_seconds,
)
from fuser_lab.cost.plan_time import KernelInPlan

_RUNS: Final = 2  # of which the second finds the caches as all later ones do


def begun_phases(
    kernels: Iterable[Sequence[HostPhase] | float], threads: int, second: float, last: float,
) -> list[Begun]:
    """Return the phases of the kernels of a plan with what they find in caches.

    Parameters
    ----------
    kernels
        The phases of each, or the bytes that something else touches in between.
    threads, second, last
        Cores with a second cache, and bytes of this cache and of the last one that hold what was touched.
    """
    steps = [one for kernel in kernels for one in ([kernel] if isinstance(kernel, float) else kernel)]
    touched: dict[str, float] = {}  # bytes moved when each tensor was touched, on average over its elements
    moved, found = 0.0, list[Begun]()
    total = sum(one if isinstance(one, float) else one.nbytes for one in steps)
    cold = min(total / max(last, 1.0), 1.0)
    for _ in range(_RUNS):
        found.clear()
        for step in steps:
            if isinstance(step, float):
                moved += step
                continue
            held = {}
            for one in step.moved:
                if one.name in touched:
                    since = moved + step.nbytes / 2 - touched[one.name]
                    held[one.name] = InCaches(second=_part(since, threads * second), last=_part(since, last))
            found.append(Begun(phase=step, found=held, cold=cold))
            touched.update((one.name, moved + step.nbytes / 2) for one in step.moved)
            moved += step.nbytes
    return found


def _part(since: float, cache: float) -> float:
    """Return the part of a tensor left in a cache after accesses to other bytes: all of it after half of the cache."""
    return min(max(2 - 2 * since / cache, 0.0), 1.0) if cache else 0.0


def host_seconds(kernels: Sequence[KernelInPlan], rates: HostRates) -> Numbers:
    """Return the seconds of each kernel of a plan; NaN for what is no kernel of ours."""
    phases = [
        one.features.phases if isinstance(one.features, HostFeatures) else float(one.nbytes) for one in kernels
    ]
    begun = begun_phases(phases, rates.caches.threads, rates.second, rates.last)
    owners = np.repeat(
        np.arange(len(kernels)), [0 if isinstance(one, float) else len(one) for one in phases],
    )
    seconds = phase_seconds(host_columns(begun), rates) if begun else np.zeros(0)
    found = np.bincount(owners, seconds, minlength=len(kernels)).astype(np.float64)
    found[[isinstance(one, float) for one in phases]] = np.nan
    return found

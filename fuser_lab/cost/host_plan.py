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

_RUNS: Final = 2  # the first run fills the caches; from the second run on, they are in a steady state


def begun_phases(
    kernels: Iterable[Sequence[HostPhase] | float], threads: int, second: float, last: float,
) -> list[Begun]:
    """Return the phases of the kernels of a plan with the state of the caches at the beginning of each.

    Parameters
    ----------
    kernels
        The phases of each kernel, or for a segment without a generated kernel the bytes that it touches.
    threads, second, last
        Number of cores, and the bytes of L2 and of the last-level cache in which touched tensors remain.
    """
    steps = [step for kernel in kernels for step in ([kernel] if isinstance(kernel, float) else kernel)]
    touched: dict[str, float] = {}  # bytes moved in the plan until each tensor was touched, averaged over its elements
    moved, begun = 0.0, list[Begun]()
    total = sum(step if isinstance(step, float) else step.nbytes for step in steps)
    cold = min(total / max(last, 1.0), 1.0)
    for _ in range(_RUNS):
        begun.clear()
        for step in steps:
            if isinstance(step, float):
                moved += step
                continue
            held = {}
            for moved_tensor in step.moved:
                if moved_tensor.name in touched:
                    since = moved + step.nbytes / 2 - touched[moved_tensor.name]
                    held[moved_tensor.name] = InCaches(second=_part(since, threads * second), last=_part(since, last))
            begun.append(Begun(phase=step, in_caches=held, cold=cold))
            touched.update((access.name, moved + step.nbytes / 2) for access in step.moved)
            moved += step.nbytes
    return begun


def _part(since: float, cache: float) -> float:
    """Return the fraction of a tensor that remains cached after ``since`` other bytes were touched.

    The fraction is 1 up to half of the cache, then falls linearly to 0 at the size of the cache.
    """
    return min(max(2 - 2 * since / cache, 0.0), 1.0) if cache else 0.0


def host_seconds(kernels: Sequence[KernelInPlan], rates: HostRates) -> Numbers:
    """Return the seconds of each kernel of a plan; NaN for segments without a generated kernel."""
    phases = [
        kernel.features.phases if isinstance(kernel.features, HostFeatures) else float(kernel.nbytes)
        for kernel in kernels
    ]
    begun = begun_phases(phases, rates.caches.threads, rates.second, rates.last)
    owners = np.repeat(
        np.arange(len(kernels)), [0 if isinstance(phase, float) else len(phase) for phase in phases],
    )
    seconds = phase_seconds(host_columns(begun), rates) if begun else np.zeros(0)
    seconds_of_kernels = np.bincount(owners, seconds, minlength=len(kernels)).astype(np.float64)
    seconds_of_kernels[[isinstance(phase, float) for phase in phases]] = np.nan
    return seconds_of_kernels

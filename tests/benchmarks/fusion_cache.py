"""``python -m tests.benchmarks.fusion_cache [count]``: memory of a full cache of fusions, and its lookup time.

Kernels are not compiled: the figures count definitions, their states and the trie.
"""

import gc
import resource
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import fuser_lab as fl
from fuser_lab import nvfuser
from fuser_lab.definition.known import MAX_FUSIONS

OPS = 16


def layer(fd: fl.FusionDefinition, number: int) -> None:
    """Define a normalization of rows with a few ops around it, in an order that is unique to the number."""
    x, weight, bias = (fd.define_tensor(shape=[-1, -1] if n == 0 else [-1], contiguity=True) for n in range(3))
    for turn in range(7):
        x = (fd.ops.exp, fd.ops.sin, fd.ops.cos, fd.ops.tanh)[(number >> 2 * turn) & 3](x)
    variance, mean = fd.ops.var_mean(x, dims=[1], correction=0, keepdim=True)
    scaled = fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5)))
    fd.add_output(fd.ops.add(fd.ops.mul(scaled, weight), bias))


def defined(cache: fl.FusionCache[Any] | None, number: int) -> fl.FusionDefinition:
    """Return a definition."""
    with fl.FusionDefinition(cache=cache) as fd:
        layer(fd, number)
    return fd


def filled(count: int) -> fl.FusionCache[Any]:
    """Return a cache with ``count`` distinct fusions."""
    cache: fl.FusionCache[Any] = fl.FusionCache()
    for number in range(count):
        defined(cache, number)
    return cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Memory of a cache: ``bytes_each`` counts all of Python's allocations, per fusion."""

    fusions: int
    records: int
    bytes_each: float

    @property
    def megabytes_when_full(self) -> float:
        """Megabytes of a cache with the default maximum of fusions."""
        return self.bytes_each * MAX_FUSIONS / 1e6


def memory(count: int) -> Taken:
    """Return the memory of ``count`` fusions."""
    filled(8)
    gc.collect()
    tracemalloc.start()
    cache = filled(count)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    stats = cache.stats()
    return Taken(fusions=stats.fusions, records=stats.records, bytes_each=used / count)


def microseconds_a_call(
    define: Callable[[fl.FusionDefinition], None], samples: int = 9, repeats: int = 20, *, removed: bool = False,
) -> float:
    """Return the processor time that a known definition takes, per call; ``removed`` names the removed frontend."""
    nvfuser.FusionCache.reset()
    cache: fl.FusionCache[Any] = fl.FusionCache()
    if removed:
        cache = nvfuser.FusionCache.get(load_from_default_workspace=False).known

    def again() -> fl.FusionDefinition:
        with nvfuser.FusionDefinition() if removed else fl.FusionDefinition(cache=cache) as fd:
            define(fd)
        return fd

    # Only a definition that is being built has a list of its calls.
    calls = len(again()._calls)
    found = []
    for _ in range(samples):
        start = time.process_time()
        for _ in range(repeats):
            again()
        found.append((time.process_time() - start) / repeats)
    assert cache.stats().fusions == 1
    return 1e6 * min(found) / calls


def main() -> None:
    """Print the figures."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else MAX_FUSIONS
    print(f"restoring: {microseconds_a_call(lambda fd: layer(fd, 0)):.1f} us per call")
    start = time.perf_counter()
    taken = memory(count)
    seconds = time.perf_counter() - start
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(
        f"{taken.fusions:,} fusions in {taken.records:,} records: {taken.bytes_each * count / 1e6:.0f} MB, "
        f"{taken.bytes_each / 1e3:.1f} kB each; {taken.megabytes_when_full:.0f} MB for {MAX_FUSIONS:,}; "
        f"{seconds:.0f} s with tracing; {resident:.0f} MB resident at most"
    )


if __name__ == "__main__":
    main()

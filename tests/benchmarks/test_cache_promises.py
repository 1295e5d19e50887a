"""Promises about the fusion cache and about segments that run together; figures are printed with `-s`.

The whole cache, with 16,384 fusions: ``python -m tests.benchmarks.fusion_cache``.
"""

import statistics
import time

import numpy as np
import pytest
from machine import allowed

import fuser_lab as fl
from tests.benchmarks.fusion_cache import defined, layer, memory, microseconds_a_call

pytestmark = pytest.mark.benchmark


def elementwise(fd: fl.FusionDefinition) -> None:
    x = fd.define_tensor(shape=[-1, -1], contiguity=True)
    for _ in range(100):
        x = fd.ops.add(fd.ops.mul(x, 2.0), x)
    fd.add_output(x)


@pytest.mark.parametrize("removed", [False, True], ids=["fuser_lab", "nvfuser"])
@pytest.mark.parametrize("name", ["a layer", "200 ops"])
def test_restoring_takes_6_microseconds_a_call(name, removed):
    define = {"a layer": lambda fd: layer(fd, 5), "200 ops": elementwise}[name]
    took = microseconds_a_call(define, removed=removed)
    print(f"{name}: {took:.1f} us per call")
    assert took < allowed(6)


def test_what_was_compiled_comes_back_with_the_definition():
    cache = fl.FusionCache()
    inputs = [np.ones(shape, np.float32) for shape in ((8, 64), (64,), (64,))]
    first = defined(cache, 3)
    start = time.perf_counter()
    first.execute(inputs)
    compiled = time.perf_counter() - start

    def restored() -> float:
        start = time.perf_counter()
        fd = defined(cache, 3)
        fd.execute(inputs)
        return time.perf_counter() - start

    again = min(restored() for _ in range(9))
    print(f"first run {1e3 * compiled:.0f} ms, defined and run again {1e3 * again:.2f} ms")
    assert again < compiled / 20


def test_a_full_cache_takes_less_than_1_gb():
    taken = memory(128)
    print(f"{taken.bytes_each / 1e3:.1f} kB per fusion; {taken.megabytes_when_full:.0f} MB for a full cache")
    assert taken.megabytes_when_full < 1000


def test_segments_run_together_for_10_microseconds_each():
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        y = x
        for _ in range(8):
            y = fd.ops.mul(x, fd.ops.sum(fd.ops.exp(y), dims=[0]))
        fd.add_output(y)
    x = np.full((4, 8), -0.25, np.float32)
    apart = fl.SegmenterOptions(whole_fusion=False, level_merge=False, final_merge=False, combine_reductions=False)
    segments = fd.segment([x], options=apart)
    fd.execute([x])
    manager = fd._segmented.manager
    way = next(iter(fd._segmented._ways.values()))
    arguments: list[tuple[object, list[object]]] = []

    def kept(run):
        def call(values):
            arguments.append((run, values))
            return run(values)

        return call

    manager.run([x], [kept(run) for run in way.runs], way.sizes)

    def together() -> float:
        start = time.thread_time()
        fd.execute([x])
        return time.thread_time() - start

    def alone() -> float:
        start = time.thread_time()
        for run, values in arguments:
            run(values)
        return time.thread_time() - start

    # Processor time, measured alternately, so that other work on the machine affects both or neither.
    pairs = [(together(), alone()) for _ in range(1500)]
    added = statistics.median(a - b for a, b in pairs) / len(segments)
    print(f"{len(segments)} segments: {1e6 * added:.2f} us added to each")
    assert len(segments) > 4
    assert added < allowed(10e-6)

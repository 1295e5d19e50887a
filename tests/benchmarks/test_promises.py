"""Times that are promised, with room for a busy machine; what was measured is printed with `-s`."""

import statistics
import time
from collections.abc import Callable

import numpy as np
import pytest

import fuser_lab as fl

pytestmark = pytest.mark.benchmark


def median_seconds(call: Callable[[], object], samples: int = 9, repeats: int = 1) -> float:
    """Return the median time of a call."""
    found = []
    for _ in range(samples):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        found.append((time.perf_counter() - start) / repeats)
    return statistics.median(found)


@pytest.mark.parametrize("strategy", ["bottom_up", "top_down"])
def test_rope_backward_segments_in_50_ms(strategy):
    fd, specs = fl.example("llama3_rope_backward", "full")
    fl.segment(fd, specs, strategy=strategy)
    took = median_seconds(lambda: fl.segment(fd, specs, strategy=strategy))
    print(f"{strategy}: {1e3 * took:.1f} ms")
    assert took < 0.05


def test_a_prepared_plan_costs_less_than_50_microseconds_a_segment():
    with fl.FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
        fd.add_output(fd.ops.add(y, fd.ops.sum(x, dims=[1], keepdim=True)))
    a = np.ones((2, 8), np.float32)
    plan = fl.segment(fd, [a, a])
    prepared, out = plan.prepared("cpu"), [np.empty_like(a)]
    prepared.run([a, a], out)
    bound = prepared.bind([a, a], out)

    def kernels() -> None:
        for step in bound.steps:
            step()

    whole = median_seconds(lambda: prepared.run([a, a], out), repeats=300)
    alone = median_seconds(kernels, repeats=300)
    print(f"{1e6 * whole:.1f} us for {len(plan.segments)} segments, kernels alone {1e6 * alone:.1f} us")
    assert (whole - alone) / len(plan.segments) < 50e-6


def test_a_cut_is_drawn_at_once():
    plan = fl.segment(*fl.example("llama3_rope_backward", "full"))
    plan._repr_mimebundle_()

    def cut_and_draw() -> None:
        plan.cut("T13")._repr_mimebundle_()

    took = median_seconds(cut_and_draw, samples=5)
    print(f"cut and draw 56 ops: {1e3 * took:.1f} ms")
    assert took < 0.3

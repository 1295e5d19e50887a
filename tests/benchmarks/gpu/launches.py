"""Host time of a run: ``python -m tests.benchmarks.gpu.launches``.

Microseconds per segment of tiny kernels: a prepared plan with given outputs, the same without, a plan bound to its
arrays, and a captured graph. Results are checked first.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import fuser_lab as fl
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.ir import Fusion
from fuser_lab.runtime.plan.executor import PreparedPlan
from tests.kernels import prepare


def microseconds(call: Callable[[], Any], count: int = 300) -> float:
    """The median over rounds of the host's time per call; the host waits for the GPU between rounds only."""
    for _ in range(20):
        call()
    found = []
    for _ in range(20):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        found.append((time.perf_counter() - begin) / count * 1e6)
    return statistics.median(found)


def chain(length: int, size: int, inputs: int = 1) -> tuple[PreparedPlan, list[Any]]:
    with fl.FusionDefinition() as fd:
        given = [fd.define_tensor([-1], contiguity=[True], dtype=fl.DataType.Float) for _ in range(inputs)]
        total = given[0]
        for number in range(length):
            total = fd.ops.add(total, given[number % inputs])
        fd.add_output(total)
    arrays = [torch.randn(size, device="cuda") for _ in range(inputs)]
    whole = fl.segment(fd, arrays).fusion
    segments = [
        (Fusion(inputs=tuple(dict.fromkeys(e.tensor_inputs)), exprs=(e,), outputs=(e.out,)), SchedulerType.POINTWISE)
        for e in whole.exprs
    ]
    return prepare(whole, segments, "cuda", allow_fallback=False), arrays


def main() -> None:
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for length, inputs in ((1, 1), (1, 2), (4, 4), (20, 1)):
        plan, arrays = chain(length, 256, inputs)
        out = [torch.empty(256, device="cuda")]
        plan.run(arrays, out)
        others = [torch.randn(256, device="cuda") for _ in arrays], [torch.empty(256, device="cuda")]

        sets = itertools.cycle([(arrays, out), others])

        def alternating(plan: PreparedPlan = plan, sets: Any = sets) -> None:
            plan.run(*next(sets))

        for _ in range(4):
            alternating()
        for given, (found,) in (arrays, out), others:
            expected = given[0] + sum(given[number % inputs] for number in range(length))
            torch.testing.assert_close(found, expected)

        bound = plan.bind(arrays, out)

        def steps(bound: Any = bound) -> None:
            for step in bound.steps:
                step()

        graph = plan.captured(arrays, out)
        rows = {
            "run(inputs, out)": partial(plan.run, arrays, out),
            "run, other arrays": alternating,
            "run(inputs)": partial(plan.run, arrays),
            "bound steps": steps,
            "graph replay": graph.replay,
        }
        for name, call in rows.items():
            spent = microseconds(call)
            print(f"{length:3d} segments, {inputs} inputs: {name:18s} {spent:7.2f} us, {spent / length:6.2f} a segment")
        timed(graph.replay, length)
    x, y = (torch.randn(256, device="cuda") for _ in range(2))
    print(f"torch.add(out=) {microseconds(partial(torch.add, x, x, out=y)):.2f} us")


def timed(replay: Callable[[], None], length: int) -> None:
    """Print the GPU time of a replay, by launch."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(100):
        replay()
    stop.record()
    torch.cuda.synchronize()
    spent = start.elapsed_time(stop) * 10
    print(f"    a replay, device time {spent:.2f} us, {spent / length:.2f} a kernel")


if __name__ == "__main__":
    main()

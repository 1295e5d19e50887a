"""``python -m tests.benchmarks.lists`` times programs over many tensors beside eager mode and inductor on a GPU.

Rows are moving averages of 48 small tensors, and steps of Adam over the parameters of GPT-2 (148 tensors, 124 M
elements) and over small ones, out of place and in place. A time is the median of calls that wait for the device, in
microseconds; ``launches`` counts the kernels of one call, and ``error`` is the largest difference from eager mode.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from tests.needs import needs
from tests.profiled import events_of

torch = needs("torch")

_WARM = 5  # calls before the measured ones
Program = Callable[..., Any]


def averages(old: list[Any], new: list[Any]) -> Any:
    return torch._foreach_add(torch._foreach_mul(old, 0.995), new, alpha=0.005)


def averages_in_place(old: list[Any], new: list[Any]) -> None:
    torch._foreach_lerp_(old, new, 0.005)


def adam(parameters: list[Any], gradients: list[Any], means: list[Any], squares: list[Any]) -> list[Any]:
    results = []
    for p, g, m, v in zip(parameters, gradients, means, squares, strict=True):
        mean, square = m * 0.9 + g * 0.1, v * 0.999 + g * g * 0.001
        results.append((p * (1 - 1e-5) - 1e-3 * mean / (square.sqrt() + 1e-8), mean, square))
    return results


def adam_in_place(parameters: list[Any], gradients: list[Any], means: list[Any], squares: list[Any]) -> None:
    for p, g, m, v in zip(parameters, gradients, means, squares, strict=True):
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        p.mul_(1 - 1e-5).addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)


def gpt2(width: int) -> list[tuple[int, ...]]:
    """Return the shapes of GPT-2's parameters; 768 is its width."""
    layer = [(width,), (width,), (width, 3 * width), (3 * width,), (width, width), (width,), (width,), (width,),
             (width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    return [(50257 * width // 768, width), (1024, width), *layer * 12, (width,), (width,)]


def _rows() -> list[tuple[str, Program, list[tuple[int, ...]], int]]:
    small = [(64, 17), (64,), (64, 64), (64,), (6, 64), (6,)] * 8
    rows: list[tuple[str, Program, list[tuple[int, ...]], int]] = [
        ("average of 48", averages, small, 2), ("average of 48, in place", averages_in_place, small, 2),
    ]
    for name, width in (("GPT-2", 768), ("GPT-2 of width 24", 24)):
        rows += [(f"Adam, {name}", adam, gpt2(width), 4), (f"Adam, {name}, in place", adam_in_place, gpt2(width), 4)]
    return rows


def _flat(results: Any) -> list[Any]:
    return [results] if hasattr(results, "shape") else [x for part in results for x in _flat(part)]


def _microseconds(call: Callable[[], Any], seconds: float) -> float:
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < _WARM:
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def _launches(call: Callable[[], Any]) -> int:
    events = events_of(lambda: (call(), torch.cuda.synchronize()), "CUDA")
    kernels = [event.name for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    return sum(not name.startswith(("Memcpy", "Memset")) for name in kernels)


def measure(name: str, program: Program, shapes: list[tuple[int, ...]], groups: int, seconds: float) -> list[str]:
    """Return a row: for each way of running, the time, the launches and the error."""
    torch.manual_seed(0)
    start = [[torch.rand(shape, device="cuda") for shape in shapes] for _ in range(groups)]
    cells, expected = [name], None
    for backend in ("eager", "inductor", "fuser_lab"):
        torch._dynamo.reset()
        function = program if backend == "eager" else torch.compile(program, backend=backend)
        groups_of = [[x.clone() for x in group] for group in start]
        with torch.no_grad():
            results = function(*groups_of)
            values = _flat(groups_of if results is None else results)
            if expected is None:
                expected = [x.clone() for x in values]
            error = max(float((x - y).abs().max()) for x, y in zip(values, expected, strict=True))

            def call(function: Program = function, inputs: list[list[Any]] = groups_of) -> None:
                function(*inputs)

            for _ in range(_WARM):
                call()
            cells.append(f"{_microseconds(call, seconds):.1f} us, {_launches(call)} launches, error {error:.1e}")
    return cells


def main() -> None:
    """Print one row per program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each measurement")
    seconds = parser.parse_args().seconds
    print("program | eager | inductor | fuser_lab")
    for row in _rows():
        try:
            print(" | ".join(measure(*row, seconds)), flush=True)
        except Exception as error:  # noqa: BLE001 - the other rows are measured all the same
            print(f"{row[0]} | {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()

"""The cost of a new batch size of a known definition: ``python -m tests.benchmarks.new_sizes``.

Each definition runs for a few batch sizes; then further sizes run for the first time, and again. The difference is the
cost of a new size: planning, lowering, and any compilation. With ``--specialized``, all sizes are constants in the
kernels, as a plan may request.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import fuser_lab as fl
from fuser_lab import DataType
from fuser_lab.plan import Plan
from fuser_lab.report.tables import Table, table_text

KNOWN = (96, 128, 2048, 2051)  # batch sizes that have run
NEW = (130, 777, 1024, 1536, 1999, 2052, 2600, 3001)
PROMISED = 0.050  # maximum seconds of a new size beyond a known one


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A fusion to record, and the shapes of its inputs by batch size."""

    name: str
    record: Callable[..., Any]
    shapes: Callable[[int], Sequence[tuple[int, ...]]]

    def recorded(self) -> fl.FusionDefinition:
        """Return the definition, with symbolic sizes."""
        with fl.FusionDefinition() as fd:
            tensors = [
                fd.define_tensor([-1] * len(shape), contiguity=True, dtype=DataType.Float) for shape in self.shapes(2)
            ]
            results = self.record(fd, *tensors)
            for result in results if isinstance(results, list | tuple) else (results,):
                fd.add_output(result)
        return fd

    def inputs(self, size: int, device: str) -> list[Any]:
        """Return inputs for a batch size: NumPy's on the CPU, torch's on a GPU."""
        random = np.random.default_rng(size)
        arrays = [random.standard_normal(shape, np.float32) for shape in self.shapes(size)]
        if device == "cpu":
            return arrays
        import torch

        return [torch.from_numpy(array).to(device) for array in arrays]


def _layer_norm(fd: Any, x: Any, weight: Any, bias: Any) -> Any:
    ops = fd.ops
    variance, mean = ops.var_mean(x, [1], 0, True)
    normal = ops.mul(ops.sub(x, mean), ops.rsqrt(ops.add(variance, 1e-5)))
    return ops.add(ops.mul(normal, ops.broadcast(weight, [True, False])), ops.broadcast(bias, [True, False]))


def _rms_norm_backward(fd: Any, x: Any, weight: Any, grad: Any) -> Any:
    ops = fd.ops
    scale = ops.rsqrt(ops.add(ops.broadcast(ops.mean(ops.mul(x, x), [1]), [False, True]), 1e-5))
    normal, weighted = ops.mul(x, scale), ops.mul(grad, ops.broadcast(weight, [True, False]))
    along = ops.broadcast(ops.mean(ops.mul(weighted, normal), [1]), [False, True])
    return [ops.mul(scale, ops.sub(weighted, ops.mul(normal, along))), ops.sum(ops.mul(grad, normal), [0])]


def _mlp_activation(fd: Any, x: Any, gate: Any, bias: Any) -> Any:
    ops = fd.ops
    shifted = ops.add(x, ops.broadcast(bias, [True, False]))
    return ops.mul(ops.mul(shifted, ops.sigmoid(shifted)), gate)


DEFINITIONS = (
    Definition(name="softmax", record=lambda fd, x: fd.ops.softmax(x, -1), shapes=lambda n: [(n, 1000)]),
    Definition(name="layer norm", record=_layer_norm, shapes=lambda n: [(n, 768), (768,), (768,)]),
    Definition(name="RMS norm backward", record=_rms_norm_backward, shapes=lambda n: [(n, 512), (512,), (n, 512)]),
    Definition(name="SiLU with a gate", record=_mlp_activation, shapes=lambda n: [(n, 1536), (n, 1536), (1536,)]),
    Definition(name="sum of rows", record=lambda fd, x: fd.ops.sum(x, [1]), shapes=lambda n: [(n, 1000)]),
    Definition(name="sum of columns", record=lambda fd, x: fd.ops.sum(x, [0]), shapes=lambda n: [(n, 1000)]),
    Definition(
        name="attention scores", record=lambda fd, x: fd.ops.softmax(fd.ops.mul(x, 0.125), -1),
        shapes=lambda n: [(n, 4, 48, 48)],
    ),
    Definition(
        name="NCHW to NHWC", record=lambda fd, x: fd.ops.relu(fd.ops.permute(x, [0, 2, 3, 1])),
        shapes=lambda n: [(n, 16, 14, 14)],
    ),
)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of runs of one definition, per new size: the first run, and a repeated one."""

    name: str
    first: tuple[float, ...]
    again: tuple[float, ...]

    @property
    def beyond(self) -> tuple[float, ...]:
        """The time of the first run of each size beyond its second."""
        return tuple(a - b for a, b in zip(self.first, self.again, strict=True))


def measured(definition: Definition, device: str, *, constant: bool = False) -> Cost:
    """Return the cost of new batch sizes on ``"cpu"`` or ``"cuda"``; ``constant`` sizes specialize kernels."""
    fd = definition.recorded()
    plans: dict[int, Plan] = {}

    def run(size: int) -> float:
        inputs = definition.inputs(size, device)
        _wait(device)
        start = time.perf_counter()
        if constant:
            if size not in plans:
                plans[size] = specialized(fl.segment(fd, inputs), device)
            plans[size].run(inputs)
        else:
            fd.execute(inputs)
        _wait(device)
        return time.perf_counter() - start

    for size in KNOWN:
        run(size)
    first, again = zip(*((run(size), min(run(size) for _ in range(2))) for size in NEW), strict=True)
    return Cost(name=definition.name, first=first, again=again)


def specialized(plan: Plan, device: str) -> Plan:
    """Return a plan whose kernels for ``"cpu"`` or ``"cuda"`` take no sizes as arguments."""
    for number, segment in enumerate(plan.segments):
        for nest, _ in enumerate(segment.params(device)):
            plan = plan.with_params(number, target=device, nest=nest, specialized=True)
    return plan


def _wait(device: str) -> None:
    if device != "cpu":
        import torch

        torch.cuda.synchronize()


def summary(device: str, *, constant: bool) -> Table:
    """Return medians and largest values for all definitions, in milliseconds, and the sizes of the latter."""
    rows = []
    for definition in DEFINITIONS:
        cost = measured(definition, device, constant=constant)
        most, size = max(zip(cost.beyond, NEW, strict=True))
        times = (statistics.median(cost.again), statistics.median(cost.first), most)
        rows.append((cost.name, *(f"{1e3 * seconds:.1f}" for seconds in times), str(size)))
    numeric = ("known size, ms", "new size, ms", "most beyond, ms", "at size")
    return Table(columns=("definition", *numeric), rows=tuple(rows), numeric=frozenset(numeric))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--specialized", action="store_true", help="all sizes are constants in the kernels")
    given = parser.parse_args()
    print(table_text(summary(given.device, constant=given.specialized)))


if __name__ == "__main__":
    main()

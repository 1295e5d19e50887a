"""Errors of reductions and scans by length, with torch's beside them: ``python -m tests.accuracy [--kinds NAME,...]``.

An error is the largest difference from the result in Double, divided by the largest result. A cell has the largest
error over three axes and over several kinds of data, then torch's in parentheses. Tensors are of Float; both libraries
run on the CPU. ``--beside`` names functions in the same kernel, which LLVM does not vectorize; their results are
multiplied by 0. ``--each`` prints a row for each axis and kind of data.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition

LENGTHS = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
ELEMENTS = 2_000_000  # of a tensor of several rows
AXES = ("inner", "middle", "outer")
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "alone": lambda ops, x: x,
    "erfinv": lambda ops, x: ops.add(x, ops.mul(ops.erfinv(ops.mul(ops.sin(x), 0.5)), 0.0)),
    "lgamma": lambda ops, x: ops.add(x, ops.mul(ops.lgamma(ops.add(ops.abs(x), 1.0)), 0.0)),
    "random": lambda ops, x: ops.add(x, ops.mul(ops.rand_like(x), 0.0)),
}
DATA: dict[str, Callable[[np.random.Generator, tuple[int, ...], int], Any]] = {
    "uniform": lambda rng, shape, length: rng.random(shape),
    "normal": lambda rng, shape, length: rng.standard_normal(shape),
    "mean 1e6": lambda rng, shape, length: rng.standard_normal(shape) + 1e6,
    "near 1": lambda rng, shape, length: np.exp(rng.standard_normal(shape) / np.sqrt(length)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A reduction or scan: how a definition records it, its value in Double, torch's call, and data that suit it."""

    record: Callable[[Any, Any, int], Any]
    exact: Callable[[Any, int], Any]
    torch: Callable[[Any, Any, int], Any]
    data: tuple[str, ...] = ("uniform", "normal", "mean 1e6")


def _logsumexp(x: Any, axis: int) -> Any:
    largest = x.max(axis, keepdims=True)
    return np.log(np.exp(x - largest).sum(axis)) + largest.squeeze(axis)


KINDS = {
    "sum": Kind(
        record=lambda ops, x, d: ops.sum(x, [d]), exact=lambda x, d: x.sum(d), torch=lambda torch, x, d: x.sum(d),
    ),
    "mean": Kind(
        record=lambda ops, x, d: ops.mean(x, [d]), exact=lambda x, d: x.mean(d), torch=lambda torch, x, d: x.mean(d),
    ),
    "var": Kind(
        record=lambda ops, x, d: ops.var(x, [d]), exact=lambda x, d: x.var(d, ddof=1),
        torch=lambda torch, x, d: x.var(d),
    ),
    "welford": Kind(
        record=lambda ops, x, d: ops.welford(x, [d])[1], exact=lambda x, d: x.var(d) * x.shape[d],
        torch=lambda torch, x, d: x.var(d, correction=0) * x.shape[d],
    ),
    "norm": Kind(
        record=lambda ops, x, d: ops.norm(x, 2, [d]),
        exact=lambda x, d: np.sqrt(np.square(x).sum(d)), torch=lambda torch, x, d: torch.linalg.vector_norm(x, dim=d),
    ),
    "logsumexp": Kind(
        record=lambda ops, x, d: ops.logsumexp(x, d), exact=_logsumexp, torch=lambda torch, x, d: x.logsumexp(d),
    ),
    "prod": Kind(
        record=lambda ops, x, d: ops.prod(x, [d]), exact=lambda x, d: x.prod(d), torch=lambda torch, x, d: x.prod(d),
        data=("near 1",),
    ),
    "cumsum": Kind(
        record=lambda ops, x, d: ops.cumsum(x, d), exact=lambda x, d: x.cumsum(d),
        torch=lambda torch, x, d: x.cumsum(d),
    ),
    "cumprod": Kind(
        record=lambda ops, x, d: ops.cumprod(x, d), exact=lambda x, d: x.cumprod(d),
        torch=lambda torch, x, d: x.cumprod(d), data=("near 1",),
    ),
}


def shape_of(length: int, axis: str) -> tuple[tuple[int, ...], int]:
    """Return the shape of an operand and the axis of ``length`` elements."""
    rows = max(1, min(8, ELEMENTS // length))
    return {"inner": ((rows, length), 1), "middle": ((2, length, rows), 1), "outer": ((length, rows), 0)}[axis]


def defined(kind: str, function: str, shape: tuple[int, ...], axis: int) -> FusionDefinition:
    """Return the definition of a reduction or scan along an axis."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=list(shape), dtype=DataType.Float)
        fd.add_output(KINDS[kind].record(fd.ops, FUNCTIONS[function](fd.ops, x), axis))
    return fd


def error(found: Any, exact: Any) -> float:
    """Return the largest difference, relative to the largest exact result."""
    return float(np.max(np.abs(np.asarray(found, np.float64) - exact)) / np.max(np.abs(exact)))


def errors(kind: str, function: str, length: int, axis: str) -> Iterator[tuple[str, float, float]]:
    """Yield fuser_lab's error and torch's for each kind of data."""
    import torch

    shape, dim = shape_of(length, axis)
    plan = fl.segment(defined(kind, function, shape, dim))
    for data in KINDS[kind].data:
        x = DATA[data](np.random.default_rng(length), shape, length).astype(np.float32)
        exact = KINDS[kind].exact(x.astype(np.float64), dim)
        theirs = KINDS[kind].torch(torch, torch.from_numpy(x), dim).numpy()
        yield data, error(plan.run([x])[0], exact), error(theirs, exact)


def main() -> None:
    """Print a table with a row for each kind and function, and a column for each length."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--beside", default="alone,random")
    parser.add_argument("--axes", default=",".join(AXES))
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--each", action="store_true")
    options = parser.parse_args()
    lengths = [int(n) for n in options.lengths.split(",")]
    print(f"| kind | {' | '.join(f'{n:,}' for n in lengths)} |")
    print("|---" * (1 + len(lengths)) + "|")
    for kind in options.kinds.split(","):
        for function in options.beside.split(","):
            rows: dict[str, dict[int, tuple[float, float]]] = {}
            for length in lengths:
                for axis in options.axes.split(","):
                    for data, ours, theirs in errors(kind, function, length, axis):
                        row = rows.setdefault(f", {axis}, {data}" if options.each else "", {})
                        worst = row.get(length, (0.0, 0.0))
                        row[length] = (max(ours, worst[0]), max(theirs, worst[1]))
            for name, row in rows.items():
                label = f"{kind}{'' if function == 'alone' else f' beside {function}'}{name}"
                print(f"| {label} | {' | '.join(f'{a:.1e} ({b:.1e})' for a, b in row.values())} |", flush=True)


if __name__ == "__main__":
    main()

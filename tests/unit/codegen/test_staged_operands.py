"""Masks and weights that are made in stages of broadcasts, each of which has fewer axes than what it is applied to.

A value that is equal along an axis is needed inside the loops over that axis, next to elements that are kept by their
position along it. Small sizes are computed in lock step; real sizes, which have other schedules, are printed, which
verifies them.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab.codegen.pipeline import evaluated_because
from fuser_lab.dtypes import DataType
from fuser_lab.interpreter import evaluate
from tests import agreement

F, B, H, D = DataType.Float, DataType.BFloat16, DataType.Half, DataType.Double
LENGTHS = DataType.Int32
Shape = tuple[int, ...]


class Definition:
    """A definition whose tensors are named by the axes that they have, of one shape."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.fd = fl.FusionDefinition()
        self.fd.__enter__()
        self.ops, self.specs = self.fd.ops, list[Any]()

    def tensor(self, axes: Shape, dtype: DataType = F) -> Any:
        """An input with some of the axes, in the given order in memory; its axes are in ascending order."""
        shape = [self.shape[axis] for axis in axes]
        self.specs.append(fl.spec(shape, dtype))
        made = self.fd.define_tensor(shape=shape, dtype=dtype, contiguity=True)
        order = sorted(axes)
        return made if list(axes) == order else self.ops.permute(made, [axes.index(axis) for axis in order])

    def places(self, axis: int, dtype: DataType = LENGTHS) -> Any:
        """The positions along an axis."""
        return self.ops.iota(self.shape[axis], dtype=dtype)

    def along(self, tensor: Any, has: Shape, axes: Shape) -> Any:
        """A tensor that has some of the axes, broadcast to others."""
        return self.ops.broadcast(tensor, [axis not in has for axis in axes])

    def whole(self, tensor: Any, has: Shape) -> Any:
        """A tensor that has some of the axes, broadcast to all."""
        return self.along(tensor, has, tuple(range(len(self.shape))))

    def plan(self, *outputs: Any) -> fl.Plan:
        """The plan of the definition with some outputs."""
        for output in outputs:
            self.fd.add_output(output)
        self.fd.__exit__(None, None, None)
        return fl.segment(self.fd, self.specs)


def weighted_sum(d: Definition) -> fl.Plan:
    o = d.ops
    weight = o.add(d.along(d.tensor((0,)), (0,), (0, 1)), d.along(d.tensor((1,)), (1,), (0, 1)))
    return d.plan(o.sum(o.mul(d.tensor((0, 1, 2)), d.whole(weight, (0, 1))), [1]))


def sum_up_to_a_length(d: Definition) -> fl.Plan:
    o = d.ops
    mask = o.lt(d.along(d.places(1), (1,), (0, 1)), d.along(d.tensor((0,), LENGTHS), (0,), (0, 1)))
    return d.plan(o.sum(o.where(d.whole(mask, (0, 1)), o.cast(d.tensor((0, 1, 2), B), dtype=F), 0.0), [1]))


def three_stages(d: Definition) -> fl.Plan:
    o = d.ops
    row = o.exp(d.along(o.mul(d.tensor((0,)), 0.25), (0,), (0, 1)))
    weight = o.sub(o.mul(row, d.along(d.tensor((1,), H), (1,), (0, 1))), d.tensor((0, 1)))
    x = d.tensor((0, 1, 2), H)
    scaled = o.mul(o.cast(x, dtype=F), d.whole(weight, (0, 1)))
    return d.plan(o.mean(scaled, [1]), o.max(scaled, [1]))


def several_readers(d: Definition) -> fl.Plan:
    o = d.ops
    weight = o.sub(d.along(d.tensor((0,), D), (0,), (0, 1)), d.along(d.tensor((1,), D), (1,), (0, 1)))
    x, whole = d.tensor((0, 1, 2), D), d.whole(weight, (0, 1))
    return d.plan(o.var(o.mul(x, whole), [1], correction=0), o.sum(o.where(o.gt(whole, 0.0), x, 1.0), [1]))


def softmax_of_biased_columns(d: Definition) -> fl.Plan:
    o = d.ops
    bias = o.sub(d.along(d.tensor((0,)), (0,), (0, 1)), d.tensor((0, 1)))
    return d.plan(o.softmax(o.sub(d.tensor((0, 1, 2)), d.whole(bias, (0, 1))), 1))


def normalized_columns(d: Definition) -> fl.Plan:
    o = d.ops
    bias = o.mul(d.along(d.tensor((0,)), (0,), (0, 1)), d.along(d.tensor((1,)), (1,), (0, 1)))
    x = o.add(o.cast(d.tensor((0, 1, 2), B), dtype=F), d.whole(bias, (0, 1)))
    centred = o.sub(x, d.whole(o.mean(x, [1]), (0, 2)))
    return d.plan(o.cast(o.mul(centred, d.whole(o.rsqrt(o.mean(o.mul(centred, centred), [1])), (0, 2))), dtype=B))


def transposed_input(d: Definition) -> fl.Plan:
    o = d.ops
    weight = o.add(d.along(d.tensor((0,)), (0,), (0, 1)), d.tensor((1, 0)))
    return d.plan(o.mul(o.exp(d.tensor((0, 2, 1))), d.whole(weight, (0, 1))), o.neg(d.tensor((0, 1, 2))))


def columns_of_a_transposed_input(d: Definition) -> fl.Plan:
    o = d.ops
    x, y = d.tensor((2, 0, 1), H), d.tensor((0, 1, 2), H)
    mask = o.ge(d.along(d.places(0), (0,), (0, 1)), d.along(d.tensor((1,), LENGTHS), (1,), (0, 1)))
    z = o.sub(o.cast(y, dtype=F), o.where(d.whole(mask, (0, 1)), o.cast(x, dtype=F), 0.0))
    return d.plan(o.logsumexp(z, [2]), o.cast(o.permute(o.tanh(z), [2, 1, 0]), dtype=B))


def rows_and_columns(d: Definition) -> fl.Plan:
    o = d.ops
    x = o.add(d.tensor((0, 1, 2), D), d.whole(d.tensor((0, 2), D), (0, 2)))
    return d.plan(o.logsumexp(x, [0, 2]), o.sum(x, [1]))


FORMS = (
    weighted_sum, sum_up_to_a_length, three_stages, several_readers, softmax_of_biased_columns, normalized_columns,
    transposed_input, columns_of_a_transposed_input, rows_and_columns,
)
SMALL = {"cuda": ((2, 64, 32), (4, 40, 8)), "cpu": ((3, 20, 8),)}  # a core computes one element at a time
REAL = ((8, 512, 64), (16, 1024, 768), (32, 128, 3136), (64, 197, 768))


def values(plan: fl.Plan) -> list[np.ndarray]:
    """Inputs of a plan: lengths from 0 to 40, and eighths of small numbers."""
    rng = np.random.default_rng(0)
    return [
        rng.integers(0, 40, tv.shape).astype(tv.dtype.numpy) if tv.dtype is LENGTHS
        else (rng.integers(-8, 9, tv.shape) / 8).astype(tv.dtype.numpy)
        for tv in plan.fusion.tensor_inputs
    ]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("target", "shape"), [(t, shape) for t in agreement.TARGETS for shape in SMALL[t]], ids=str)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_values_at_small_sizes(form: Callable[[Definition], fl.Plan], shape: Shape, target: str) -> None:
    plan = form(Definition(shape))
    inputs = values(plan)
    for got, wanted in zip(agreement.lock_step(plan, inputs, target), evaluate(plan.fusion, inputs), strict=True):
        agreement.close(got, wanted, agreement.tolerance_of(plan.fusion), form.__name__)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_kernels_at_real_sizes_keep_the_rules_of_kernel_ir(form: Callable[[Definition], fl.Plan]) -> None:
    for shape in REAL:
        printed(form(Definition(shape)))


def printed(plan: fl.Plan) -> None:
    """Print the kernels of a plan for both targets, which verifies them."""
    for segment in plan.segments:
        if not evaluated_because(segment.fusion, segment.scheduler):
            for target in agreement.TARGETS:
                segment.source(target)


@pytest.mark.parametrize("seed", range(25))
def test_random_stages(seed: int) -> None:
    rng = Random(f"stages {seed}")
    d = Definition(rng.choice((*REAL, (4, 4096, 128), (4096, 256), (30, 65536), (2, 64, 64, 128), (4, 30, 65536))))
    o, rank = d.ops, len(d.shape)

    def operand(axes: Shape) -> Any:
        if len(axes) == 1 and rng.random() < 0.3:
            return d.places(axes[0], rng.choice((F, DataType.Int)))
        return d.tensor(tuple(rng.sample(axes, len(axes))), rng.choice((F, B, H, D, DataType.Bool, LENGTHS)))

    def joined(a: Any, b: Any) -> Any:
        if b.dtype is DataType.Bool:
            return o.where(b, a, 0)
        return rng.choice((o.add, o.mul, o.sub, o.maximum))(a, b)

    def staged() -> tuple[Any, Shape]:
        has: Shape = (rng.randrange(rank),)
        made = operand(has)
        for _ in range(rng.randint(1, 3)):
            axes = tuple(sorted({*has, rng.randrange(rank)}))
            other = tuple(set(axes) - set(has)) or axes
            made = joined(d.along(operand(other), other, axes), d.along(made, has, axes))
            has = axes
        return made, has

    x = o.cast(d.tensor(tuple(rng.sample(range(rank), rank)) if rng.random() < 0.3 else tuple(range(rank)),
                        rng.choice((F, B, H))), dtype=F)
    for _ in range(rng.randint(1, 2)):
        made, has = staged()
        x = joined(x, d.whole(made, has))
    axis = rng.randrange(rank)
    results = {
        "sum": lambda: o.sum(x, [axis]), "max": lambda: o.max(x, [axis]), "var": lambda: o.var(x, [axis], correction=0),
        "softmax": lambda: o.softmax(x, axis), "permuted": lambda: o.permute(o.neg(x), [*range(1, rank), 0]),
    }
    printed(d.plan(*(results[name]() for name in rng.sample(sorted(results), rng.randint(1, 2)))))

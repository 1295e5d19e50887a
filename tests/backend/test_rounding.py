"""Errors of reductions and scans do not grow with their length, their operands, or what else their kernel computes."""

import math
from typing import Any

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.analysis.deviations import squared_deviations
from tests.accuracy import DATA, KINDS, defined, error, shape_of
from tests.agreement import lock_step

NEAR = 1e-6  # of the largest result; half a unit in the last place of Float is 6e-8


def plan_of(record: Any, *shapes: tuple[int, ...]) -> fl.Plan:
    with FusionDefinition() as fd:
        found = record(fd.ops, *(fd.define_tensor(shape=list(s), dtype=DataType.Float) for s in shapes))
        for output in found if isinstance(found, tuple) else (found,):
            fd.add_output(output)
    return fl.segment(fd)


@pytest.mark.parametrize(
    ("kind", "function", "axis", "length", "data"),
    [
        ("sum", "random", "inner", 10_000, "mean 1e6"),  # one running value, without vectors
        ("var", "alone", "inner", 1_000, "mean 1e6"),
        ("var", "alone", "inner", 10_000, "mean 1e6"),  # two segments
        ("welford", "alone", "outer", 10_000, "mean 1e6"),
        ("prod", "alone", "outer", 10_000, "near 1"),
        ("cumsum", "alone", "inner", 100_000, "mean 1e6"),
        ("cumprod", "alone", "middle", 10_000, "near 1"),
    ],
)
def test_cpu_kernels_are_near_the_exact_result(kind: str, function: str, axis: str, length: int, data: str) -> None:
    shape, dim = shape_of(length, axis)
    x = DATA[data](np.random.default_rng(1), shape, length).astype(np.float32)
    (found,) = fl.segment(defined(kind, function, shape, dim)).run([x])
    assert error(found, KINDS[kind].exact(x.astype(np.float64), dim)) <= NEAR


def test_looked_up_elements_are_added_in_blocks() -> None:
    x = (np.random.default_rng(1).standard_normal((2, 4096)) + 1e6).astype(np.float32)
    places = np.random.default_rng(2).integers(0, 4096, 20_000)
    with FusionDefinition() as fd:
        table, chosen = (fd.define_tensor(shape=list(a.shape), dtype=d) for a, d in
                         ((x, DataType.Float), (places, DataType.Int)))
        fd.add_output(fd.ops.sum(fd.ops.index_select(table, chosen, 1), [1]))
    (found,) = fl.segment(fd).run([x, places])
    assert error(found, x.astype(np.float64)[:, places].sum(1)) <= NEAR


@pytest.mark.parametrize(("shape", "dim"), [((1_000_000, 2), 0), ((1, 10_000_000), 1)])
def test_totals_of_many_blocks_are_wide(shape: tuple[int, int], dim: int) -> None:
    x = (np.random.default_rng(1).standard_normal(shape) + 1e6).astype(np.float32)
    mean, _ = plan_of(lambda ops, t: ops.welford(t, [dim])[:2], shape).run([x])
    assert error(mean, x.astype(np.float64).mean(dim)) <= NEAR


def test_gpu_kernels_correct_squares_and_multiply_in_double() -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((4, 2000)) + 1e6).astype(np.float32)
    near_one = np.exp(rng.standard_normal((4, 2000)) / 40).astype(np.float32)
    for record, given, exact in (
        (lambda ops, t: ops.var(t, [1]), x, x.astype(np.float64).var(1, ddof=1)),
        (lambda ops, t: ops.welford(t, [1])[1], x, x.astype(np.float64).var(1) * 2000),
        (lambda ops, t: ops.prod(t, [1]), near_one, near_one.astype(np.float64).prod(1)),
    ):
        plan = plan_of(record, given.shape)
        (found,) = lock_step(plan, [given], "cuda")
        assert error(found, exact) <= NEAR
        assert all(segment.launches() for segment in plan.segments)


def test_gpu_scans_down_columns_add_each_round_once() -> None:
    x = np.full((20_000, 4), 0.1, np.float32)
    plan = plan_of(lambda ops, t: ops.neg(ops.cumsum(t, 0)), x.shape)
    (found,) = lock_step(plan, [x], "cuda")
    assert error(found, -np.cumsum(x.astype(np.float64), 0)) <= 4 * NEAR


@pytest.mark.parametrize("dim", [0, 1])
def test_logarithms_of_running_sums_are_near_and_have_the_reference_s_infinities(dim: int) -> None:
    x = np.random.default_rng(1).normal(0, 20, (40, 200)).astype(np.float32)
    x[3, 5], x[7, 100], x[9, :20], x[20:23, 8] = math.nan, math.inf, -math.inf, (math.inf, -math.inf, math.nan)
    x[30], x[31] = math.inf, -math.inf
    plan = plan_of(lambda ops, t: ops.neg(ops.logcumsumexp(t, dim)), x.shape)
    with np.errstate(invalid="ignore"):
        wanted = -np.logaddexp.accumulate(x.astype(np.float64), axis=dim)
    for (found,) in (plan.run([x]), lock_step(plan, [x], "cuda")):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=20 * NEAR)


def test_products_overflow_only_as_a_whole() -> None:
    x = np.ones((2, 4096), np.float32)
    x[:, :40], x[:, 2000:2040] = 1e-2, 1e2
    found = plan_of(lambda ops, t: (ops.prod(t, [1]), ops.neg(ops.cumprod(t, 1))), x.shape).run([x])
    assert error(found[0], np.ones(2)) <= NEAR
    assert error(found[1][:, -1], -np.ones(2)) <= NEAR


@pytest.mark.parametrize("number", [0.1, 1e6 + 1 / 3, 3e18, 1e30, math.inf])
def test_corrected_variances_are_never_negative_or_less_defined(number: float) -> None:
    same = np.full((3, 777), number, np.float32)
    signs = same * np.where(np.arange(777) % 2, 1, -1).astype(np.float32)
    plan = plan_of(lambda ops, t: ops.welford(t, [1])[1], same.shape)
    (none,), (large,) = plan.run([same]), plan.run([signs])
    assert not (none < 0).any()
    with np.errstate(all="ignore"):
        exact = np.square(signs - signs.mean(1, dtype=np.float64, keepdims=True).astype(np.float32)).sum(1)
    np.testing.assert_allclose(large, exact.astype(np.float32), rtol=1e-5)


def is_from_the_mean(record: Any, *shapes: tuple[int, ...]) -> bool:
    fusion = plan_of(record, *shapes).fusion
    return any(squared_deviations(fusion, expr) is not None for expr in fusion.exprs)


def squares(ops: Any, x: Any, mean: Any, flags: list[bool]) -> Any:
    difference = ops.sub(x, ops.broadcast(mean, flags))
    return ops.sum(ops.mul(difference, difference), [1])


def test_deviations_are_from_the_mean_of_the_same_elements() -> None:
    def rows(ops: Any, x: Any) -> Any:
        return ops.sum(x, [1])

    keep = [False, True]
    assert is_from_the_mean(lambda ops, x: squares(ops, x, ops.truediv(rows(ops, x), 8.0), keep), (8, 8))
    assert is_from_the_mean(lambda ops, x: squares(ops, x, ops.mul(rows(ops, x), 1 / 8), keep), (8, 8))
    for other in (
        lambda ops, x: squares(ops, x, ops.truediv(rows(ops, x), 7.0), keep),
        lambda ops, x: squares(ops, x, ops.truediv(rows(ops, x), 8.0), [True, False]),
        lambda ops, x: squares(ops, x, ops.truediv(ops.sum(x, [0]), 8.0), keep),
        lambda ops, x: squares(ops, x, ops.truediv(rows(ops, ops.mul(x, 2.0)), 8.0), keep),
    ):
        assert not is_from_the_mean(other, (8, 8))

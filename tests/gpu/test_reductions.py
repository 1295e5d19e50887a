"""Reductions on a real GPU: every kernel and dtype against float64, twice with the same bits, poisoned outputs."""

from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build, close, numbers
from backend.reductions import ALL, BACKWARD, COLUMNS, FLOATS, PATTERNS, ROWS, add_norm, backward, softmax, totals
from gpu.kinds import placed, twice
from needs import needs

from fuser_lab.dtypes import DataType
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion
from tests.kernels import prepare

torch = needs("torch")
pytestmark = pytest.mark.gpu


def check(fusion: Fusion, scheduler: S, inputs: list[np.ndarray]) -> None:
    plan = prepare(fusion, [(fusion, scheduler)], "cuda", allow_fallback=False)
    got = twice(plan, placed(inputs, "cuda"))
    for tv, a, b in zip(fusion.outputs, got, evaluate(fusion, inputs, exact=False), strict=True):
        close(a, np.asarray(b).astype(tv.dtype.numpy), tv.dtype)


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
@pytest.mark.parametrize(("record", "shape"), [p[1:] for p in PATTERNS], ids=[p[0] for p in PATTERNS])
def test_every_pattern_in_every_dtype(record: Any, shape: tuple[int, ...], dtype: DataType) -> None:
    check(build(record, [shape], dtype), S.REDUCTION, [numbers(shape, dtype)])


@pytest.mark.parametrize("shape", [*ROWS, (600, 31), (500, 1500), (400, 12_345), (300, 100_000)], ids=str)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16], ids=lambda d: d.name)
def test_rows_of_every_length(shape: tuple[int, int], dtype: DataType) -> None:
    x = numbers(shape, dtype)
    check(build(softmax, [shape], dtype), S.INNER_PERSISTENT, [x])
    check(build(totals(1), [shape], dtype), S.REDUCTION, [x])


@pytest.mark.parametrize("shape", [(3, 1), (130, 6), (3, 700), (2, 9000), (2, 40_000)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_rows_of_two_inputs_and_a_weight(shape: tuple[int, int], dtype: DataType) -> None:
    shapes = [shape, shape, shape[1:]]
    check(build(add_norm, shapes, dtype), S.INNER_PERSISTENT, [numbers(s, dtype, n) for n, s in enumerate(shapes)])


@pytest.mark.parametrize("shape", COLUMNS, ids=str)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16, D.Double], ids=lambda d: d.name)
def test_columns_of_every_length(shape: tuple[int, int], dtype: DataType) -> None:
    record = totals(0) if shape[0] else lambda fd, x: fd.ops.sum(x, [0])
    check(build(record, [shape], dtype), S.REDUCTION, [numbers(shape, dtype)])


@pytest.mark.parametrize("shape", [*BACKWARD, (5000, 2048)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_rows_and_columns_at_once(shape: tuple[int, int], dtype: DataType) -> None:
    shapes = [shape, shape, shape[1:], (shape[0], 1)]
    inputs = [numbers(s, dtype, n) for n, s in enumerate(shapes)]
    check(build(backward, shapes, dtype), S.INNER_OUTER_PERSISTENT, inputs)

"""Positions beyond 2^31 in the PTX: threads and axes are numbered in 32 bits, and products are in 64 bits."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from backend.fusions import D, S, build
from backend.reductions import backward, softmax, totals

from fuser_lab.runtime.cuda_compilers.numba_cuda import is_installed
from fuser_lab.runtime.gpu.ptx import compile_phases
from tests.kernels import generate

pytestmark = [
    pytest.mark.ptx,
    pytest.mark.skipif(not is_installed(), reason="needs numba-cuda: pip install 'fuser_lab[cuda]'"),
]

ROWS, COLUMNS = 1 << 16, (1 << 15) + 8  # 2^31 + 2^19 elements
DENSE, ROW, COLUMN = (COLUMNS, 1), (0, 1), (1, 0)


def turned(fd: Any, x: Any) -> Any:
    y = fd.ops.neg(x)
    return fd.ops.permute(y, [1, 0]), y


CASES = [
    ("elements", lambda fd, x: fd.ops.neg(x), S.POINTWISE, [(ROWS, COLUMNS)]),
    ("turned", turned, S.TRANSPOSE, [(ROWS, COLUMNS)]),
    ("row sums", totals(1), S.REDUCTION, [(ROWS, COLUMNS)]),
    ("column sums", totals(0), S.REDUCTION, [(ROWS, COLUMNS)]),
    ("softmax", softmax, S.INNER_PERSISTENT, [(ROWS, COLUMNS)]),
    ("backward", backward, S.INNER_OUTER_PERSISTENT, [(1 << 19, 8192), (1 << 19, 8192), (8192,), (1 << 19, 1)]),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "strides", [DENSE, *(pytest.param(strides, marks=pytest.mark.matrix) for strides in (ROW, COLUMN))],
    ids=["dense", "one row for all", "one column for all"],
)
@pytest.mark.parametrize(
    ("record", "scheduler", "shapes"), [case[1:] for case in CASES], ids=[case[0] for case in CASES],
)
def test_positions_take_64_bits(
    record: Callable[..., Any], scheduler: S, shapes: Sequence[tuple[int, ...]], strides: tuple[int, int],
) -> None:
    given = {"T0": (shapes[0][1], 1) if strides == DENSE else strides}
    first, *_ = compile_phases(generate(build(record, shapes, D.BFloat16), scheduler, "cuda", strides=given))
    text = first.ptx
    # The position of a row: its number times the distance between rows, which does not fit in 32 bits.
    assert re.search(r"\bm(ul|ad)\.wide\.[su]32|\bmul\.lo\.s64|\bmad\.lo\.s64|\bshl\.b64", text)
    assert not re.search(r"\b(div|rem)\.[su]64", text)
    # No 32-bit product is the address of an element: operands are widened before the multiplication.
    products = set(re.findall(r"\bm(?:ul|ad)\.lo\.s32\s+(%r\d+)", text))
    widened = dict(re.findall(r"cvt\.[su]64\.[su]32\s+(%rd\d+), (%r\d+)", text))
    bases = set(re.findall(r"add\.s64\s+%rd\d+, %rd\d+, (%rd\d+)", text))
    assert not {widened[base] for base in bases if base in widened} & products


@pytest.mark.parametrize("rows", [1 << 12, 1 << 20], ids=["small", "beyond 32 bits"])
def test_indices_are_divided_with_as_many_bits_as_they_have(rows: int) -> None:
    """Each element of an access computes its position in a row of 5025 elements, which is longer than an access."""
    def record(fd: Any, x: Any) -> Any:
        positions = fd.ops.iota(5025, 0, 1, dtype=D.Int)
        return fd.ops.eq(fd.ops.broadcast(positions, [True, False]), fd.ops.broadcast_in_dim(x, [rows, 5025], [0]))

    phase, = compile_phases(generate(build(record, [(rows,)], D.Int), S.POINTWISE, "cuda"))
    assert ("mul.hi.u64" in phase.ptx) == (rows * 5025 >= 1 << 32)
    assert not re.search(r"\b(div|rem)\.[su]64", phase.ptx)

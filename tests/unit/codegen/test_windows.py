"""Overlapping windows of pooling and convolution, with and without padding."""

from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build, numbers
from unit.codegen.test_gpu_reductions import check
from unit.codegen.test_kernels_in_lock_step import run

from fuser_lab.codegen.index_map import index_var
from fuser_lab.codegen.kernel_ir import Kernel, Load, Role, VectorLoad, terms_of, walk
from fuser_lab.codegen.windows import any_of, conjunction
from fuser_lab.errors import CodegenError
from fuser_lab.ir.term import Term, apply

c, v = index_var("c"), index_var("v")
RANGES = {"c": (0, 6)}


def pooling(size: int, step: int, padding: int) -> Any:
    """Return a function that records the maximum over square windows."""

    def record(fd: Any, x: Any) -> Any:
        padded, best = fd.ops.pad(x, [padding] * 4, float("-inf")) if padding else x, None
        last = [n + 2 * padding - size + 1 for n in x.shape()[1:]]
        for i in range(size):
            for j in range(size):
                starts, ends = [0, i, j], [x.shape()[0], i + last[0], j + last[1]]
                one = fd.ops.slice(padded, starts, ends, [1, step, step])
                best = one if best is None else fd.ops.maximum(best, one)
        return best

    return record


def loads(kernel: Kernel) -> tuple[int, int]:
    """Return the numbers of accesses to inputs by vectors and by single elements in the code."""
    statements = [s for phase in kernel.phases for s in walk(phase.body)]
    vectors = sum(s.count // s.width for s in statements if isinstance(s, VectorLoad))
    terms = (t for s in statements for root in terms_of(s) for t in root.walk())
    return vectors, sum(isinstance(t, Load) and t.buffer.role is Role.INPUT for t in terms)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", [D.BFloat16, D.Float], ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(3, 8, 32), (2, 9, 16), (2, 7, 13), (1, 6, 10), (2, 112, 112)], ids=str)
@pytest.mark.parametrize(
    ("size", "step", "padding"), [(3, 2, 1), (2, 2, 0), (3, 1, 1), (3, 3, 0), (5, 2, 2), (2, 3, 1)],
)
def test_windows_of_a_pooling(size: int, step: int, padding: int, shape: tuple[int, ...], dtype: D) -> None:
    check(build(pooling(size, step, padding), [shape], dtype), S.RESIZE, [numbers(shape, dtype)])


def test_overlapping_windows_are_loaded_once() -> None:
    shape = (4, 64, 64)
    kernel = check(build(pooling(3, 2, 1), [shape], D.BFloat16), S.RESIZE, [numbers(shape, D.BFloat16)])
    # Three rows of 16 elements in two vectors, and the element before them; single loads would be 9 * 8.
    assert loads(kernel) == (6, 0)


@pytest.mark.parametrize(("padding", "vectors"), [((3, 1), 2), ((1, 3), 2), ((2, 1), 0)])
def test_a_shifted_row_is_loaded_with_vectors(padding: tuple[int, int], vectors: int) -> None:
    def record(fd: Any, x: Any) -> Any:
        return fd.ops.mul(fd.ops.pad(x, padding), 2.0)

    shape = (5, 60)  # four elements of a row that begins elsewhere are in two vectors of the input
    kernel = check(build(record, [shape], D.Float), S.POINTWISE, [numbers(shape, D.Float)])
    found = loads(kernel)
    assert found[0] == vectors
    assert (found[1] == 0) == bool(vectors)  # rows of 63 results are not aligned


@pytest.mark.parametrize(("start", "step", "places"), [(1, 3, 7), (20, -2, 9), (0, 1, 24), (5, 8, 3)])
def test_counted_positions_are_not_data(start: int, step: int, places: int) -> None:
    def record(fd: Any, x: Any) -> Any:
        return fd.ops.neg(fd.ops.index_select(x, fd.ops.iota(places, start, step), 1))

    x = numbers((6, 24), D.Float)
    kernel = check(build(record, [x.shape], D.Float), S.POINTWISE, [x])
    names = {s.name for phase in kernel.phases for s in walk(phase.body) if hasattr(s, "name")}
    assert not [name for name in names if name.endswith("_at")]


@pytest.mark.parametrize("remainder", ["fmod", "remainder", "mod"])
@pytest.mark.parametrize("shift", [0, 5, 23])
def test_positions_of_a_roll_are_not_data(remainder: str, shift: int) -> None:
    def record(fd: Any, x: Any) -> Any:
        places = fd.ops.add(fd.ops.iota(24, 0, 1), shift)
        return fd.ops.neg(fd.ops.index_select(x, getattr(fd.ops, remainder)(places, 24), 1))

    x = numbers((6, 24), D.Float)
    kernel = check(build(record, [x.shape], D.Float), S.POINTWISE, [x])
    names = {s.name for phase in kernel.phases for s in walk(phase.body) if hasattr(s, "name")}
    assert not [name for name in names if name.endswith("_at")]
    _, (got,) = run(build(record, [x.shape], D.Float), S.POINTWISE, "cuda", [x])
    np.testing.assert_array_equal(got, -np.roll(x, -shift, 1))


def test_positions_of_a_reflecting_pad_are_not_data() -> None:
    def record(fd: Any, x: Any) -> Any:
        ops = fd.ops
        away = ops.sub(23, ops.abs(ops.sub(23, ops.abs(ops.iota(28, -2, 1)))))
        places = ops.maximum(ops.where(ops.lt(away, 0), ops.add(away, 24), away), 0)
        return ops.neg(ops.index_select(x, places, 1))

    x = numbers((6, 24), D.Float)
    kernel, (got,) = run(build(record, [x.shape], D.Float), S.POINTWISE, "cuda", [x])
    names = {s.name for phase in kernel.phases for s in walk(phase.body) if hasattr(s, "name")}
    assert not [name for name in names if name.endswith("_at")]
    np.testing.assert_array_equal(got, -np.pad(x, ((0, 0), (2, 2)), mode="reflect"))


def test_windows_of_windows_that_need_too_many_positions_are_no_kernel() -> None:
    def record(fd: Any, x: Any) -> Any:
        for _ in range(14):
            wide = fd.ops.pad(x, [1, 1])
            parts = [fd.ops.slice(wide, [0, first], [4, first + 64]) for first in range(3)]
            x = fd.ops.exp(fd.ops.where(fd.ops.lt(x, 0.5), fd.ops.add(parts[0], parts[1]), parts[2]))
        return x

    with pytest.raises(CodegenError, match="so many positions"):
        run(build(record, [(4, 64)], D.Float), S.RESIZE, "cuda", [numbers((4, 64), D.Float)])


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_short_reductions_along_several_axes_are_one_nest(target: str) -> None:
    def record(fd: Any, a: Any, b: Any) -> Any:
        apart = fd.ops.sub(fd.ops.broadcast(a, [False, True, False]), fd.ops.broadcast(b, [True, False, False]))
        area = fd.ops.prod(fd.ops.slice(apart, [0, 0, 2], [5, 7, 4]), [2])
        return fd.ops.div(fd.ops.sum(fd.ops.abs(apart), [2]), fd.ops.add(fd.ops.abs(area), 1.0))

    a, b = numbers((5, 4), D.Float), numbers((7, 4), D.Float)
    kernel, (got,) = run(build(record, [a.shape, b.shape], D.Float), S.REDUCTION, target, [a, b])
    assert len(kernel.phases) == 1
    apart = a[:, None] - b
    want = np.abs(apart).sum(2) / (np.abs(apart[..., 2:].prod(2)) + 1)
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize(("start", "step"), [(-4, 2), (20, 3)])
def test_counted_positions_out_of_range_read_0(start: int, step: int) -> None:
    def record(fd: Any, x: Any) -> Any:
        return fd.ops.neg(fd.ops.index_select(x, fd.ops.iota(5, start, step), 1))

    x = numbers((6, 24), D.Float)
    _, (got,) = run(build(record, [x.shape], D.Float), S.POINTWISE, "cuda", [x])
    at = start + step * np.arange(5)
    inside = (at >= 0) & (at < 24)
    np.testing.assert_array_equal(got, np.where(inside, -x[:, np.where(inside, at, 0)], 0.0))


def _any(*conditions: Term) -> Term | None:
    found = [conjunction([condition], RANGES) for condition in conditions]
    return any_of([one for one in found if one is not None])


def test_the_union_of_conditions_is_the_weakest() -> None:
    assert _any(c * 16 + 2 >= 1, c >= 3) is None  # the first always holds
    assert _any(c * 2 >= 3, c >= 4, c > 2) == (c >= 2)
    assert _any(c < 2, c * 3 <= 10, apply("and", c < 6, v >= 1)) == apply("or", c <= 3, apply("and", c <= 5, v >= 1))
    assert conjunction([c >= 7], RANGES) is None
    assert conjunction([apply("and", c >= 2, v < 0), v >= 0], {"v": (0, 9)}) is None


def test_conditions_that_exclude_each_other_never_hold() -> None:
    assert conjunction([c >= 2, c < 2], RANGES) is None
    assert conjunction([c * 2 - v >= 3, v > c * 2], RANGES) is None
    assert conjunction([c >= 2, c <= 2], RANGES) is not None

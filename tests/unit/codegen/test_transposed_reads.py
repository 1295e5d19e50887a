"""Inputs that one kernel reads both directly and transposed: transposed reads go through tiles."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build, close, numbers

from fuser_lab.codegen.decompose import with_transposed_reads
from fuser_lab.codegen.kernel_ir import Alloc, If, Loop, Role, Transpose, walk
from fuser_lab.interpreter import evaluate
from tests.kernels import generate
from tests.unit.codegen.test_kernels_in_lock_step import run


def symmetric(fd: Any, x: Any) -> Any:
    return fd.ops.add(x, fd.ops.permute(x, [1, 0]))


def pairs(fd: Any, x: Any) -> Any:
    y = fd.ops.cast(x, D.Float)
    return fd.ops.cast(fd.ops.mul(fd.ops.sub(y, fd.ops.permute(y, [0, 2, 1])), 0.5), x.dtype)


def computed_before(fd: Any, x: Any, y: Any) -> Any:
    z = fd.ops.exp(fd.ops.mul(x, y))
    return fd.ops.add(fd.ops.permute(z, [1, 0]), x), fd.ops.neg(z)


def turned_twice(fd: Any, x: Any) -> Any:
    o = fd.ops
    return o.add(o.add(x, o.permute(x, [2, 1, 0])), o.permute(o.neg(o.permute(x, [0, 2, 1])), [1, 0, 2]))


def sliced(fd: Any, x: Any) -> Any:
    o = fd.ops
    inner = o.lt(o.iota(x.size(2), 0, 1, D.Int), 40)
    y = o.mul(o.cast(x, D.Float), o.cast(o.broadcast(inner, [True, True, False]), D.Float))
    y = o.slice(y, [0, 1, 1], [2, 44, 44])
    return o.cast(o.add(y, o.permute(y, [0, 2, 1])), x.dtype)


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], D]] = {
    "square": (symmetric, ((128, 128),), D.Float), "odd": (symmetric, ((83, 83),), D.Float),
    "batches": (pairs, ((3, 72, 72),), D.BFloat16), "odd batches": (pairs, ((2, 45, 45),), D.BFloat16),
    "computed": (computed_before, ((70, 70), (70, 70)), D.Float), "cube": (turned_twice, ((24, 24, 24),), D.Float),
    "odd bytes": (symmetric, ((131, 131),), D.Char), "odd halves": (pairs, ((1, 131, 131),), D.BFloat16),
    "sliced": (sliced, ((2, 45, 45),), D.BFloat16), "small": (symmetric, ((3, 3),), D.Float),
    "one": (symmetric, ((1, 1),), D.Float),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", CASES)
def test_the_kernel_computes_what_the_reference_does(name: str, target: str) -> None:
    record, shapes, dtype = CASES[name]
    fusion = build(record, shapes, dtype)
    inputs = [numbers(shape, dtype, number) for number, shape in enumerate(shapes)]
    _, got = run(fusion, S.POINTWISE, target, inputs)
    for tv, a, b in zip(fusion.outputs, got, evaluate(fusion, inputs, exact=False), strict=True):
        close(a, np.asarray(b).astype(tv.dtype.numpy), tv.dtype)


@pytest.mark.parametrize("name", ["square", "odd", "batches", "odd batches", "computed", "sliced"])
def test_one_of_the_readings_goes_through_shared_memory(name: str) -> None:
    record, shapes, dtype = CASES[name]
    kernel = generate(build(record, shapes, dtype), S.POINTWISE, "cuda")
    shared = [s for s in walk(kernel.kernel_ir.phases[0].body) if isinstance(s, Alloc) and s.buffer.role is Role.SHARED]
    assert shared
    body = kernel.kernel_ir.phases[0].body
    versions = [s for s in walk(body) if isinstance(s, If) and any(isinstance(inner, Loop) for inner in walk(s.then))]
    for version in versions[::2]:
        assert not any(isinstance(s, If) for s in walk(version.then)), "tiles that end within both axes"
    is_even = name in {"square", "odd batches", "sliced"}
    assert len(versions) == (0 if is_even else 4), "no tile ends within an axis, or all do"
    assert [buffer.name for buffer in kernel.kernel_ir.inputs] == [f"T{n}" for n in range(len(shapes))]


@pytest.mark.parametrize("name", ["square", "odd", "batches", "odd batches", "computed", "sliced"])
def test_one_of_the_readings_goes_through_tiles_in_the_cache(name: str) -> None:
    record, shapes, dtype = CASES[name]
    kernel = generate(build(record, shapes, dtype), S.POINTWISE, "cpu").kernel_ir
    assert any(isinstance(s, Transpose) for s in walk(kernel.phases[0].body))
    assert [buffer.name for buffer in kernel.inputs] == [f"T{n}" for n in range(len(shapes))]


def test_a_kernel_on_the_cpu_without_tiles_reads_one_tensor() -> None:
    source = generate(build(*CASES["small"][:2], D.Float), S.POINTWISE, "cpu").source
    assert "transposed" not in source


def test_strided_inputs_are_read_twice_where_they_lie() -> None:
    fusion = build(symmetric, ((40, 40),), D.Float)
    wide = numbers((40, 55), D.Float, 0)
    _, (got,) = run(fusion, S.POINTWISE, "cuda", [wide[:, 7:47]])
    np.testing.assert_array_equal(got, wide[:, 7:47] + wide[:, 7:47].T)


def test_what_is_read_in_one_way_only_stays() -> None:
    for record, shapes in (
        (lambda fd, x: fd.ops.neg(fd.ops.permute(x, [1, 0])), ((40, 40),)),
        (lambda fd, x, y: fd.ops.add(y, fd.ops.permute(fd.ops.exp(x), [1, 0])), ((40, 30), (30, 40))),
        (lambda fd, x: fd.ops.add(x, fd.ops.permute(x, [1, 0, 2])), ((8, 8, 40),)),
    ):
        fusion = build(record, shapes, D.Float)
        same, twins = with_transposed_reads(fusion)
        assert same is fusion
        assert not twins

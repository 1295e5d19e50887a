"""Segments that kernels are tested with: the computation, its scheduler and its shapes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.concretize import concretize
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Fusion, TensorView

S, D = SchedulerType, DataType
TOLERANCE = {
    D.Double: 1e-11, D.Float: 2e-5, D.Half: 4e-3, D.BFloat16: 2e-2, D.ComplexFloat: 1e-5, D.ComplexDouble: 1e-12,
}

# One dtype for each way in which kernels compute: wide floats, converted floats, integers, complex numbers.
OF_EACH_KIND = frozenset({D.Float, D.BFloat16, D.Int, D.ComplexFloat})


def one_of_each_kind(dtypes: Iterable[DataType]) -> list[Any]:
    """The dtypes as parameters; those that are computed like another one are left to ``make test-all``."""
    return [d if d in OF_EACH_KIND else pytest.param(d, marks=pytest.mark.matrix) for d in dtypes]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A segment; ``record(fd, *tensors)`` returns its outputs."""

    name: str
    record: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    scheduler: SchedulerType = S.POINTWISE
    dtype: DataType = D.Float

    def fusion(self) -> Fusion:
        return build(self.record, self.shapes, self.dtype)

    def inputs(self, seed: int = 0) -> list[np.ndarray]:
        return [numbers(shape, self.dtype, seed + n) for n, shape in enumerate(self.shapes)]


def build(
    record: Callable[..., Any], shapes: Sequence[tuple[int, ...]], dtype: DataType | Sequence[DataType],
) -> Fusion:
    """A concretized fusion of tensors with static shapes; the outputs are what ``record`` returns."""
    dtypes = [dtype] * len(shapes) if isinstance(dtype, DataType) else dtype
    with FusionBuilder() as fd:
        pairs = zip(shapes, dtypes, strict=True)
        tensors = [fd.define_tensor(list(shape), contiguity=True, dtype=kind) for shape, kind in pairs]
        result = record(fd, *tensors)
        for output in result if isinstance(result, tuple | list) else (result,):
            fd.add_output(output)
    return concretize(
        fd.fusion, {v.name: s for v, s in zip(fd.fusion.tensor_inputs, shapes, strict=True)}, {},
    )


def numbers(shape: tuple[int, ...], dtype: DataType, seed: int = 0) -> np.ndarray:
    """Numbers of a dtype: floats around 0, integers in -9..9 (unsigned 0..9), booleans."""
    rng = np.random.default_rng(seed)
    if dtype is D.Bool:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype is D.UInt64:
        return rng.integers(0, 10, shape).astype(np.uint64)
    if dtype.is_integral:
        return rng.integers(-9, 10, shape).astype(dtype.numpy)
    if dtype.is_complex:
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype.numpy)
    return rng.standard_normal(shape).astype(dtype.numpy)


def close(got: np.ndarray, wanted: np.ndarray, dtype: DataType, factor: float = 1.0) -> None:
    """Assert equality up to rounding, NaN and infinities in the same places, same shape and dtype."""
    assert got.shape == wanted.shape
    assert got.dtype == wanted.dtype
    if dtype not in TOLERANCE:
        np.testing.assert_array_equal(got, wanted)
        return
    wide = np.complex128 if dtype.is_complex else np.float64
    a, b = got.astype(wide), wanted.astype(wide)
    finite = np.abs(b[np.isfinite(b)])
    tolerance = TOLERANCE[dtype] * factor
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(float(finite.max(initial=0.0)), 1e-3))


def outputs_of(fusion: Fusion) -> tuple[TensorView, ...]:
    return tuple(tv for tv in fusion.outputs if tv not in fusion.hidden)


def _softmax(fd: Any, x: Any) -> Any:
    f = fd.ops.cast(x, D.Float)
    e = fd.ops.exp(fd.ops.sub(f, fd.ops.max(f, [1], keepdim=True)))
    return fd.ops.cast(fd.ops.div(e, fd.ops.sum(e, [1], keepdim=True)), D.BFloat16)


def _layer_norm(fd: Any, x: Any, weight: Any, bias: Any) -> Any:
    f = fd.ops.cast(x, D.Float)
    variance, mean = fd.ops.var_mean(f, [1], correction=0, keepdim=True)
    scale = fd.ops.rsqrt(fd.ops.add(variance, 1e-5))
    normal = fd.ops.mul(fd.ops.sub(f, mean), scale)
    return fd.ops.cast(fd.ops.add(fd.ops.mul(normal, weight), bias), D.BFloat16), mean, scale


def _rms_norm(fd: Any, x: Any) -> Any:
    square = fd.ops.sum(fd.ops.mul(x, x), [1], keepdim=True)
    return fd.ops.mul(x, fd.ops.rsqrt(fd.ops.add(fd.ops.div(square, float(x.size(1))), 1e-5)))


def _softmax_of_columns(fd: Any, x: Any) -> Any:
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [0], keepdim=True)))
    total = fd.ops.sum(e, [0])
    return fd.ops.div(e, fd.ops.broadcast(total, [True, False])), fd.ops.neg(total)


def _batch_norm(fd: Any, x: Any, weight: Any) -> Any:
    variance, mean = fd.ops.var_mean(x, [0, 1, 2], correction=0, keepdim=True)
    scale = fd.ops.rsqrt(fd.ops.add(variance, 1e-5))
    return fd.ops.mul(fd.ops.mul(fd.ops.sub(x, mean), scale), weight), mean, scale


def _layer_norm_backward(fd: Any, grad: Any, x: Any, mean: Any, scale: Any, weight: Any) -> Any:
    normal = fd.ops.mul(fd.ops.sub(x, mean), scale)
    weighted = fd.ops.mul(grad, weight)
    width = float(x.size(1))
    first = fd.ops.div(fd.ops.sum(weighted, [1], keepdim=True), width)
    second = fd.ops.div(fd.ops.sum(fd.ops.mul(weighted, normal), [1], keepdim=True), width)
    inner = fd.ops.sub(fd.ops.sub(weighted, first), fd.ops.mul(normal, second))
    return fd.ops.mul(inner, scale), fd.ops.sum(fd.ops.mul(grad, normal), [0]), fd.ops.sum(grad, [0])


def _columns_of_softmax(fd: Any, x: Any) -> Any:
    e = fd.ops.exp(x)
    return fd.ops.neg(fd.ops.sum(fd.ops.div(e, fd.ops.sum(e, [1], keepdim=True)), [0]))


def _rope(fd: Any, x: Any, cos: Any, sin: Any) -> Any:
    f = fd.ops.cast(x, D.Float)
    b, h, s, d = (int(n) for n in x.shape())
    first = fd.ops.slice(f, [0, 0, 0, 0], [b, h, s, d // 2])
    second = fd.ops.slice(f, [0, 0, 0, d // 2], [b, h, s, d])
    turned = fd.ops.cat([fd.ops.neg(second), first], 3)
    return fd.ops.cast(fd.ops.add(fd.ops.mul(f, cos), fd.ops.mul(turned, sin)), D.BFloat16)


def _several(fd: Any, x: Any) -> Any:
    y = fd.ops.mul(x, 2.0)
    return fd.ops.permute(y, [1, 0]), y, fd.ops.reshape(y, [-1]), fd.ops.exp(fd.ops.slice(y, [0, 0], [3, 4]))


def _reduce_and_keep(fd: Any, x: Any) -> Any:
    y = fd.ops.mul(x, 2.0)
    total, largest = fd.ops.sum(y, [1]), fd.ops.max(y, [1])
    return y, total, fd.ops.add(total, largest)


def _sum(*dims: int) -> Callable[..., Any]:
    return lambda fd, x: fd.ops.sum(fd.ops.mul(x, x), list(dims))


def _max(*dims: int) -> Callable[..., Any]:
    return lambda fd, x: fd.ops.max(fd.ops.neg(x), list(dims))


def _scans(dim: int) -> Callable[..., Any]:
    """Dependent and independent scans, with pointwise ops around them."""

    def record(fd: Any, x: Any) -> Any:
        sums = fd.ops.cumsum(fd.ops.abs(x), dim)
        most = fd.ops.cummax(fd.ops.mul(x, sums), dim)
        return fd.ops.mul(sums, 0.5), fd.ops.add(most, fd.ops.cummin(x, dim))

    return record


CASES = (
    Case(
        name="pointwise", record=lambda fd, x, y: fd.ops.add(fd.ops.mul(x, 2.0), fd.ops.relu(y)),
        shapes=((7, 33), (7, 33)),
    ),
    Case(name="broadcast rows", record=lambda fd, x, y: fd.ops.add(x, y), shapes=((9, 17), (9, 1))),
    Case(name="broadcast columns", record=lambda fd, x, y: fd.ops.mul(x, fd.ops.exp(y)), shapes=((9, 17), (17,))),
    Case(name="zero-dim", record=lambda fd, x: fd.ops.exp(x), shapes=((),)),
    Case(name="empty", record=lambda fd, x: fd.ops.exp(x), shapes=((0, 5),)),
    Case(name="one element", record=lambda fd, x: fd.ops.exp(x), shapes=((1, 1),)),
    Case(name="transpose", record=lambda fd, x, y: fd.ops.add(fd.ops.permute(x, [1, 0]), y), shapes=((6, 10), (10, 6))),
    Case(name="stride order", record=lambda fd, x: fd.ops.stride_order(fd.ops.exp(x), [0, 1]), shapes=((6, 10),)),
    Case(name="several outputs", record=_several, shapes=((8, 12),)),
    Case(
        name="reshape", shapes=((32, 16),),
        record=lambda fd, x: fd.ops.reshape(fd.ops.permute(fd.ops.reshape(x, [4, 8, 16]), [1, 0, 2]), [8, 64]),
    ),
    Case(
        name="expand", shapes=((5, 1),),
        record=lambda fd, x: fd.ops.add(fd.ops.expand(x, [5, 4]), fd.ops.full([5, 4], 1.0, D.Float)),
    ),
    Case(name="iota", record=lambda fd, x: fd.ops.add(x, fd.ops.cast(fd.ops.iota(11), D.Float)), shapes=((3, 11),)),
    Case(name="pad", record=lambda fd, x: fd.ops.pad(x, [2, 3, 1, 0], 1.5), shapes=((5, 7),), scheduler=S.RESIZE),
    Case(name="crop", record=lambda fd, x: fd.ops.pad(x, [-2, 3]), shapes=((5, 7),), scheduler=S.RESIZE),
    Case(
        name="rope", record=_rope, shapes=((1, 4, 5, 8), (1, 1, 5, 8), (1, 1, 5, 8)), scheduler=S.RESIZE,
        dtype=D.BFloat16,
    ),
    Case(
        name="cat", shapes=((4, 3), (4, 5), (4, 1)), scheduler=S.RESIZE,
        record=lambda fd, *xs: fd.ops.cat([fd.ops.exp(x) for x in xs], 1),
    ),
    Case(name="inner sum", record=_sum(1), shapes=((40, 100),), scheduler=S.REDUCTION),
    Case(name="inner max", record=_max(1), shapes=((5, 77),), scheduler=S.REDUCTION),
    Case(name="outer sum", record=_sum(0), shapes=((300, 30),), scheduler=S.REDUCTION),
    Case(name="short outer sum", record=_sum(1), shapes=((6, 4, 25),), scheduler=S.REDUCTION),
    Case(name="mixed sum", record=_sum(0, 2), shapes=((16, 6, 25),), scheduler=S.REDUCTION),
    Case(name="middle max", record=_max(1), shapes=((3, 40, 7),), scheduler=S.REDUCTION),
    Case(name="full sum", record=_sum(0, 1), shapes=((40, 100),), scheduler=S.REDUCTION),
    Case(name="sum of nothing", record=_sum(0), shapes=((0, 5),), scheduler=S.REDUCTION),
    Case(name="no sums", record=_sum(1), shapes=((0, 5),), scheduler=S.REDUCTION),
    Case(name="sum over size one", record=_sum(1), shapes=((5, 1),), scheduler=S.REDUCTION),
    Case(
        name="grouped heads", shapes=((1, 32, 8, 4),), scheduler=S.REDUCTION,
        record=lambda fd, x: fd.ops.sum(fd.ops.reshape(x, [1, 8, 4, 8, 4]), [2]),
    ),
    Case(name="reduction beside its operand", record=_reduce_and_keep, shapes=((8, 12),), scheduler=S.REDUCTION),
    Case(name="softmax", record=_softmax, shapes=((5, 77),), scheduler=S.INNER_PERSISTENT, dtype=D.BFloat16),
    Case(
        name="softmax of long rows", record=_softmax, shapes=((3, 1500),), scheduler=S.INNER_PERSISTENT,
        dtype=D.BFloat16,
    ),
    Case(
        name="layer norm", record=_layer_norm, shapes=((6, 50), (50,), (50,)), scheduler=S.INNER_PERSISTENT,
        dtype=D.BFloat16,
    ),
    Case(name="rms norm of one row", record=_rms_norm, shapes=((1, 64),), scheduler=S.INNER_PERSISTENT),
    Case(
        name="tiles transposed", record=lambda fd, x, y: fd.ops.add(fd.ops.permute(x, [1, 0]), y),
        shapes=((70, 90), (90, 70)), scheduler=S.TRANSPOSE,
    ),
    Case(name="softmax of columns", record=_softmax_of_columns, shapes=((300, 40),), scheduler=S.OUTER_PERSISTENT),
    Case(name="softmax of short columns", record=_softmax_of_columns, shapes=((5, 40),), scheduler=S.OUTER_PERSISTENT),
    Case(
        name="batch norm, channels last", record=_batch_norm, shapes=((4, 9, 5, 24), (24,)),
        scheduler=S.OUTER_PERSISTENT,
    ),
    Case(
        name="norm of the middle axis", shapes=((6, 20, 11),), scheduler=S.OUTER_PERSISTENT,
        record=lambda fd, x: fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True)),
    ),
    Case(
        name="layer norm backward", record=_layer_norm_backward, shapes=((40, 60), (40, 60), (40, 1), (40, 1), (60,)),
        scheduler=S.INNER_OUTER_PERSISTENT,
    ),
    Case(
        name="column sums of a softmax", record=_columns_of_softmax, shapes=((40, 60),),
        scheduler=S.INNER_OUTER_PERSISTENT,
    ),
    Case(name="scans of rows", record=_scans(1), shapes=((7, 60),), scheduler=S.GREEDY),
    Case(name="scans of long rows", record=_scans(1), shapes=((2, 9001),), scheduler=S.GREEDY),
    Case(name="scans of columns", record=_scans(0), shapes=((70, 33),), scheduler=S.GREEDY),
    Case(name="scans of the middle axis", record=_scans(1), shapes=((3, 300, 8),), scheduler=S.GREEDY),
)

"""Every scheduler that has kernels, in every dtype, on awkward shapes and layouts: cases for all targets."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from backend.fusions import D, S, build, numbers

from fuser_lab.ir import Fusion

SIZED = (D.BFloat16, D.Float, D.Bool, D.ComplexDouble)  # dtypes of 2, 4, 1 and 16 bytes
DTYPES = (
    D.Double, D.Float, D.Half, D.BFloat16, D.Int, D.Int32, D.Short, D.Byte, D.UInt64, D.Bool, D.ComplexFloat,
    D.ComplexDouble,
)


def _total(fd: Any, x: Any, *dims: int) -> Any:
    return fd.ops.cast(fd.ops.sum(x, list(dims), keepdim=True), x.dtype)


def _sums(*dims: int) -> Callable[..., Any]:
    def record(fd: Any, x: Any) -> Any:
        whole = 0 not in [int(n) for n in x.shape()] and not x.dtype.is_complex
        names = ("sum", "max", "min") if whole else ("sum",)
        return [getattr(fd.ops, name)(x, list(dims)) for name in names]

    return record


def _rows_and_columns(fd: Any, x: Any) -> Any:
    """Rows that need their own sum, and column sums of the results."""
    y = _kept(1)(fd, x)
    return y, fd.ops.sum(y, [0])


def _kept(*dims: int) -> Callable[..., Any]:
    return lambda fd, x: fd.ops.cast(fd.ops.add(x, _total(fd, x, *dims)), x.dtype)


def _resized(fd: Any, x: Any) -> Any:
    return fd.ops.cat([fd.ops.pad(x, [1, 2]), fd.ops.cast(fd.ops.add(x, x), x.dtype)], 1)


# Computations on one matrix, by the scheduler that accepts them.
RECORDS: dict[str, tuple[Callable[..., Any], S]] = {
    "pointwise": (lambda fd, x: fd.ops.cast(fd.ops.add(x, x), x.dtype), S.POINTWISE),
    "transpose": (lambda fd, x: (fd.ops.permute(fd.ops.add(x, x), [1, 0]), fd.ops.logical_not(x)), S.TRANSPOSE),
    "resize": (_resized, S.RESIZE),
    "row sums": (_sums(1), S.REDUCTION),
    "column sums": (_sums(0), S.REDUCTION),
    "sum of all": (_sums(0, 1), S.REDUCTION),
    "rows kept": (_kept(1), S.INNER_PERSISTENT),
    "columns kept": (_kept(0), S.OUTER_PERSISTENT),
    "rows and columns": (_rows_and_columns, S.INNER_OUTER_PERSISTENT),
}


@dataclass(frozen=True, kw_only=True)
class Form:
    """The layout of a matrix: ``view`` makes it from a vector of enough elements, of NumPy or torch."""

    name: str
    shape: tuple[int, int]
    size: int
    view: Callable[[Any], Any]


def _dense(*shape: int) -> Form:
    size = shape[0] * shape[1]
    return Form(
        name=f"{shape[0]} x {shape[1]}", shape=(shape[0], shape[1]), size=size, view=lambda x: x[:size].reshape(*shape),
    )


def _laid(name: str, view: Callable[[Any], Any], shape: tuple[int, int] = (12, 40)) -> Form:
    return Form(name=name, shape=shape, size=shape[0] * (2 * shape[1] + 3), view=view)


def _wide(row: Any, shape: tuple[int, int]) -> Any:
    return np.broadcast_to(row, shape) if isinstance(row, np.ndarray) else row.expand(shape)


SHAPES = (
    *(_dense(*shape) for shape in ((7, 13), (1, 1), (1, 37), (37, 1), (0, 5), (5, 0))),
)
LAYOUTS = (
    _laid("at an odd address", lambda x: x[1 : 1 + 12 * 40].reshape(12, 40)),
    _laid("with gaps", lambda x: x[: 12 * 80].reshape(12, 80)[:, ::2]),
    _laid("in rows of odd length", lambda x: x[: 12 * 43].reshape(12, 43)[:, 1:41]),
    _laid("one row for all", lambda x: _wide(x[:40].reshape(1, 40), (12, 40))),
    _laid("one column for all", lambda x: _wide(x[:12].reshape(12, 1), (12, 40))),
    _laid("the other way round", lambda x: x[: 12 * 40].reshape(40, 12).T),
)
LARGE = tuple(_dense(*shape) for shape in ((131, 257), (2, 5001), (1, 200_000), (70_001, 3)))


def fusion_of(name: str, form: Form, dtype: D) -> tuple[Fusion, S]:
    """Return a fusion of the matrix with its scheduler."""
    record, scheduler = RECORDS[name]
    return build(record, [form.shape], dtype), scheduler


def elements(form: Form, dtype: D) -> np.ndarray:
    """Return the elements of a form, and one more so that an empty matrix has an address."""
    found = numbers((form.size + 1,), dtype)
    # Few, small integers: sums of many of them are exact in any dtype that represents them.
    return np.asarray(np.sign(found) if dtype.is_float and form.size > 10_000 else found).astype(dtype.numpy)


def forms(dtype: D, *, large: bool) -> Iterator[Form]:
    """Yield shapes in every dtype, layouts in one dtype of each size, and on request large shapes in these."""
    yield from SHAPES
    if dtype in SIZED:
        yield from (*LAYOUTS, *(LARGE if large else ()))

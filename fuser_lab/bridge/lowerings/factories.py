"""ATen's factories: constants and ranges."""

import math
from typing import Any

from fuser_lab.bridge.lowerings.registry import Call, Emitter, lowering
from fuser_lab.dtypes import DataType


def _fill(to: Emitter, value: Any) -> Any:
    shape = to.call.result.shape
    if to.dtype is DataType.Bool:
        value = bool(value)
    elif to.dtype.is_float:
        value = float(value)
    else:
        value = int(value)
    return to.full(shape, value, to.dtype)


def _known_number(call: Call) -> str | None:
    value = call.argument(1, "fill_value")
    if not isinstance(value, bool | int | float):
        return "the value is not a number"
    if not call.result.is_float and isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not an integer"
    return None


@lowering("aten.full.default", "aten.full_like.default", "aten.new_full.default", refuse=_known_number, computes=False)
def _full(to: Emitter, like: Any, fill_value: Any, **_: Any) -> Any:
    return _fill(to, fill_value)


@lowering("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default", computes=False)
def _zeros(to: Emitter, *_: Any, **__: Any) -> Any:
    return _fill(to, 0)


@lowering("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default", computes=False)
def _ones(to: Emitter, *_: Any, **__: Any) -> Any:
    return _fill(to, 1)


@lowering(
    "aten.empty.memory_format", "aten.empty_strided.default", "aten.empty_permuted.default", "aten.empty_like.default",
    "aten.new_empty.default", "aten.new_empty_strided.default", computes=False,
)  # fmt: skip
def _empty(to: Emitter, *_: Any, **__: Any) -> Any:
    # Any values are valid.
    return _fill(to, 0)


@lowering("aten.scalar_tensor.default", computes=False)
def _scalar_tensor(to: Emitter, value: Any, **_: Any) -> Any:
    return _fill(to, value)


def _exact_range(call: Call) -> str | None:
    numbers = call.args[:3]
    if not all(isinstance(value, bool | int | float) for value in numbers):
        return "the range is not known"
    if not all(isinstance(value, int) for value in numbers) and not call.result.is_float:
        return "a range of integers has bounds that are not integers"
    return "ranges of bools are not supported" if call.result.dtype == "bool" else None


@lowering(
    "aten.arange.start_step", "aten.arange.start", "aten.arange.default", refuse=_exact_range, computes=False,
)  # fmt: skip
def _arange(to: Emitter, *bounds: int, **_: Any) -> Any:
    start = bounds[0] if len(bounds) > 1 else 0
    step = bounds[2] if len(bounds) > 2 else 1
    if to.dtype.is_float:
        # In float64 and rounded once, as in torch on the CPU.
        return to.cast(to.ops.iota(to.call.result.size, float(start), float(step), DataType.Double), to.dtype)
    return to.cast(to.places(to.call.result.size, start, step), to.dtype)


@lowering("prims.iota.default", computes=False)
def _iota(to: Emitter, length: int, *, start: int = 0, step: int = 1, **_: Any) -> Any:
    return to.cast(to.places(length, start, step), to.dtype)

"""Matrix products; no kernel is generated for them, the array library of the inputs evaluates them."""

import numpy as np

from fuser_lab.errors import DefinitionError
from fuser_lab.ir import IterDomain, IterType, OpKind, TensorDomain, TensorView, Val
from fuser_lab.ops.registry import Array, Attrs, AxisFactory, OpDef, Operand, Recorder, Result, register, same_extent


def _pair(op: str, inputs: tuple[Val, ...]) -> tuple[TensorView, TensorView]:
    a, b = inputs[:2]
    if not isinstance(a, TensorView) or not isinstance(b, TensorView):
        msg = f"{op}: both operands must be tensors."
        raise DefinitionError(msg)
    if a.dtype is not b.dtype:
        msg = f"{op}: operands have dtypes {a.dtype!r} and {b.dtype!r}; they must be equal."
        raise DefinitionError(msg)
    return a, b


def _contract(op: str, a: IterDomain, b: IterDomain, axes: AxisFactory) -> IterDomain:
    if not same_extent(a.visible_extent, b.visible_extent):
        msg = f"{op}: contracted sizes {a.visible_extent} and {b.visible_extent} differ."
        raise DefinitionError(msg)
    return axes.fresh(a.visible_extent, IterType.REDUCTION)


def _matmul(rec: Recorder, arg1: Operand, arg2: Operand) -> Val:
    operands = (rec.tensor(arg1, "matmul", "arg1"), rec.tensor(arg2, "matmul", "arg2"))
    return rec.emit(MATMUL, operands)[0]


def _infer_matmul(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    del attrs
    a, b = _pair("matmul", inputs)
    if not a.ndim or not b.ndim:
        msg = f"matmul: operands have {a.ndim} and {b.ndim} axes; each needs at least one."
        raise DefinitionError(msg)
    left, right = a.domain.axes, b.domain.axes
    rows = [axes.copy(left[-2])] if a.ndim > 1 else []
    columns = [axes.copy(right[-1])] if b.ndim > 1 else []
    inner = _contract("matmul", left[-1], right[-2] if b.ndim > 1 else right[-1], axes)
    batch = _batch(left[:-2], right[:-2], axes)
    return (Result(a.dtype, TensorDomain(logical=(*batch, *rows, *columns, inner))),)


def _batch(
    left: tuple[IterDomain, ...], right: tuple[IterDomain, ...], axes: AxisFactory,
) -> list[IterDomain]:
    rank = max(len(left), len(right))
    result = []
    for position in range(-rank, 0):
        here = [side[position] for side in (left, right) if len(side) >= -position]
        wide = [axis for axis in here if not axis.is_broadcast] or here
        for axis in wide:
            if not same_extent(axis.visible_extent, wide[0].visible_extent):
                msg = f"matmul: batch sizes {wide[0].visible_extent} and {axis.visible_extent} differ."
                raise DefinitionError(msg)
        result.append(axes.copy(wide[0]))
    return result


def _reference_matmul(a: Array, b: Array) -> Array:
    return np.asarray(np.matmul(a, b))


MATMUL = register(
    OpDef(
        name="matmul",
        kind=OpKind.MATMUL,
        frontend=_matmul,
        infer=_infer_matmul,
        reference=_reference_matmul,
        library=lambda torch, a, b: torch.matmul(a, b),
        doc="Matrix product with torch.matmul's shapes; dtypes are equal and kept.",
    ),
)


def _linear(rec: Recorder, arg1: Operand, arg2: Operand, bias: Operand = None) -> Val:
    operands = [rec.tensor(arg1, "linear", "arg1"), rec.tensor(arg2, "linear", "arg2")]
    if bias is not None:
        operands.append(rec.tensor(bias, "linear", "bias"))
    return rec.emit(LINEAR, operands)[0]


def _infer_linear(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    del attrs
    a, weight = _pair("linear", inputs)
    if not a.ndim or weight.ndim != 2:
        msg = f"linear: operands have {a.ndim} and {weight.ndim} axes; the weight is (out, in), the input at least 1-D."
        raise DefinitionError(msg)
    inner = _contract("linear", a.domain.axes[-1], weight.domain.axes[1], axes)
    rows = [axes.copy(axis) for axis in a.domain.axes[:-1]]
    return (Result(a.dtype, TensorDomain(logical=(*rows, axes.copy(weight.domain.axes[0]), inner))),)


def _reference_linear(a: Array, weight: Array, bias: Array | None = None) -> Array:
    product = np.matmul(a, weight.T)
    return np.asarray(product if bias is None else product + bias)


LINEAR = register(
    OpDef(
        name="linear",
        kind=OpKind.MATMUL,
        frontend=_linear,
        infer=_infer_linear,
        reference=_reference_linear,
        library=lambda torch, *operands: torch.nn.functional.linear(*operands),
        doc="arg1 @ arg2.T + bias.",
    ),
)

"""Values of Half and BFloat16 that a kernel keeps in Float, without rounding them after each op.

They are the values between the inputs and the outputs of a segment, which are in memory in their dtype. A value that a
reduction and a reader of its result are both computed from is kept for the second pass over a row, so it stays as small
as it is recorded.
"""

from dataclasses import replace
from functools import reduce
from operator import or_

from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, Fusion, OpKind, TensorView, Val
from fuser_lab.ops import OPS

_ROUNDED = frozenset({DataType.Half, DataType.BFloat16})
_OF_VALUES = frozenset(  # kinds whose results do not depend on how their operands are in memory
    {
        OpKind.POINTWISE, OpKind.COPY, OpKind.BROADCAST, OpKind.SQUEEZE, OpKind.EXPAND, OpKind.RESHAPE,
        OpKind.REDUCTION,
    },
)
_OF_DTYPES = frozenset({"nextafter"})  # whose results depend on the spacing of numbers


def with_float_values(fusion: Fusion) -> Fusion:
    """Return a segment's fusion with values in Float, if it is marked so; names are unchanged."""
    if not fusion.keeps_float:
        return fusion
    again = _read_again(fusion)
    wide: dict[Val, TensorView] = {}
    for expr in fusion.exprs:
        for tensor in expr.tensor_outputs:
            if (
                tensor.dtype in _ROUNDED and tensor not in fusion.outputs and tensor not in again
                and all(map(_computes_with_values, (expr, *fusion.users.get(tensor, ()))))
            ):
                wide[tensor] = replace(tensor, dtype=DataType.Float)
    return replace(fusion, exprs=tuple(_rewritten(expr, wide) for expr in fusion.exprs)) if wide else fusion


def _computes_with_values(expr: Expr) -> bool:
    is_known = expr.kind is not OpKind.POINTWISE or OPS[expr.op.name].scalar is not None
    return expr.kind in _OF_VALUES and is_known and expr.op.name not in _OF_DTYPES


def _rewritten(expr: Expr, wide: dict[Val, TensorView]) -> Expr:
    outputs = tuple(wide.get(value, value) for value in expr.outputs)
    attrs = expr.attrs
    if expr.op.name == "cast" and outputs != expr.outputs:
        attrs = tuple((name, DataType.Float if name == "dtype" else value) for name, value in attrs)
    inputs = tuple(wide.get(value, value) for value in expr.inputs)
    return Expr(op=expr.op, inputs=inputs, outputs=outputs, attrs=attrs)


def _read_again(fusion: Fusion) -> set[Val]:
    """Return the tensors that lead to a reduction and are also read, perhaps converted, by an op that depends on it."""
    reductions = {expr: 1 << n for n, expr in enumerate(e for e in fusion.exprs if e.kind is OpKind.REDUCTION)}
    behind: dict[Val, int] = {}  # for each value, the reductions that it depends on, as bits
    for expr in fusion.exprs:
        bits = reductions.get(expr, 0) | reduce(or_, (behind.get(value, 0) for value in expr.inputs), 0)
        behind.update(dict.fromkeys(expr.outputs, bits))
    ahead: dict[Val, int] = {}  # the reductions that depend on it
    late: dict[Val, int] = {}  # those that an op that reads it, or a conversion of it, depends on
    for expr in reversed(fusion.exprs):
        bit = reductions.get(expr, 0)
        leads = bit | reduce(or_, (ahead.get(value, 0) for value in expr.outputs), 0)
        reads = behind[expr.outputs[0]] & ~bit
        if expr.op.name == "cast":
            reads |= late.get(expr.out, 0)
        for value in expr.inputs:
            ahead[value] = ahead.get(value, 0) | leads
            late[value] = late.get(value, 0) | reads
    return {value for value, leads in ahead.items() if leads & late[value]}

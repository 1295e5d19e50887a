"""Casts between float types, which say where a boundary is cheap."""

from fuser_lab.ir import Expr


def is_widening(expr: Expr) -> bool:
    """Whether an expression casts to a wider float type."""
    return expr.op.name == "cast" and _float_sizes(expr)[0] < _float_sizes(expr)[1]


def is_narrowing(expr: Expr) -> bool:
    """Whether an expression casts to a narrower float type."""
    return expr.op.name == "cast" and _float_sizes(expr)[0] > _float_sizes(expr)[1]


def _float_sizes(expr: Expr) -> tuple[int, int]:
    source, target = expr.inputs[0].dtype, expr.outputs[0].dtype
    return (source.itemsize, target.itemsize) if source.is_float and target.is_float else (0, 0)

"""Limits of integers that follow from how they are made: positions of an axis, choices among them, constants."""

from fuser_lab.ir import Fusion, OpKind, Scalar, Val


def integer_limits(fusion: Fusion, value: Val) -> tuple[int, int] | None:
    """Return the smallest and the largest possible element of an integer value; None if they are unknown."""
    if isinstance(value, Scalar):
        return (value.value, value.value) if isinstance(value.value, int) else None
    expr = fusion.producers.get(value)
    if expr is None or not value.dtype.is_integral:
        return None
    if expr.op.name == "iota":
        start, step = (operand.value if isinstance(operand, Scalar) else None for operand in expr.inputs)
        if not isinstance(start, int) or not isinstance(step, int):
            return None
        last, (lowest, highest) = start + step * max(expr.out.numel - 1, 0), value.dtype.limits
        low, high = min(start, last), max(start, last)
        return (low, high) if lowest <= low and high <= highest else None  # others wrap around
    moves = expr.kind.is_view and expr.kind is not OpKind.RESIZE
    chosen = expr.inputs[1:] if expr.op.name == "where" else expr.inputs[:1] if moves else ()
    limits = [pair for operand in chosen if (pair := integer_limits(fusion, operand)) is not None]
    if not chosen or len(limits) < len(chosen):
        return None
    return min(low for low, _ in limits), max(high for _, high in limits)

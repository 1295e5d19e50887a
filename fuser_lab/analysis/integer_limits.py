"""Limits of integers that follow from how they are made: positions of an axis, choices among them, constants."""

from fuser_lab.ir import Fusion, OpKind, Scalar, Val

Limits = tuple[int, int] | None


def integer_limits(fusion: Fusion, value: Val) -> Limits:
    """Return the smallest and the largest possible element of an integer value; None if they are unknown."""
    return _limits(fusion, value, {})


def _limits(fusion: Fusion, value: Val, seen: dict[Val, Limits]) -> Limits:
    if value not in seen:
        seen[value] = _limits_of(fusion, value, seen)
    return seen[value]


def _limits_of(fusion: Fusion, value: Val, seen: dict[Val, Limits]) -> Limits:
    if isinstance(value, Scalar):
        return (value.value, value.value) if isinstance(value.value, int) else None
    expr = fusion.producers.get(value)
    if expr is None or not value.dtype.is_integral:
        return None
    if expr.op.name == "iota":
        start, step = (operand.value if isinstance(operand, Scalar) else None for operand in expr.inputs)
        if not isinstance(start, int) or not isinstance(step, int):
            return None
        last = start + step * max(expr.out.numel - 1, 0)
        return min(start, last), max(start, last)
    moves = expr.kind.is_view and expr.kind is not OpKind.RESIZE
    choices = expr.inputs[1:] if expr.op.name == "where" else expr.inputs[:1] if moves else ()
    limits = [_limits(fusion, operand, seen) for operand in choices]
    pairs = [pair for pair in limits if pair is not None]
    if not pairs or len(pairs) < len(limits):
        return None
    return min(low for low, _ in pairs), max(high for _, high in pairs)

"""The meaning of a dump's terms: sizes as ints, operands as values, options as attributes."""

import math
import operator
from collections.abc import Callable, Mapping

from fuser_lab.definition.dump.terms import Applied, Axis, Constant, Listed, Symbol, Term
from fuser_lab.dtypes import DataType, of_python
from fuser_lab.ir import AttrValue, Scalar

_MOST = 1 << 62  # result of a division by 0, larger than any extent


def _divide(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) is (b < 0) else -1) if b else _MOST


_SIZES: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _divide,
    "%": lambda a, b: a % b if b else _MOST, "ceilDiv": lambda a, b: -(-a // b) if b else _MOST,
    "max": max, "min": min, "fmax": max, "fmin": min, "gcd": math.gcd,
}  # fmt: skip


def size_of(term: Term, sizes: Mapping[str, int]) -> int | None:
    """Return a size, or None if it depends on a symbol without a value or is not arithmetic on sizes."""
    match term:
        case Constant(value=int(whole)):
            return int(whole)
        case Constant(value=float(real)) if real.is_integer() and abs(real) < _MOST:
            return int(real)
        case Symbol(name=name):
            return sizes.get(name)
        case Axis():
            return size_of(term.visible, sizes)
        case Applied(name="neg", operands=(only,)):
            size = size_of(only, sizes)
            return None if size is None else -size
        case Applied(name=name, operands=(only,)) if name.startswith("(") or name in {"abs", "nvfuser_index_t"}:
            return size_of(only, sizes)
        case Applied(name=name, operands=(first, second)) if name in _SIZES:
            a, b = size_of(first, sizes), size_of(second, sizes)
            size = None if a is None or b is None else _SIZES[name](a, b)
            return size if size is not None and abs(size) < _MOST else None
    return None


def constant(term: Term, sizes: Mapping[str, int]) -> Scalar | None:
    """Return a constant operand, None if it is not a constant."""
    match term:
        case Constant(value=bool() | int() | float() | complex() as value, dtype=dtype):
            return Scalar(name="", dtype=dtype or of_python(value), value=value)
    size = size_of(term, sizes)
    return None if size is None else Scalar(name="", dtype=DataType.Int, value=size)


def attribute(term: Term, sizes: Mapping[str, int]) -> AttrValue:
    """Return an option of a call as an attribute of an expression.

    Raises
    ------
    ValueError
        If it is not a plain value.
    """
    match term:
        case Constant(value=value):
            return value
        case Listed(entries=entries):
            return tuple(attribute(entry, sizes) for entry in entries)
    size = size_of(term, sizes)
    if size is None:
        raise ValueError
    return size

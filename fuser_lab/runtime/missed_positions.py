"""The error for a position that a kernel of the CPU found outside of its axis.

The kernel only notes that there is one. To name it, the inputs are evaluated again by their array library.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, NoReturn

from fuser_lab.errors import PositionError
from fuser_lab.ir import Fusion, Val
from fuser_lab.runtime.arrays import to_numpy
from fuser_lab.runtime.binding import check_extremes, positions_of
from fuser_lab.runtime.evaluate import detach, evaluation


def missed_position(fusion: Fusion, inputs: Sequence[Any]) -> PositionError:
    """Return the error for the first index outside of its axis, which names the op, the index, its value and the axis.

    The inputs may have other elements by now: the kernel, or another thread, may have written to them.
    """
    arguments = {value.name: detach(array) for value, array in zip(fusion.inputs, inputs, strict=True)}
    values: dict[Val, Any] = {}
    try:
        for expr in evaluation(fusion, arguments, values):
            for value, size, wraps in positions_of(fusion, expr):
                check_extremes(to_numpy(values[value]), expr.op.name, f"the index {value.name}", size, wraps=wraps)
    except PositionError as error:
        return error
    ops = ", ".join(dict.fromkeys(expr.op.name for expr in fusion.exprs if positions_of(fusion, expr)))
    return _unknown(ops)


def refuse_look_up(missed: Sequence[ctypes.c_int64], fusion: Fusion, inputs: Sequence[Any]) -> NoReturn:
    """Raise the error for an index outside of its axis; ``missed`` are the words of the kernels that looked it up."""
    for word in missed:
        word.value = 0
    raise missed_position(fusion, inputs)


def refuse_write(missed: ctypes.c_int64, op: str, indices: Sequence[tuple[str, Any, int, bool]]) -> NoReturn:
    """Raise the error for an index outside of its axis; ``missed`` is the word of the kernel that wrote there.

    Each index has a name, a tensor, the size of its axis, and whether negative positions count from its end.
    """
    missed.value = 0
    for name, places, size, wraps in indices:
        check_extremes(to_numpy(places), op, name, size, wraps=wraps)
    raise _unknown(op)


def _unknown(op: str) -> PositionError:
    return PositionError(f"{op}: an index was out of range while the kernel ran, and is not any more.")

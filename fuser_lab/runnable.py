"""Inputs with which a fusion can run on this machine: as described, smaller where memory is short, or assumed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from fuser_lab.definition.binding import Described, bind, described_as_defined
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.dtypes import DataType
from fuser_lab.errors import FuserLabError
from fuser_lab.ir import Fusion, Number, TensorView
from fuser_lab.report.units import bytes_label

_ASSUMED_SIZES = (256, 64, 16, 8, 4, 2, 1)
# A run holds the results of the reference evaluation beside those of the plan.
_COPIES = 2
# The reference evaluation computes in no less than Float.
_LEAST_ITEMSIZE = 4
# Of the free memory, the notebook and its other work need some too.
_SHARE = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Runnable:
    """Descriptions of the inputs that a run makes, a sentence about them, and whether they fit into memory."""

    inputs: tuple[Described, ...]
    said: str
    fits: bool


def runnable(fusion: Fusion, inputs: Sequence[Described], *, free: int | None, is_fixed: bool = False) -> Runnable:
    """Return the inputs with which a run of a fusion fits into memory.

    They are those given where these fit. Otherwise the largest size that the definition leaves open is halved, as often
    as needed. Without inputs, all open sizes are assumed to be one number.

    Parameters
    ----------
    fusion
        The definition, maybe with symbolic sizes.
    inputs
        Descriptions of its inputs, or none.
    free
        Bytes of memory that are free; None where the system does not say.
    is_fixed
        Whether the sizes must stay as they are.

    Raises
    ------
    InputError
        If the inputs do not fit the definition.
    """
    if not inputs and fusion.inputs:
        found = _assumed(fusion)
        if found is not None:
            return found
    needed = bytes_needed(bind(fusion, inputs).fusion)
    if free is None or needed <= free * _SHARE:
        return Runnable(inputs=tuple(inputs), said="Run makes inputs of the sizes given", fits=True)
    why = f"those given would need {bytes_label(needed)} of memory, of which {bytes_label(free)} are free"
    smaller = None if is_fixed else _smaller(fusion, tuple(inputs), free * _SHARE)
    if smaller is None:
        return Runnable(inputs=tuple(inputs), said=f"These inputs cannot be made: {why}", fits=False)
    changed = ", ".join(
        f"{list(new.shape)} for {list(old.shape)}"
        for old, new in dict.fromkeys(zip(inputs, smaller, strict=True))
        if isinstance(old, TensorSpec) and isinstance(new, TensorSpec) and old != new
    )
    return Runnable(inputs=smaller, said=f"Smaller inputs ({changed}): {why}", fits=True)


def bytes_needed(fusion: Fusion) -> int:
    """Return an estimate of the bytes that a run of a concretized fusion holds at once at most.

    Inputs and outputs stay; any other tensor lives from the expression that computes it to the last one that reads it.
    """
    def size(tensor: TensorView) -> int:
        return prod(tensor.shape) * max(tensor.dtype.itemsize, _LEAST_ITEMSIZE)

    last = {tensor: place for place, expr in enumerate(fusion.exprs) for tensor in expr.tensor_inputs}
    staying = {*fusion.tensor_inputs, *fusion.outputs}
    live = sum(map(size, fusion.tensor_inputs))
    most = live
    for place, expr in enumerate(fusion.exprs):
        live += sum(map(size, expr.tensor_outputs))
        most = max(most, live)
        read = dict.fromkeys(tensor for tensor in expr.tensor_inputs if last[tensor] == place)
        unread = [tensor for tensor in expr.tensor_outputs if tensor not in last]
        live -= sum(size(tensor) for tensor in (*read, *unread) if tensor not in staying)
    return _COPIES * most


def _assumed(fusion: Fusion) -> Runnable | None:
    """Return inputs whose open sizes are the first of some numbers with which the definition is legal."""
    for size in _ASSUMED_SIZES:
        inputs = tuple(
            described_as_defined(value, [e if isinstance(e, int) else size for e in value.extents])
            if isinstance(value, TensorView) else _number(value.dtype)
            for value in fusion.inputs
        )
        try:
            bind(fusion, inputs)
        except FuserLabError:
            continue
        return Runnable(inputs=inputs, said=f"No inputs are given: open sizes are taken to be {size}", fits=True)
    return None


def _number(dtype: DataType) -> Number:
    if dtype is DataType.Bool:
        return True
    return 1 if dtype.is_integral else 1.0


def _smaller(fusion: Fusion, inputs: tuple[Described, ...], room: float) -> tuple[Described, ...] | None:
    """Return inputs that fit into some bytes, with the fewest and largest sizes halved; None if there are none."""
    while True:
        for candidate in _halved(fusion, inputs):
            try:
                needed = bytes_needed(bind(fusion, candidate).fusion)
            except FuserLabError:
                continue
            inputs = candidate
            break
        else:
            return None
        if needed <= room:
            return inputs


def _halved(fusion: Fusion, inputs: tuple[Described, ...]) -> Iterator[tuple[Described, ...]]:
    """Yield inputs with one size halved wherever the definition leaves it open, the largest first; then with all."""
    opened = {
        (place, axis): given.shape[axis]
        for place, (value, given) in enumerate(zip(fusion.inputs, inputs, strict=True))
        if isinstance(value, TensorView) and isinstance(given, TensorSpec)
        for axis, extent in enumerate(value.extents)
        if not isinstance(extent, int) and given.shape[axis] > 1
    }
    sizes = sorted(set(opened.values()), reverse=True)
    for changed in (*({size} for size in sizes), set(sizes)):
        found = tuple(
            _with_sizes(given, [
                size // 2 if opened.get((place, axis)) in changed else size for axis, size in enumerate(given.shape)
            ], changed) if isinstance(given, TensorSpec) else given
            for place, given in enumerate(inputs)
        )
        if None not in found and found != inputs:
            yield found  # type: ignore[misc]


def _with_sizes(given: TensorSpec, shape: list[int], changed: set[int]) -> TensorSpec | None:
    """Return an input with other sizes, in the same order in memory; None if its integers may be places outside."""
    fill = given.fill
    if given.dtype.is_integral and fill is not None:
        # Integers that stay below a size are taken for places along it.
        least = min((size for size in changed), default=0)
        if fill.kind == "integers" and fill.high <= max(changed, default=0):
            fill = replace(fill, high=max(fill.low + 1, min(fill.high, least // 2)))
        elif fill.kind in {"range", "values"} and any(value != 0 for value in fill.values):
            return None
    steps, step = [0] * len(shape), 1
    for axis in sorted(range(len(shape)), key=lambda i: (given.strides[i], -i)):
        if given.strides[axis] or given.shape[axis] <= 1:
            steps[axis] = step
            step *= max(shape[axis], 1)
    return replace(given, shape=tuple(shape), strides=tuple(steps), fill=fill)

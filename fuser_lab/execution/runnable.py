"""Inputs with which a fusion can run on this machine: as described, smaller to fit into memory, or assumed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from fuser_lab.definition.assumed_sizes import assumed_inputs
from fuser_lab.definition.binding import Described, bind
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import FuserLabError
from fuser_lab.ir import Fusion, TensorView
from fuser_lab.report.units import bytes_label

# A run holds the results of the reference as well as those of the plan.
_COPIES = 2
# The reference evaluation computes in Float or wider.
_LEAST_ITEMSIZE = 4
# The rest of the notebook needs part of the free memory.
_SHARE = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Runnable:
    """Descriptions of the inputs that a run creates, a sentence about them, and whether they fit into memory."""

    inputs: tuple[Described, ...]
    said: str
    fits: bool


def runnable(fusion: Fusion, inputs: Sequence[Described], *, free: int | None, is_fixed: bool = False) -> Runnable:
    """Return the inputs with which a run of a fusion fits into memory.

    If the given inputs fit, they are returned. Otherwise the largest size that the definition leaves open is halved as
    often as necessary. Without inputs, open sizes are assumed.

    Parameters
    ----------
    fusion
        The definition, possibly with symbolic sizes.
    inputs
        Descriptions of its inputs, or none.
    free
        Bytes of free memory; None if the system does not say.
    is_fixed
        Whether the sizes must not change.

    Raises
    ------
    InputError
        If the inputs do not fit the definition.
    """
    if not inputs and fusion.inputs:
        assumed = assumed_inputs(fusion)
        if assumed is not None:
            return Runnable(inputs=assumed[0], said=assumed[1], fits=True)
    needed = bytes_needed(bind(fusion, inputs).fusion)
    if free is None or needed <= free * _SHARE:
        return Runnable(inputs=tuple(inputs), said="Run creates inputs of the given sizes", fits=True)
    why = f"the given sizes need {bytes_label(needed)} of memory, but {bytes_label(free)} are free"
    smaller = None if is_fixed else _smaller(fusion, tuple(inputs), free * _SHARE)
    if smaller is None:
        return Runnable(inputs=tuple(inputs), said=f"These inputs cannot be created: {why}", fits=False)
    changed = ", ".join(
        f"{list(new.shape)} for {list(old.shape)}"
        for old, new in dict.fromkeys(zip(inputs, smaller, strict=True))
        if isinstance(old, TensorSpec) and isinstance(new, TensorSpec) and old != new
    )
    return Runnable(inputs=smaller, said=f"Smaller inputs ({changed}): {why}", fits=True)


def bytes_needed(fusion: Fusion) -> int:
    """Return an estimate of the peak memory of a run of a concretized fusion, in bytes.

    Inputs and outputs are always alive; any other tensor is alive from the expression that computes it to its last
    reader.
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


def _smaller(fusion: Fusion, inputs: tuple[Described, ...], room: float) -> tuple[Described, ...] | None:
    """Return inputs that fit into ``room`` bytes, with as few sizes halved as possible, largest first.

    None if there are none.
    """
    while True:
        for candidate in _halves(fusion, inputs):
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


def _halves(fusion: Fusion, inputs: tuple[Described, ...]) -> Iterator[tuple[Described, ...]]:
    """Yield inputs with one open size of the definition halved, the largest first; then with all of them halved."""
    opened = {
        (place, axis): described.shape[axis]
        for place, (value, described) in enumerate(zip(fusion.inputs, inputs, strict=True))
        if isinstance(value, TensorView) and isinstance(described, TensorSpec)
        for axis, extent in enumerate(value.extents)
        if not isinstance(extent, int) and described.shape[axis] > 1
    }
    sizes = sorted(set(opened.values()), reverse=True)
    for changed in (*({size} for size in sizes), set(sizes)):
        halved = tuple(
            _with_sizes(described, [
                size // 2 if opened.get((place, axis)) in changed else size for axis, size in enumerate(described.shape)
            ], changed) if isinstance(described, TensorSpec) else described
            for place, described in enumerate(inputs)
        )
        if None not in halved and halved != inputs:
            yield halved  # type: ignore[misc]


def _with_sizes(described: TensorSpec, shape: list[int], changed: set[int]) -> TensorSpec | None:
    """Return an input with other sizes in the same memory order; None if its integers may be indices out of range."""
    fill = described.fill
    if described.dtype.is_integral and fill is not None:
        # Integers below a size are assumed to be indices along it.
        least = min((size for size in changed), default=0)
        if fill.kind == "integers" and fill.high <= max(changed, default=0):
            fill = replace(fill, high=max(fill.low + 1, min(fill.high, least // 2)))
        elif fill.kind in {"range", "values"} and any(value != 0 for value in fill.values):
            return None
    steps, step = [0] * len(shape), 1
    for axis in sorted(range(len(shape)), key=lambda i: (described.strides[i], -i)):
        if described.strides[axis] or described.shape[axis] <= 1:
            steps[axis] = step
            step *= max(shape[axis], 1)
    return replace(described, shape=tuple(shape), strides=tuple(steps), fill=fill)

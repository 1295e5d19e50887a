"""Checks of the inputs and outputs passed to a prepared plan, and their error messages."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser_lab.codegen.kernel_ir import Layout, dense_strides, layout_of
from fuser_lab.definition.binding import check_scalar, check_tensor
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import ArgumentTypeError, InputError, PositionError
from fuser_lab.ir import Expr, Fusion, Number, OpKind, Scalar, TensorView, Val
from fuser_lab.ops.positions import indexed_operands, out_of_range
from fuser_lab.runtime.arrays import (
    describe,
    is_torch,
    kind_of,
    may_overlap,
    output_kind,
    overlap,
    overlaps_itself,
)
from fuser_lab.targets import CPU, has_own_memory


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor of the plan with the requirements for its arrays, computed once."""

    tensor: TensorView
    name: str
    shape: tuple[int, ...]
    numpy: "np.dtype[np.generic]"
    dense: tuple[int, ...]  # strides in elements
    dense_bytes: tuple[int, ...]
    layout: Layout  # of the dense form
    nbytes: int  # of the dense form

    def normal(self, strides: Sequence[int]) -> tuple[int, ...]:
        """Return strides in elements, with the dense stride for every axis of at most one element."""
        if self.layout.size == 0:
            return self.dense
        return tuple(d if n == 1 else s for n, s, d in zip(self.shape, strides, self.dense, strict=True))


def slot_of(tensor: TensorView) -> Slot:
    """Return the slot of a concretized tensor."""
    dense, size, layout = dense_strides(tensor), tensor.dtype.itemsize, layout_of(tensor)
    return Slot(
        tensor, tensor.name, tensor.shape, tensor.dtype.numpy, dense,
        tuple(s * size for s in dense), layout, layout.size * size,
    )


def checked_array(number: int, slot: Slot, value: Any) -> Any:
    """Return an input array, or raise InputError with the expected and the actual property."""
    if type(value) is np.ndarray and value.dtype == slot.numpy and value.shape == slot.shape:
        return value
    value = np.asarray(value) if isinstance(value, np.generic) else value
    spec = check_tensor(number, slot.tensor, describe(value))
    for axis, (size, planned) in enumerate(zip(spec.shape, slot.shape, strict=True)):
        if size != planned:
            raise InputError(f"{slot.name} has size {size} on axis {axis}; this plan is for size {planned}.")
    return value


def checked_scalar(number: int, scalar: Scalar, value: Any) -> Number:
    """Return a scalar input as a Python number of the scalar's kind, or raise InputError."""
    return check_scalar(number, scalar, describe(value))


def check_out(slot: Slot, array: Any) -> None:
    """Raise InputError unless an array has the shape and dtype of an output."""
    if type(array) is np.ndarray and array.dtype == slot.numpy and array.shape == slot.shape:
        return
    spec, tensor = describe(array), slot.tensor
    if isinstance(spec, TensorSpec) and spec.shape == slot.shape and spec.dtype is tensor.dtype:
        return
    got = f"{spec.dtype.ir_name} {list(spec.shape)}" if isinstance(spec, TensorSpec) else spec
    raise InputError(f"out for {tensor.name} must be {tensor.dtype.ir_name} {list(slot.shape)}, given {got}.")


def check_outs(slots: Sequence[Slot], out: object) -> None:
    """Raise unless ``out`` is a list with one entry per output: None, or an array of its shape and dtype."""
    if not isinstance(out, list | tuple):
        raise ArgumentTypeError(f"out must be a list of arrays, given {type(out).__name__}.")
    if len(out) != len(slots):
        raise InputError(f"the fusion returns {len(slots)} outputs, given {len(out)} arrays to write to.")
    for slot, array in zip(slots, out, strict=True):
        if array is not None:
            check_out(slot, array)


def without_expansion(tensor: TensorView, array: Any) -> Any:
    """Return an array for a tensor without repetitions along expanded axes, which may have the same memory."""
    axes = tensor.domain.axes
    if all(axis.expanded is None for axis in axes):
        return array
    return array[tuple(slice(None) if axis.expanded is None else slice(1) for axis in axes)]


def check_writable(name: str, array: Any) -> None:
    """Raise InputError unless the array given for an input can be written to."""
    if kind_of(array) == "jax":
        msg = f"the fusion writes to its input {name} in place, but the given JAX array cannot be written to."
        raise InputError(msg)
    if not is_torch(array) and hasattr(array, "__array_interface__") and not np.asarray(array).flags.writeable:
        raise InputError(f"the fusion writes to its input {name} in place, but the given array is read-only.")


def check_disjoint(written: Mapping[str, Any]) -> None:
    """Raise InputError if elements of the arrays that a run writes, given by name, share memory."""
    for name, array in written.items():
        if overlaps_itself(array):
            raise InputError(f"{name} has elements that share memory; a run writes to them, so they must be distinct.")
    if len(written) > 1:
        for (first, a), (second, b) in itertools.combinations(written.items(), 2):
            if may_overlap(a, b) and overlap(a, b):
                raise InputError(f"{first} and {second} share memory; a run writes to both, so they must not overlap.")


@dataclass(frozen=True, slots=True)
class Places:
    """An input that holds positions on an axis of ``size`` elements; ``number`` is its place among the inputs.

    If it ``wraps``, negative positions count from the end of the axis.
    """

    number: int
    name: str
    op: str
    size: int
    wraps: bool = False


def places_of(fusion: Fusion) -> tuple[Places, ...]:
    """Return the inputs that some op uses as positions, directly or through views that keep every element."""
    numbers = {value: number for number, value in enumerate(fusion.inputs)}
    return tuple(dict.fromkeys(
        Places(numbers[base], base.name, expr.op.name, size, wraps)
        for expr in fusion.exprs for base, size, wraps in positions_of(fusion, expr) if base in numbers
    ))


def positions_of(fusion: Fusion, expr: Expr) -> list[tuple[Val, int, bool]]:
    """Return the values that an op uses as positions: each with the size of its axis, and whether it wraps.

    These are added to the size of their axis where they are negative, and may be digits of a position.
    """
    indexed = indexed_operands(expr)
    if indexed is None or (isinstance(indexed[0], TensorView) and not indexed[0].numel):
        return []
    value, size = indexed
    digits = _digits(fusion, value)
    if not digits or math.prod(n for _, n in digits) != size:
        return [(_base(fusion, value), size, False)]
    return [(base, extent, True) for base, extent in digits]


def _base(fusion: Fusion, value: Val) -> Val:
    """Return the value that views and casts that keep every element are made of."""
    while value not in fusion.inputs and value in fusion.producers and _keeps_elements(fusion.producers[value]):
        value = fusion.producers[value].inputs[0]
    return value


def _digits(fusion: Fusion, value: Val) -> list[tuple[Val, int]]:
    """Return the digits ``i`` and ``j`` of a position ``wrapped(i) * m + wrapped(j)``, each with its base.

    ``wrapped(i)`` is ``where(i < 0, i + n, i)``, where n is the base. The position may be -1 where a digit is outside.
    """
    base = _base(fusion, value)
    expr = fusion.producers.get(base)
    if expr is not None and expr.op.name in {"add", "mul"}:
        return [digit for operand in expr.tensor_inputs for digit in _digits(fusion, operand)]
    if expr is None or expr.op.name != "where":
        return []
    _, negative, digit = expr.inputs
    if isinstance(digit, Scalar):
        return _digits(fusion, negative)
    moved = fusion.producers.get(negative)
    if moved is None or moved.op.name != "add" or moved.inputs[0] != digit:
        return []
    extent = moved.inputs[1].value if isinstance(moved.inputs[1], Scalar) else None
    return [(_base(fusion, digit), extent)] if isinstance(extent, int) else []


def _keeps_elements(expr: Expr) -> bool:
    if expr.op.name == "cast":
        source, target = expr.inputs[0].dtype, expr.outputs[0].dtype
        return source.is_integral and target.is_integral and source.itemsize <= target.itemsize
    return expr.kind.is_view and expr.kind is not OpKind.RESIZE


def check_places(places: Sequence[Places], arguments: Sequence[Any], imported: Sequence[Any]) -> None:
    """Raise InputError if a position in host memory is outside its axis.

    Positions on a device are not checked, which would block the host: kernels give 0 for those out of range.
    """
    for place in places:
        values = _on_host(imported[place.number])
        values = _on_host(arguments[place.number]) if values is None else values
        if values is not None:
            check_extremes(values, place.op, f"the index {place.name}", place.size, wraps=place.wraps)


def check_extremes(values: Any, op: str, name: str, size: int, *, wraps: bool) -> None:
    """Raise PositionError if one of the positions in an array is outside of its axis."""
    if not values.size:
        return
    for value in (int(values.min()), int(values.max())):
        if not (-size if wraps else 0) <= value < size:
            raise PositionError(out_of_range(op, value, size, name))


def _on_host(value: Any) -> Any:
    """Return positions as a NumPy array without copying, or None if they are elsewhere."""
    if isinstance(value, np.ndarray | int):
        return np.asarray(value)
    return value.numpy() if is_torch(value) and value.is_cpu else None  # integers have no gradient and no lazy negation


def device_of(described: Sequence[TensorSpec | Number]) -> str:
    """Return the device of a run: ``"cpu"``, or the single GPU that holds the tensors.

    Raises
    ------
    InputError
        If tensors are on several GPUs.
    """
    devices = dict.fromkeys(d.device for d in described if isinstance(d, TensorSpec) and has_own_memory(d.device))
    if len(devices) > 1:
        msg = f"the inputs are on {' and '.join(devices)}; a run uses one GPU, so move them to the same one."
        raise InputError(msg)
    return next(iter(devices), CPU.name)


def library_of(inputs: Sequence[Any]) -> tuple[str, Any]:
    """Return the library that outputs are made with, and an input from it."""
    kind = output_kind(inputs)
    of_kind = [v for v in inputs if kind_of(v) == kind]
    # A scalar tensor may stay on the CPU beside GPU tensors: it does not determine the device of results.
    return kind, next((v for v in of_kind if has_own_memory(str(getattr(v, "device", "")))), next(iter(of_kind), None))


def itself(value: Any, kind: str, like: Any) -> Any:
    """Return an input as the array that results may be views of, or None if they are made with another library.

    Views of arrays of libraries other than NumPy and torch are copies.
    """
    if kind == "numpy":
        return np.asarray(value)
    if kind != "torch" or not is_torch(value) or value.device != like.device:
        return None
    return value.detach() if value.requires_grad else value

"""What a caller may pass as inputs and outputs of a prepared plan, and the sentences for what does not fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser_lab.codegen.layout import Layout, dense_strides, layout_of
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.dtypes import DataType, Kind
from fuser_lab.errors import InputError
from fuser_lab.ir import Number, Scalar, TensorView
from fuser_lab.runtime.arrays import describe, kind_of, output_kind


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor of the plan with what is asked of its arrays, computed once."""

    tensor: TensorView
    name: str  # of its memory in an environment
    array: str  # of its array in an environment
    shape: tuple[int, ...]
    numpy: "np.dtype[np.generic]"
    dense: tuple[int, ...]  # strides in elements
    dense_bytes: tuple[int, ...]
    layout: Layout  # of the dense form

    def normal(self, strides: Sequence[int]) -> tuple[int, ...]:
        """Return strides in elements with those of axes that are never walked replaced by the dense ones."""
        if self.layout.size == 0:
            return self.dense
        return tuple(d if n == 1 else s for n, s, d in zip(self.shape, strides, self.dense, strict=True))


def slot_of(tensor: TensorView) -> Slot:
    """Return the slot of a concretized tensor."""
    dense, size = dense_strides(tensor), tensor.dtype.itemsize
    return Slot(
        tensor, tensor.name, f"{tensor.name} array", tensor.shape, tensor.dtype.numpy, dense,
        tuple(s * size for s in dense), layout_of(tensor),
    )


def checked_array(number: int, slot: Slot, value: Any) -> Any:
    """Return an input array, or raise InputError with what was expected and given."""
    if type(value) is np.ndarray and value.dtype == slot.numpy and value.shape == slot.shape:
        return value
    value = np.asarray(value) if isinstance(value, np.generic) else value
    spec, tensor = describe(value), slot.tensor
    if not isinstance(spec, TensorSpec):
        msg = f"expected input {number}, {tensor}, to be an array but got the scalar {spec}."
        raise InputError(msg)
    if spec.dtype is not tensor.dtype and {spec.dtype, tensor.dtype} != {DataType.Int, DataType.Index}:
        msg = (
            f"expected input {number}, {tensor}, to be bound to a tensor of dtype {tensor.dtype.ir_name}, "
            f"but got a tensor of dtype {spec.dtype.ir_name}."
        )
        raise InputError(msg)
    if len(spec.shape) != len(slot.shape):
        msg = (
            f"expected input {number}, {tensor}, to be bound to a tensor of rank {len(slot.shape)}, "
            f"but got a tensor of rank {len(spec.shape)}."
        )
        raise InputError(msg)
    if spec.shape != slot.shape:
        msg = f"input {number}, {slot.name}, has shape {list(spec.shape)}; this plan is for {list(slot.shape)}."
        raise InputError(msg)
    return value


def checked_scalar(number: int, scalar: Scalar, value: Any) -> Number:
    """Return a scalar input as a Python number of the scalar's kind, or raise InputError."""
    if kind_of(value) != "number":
        spec = describe(value)
        rank = len(spec.shape) if isinstance(spec, TensorSpec) else 0
        msg = f"expected input {number}, {scalar.name}, to be a scalar but got a tensor of rank {rank}."
        raise InputError(msg)
    kind, given = scalar.dtype.kind, complex(value)
    if kind is Kind.COMPLEX:
        return given
    if given.imag or (kind is not Kind.FLOAT and not given.real.is_integer()):
        msg = f"scalar value {value} is not compatible with the expected data type: {scalar.dtype.ir_name}."
        raise InputError(msg)
    if kind is Kind.FLOAT:
        return given.real
    return bool(value) if kind is Kind.BOOL else int(value)


def check_out(slot: Slot, given: Any) -> None:
    """Raise InputError unless an array has the shape and dtype of an output."""
    if type(given) is np.ndarray and given.dtype == slot.numpy and given.shape == slot.shape:
        return
    spec, tensor = describe(given), slot.tensor
    if isinstance(spec, TensorSpec) and spec.shape == slot.shape and spec.dtype is tensor.dtype:
        return
    got = f"{spec.dtype.ir_name} {list(spec.shape)}" if isinstance(spec, TensorSpec) else spec
    msg = f"out for {tensor.name} must be {tensor.dtype.ir_name} {list(slot.shape)}, given {got}."
    raise InputError(msg)


def library_of(inputs: Sequence[Any]) -> tuple[str, Any]:
    """Return the library that outputs are made with, and an input from it."""
    kind = output_kind(inputs)
    return kind, next((v for v in inputs if kind_of(v) == kind), None)

"""Tensor inputs as `FusionBuilder.define_tensor` describes them: the two forms of its arguments, and their checks."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fuser_lab.arguments import is_whole
from fuser_lab.definition.axis_numbers import AxisNumbers
from fuser_lab.definition.op_calls import check_arguments
from fuser_lab.definition.strides import describe_strides
from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError, VerificationError
from fuser_lab.ir import IterDomain, IterType, TensorDomain, allocation_of
from fuser_lab.ops.arguments import as_list, element_type, flag, flags, wholes

MOST_AXES = 64  # of an array, in NumPy and in torch


def _axes(entries: object, argument: str) -> list[int]:
    """Return one int per axis of an input, or raise DefinitionError if no array can have so many."""
    check_axes("define_tensor", argument, len(as_list(entries, "define_tensor", argument)))
    return wholes(entries, "define_tensor", argument)


def check_axes(op: str, argument: str, count: int, each: int = 1) -> None:
    """Raise DefinitionError if a list has more entries than ``each`` per axis of the largest array."""
    if count > each * MOST_AXES:
        raise DefinitionError(f"{op}: {argument} has {count} entries; arrays have {MOST_AXES} axes at most.")


def _parameters(form: str) -> inspect.Signature:
    """Return the signature of ``name, name=default, ...``."""
    names = [part.partition("=") for part in form.split(", ")]
    defaults = {"False": False, "()": (), "DataType.Float": DataType.Float}
    return inspect.Signature(
        [
            inspect.Parameter(
                name, inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=defaults[default] if default else inspect.Parameter.empty,
            )
            for name, _, default in names
        ],
    )


_SHAPED = _parameters("shape, contiguity=False, dtype=DataType.Float, is_cpu=False, stride_order=()")
_STRIDED = _parameters("sizes, strides, dtype=DataType.Float, static_sizes=False, is_cpu=False")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLayout:
    """The type and the axes of a tensor input, and whether it stays on the CPU beside GPU tensors."""

    dtype: DataType
    domain: TensorDomain
    is_cpu: bool


def input_layout(args: Sequence[Any], kwargs: dict[str, Any], axes: AxisNumbers) -> InputLayout:
    """Return what the arguments of ``define_tensor`` describe, in either form, with new axes.

    Raises
    ------
    ArgumentTypeError
        If an argument is missing, unknown or of another type.
    DefinitionError
        If no array has such axes.
    """
    strided = not kwargs.keys().isdisjoint(("sizes", "strides", "static_sizes")) or (
        len(args) > 1 and _are_strides(args[1])
    )
    form = _STRIDED if strided else _SHAPED
    bound = check_arguments("define_tensor", form, args, kwargs)
    bound.apply_defaults()
    values = dict(bound.arguments)
    if strided:
        static = flag(values.pop("static_sizes"), "define_tensor", "static_sizes")
        sizes = _axes(values.pop("sizes"), "sizes")
        values["contiguity"], values["stride_order"] = describe_strides(sizes, values.pop("strides"))
        values["shape"] = [n if static or n in {0, 1} else -1 for n in sizes]
    return _layout(axes, **values)


def _layout(
    axes: AxisNumbers, shape: object, contiguity: object, dtype: DataType, is_cpu: object, stride_order: object,
) -> InputLayout:
    shape = _axes(shape, "shape")
    stride_order = wholes(stride_order, "define_tensor", "stride_order")
    is_cpu = flag(is_cpu, "define_tensor", "is_cpu")
    element_type(dtype, "define_tensor")
    if is_cpu and shape:
        raise DefinitionError(f"define_tensor: is_cpu is for 0-d tensors; shape has {len(shape)} axes.")
    if stride_order and sorted(stride_order) != list(range(len(shape))):
        msg = f"define_tensor: stride_order={list(stride_order)} is not a permutation of 0..{len(shape) - 1}."
        raise DefinitionError(msg)
    # Row-major order gives the same definition whether it is explicit or not.
    in_order = not stride_order or list(stride_order) == list(reversed(range(len(shape))))
    allocation = None if in_order else allocation_of(stride_order)
    order = allocation or tuple(range(len(shape)))
    contiguous = _contiguity(shape, contiguity, order)
    # None on an axis of a size other than 1 means that the axis is expanded, with stride 0.
    expanded = {n for n, mark in zip(order, contiguous, strict=True) if mark is None and shape[n] != 1}
    logical = tuple(_input_axis(axes, i, size, expanded=i in expanded) for i, size in enumerate(shape))
    try:
        domain = TensorDomain(logical=logical, allocation=allocation, contiguity=contiguous)
    except VerificationError as error:
        raise DefinitionError(f"define_tensor: {error}") from None
    return InputLayout(dtype=dtype, domain=domain, is_cpu=is_cpu)


def _contiguity(shape: Sequence[int], contiguity: object, order: tuple[int, ...]) -> tuple[bool | None, ...]:
    if isinstance(contiguity, bool):
        return tuple(None if shape[axis] == 1 else contiguity for axis in order)
    entries = flags(contiguity, "define_tensor", "contiguity", none=True)
    if len(entries) != len(shape):
        raise DefinitionError(f"define_tensor: contiguity has {len(entries)} entries for a shape with {len(shape)}.")
    return tuple(entries)


def _input_axis(axes: AxisNumbers, position: int, size: int, *, expanded: bool) -> IterDomain:
    if size < -1:
        raise DefinitionError(
            f"define_tensor: the value {size} at index {position} was neither symbolic(-1), zero_element(0), "
            "broadcast(1), or static(>1)."
        )
    if size == 1:
        return axes.fresh(1, IterType.BROADCAST)
    extent = axes.symbol() if size == -1 else size
    return axes.fresh(1, IterType.BROADCAST, extent) if expanded else axes.fresh(extent)


def _are_strides(value: object) -> bool:
    """Whether the second argument of define_tensor is a list of strides rather than of contiguity flags."""
    return isinstance(value, list | tuple) and any(map(is_whole, value))

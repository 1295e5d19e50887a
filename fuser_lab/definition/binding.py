"""Checks that inputs fit a fusion, with one clear sentence if they do not."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from fuser_lab.arguments import short_text
from fuser_lab.definition.concretize import concretize
from fuser_lab.definition.spec import TensorSpec, spec
from fuser_lab.dtypes import DataType, number_of, of_python
from fuser_lab.errors import ArgumentTypeError, InputError
from fuser_lab.ir import Fusion, Number, Scalar, TensorView, Val

Described = TensorSpec | Number
_EXAMPLE_SIZE = 64  # elements of an axis whose size is not given


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A fusion made concrete for inputs of these shapes, dtypes and strides."""

    fusion: Fusion
    inputs: tuple[Described, ...]


def bind(fusion: Fusion, inputs: Sequence[Described]) -> Binding:
    """Return the fusion concretized for described inputs.

    Parameters
    ----------
    fusion
        A definition, possibly with symbolic sizes.
    inputs
        One description per fusion input, in order: TensorSpec for tensors, a Python number for scalars.

    Raises
    ------
    InputError
        If number, kind, rank, dtype, device or size of an input does not fit.
    """
    check_count(fusion.inputs, inputs)
    shapes: dict[str, tuple[int, ...]] = {}
    scalars: dict[str, Number] = {}
    devices: dict[str, int] = {}
    for position, (value, argument) in enumerate(zip(fusion.inputs, inputs, strict=True)):
        if isinstance(value, TensorView):
            described = check_tensor(position, value, argument)
            shapes[value.name] = described.shape
            if not value.is_cpu:
                devices.setdefault(described.device, position)
        else:
            scalars[value.name] = check_scalar(position, value, argument)
    if len(devices) > 1:
        (first, a), (second, b) = list(devices.items())[:2]
        raise InputError(f"inputs {a} and {b} are on different devices, {first} and {second}; all must be on one.")
    bound = concretize(fusion, shapes, scalars)
    _check_sizes(bound)
    return Binding(fusion=bound, inputs=tuple(inputs))


def _check_sizes(fusion: Fusion) -> None:
    """Raise InputError if a tensor has more elements than can be counted, or does not fit the input it overwrites."""
    for tensor in fusion.tensors.values():
        if prod(tensor.shape) >= 1 << 63:
            count = prod(tensor.shape)
            msg = f"{tensor.name} has the shape {list(tensor.shape)}: {count} elements do not fit in 63 bits."
            raise InputError(msg)
    for output, target in fusion.aliases:
        if output.shape != target.shape:
            raise InputError(
                f"{output.name} has the shape {list(output.shape)} and is written over the input {target.name}, which "
                f"has {list(target.shape)}; an in-place update needs the same shape."
            )


def check_count(expected: Sequence[Val], values: object) -> None:
    """Raise unless inputs are a list with one entry per fusion input."""
    if not isinstance(values, list | tuple):
        raise ArgumentTypeError(f"inputs must be a list of arrays and numbers, given {type(values).__name__}.")
    if len(values) != len(expected):
        names = ", ".join(v.name for v in expected)
        inputs = f"{len(expected)} input{'s' * (len(expected) != 1)}"
        count = str(len(values))
        if values and all(isinstance(v, Number) for v in values) and any(isinstance(v, TensorView) for v in expected):
            count += " numbers; lists are flattened, so a tensor must be given as an array, such as numpy.array(...)"
        raise InputError(f"the fusion takes {inputs} ({names or 'none'}), given {count}.")


def check_tensor(position: int, value: TensorView, argument: Described) -> TensorSpec:
    """Return the description of a tensor input, or raise InputError with what was expected and given."""
    expected = f"Expected input {position}, {value},"
    if not isinstance(argument, TensorSpec):
        example = "array" if value.ndim == 0 else f"array with {value.ndim} {'axis' if value.ndim == 1 else 'axes'}"
        raise InputError(
            f"{expected} to be an at::Tensor but got scalar {short_text(argument)}. Pass an {example}, or an "
            "fl.spec(...)."
        )
    if argument.dtype is not value.dtype and {argument.dtype, value.dtype} != {DataType.Int, DataType.Index}:
        raise InputError(
            f"{expected} to be bound to a tensor of dtype {value.dtype.ir_name}, "
            f"but got a tensor of dtype {argument.dtype.ir_name}."
        )
    if len(argument.shape) != value.ndim:
        raise InputError(
            f"{expected} to be bound to a tensor of rank {value.ndim}, but got a tensor of rank {len(argument.shape)}."
        )
    for axis, size in zip(value.domain.axes, argument.shape, strict=True):
        if axis.is_broadcast and axis.expanded is None and size != 1:
            raise InputError(f"{expected} to have size 1 where {axis} says so, but got shape {list(argument.shape)}.")
    return argument


def check_scalar(position: int, value: Scalar, number: Described) -> Number:
    """Return a scalar input as a Python number of the scalar's kind and precision, or raise InputError."""
    if isinstance(number, TensorSpec):
        raise InputError(
            f"Expected input {position}, {value}, to be a scalar but got {number.dtype.ir_name} tensor "
            f"of rank {len(number.shape)}."
        )
    if of_python(number).kind > value.dtype.kind or (value.dtype is DataType.Bool and not isinstance(number, bool)):
        raise InputError(
            f"Expected input {position}, {value}: Scalar value {_as_cpp(number)} is not compatible with the expected "
            f"data type: {value.dtype.ir_name}."
        )
    if value.dtype.is_integral:
        low, high = value.dtype.limits
        if not low <= int(number.real) <= high:
            raise InputError(
                f"Expected input {position}, {value}: scalar value {short_text(number)} is outside the range of "
                f"{value.dtype.ir_name}, {low} to {high}."
            )
        return int(number.real)
    try:
        if value.dtype.is_reduced_float:
            return float(number_of(float(number.real), value.dtype))
        return complex(number) if value.dtype.is_complex else float(number.real) if value.dtype.is_float else number
    except OverflowError:
        raise InputError(
            f"Expected input {position}, {value}: scalar value {short_text(number)} is outside the range of "
            f"{value.dtype.ir_name}."
        ) from None


def _as_cpp(number: Number) -> str:
    """Return a number as nvFuser's messages show it: complex ones as ``(2,1)``."""
    return f"({number.real:g},{number.imag:g})" if isinstance(number, complex) else str(short_text(number))


def example_line(fusion: Fusion) -> str:
    """Return how inputs can be described, as the end of a sentence, with one size for all symbolic ones."""
    shown = ", ".join(_example(value) for value in fusion.inputs)
    return f"give them, as in this line with your own sizes: inputs = [{shown}]"


def _example(value: Val) -> str:
    if isinstance(value, TensorView):
        extents = (axis.visible_extent for axis in value.domain.axes)
        sizes = tuple(size if isinstance(size, int) else _EXAMPLE_SIZE for size in extents)
        return f"fl.spec({sizes}, {value.dtype!r})"
    if value.dtype is DataType.Bool:
        return "True"
    return "1" if value.dtype.is_integral else "1.0"


def described_as_defined(value: TensorView, shape: Sequence[int]) -> TensorSpec:
    """Return an input of a shape, stored densely in the order that a definition gives its axes."""
    strides, step = [0] * value.ndim, 1
    for axis in reversed(value.domain.allocation_order):
        if value.domain.axes[axis].expanded is None:
            strides[axis] = step
            step *= max(shape[axis], 1)
    return spec(shape, value.dtype, strides)


def default_inputs(fusion: Fusion) -> tuple[Described, ...]:
    """Return descriptions of inputs for a fusion whose sizes are all static.

    Raises
    ------
    InputError
        If a size is symbolic or an input is a scalar: then inputs must be given.
    """
    descriptions: list[Described] = []
    for value in fusion.inputs:
        if isinstance(value, Scalar) or not all(isinstance(e, int) for e in value.extents):
            raise InputError(f"inputs must be given: {value} is not fixed by the definition; {example_line(fusion)}.")
        descriptions.append(described_as_defined(value, value.shape))
    return tuple(descriptions)

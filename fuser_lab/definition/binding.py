"""Do these inputs fit this fusion? One clear sentence if not."""

from collections.abc import Sequence
from dataclasses import dataclass

from fuser_lab.definition.concretize import concretize
from fuser_lab.definition.spec import TensorSpec, spec
from fuser_lab.dtypes import DataType, of_python
from fuser_lab.errors import InputError
from fuser_lab.ir import Fusion, Number, Scalar, TensorView

Described = TensorSpec | Number


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
        A definition, maybe with symbolic sizes.
    inputs
        One description per fusion input, in order: TensorSpec for tensors, a Python number for scalars.

    Raises
    ------
    InputError
        If number, kind, rank, dtype, device or size of an input does not fit.
    """
    if len(inputs) != len(fusion.inputs):
        names = ", ".join(v.name for v in fusion.inputs)
        msg = f"the fusion takes {len(fusion.inputs)} inputs ({names or 'none'}), given {len(inputs)}."
        raise InputError(msg)
    shapes: dict[str, tuple[int, ...]] = {}
    scalars: dict[str, Number] = {}
    devices: dict[str, int] = {}
    for position, (value, given) in enumerate(zip(fusion.inputs, inputs, strict=True)):
        if isinstance(value, TensorView):
            described = _tensor(position, value, given)
            shapes[value.name] = described.shape
            if not value.is_cpu:
                devices.setdefault(described.device, position)
        else:
            scalars[value.name] = _scalar(position, value, given)
    if len(devices) > 1:
        (first, a), (second, b) = list(devices.items())[:2]
        msg = f"inputs {a} and {b} are on different devices, {first} and {second}; all must be on one."
        raise InputError(msg)
    return Binding(fusion=concretize(fusion, shapes, scalars), inputs=tuple(inputs))


def _tensor(position: int, value: TensorView, given: Described) -> TensorSpec:
    expected = f"Expected input {position}, {value},"
    if not isinstance(given, TensorSpec):
        msg = f"{expected} to be a tensor but got scalar {given}."
        raise InputError(msg)
    if given.dtype is not value.dtype:
        msg = (
            f"{expected} to be bound to a tensor of dtype {value.dtype.ir_name}, "
            f"but got a tensor of dtype {given.dtype.ir_name}."
        )
        raise InputError(msg)
    if len(given.shape) != value.ndim:
        msg = (
            f"{expected} to be bound to a tensor of rank {value.ndim}, but got a tensor of rank {len(given.shape)}."
        )
        raise InputError(msg)
    for axis, size in zip(value.domain.axes, given.shape, strict=True):
        if axis.is_broadcast and axis.expanded is None and size != 1:
            msg = f"{expected} to have size 1 where {axis} says so, but got shape {list(given.shape)}."
            raise InputError(msg)
    return given


def _scalar(position: int, value: Scalar, given: Described) -> Number:
    if isinstance(given, TensorSpec):
        msg = (
            f"Expected input {position}, {value}, to be a scalar but got {given.dtype.ir_name} tensor "
            f"of rank {len(given.shape)}."
        )
        raise InputError(msg)
    if of_python(given).kind > value.dtype.kind or (value.dtype is DataType.Bool and not isinstance(given, bool)):
        msg = (
            f"Expected input {position}, {value}: scalar value {given} is not compatible with the expected data "
            f"type: {value.dtype.ir_name}."
        )
        raise InputError(msg)
    return given


def default_inputs(fusion: Fusion) -> tuple[Described, ...]:
    """Return descriptions of inputs for a fusion whose sizes are all static.

    Raises
    ------
    InputError
        If a size is symbolic or an input is a scalar: then inputs must be given.
    """
    found: list[Described] = []
    for value in fusion.inputs:
        if isinstance(value, Scalar) or not all(isinstance(e, int) for e in value.extents):
            msg = f"inputs must be given: {value} is not fixed by the definition (use fl.spec for abstract ones)."
            raise InputError(msg)
        found.append(spec(value.shape, value.dtype))
    return tuple(found)

"""Common parts of composites: checks of their arguments, and recording by name."""

from collections.abc import Callable, Sequence
from typing import Any

from fuser_lab.arguments import is_whole, short_text
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError, DefinitionError
from fuser_lab.ir import Extent, Scalar, TensorView, Val
from fuser_lab.ops.broadcast import broadcast
from fuser_lab.ops.operands import same_declared, tensor_at
from fuser_lab.ops.promotion import convert
from fuser_lab.ops.registry import OPS, Composite, Recorder, Sample, register_composite
from fuser_lab.ops.rules import Operand


def record(rec: Recorder, name: str, *operands: Any, **options: Any) -> TensorView:
    """Return the result of the op called ``name``."""
    return tensor_at([OPS[name].frontend(rec, *operands, **options)])


def composite(
    name: str, frontend: Callable[..., Any], doc: str, samples: Sequence[Sample],
) -> Composite:
    """Register a composite that nvFuser does not have, and return it."""
    return register_composite(
        Composite(
            name=name, frontend=frontend, doc=doc, samples=tuple(samples), is_foreign=True,
        ),
    )


def floating(rec: Recorder, arg: Operand, op: str, argument: str = "arg", *, takes_complex: bool = False) -> TensorView:
    """Return a floating-point tensor operand in its own dtype.

    Raises
    ------
    ArgumentTypeError
        If it is not a tensor.
    DefinitionError
        If its dtype is not a floating-point type; complex types are refused unless ``takes_complex``.
    """
    tensor = rec.tensor(arg, op, argument)
    if tensor.dtype.is_float or (takes_complex and tensor.dtype.is_complex):
        return tensor
    accepted = "a floating point or complex type" if takes_complex else "a real floating point type"
    raise DefinitionError(f"{op}: {argument} must be of {accepted}, given {tensor.dtype!r}.")


def widen(rec: Recorder, tensor: TensorView) -> TensorView:
    """Return a tensor in the dtype that arithmetic runs in: Float for floats of 16 and 8 bits."""
    return cast(rec, tensor, tensor.dtype.compute)


def cast(rec: Recorder, tensor: TensorView, dtype: DataType) -> TensorView:
    """Return a tensor in a dtype; nothing is recorded if it already has that dtype."""
    return tensor_at([convert(rec, tensor, dtype, "cast", "arg")])


def real_number(rec: Recorder, operand: Operand, op: str, argument: str) -> Val:
    """Return a real scalar operand: a Python number, or a scalar of the definition."""
    if isinstance(operand, bool):
        raise ArgumentTypeError(f"{op}: {argument} must be a number or a scalar, given {operand}.")
    value = rec.value(operand, op, argument)
    if isinstance(value, Scalar) and (value.dtype.is_float or value.dtype.is_integral):
        return value
    description = value if isinstance(value, Scalar) else f"the tensor {value.name}"
    raise ArgumentTypeError(f"{op}: {argument} must be a real number or scalar, given {description}.")


def plain_number(number: object, op: str, argument: str, low: float, high: float) -> float:
    """Return a Python number from ``low`` to ``high``, inclusive."""
    if not isinstance(number, float) and not is_whole(number):
        msg = f"{op}: {argument} must be a number from {low:g} to {high:g}, given {short_text(number)}."
        raise ArgumentTypeError(msg)
    if not low <= number <= high:  # type: ignore[operator]  # a number, as was checked
        msg = f"{op}: {argument} is {short_text(number)}; it must be a number from {low:g} to {high:g}."
        raise DefinitionError(msg)
    return float(number)  # type: ignore[arg-type]


def one_of(word: object, accepted: Sequence[str], op: str, argument: str) -> str:
    """Return one of some words."""
    if not isinstance(word, str):
        msg = f"{op}: {argument} must be one of {', '.join(map(repr, accepted))}, given {short_text(word)}."
        raise ArgumentTypeError(msg)
    if word not in accepted:
        msg = f"{op}: {argument} is {short_text(word)}; it must be one of {', '.join(map(repr, accepted))}."
        raise DefinitionError(msg)
    return word


def operand_of_shape(
    rec: Recorder, operand: Operand, shape: Sequence[Extent], op: str, argument: str,
) -> TensorView | None:
    """Return an optional floating-point operand in its compute dtype, or None if none is given.

    Raises
    ------
    DefinitionError
        If its dtype is not real floating point, or its shape is known to differ.
    """
    if operand is None:
        return None
    tensor = floating(rec, operand, op, argument)
    fits = tensor.ndim == len(shape) and all(map(same_declared, tensor.extents, shape))
    if not fits:
        msg = f"{op}: {argument} has shape {shape_text(tensor.extents)}; it must have shape {shape_text(shape)}."
        raise DefinitionError(msg)
    return widen(rec, tensor)


def shape_text(extents: Sequence[Extent]) -> str:
    """Return a shape for a sentence, ``[3, i0]``."""
    return f"[{', '.join(map(str, extents))}]"


def along(rec: Recorder, tensor: TensorView, dim: int, ndim: int) -> TensorView:
    """Return a 1-d tensor with ``ndim`` axes, the others broadcast."""
    return broadcast(rec, tensor, [place != dim for place in range(ndim)])

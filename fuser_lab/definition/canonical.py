"""Canonical records: what a call inside a definition does, independent of the spelling of its arguments.

``sum(t, [-1])`` and ``sum(t, dims=[1], keepdim=False)`` are one record, and so is the printed form. A Python number
that is an operand is a constant with its own record, before that of the call.
"""

from collections.abc import Mapping, Sequence
from inspect import Parameter
from typing import Any, NamedTuple

from fuser_lab.arguments import is_whole
from fuser_lab.definition.handles import Handle
from fuser_lab.definition.record import EMIT, Record, bare, encode, record_of
from fuser_lab.definition.state import Called, arguments_of, number_operands
from fuser_lab.ir import AttrValue, Expr, Scalar, TensorView, stride_order_of
from fuser_lab.ops import COMPOSITES, OPS

# The key that the trie compares: the call's own part, the expressions that it appended, and its results.
Effect = tuple[object, ...]


class Step(NamedTuple):
    """One canonical record: its key, the call with all its arguments, and its results."""

    effect: Effect
    record: Record
    result: Any


def steps_of(call: Called, made: Sequence[Expr], owner: object) -> tuple[Step, ...]:
    """Return the canonical records of an executed call: its constants first, then the call.

    Parameters
    ----------
    call
        The call, with its arguments as given.
    made
        The expressions that it appended.
    owner
        The definition.

    Raises
    ------
    Unrecordable
        If an argument has no written form.
    """
    numbers = number_operands(call, made)
    constants = tuple(_constant(scalar) for _, scalar in numbers)
    named = {name: scalar for name, scalar in numbers if name is not None}
    result = bare(call.result)
    if isinstance(result, tuple) and len(result) == 1:
        # An expression that was appended directly, without a call, always has its values in a tuple.
        result = result[0]
    exprs = tuple(_effect_of(expr) for expr in made)
    match call.name:
        case "define_tensor":
            return (Step(("define_tensor", result), _tensor_record(result), result),)
        case "define_scalar":
            return (_constant(result) if result.value is not None else _scalar_input(result),)
        case "define_vector":
            vector = not is_whole(call.args[0])
            record = Record("define_vector", (encode(result if vector else int(call.args[0]), None),), ())
            return (*constants, Step((call.name, vector, encode(result, None)), record, result))
        case "add_output" | "set_output_stride_order":
            args = tuple(list(value) if isinstance(value, list | tuple | range) else value for value in call.args)
            record = record_of(call.name, args, call.kwargs, owner)
            # The expressions contain a layout that `add_output` requests.
            return (Step((call.name, record.args, exprs), record, result),)
    if call.name == EMIT:
        expr = made[0]
        record = record_of(EMIT, (expr.op.name, list(expr.inputs), *expr.attrs), {}, owner)
    else:
        record = _call_record(call, made, named, owner)
    return (*constants, Step(("", exprs, encode(result, None)), record, result))


def _constant(scalar: Scalar) -> Step:
    value = encode(scalar, None)
    assert isinstance(value, tuple)
    return Step(("", (), value), Record("define_scalar", (value[2],), (("dtype", scalar.dtype),)), scalar)


def _scalar_input(scalar: Scalar) -> Step:
    record = Record("define_scalar", (None,), (("dtype", scalar.dtype),))
    return Step(("define_scalar", scalar.name, scalar.dtype), record, scalar)


def _tensor_record(tensor: TensorView) -> Record:
    domain = tensor.domain
    shape = [axis.visible_extent if isinstance(axis.visible_extent, int) else -1 for axis in domain.logical]
    keywords = {
        "shape": shape, "contiguity": list(domain.contiguity or ()), "dtype": tensor.dtype, "is_cpu": tensor.is_cpu,
        "stride_order": list(stride_order_of(domain.allocation_order)),
    }
    return record_of("define_tensor", (), keywords, None)


def _call_record(call: Called, made: Sequence[Expr], numbers: Mapping[str, Scalar], owner: object) -> Record:
    """Return a call with all arguments in position, including defaults other than None, and axes from the front."""
    entry = OPS.get(call.name) or COMPOSITES[call.name]
    expr = next((expr for expr in reversed(made) if expr.op.name == call.name), None)
    if expr is None or (call.name == "slice" and made[-1] is not expr):
        # An op that is written with others, such as a slice with steps: those with axes have its axes.
        attrs = {name: value for part in made for name, value in part.attrs if name == "dims"}
    else:
        attrs = dict(expr.attrs)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    places = True
    parameters = entry.signature.parameters
    for name, value in arguments_of(call, defaults=True).items():
        kind = parameters[name].kind
        if kind is Parameter.VAR_KEYWORD:
            named.update(value)
            continue
        if kind is Parameter.VAR_POSITIONAL:
            if value:
                # Arguments before them must be positional, too.
                positional, named = [*positional, *named.values(), *value], {}
            continue
        if value is None and parameters[name].default is None and kind is not Parameter.POSITIONAL_ONLY:
            places = False
            continue
        understood = numbers.get(name, _understood(value, attrs.get(name)))
        if kind is Parameter.POSITIONAL_ONLY or (places and _is_operand(understood, first=not positional)):
            positional.append(understood)
        else:
            places = False
            named[name] = understood
    return record_of(call.name, tuple(positional), named, owner)


def _is_operand(value: Any, *, first: bool) -> bool:
    """Whether an argument is positional: leading tensors and scalars, or a list of tensors."""
    if first and isinstance(value, list) and value:
        return isinstance(value[0], Handle) and isinstance(value[0].val, TensorView)
    return isinstance(value, Handle | Scalar)


def _understood(axes: Any, attribute: AttrValue) -> Any:
    """Return an expression's axes for the given axes."""
    if type(attribute) is int and type(axes) is int:
        return attribute
    if isinstance(axes, list | tuple | range):
        if any(isinstance(part, Handle) for part in axes):
            return list(axes)
        if isinstance(attribute, tuple) and len(attribute) == len(axes) and all(type(n) is int for n in attribute):
            return list(attribute)
        return list(axes)
    return axes


def _effect_of(expr: Expr) -> Effect:
    return (
        expr.op.name, tuple(encode(value, None) for value in expr.inputs),
        tuple((name, encode(value, None)) for name, value in expr.attrs), tuple(value.name for value in expr.outputs),
    )

"""FusionState: the values of a definition numbered in the order in which they are defined, as in nvFuser's frontend.

A number identifies a value across definitions: a segment uses numbers to relate its inputs and outputs to the values of
its original definition.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from inspect import Parameter
from typing import Any

from fuser_lab.arguments import is_whole
from fuser_lab.definition.handles import Handle
from fuser_lab.definition.record import EMIT, values_in
from fuser_lab.dtypes import of_python
from fuser_lab.ir import Expr, Extent, Fusion, Scalar, TensorView, Val
from fuser_lab.ops import COMPOSITES, OPS

# An attribute of the expression here, and an operand in nvFuser: the first argument.
_LENGTHS = {"iota": "length"}
# All operands are in one list of tensors.
_LISTED = frozenset({"cat"})
# Numbers that are operands of an expression inside a composite op.
_OPERANDS_INSIDE = {"addcmul": frozenset({"alpha"}), "logical_right_shift": frozenset({"shift"})}


# Calls of the definition itself.
DEFINES = frozenset({"define_tensor", "define_scalar", "define_vector", "add_output", "set_output_stride_order"})


class StateKind(enum.Enum):
    """What a state is."""

    TENSOR = "tensor"
    SCALAR = "scalar"
    VECTOR = "vector"


@dataclass(frozen=True, slots=True)
class Called:
    """An executed call inside a definition: its arguments, the expressions it created and its result."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    first: int  # of its expressions
    last: int  # behind them
    result: Any


@dataclass(frozen=True, slots=True)
class State:
    """One numbered value; a vector has the values of its elements, which are earlier states."""

    fid: int
    kind: StateKind
    values: tuple[Val, ...]

    def __str__(self) -> str:
        """Return the value as IR text."""
        if self.kind is StateKind.VECTOR:
            return "{" + ", ".join(map(str, self.values)) + "}"
        return str(self.values[0])


@dataclass(frozen=True, kw_only=True)
class FusionState:
    """Numbered states of a definition, and which of them are inputs, outputs and extents.

    States are numbered 0, 1, 2, ... in the order of definition: each result of a call, preceded by each number that is
    an operand of the call; a list of scalars follows its elements. Internal values of a call, such as those of ``sum``
    with ``keepdim``, are numbered after all states, since they may also pass between segments.

    The extents of tensor inputs have the numbers -1, -2, ..., inputs in order and their axes in order, without
    reductions, and with visible expanded extents. In `fid_of` an extent's number replaces that of a state: scalars
    cannot pass between segments, so they always come from the original definition.

    Attributes
    ----------
    states
        All states; a state's index is its number.
    inputs, outputs
        Numbers of the fusion's inputs and outputs in order, including outputs that are written over an input.
    extents
        Each extent, symbol or size: the first has the number -1.
    fid_of
        Number of each value by its name, which does not change when sizes become known; constants have neither name nor
        number, since every segment defines its own.
    """

    states: tuple[State, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    extents: tuple[Extent, ...]
    fid_of: Mapping[str, int]

    @cached_property
    def name_of(self) -> Mapping[int, str]:
        """Name of the value of each number in `fid_of`."""
        return {fid: name for name, fid in self.fid_of.items()}

    @property
    def extent_fids(self) -> tuple[int, ...]:
        """Numbers of the extents."""
        return tuple(range(-1, -len(self.extents) - 1, -1))

    def rows(self) -> tuple[tuple[str, str, str, str], ...]:
        """Return (number, kind, value, part) of every number, extents last."""
        parts = dict.fromkeys(self.outputs, "output") | dict.fromkeys(self.inputs, "input")
        rows = [(str(s.fid), s.kind.value, str(s), parts.get(s.fid, "")) for s in self.states]
        inner = sorted((fid, name) for name, fid in self.fid_of.items() if fid >= len(self.states))
        rows += [(str(fid), "inside", name, parts.get(fid, "")) for fid, name in inner]
        rows += [(str(-n), "extent", str(e), "size") for n, e in enumerate(self.extents, 1)]
        return tuple(rows)

    def __str__(self) -> str:
        """Return a table of all numbers."""
        rows = [("fid", "kind", "value", "part"), *self.rows()]
        widths = [max(len(row[n]) for row in rows) for n in range(4)]
        return "\n".join(
            "  ".join(c.rjust(w) if not n else c.ljust(w) for n, (c, w) in enumerate(zip(row, widths, strict=True)))
            .rstrip()
            for row in rows
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        head = "".join(f"<th>{name}</th>" for name in ("fid", "kind", "value", "part"))
        rows = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in self.rows())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def fusion_state(calls: Sequence[Called], fusion: Fusion, exprs: Sequence[Expr]) -> FusionState:
    """Return the state of a definition.

    Parameters
    ----------
    calls
        The calls inside, in order.
    fusion
        The resulting fusion.
    exprs
        All expressions that the calls created, including those that no output needs.
    """
    states: list[State] = []
    fid_of: dict[str, int] = {}

    def add(kind: StateKind, *values: Val) -> None:
        if kind is not StateKind.VECTOR and values[0].name:
            fid_of.setdefault(values[0].name, len(states))
        states.append(State(len(states), kind, values))

    results = {tv.name for tv in fusion.outputs}
    for call in calls:
        made = exprs[call.first : call.last]
        for _, scalar in number_operands(call, made):
            add(StateKind.SCALAR, scalar)
        if call.name == "define_vector" and not is_whole(call.args[0]):
            # Its elements are already states.
            add(StateKind.VECTOR, *values_in(call.result))
        else:
            _add_results(call.result, add)
        if call.name == "add_output":
            # A copy for a layout, a dtype or a second mention.
            for tensor in (tv for expr in made for tv in expr.tensor_outputs if tv.name in results):
                add(StateKind.TENSOR, tensor)
    inside = [tv.name for expr in fusion.exprs for tv in expr.tensor_outputs if tv.name not in fid_of]
    fid_of.update((name, len(states) + place) for place, name in enumerate(inside))
    extents = tuple(extent for tensor in fusion.tensor_inputs for extent in tensor.extents)
    inputs, outputs = (tuple(fid_of[value.name] for value in part) for part in (fusion.inputs, fusion.outputs))
    # Last, so that extents take precedence over states.
    fid_of.update((extent.name, -n) for n, extent in enumerate(extents, 1) if isinstance(extent, Scalar))
    return FusionState(states=tuple(states), inputs=inputs, outputs=outputs, extents=extents, fid_of=fid_of)


def _add_results(result: Any, add: Any) -> None:
    if isinstance(result, list | tuple):
        for part in result:
            _add_results(part, add)
        scalars = tuple(values_in(result))
        if isinstance(result, list) and scalars and all(isinstance(value, Scalar) for value in scalars):
            add(StateKind.VECTOR, *scalars)
        return
    for value in values_in(result):
        add(StateKind.TENSOR if isinstance(value, TensorView) else StateKind.SCALAR, value)


def number_operands(call: Called, made: Sequence[Expr]) -> list[tuple[str | None, Scalar]]:
    """Return the numbers that are operands of a call, as the constants they become, with their parameters.

    Expressions appended without a user's call have no parameters.
    """
    if call.name == EMIT:
        return [(None, scalar) for expr in made for scalar in _constants(expr)]
    if call.name in DEFINES:
        return [(None, scalar) for scalar in _elements(call)]
    names = _operand_names(call.name, made)
    numbers: list[tuple[str | None, Scalar]] = []
    for name, value in arguments_of(call).items() if names else ():
        if name in names and not isinstance(value, Handle):
            number = value.item() if hasattr(value, "item") else value
            if isinstance(number, bool | int | float | complex):
                numbers.append((name, Scalar(name="", dtype=of_python(number), value=number)))
    return numbers


def _elements(call: Called) -> Iterator[Scalar]:
    """Yield the numbers of a vector's elements."""
    if call.name == "define_vector" and not is_whole(call.args[0]):
        for element, scalar in zip(call.args[0], values_in(call.result), strict=True):
            if isinstance(scalar, Scalar) and not isinstance(element, Handle):
                yield scalar


def _constants(expr: Expr) -> Iterator[Scalar]:
    if expr.op.name in _LENGTHS:
        shape = expr.attr("shape")
        length = shape[0] if isinstance(shape, tuple) else shape
        if isinstance(length, int):
            yield Scalar(name="", dtype=of_python(length), value=length)
    yield from (v for v in expr.inputs if isinstance(v, Scalar) and v.value is not None)


def arguments_of(call: Called, *, defaults: bool = False) -> Mapping[str, Any]:
    """Return the arguments of a call of an op by parameter; ``defaults`` adds omitted ones."""
    entry = OPS.get(call.name) or COMPOSITES[call.name]
    bound = entry.signature.bind(*call.args, **call.kwargs)
    if defaults:
        bound.apply_defaults()
    return bound.arguments


def _operand_names(op: str, made: Sequence[Expr]) -> frozenset[str]:
    """Return the parameters of an op whose arguments are operands of its expression; all others are attributes."""
    if op in _OPERANDS_INSIDE:
        return _OPERANDS_INSIDE[op]
    expr = next((expr for expr in reversed(made) if expr.op.name == op), None)
    if op not in OPS or op in _LISTED or expr is None:
        return frozenset()
    attrs = {name for name, _ in expr.attrs}
    free = [
        name for name, p in OPS[op].signature.parameters.items()
        if name not in attrs and p.kind is not Parameter.VAR_KEYWORD
    ]
    options = dict(expr.attrs).get("options", ())
    named = [str(name) for name in options] if isinstance(options, tuple) else []
    length = [_LENGTHS[op]] if op in _LENGTHS else []
    count = len(expr.inputs) + len(length) - len(named)
    return frozenset([*[name for name in free if name not in named][:count], *named])

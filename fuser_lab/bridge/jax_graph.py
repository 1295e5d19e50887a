"""A jaxpr as a graph whose nodes have the interface of torch's FX nodes, with calls as plain data.

Calls of jaxprs are inlined, unused nodes are removed, and numbers that do not depend on inputs are computed.
"""

import importlib
import linecache
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import PurePath
from typing import Any

import numpy as np

from fuser_lab.bridge.input_names import dotted_path
from fuser_lab.bridge.lowerings import DTYPES, Call, TracedTensor
from fuser_lab.bridge.requirement import jax_for
from fuser_lab.bridge.traced import Origin
from fuser_lab.dtypes import DataType
from fuser_lab.targets import CPU

# Primitives that only call a jaxpr, and the parameters that may hold it.
_CALLS = frozenset({
    "jit", "pjit", "closed_call", "core_call", "named_call", "checkpoint", "remat", "remat2", "custom_jvp_call",
    "custom_vjp_call", "custom_vjp_call_jaxpr",
})  # fmt: skip
_HELD = ("jaxpr", "call_jaxpr", "fun_jaxpr")


@dataclass(eq=False, slots=True, kw_only=True)
class Step:
    """A node: an input, a constant, an equation, or one result of an equation that has several.

    ``op`` is ``"placeholder"``, ``"get_attr"`` for a constant, ``"output"``, or ``"call_function"``; ``target`` is a
    name such as ``"lax.add"``, or ``operator.getitem`` for one of several results. ``args`` has nodes, and Python
    numbers in place of 0-d literals; ``value`` has JAX's operands. ``meta`` holds ``call``,
    ``val``, ``origin`` and ``scopes``, which `fuser_lab.bridge.traced` reads.
    """

    op: str
    target: Any
    name: str = ""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    equation: Any = None
    value: Any = None
    meta: dict[str, Any] = field(default_factory=dict)
    users: dict["Step", None] = field(default_factory=dict)

    @property
    def all_input_nodes(self) -> list["Step"]:
        """The nodes among the arguments, each once."""
        return list(dict.fromkeys(argument for argument in self.args if isinstance(argument, Step)))


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Nodes in order, each after what it reads, with the inputs and results of the jaxpr."""

    nodes: tuple[Step, ...]
    inputs: tuple[Step, ...]
    results: tuple[Any, ...]  # Step or Known


def graph_of(closed_jaxpr: Any) -> Graph:
    """Return the graph of a closed jaxpr."""
    made = _Reader()
    env = made.constants(closed_jaxpr.jaxpr, closed_jaxpr.consts)
    inputs = tuple(made.place("placeholder", variable) for variable in closed_jaxpr.jaxpr.invars)
    names = closed_jaxpr.jaxpr.debug_info.arg_names or ()
    for node, name in zip(inputs, names, strict=True) if len(names) == len(inputs) else ():
        node.meta["called"] = dotted_path(name or "")
    env.update(zip(closed_jaxpr.jaxpr.invars, inputs, strict=True))
    made.read(closed_jaxpr.jaxpr, env, "", None)
    results = tuple(made.operand(atom, env) for atom in closed_jaxpr.jaxpr.outvars)
    return Graph(nodes=_needed_nodes(made.nodes, results), inputs=inputs, results=results)


def _needed_nodes(nodes: Sequence[Step], results: Iterable[Any]) -> tuple[Step, ...]:
    """Return the nodes that a result depends on, and those with effects, and a node that reads the results."""
    needed_nodes = {node for node in results if isinstance(node, Step)}
    for node in reversed(nodes):
        if node in needed_nodes or (node.equation is not None and node.target is not operator.getitem and _acts(node)):
            needed_nodes.add(node)
            needed_nodes.update(node.all_input_nodes)
    remaining = tuple(node for node in nodes if node in needed_nodes or node.op == "placeholder")
    returned = Step(op="output", target="output", args=tuple(results))
    for place, node in enumerate((*remaining, returned)):
        node.name = f"v{place}"
        for operand in node.all_input_nodes:
            operand.users[node] = None
    return (*remaining, returned)


def _acts(node: Step) -> bool:
    return bool(node.equation.effects)


class _Reader:
    """Nodes made so far."""

    def __init__(self) -> None:
        self.nodes: list[Step] = []
        self._of_array: dict[int, Step] = {}  # constants by the identity of an array, which the jaxpr holds

    def place(self, op: str, variable: Any, value: Any = None) -> Step:
        """Return a new node that reads nothing."""
        node = Step(op=op, target=op, value=value, meta={"val": traced_aval(variable.aval)})
        self.nodes.append(node)
        return node

    def constant(self, atom: Any, value: Any) -> "Step | Known":
        """Return a value that the jaxpr contains: a number, or the one node for its array."""
        array = value if hasattr(value, "dtype") else np.asarray(value, atom.aval.dtype)
        number = _number_of(atom.aval, array)
        if number is not None:
            return number
        if id(value) not in self._of_array:
            self._of_array[id(value)] = self.place("get_attr", atom, array)
        return self._of_array[id(value)]

    def constants(self, jaxpr: Any, values: Iterable[Any]) -> dict[Any, Any]:
        """Return the constants of a jaxpr by variable."""
        pairs = zip(jaxpr.constvars, values, strict=True)
        return {variable: self.constant(variable, value) for variable, value in pairs}

    def operand(self, atom: Any, env: Mapping[Any, Any]) -> Any:
        """Return the node or the number of a jaxpr's atom."""
        return self.constant(atom, atom.val) if hasattr(atom, "val") else env[atom]

    def read(self, jaxpr: Any, env: dict[Any, Any], scope: str, line: Origin | None) -> None:
        """Add the nodes of a jaxpr, including those of the jaxprs that it calls."""
        for equation in jaxpr.eqns:
            operands = [self.operand(atom, env) for atom in equation.invars]
            origin = origin_of(equation, scope, line)
            inner = inner_jaxpr(equation)
            if inner is not None:
                inside = self.constants(inner.jaxpr, inner.consts)
                inside.update(zip(inner.jaxpr.invars, operands, strict=True))
                self.read(inner.jaxpr, inside, origin.module, origin)
                results = [self.operand(atom, inside) for atom in inner.jaxpr.outvars]
            else:
                results = self.call(equation, operands, origin)
            env.update(zip(equation.outvars, results, strict=True))

    def call(self, equation: Any, operands: Sequence[Any], origin: Origin) -> list[Any]:
        """Return the results of an equation: one node, one node per result, or a known number."""
        if operands and all(isinstance(operand, Known) for operand in operands) and not equation.effects:
            number = _constant_of(equation, operands)
            if number is not None:
                return [number]
        results = tuple(traced_aval(variable.aval) for variable in equation.outvars)
        target = f"lax.{equation.primitive.name.replace('-', '_')}"
        arguments = tuple(value.number if isinstance(value, Known) else value for value in operands)
        call = Call(
            target=target, kwargs=tuple(equation.params.items()), results=results,
            args=tuple(value.meta["val"] if isinstance(value, Step) else value for value in arguments),
        )
        node = Step(
            op="call_function", target=target, args=arguments, equation=equation, value=tuple(operands),
            meta={"call": call, "val": results[0] if len(results) == 1 else results, **_whence(origin)},
        )
        self.nodes.append(node)
        if len(results) == 1:
            return [node]
        parts = [
            Step(
                op="call_function", target=operator.getitem, args=(node, place),
                meta={"val": held, **_whence(origin)},
            )
            for place, held in enumerate(results)
        ]
        self.nodes += parts
        return list(parts)


@dataclass(frozen=True, slots=True)
class Known:
    """A 0-d value that depends on no input, and its number in Python."""

    number: bool | int | float
    value: Any


def _number_of(aval: Any, value: Any) -> Known | None:
    """Return a value as a number; None for values with axes, and for dtypes that fusions do not support."""
    dtype = DTYPES.get(str(getattr(aval, "dtype", "")))
    if dtype is None or aval.shape != ():
        return None
    array = np.asarray(value, aval.dtype)
    number = float(array) if dtype.is_float else bool(array) if dtype is DataType.Bool else int(array)
    return Known(number, array)


def _constant_of(equation: Any, operands: Sequence[Known]) -> Known | None:
    (variable, *more) = equation.outvars
    if more or getattr(variable.aval, "shape", None) != () or str(variable.aval.dtype) not in DTYPES:
        return None
    jax = jax_for("from_jax")
    with jax.ensure_compile_time_eval():
        return _number_of(variable.aval, bound(equation, [operand.value for operand in operands])[0])


def bound(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Return the results of an equation, computed by JAX."""
    parameters = equation.primitive.get_bind_params(equation.params)
    functions, parameters = parameters if isinstance(parameters, tuple) else ((), parameters)
    with equation.ctx.manager:
        results = equation.primitive.bind(*functions, *operands, **parameters)
    return list(results) if equation.primitive.multiple_results else [results]


@dataclass(frozen=True, slots=True)
class _Closed:
    jaxpr: Any
    consts: tuple[Any, ...]


def inner_jaxpr(equation: Any) -> _Closed | None:
    """Return the jaxpr of an equation that only calls it."""
    if equation.primitive.name not in _CALLS:
        return None
    for name in _HELD:
        held = equation.params.get(name)
        if held is not None and hasattr(held, "jaxpr"):
            return _Closed(held.jaxpr, tuple(held.consts))
        if held is not None and hasattr(held, "eqns"):
            return _Closed(held, ())
    return None


def traced_aval(aval: Any) -> TracedTensor:
    """Return an abstract value as plain data; arrays of JAX are row-major."""
    shape = tuple(int(size) for size in getattr(aval, "shape", ()))
    strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return TracedTensor(shape=shape, strides=strides, dtype=str(getattr(aval, "dtype", aval)), device=CPU.name)


# Origins of equations

_TRANSFORMED = re.compile(r"\b(?:jvp|vmap|transpose|jit|pjit|remat|checkpoint|rematted_computation)\(([^()]*)\)")


def _whence(origin: Origin) -> dict[str, Any]:
    """Return the origin of a node for `fuser_lab.bridge.traced`: its line, and each scope around it."""
    parts = origin.module.split(".") if origin.module else []
    scopes = tuple((".".join(parts[: place + 1]), "") for place in range(len(parts)))
    return {"origin": origin, "scopes": scopes}


def origin_of(equation: Any, scope: str, line: Origin | None) -> Origin:
    """Return the origin of an equation: named scopes, such as Flax's modules, and the user's line."""
    names = str(equation.source_info.name_stack)
    while (plain := _TRANSFORMED.sub(r"\1", names)) != names:
        names = plain
    # Einsums are scopes, too.
    parts = [part for part in (*scope.split("."), *names.split("/")) if part and "->" not in part]
    module = ".".join(parts)
    frame = _frame(equation)
    if frame is None:
        return Origin(module=module, code=line.code, place=line.place) if line else Origin(module=module)
    path, number = frame
    return Origin(
        module=module, code=linecache.getline(path, number).strip(), place=f"{PurePath(path).name}:{number}",
    )


def _frame(equation: Any) -> tuple[str, int] | None:
    """Return file and line of the innermost frame outside JAX."""
    information = importlib.import_module("jax._src.source_info_util")
    frame = information.user_frame(equation.source_info.traceback) if equation.source_info.traceback else None
    return None if frame is None else (frame.file_name, frame.start_line)

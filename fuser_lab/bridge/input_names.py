"""The user's names of a captured graph's inputs: parameters of the function, and paths of a model's tensors."""

import inspect
import re
from collections.abc import Sequence
from typing import Any

# Parts of the sources of inputs, as Dynamo writes them (torch/_dynamo/source.py, torch 2.6 to 2.13).
_LOCAL = re.compile(r"L\['(\w+)'\](.*)")  # a parameter of the traced function, and the rest
_ARGUMENT = re.compile(r"\[(\d+)\](.*)")  # an element of *args, and the rest
_ENTRY = re.compile(r"\['(\w+)'\](.*)")  # an entry of **kwargs, and the rest
_OF_MODULE = re.compile(r"\._(modules|parameters|buffers)\b")  # the tables of torch.nn.Module


def parameters_of(function: Any, *, required: bool = False) -> tuple[str, ...]:
    """Return the names of the positional arguments of a function, module or class; none without a signature.

    ``required`` omits those with a default.
    """
    try:
        called = function if isinstance(function, type) else getattr(function, "forward", function)
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return ()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in parameters if p.kind in positional and not (required and p.default is not p.empty))


def input_names(gm: Any, arguments: Sequence[str] = ()) -> tuple[str, ...]:
    """Return what the user calls each input of a graph of Dynamo; ``""`` if that is unknown.

    ``arguments`` are the parameters of a function that was called through one with ``*args`` and ``**kwargs``.
    """
    sources = (getattr(node, "_dynamo_source", None) for node in gm.graph.find_nodes(op="placeholder"))
    return tuple(input_name(_text(source), arguments) for source in sources)


def _text(source: Any) -> str:
    """Return a source as an expression: ``name`` is a method in older versions of torch."""
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)


def input_name(source: str, arguments: Sequence[str] = ()) -> str:
    """Return ``x`` for Dynamo's ``L['x']``, and ``layers.0.weight`` for a parameter of a module."""
    local = _LOCAL.fullmatch(source)
    if local is None:
        return ""
    name, rest = local.groups()
    argument, entry = _ARGUMENT.fullmatch(rest), _ENTRY.fullmatch(rest)
    if arguments and name == "args" and argument is not None and int(argument[1]) < len(arguments):
        name, rest = arguments[int(argument[1])], argument[2]
    elif arguments and name == "kwargs" and entry is not None:
        name, rest = entry.groups()
    if _OF_MODULE.search(rest):
        name, rest = "", _OF_MODULE.sub("", rest)
    return dotted_path(f"{name}{rest}")


def dotted_path(path: str) -> str:
    """Return ``p.w.0`` for the expression ``p['w'][0]``."""
    return re.sub(r"\[['\"]?([^'\"\]]*)['\"]?\]", r".\1", path).strip(".")


def write_input_names(gm: Any, names: Sequence[str]) -> Any:
    """Return a graph of AOTAutograd that knows the names of those inputs that are inputs of Dynamo's graph."""
    for node in gm.graph.find_nodes(op="placeholder"):
        place = getattr(node.meta.get("desc"), "idx", None)
        if type(node.meta.get("desc")).__name__ == "PlainAOTInput" and place is not None and place < len(names):
            node.meta["called"] = names[place]
    return gm

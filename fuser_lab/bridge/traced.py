"""A captured graph's node as plain data: its call, its origin, whether it draws or writes.

A node is torch's FX node, or one of `jax_graph`, which has the same interface and whose call is already plain data.
"""

import functools
import operator
import os
import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from fuser_lab.bridge.lowerings import Call, TorchName, TracedTensor
from fuser_lab.bridge.requirement import torch_for

_torch = functools.cache(functools.partial(torch_for, "fuser_lab.bridge"))  # called once for each value of a graph

SYMBOLIC = "symbolic"  # the metadata of nodes with symbols, whose ``val`` has numbers in their place
Node = Any  # torch.fx.Node, or fuser_lab.bridge.jax_graph.Step


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of an op in the user's code: path of the module, text of the line, file and line; or nothing.

    If there is no line, ``code`` is the class of the module.
    """

    module: str = ""
    code: str = ""
    place: str = ""

    def __str__(self) -> str:
        """Return ``layers.0.mlp: F.silu(gate) * up (model.py:41)``."""
        where = f" ({self.place})" if self.place else ""
        return f"{self.module}: {self.code}{where}" if self.module else f"{self.code}{where}".strip()


_FRAME = re.compile(r'File "([^"]*)", line (\d+), in [^\n]*(?:\n\s*([^\n]*))?')
_OF_CELL = re.compile(r"[/\\]ipykernel_\d+[/\\]|^<ipython-input-")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)\s*(?::[^=]*)?(?:[-+*/@%]|\*\*|//)?=(?!=)")
_LAMBDA = re.compile(r"\blambda\b")  # in a line whose variable is not that of the ops in it
OF_TORCH = re.compile(r"[/\\](torch|functorch)[/\\]")
_PACKAGE = f"{PurePath(__file__).parents[1]}{os.sep}"  # the folder whose functions call those of the user


def variable_of(code: str) -> tuple[str, ...]:
    """Return the variable that a line of code assigns its value to, if it is one; a lambda's values are not."""
    assignment = _ASSIGNED.match(code)
    return () if assignment is None or _LAMBDA.search(code) else (assignment[1],)


def origin_of(node: Node) -> Origin:
    """Return the origin of a node: the innermost frame outside torch, if there is one, and the module."""
    origin = node.meta.get("origin")
    if isinstance(origin, Origin):
        return origin
    code, place = _line(node.meta.get("stack_trace") or "")
    modules = modules_of(node)
    if modules and not code:  # a chain of torch's own modules has no user's line
        code = modules[-1][1].rpartition(".")[2].strip()
    return Origin(module=modules[-1][0] if modules else "", code=code, place=place)


@functools.lru_cache(4096)  # ops of one line have equal stacks
def _line(stack: str) -> tuple[str, str]:
    """Return the text of the innermost line outside torch, and its file and number; or two empty texts."""
    frames = [frame for frame in _FRAME.findall(stack) if not frame[0].startswith(_PACKAGE)]
    user_frames = [frame for frame in frames if not OF_TORCH.search(frame[0])] or frames
    if not user_frames:
        return "", ""
    path, line, code = user_frames[-1]
    # Jupyter names a cell's file by a hash of its text.
    file = "notebook cell" if _OF_CELL.search(path) else PurePath(path).name
    return code.strip(), f"{file}:{line}"


def modules_of(node: Node) -> tuple[tuple[str, str], ...]:
    """Return the modules of a node, the outermost first: path, and qualified name of the class."""
    scopes = node.meta.get("scopes")
    if isinstance(scopes, tuple):
        return scopes
    modules = []
    for entry in (node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}).values():
        path, cls = entry if isinstance(entry, tuple) else (str(entry), "")
        name = cls if isinstance(cls, str) else f"{cls.__module__}.{cls.__qualname__}"
        modules.append((_module_path(path), name))
    return tuple(modules)


@functools.lru_cache(4096)
def _module_path(text: str) -> str:
    """Return ``layers.0.mlp`` for Dynamo's ``L['self']._modules['layers'][0].mlp``."""
    text = re.sub(r"^(L|G(?=\[['\"]__import_))\[['\"][^'\"]*['\"]\]|^G(?=\[)", "", text)
    text = re.sub(r"\.__self__|\.__closure__\[\d+\]\.cell_contents", "", text)
    text = re.sub(r"\._modules\[['\"]([^'\"]*)['\"]\]", r".\1", text)
    text = re.sub(r"\[['\"]?([^'\"\]]*)['\"]?\]", r".\1", text)
    return text.strip(".")


def traced_tensor(value: Any) -> TracedTensor | None:
    """Return a fake tensor as plain data; None for other values, symbolic sizes and memory that is not strided."""
    torch = _torch()
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    numbers = (*value.shape, *value.stride())
    if not all(type(number) is int for number in numbers):
        return None
    return TracedTensor(
        shape=tuple(value.shape), strides=tuple(value.stride()), dtype=_name(value.dtype), device=str(value.device),
    )


def _name(value: Any) -> str:
    return str(value).removeprefix("torch.")


def target_of(node: Node) -> str:
    """Return the name of a node's op, such as ``aten.add.Tensor``; for other calls, the function's name."""
    if node.op != "call_function":
        return str(node.op)
    if node.target is operator.getitem:
        return "getitem"
    if hasattr(node.target, "_schema"):
        return str(node.target)
    if getattr(node.target, "__name__", "").startswith("auto_functionalized"):
        return str(node.args[0])  # a user's op that writes to its arguments
    return str(getattr(node.target, "__name__", node.target))


def is_node(value: Any) -> bool:
    """Whether an argument of a node is another node."""
    return hasattr(value, "all_input_nodes")


def tensor_of(node: Node) -> TracedTensor:
    """Return the tensor of a node."""
    value = node.meta.get("val")
    tensor = value if isinstance(value, TracedTensor) else plain(node)
    assert isinstance(tensor, TracedTensor)  # regions read nothing else
    return tensor


def shape_of(node: Node) -> tuple[int, ...]:
    """Return the shape of a node's tensor; empty if it is not known."""
    tensor = traced_tensor(node.meta.get("val"))
    return () if tensor is None else tensor.shape


def insert_call(before: Node, target: Any, args: tuple[Any, ...], **kwargs: Any) -> Node:
    """Return a new call in front of a node, with the origin of that node."""
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, args, kwargs)
    values = _torch().fx.node.map_arg(args, lambda argument: argument.meta["val"])
    node.meta = {**before.meta, "val": target(*values, **kwargs)}
    return node


def as_rows(before: Node, x: Node) -> Node:
    """Return a value in row-major order: itself if it is, otherwise a copy in front of a node."""
    if x.meta["val"].is_contiguous():
        return x
    torch = _torch()
    return insert_call(before, torch.ops.aten.clone.default, (x,), memory_format=torch.contiguous_format)


def tensors_of(node: Node) -> tuple[TracedTensor, ...]:
    """Return the tensors of known sizes that a node holds."""
    value = node.meta.get("val")
    held = value if isinstance(value, list | tuple) else (value,)
    tensors = (each if isinstance(each, TracedTensor) else traced_tensor(each) for each in held)
    return tuple(tensor for tensor in tensors if tensor is not None)


def results_of(node: Node) -> tuple[TracedTensor | None, ...]:
    """Return the results of a node: one, or the entries of the list that it returns."""
    value = node.meta.get("val")
    if isinstance(value, list | tuple):
        return tuple(map(traced_tensor, value))
    return (traced_tensor(value),)


def has_symbol(node: Node, axis: int | None = None) -> bool:
    """Whether a node's value depends on a symbolic size, or is a tensor with such a size, stride or offset.

    With an axis, only its size counts.
    """
    torch = _torch()
    value = node.meta.get(SYMBOLIC)
    if isinstance(value, torch.Tensor):
        numbers = (*value.shape, *value.stride(), value.storage_offset()) if axis is None else (value.shape[axis],)
        return not all(type(number) is int for number in numbers)
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


class Symbolic(Exception):  # noqa: N818 - an outcome, which callers turn into a reason
    """A size among the arguments is symbolic."""


def plain(value: Any) -> Any:
    """Return an argument of a node as plain data, with nodes as their values; raises Symbolic for symbolic sizes."""
    torch = _torch()
    if isinstance(value, torch.fx.Node):
        held = value.meta.get("val")
        if isinstance(held, torch.Tensor):
            traced = traced_tensor(held)
            if traced is None:
                raise Symbolic
            return traced
        return plain(held)
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise Symbolic
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
        return TorchName(type(value).__name__, _name(value))
    return value


def call_of(node: Node) -> Call | None:
    """Return the call of a node, or None if a size in it is symbolic."""
    call = node.meta.get("call")
    if isinstance(call, Call):
        return call
    try:
        args = tuple(map(plain, node.args))
        kwargs = tuple((name, plain(value)) for name, value in node.kwargs.items())
    except Symbolic:
        return None
    return Call(target=target_of(node), args=args, kwargs=kwargs, results=results_of(node))


def draws(node: Node) -> bool:
    """Whether a node draws numbers from torch's generator."""
    torch = _torch()
    if node.op != "call_function":
        return False
    if getattr(node.target, "draws", False):
        return True
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    # Attention and dropout draw nothing if the probability is 0.
    named = {argument.name: place for place, argument in enumerate(node.target._schema.arguments)}  # noqa: SLF001
    for name in ("dropout_p", "train"):
        if name in named:
            place = named[name]
            is_training = node.args[place] if place < len(node.args) else node.kwargs.get(name)
            if is_training is None:
                is_training = node.target._schema.arguments[place].default_value  # noqa: SLF001
            return is_training is None or bool(is_training)
    return True


def is_write_back(node: Node) -> bool:
    """Whether a node only writes a new value over an argument of the graph, as torch does at the end of a graph."""
    if target_of(node) != "aten.copy_.default" or node.args[0].op != "placeholder":
        return False
    return all(user.op == "output" for user in node.users)


def writes(node: Node) -> bool:
    """Whether a node modifies an argument, or its result depends on more than its arguments."""
    if node.op != "call_function":
        return node.op in {"call_module", "call_method"}
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def without_modes() -> Any:
    """Return a context in which tensors are what they are, while torch traces."""
    return _torch().utils._python_dispatch._disable_current_modes()  # noqa: SLF001

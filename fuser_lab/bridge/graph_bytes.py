"""A graph of ATen ops as bytes: its calls, what torch knows of their values, and their origins in the user's code.

The origin of a node and its modules are stored as they are shown, so that neither the user's classes nor torch's stacks
are needed to read the graph. Lines of code are stored by their places in Dynamo's graph, so that the graph has the same
bytes after lines were moved, and the new lines when it is read.
"""

import functools
import importlib
import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.traced import Node, Origin, modules_of, origin_of

_KEPT = ("seq_nr", "called")  # metadata that is plain
_TENSOR, _OP, _NODE, _ORIGIN = range(4)

Lines = Sequence[tuple[str, str]]  # the text of a line and its place, for each node of Dynamo's graph


class NotPlainError(Exception):
    """A graph contains something that bytes do not hold, such as a symbolic size or a graph within the graph."""


def lines_of(gm: Any) -> Lines:
    """Return the lines of Dynamo's graph."""
    return tuple((origin.code, origin.place) for origin in map(origin_of, gm.graph.nodes))


def write_graph(gm: Any, lines: Lines = (), payload: object = None) -> bytes:
    """Return a graph and a payload, which may refer to its nodes, as bytes; ``lines`` are those of Dynamo's graph.

    Raises NotPlainError, or any error of a pickler, if there are none.
    """
    file = io.BytesIO()
    writer = _Writer(file, gm.graph.nodes, lines)
    # A pickle has one copy of each object, so equal ones are made one: the collector visits all that is read.
    equal: dict[Any, Any] = {}
    for node in gm.graph.nodes:
        constant = None
        if node.op == "get_attr":
            constant = functools.reduce(getattr, node.target.split("."), gm)
            if not isinstance(constant, torch_for("fuser_lab.bridge").Tensor):
                raise NotPlainError(node.target)
        meta = {key: node.meta[key] for key in ("val", *_KEPT) if key in node.meta}
        origin, modules = origin_of(node), tuple(equal.setdefault(entry, entry) for entry in modules_of(node))
        meta |= {"origin": equal.setdefault(origin, origin), "scopes": equal.setdefault(modules, modules)}
        meta["original_aten"] = str(node.meta.get("original_aten") or "")
        writer.dump((node.op, node.target, node.args, node.kwargs, node.name, meta, constant))
    writer.dump(payload)
    return file.getvalue()


def read_graph(content: bytes, lines: Lines = ()) -> tuple[Any, Any]:
    """Return the graph module that `write_graph` wrote, and the payload; its code is written when it is called.

    ``lines`` are those of Dynamo's graph in this process.
    """
    torch = torch_for("fuser_lab.bridge")
    lazy = importlib.import_module("torch.fx._lazy_graph_module")
    graph, constants = torch.fx.Graph(), {}
    file = io.BytesIO(content)
    reader = _Reader(file, lines)
    while True:
        read = reader.load()
        if file.tell() == len(content):
            break
        op, target, args, kwargs, name, meta, constant = read
        if constant is not None:
            constants[target] = constant
        node = graph.create_node(op, target, name=name)  # which would look through arguments for symbols
        node.args = args
        if kwargs:
            node.kwargs = kwargs
        node.meta = meta
        reader.nodes.append(node)
    return lazy._LazyGraphModule(constants, graph), read  # noqa: SLF001 - torch has no public name for it


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, nodes: Sequence[Node], lines: Lines) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._lines: dict[tuple[str, str], int] = {}
        for place, line in enumerate(lines):
            self._lines.setdefault(line, place)
        torch = torch_for("fuser_lab.bridge")
        self._places = {node: place for place, node in enumerate(nodes)}
        self._storages: dict[int, int] = {}
        self._torch = torch
        self._symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)

    def persistent_id(self, value: Any) -> Any:
        """Return what `_Reader` makes the value from; None for values that a pickler knows."""
        torch = self._torch
        if isinstance(value, torch.fx.Node):
            return _NODE, self._places[value]
        if isinstance(value, Origin) and (place := self._lines.get((value.code, value.place))) is not None:
            return _ORIGIN, place, value.module
        if isinstance(value, torch._ops.OpOverload):  # noqa: SLF001 - torch has no public name for it
            return _OP, str(value)
        if isinstance(value, torch._subclasses.FakeTensor):  # noqa: SLF001
            return self._tensor(value)
        if isinstance(value, (*self._symbols, torch.fx.GraphModule)):
            raise NotPlainError(str(value))
        return None

    def _tensor(self, value: Any) -> Any:
        numbers = (*value.shape, *value.stride()) if value.layout is self._torch.strided else (None,)
        if not all(type(number) is int for number in numbers) or value.is_conj() or value.is_neg():
            raise NotPlainError(str(value))
        storage = value.untyped_storage()
        place = self._storages.setdefault(storage._cdata, len(self._storages))  # noqa: SLF001 - it has no address
        form = (storage.nbytes(), value.storage_offset(), tuple(value.shape), value.stride())
        return _TENSOR, place, *form, value.dtype, value.device


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, lines: Lines) -> None:
        super().__init__(file)
        self._lines = lines
        self._origins: dict[tuple[int, str], Origin] = {}
        torch = self._torch = torch_for("fuser_lab.bridge")
        self.nodes: list[Node] = []
        self._fake = torch._subclasses.FakeTensor  # noqa: SLF001 - torch has no public name for it
        self._mode = torch._subclasses.FakeTensorMode()  # noqa: SLF001
        self._storages: dict[int, Any] = {}
        self._make: dict[int, Callable[..., Any]] = {
            _NODE: self.nodes.__getitem__, _OP: _op, _TENSOR: self._tensor, _ORIGIN: self._origin,
        }

    def persistent_load(self, pid: Any) -> Any:
        """Return the value that a persistent id of `_Writer` describes."""
        kind, *described = pid
        return self._make[kind](*described)

    def _origin(self, place: int, module: str) -> Origin:
        origin = self._origins.get((place, module))
        if origin is None:
            origin = self._origins[place, module] = Origin(module, *self._lines[place])
        return origin

    def _tensor(
        self, place: int, size: int, offset: int, shape: Sequence[int], strides: Sequence[int], dtype: Any, device: Any,
    ) -> Any:
        torch = self._torch
        storage = self._storages.get(place)
        if storage is None:
            storage = self._storages[place] = torch.UntypedStorage(size, device="meta")
        held = torch.empty(0, dtype=dtype, device="meta").set_(storage, offset, shape, strides)
        return self._fake(self._mode, held, device)


@functools.cache
def _op(name: str) -> Any:
    space, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch_for("fuser_lab.bridge").ops, space), packet), overload)

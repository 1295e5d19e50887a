"""Writes at positions that are data, such as the gradients of look-ups, as loops over the elements of their source.

No region contains such an op: `fuser_lab.bridge.host_scatters` and `fuser_lab.bridge.gpu_scatters` make kernels of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy import broadcast_shapes

from fuser_lab.bridge.lowerings import TracedTensor
from fuser_lab.bridge.lowerings.registry import DTYPES, axis_of
from fuser_lab.bridge.lowerings.views import ALIASES
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.traced import Node, has_symbol, insert_call, target_of, tensor_of, traced_tensor
from fuser_lab.dtypes import DataType
from fuser_lab.ir.scalar import Number
from fuser_lab.ir.term import Const, Term, cast
from fuser_lab.targets import has_own_memory

INDEX_DTYPES = frozenset({"int32", "int64"})  # of positions
_COMBINED = {"sum": "add", "amax": "max", "amin": "min"}
Loops = tuple[tuple[int, tuple[int, ...]], ...]  # the extent of each loop, and the steps of all tensors along it


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """A tensor of positions on an axis of the target: its steps along the loops, and the axis' size and step."""

    node: Node
    axis: int
    steps: tuple[int, ...]
    size: int
    step: int
    wraps: bool  # whether negative positions count from the end


@dataclass(frozen=True, slots=True)
class Counted:
    """A source along one axis with the elements ``start``, ``start + step``, ..., which no kernel has to read."""

    start: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """A write at positions that are data, as loops over the elements of its source.

    ``start`` is the tensor, or the number, that elements have before; ``combine`` is the function of an element and one
    of the source, or None if that replaces the element. Nothing is written at positions equal to ``skipped``.
    """

    op: str
    target: TracedTensor
    extents: tuple[int, ...]
    steps: tuple[int, ...]  # of the target, along the loops; 0 along those of positions alone
    positions: tuple[Positions, ...]
    source: Node | Number | Counted
    source_steps: tuple[int, ...]
    start: Node | Number
    combine: str | None
    skipped: int | None = None

    @property
    def operands(self) -> tuple[Node, ...]:
        """The tensors that the kernel reads, in the order of its arguments."""
        values = (self.start, *(each.node for each in self.positions), self.source)
        return tuple(value for value in values if is_read(value))


def scatter_of(node: Node) -> Scatter | None:
    """Return the call of a node as a write at positions; None for other calls, and for those that no kernel computes.

    The tensors are on one device, and none of them is empty.
    """
    at_any, name = node.target is write_at, op_of(node)
    args = node.args[2:] if at_any else node.args
    reader = _READERS.get(name) if node.op == "call_function" else None
    target = traced_tensor(node.meta.get("val")) if reader is not None else None
    if reader is None or target is None or not target.size or not target.shape:
        return None
    operands = [traced_tensor(operand.meta.get("val")) for operand in node.all_input_nodes]
    if any(operand is None or not operand.size or operand.device != target.device for operand in operands):
        return None
    scatter = reader(name, target, *args, **node.kwargs)
    dtypes = INDEX_DTYPES | _NARROW if at_any else INDEX_DTYPES
    if scatter is None or any(tensor_of(each.node).dtype not in dtypes for each in scatter.positions):
        return None
    sources = [value for value in (scatter.source, scatter.start) if is_read(value)]
    return scatter if all(tensor_of(value).dtype == target.dtype for value in sources) else None


def op_of(node: Node) -> str:
    """Return the name of the op of a node; of `write_at` that of the write."""
    return str(node.args[0]) if node.target is write_at else target_of(node)


def is_read(value: Node | Number | Counted) -> bool:
    """Whether an operand is a tensor in memory."""
    return not isinstance(value, bool | int | float | Counted)


def number_of(x: Node) -> Number | None:
    """Return the number that all elements of a tensor are, or None if its node does not say it."""
    if target_of(x) == _EXPAND:
        x = x.args[0]
    target = target_of(x)
    number = x.args[1] if target in _FULL else _NUMBERS.get(target)
    return number if isinstance(number, int | float) and not isinstance(number, bool) else None


_COUNTS = frozenset({"aten.arange.default", "aten.arange.start", "aten.arange.start_step"})
_FULL = frozenset({"aten.full.default", "aten.full_like.default"})
_NUMBERS = {
    "aten.zeros.default": 0, "aten.zeros_like.default": 0, "aten.ones.default": 1, "aten.ones_like.default": 1,
    "aten.empty.memory_format": 0, "aten.empty_permuted.default": 0,  # any number will do
}
_EXPAND = "aten.expand.default"
_EXACT = 256  # the largest number up to which every dtype of sums has all integers: those of bfloat16 have 8 bits


def _start(x: Node) -> Node | Number:
    """Return an operand that is written into; the number of one that is filled."""
    number = number_of(x)
    return x if number is None else number


def _source(x: Any) -> Node | Number | Counted:
    """Return an operand that is written; the number of one that is filled, unless its dtype may round it."""
    if isinstance(x, bool | int | float):
        return x
    if target_of(x) in _COUNTS and not tensor_of(x).is_float and all(isinstance(number, int) for number in x.args):
        start, _, step = (0, *x.args, 1) if len(x.args) == 1 else (*x.args, 1)[:3]
        return Counted(start, step)
    number = number_of(x)
    return number if isinstance(number, int | float) and abs(number) <= _EXACT and number == int(number) else x


def is_filled(node: Node, scatters: Mapping[Node, Scatter]) -> bool:
    """Whether a node only fills tensors that kernels of scatters do not read, because they have its numbers."""
    if not node.users or (number_of(node) is None and not isinstance(_source(node), Counted)):
        return False
    return all(user in scatters and node not in scatters[user].operands for user in node.users)


def join_scatters(graph: Any) -> None:
    """Rewrite sums of two scatters on a GPU as one that adds to the result of the other.

    They are gradients of a table that is read twice, such as at both ends of edges. Equal views of both become one.
    """
    for node in list(graph.find_nodes(op="call_function", target=torch_for("fuser_lab.bridge").ops.aten.add.Tensor)):
        if len(node.all_input_nodes) != 2 or len(node.args) != 2 or node.kwargs:
            continue
        (first, _), (second, views) = sorted(map(_behind_views, node.args), key=lambda part: _adds_to_zeros(part[0]))
        target, added = (scatter_of(part) for part in (first, second))
        if target is None or added is None or target.combine != "add" or len(first.users) > 1:
            continue
        if not _adds_to_zeros(second):
            continue
        forms = [[(target_of(view), view.args[1:]) for view in _behind_views(part)[1]] for part in node.args]
        if target.target != added.target or forms[0] != forms[1] or not may_add_over(target.target):
            continue
        start = second.args[0]
        with graph.inserting_before(node):
            value = graph.node_copy(second)
            value.args = (first, *second.args[1:])
            for view in reversed(views):
                shape, value = view.args[1:], graph.node_copy(view, {view.args[0]: value}.__getitem__)
                assert value.args[1:] == shape
        dead = [node, *(part for operand in node.args for part in _behind_views(operand)[1]), second]
        node.replace_all_uses_with(value)
        for part in (*dead, start):
            if not part.users:
                graph.erase_node(part)


def may_add_over(target: TracedTensor) -> bool:
    """Whether a kernel on a GPU may add to the result of another one: sums of 16-bit floats are not the result."""
    return has_own_memory(target.device) and target.dtype not in {"float16", "bfloat16"}


def _behind_views(node: Node) -> tuple[Node, list[Node]]:
    """Return what is behind views that have one reader each, and these views."""
    views: list[Node] = []
    while target_of(node) in _VIEWS and len(node.users) == 1:
        views.append(node)
        node = node.args[0]
    return node, views


def _adds_to_zeros(node: Node) -> bool:
    """Whether a node, which has one reader, adds at positions of zeros that are its first argument."""
    scatter = scatter_of(node) if len(node.users) == 1 and node.args else None
    return scatter is not None and scatter.combine == "add" and isinstance(scatter.start, int) and (
        scatter.start == 0 and scatter.op != "embedding_dense_backward")


_VIEWS = frozenset({"aten.view.default", "aten.reshape.default", "aten._unsafe_view.default"})


def write_at(op: Callable[..., Any], place: int, *args: Any, **kwargs: Any) -> Any:
    """Return what a write at positions returns; positions, which are the argument at a place, are any integers."""
    positions = args[place]
    listed = isinstance(positions, list | tuple)
    wide = [each if each is None else each.long() for each in positions] if listed else positions.long()
    return op(*args[:place], wide, *args[place + 1 :], **kwargs)


def read_narrow_positions(graph: Any) -> None:
    """Let writes at positions read integers that are only cast for them, since torch's ops take no narrow ones."""
    for node in list(graph.nodes):
        place = _POSITIONS.get(target_of(node)) if node.op == "call_function" else None
        if place is None or has_symbol(node) or scatter_of(node) is None:
            continue
        positions = node.args[place]
        is_list = isinstance(positions, list | tuple)
        listed = list(positions) if is_list else [positions]
        narrow = [each and _narrow(node, each) for each in listed]
        if narrow != listed:
            args = (*node.args[:place], narrow if is_list else narrow[0], *node.args[place + 1 :])
            node.args, node.target = (node.target, place, *args), write_at
    for node in reversed(graph.nodes):
        if (target_of(node) in _CASTS or target_of(node) in ALIASES) and not node.users:
            graph.erase_node(node)


def _narrow(before: Node, positions: Node) -> Node:
    """Return positions as they were before a cast to wider integers, behind the same views, or the positions."""
    x, views = positions, list[Node]()
    while target_of(x) in ALIASES and tensor_of(x).dtype == tensor_of(x.args[0]).dtype:
        views.append(x)
        x = x.args[0]
    if target_of(x) not in _CASTS or has_symbol(x):
        return positions
    wide, narrow = tensor_of(x), tensor_of(x.args[0])
    if narrow.dtype not in _NARROW | INDEX_DTYPES or (narrow.strides, narrow.device) != (wide.strides, wide.device):
        return positions
    if DTYPES[narrow.dtype].itemsize >= DTYPES[wide.dtype].itemsize:
        return positions
    made = x.args[0]
    for view in reversed(views):
        made = insert_call(before, view.target, (made, *view.args[1:]), **view.kwargs)
    return made


_NARROW = frozenset({"uint8", "int8", "int16"})  # integers that torch refuses as positions, or reads as masks
_CASTS = frozenset({"aten._to_copy.default", "prims.convert_element_type.default"})
_POSITIONS = {  # the places of positions among arguments
    "aten.index_put.default": 1, "aten.index_add.default": 2, "aten.scatter_add.default": 2, "aten.scatter.src": 2,
    "aten.scatter.value": 2, "aten.embedding_dense_backward.default": 1,
}


def broadcast_fills(gm: Any) -> None:
    """Rewrite tensors of one number that are only added at positions, as ones are for counts, as broadcast scalars."""
    aten = torch_for("fuser_lab.bridge").ops.aten
    for node in list(gm.graph.nodes):
        number, value = number_of(node) if node.op == "call_function" else None, node.meta.get("val")
        is_source = node.users and all(
            user.op == "call_function" and target_of(user) in _SOURCES and user.args[_SOURCES[target_of(user)]] is node
            and user.args[:1] != (node,) for user in node.users
        )
        if number is None or not is_source or traced_tensor(value) is None or target_of(node) == _EXPAND:
            continue
        with gm.graph.inserting_before(node):
            scalar = gm.graph.call_function(
                aten.full.default, ([], number), {"dtype": value.dtype, "device": value.device})
        scalar.meta = {**node.meta, "val": value.new_empty(())}
        node.target, node.args, node.kwargs = aten.expand.default, (scalar, list(value.shape)), {}
        node.meta["val"] = scalar.meta["val"].expand(value.shape)


_SOURCES = {  # the places of arguments that are added
    "aten.index_put.default": 2, "aten.index_add.default": 3, "aten.scatter_add.default": 3,
}


def _index_put(
    _: str, target: TracedTensor, x: Node, indices: Sequence[Any], values: Node, accumulate: bool = False,
) -> Scatter | None:
    places = [place for place, each in enumerate(indices) if each is not None]
    rest = [axis for axis in range(len(target.shape)) if axis not in places]
    common = broadcast_shapes(*(tensor_of(indices[place]).shape for place in places))
    # As in NumPy, the axes of indices that are not adjacent come first.
    before = places[0] if places == list(range(places[0], places[-1] + 1)) else 0
    extents = (*(target.shape[axis] for axis in rest[:before]), *common, *(target.shape[a] for a in rest[before:]))
    rest_steps = [target.strides[axis] for axis in rest]
    steps = (*rest_steps[:before], *[0] * len(common), *rest_steps[before:])
    after = len(rest) - before
    positions = tuple(
        Positions(
            node=indices[place], axis=place, size=target.shape[place], step=target.strides[place], wraps=True,
            steps=(*[0] * before, *_steps_in(tensor_of(indices[place]), common), *[0] * after),
        )
        for place in places
    )
    return Scatter(
        op="index_put", target=target, extents=extents, steps=steps, positions=positions, source=_source(values),
        source_steps=_steps_in(tensor_of(values), extents), start=_start(x), combine="add" if accumulate else None,
    )


def _steps_in(tensor: TracedTensor, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor that is broadcast to a shape."""
    steps = [0 if size == 1 else step for size, step in zip(tensor.shape, tensor.strides, strict=True)]
    steps = steps[max(0, len(steps) - len(shape)) :]
    return (*[0] * (len(shape) - len(steps)), *steps)


def _index_add(
    _: str, target: TracedTensor, x: Node, dim: int, places: Node, source: Node, alpha: Number = 1,
) -> Scatter | None:
    return _along(target, "index_add", x, dim, places, source, "add") if alpha == 1 else None


def _index_reduce(
    _: str, target: TracedTensor, x: Node, dim: int, places: Node, source: Node, reduce: str,
    include_self: bool = True,
) -> Scatter | None:
    return _along(target, "index_reduce", x, dim, places, source, _COMBINED.get(reduce)) if (
        include_self and reduce in _COMBINED) else None


def _along(
    target: TracedTensor, op: str, x: Node, dim: int, places: Node, source: Node, combine: str | None,
) -> Scatter:
    """Return the writes of slices of the source at one position each."""
    axis, traced, read = axis_of(dim, len(target.shape)), tensor_of(places), tensor_of(source)
    step = traced.strides[0] if traced.shape else 0
    positions = Positions(
        node=places, axis=axis, size=target.shape[axis], step=target.strides[axis], wraps=False,
        steps=tuple(step if place == axis else 0 for place in range(len(target.shape))),
    )
    return Scatter(
        op=op, target=target, extents=read.shape, steps=_others(target.strides, axis), positions=(positions,),
        source=_source(source), source_steps=read.strides, start=_start(x), combine=combine,
    )


def _others(steps: Sequence[int], axis: int) -> tuple[int, ...]:
    return tuple(0 if place == axis else step for place, step in enumerate(steps))


def _scatter(
    name: str, target: TracedTensor, x: Node, dim: int, places: Node, source: Node | Number,
    reduce: str | None = None, include_self: bool = True,
) -> Scatter | None:
    op = name.split(".")[1]
    if not include_self or (reduce is not None and reduce not in _COMBINED):
        return None
    axis, traced = axis_of(dim, len(target.shape)), tensor_of(places)
    is_number = isinstance(source, bool | int | float)
    positions = Positions(
        node=places, axis=axis, steps=traced.strides, size=target.shape[axis], step=target.strides[axis], wraps=False,
    )
    return Scatter(
        op=op, target=target, extents=traced.shape, steps=_others(target.strides, axis), positions=(positions,),
        source=_source(source),
        source_steps=(0,) * len(traced.shape) if is_number else tensor_of(source).strides,
        start=_start(x), combine="add" if op == "scatter_add" else _COMBINED.get(reduce or ""),
    )


def _embedding(
    _: str, target: TracedTensor, gradient: Node, places: Node, rows: int, padding: int, by_frequency: bool,
) -> Scatter | None:
    if by_frequency:
        return None
    traced, read = tensor_of(places), tensor_of(gradient)
    positions = Positions(
        node=places, axis=0, steps=(*traced.strides, 0), size=rows, step=target.strides[0], wraps=False,
    )
    return Scatter(
        op="embedding_dense_backward", target=target, extents=read.shape,
        steps=(*[0] * len(traced.shape), target.strides[1]), positions=(positions,), source=gradient,
        source_steps=read.strides, start=0, combine="add", skipped=padding if padding >= 0 else None,
    )


_READERS: Mapping[str, Callable[..., Scatter | None]] = {
    "aten.index_put.default": _index_put, "aten.index_add.default": _index_add,
    "aten.index_reduce.default": _index_reduce, "aten.scatter_add.default": _scatter, "aten.scatter.src": _scatter,
    "aten.scatter.value": _scatter, "aten.scatter_reduce.two": _scatter,
    "aten.embedding_dense_backward.default": _embedding,
}


def span_of(tensor: TracedTensor) -> int:
    """Return the number of elements from the first to the last one in memory."""
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.strides, strict=True))


def constant(dtype: DataType, value: Any, place: Term | None = None) -> Term:
    """Return a number as a constant of a dtype, or the element of a `Counted` source at a place."""
    if isinstance(value, Counted):
        assert place is not None
        return cast(place * value.step + value.start, dtype)
    return Const(dtype, float(value) if dtype.is_float else int(value))


def loops_over(extents: Sequence[int], steps: Sequence[Sequence[int]]) -> Loops:
    """Return loops over axes; two axes are one loop if the steps along the outer one follow from the inner one."""
    loops: list[tuple[int, tuple[int, ...]]] = []
    for extent, *here in zip(extents, *steps, strict=True):
        if extent == 1:
            continue
        if loops and all(outer == inner * extent for outer, inner in zip(loops[-1][1], here, strict=True)):
            loops[-1] = (loops[-1][0] * extent, tuple(here))
        else:
            loops.append((extent, tuple(here)))
    return tuple(loops)

"""Writes at positions that are data, such as the gradients of look-ups, as kernels on the host.

No kernel of a region computes such an op. Torch's functions for it visit one element, or one row, at a time, which
costs several times as much as the additions: a graph's function (`fuser_lab.bridge.flat`) calls a kernel in their
place. The kernel knows all sizes and strides, fills or copies the operand that it writes into, and then visits the
source in the order of its axes, by one thread, so that equal positions have one order. Positions outside of their axis
raise an error after the kernel, which skips them.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from numpy import broadcast_shapes

from fuser_lab.bridge.lowerings import TracedTensor
from fuser_lab.bridge.lowerings.registry import DTYPES, axis_of
from fuser_lab.bridge.traced import Node, target_of, traced_tensor
from fuser_lab.codegen.kernel_ir import Buffer, If, Kernel, Let, Load, Loop, Phase, Role, Size, Statement, Store
from fuser_lab.codegen.pipeline import GeneratedKernel, generated_from
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.dtypes import DataType
from fuser_lab.errors import InputError
from fuser_lab.ir.scalar import Number
from fuser_lab.ir.term import Apply, Const, Term, TermLike, Var, cast, index, select
from fuser_lab.ir.transform import ParallelType
from fuser_lab.ops.positions import out_of_range
from fuser_lab.runtime.cpu.host_ready import TensorCall, movable
from fuser_lab.runtime.cpu.launcher import host_calls
from fuser_lab.runtime.cpu.tensor_words import can_read_tensors
from fuser_lab.runtime.interrupts import interrupts_deferred
from fuser_lab.targets import find, is_on_host

_DTYPES = frozenset({"float32", "float64", "int32", "int64"})  # torch adds others in a wider type, or in none
_INDEX_DTYPES = frozenset({"int32", "int64"})
_COMBINED = {"sum": "add", "amax": "max", "amin": "min"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """A tensor of positions on an axis of the target: its steps along the loops, and the axis' size and step."""

    node: Node
    axis: int
    steps: tuple[int, ...]
    size: int
    step: int
    wraps: bool  # whether negative positions count from the end


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
    source: Node | Number
    source_steps: tuple[int, ...]
    start: Node | Number
    combine: str | None
    skipped: int | None = None

    @property
    def operands(self) -> tuple[Node, ...]:
        """The tensors that the kernel reads, in the order of its arguments."""
        values = (self.start, *(each.node for each in self.positions), self.source)
        return tuple(value for value in values if not isinstance(value, bool | int | float))


def scatter_of(node: Node) -> Scatter | None:
    """Return the call of a node as a write at positions that a kernel on the host computes, or None."""
    reader = _READERS.get(target_of(node))
    target = traced_tensor(node.meta.get("val")) if reader is not None else None
    if reader is None or target is None or not is_on_host(target.device) or target.dtype not in _DTYPES:
        return None
    operands = [traced_tensor(operand.meta.get("val")) for operand in node.all_input_nodes]
    if not target.size or not target.shape or any(operand is None or not operand.size for operand in operands):
        return None
    scatter = reader(node, target, *node.args, **node.kwargs)
    if scatter is None or any(_tensor_of(each.node).dtype not in _INDEX_DTYPES for each in scatter.positions):
        return None
    sources = [value for value in (scatter.source, scatter.start) if not isinstance(value, bool | int | float)]
    return scatter if all(_tensor_of(value).dtype == target.dtype for value in sources) else None


def _tensor_of(node: Node) -> TracedTensor:
    traced = traced_tensor(node.meta["val"])
    assert traced is not None
    return traced


def _start(x: Node) -> Node | Number:
    """Return an operand that is written into; the number of one that is filled."""
    filled = _FILLED.get(target_of(x))
    if filled is None:
        return x
    number = x.args[filled] if filled >= 0 else 0
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return number if is_number else x


_FILLED = {"aten.full.default": 1, "aten.full_like.default": 1, "aten.zeros.default": -1, "aten.zeros_like.default": -1}


def is_filled(node: Node) -> bool:
    """Whether a node only fills tensors that kernels of scatters write into, which fill them themselves."""
    if _start(node) is node or not node.users:
        return False
    for user in node.users:
        scatter = scatter_of(user)
        if scatter is None or user.args[0] is not node or node in scatter.operands:
            return False
    return True


def _index_put(
    node: Node, target: TracedTensor, x: Node, indices: Sequence[Any], values: Node, accumulate: bool = False,
) -> Scatter | None:
    places = [place for place, each in enumerate(indices) if each is not None]
    rest = [axis for axis in range(len(target.shape)) if axis not in places]
    common = broadcast_shapes(*(_tensor_of(indices[place]).shape for place in places))
    # As in NumPy, the axes of indices that are not adjacent come first.
    before = places[0] if places == list(range(places[0], places[-1] + 1)) else 0
    extents = (*(target.shape[axis] for axis in rest[:before]), *common, *(target.shape[a] for a in rest[before:]))
    rest_steps = [target.strides[axis] for axis in rest]
    steps = (*rest_steps[:before], *[0] * len(common), *rest_steps[before:])
    after = len(rest) - before
    positions = tuple(
        Positions(
            node=indices[place], axis=place, size=target.shape[place], step=target.strides[place], wraps=True,
            steps=(*[0] * before, *_steps_in(_tensor_of(indices[place]), common), *[0] * after),
        )
        for place in places
    )
    return Scatter(
        op="index_put", target=target, extents=extents, steps=steps, positions=positions, source=values,
        source_steps=_steps_in(_tensor_of(values), extents), start=_start(x), combine="add" if accumulate else None,
    )


def _steps_in(tensor: TracedTensor, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor that is broadcast to a shape."""
    steps = [0 if size == 1 else step for size, step in zip(tensor.shape, tensor.strides, strict=True)]
    steps = steps[max(0, len(steps) - len(shape)) :]
    return (*[0] * (len(shape) - len(steps)), *steps)


def _index_add(
    node: Node, target: TracedTensor, x: Node, dim: int, places: Node, source: Node, alpha: Number = 1,
) -> Scatter | None:
    return _along(target, "index_add", x, dim, places, source, "add") if alpha == 1 else None


def _index_reduce(
    node: Node, target: TracedTensor, x: Node, dim: int, places: Node, source: Node, reduce: str,
    include_self: bool = True,
) -> Scatter | None:
    return _along(target, "index_reduce", x, dim, places, source, _COMBINED.get(reduce)) if (
        include_self and reduce in _COMBINED) else None


def _along(
    target: TracedTensor, op: str, x: Node, dim: int, places: Node, source: Node, combine: str | None,
) -> Scatter:
    """Return the writes of slices of the source at one position each."""
    axis, traced, read = axis_of(dim, len(target.shape)), _tensor_of(places), _tensor_of(source)
    step = traced.strides[0] if traced.shape else 0
    positions = Positions(
        node=places, axis=axis, size=target.shape[axis], step=target.strides[axis], wraps=False,
        steps=tuple(step if place == axis else 0 for place in range(len(target.shape))),
    )
    return Scatter(
        op=op, target=target, extents=read.shape, steps=_others(target.strides, axis), positions=(positions,),
        source=source, source_steps=read.strides, start=_start(x), combine=combine,
    )


def _others(steps: Sequence[int], axis: int) -> tuple[int, ...]:
    return tuple(0 if place == axis else step for place, step in enumerate(steps))


def _scatter(
    node: Node, target: TracedTensor, x: Node, dim: int, places: Node, source: Node | Number,
    reduce: str | None = None, include_self: bool = True,
) -> Scatter | None:
    op = target_of(node).split(".")[1]
    if not include_self or (reduce is not None and reduce not in _COMBINED):
        return None
    axis, traced = axis_of(dim, len(target.shape)), _tensor_of(places)
    is_number = isinstance(source, bool | int | float)
    positions = Positions(
        node=places, axis=axis, steps=traced.strides, size=target.shape[axis], step=target.strides[axis], wraps=False,
    )
    return Scatter(
        op=op, target=target, extents=traced.shape, steps=_others(target.strides, axis), positions=(positions,),
        source=source, source_steps=(0,) * len(traced.shape) if is_number else _tensor_of(source).strides,
        start=_start(x), combine="add" if op == "scatter_add" else _COMBINED.get(reduce or ""),
    )


def _embedding(
    node: Node, target: TracedTensor, gradient: Node, places: Node, rows: int, padding: int, by_frequency: bool,
) -> Scatter | None:
    if by_frequency:
        return None
    traced, read = _tensor_of(places), _tensor_of(gradient)
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


class PositionsKernel:
    """A kernel with the words that hold the addresses of its tensors, and one that is not 0 if a position missed.

    ``of_tensors`` is its call on tensors, or None.
    """

    def __init__(self, kernel: GeneratedKernel) -> None:
        """Compile the kernel; its last buffer is that of the word."""
        with interrupts_deferred():
            (call,) = host_calls(kernel)
        (phase,) = kernel.kernel_ir.phases
        arrays, words = zip(*(movable(buffer.dtype) for buffer in phase.buffers), strict=True)
        self.missed = ctypes.c_int64(0)
        words[-1].value = ctypes.addressof(self.missed)
        self.words = words[:-1]
        self._call, self._arguments = call, list(arrays)
        self.of_tensors: TensorCall | None = None
        if call.of_tensors is not None and can_read_tensors():
            numbers = (*range(len(self.words)), arrays[-1])
            self.of_tensors = TensorCall(function=call.of_tensors, arguments=numbers, sizes=call.sizes)

    def __call__(self) -> None:
        """Run with the addresses that are in place."""
        self._call.on(self._arguments)


def scatter_kernel(scatter: Scatter) -> PositionsKernel:
    """Return the kernel of a write: its words are those of the operands, then that of the result."""
    target = scatter.target
    dtype = DTYPES[target.dtype]
    tensors = iter(f"x{number}" for number in range(len(scatter.operands)))

    def buffer_of(value: Node | Number) -> Buffer | None:
        if isinstance(value, bool | int | float):
            return None
        traced = _tensor_of(value)
        return Buffer(name=next(tensors), dtype=DTYPES[traced.dtype], size=_span(traced), role=Role.INPUT)

    start = buffer_of(scatter.start)
    positions = [buffer_of(each.node) for each in scatter.positions]
    source = buffer_of(scatter.source)
    result = Buffer(name="result", dtype=dtype, size=_span(target), role=Role.OUTPUT)

    def visit(at: Term, source_at: Term) -> Iterator[Statement]:
        """Yield the write of one element."""
        value: Term = _constant(dtype, scatter.source) if source is None else Load(dtype, source, source_at)
        if scatter.combine is not None:
            value = Apply(dtype, scatter.combine, (Load(dtype, result, at), value))
        yield Store(buffer=result, position=at, value=value)

    body = (*_fill(scatter, start, result), *_visits(scatter, [b for b in positions if b is not None], visit))
    buffers = (*(b for b in (start, *positions, source) if b is not None), result)
    return _kernel(scatter.op, target.device, buffers, body)


def positions_kernel(places: TracedTensor, size: int) -> PositionsKernel | None:
    """Return a kernel that only checks positions on an axis; its word is that of their tensor.

    None if there is none, because the positions are not adjacent in memory or of a rare dtype.
    """
    loops = _loops_over(places.shape, (places.strides,))
    if places.dtype not in _INDEX_DTYPES or len(loops) > 1 or any(steps != (1,) for _, steps in loops):
        return None
    read = Buffer(name="x0", dtype=DTYPES[places.dtype], size=_span(places), role=Role.INPUT)
    count = Size(name="count", dtype=DataType.Index, value=read.size)
    most = Size(name="size", dtype=DataType.Int, value=size)
    at, worst, bound = Var(count.dtype, "at"), Var(most.dtype, "worst"), Var(most.dtype, most.name)
    place = cast(Load(read.dtype, read, at), bound.dtype)
    farther = Apply(bound.dtype, "max", (worst, select(place < 0, bound, place)))
    body = (
        Let(name=worst.name, value=Const(worst.dtype, 0)),
        _loop(at, Var(count.dtype, count.name), (Let(name=worst.name, value=farther, update=True),)),
        Store(buffer=_MISSED, position=index(0), value=cast(worst >= bound, DataType.Int)),
    )
    return _kernel("positions", places.device, (read,), body, (count, most))


def refuse(op: str, checked: Sequence[tuple[str, Any, int, int]]) -> NoReturn:
    """Raise InputError for a position outside of its axis: each index has a name, a tensor, and its bounds."""
    for name, places, least, size in checked:
        for value in map(int, places.aminmax()):
            if not least <= value < size:
                raise InputError(out_of_range(op, value, size, name))
    msg = f"{op}: a position was out of range while the kernel ran, and is not any more: another thread wrote to it."
    raise InputError(msg)


_MISSED = Buffer(name="missed", dtype=DataType.Int, size=1, role=Role.OUTPUT)
_Visit = Callable[[Term, Term], Iterator[Statement]]  # the statements for the places of an element in two tensors
_Loops = tuple[tuple[int, tuple[int, ...]], ...]  # the extent of each loop, and the steps of all tensors along it


def _kernel(
    name: str, device: str, buffers: tuple[Buffer, ...], body: tuple[Statement, ...], sizes: tuple[Size, ...] = (),
) -> PositionsKernel:
    target = find(device)
    assert target is not None  # of a tensor in host memory
    inputs = tuple(buffer for buffer in buffers if buffer.role is Role.INPUT)
    outputs = (*(buffer for buffer in buffers if buffer.role is Role.OUTPUT), _MISSED)
    phase = Phase(name=name, buffers=(*buffers, _MISSED), scalars=(), body=body, sizes=sizes)
    return PositionsKernel(
        generated_from(
            Kernel(
                name=name, target=target.name, scheduler=SchedulerType.EXPR_EVAL, inputs=inputs, scalars=(),
                outputs=outputs, workspace=(), phases=(phase,), ops=((name, name),),
            ),
        ),
    )


def _span(tensor: TracedTensor) -> int:
    """Return the number of elements from the first to the last one in memory."""
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.strides, strict=True))


def _constant(dtype: DataType, value: Any) -> Term:
    return Const(dtype, float(value) if dtype.is_float else int(value))


def _loops_over(extents: Sequence[int], steps: Sequence[Sequence[int]]) -> _Loops:
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


def _nest(loops: _Loops, visit: _Visit) -> tuple[Statement, ...]:
    """Return loops around the statements for the places of the first and the second tensor."""
    variables = [Var(DataType.Index, f"e{number}") for number in range(len(loops))]
    at, other = (sum((v * steps[k] for v, (_, steps) in zip(variables, loops, strict=True)), index(0)) for k in (0, 1))
    body: tuple[Statement, ...] = tuple(visit(at, other))
    for variable, (extent, _) in zip(reversed(variables), reversed(loops), strict=True):
        body = (_loop(variable, extent, body),)
    return body


def _loop(variable: Var, extent: TermLike, body: tuple[Statement, ...]) -> Loop:
    return Loop(var=variable.name, start=index(0), stop=index(extent), parallel=ParallelType.serial, body=body)


def _fill(scatter: Scatter, start: Buffer | None, result: Buffer) -> tuple[Statement, ...]:
    """Return the loops that fill the result before anything is written at positions."""
    target = scatter.target
    traced = target if start is None else _tensor_of(scatter.start)
    order = sorted(range(len(target.shape)), key=lambda axis: -target.strides[axis])
    loops = _loops_over([target.shape[a] for a in order], [[t.strides[a] for a in order] for t in (target, traced)])

    def visit(at: Term, from_: Term) -> Iterator[Statement]:
        value = _constant(result.dtype, scatter.start) if start is None else Load(result.dtype, start, from_)
        yield Store(buffer=result, position=at, value=value)

    return _nest(loops, visit)


def _visits(scatter: Scatter, buffers: Sequence[Buffer], visit: _Visit) -> tuple[Statement, ...]:
    """Return the loops over the source; a position is read, and checked, in the outermost loop that determines it."""
    tensors = (scatter.steps, scatter.source_steps, *(each.steps for each in scatter.positions))
    loops = _loops_over(scatter.extents, tensors)
    variables = [Var(DataType.Index, f"v{number}") for number in range(len(loops))]

    def place(tensor: int) -> Term:
        return sum((v * steps[tensor] for v, (_, steps) in zip(variables, loops, strict=True)), index(0))

    def inside(depth: int, waiting: tuple[int, ...], at: Term) -> tuple[Statement, ...]:
        ready = [n for n in waiting if all(not steps[2 + n] for _, steps in loops[depth:])]
        if ready:
            number = ready[0]
            positions, here = scatter.positions[number], Var(DataType.Index, f"p{number}")
            read = cast(Load(buffers[number].dtype, buffers[number], place(2 + number)), DataType.Index)
            if positions.wraps:
                read = select(read < 0, read + positions.size, read)
            is_within = (here >= 0) & (here < positions.size)
            rest = inside(depth, tuple(n for n in waiting if n != number), at + here * positions.step)
            missed = Store(buffer=_MISSED, position=index(0), value=Const(DataType.Int, 1))
            written: tuple[Statement, ...] = (If(condition=is_within, then=rest, otherwise=(missed,)),)
            if scatter.skipped is not None:
                written = (If(condition=Apply(DataType.Bool, "ne", (here, index(scatter.skipped))), then=written),)
            return (Let(name=here.name, value=read), *written)
        if depth == len(loops):
            return tuple(visit(at, place(1)))
        variable, (extent, steps) = variables[depth], loops[depth]
        return (_loop(variable, extent, inside(depth + 1, waiting, at + variable * steps[0])),)

    return inside(0, tuple(range(len(buffers))), index(0))

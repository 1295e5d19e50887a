"""Writes at positions that are data, such as the gradients of look-ups, as kernels on the host.

No kernel of a region computes such an op. Torch's functions for it visit one element, or one row, at a time, which
costs several times as much as the additions: a graph's function (`fuser_lab.bridge.flat`) calls a kernel in their
place. The kernel knows all sizes and strides, fills or copies the operand that it writes into, and then visits the
source in the order of its axes, by one thread, so that equal positions have one order. Positions outside of their axis
raise an error after the kernel, which skips them.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from fuser_lab.bridge.lowerings import TracedTensor
from fuser_lab.bridge.lowerings.registry import DTYPES
from fuser_lab.bridge.scatters import (
    INDEX_DTYPES,
    Counted,
    Loops,
    Scatter,
    constant,
    is_read,
    loops_over,
    scatter_of,
    span_of,
)
from fuser_lab.bridge.traced import Node, tensor_of
from fuser_lab.codegen.kernel_ir import Buffer, If, Kernel, Let, Load, Loop, Phase, Role, Size, Statement, Store
from fuser_lab.codegen.pipeline import GeneratedKernel, generated_from
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.dtypes import DataType
from fuser_lab.errors import InputError
from fuser_lab.ir.scalar import Number
from fuser_lab.ir.term import Apply, Const, Term, TermLike, Var, cast, index, select
from fuser_lab.ir.transform import ParallelType
from fuser_lab.ops.positions import out_of_range
from fuser_lab.runtime.binding import Places
from fuser_lab.runtime.cpu.host_ready import TensorCall, movable
from fuser_lab.runtime.cpu.launcher import host_calls
from fuser_lab.runtime.cpu.tensor_words import can_read_tensors
from fuser_lab.runtime.interrupts import interrupts_deferred
from fuser_lab.targets import find, is_on_host

_DTYPES = frozenset({"float32", "float64", "int32", "int64"})  # torch adds others in a wider type, or in none


def host_scatter_of(node: Node) -> Scatter | None:
    """Return the call of a node as a write at positions that a kernel on the host computes, or None."""
    scatter = scatter_of(node)
    is_computed = scatter is not None and is_on_host(scatter.target.device) and scatter.target.dtype in _DTYPES
    return scatter if is_computed else None


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

    def buffer_of(value: Node | Number | Counted) -> Buffer | None:
        if not is_read(value):
            return None
        traced = tensor_of(value)
        return Buffer(name=next(tensors), dtype=DTYPES[traced.dtype], size=span_of(traced), role=Role.INPUT)

    start = buffer_of(scatter.start)
    positions = [buffer_of(each.node) for each in scatter.positions]
    source = buffer_of(scatter.source)
    result = Buffer(name="result", dtype=dtype, size=span_of(target), role=Role.OUTPUT)

    def visit(at: Term, source_at: Term) -> Iterator[Statement]:
        """Yield the write of one element."""
        value: Term = constant(dtype, scatter.source, source_at) if source is None else Load(dtype, source, source_at)
        if scatter.combine is not None:
            value = Apply(dtype, scatter.combine, (Load(dtype, result, at), value))
        yield Store(buffer=result, position=at, value=value)

    body = (*_fill(scatter, start, result), *_visits(scatter, [b for b in positions if b is not None], visit))
    buffers = (*(b for b in (start, *positions, source) if b is not None), result)
    return _kernel(scatter.op, target.device, buffers, body)


def positions_kernel(places: TracedTensor, axis: Places) -> PositionsKernel | None:
    """Return a kernel that only checks positions on an axis; its word is that of their tensor.

    None if there is none, because the positions are at several distances in memory or of a rare dtype.
    """
    loops = loops_over(places.shape, (places.strides,))
    if places.dtype not in INDEX_DTYPES or len(loops) > 1:
        return None
    extent, (apart,) = loops[0] if loops else (1, (1,))
    read = Buffer(name="x0", dtype=DTYPES[places.dtype], size=span_of(places), role=Role.INPUT)
    count = Size(name="count", dtype=DataType.Index, value=extent)
    step = Size(name="step", dtype=DataType.Index, value=apart)
    most = Size(name="size", dtype=DataType.Int, value=axis.size)
    at, worst, bound = Var(count.dtype, "at"), Var(most.dtype, "worst"), Var(most.dtype, most.name)
    # LLVM loads vectors of positions only where it knows that they are adjacent.
    read_at = at if apart == 1 else at * Var(step.dtype, step.name)
    place = cast(Load(read.dtype, read, read_at), bound.dtype)
    # Counted from the end, the last of n positions is -1 and the first is -n.
    below = Const(bound.dtype, -1) - place if axis.wraps else bound
    farther = Apply(bound.dtype, "max", (worst, select(place < 0, below, place)))
    body = (
        Let(name=worst.name, value=Const(worst.dtype, 0)),
        _loop(at, Var(count.dtype, count.name), (Let(name=worst.name, value=farther, update=True),)),
        Store(buffer=_MISSED, position=index(0), value=cast(worst >= bound, DataType.Int)),
    )
    sizes = (count, most) if apart == 1 else (count, step, most)
    return _kernel("positions", places.device, (read,), body, sizes)


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


def _nest(loops: Loops, visit: _Visit) -> tuple[Statement, ...]:
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
    traced = target if start is None else tensor_of(scatter.start)
    order = sorted(range(len(target.shape)), key=lambda axis: -target.strides[axis])
    loops = loops_over([target.shape[a] for a in order], [[t.strides[a] for a in order] for t in (target, traced)])

    def visit(at: Term, from_: Term) -> Iterator[Statement]:
        value = constant(result.dtype, scatter.start) if start is None else Load(result.dtype, start, from_)
        yield Store(buffer=result, position=at, value=value)

    return _nest(loops, visit)


def _visits(scatter: Scatter, buffers: Sequence[Buffer], visit: _Visit) -> tuple[Statement, ...]:
    """Return the loops over the source; a position is read, and checked, in the outermost loop that determines it."""
    tensors = (scatter.steps, scatter.source_steps, *(each.steps for each in scatter.positions))
    loops = loops_over(scatter.extents, tensors)
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

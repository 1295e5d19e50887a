"""Writes at positions that are data, such as the gradients of look-ups, as kernels on the host.

No kernel of a region computes such an op. Torch's functions for it visit one element, or one row, at a time, which
costs several times as much as the additions: a graph's function (`fuser_lab.bridge.flat`) calls a kernel in their
place. The kernel knows all sizes and strides, fills or copies the operand that it writes into, and then visits the
source in the order of its axes, by one thread, so that equal positions have one order. Positions outside of their axis
raise an error after the kernel, which skips them.
"""

from collections.abc import Callable, Iterator, Sequence

from fuser_lab.bridge.lowerings.registry import DTYPES
from fuser_lab.bridge.scatters import (
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
from fuser_lab.codegen.kernel_ir import Buffer, If, Kernel, Let, Load, Loop, Missed, Phase, Role, Statement, Store
from fuser_lab.codegen.pipeline import GeneratedKernel, generated_from
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.dtypes import DataType
from fuser_lab.ir.scalar import Number
from fuser_lab.ir.term import Apply, Term, TermLike, Var, cast, index, select
from fuser_lab.ir.transform import ParallelType
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
        """Compile the kernel."""
        with interrupts_deferred():
            (call,) = host_calls(kernel)
        (phase,) = kernel.kernel_ir.phases
        arrays, self.words = zip(*(movable(buffer.dtype) for buffer in phase.buffers), strict=True)
        assert call.missed is not None
        self.missed, self._call, self._arguments = call.missed, call, list(arrays)
        self.of_tensors: TensorCall | None = None
        if call.of_tensors is not None and can_read_tensors():
            numbers = tuple(range(len(arrays)))
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
    inputs = tuple(b for b in (start, *positions, source) if b is not None)
    host = find(target.device)
    assert host is not None  # of a tensor in host memory
    phase = Phase(name=scatter.op, buffers=(*inputs, result), scalars=(), body=body)
    return PositionsKernel(
        generated_from(
            Kernel(
                name=scatter.op, target=host.name, scheduler=SchedulerType.EXPR_EVAL, inputs=inputs, scalars=(),
                outputs=(result,), workspace=(), phases=(phase,), ops=((scatter.op, scatter.op),),
            ),
        ),
    )


_Visit = Callable[[Term, Term], Iterator[Statement]]  # the statements for the places of an element in two tensors


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
            written: tuple[Statement, ...] = (If(condition=is_within, then=rest, otherwise=(Missed(),)),)
            if scatter.skipped is not None:
                written = (If(condition=Apply(DataType.Bool, "ne", (here, index(scatter.skipped))), then=written),)
            return (Let(name=here.name, value=read), *written)
        if depth == len(loops):
            return tuple(visit(at, place(1)))
        variable, (extent, steps) = variables[depth], loops[depth]
        return (_loop(variable, extent, inside(depth + 1, waiting, at + variable * steps[0])),)

    return inside(0, tuple(range(len(buffers))), index(0))

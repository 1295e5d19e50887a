"""The memory accesses of a kernel, step by step: each statement with the elements that each thread accesses.

The steps are those of the evaluation in lock step (`fuser_lab.codegen.kernel_eval`): a statement is one step of all
threads that reach it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np

from fuser_lab.codegen import kernel_ir as ir
from fuser_lab.codegen.kernel_eval import Lanes, Trace, evaluate_kernel
from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.errors import UnsupportedError
from fuser_lab.ir import Fusion, TensorView
from fuser_lab.ir.term import Var
from fuser_lab.ir.transform import ParallelType
from fuser_lab.ops.rules import Array
from fuser_lab.targets import target_of

MOST_ELEMENTS: Final = 256  # per tensor
MOST_STEPS: Final = 1500  # steps of an evaluation that are recorded
_MOST_PRINTED, _MOST_NAMED = 24, 8
_AXES: Final = {
    ParallelType.grid_x: "block", ParallelType.block_x: "thread x", ParallelType.block_y: "thread y",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch:
    """The accesses to one buffer in a step: thread ``threads[k]`` reads or writes element ``elements[k]``.

    Each block has its own copy of a buffer in shared memory, and each thread of one in scratch memory.
    """

    buffer: str
    write: bool
    threads: tuple[int, ...]
    elements: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelStep:
    """One statement of one iteration, executed by all threads that reach it.

    Attributes
    ----------
    phase, statement
        The number of the launch, and the statement's position there in the order of `walk`.
    kind
        ``"access"``, ``"reduce"`` (threads combine their values) or ``"barrier"``.
    loops
        The enclosing serial loops, outermost first, each with its iteration number for all threads or per thread.
    axes
        The dimensions of the threads, slowest first, such as (``"block"``, 4): thread n is the n-th of their product.
    threads
        The threads that take part.
    touches
        The elements that they read and write.
    """

    phase: int
    statement: int
    kind: str
    loops: tuple[tuple[str, int | tuple[int, ...]], ...]
    axes: tuple[tuple[str, int], ...]
    threads: tuple[int, ...]
    touches: tuple[Touch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A buffer for drawing: ``cells`` are the elements at each position of a tensor of this shape, row by row.

    ``role`` is ``"input"``, ``"output"``, ``"workspace"``, ``"shared"`` or ``"scratch"``.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    cells: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class KernelSteps:
    """The steps of a kernel, with the data to follow them.

    ``lines`` gives the statement of each line of the source as (phase, position), or None. ``shrunk`` pairs extents of
    the requested kernel with the smaller extents of the steps.
    """

    target: str
    source: str
    lines: tuple[tuple[int, int] | None, ...]
    grids: tuple[Grid, ...]
    steps: tuple[KernelStep, ...]
    shrunk: tuple[tuple[int, int], ...] = ()

    def lines_of(self, step: KernelStep) -> tuple[int, ...]:
        """Return the numbers, from 1, of the source lines of a step."""
        return tuple(n for n, place in enumerate(self.lines, 1) if place == (step.phase, step.statement))

    @property
    def note(self) -> str:
        """A sentence on extents that were reduced; empty if there are none."""
        if not self.shrunk:
            return ""
        changed = ", ".join(f"{old} is {new}" for old, new in sorted(self.shrunk))
        return f"This is the kernel of a small example, where {changed}; its numbers of threads and iterations differ."

    def __str__(self) -> str:
        """Return one line per step, truncated if there are many."""
        lines = [f"{len(self.steps)} steps of the {self.target} kernel. {self.note}".strip()]
        lines += [f"{n:4}  {self._line(step)}" for n, step in enumerate(self.steps[:_MOST_PRINTED])]
        if len(self.steps) > _MOST_PRINTED:
            lines.append(f"… and {len(self.steps) - _MOST_PRINTED} more")
        return "\n".join(lines)

    def __repr__(self) -> str:
        """Return the text."""
        return str(self)

    def _line(self, step: KernelStep) -> str:
        rounds = ", ".join(f"{name}={_brief(value)}" for name, value in step.loops)
        done = [f"{'writes' if t.write else 'reads'} {t.buffer}{_brief(t.elements)}" for t in step.touches]
        action = ", ".join(done) or {"reduce": "threads combine their values", "barrier": "barrier"}[step.kind]
        where = f"line {self.lines_of(step)[-1]}"
        threads = f"{len(step.threads)} thread{'s' * (len(step.threads) != 1)}"
        return "  ".join(part for part in (where, rounds, threads, action) if part)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form, with the version of its schema first."""
        return {"schema": "fuser_lab.kernel_steps", "version": 1, **asdict(self)}


def _on_a_line(step: KernelStep, generated: GeneratedKernel) -> KernelStep:
    """Return a step with the statement whose line it executes."""
    place = step.phase, step.statement
    phase, statement = generated.repeats.get(place, place)
    return replace(step, phase=phase, statement=statement)


def kernel_steps(
    generated: GeneratedKernel, fusion: Fusion, shrunk: Mapping[int, int] | None = None, *, most: int = MOST_STEPS,
) -> KernelSteps:
    """Return the steps of a kernel of a fusion with known extents.

    Raises
    ------
    UnsupportedError
        If a tensor has more than 256 elements, or the kernel takes more than ``most`` steps.
    """
    largest = max((prod(tv.shape) for tv in fusion.tensors.values()), default=0)
    if largest > MOST_ELEMENTS:
        raise UnsupportedError(f"steps: tensors must have at most {MOST_ELEMENTS} elements, given {largest}.")
    kernel = _distinct(generated.kernel_ir)
    log = _Log(most=most)
    evaluate_kernel(kernel, _memory(kernel, fusion), partial(_watcher, log, kernel))
    return KernelSteps(
        target=kernel.target,
        source=generated.source,
        lines=generated.line_statements,
        grids=tuple(_grids(kernel, fusion)),
        steps=tuple(_on_a_line(step, generated) for step in log.steps),
        shrunk=tuple((shrunk or {}).items()),
    )


def _brief(numbers: int | Sequence[int]) -> str:
    """Return numbers in brackets, as a range if they are consecutive."""
    if isinstance(numbers, int):
        return str(numbers)
    if len(numbers) > 1 and list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"[{numbers[0]}..{numbers[-1]}]"
    more = ", …" if len(numbers) > _MOST_NAMED else ""
    return f"[{', '.join(map(str, numbers[:_MOST_NAMED]))}{more}]"


@dataclass(slots=True)
class _Log:
    most: int
    steps: list[KernelStep] = field(default_factory=list)

    def append(self, step: KernelStep) -> None:
        if len(self.steps) >= self.most:
            raise UnsupportedError(f"steps: the kernel takes more than {self.most} steps; use smaller inputs.")
        self.steps.append(step)


def _watcher(log: _Log, kernel: ir.Kernel, phase: ir.Phase, memory: dict[str, Any], trace: Trace) -> Lanes:
    axes = _AXES if target_of(kernel.target).has_blocks else {ParallelType.grid_x: "core"}
    number = next(n for n, other in enumerate(kernel.phases) if other is phase)
    return _Watcher(log, number, axes, phase, memory, trace)


class _Watcher(Lanes):
    """Threads in lock step whose accesses are recorded."""

    def __init__(
        self, log: _Log, number: int, words: Mapping[ParallelType, str], phase: ir.Phase, memory: dict[str, Any],
        trace: Trace,
    ) -> None:
        super().__init__(phase, memory, trace)
        self._log, self._number, self._words = log, number, words
        self._places = {id(statement): place for place, statement in enumerate(ir.walk(phase.body))}
        self._touches: list[Touch] = []
        self._now: ir.Statement | None = None
        self._axes: tuple[tuple[str, int], ...] = ()
        self._serials: tuple[str, ...] = ()

    def _statement(self, statement: ir.Statement) -> None:
        self._flush()  # a condition or bound is read before the statements that it controls
        around, self._now = self._now, statement
        super()._statement(statement)
        self._flush(always=isinstance(statement, ir.Reduce | ir.Scan | ir.Barrier))
        self._now = around

    def _spread(self, loop: ir.Loop) -> None:
        around = self._axes
        count = int(self._eval(loop.stop).flat[0])
        self._axes = (*around, (self._words[loop.parallel], count))
        super()._spread(loop)
        self._axes = around

    def _serial(self, loop: ir.Loop) -> None:
        around, self._serials = self._serials, (*self._serials, loop.var)
        super()._serial(loop)
        self._serials = around

    def _load(self, load: ir.Load) -> Array:
        self._touch(load.buffer, load.position, write=False)
        return super()._load(load)

    def _store(self, statement: ir.Store) -> None:
        super()._store(statement)
        self._touch(statement.buffer, statement.position, write=True)

    def _transpose(self, move: ir.Transpose) -> None:
        super()._transpose(move)
        read, written = self._transposed_elements(move)
        for thread in np.flatnonzero(self._mask).tolist():
            for buffer, elements in ((move.source, read), (move.target, written[thread])):
                self._touches.append(
                    Touch(
                        buffer=buffer.name, write=buffer is move.target, threads=(thread,) * len(elements),
                        elements=tuple(elements.tolist()),
                    ),
                )

    def _touch(self, buffer: ir.Buffer, position: Any, *, write: bool) -> None:
        if buffer.role is ir.Role.WORDS or not self._mask.any():
            return  # words only stage data between memory and registers
        index = self._spread_out(self._eval(position))
        threads = np.flatnonzero(self._mask)
        self._touches.append(
            Touch(
                buffer=buffer.name, write=write, threads=tuple(threads.tolist()),
                elements=tuple(index[threads].tolist()),
            ),
        )

    def _flush(self, *, always: bool = False) -> None:
        if self._now is None or not (self._touches or always):
            return
        threads = sorted({n for touch in self._touches for n in touch.threads}) or np.flatnonzero(self._mask).tolist()
        kind = {ir.Reduce: "reduce", ir.Scan: "reduce", ir.Barrier: "barrier"}.get(type(self._now), "access")
        self._log.append(
            KernelStep(
                phase=self._number, statement=self._places[id(self._now)], kind=kind,
                loops=tuple((name, self._round(name, threads)) for name in self._serials), axes=self._axes,
                threads=tuple(threads), touches=tuple(_merge_touches(self._touches)),
            ),
        )
        self._touches = []

    def _round(self, name: str, threads: Sequence[int]) -> int | tuple[int, ...]:
        value = self._env.get(name)
        if value is None:
            return 0
        rounds = self._spread_out(value)[list(threads)]
        return int(rounds[0]) if (rounds == rounds[0]).all() else tuple(rounds.tolist())


def _merge_touches(touches: Sequence[Touch]) -> Iterator[Touch]:
    """Yield accesses, with those to the same buffer in the same direction merged and sorted by thread."""
    kinds = dict.fromkeys((touch.buffer, touch.write) for touch in touches)
    for buffer, write in kinds:
        pairs = sorted({
            pair for touch in touches if (touch.buffer, touch.write) == (buffer, write)
            for pair in zip(touch.threads, touch.elements, strict=True)
        })
        yield Touch(
            buffer=buffer, write=write, threads=tuple(n for n, _ in pairs), elements=tuple(n for _, n in pairs),
        )


def _distinct(kernel: ir.Kernel) -> ir.Kernel:
    """Return the kernel with a distinct object for each statement, so that identity determines its position."""
    return replace(kernel, phases=tuple(replace(p, body=_copy(p.body)) for p in kernel.phases))


def _copy(statements: Sequence[ir.Statement]) -> tuple[ir.Statement, ...]:
    return tuple(ir.map_blocks(replace(statement), _copy) for statement in statements)


def _memory(kernel: ir.Kernel, fusion: Fusion) -> dict[str, Any]:
    """Return inputs and outputs: small positive numbers, with integers that are valid as indices."""
    bound = min((n for tv in fusion.tensors.values() for n in tv.shape if n > 1), default=1)
    memory: dict[str, Any] = {}
    for buffer in kernel.inputs:
        numbers = np.arange(buffer.size)
        kind = buffer.dtype.numpy
        memory[buffer.name] = (numbers % bound if buffer.dtype.is_integral else 0.5 + numbers % 7 / 7).astype(kind)
    for buffer in kernel.outputs:
        memory[buffer.name] = np.zeros(buffer.size, buffer.dtype.numpy)
    memory.update((scalar.name, _number(scalar)) for scalar in kernel.scalars)
    return memory


def _number(scalar: Var) -> Any:
    return np.asarray(1).astype(scalar.dtype.compute.numpy)


def _grids(kernel: ir.Kernel, fusion: Fusion) -> Iterator[Grid]:
    for buffer in (*kernel.inputs, *kernel.outputs):
        tensor = fusion.tensors[buffer.name]
        yield Grid(name=buffer.name, role=buffer.role.value, shape=tensor.shape, cells=_cells(tensor))
    allocated = (s.buffer for phase in kernel.phases for s in ir.walk(phase.body) if hasattr(s, "buffer"))
    block_buffers = (buffer for buffer in allocated if buffer.role in {ir.Role.SCRATCH, ir.Role.SHARED})
    for buffer in dict.fromkeys((*kernel.workspace, *block_buffers)):
        yield Grid(
            name=buffer.name, role=buffer.role.value, shape=(buffer.size,), cells=tuple(range(buffer.size)),
        )


def _cells(tensor: TensorView) -> tuple[int, ...]:
    """Return the element of the buffer at each position of a tensor, row by row."""
    layout = ir.layout_of(tensor)
    places = np.full(tensor.shape, layout.offset, dtype=np.int64)
    for axis, stride in enumerate(layout.strides):
        shape = [1] * len(tensor.shape)
        shape[axis] = tensor.shape[axis]
        places = places + (np.arange(tensor.shape[axis]) * stride).reshape(shape)
    return tuple(places.ravel().tolist())

"""Links between a kernel's source, schedule and machine code: lines that belong to the same Kernel IR statements."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fuser_lab.codegen import kernel_ir as ir
from fuser_lab.codegen.emitter import Place
from fuser_lab.codegen.numba_cpu import CpuEmitter
from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.ir.term import Term
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.parameters import NestChoice
from fuser_lab.schedule.state import MEANINGS
from fuser_lab.targets import target_of

_LOCATION: Final = re.compile(r"\s*\.loc\s+\d+\s+(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedLine:
    """A line, and the statements of Kernel IR that it represents, as (phase, position)."""

    text: str
    places: frozenset[Place] = frozenset()


def source_lines(generated: GeneratedKernel) -> tuple[LinkedLine, ...]:
    """Return the lines of the source, each with its statements."""
    lines = generated.source.split("\n")
    places = [*generated.line_statements, *[None] * len(lines)]
    printed = {place: {place} for place in places if place is not None}
    for place, first in generated.repeats.items():
        printed[first].add(place)
    return tuple(
        LinkedLine(text=text, places=frozenset() if place is None else frozenset(printed[place]))
        for text, place in zip(lines, places, strict=False)
    )


def schedule_lines(generated: GeneratedKernel, segment: int = 0) -> tuple[LinkedLine, ...]:
    """Return the schedule as Python: a call of ``plan.with_params`` with each nest's parameters, then the loops.

    A loop is linked to itself and to everything that it contains, a parameter to the loops and buffers that it
    determines, if any.
    """
    kernel = generated.kernel_ir
    words = CpuEmitter(kernel).term  # indices are printed in the same way for all targets
    kinds: Mapping[ParallelType, str] = target_of(kernel.target).emitter().loops
    lines: list[LinkedLine] = []
    for choice in kernel.nests:
        lines += _call(choice, kernel, segment)
    for number, phase in enumerate(kernel.phases):
        x, y = phase.launch.threads
        launch = f": {phase.launch.blocks} blocks of {x} x {y} threads" if target_of(kernel.target).has_blocks else ""
        lines += [LinkedLine(text=""), LinkedLine(text=f"# loops of {phase.name}{launch}")]
        loops = (nested for nested in _tree(phase.body, 0, 0) if isinstance(nested.statement, ir.Loop))
        lines += [_loop(number, nested, words, kinds) for nested in loops]
    return tuple(lines)


def machine_lines(ptx: str, generated: GeneratedKernel) -> tuple[LinkedLine, ...]:
    """Return the lines of PTX that was compiled with line numbers, each with the statement behind its source line.

    Inlined functions have line numbers of their own files, so a number without a statement is not linked.
    """
    statements = generated.line_statements
    lines: list[LinkedLine] = []
    places: frozenset[Place] = frozenset()
    for text in ptx.split("\n"):
        said = _LOCATION.match(text)
        if said:
            number = int(said.group(1))
            place = statements[number - 1] if 0 < number <= len(statements) else None
            places = frozenset() if place is None else frozenset({place})
        elif not text.startswith("\t"):
            places = frozenset()  # labels, braces, the declaration
        lines.append(LinkedLine(text=text, places=frozenset() if said else places))
    return tuple(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nested:
    """A statement with its position in the phase, its loop depth, and the position after its nested statements."""

    place: int
    statement: ir.Statement
    depth: int
    end: int


def _tree(statements: Sequence[ir.Statement], place: int, depth: int) -> list[_Nested]:
    """Return every statement in the order of `walk`, numbered from ``place``."""
    tree: list[_Nested] = []
    for statement in statements:
        inner: list[_Nested] = []
        if isinstance(statement, ir.Loop):
            inner = _tree(statement.body, place + 1, depth + 1)
        elif isinstance(statement, ir.If):
            inner = _tree((*statement.then, *statement.otherwise), place + 1, depth)
        end = place + 1 + len(inner)
        tree += [_Nested(place=place, statement=statement, depth=depth, end=end), *inner]
        place = end
    return tree


def _loop(
    phase: int, nested: _Nested, words: Callable[[Term], str], kinds: Mapping[ParallelType, str],
) -> LinkedLine:
    loop = nested.statement
    if not isinstance(loop, ir.Loop):
        raise TypeError(loop)
    start, stop = words(loop.start), words(loop.stop)
    rounds = stop if start == "0" else f"{start}, {stop}"
    kind = kinds.get(loop.parallel, loop.parallel.name)
    text = f"{'    ' * nested.depth}for {loop.var} in range({rounds}):  # {kind}"
    return LinkedLine(text=text, places=frozenset((phase, place) for place in range(nested.place, nested.end)))


def _call(choice: NestChoice, kernel: ir.Kernel, segment: int) -> Iterator[LinkedLine]:
    nest = f", nest={choice.number}" if choice.number else ""
    yield LinkedLine(text=f"plan = plan.with_params({segment}, target={choice.target!r}{nest},")
    for name, value in choice.values.items():
        decides = _DECIDED.get(name)
        places = frozenset(
            (number, nested.place)
            for number, phase in enumerate(kernel.phases) if phase.schedule == choice.schedule and decides is not None
            for nested in _tree(phase.body, 0, 0) if decides(nested.statement)
        )
        # Heuristics may choose more blocks than there are rows, which is illegal by hand.
        legal = min(value, max(choice.space.rows, 1)) if name == "blocks" and isinstance(value, int) else value
        yield LinkedLine(text=f"    {name}={legal!r},  # {MEANINGS[name]}", places=places)
    yield LinkedLine(text=")")


def _runs_on(*kinds: ParallelType) -> Callable[[ir.Statement], bool]:
    return lambda statement: isinstance(statement, ir.Loop) and statement.parallel in kinds


def _uses(*roles: ir.Role) -> Callable[[ir.Statement], bool]:
    def uses(statement: ir.Statement) -> bool:
        buffers = (getattr(statement, name, None) for name in ("buffer", "words"))
        return any(isinstance(buffer, ir.Buffer) and buffer.role in roles for buffer in buffers)

    return uses


def _meets(statement: ir.Statement) -> bool:
    """Whether threads of a block run a loop there, or exchange values."""
    meets = isinstance(statement, ir.Reduce | ir.Scan | ir.Barrier)
    return meets or _runs_on(ParallelType.block_x, ParallelType.block_y)(statement)


def _moves_vectors(statement: ir.Statement) -> bool:
    return isinstance(statement, ir.VectorLoad | ir.VectorStore) or _runs_on(ParallelType.vectorize)(statement)


_DECIDED: Final[Mapping[str, Callable[[ir.Statement], bool]]] = {
    "threads": _meets,
    "blocks": _runs_on(ParallelType.grid_x),
    "vector": _moves_vectors,
    "unroll": _runs_on(ParallelType.unroll),
    "persistent": _uses(ir.Role.SCRATCH, ir.Role.WORDS),
    "shared": _uses(ir.Role.SHARED),
    "tile": _uses(ir.Role.SCRATCH, ir.Role.SHARED),
    "parallel": _runs_on(ParallelType.grid_x),
}

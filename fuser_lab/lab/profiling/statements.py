"""The statements of a kernel's source that read and write memory, each with its share of the traffic."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fuser_lab.codegen.emitter import Place
from fuser_lab.codegen.statement_traffic import StatementTraffic, statement_traffic
from fuser_lab.errors import CodegenError, CompilationError, UnsupportedError
from fuser_lab.plan import Plan, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledStatement:
    """What one statement of a segment's kernel reads from a tensor in memory, or writes to it.

    Attributes
    ----------
    segment, kernel, phase, place
        Number of the segment, name of the launch, its number, and the statement's place in it.
    line, text
        Number of the source line, from 1, and the line.
    tensor, write
        The tensor, or the workspace, and whether it is written.
    bytes
        Requested bytes: an element counts as often as it is accessed, whichever cache serves it.
    tensor_bytes
        Size of the tensor.
    share
        Share of all bytes that the segment's statements request.
    seconds
        The same share of the segment's measured time; NaN if it was not measured.
    at_most
        Whether a data-dependent condition was assumed to be true.
    """

    segment: int
    kernel: str
    phase: int
    place: int
    line: int
    text: str
    tensor: str
    write: bool
    bytes: float
    tensor_bytes: int
    share: float
    seconds: float
    at_most: bool


def profiled_statements(plan: Plan, target: str, seconds: Mapping[int, float]) -> tuple[ProfiledStatement, ...]:
    """Return the statements of all segments that have a kernel for a target; ``seconds`` are those of segments."""
    return tuple(
        statement
        for segment in plan.segments
        for statement in _of_segment(segment, target, seconds.get(segment.index, math.nan))
    )


def _of_segment(segment: Segment, target: str, seconds: float) -> list[ProfiledStatement]:
    try:
        generated = segment.kernel(target)
    except (CodegenError, CompilationError, UnsupportedError):
        return []  # the array library evaluates it, or no scheduler accepts it
    # The last line of a statement, because comments are above it.
    numbered = enumerate(generated.line_statements, 1)
    lines: dict[Place, int] = {place: number for number, place in numbered if place is not None}
    lines |= {place: lines[first] for place, first in generated.repeats.items()}
    text = generated.source.split("\n")
    traffic: list[StatementTraffic] = [
        statement for statement in statement_traffic(generated.kernel_ir) if statement.place in lines
    ]
    total = sum(statement.bytes for statement in traffic)
    return [
        ProfiledStatement(
            segment=segment.index, kernel=generated.kernel_ir.phases[statement.place[0]].name, phase=statement.place[0],
            place=statement.place[1], line=lines[statement.place], text=text[lines[statement.place] - 1].strip(),
            tensor=statement.buffer.name, write=statement.write, bytes=statement.bytes,
            tensor_bytes=statement.buffer.size * statement.buffer.dtype.itemsize, share=statement.bytes / total,
            seconds=seconds * statement.bytes / total, at_most=statement.at_most,
        )
        for statement in traffic
    ]

"""Short rows on a GPU that begin anywhere in an access: a block copies its rows through shared memory.

    all threads copy the rows of the block to shared memory, in whole accesses
    for each pass over the rows:
        each thread reads its elements from there, one by one, and writes results there
    all threads copy the results to memory, in whole accesses

Several rows together begin and end with an access, so that none is partial.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from fuser_lab.codegen.gpu_common import bound, gpu_phase, open_rounds, words_of
from fuser_lab.codegen.gpu_row_steps import Row, RowPlan
from fuser_lab.codegen.gpu_rows import RowOfBlock, at_row, passes_over, rows_of_lanes
from fuser_lab.codegen.index_map import index_var
from fuser_lab.codegen.index_math import simplify
from fuser_lab.codegen.kernel_ir import Alloc, Barrier, Buffer, Phase, Role, VectorLoad, VectorStore
from fuser_lab.codegen.layout import Layout
from fuser_lab.codegen.progressions import ACCESS_BYTES
from fuser_lab.ir.term import Term


@dataclass(frozen=True, kw_only=True)
class StagedLayout(Layout):
    """Positions in a copy of rows, of which the current one begins at ``start`` in memory and ``first`` in the copy."""

    start: Term
    first: Term

    def position(self, index: Sequence[Term]) -> Term:
        """Return the position of an element of the current row."""
        return super().position(index) - self.start + self.first


def write_staged_rows(plan: RowPlan) -> Iterator[Phase]:
    """Yield the only phase of rows that pass through shared memory."""
    yield gpu_phase(plan.nest, "", partial(rows_of_lanes, plan, _staged_row))


def _staged_row(row: Row, here: RowOfBlock) -> None:
    """Write rows that are copied to shared memory, where any element can be accessed, and results back from it."""
    code, values, height = row.code, row.code.values, row.plan.nest.schedule.threads[1]
    space, size = row.plan.facts.space, height * row.plan.facts.space.depth
    copies = {tv: words_of(values, tv, size, "rows", Role.SHARED) for tv in row.plan.facts.row_tensors()}
    pairs = {tv: (code.buffers[tv.name], copy) for tv, copy in copies.items()}
    _copy(row, here, dict(pair for tv, pair in pairs.items() if tv not in code.nest.full), load=True)
    values.emit(Barrier())
    with ExitStack() as stack:
        number = bound(values, stack, "row", here.position, space.rows, here.reach)
        first, start = values.simplify((here.position - here.block * height) * space.depth), number * space.depth
        buffers = {**code.buffers, **{tv.name: buffer for tv, buffer in copies.items()}}
        layouts = {**code.layouts, **{
            tv: StagedLayout(strides=old.strides, offset=old.offset, size=size, start=start, first=first)
            for tv in copies for old in (code.layouts[tv],)
        }}
        stack.enter_context(values.moved(buffers, layouts))
        staged_code = replace(code, buffers=buffers, layouts=layouts)
        passes_over(at_row(replace(row, groups=replace(row.groups, code=staged_code)), number))
    if code.nest.full:
        values.emit(Barrier())
        _copy(row, here, dict(pairs[tv] for tv in code.nest.full), load=False)


def _copy(row: Row, here: RowOfBlock, pairs: Mapping[Buffer, Buffer], *, load: bool) -> None:
    """Copy the rows of a block to shared memory, or from it, by whole accesses: all loads, then all stores."""
    values, (lanes, height) = row.code.values, row.plan.nest.schedule.threads
    thread = row.lane if height == 1 else index_var("line") * lanes + row.lane
    threads, words, ranges = lanes * height, dict[Buffer, Buffer](), values.scope.ranges
    for storing in (False, True):
        for buffer, shared in pairs.items():
            width = ACCESS_BYTES // buffer.dtype.itemsize
            count = shared.size // width
            steps = -(-count // threads)
            if not storing:
                words[buffer] = Buffer(
                    name=values.fresh(f"{shared.name}_words"), dtype=buffer.dtype, size=width * steps, role=Role.WORDS,
                )
                values.emit(Alloc(buffer=words[buffer]))
            with ExitStack() as stack:
                step = open_rounds(values, stack, "step", steps)
                inside = bound(values, stack, "access", step * threads + thread, count, steps * threads)
                number = simplify(here.block * count + inside, ranges)
                stack.enter_context(values.guard(number < buffer.size // width))
                memory, copy = (buffer, number * width), (shared, simplify(inside * width, ranges))
                place, at = memory if storing is not load else copy
                kind = VectorStore if storing else VectorLoad
                values.emit(kind(
                    buffer=place, position=simplify(at, ranges), words=words[buffer],
                    slot=simplify(step * width, ranges), count=width, width=width,
                ))

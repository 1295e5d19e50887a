"""Rows on a GPU that pass through shared memory, whole or in part.

Short rows that begin anywhere in an access are staged: a block copies its rows through shared memory.

    all threads copy the rows of the block to shared memory, in whole accesses
    for each pass over the rows:
        each thread reads its elements from there, one by one, and writes results there
    all threads copy the results to memory, in whole accesses

Several rows together begin and end with an access, so that none is partial.

Tensors in which the same element of consecutive rows is adjacent pass through shared memory as well: a sector has
elements of several rows, and the threads of one row would access it in part.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from fuser_lab.codegen.gpu_common import bound, gpu_phase, load_group, open_rounds, words_of
from fuser_lab.codegen.gpu_row_steps import Row, RowPlan
from fuser_lab.codegen.gpu_rows import RowOfBlock, at_row, begun_with_lines, open_row, passes_over, rows_of_lanes
from fuser_lab.codegen.index_map import index_var
from fuser_lab.codegen.index_math import ACCESS_BYTES, simplify
from fuser_lab.codegen.kernel_ir import (
    LARGEST_STATIC,
    Barrier,
    Buffer,
    Layout,
    Load,
    Phase,
    Role,
    VectorLoad,
    VectorStore,
)
from fuser_lab.codegen.nest_writing import ZERO, PhaseCode
from fuser_lab.cost.device import WARP
from fuser_lab.dtypes import DataType
from fuser_lab.ir import TensorView
from fuser_lab.ir.term import Apply, Term, apply


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
    write = _row_of_crossed if plan.facts.crossed else _staged_row
    yield gpu_phase(plan.nest, "", partial(rows_of_lanes, plan, write))


def _row_of_crossed(row: Row, here: RowOfBlock) -> None:
    """Write all passes over a row, of which some inputs and results pass through shared memory."""
    first = row.code.values.simplify(here.block * row.plan.nest.schedule.threads[1])
    with copied_across(row, first, here.position - first) as copied, ExitStack() as stack:
        _, current = open_row(copied, stack, here)
        passes_over(replace(current, groups=begun_with_lines(current.plan, current.groups)))


@contextmanager
def copied_across(row: Row, first: Term, line: Term) -> Iterator[Row]:
    """Copy tensors in which elements of consecutive rows are adjacent to shared memory, or results from there.

    The threads of a warp access whole sectors, each with an element of several rows of the block, from row ``first``
    on. All loads are in flight before the first element is stored in shared memory. The row of a thread, which is
    yielded, is number ``line`` of the block.
    """
    code, values, facts = row.code, row.code.values, row.plan.facts
    (lanes, height), depth = row.plan.nest.schedule.threads, facts.space.depth
    pitch = _pitch(depth, height)
    is_dynamic = height * pitch * facts.space.crossed_bytes > LARGEST_STATIC
    buffers, layouts, end = dict(code.buffers), dict(code.layouts), 0
    line, begins = values.simplify(line), dict[TensorView, int]()
    words = dict[TensorView, Buffer]()
    for tensor, axis in facts.crossed.items():
        # Dynamic buffers begin at the same address; each uses a part.
        begins[tensor] = -(-end // tensor.dtype.itemsize) if is_dynamic else 0
        end = (begins[tensor] + height * pitch) * tensor.dtype.itemsize
        size = max(end, LARGEST_STATIC + tensor.dtype.itemsize if is_dynamic else 0) // tensor.dtype.itemsize
        buffers[tensor.name] = words_of(values, tensor, size, "across", Role.SHARED)
        layouts[tensor] = StagedLayout(
            strides=tuple(int(number == axis) for number in range(len(tensor.shape))), offset=0, size=size, start=ZERO,
            first=values.simplify(line * pitch + begins[tensor]),
        )
        if tensor in code.nest.full:
            continue
        words[tensor] = words_of(values, tensor, -(-depth // lanes), "column")
        with _each_across(row) as (step, member, column):
            number = values.simplify(first + member)
            inside = apply("lt", number, facts.space.rows), apply("lt", column, depth)
            position = values.simplify(_position_across(code, tensor, axis, number, column))
            at = Apply(DataType.Index, "select", (Apply(DataType.Bool, "and", inside), position, ZERO))
            load_group(values, code.buffers[tensor.name], at, 1, words[tensor], step, 1)
    values.emit(Barrier())  # the rows before have been read
    if words:
        with _each_across(row) as (step, member, column), values.guard(column < depth):
            for tensor, buffer in words.items():
                place = member * pitch + column + begins[tensor]
                values.put(buffers[tensor.name], place, Load(buffer.dtype, buffer, step))
        values.emit(Barrier())
    with values.moved(buffers, layouts):
        yield replace(row, groups=replace(row.groups, code=replace(code, buffers=buffers, layouts=layouts)))
    results = [tensor for tensor in begins if tensor not in words]
    if results:
        values.emit(Barrier())
        with _each_across(row) as (_, member, column), values.guard(column < depth):
            number = values.let("row_of_block", values.simplify(first + member))
            with values.guard(number < facts.space.rows):
                for tensor in results:
                    copy, place = buffers[tensor.name], values.simplify(member * pitch + column + begins[tensor])
                    position = _position_across(code, tensor, facts.crossed[tensor], number, column)
                    values.put(code.buffers[tensor.name], position, Load(copy.dtype, copy, place))


def _position_across(code: PhaseCode, tensor: TensorView, axis: int, row: Term, column: Term) -> Term:
    """Return the position of an element in a tensor in which rows are adjacent; columns are along ``axis``."""
    return row + column * code.layouts[tensor].strides[axis] + code.layouts[tensor].offset


@contextmanager
def _each_across(row: Row) -> Iterator[tuple[Term, Term, Term]]:
    """Open a loop over the elements that a thread copies; yield their number, the row in the block and the column."""
    values, (lanes, height), depth = row.code.values, row.plan.nest.schedule.threads, row.plan.facts.space.depth
    thread = index_var("line") * lanes + row.lane if height > 1 else row.lane
    with ExitStack() as stack:
        step = open_rounds(values, stack, "step", -(-depth // lanes))
        place = values.let("place", values.simplify(step * (lanes * height) + thread))
        stack.enter_context(values.inlined({place.name: (0, -(-depth // lanes) * lanes * height - 1)}))
        yield step, values.remainder(place, height), values.quotient(place, height)


def _pitch(depth: int, height: int) -> int:
    """Return the elements between rows in shared memory, so that words of a column of several rows are in all banks."""
    return depth + (WARP // min(height, WARP) - depth) % WARP


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
                name = values.fresh(f"{shared.name}_words")
                words[buffer] = values.allocate(name, buffer.dtype, width * steps, Role.WORDS)
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

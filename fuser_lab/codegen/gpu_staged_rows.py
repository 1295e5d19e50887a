"""Short rows on a GPU that begin anywhere in an access: a block copies its rows through shared memory.

    all threads copy the rows of the block to shared memory, in whole accesses
    for each pass over the rows:
        each thread reads its elements from there, one by one, and writes results there
    all threads copy the results to memory, in whole accesses

Several rows together begin and end with an access, so that none is partial.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from fuser_lab.codegen.gpu_row_parts import PartedRowNest
from fuser_lab.codegen.gpu_rows import RowSection
from fuser_lab.codegen.index_map import index_var
from fuser_lab.codegen.index_math import simplify
from fuser_lab.codegen.kernel_ir import Alloc, Barrier, Buffer, Role, VectorLoad, VectorStore
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


class StagedRowNest(PartedRowNest):
    """Writes rows that pass through shared memory."""

    def _rows_of_block(
        self, stack: ExitStack, block: Term, position: Term, reach: int, sections: Sequence[RowSection],
    ) -> None:
        if self.schedule.staged:
            self._staged_rows(block, position, reach, sections)
        else:
            super()._rows_of_block(stack, block, position, reach, sections)

    def _staged_rows(self, block: Term, position: Term, reach: int, sections: Sequence[RowSection]) -> None:
        """Write rows that are copied to shared memory, where any element can be accessed, and results back from it."""
        values, nest, depth = self._values, self._nest, self.space.depth
        size = self.schedule.threads[1] * depth
        copies = {tv: self._words(tv, size, "rows", Role.SHARED) for tv in self._facts.row_tensors()}
        results = {self._buffers[tv.name]: copies[tv] for tv in nest.full}
        self._copy({self._buffers[tv.name]: copies[tv] for tv in copies if tv not in nest.full}, block, load=True)
        values.emit(Barrier())
        with ExitStack() as stack:
            row = self._bound(stack, "row", position, self.space.rows, reach)
            first = simplify((position - block * self.schedule.threads[1]) * depth, values.scope.ranges)
            before = self._buffers, self._layouts
            self._buffers = {**self._buffers, **{tv.name: buffer for tv, buffer in copies.items()}}
            self._layouts = {**self._layouts, **{
                tv: StagedLayout(strides=old.strides, offset=old.offset, size=size, start=row * depth, first=first)
                for tv in copies for old in (self._layouts[tv],)
            }}
            with values.moved(self._buffers, self._layouts):
                self._passes_over(row, sections)
            self._buffers, self._layouts = before
        if results:
            values.emit(Barrier())
            self._copy(results, block, load=False)

    def _copy(self, pairs: Mapping[Buffer, Buffer], block: Term, *, load: bool) -> None:
        """Copy the rows of a block to shared memory, or from it, by whole accesses: all loads, then all stores."""
        values, (lanes, height), ranges = self._values, self.schedule.threads, self._values.scope.ranges
        assert self._lane is not None
        thread: Term = self._lane if height == 1 else index_var("line") * lanes + self._lane
        threads, words = lanes * height, dict[Buffer, Buffer]()
        for storing in (False, True):
            for buffer, shared in pairs.items():
                width = ACCESS_BYTES // buffer.dtype.itemsize
                count = shared.size // width
                steps = -(-count // threads)
                if not storing:
                    words[buffer] = Buffer(
                        name=values.fresh(f"{shared.name}_words"), dtype=buffer.dtype, size=width * steps,
                        role=Role.WORDS,
                    )
                    values.emit(Alloc(buffer=words[buffer]))
                with ExitStack() as stack:
                    step = self._round(stack, "step", steps)
                    inside = self._bound(stack, "access", step * threads + thread, count, steps * threads)
                    number = simplify(block * count + inside, ranges)
                    stack.enter_context(values.guard(number < buffer.size // width))
                    memory, copy = (buffer, number * width), (shared, simplify(inside * width, ranges))
                    place, at = memory if storing is not load else copy
                    kind = VectorStore if storing else VectorLoad
                    values.emit(kind(
                        buffer=place, position=simplify(at, ranges), words=words[buffer],
                        slot=simplify(step * width, ranges), count=width, width=width,
                    ))

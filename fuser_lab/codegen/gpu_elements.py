"""Loops of nests without reductions on a GPU: each thread processes a few chunks of adjacent elements."""

from collections.abc import Iterator
from contextlib import ExitStack

from fuser_lab.codegen.gpu_lookups import LookupNest
from fuser_lab.codegen.index_math import simplify
from fuser_lab.codegen.kernel_ir import Launch, Phase
from fuser_lab.ir.term import Term, apply
from fuser_lab.ir.transform import ParallelType


class ElementNest(LookupNest):
    """Writes nests in which every element is computed separately."""

    def phases(self) -> Iterator[Phase]:
        """Yield the only phase."""
        yield self._phase(self._elements_at_positions if self._looks_up_ahead else self._elements)

    def _elements(self) -> Launch:
        schedule, count = self.schedule, self.space.rows
        vector = schedule.vector
        whole = count // vector
        with ExitStack() as stack:
            chunk = self._grid_stride(stack, "chunk" if vector > 1 else "i", -(-count // vector))
            if vector == 1:
                self._stores(self._flat(self._nest.kept, chunk))
            else:
                with self._values.guard(chunk < whole):
                    self._chunk_of(chunk, vector, ParallelType.vectorize)
                if count % vector:
                    with self._values.guard(apply("eq", chunk, whole)):
                        self._chunk_of(chunk, count % vector, ParallelType.serial)
        return Launch(blocks=schedule.blocks, threads=schedule.threads)

    def _chunk_of(self, chunk: Term, length: int, parallel: ParallelType) -> None:
        """Write the elements of one chunk."""
        with ExitStack() as stack:
            v = self._loop(stack, "v", length, parallel)
            flat = chunk * self.schedule.vector + v
            self._stores(self._flat(self._nest.kept, flat))

    def _grid_stride(self, stack: ExitStack, name: str, count: int) -> Term:
        """Open loops in which the threads of the grid visit every index below a count; return the index.

        Successive indices of a thread are a whole grid apart, so it often reads the same elements of an input that
        repeats.
        """
        schedule, values = self.schedule, self._values
        grid = schedule.blocks * schedule.threads[0]
        block = self._loop(stack, "block", schedule.blocks, ParallelType.grid_x)
        thread = self._loop(stack, "thread", schedule.threads[0], ParallelType.block_x)
        position: Term = block * schedule.threads[0] + thread
        rounds = -(-count // (grid * schedule.unroll))
        if rounds == schedule.unroll == 1:
            # The guard is written even if all blocks are full, so that kernels for other numbers of elements are the
            # same.
            return self._bound(stack, name, position, count, max(grid, count + 1))
        position = self._bound(stack, "first", position, count, grid)
        if rounds > 1:
            position = position + self._loop(stack, "step", rounds, ParallelType.serial) * (grid * schedule.unroll)
        if schedule.unroll > 1:
            position = position + self._loop(stack, "u", schedule.unroll, ParallelType.unroll) * grid
        position = simplify(position, values.scope.ranges)
        if rounds * schedule.unroll * grid > count:
            stack.enter_context(values.guard(position < count))
        return position

"""Loops of nests without reductions on a GPU: each thread processes a few chunks of adjacent elements."""

from contextlib import ExitStack
from dataclasses import replace

from fuser_lab.codegen.gpu_lookups import LookupNest
from fuser_lab.codegen.index_map import index_var
from fuser_lab.codegen.index_math import simplify
from fuser_lab.codegen.kernel_ir import Launch, Role, Statement
from fuser_lab.codegen.nest_lowering import extent_of
from fuser_lab.codegen.nests import flattened, trial
from fuser_lab.codegen.values import applied
from fuser_lab.codegen.vectorize import accesses, best_width
from fuser_lab.cost.work import function_class
from fuser_lab.ir import Expr, Scalar
from fuser_lab.ir.term import Apply, Term, Var, apply
from fuser_lab.ir.transform import ParallelType
from fuser_lab.ops import OPS
from fuser_lab.schedule.gpu_elements import LOOKUPS
from fuser_lab.schedule.state import Space

MANY = 1 << 12  # elements
MOST_REPEATS = 8  # chunks per thread that share inputs
CACHED = 1 << 17  # bytes: about what the L1 cache holds besides streamed data


class ElementNest(LookupNest):
    """Writes nests in which every element is computed separately."""

    def _space(self) -> Space:
        space = super()._space()
        if self._nest.reductions or space.transposed != (0, 0) or not self._nest.full:
            return space
        looked_up = space.rows % space.vector == 0 and bool(self._lookups())
        least = LOOKUPS if looked_up else 1
        return replace(
            space, repeats=self._repeats(space.rows, space.vector, least), looked_up=looked_up,
            slow_scalars=any(map(_is_slow_scalar, self._fusion.exprs)),
        )

    def _repeats(self, count: int, vector: int, least: int) -> int:
        """Return how many chunks of a thread share inputs that do not fit in the L1 cache.

        There are enough chunks for the shared bytes to be at most the bytes of each chunk alone, and at least ``least``
        if possible.
        """
        repeats = 1
        while repeats < MOST_REPEATS and count % (2 * repeats * vector) == 0:
            own, shared = self._shared_bytes(count // (2 * repeats), vector)
            if not shared:
                break
            repeats *= 2
            if shared <= repeats * own and repeats >= least:
                break
        return repeats

    def _shared_bytes(self, distance: int, vector: int) -> tuple[int, int]:
        """Return the bytes of an element's inputs, and of those shared by chunks ``distance`` elements apart.

        The latter are 0 if they may fit in the L1 cache.
        """
        part, chunk, v = index_var("part"), index_var("chunk"), index_var("v")
        ranges = {"part": (0, 1), "chunk": (0, distance // vector - 1), "v": (0, vector - 1)}
        places = flattened(self._nest.kept, part * distance + chunk * vector + v, ranges)
        statements = trial(self._fusion, self._nest, self._buffers, self._layouts, places, ranges)
        read = [a.buffer for a in accesses(statements, "v") if a.step == 1 and a.buffer.role is not Role.OUTPUT]
        among = frozenset({"chunk", "v"})
        common = [a.buffer for a in accesses(statements, "v", among=among) if a.step == 1]
        held = sum(b.size * b.dtype.itemsize for b in set(common)) <= CACHED
        shared = 0 if held else sum(b.dtype.itemsize for b in common)
        return max(sum(b.dtype.itemsize for b in read) - sum(b.dtype.itemsize for b in common), 1), shared

    @property
    def _count(self) -> int:
        return extent_of(self._nest.kept)

    def _vector(self) -> int:
        if self._nest.reductions or not self._nest.full:
            return super()._vector()
        if self._count % 2 and self._count < MANY:
            return 1

        def one(size: int) -> tuple[Statement, ...]:
            chunk, v = index_var("chunk"), index_var("v")
            ranges = {"chunk": (0, max(-(-self._count // size) - 1, 0)), "v": (0, size - 1)}
            places = flattened(self._nest.kept, chunk * size + v, ranges)
            return trial(self._fusion, self._nest, self._buffers, self._layouts, places, ranges)

        width = best_width(one, "v")
        # A partial last chunk needs separate code, which is not worthwhile for few elements.
        return width if self._count % width == 0 or self._count >= MANY else 1

    def _elements(self) -> Launch:
        if self._looks_up_ahead:
            return self._elements_at_positions()
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


def _is_slow_scalar(expr: Expr) -> bool:
    """Whether an expression computes a scalar, which every thread does, by a slow function."""
    if not isinstance(expr.outputs[0], Scalar) or OPS[expr.op.name].scalar is None:
        return False
    operands = [Var(value.dtype.compute, value.name) for value in expr.inputs]
    parts = applied(expr, operands).walk()
    return any(isinstance(part, Apply) and function_class(part.fn) == "special" for part in parts)

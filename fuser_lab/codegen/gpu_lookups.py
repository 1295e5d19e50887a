"""Elements at data-dependent positions: a thread reads its positions first, then the elements, then computes.

    for u in range(4):                      chunks of adjacent elements
        places[u] = T1[...]
    for u in range(4):
        found[u] = T0[places[u] ...]
    for u in range(4):
        T2[...] = f(found[u])

Loading a position and then its element is two waits in a row. Therefore several of each are in flight at once, without
a branch in between: threads beyond the end repeat the first chunk and store nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from fuser_lab.codegen.gpu_common import GpuReductions
from fuser_lab.codegen.index_map import Index
from fuser_lab.codegen.index_math import simplify, variables
from fuser_lab.codegen.kernel_ir import Alloc, Buffer, Launch, Load, Role, Store
from fuser_lab.codegen.nest_lowering import Places
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, TensorView
from fuser_lab.ir.term import Apply, Term, Var, index
from fuser_lab.ir.transform import ParallelType

Elements = list[tuple[TensorView, Index]]


class LookupNest(GpuReductions):
    """Writes nests without reductions that read inputs at data-dependent positions."""

    @property
    def _looks_up_ahead(self) -> bool:
        """Whether the chosen loops allow look-ups in advance: one round of whole chunks."""
        schedule = self.schedule
        fits = schedule.blocks * schedule.threads[0] * schedule.unroll * schedule.vector >= self.space.rows
        return self.space.looked_up and schedule.unroll > 1 and fits and self.space.rows % schedule.vector == 0

    def _elements_at_positions(self) -> Launch:
        schedule, values, nest = self.schedule, self._values, self._nest
        lookups = self._facts.lookups()
        with ExitStack() as stack:
            block = self._loop(stack, "block", schedule.blocks, ParallelType.grid_x)
            thread = self._loop(stack, "thread", schedule.threads[0], ParallelType.block_x)
            for depth in range(1, max(lookups.values(), default=0) + 1):
                exprs = [expr for expr, level in lookups.items() if level == depth]

                def results(places: Places, exprs: list[Expr] = exprs) -> Elements:
                    return [(expr.out, values.simplified(nest.at(expr.out, places))) for expr in exprs]

                def positions(places: Places, exprs: list[Expr] = exprs) -> Elements:
                    reads = (read for expr in exprs for read in self._facts.positions(expr, nest.at(expr.out, places)))
                    elements = [(read.tensor, values.simplified(read.index)) for read in reads]
                    return list(dict.fromkeys((*elements, *self._shared_by_neighbours(places))))

                self._take(block, thread, positions)
                self._take(block, thread, results)
            with self._each_element(block, thread, storing=True) as (_, _, places):
                self._stores(places)
        return Launch(blocks=schedule.blocks, threads=schedule.threads)

    def _shared_by_neighbours(self, places: Places) -> Elements:
        """Return the elements of inputs that all elements of a chunk need, or that its only element needs."""
        inputs = [tv for tv in self._fusion.tensor_inputs if tv in self._nest.index and tv.numel > 1]
        elements = [(tv, self._values.simplified(self._nest.at(tv, places))) for tv in inputs]
        return [(tv, at) for tv, at in elements if "v" not in set[str]().union(*map(variables, at))]

    def _take(self, block: Term, thread: Term, elements_at: Callable[[Places], Elements]) -> None:
        """Write the loop that reads some elements of all chunks of a thread, and make them available to later loops."""
        values, schedule = self._values, self.schedule
        allocated = len(values.scope.body)
        loaded: dict[tuple[TensorView, Index], Term] = {}
        buffers: list[Buffer] = []
        with self._each_element(block, thread) as (u, v, places):
            for tensor, at in elements_at(places):
                if (tensor, at) in loaded or (tensor.name, at) in values.given:
                    continue
                several = isinstance(v, Var) and v.name in set[str]().union(*map(variables, at))
                size, slot = (schedule.vector, u * schedule.vector + v) if several else (1, u)
                words = Buffer(
                    name=values.fresh(f"{tensor.name}_taken"), dtype=_word_dtype(tensor.dtype),
                    size=schedule.unroll * size, role=Role.SCRATCH,
                )
                buffers.append(words)
                slot = simplify(slot, values.scope.ranges)
                values.emit(Store(buffer=words, position=slot, value=values.value(tensor, at)))
                loaded[tensor, at] = Load(words.dtype, words, slot)
        values.scope.names |= {words.name for words in buffers}
        values.scope.body[allocated:allocated] = [Alloc(buffer=words) for words in buffers]
        for (tensor, at), element in loaded.items():
            values.know(tensor, at, element)

    @contextmanager
    def _each_element(
        self, block: Term, thread: Term, *, storing: bool = False,
    ) -> Iterator[tuple[Term, Term, Places]]:
        """Open loops over a thread's chunks and their elements; yield both numbers and the position in the nest.

        Threads beyond the end repeat the first chunk, unless they are ``storing``.
        """
        schedule, values = self.schedule, self._values
        threads, unroll, width = schedule.threads[0], schedule.unroll, schedule.vector
        whole = self.space.rows // width
        with ExitStack() as stack:
            u = self._loop(stack, "u", unroll, ParallelType.unroll)
            if self.space.repeats > 1:
                number = (u * schedule.blocks + block) * threads + thread
            else:
                number = (block * unroll + u) * threads + thread
            number = simplify(number, values.scope.ranges)
            inside = simplify(number < whole, values.scope.ranges)
            if isinstance(inside, Apply):
                number = Apply(DataType.Index, "select", (inside, number, index(0)))
            chunk = values.let("chunk", number)
            if storing:
                stack.enter_context(values.guard(inside))
            stack.enter_context(self._inline({chunk.name: (0, max(whole - 1, 0))}))
            v: Term = self._loop(stack, "v", width, ParallelType.vectorize) if width > 1 else index(0)
            yield u, v, self._flat(self._nest.kept, chunk * width + v)


def _word_dtype(dtype: DataType) -> DataType:
    return DataType.Int if dtype is DataType.Index else dtype.compute

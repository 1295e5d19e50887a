"""The facts about a nest without reductions of a GPU: what its elements read, and how many a thread computes."""

from dataclasses import replace

from fuser_lab.codegen.index_map import Index, Read, counted_position, element_term, index_var
from fuser_lab.codegen.index_math import access_of, simplify, variables
from fuser_lab.codegen.kernel_ir import Role, Statement
from fuser_lab.codegen.nest_facts import NestFacts, extent_of
from fuser_lab.codegen.nests import Axis, axis_indices
from fuser_lab.codegen.values import result_element
from fuser_lab.codegen.vector_widths import accesses, best_width, stores_singly, tensor_accesses
from fuser_lab.cost.crossovers import crossover
from fuser_lab.cost.work import function_class, work_of
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, OpKind, Scalar, Val, needed_exprs
from fuser_lab.ir.term import Apply, Term, Var
from fuser_lab.ops import OPS
from fuser_lab.schedule.gpu_element_loops import LOOKUPS, SHARING, THREADS
from fuser_lab.schedule.state import Space

DEEPEST = crossover("gpu.lookups.depth")
_MANY_ELEMENTS = crossover("gpu.elements.many")
_MOST_REPEATS = crossover("gpu.elements.repeats")
_CACHED = crossover("gpu.elements.l1_bytes")


class GpuElementFacts(NestFacts):
    """The facts about elements, and about look-ups in any nest."""

    def _element_vector(self) -> int:
        """Return how many adjacent elements of a nest without reductions a thread moves with one access."""
        count = extent_of(self.nest.kept)
        if count % 2 and count < _MANY_ELEMENTS:
            return 1

        def statements_of(size: int) -> tuple[Statement, ...]:
            chunk, v = index_var("chunk"), index_var("v")
            ranges = {"chunk": (0, max(-(-count // size) - 1, 0)), "v": (0, size - 1)}
            places = axis_indices(self.nest.kept, chunk * size + v, ranges)
            return self.trial(places, ranges)

        width = best_width(statements_of, "v", self.device.bytes_per_cycle)
        # If loads wait for stores, other threads have to have theirs in flight. Long functions of a thread's elements
        # wait for one another because of their branches.
        threads = self.device.sms * self.device.threads_per_sm
        is_long = any(map(_is_long, needed_exprs(self.fusion.exprs, self.nest.full)))
        while width > 1 and count // width < threads and (
            is_long or stores_singly(statements_of(width), "v", width)
        ):
            width //= 2
        # A partial last chunk needs separate code, which is not worthwhile for few elements.
        return width if count % width == 0 or count >= _MANY_ELEMENTS else 1

    def _with_chunks(self, space: Space) -> Space:
        """Return a space with the reasons for which a thread processes several chunks of elements."""
        looked_up = space.rows % space.vector == 0 and bool(self.lookups())
        widths = () if looked_up else (space.vector, space.vector // 2)
        if shared := next(filter(self._shares_between_halves, widths), 0):
            space = replace(space, vector=shared, halves=2)
        least = LOOKUPS if looked_up else 1
        return replace(
            space, repeats=self._repeats(space.rows, space.vector, least), looked_up=looked_up,
            slow_shared=self._shares_slow_values(space.rows, space.vector),
        )

    def _shares_between_halves(self, vector: int) -> bool:
        """Whether elements of both halves of the fastest axis need the same elements, as in a rotation of pairs."""
        *outer, fast = self.nest.kept or (Axis(name="", extent=1),)
        side = fast.extent // 2
        if vector < 2 or fast.extent % (2 * vector):
            return False
        chunk, v = index_var("chunk"), index_var("v")
        ranges = {"chunk": (0, extent_of(outer) * side // vector - 1), "v": (0, vector - 1)}
        places = axis_indices((*outer, Axis(name=fast.name, extent=side)), chunk * vector + v, ranges)
        read = list[set[tuple[str, Term]]]()
        for half in range(2):
            here = {**places, fast.name: simplify(places[fast.name] + half * side, ranges)}
            read.append({
                (buffer.name, position) for buffer, position, load in tensor_accesses(self.trial(here, ranges))
                if load is not None and buffer.nbytes > _CACHED and access_of(buffer, position, "v").step == 1
            })
        return not read[0].isdisjoint(read[1])

    def _repeats(self, count: int, vector: int, least: int) -> int:
        """Return how many chunks of a thread share inputs that do not fit in the L1 cache.

        There are enough chunks for the shared bytes to be at most the bytes of each chunk alone, and at least ``least``
        if possible.
        """
        repeats = 1
        while repeats < _MOST_REPEATS and count % (2 * repeats * vector) == 0:
            chunk_bytes, shared = self._shared_bytes(count // (2 * repeats), vector)
            if not shared:
                break
            repeats *= 2
            if shared <= repeats * chunk_bytes and repeats >= least:
                break
        return repeats

    def _shared_bytes(self, distance: int, vector: int) -> tuple[int, int]:
        """Return the bytes of an element's inputs, and of those shared by chunks ``distance`` elements apart.

        The latter are 0 if they may fit in the L1 cache.
        """
        part, chunk, v = index_var("part"), index_var("chunk"), index_var("v")
        ranges = {"part": (0, 1), "chunk": (0, distance // vector - 1), "v": (0, vector - 1)}
        places = axis_indices(self.nest.kept, part * distance + chunk * vector + v, ranges)
        statements = self.trial(places, ranges)
        read = [a.buffer for a in accesses(statements, "v") if a.step == 1 and a.buffer.role is not Role.OUTPUT]
        among = frozenset({"chunk", "v"})
        common = [a.buffer for a in accesses(statements, "v", among=among) if a.step == 1]
        held = sum(b.size * b.dtype.itemsize for b in set(common)) <= _CACHED
        shared = 0 if held else sum(b.dtype.itemsize for b in common)
        return max(sum(b.dtype.itemsize for b in read) - sum(b.dtype.itemsize for b in common), 1), shared

    def _shares_slow_values(self, count: int, vector: int) -> bool:
        """Whether the `SHARING` chunks of a thread need one value of a function that takes long, as of a channel."""
        slow = [expr for expr in self.fusion.exprs if _is_slow(expr)]
        if any(isinstance(expr.outputs[0], Scalar) for expr in slow):
            return True
        distance = -(-count // (vector * THREADS * SHARING)) * THREADS * vector
        part, chunk, v = index_var("part"), index_var("chunk"), index_var("v")
        ranges = {"part": (0, SHARING - 1), "chunk": (0, max(distance // vector - 1, 0)), "v": (0, vector - 1)}
        places = axis_indices(self.nest.kept, part * distance + chunk * vector + v, ranges)
        return any(
            all("part" not in variables(simplify(component, ranges)) for component in self.nest.at(expr.out, places))
            for expr in slow if expr.out in self.nest.index
        )

    # Elements at data-dependent positions

    def lookups(self) -> dict[Expr, int]:
        """Return the look-ups with a known position in the nest, in order, and how many depend on each other."""
        sources = (expr.tensor_inputs[0] for expr in self.nest.reductions)
        needed = set(needed_exprs(self.fusion.exprs, {*self.nest.full, *sources}))
        depths: dict[Val, int] = {}
        depth_of: dict[Expr, int] = {}
        for expr in self.fusion.exprs:
            depth = max((depths.get(value, 0) for value in expr.inputs), default=0)
            is_needed = expr.kind is OpKind.INDEXING and expr in needed and expr.out in self.nest.index
            if is_needed and self.positions(expr, self.nest.index[expr.out]):
                depth += 1
                depth_of[expr] = depth
            depths.update((out, depth) for out in expr.tensor_outputs)
        return {expr: depth for expr, depth in depth_of.items() if depth <= DEEPEST}

    def positions(self, expr: Expr, at: Index) -> list[Read]:
        """Return the elements that are the positions of a look-up and are data."""
        casts = (t for t in element_term(expr, at).walk() if isinstance(t, Apply) and t.dtype is DataType.Index)
        reads = (t.args[0] for t in casts if t.fn == "cast")
        producers = self.fusion.producers
        return [read for read in reads if isinstance(read, Read) and counted_position(read, producers) is None]


def _is_slow(expr: Expr) -> bool:
    """Whether an expression computes elements, or a scalar in every thread, by a function that takes long."""
    if OPS[expr.op.name].scalar is None:
        return False
    operands = [Var(value.dtype.compute, value.name) for value in expr.inputs]
    parts = result_element(expr, operands).walk()
    return any(isinstance(part, Apply) and function_class(part.fn) != "simple" for part in parts)


def _is_long(expr: Expr) -> bool:
    """Whether an element takes functions or divisions of Double: hundreds of instructions with branches each."""
    work = work_of([expr])
    return bool(work.special or work.dividing) and any(tv.dtype is DataType.Double for tv in expr.tensor_outputs)

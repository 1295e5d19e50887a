"""Loops of nests without reductions on a GPU: each thread processes a few chunks of adjacent elements.

If elements are at positions that are data, a thread reads its positions first, then the elements, then computes:

    for u in range(4):                      chunks of adjacent elements
        places[u] = T1[...]
    for u in range(4):
        taken[u] = T0[places[u] ...]
    for u in range(4):
        T2[...] = f(taken[u])

Loading a position and then its element is two waits in a row. Therefore several of each are in flight at once, without
a branch in between: threads beyond the end repeat the first chunk and store nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from fuser_lab.codegen.gpu_common import ElementsAt, bound, gpu_phase, looked_up
from fuser_lab.codegen.gpu_facts import gpu_facts
from fuser_lab.codegen.index_map import Index
from fuser_lab.codegen.index_math import variables
from fuser_lab.codegen.kernel_ir import Alloc, Buffer, Launch, Load, Phase, Role
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nest_writing import ZERO, PhaseCode, Places, open_loop
from fuser_lab.codegen.nests import Axis
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, TensorView
from fuser_lab.ir.term import Apply, Term, Var, apply
from fuser_lab.ir.transform import ParallelType


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementPlan:
    """How the threads of a grid visit the elements of a nest, in chunks of adjacent ones."""

    nest: NestPlan = field(repr=False)
    chunks: int
    halves: int  # of the fastest axis, of which a thread visits a chunk each
    rest: int  # elements after the last whole chunk
    rounds: int  # in which the grid visits all chunks, ``unroll`` of a thread in each
    lookups: Mapping[Expr, int]  # reads at positions that are data and are done in advance; how many precede each


def element_plan(nest: NestPlan) -> ElementPlan:
    """Return how the elements of a nest are visited."""
    facts, schedule = gpu_facts(nest.facts), nest.schedule
    count = facts.space.rows
    grid = schedule.blocks * schedule.threads[0] * schedule.unroll
    fast = facts.nest.kept[-1].extent if facts.nest.kept else 1
    halves = facts.space.halves if schedule.vector > 1 and fast % (2 * schedule.vector) == 0 else 1
    chunks, rest = divmod(count, schedule.vector * halves)
    # Look-ups in advance need several chunks of a thread in one round of whole chunks.
    ahead = facts.space.looked_up and schedule.unroll > 1 and grid * schedule.vector >= count and not rest
    return ElementPlan(
        nest=nest, chunks=chunks, halves=halves, rest=rest, rounds=-(-(chunks + bool(rest)) // grid),
        lookups=facts.lookups() if ahead else {},
    )


def write_elements(plan: ElementPlan) -> Iterator[Phase]:
    """Yield the only phase of a nest in which every element is computed separately."""
    yield gpu_phase(plan.nest, "", partial(_looked_up if plan.lookups else _launch, plan))


def _launch(plan: ElementPlan, code: PhaseCode) -> Launch:
    schedule, values = plan.nest.schedule, code.values
    vector = schedule.vector
    with ExitStack() as stack:
        chunk = _grid_stride(plan, code, stack, "chunk" if vector > 1 else "i")
        if vector == 1:
            code.store(code.nest.full, code.flat(code.nest.kept, chunk))
        else:
            with values.guard(chunk < plan.chunks):
                _store_chunk(code, chunk, vector, vector, ParallelType.vectorize, plan.halves)
            if plan.rest:
                with values.guard(apply("eq", chunk, plan.chunks)):
                    _store_chunk(code, chunk, vector, plan.rest, ParallelType.serial)
    return Launch(blocks=schedule.blocks, threads=schedule.threads)


def _store_chunk(
    code: PhaseCode, chunk: Term, vector: int, length: int, parallel: ParallelType, halves: int = 1,
) -> None:
    """Write the elements of one chunk, or of the chunks at one place in both halves of the fastest axis."""
    with ExitStack() as stack:
        v = open_loop(code.values, stack, "v", length, parallel)
        *outer, fast = code.nest.kept or (Axis(name="", extent=1),)
        side = fast.extent // halves
        places = code.flat((*outer, replace(fast, extent=side)) if halves > 1 else code.nest.kept, chunk * vector + v)
        for half in range(halves):
            offset = {fast.name: code.values.simplify(places[fast.name] + half * side)} if half else {}
            code.store(code.nest.full, {**places, **offset})


def _grid_stride(plan: ElementPlan, code: PhaseCode, stack: ExitStack, name: str) -> Term:
    """Open loops in which the threads of the grid visit every chunk; return its index.

    Successive indices of a thread are a whole grid apart, so it often reads the same elements of an input that
    repeats.
    """
    schedule, values = plan.nest.schedule, code.values
    count, threads = plan.chunks + bool(plan.rest), schedule.threads[0]
    grid = schedule.blocks * threads
    block = open_loop(values, stack, "block", schedule.blocks, ParallelType.grid_x)
    position: Term = block * threads + open_loop(values, stack, "thread", threads, ParallelType.block_x)
    if plan.rounds == schedule.unroll == 1:
        # The guard is written even if all blocks are full, so that kernels for other numbers of elements are the same.
        return bound(values, stack, name, position, count, max(grid, count + 1))
    position = bound(values, stack, "first", position, count, grid)
    if plan.rounds > 1:
        step = open_loop(values, stack, "step", plan.rounds, ParallelType.serial)
        position = position + step * (grid * schedule.unroll)
    if schedule.unroll > 1:
        position = position + open_loop(values, stack, "u", schedule.unroll, ParallelType.unroll) * grid
    position = values.simplify(position)
    if plan.rounds * schedule.unroll * grid > count:
        stack.enter_context(values.guard(position < count))
    return position


# Elements at positions that are data


def _looked_up(plan: ElementPlan, code: PhaseCode) -> Launch:
    schedule = plan.nest.schedule
    with ExitStack() as stack:
        block = open_loop(code.values, stack, "block", schedule.blocks, ParallelType.grid_x)
        thread = open_loop(code.values, stack, "thread", schedule.threads[0], ParallelType.block_x)
        for positions, results in looked_up(code, gpu_facts(plan.nest.facts), plan.lookups):
            _take(plan, code, block, thread, positions, partial(_shared_by_neighbours, code))
            _take(plan, code, block, thread, results)
        with _each_element(plan, code, block, thread, storing=True) as (_, _, places):
            code.store(code.nest.full, places)
    return Launch(blocks=schedule.blocks, threads=schedule.threads)


def _shared_by_neighbours(code: PhaseCode, places: Places) -> list[tuple[TensorView, Index]]:
    """Return the elements of inputs that all elements of a chunk need, or that its only element needs."""
    inputs = [tv for tv in code.fusion.tensor_inputs if tv in code.nest.index and tv.numel > 1]
    elements = [(tv, code.values.simplified(code.nest.at(tv, places))) for tv in inputs]
    return [(tv, at) for tv, at in elements if "v" not in set[str]().union(*map(variables, at))]


def _take(plan: ElementPlan, code: PhaseCode, block: Term, thread: Term, *elements_at: ElementsAt) -> None:
    """Write the loop that reads some elements of all chunks of a thread, and make them available to later loops."""
    values, schedule = code.values, plan.nest.schedule
    allocated = len(values.scope.body)
    loaded: dict[tuple[TensorView, Index], Term] = {}
    buffers: list[Buffer] = []
    with _each_element(plan, code, block, thread) as (u, v, places):
        for tensor, at in (element for elements in elements_at for element in elements(places)):
            if (tensor, at) in loaded or (tensor.name, at) in values.given:
                continue
            several = isinstance(v, Var) and v.name in set[str]().union(*map(variables, at))
            size, slot = (schedule.vector, u * schedule.vector + v) if several else (1, u)
            words = Buffer(
                name=values.fresh(f"{tensor.name}_taken"),
                dtype=DataType.Int if tensor.dtype is DataType.Index else tensor.dtype.compute,
                size=schedule.unroll * size, role=Role.SCRATCH,
            )
            buffers.append(words)
            slot = values.simplify(slot)
            values.put(words, slot, values.value(tensor, at))
            loaded[tensor, at] = Load(words.dtype, words, slot)
    values.scope.names |= {words.name for words in buffers}
    values.scope.body[allocated:allocated] = [Alloc(buffer=words) for words in buffers]
    for (tensor, at), element in loaded.items():
        values.know(tensor, at, element)


@contextmanager
def _each_element(
    plan: ElementPlan, code: PhaseCode, block: Term, thread: Term, *, storing: bool = False,
) -> Iterator[tuple[Term, Term, Places]]:
    """Open loops over a thread's chunks and their elements; yield both numbers and the position in the nest.

    Threads beyond the end repeat the first chunk, unless they are ``storing``.
    """
    schedule, values = plan.nest.schedule, code.values
    threads, unroll, width = schedule.threads[0], schedule.unroll, schedule.vector
    with ExitStack() as stack:
        u = open_loop(values, stack, "u", unroll, ParallelType.unroll)
        if plan.nest.facts.space.repeats > 1:
            number = (u * schedule.blocks + block) * threads + thread
        else:
            number = (block * unroll + u) * threads + thread
        number = values.simplify(number)
        inside = values.simplify(number < plan.chunks)
        if isinstance(inside, Apply):
            number = Apply(DataType.Index, "select", (inside, number, ZERO))
        chunk = values.let("chunk", number)
        if storing:
            stack.enter_context(values.guard(inside))
        stack.enter_context(values.inlined({chunk.name: (0, max(plan.chunks - 1, 0))}))
        v = open_loop(values, stack, "v", width, ParallelType.vectorize) if width > 1 else ZERO
        yield u, v, code.flat(code.nest.kept, chunk * width + v)

"""The steps of a row on a GPU: how its groups are loaded, visited and kept, wherever the row begins in memory."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_

from fuser_lab.codegen.gpu_common import (
    Named,
    clamp_index,
    each_neighbour,
    guard_index,
    know_word,
    load_group,
    neighbours,
    open_rounds,
    words_of,
)
from fuser_lab.codegen.gpu_facts import GpuFacts, gpu_facts
from fuser_lab.codegen.index_math import ACCESS_BYTES, simplify
from fuser_lab.codegen.kernel_ir import LARGEST_STATIC, Buffer, Load, Role, Scope, VectorLoad, VectorStore
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nest_writing import ZERO, Fold, PhaseCode, Places, update, write_point
from fuser_lab.codegen.persistence import Saved, finite, inputs_needed, memory_of_kept, read_back, scale
from fuser_lab.codegen.scan_writing import Running, know_results, operand
from fuser_lab.cost.device import WORD_BYTES
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, TensorView
from fuser_lab.ir.term import Apply, Term, Var, apply, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.gpu_limits import ELEMENTS
from fuser_lab.schedule.gpu_row_loops import common_plain_steps

_SHIFTED_BYTES = (2, 4)  # of elements that are combined from two accesses


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSection:
    """Steps of a row that are kept in the same memory; ``place`` is None for steps that every pass reads again."""

    first: int
    count: int
    place: Role | None
    kept: Mapping[TensorView, Buffer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """How threads share a row, and where its values stay between passes."""

    nest: NestPlan = field(repr=False)
    groups: int  # of adjacent elements
    lanes: int  # threads that share a row
    steps: int  # in each of which a thread has one group
    scope: Scope  # of the threads that share a row
    general: bool  # whether one kernel is for many lengths, because these grow with the outermost extent
    widths: Mapping[TensorView, int]  # of accesses to inputs whose groups are adjacent in memory
    saved: tuple[Saved, ...]  # the values that are kept, and the pass that computes each
    sections: tuple[RowSection, ...]  # the steps by the memory in which they are kept, as the first pass visits them
    first: Mapping[TensorView, int]  # where each kept value begins in shared memory
    online: tuple[Expr, Expr] | None  # a maximum and the sum of exponentials relative to it, computed in one pass
    once: tuple[Expr, Expr] | None  # the same in two passes, after which the blocks of a cluster exchange both together

    @property
    def facts(self) -> GpuFacts:
        """The facts about the nest."""
        return gpu_facts(self.nest.facts)

    @property
    def width(self) -> int:
        """Elements of a group."""
        return self.nest.schedule.vector

    @property
    def is_divided(self) -> bool:
        """Whether rows begin anywhere in an access, whose groups are accesses."""
        return self.facts.lead is not None and self.width > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroups:
    """The groups of adjacent elements of a row that is written."""

    code: PhaseCode
    width: int  # elements of a group
    places: Places  # position of the row in the nest
    begin: tuple[Term, Term] | None = None  # the access in which a divided row begins, and the position where it begins
    ends: tuple[Term, Term] = (ZERO, ZERO)  # of a divided row, relative to the access before ``begin``
    leading: Term | None = None  # first group of the first lane, chosen so that the groups of a warp fill lines
    groups_of_line: int = 1


# Writes what is computed at one position: see `write_point`.
Point = Callable[
    [PhaseCode, Places, Sequence[Fold], Sequence[TensorView], Mapping[TensorView, Buffer], Term, Term | None], None,
]
Loads = Mapping[TensorView, tuple[int, Buffer]]  # the width of accesses and the destination of each input


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row that is written, by one of the threads that share it."""

    plan: RowPlan
    groups: RowGroups
    lane: Term  # number of the thread in its block
    place: Term  # number of the thread in its cluster
    rank: Term = ZERO  # number of the block in its cluster
    sections: tuple[RowSection, ...]  # with the memory in which steps are kept
    ahead: Mapping[TensorView, Buffer] = field(default_factory=dict)  # inputs that all rows share, loaded before
    load: "Callable[[Row, RowSection, Loads], None] | None" = None  # loads a kept section, if not `load_row`
    scans: tuple[Running, ...] = ()  # between the passes, of elements that stay in registers
    point: Point = write_point  # writes what is computed at one position

    @property
    def code(self) -> PhaseCode:
        """The emitter of the phase."""
        return self.groups.code


# Groups


def place_in_row(groups: RowGroups, group: Term, v: Term) -> Places:
    """Return the position in the nest of an element of a group."""
    code, width, reduced = groups.code, groups.width, groups.code.nest.reduced
    if groups.begin is None:
        return {**groups.places, **neighbours(code, reduced, width, group, v)}
    first, start = groups.begin
    return {**groups.places, reduced[-1].name: code.values.simplify((first + group) * width + v - start)}


def _reach(groups: RowGroups, group: Term) -> Term:
    """Name the position after a group's last element, relative to the same access as the ends of a row."""
    values = groups.code.values
    return values.let("reach", values.simplify((group + 1) * groups.width))


@contextmanager
def _within(groups: RowGroups, reach: Term) -> Iterator[Term]:
    """Open a loop over the elements of a group that belong to the row."""
    values, (low, high) = groups.code.values, groups.ends
    with ExitStack() as stack:
        v = stack.enter_context(values.loop(values.fresh("v"), groups.width, ParallelType.serial))
        place = values.let("place", reach + v)
        for limit in (apply("ge", place, low), apply("lt", place, high)):
            stack.enter_context(values.guard(limit))
        yield v


def fetch_group(
    groups: RowGroups, tensor: TensorView, width: int, words: Buffer, group: Term, slot: Term, *, plain: bool = False,
) -> None:
    """Load a group, including elements of other rows, except beyond the end of a tensor; a ``plain`` one is whole."""
    code, values, count, (low, high) = groups.code, groups.code.values, groups.width, groups.ends
    buffer, position = code.buffers[tensor.name], code.position(tensor, place_in_row(groups, group, ZERO))
    if groups.begin is None or plain:
        load_group(values, buffer, position, width, words, slot, count)
        return
    reach = _reach(groups, group)
    if position == values.simplify((groups.begin[0] + group) * count):
        # Almost always false, for all lanes, so that consecutive loads do not wait for it.
        beyond = apply("gt", position, buffer.size - count)
    else:
        # Other tensors have other offsets, and there may be no memory before a row.
        beyond = Apply(DataType.Bool, "or", (apply("lt", reach, low), apply("gt", reach + count, high)))
    # All threads fill their words, even if unused, because LLVM keeps words in memory that only one branch fills.
    inside = Apply(DataType.Index, "select", (beyond, ZERO, position))
    load_group(values, buffer, inside, width, words, slot, count)
    with values.guard(beyond), _within(groups, reach) as v:
        place, at = values.simplify(slot + v), values.simplify(position + v)
        values.put(words, place, Load(words.dtype, buffer, at))


def each_of_group(
    groups: RowGroups, group: Term, write: Callable[[Term], None], *, plain: bool = False, stores: bool = True,
) -> None:
    """Write the body for each element of a group; for the first and last group of a divided row, only its elements.

    If nothing is stored, all lanes process elements one by one, because one code path is shorter than two.
    """
    values, width, (low, high) = groups.code.values, groups.width, groups.ends
    if groups.begin is None or plain:
        with each_neighbour(values, width) as v:
            write(v)
        return
    reach = _reach(groups, group)
    if groups.leading is not None and not stores:
        with _within(groups, reach) as v:
            write(v)
        return
    limits = apply("ge", reach, low), apply("le", reach + width, high)
    with values.guard(Apply(DataType.Bool, "and", limits)), each_neighbour(values, width) as v:
        write(v)
    limits = apply("lt", reach, low), apply("gt", reach + width, high)
    with values.guard(Apply(DataType.Bool, "or", limits)), _within(groups, reach) as v:
        write(v)


def _is_shifted(row: Row, tensor: TensorView) -> bool:
    """Whether an input is a row shared by all rows and read at offsets that differ from the rows' own alignment."""
    facts, groups = row.plan.facts, row.groups
    if groups.begin is None or groups.leading is None or tensor in facts.fusion.producers:
        return False
    fast, item, buffer = facts.nest.reduced[-1].name, tensor.dtype.itemsize, row.code.buffers[tensor.name]
    position = simplify(row.code.layouts[tensor].position(facts.nest.index[tensor]), facts.ranges())
    is_row = isinstance(position, Var) and position.name == fast and buffer.alignment == ACCESS_BYTES
    return is_row and groups.width * item == ACCESS_BYTES and item in _SHIFTED_BYTES


# The memory of the steps of a row


def planned_sections(
    nest: NestPlan, saved: Sequence[Saved], steps: int,
) -> tuple[tuple[RowSection, ...], dict[TensorView, int]]:
    """Return the sections in the order of the first pass, and where each kept value begins in shared memory."""
    schedule = nest.schedule
    held = min(schedule.registers, steps) if saved or nest.facts.nest.scans else 0
    shared = min(schedule.shared, steps - held) if saved else 0
    again = steps - held - shared
    counts = {None: again, Role.SHARED: shared, Role.WORDS: held}
    sections, first = [], 0
    for place, count in counts.items():
        if count:
            sections.append(RowSection(first=first, count=count, place=place))
        first += count
    places, sizes = memory_of_kept(gpu_facts(nest.facts), saved if shared else ())
    end, starts = 0, list[int]()
    for item in sizes:
        # Dynamic buffers begin at the same address; each uses a part.
        starts.append(-(-end // ACCESS_BYTES) * ACCESS_BYTES)
        end = starts[-1] + shared * schedule.threads[0] * schedule.vector * item
    return tuple(sections), {tv: starts[place] // sizes[place] for tv, place in places.items()}


def allocated_sections(plan: RowPlan, code: PhaseCode) -> tuple[RowSection, ...]:
    """Allocate memory for the kept steps, and return the sections with it."""
    values, schedule, sections = code.values, plan.nest.schedule, []
    for section in plan.sections:
        buffers: dict[TensorView, Buffer] = {}
        for tensor in (s.tensor for s in plan.saved if section.place is not None):
            item, size = tensor.dtype.itemsize, section.count * plan.width
            if section.place is Role.SHARED:
                end = plan.first[tensor] * item + size * schedule.threads[0] * item
                least = max(end, LARGEST_STATIC + item)
                buffers[tensor] = words_of(values, tensor, least // item, "shared", Role.SHARED)
            elif tensor in plan.widths:
                buffers[tensor] = words_of(values, tensor, size, "row")
            else:
                buffers[tensor] = values.allocate(f"{tensor.name}_row", tensor.dtype.compute, max(size, 1))
        sections.append(replace(section, kept=buffers))
    return tuple(sections)


def _shared_position(row: Row, tensor: TensorView, step: Term) -> Term:
    """Return the position of a thread's group of a step in shared memory; no other thread reads it."""
    plan, values = row.plan, row.code.values
    position = (step * plan.nest.schedule.threads[0] + row.lane) * plan.width + plan.first[tensor]
    # Single elements are read by a name of 32 bits, of which the compiler knows that it is not negative.
    return values.let("place", values.simplify(position)) if plan.width == 1 else position


def _shared_width(buffer: Buffer, count: int) -> int:
    """Return how many elements of shared memory one access has."""
    return min(ACCESS_BYTES // buffer.dtype.itemsize, count)


# Steps


def group_of(
    row: Row, stack: ExitStack, section: RowSection, step: Term, named: Named = guard_index, *, plain: bool = False,
) -> tuple[Var, Term | None]:
    """Name the group of a thread in a step of a section; ``plain`` groups are entirely in the row.

    ``named`` says what happens beyond the row; by default nothing is executed there.
    """
    plan, groups, values = row.plan, row.groups, row.code.values
    position, leading = (step + section.first) * plan.lanes + row.place, groups.leading
    reach = (section.first + section.count) * plan.lanes
    if leading is not None:
        reach = plan.steps * plan.lanes
        with values.inlined({leading.name: (1, groups.groups_of_line)} if isinstance(leading, Var) else {}):
            position = values.simplify(position + leading)
            position = position if plain else values.remainder(position, reach)
    return named(values, stack, "g", position, plan.groups, plan.groups if plain else reach)


def _plain_steps(row: Row, section: RowSection) -> int:
    """Return the number of leading steps of a section in which all groups are whole and in the row.

    Lanes that begin at a line process the first and the last groups of a row in its last steps.
    """
    plan, groups, schedule = row.plan, row.groups, row.plan.nest.schedule
    if groups.leading is None:
        whole = 0 if plan.is_divided else plan.groups // plan.lanes
        plain = min(max(whole - section.first, 0), section.count)
        if not plan.general or plain == section.count:
            return plain
        # Few kernels for all lengths: more steps than necessary have conditions.
        alone = section.place is Role.WORDS and not section.first
        return common_plain_steps(plain) if alone else plain - plain % schedule.unroll
    most = (plan.facts.space.depth // plan.width - groups.groups_of_line) // plan.lanes
    return min(max(most - section.first, 0), section.count)


def _parts_of(count: int, plain: int) -> Iterator[tuple[int, int, bool]]:
    """Yield ranges of steps: the first, their number, and whether all of their groups are plain."""
    if plain:
        yield 0, plain, True
    if count > plain:
        yield plain, count - plain, False


def _spans(row: Row, section: RowSection, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield rounds of a section: the first step, the number of rounds, and the leading plain steps of each."""
    plain = _plain_steps(row, section)
    if section.place is None and (row.plan.general or plain < section.count):
        plain = 0  # all rounds of what passes read in both directions have the same form
    rounds, before = section.count // size, plain // size
    if before:
        yield 0, before, size
    if rounds > before:
        yield before * size, rounds - before, plain - before * size if rounds == before + 1 else 0


def load_row(row: Row, section: RowSection, loads: Loads) -> None:
    """Write the loads of all steps of a section."""
    if not loads:
        return
    for first, count, plain in _parts_of(section.count, _plain_steps(row, section)):
        with ExitStack() as stack:
            step = open_rounds(row.code.values, stack, "step", count) + first
            group, _ = group_of(row, stack, section, step, clamp_index, plain=plain)
            for tensor, (width, buffer) in loads.items():
                fetch_group(row.groups, tensor, width, buffer, group, step * row.plan.width, plain=plain)


# One section in one pass


@dataclass(frozen=True, slots=True, kw_only=True)
class _SectionPass:
    """What one pass does in one section."""

    row: Row
    section: RowSection
    fetched: Mapping[TensorView, int]  # inputs that are loaded with the steps of a round, with the width of accesses
    shared: Mapping[TensorView, Buffer]  # values that are read from shared memory with the steps of a round
    at_hand: Mapping[TensorView, Buffer]  # values that are in registers for all steps of the section
    new: Mapping[TensorView, Buffer]  # values that the pass keeps
    words: Mapping[TensorView, Buffer]  # of what a round loads
    scanned: tuple[Running, ...]  # the scans whose results earlier passes computed
    unscanned: tuple[Running, ...]  # the scans whose operands the pass computes
    joined: Mapping[TensorView, Buffer]  # words for a group of inputs at other offsets
    grouped: Mapping[TensorView, Buffer]  # words for a group of values that go to shared memory
    named: Named  # what happens beyond the row with values
    loaded: Named  # what happens there with loads


@dataclass(frozen=True, slots=True)
class _Steps:
    """Some steps of a round that starts at a step: the first of them, their number, and whether groups are plain."""

    start: Term
    first: int
    count: int
    plain: bool


def write_section(
    row: Row, section: RowSection, number: int, folds: Sequence[Fold], stored: Sequence[TensorView],
) -> None:
    """Write one pass over one section in rounds of a few steps, with the loads of a round before its values.

    Reductions that the elements of few threads can change follow the others, under their conditions.
    """
    values, given_before = row.code.values, dict(row.code.values.given)
    plan, saved = row.plan, row.plan.saved if section.place is not None else ()
    unscanned = tuple(scan for scan in row.scans if scan.expr in plan.facts.scans_in(number))
    searches, folds = _by_conditions(folds)
    is_search = not (folds or stored or unscanned or any(s.written == number for s in saved))
    if searches and is_search:
        condition, folds = searches
        with values.guard(condition):
            write_section(row, section, number, folds, ())
        values.given = given_before
        return
    needed = inputs_needed(plan.facts, number, saved)
    new = {s.tensor: section.kept[s.tensor] for s in saved if s.written == number}
    old = {tv: section.kept[tv] for tv in read_back(plan.facts, number, saved)}
    fetched = {tv: plan.widths[tv] for tv in needed if tv not in row.ahead and tv in plan.widths}
    fetched |= {tv: plan.widths[tv] for tv in new if tv in plan.widths}
    moved = [tv for tv in needed if tv not in fetched and tv not in row.ahead and _is_shifted(row, tv)]
    at_hand, shared = dict[TensorView, Buffer](), old
    if section.place is Role.WORDS:
        # The whole row is in flight before anything waits for it.
        direct = {tv: buffer for tv, buffer in new.items() if tv in fetched}
        load = row.load or load_row
        load(row, section, {tv: (fetched.pop(tv), buffer) for tv, buffer in direct.items()})
        new = {tv: buffer for tv, buffer in new.items() if tv not in direct}
        at_hand, shared = {**old, **direct, **row.ahead}, {}
    size = _steps_ahead(row, section, (*fetched, *shared))
    # What several passes read again is so long that its last step is a small part.
    again = section.place is None and plan.facts.passes > 1
    step = _SectionPass(
        row=row, section=section, fetched=fetched, shared=shared, at_hand=at_hand, new=new,
        words={tv: words_of(values, tv, size * plan.width, "next") for tv in (*fetched, *shared)},
        scanned=tuple(s for s in row.scans if plan.facts.levels[s.expr.out] <= number), unscanned=unscanned,
        joined={tv: words_of(values, tv, plan.width, "joined") for tv in moved},
        grouped={
            tv: words_of(values, tv, plan.width, "kept")
            for tv in new if section.place is Role.SHARED and tv not in fetched and plan.width > 1
        },
        named=guard_index if again or stored or unscanned or row.groups.begin is not None else clamp_index,
        loaded=guard_index if again else clamp_index,
    )
    for first, rounds, plain in _spans(row, section, size):
        with ExitStack() as stack:
            start: Term = open_rounds(values, stack, "round", rounds) * size + first
            if section.place is None and number % 2:
                start = index((rounds - 1) * size) - start
            parts = [_Steps(start, *part) for part in _parts_of(size, plain)]
            for part in parts if step.words else ():
                _load_steps(step, part)
            online = number == 0 and plan.online is not None
            if online:
                _rescale(step, parts, folds)
            for part in parts:
                _write_steps(step, part, folds[1:] if online else folds, stored)
            if searches:
                condition, rare = searches
                with values.guard(condition):
                    for part in parts:
                        _write_steps(replace(step, new={}, unscanned=(), grouped={}), part, rare, ())
    values.given = given_before


def _by_conditions(folds: Sequence[Fold]) -> tuple[tuple[Term, list[Fold]] | None, list[Fold]]:
    """Return the reductions that the elements of few threads can change, with the condition of any, and the others."""
    searches = [fold for fold in folds if fold.matters is not None]
    conditions = [fold.matters for fold in searches if fold.matters is not None]
    unconditional = [fold for fold in folds if fold.matters is None]
    rare = (reduce(or_, conditions), [replace(fold, matters=None) for fold in searches]) if searches else None
    return rare, unconditional


def _steps_ahead(row: Row, section: RowSection, loaded: Collection[TensorView]) -> int:
    """Return the number of steps per round, in which tensors are loaded together."""
    if not loaded:
        return section.count if section.place is Role.WORDS else 1
    schedule = row.plan.nest.schedule
    most = min(max(schedule.unroll, 1), section.count)
    if schedule.values and section.place is Role.SHARED:
        # Values that are kept, and what they are computed from, need registers as well.
        words = sum(tv.dtype.itemsize for tv in loaded) * row.plan.width // WORD_BYTES
        most = min(most, max(ELEMENTS // 2 // max(words, 1), 1))
    return next(n for n in range(most, 0, -1) if section.count % n == 0)


def _visit(step: _SectionPass, part: _Steps, stack: ExitStack, named: Named) -> tuple[Term, Term, Term | None]:
    """Open the loop over some steps; return a step's group, its number in the round, and the condition of `Named`."""
    u = open_rounds(step.row.code.values, stack, "u", part.count) + part.first
    group, inside = group_of(step.row, stack, step.section, part.start + u, named, plain=part.plain)
    return group, u, inside


def _load_steps(step: _SectionPass, part: _Steps) -> None:
    """Write the loads of some steps."""
    row, width, values = step.row, step.row.plan.width, step.row.code.values
    with ExitStack() as stack:
        group, u, _ = _visit(step, part, stack, step.loaded)
        for tensor, size in step.fetched.items():
            fetch_group(row.groups, tensor, size, step.words[tensor], group, u * width, plain=part.plain)
        for tensor, buffer in step.shared.items():
            position = _shared_position(row, tensor, part.start + u)
            load_group(values, buffer, position, _shared_width(buffer, width), step.words[tensor], u * width, width)


def _known_place(step: _SectionPass, part: _Steps, group: Term, u: Term, v: Term) -> Places:
    """Make elements available from their memory; return their position in the nest."""
    row, width = step.row, step.row.plan.width
    here = place_in_row(row.groups, group, v)
    for tensor, buffer in step.words.items():
        know_word(row.code, tensor, buffer, here, u * width + v)
    slot = row.code.values.simplify((part.start + u) * width + v)
    for tensor, buffer in step.at_hand.items():
        know_word(row.code, tensor, buffer, here, slot)
    if step.scanned:
        know_results(row.code, {s.expr: Load(s.elements.dtype, s.elements, slot) for s in step.scanned}, here)
    return here


def _write_steps(step: _SectionPass, part: _Steps, folds: Sequence[Fold], stored: Sequence[TensorView]) -> None:
    """Write what is computed in some steps."""
    row, width, code, values = step.row, step.row.plan.width, step.row.code, step.row.code.values
    in_shared, (joined, grouped) = step.section.place is Role.SHARED, (step.joined, step.grouped)
    if not part.plain:
        joined, grouped = {}, {}  # some elements of a group may not belong to the row
    with ExitStack() as stack:
        group, u, inside = _visit(step, part, stack, step.named)
        for tensor, words in joined.items():
            values.emit(VectorLoad(
                buffer=code.buffers[tensor.name], position=code.position(tensor, place_in_row(row.groups, group, ZERO)),
                words=words, slot=ZERO, count=width, width=width, shifted=True,
            ))

        def write(v: Term) -> None:
            here = _known_place(step, part, group, u, v)
            for tensor, words in joined.items():
                know_word(code, tensor, words, here, v)
            slot = values.simplify((part.start + u) * width + v)
            row.point(code, here, folds, stored, {} if in_shared else step.new, slot, inside)
            for scan in step.unscanned:
                values.put(scan.elements, slot, operand(code, scan.expr, here), scan.expr.name)
            for tensor, buffer in step.new.items() if in_shared else ():
                if tensor in grouped:
                    values.put(grouped[tensor], v, code.element(tensor, here))
                elif tensor not in step.words:  # it was not loaded as a group
                    position = values.simplify(_shared_position(row, tensor, part.start + u) + v)
                    values.put(buffer, position, code.element(tensor, here))

        given_before = dict(values.given)
        each_of_group(row.groups, group, write, plain=part.plain, stores=bool(stored or step.unscanned))
        values.given = given_before
        for tensor, buffer in step.new.items() if in_shared else ():
            if tensor in grouped or tensor in step.words:
                position = values.simplify(_shared_position(row, tensor, part.start + u))
                words, slot = (grouped[tensor], ZERO) if tensor in grouped else (step.words[tensor], u * width)
                _store_group(row, buffer, position, words, values.simplify(slot))


def _store_group(row: Row, buffer: Buffer, position: Term, words: Buffer, slot: Term) -> None:
    """Write a group to shared memory."""
    values, count = row.code.values, row.plan.width
    if count == 1:
        values.put(buffer, position, Load(words.dtype, words, slot))
        return
    values.emit(VectorStore(
        buffer=buffer, position=position, words=words, slot=slot, count=count, width=_shared_width(buffer, count),
    ))


def _rescale(step: _SectionPass, parts: Sequence[_Steps], folds: Sequence[Fold]) -> None:
    """Write the largest element of a round, and make a thread's sum relative to it."""
    row, code, values, (largest, total) = step.row, step.row.code, step.row.code.values, folds
    source, seen = largest.expr.tensor_inputs[0], largest.total
    newest = replace(
        largest, total=values.let(f"{largest.name}_next", seen, origin=largest.expr.name),
    )
    for part in parts:
        with ExitStack() as stack:
            group, u, inside = _visit(step, part, stack, step.named)

            def compare(
                v: Term, part: _Steps = part, group: Term = group, u: Term = u, inside: Term | None = inside,
            ) -> None:
                update(values, newest, code.element(source, _known_place(step, part, group, u, v)), inside)

            each_of_group(row.groups, group, compare, plain=part.plain, stores=False)
    update(values, total, total.total * scale(seen, finite(newest.total)), replacing=True)
    update(values, largest, newest.total, replacing=True)
    origin = values.let(f"{largest.name}_origin", finite(newest.total), origin=largest.expr.name)
    code.know(largest.expr.out, row.groups.places, origin)

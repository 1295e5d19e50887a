"""Few long rows on a GPU: many blocks read parts of a row, and each pass over the rows is a launch.

The launch after a pass adds up the results of the parts. A sum and the squared deviations from the mean are computed in
one pass, which does not know the mean of the row. Each thread therefore has the deviations from an origin near its
elements, the mean of its first ones, and their sum, with which the origin is moved:

    q = sum((x - a)**2), r = sum(x - a)    ->    sum((x - b)**2) = q + d * (2 * r + n * d), sum(x - b) = r + n * d
    with d = a - b

The origin of a block is the mean of its elements, that of the row the mean in the definition. Differences between such
origins are exact, so no rounding of a mean is squared.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from fuser_lab.codegen.gpu_common import (
    bound,
    clamp_index,
    each_neighbour,
    fetch,
    gpu_phase,
    know_word,
    neighbours,
    open_lanes,
    open_rounds,
    share,
    words_of,
)
from fuser_lab.codegen.gpu_row_steps import Row, RowPlan
from fuser_lab.codegen.gpu_rows import RowOfBlock, open_row, rows_of_lanes, write_results
from fuser_lab.codegen.kernel_ir import Buffer, Launch, Load, Phase
from fuser_lab.codegen.nest_writing import (
    ZERO,
    Fold,
    PhaseCode,
    Places,
    close_folds,
    open_folds,
    open_loop,
    parts_of,
    store_parts,
    update,
    write_point,
)
from fuser_lab.codegen.persistence import Moments, inputs_needed, moments
from fuser_lab.codegen.values import Values
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, TensorView
from fuser_lab.ir.term import Apply, Const, Term, apply, cast, index, select
from fuser_lab.ir.transform import ParallelType


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedRowPlan:
    """How many blocks share few long rows."""

    row: RowPlan
    parts: Mapping[Expr, Buffer]  # memory of the partial results of each reduction
    moments: Moments | None  # the sum and the squared deviations that the first pass computes together
    passes: tuple[int, ...]  # over rows that are a launch each
    turn: int  # groups that a block reads at a time
    whole: int  # turns of a row in which all groups exist

    def goes_backwards(self, number: int) -> bool:
        """Whether a pass reads the last parts of rows first.

        Several passes alternate in direction, the first one backwards, so that each reads first what the L2 cache still
        holds: for four rows of 8 M elements, two passes and the normalisation that follows take 129 us, and 134 if both
        go forwards. A single pass goes forwards, because the sum of a tensor takes 1 % more time backwards. So do
        kernels for many lengths of rows, which would depend on whether a block has one turn, two, or more.
        """
        return not self.row.general and len(self.passes) > 1 and self.passes.index(number) % 2 == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A part of a row that a thread of a block reads: the row's position in the nest, and the words of its inputs."""

    plan: PartedRowPlan
    code: PhaseCode
    lane: Term
    part: Term
    places: Places
    words: Mapping[TensorView, Buffer]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deviations:
    """The running values of a thread: the sum of its elements, and what deviates from the ``origin``."""

    total: Fold
    squares: Fold
    rest: Fold
    count: Fold
    origin: Fold


def parted_row_plan(row: RowPlan) -> PartedRowPlan:
    """Return how many blocks share each row of a plan."""
    facts, schedule = row.facts, row.nest.schedule
    together = schedule.online and facts.space.moments
    both = moments(facts.fusion, facts.nest, facts.levels, facts.space.depth) if together else None
    turn = schedule.threads[0] * schedule.unroll
    return PartedRowPlan(
        row=row, parts=parts_of(row.nest), moments=both, turn=turn, whole=row.groups // turn,
        passes=tuple(number for number in range(facts.passes) if number != 1 or both is None),
    )


def write_parted_rows(plan: PartedRowPlan) -> Iterator[Phase]:
    """Yield one phase per pass over rows, and one for results that need the last pass."""
    for number in plan.passes:
        suffix = f"_parts{f'_{number}' if number else ''}"
        yield gpu_phase(plan.row.nest, suffix, partial(_row_parts, plan, number))
    if plan.row.facts.reductions_in(plan.row.facts.passes - 1):
        yield gpu_phase(plan.row.nest, "_total", partial(rows_of_lanes, plan.row, partial(_total_of_parts, plan)))


def _row_parts(plan: PartedRowPlan, number: int, code: PhaseCode) -> Launch:
    """Write a pass over few long rows, whose steps are interleaved over blocks so that they read adjacent memory.

    Each block first adds up the parts of previous passes, always in the same order.
    """
    nest, values, row, schedule = code.nest, code.values, plan.row, plan.row.nest.schedule
    split, lanes = schedule.split, schedule.threads[0]
    blocks = row.facts.space.rows * split
    with ExitStack() as stack:
        unit = open_loop(values, stack, "block", blocks, ParallelType.grid_x)
        lane = open_lanes(values, stack, "lane", lanes)
        row_number, part = values.quotient(unit, split), values.remainder(unit, split)
        places = code.flat(nest.kept, row_number)
        _totals_of_parts(plan, code, lane, row_number, places, number)
        fetched = [tv for tv in inputs_needed(row.facts, number, ()) if tv in row.widths]
        here = _Part(
            plan=plan, code=code, lane=lane, part=part, places=places,
            words={tv: words_of(values, tv, schedule.unroll * row.width, "next") for tv in fetched},
        )
        both = plan.moments if number == 0 else None
        folds = open_folds(values, row.facts.reductions_in(number) if both is None else both.sums)
        running = None if both is None else _deviations(values, folds)
        stored = row.facts.stored_in(number)

        def take_turn(start: Term, reach: int) -> None:
            given_before = dict(values.given)
            _load_steps(here, start, reach)
            if both is None or running is None:
                with ExitStack() as steps:
                    u, g = _step(here, steps, start, reach)
                    write_point(code, _loaded_element(here, steps, u, g), folds, stored, {}, ZERO)
            else:
                _add_moments(here, start, reach, both, running)
            values.given = given_before

        _take_turns(here, take_turn, backwards=plan.goes_backwards(number))
        folds = share(values, folds, row.scope) if running is None else _shared_moments(here, folds, running)
        if folds:
            with values.guard(apply("eq", lane, 0)):
                store_parts(values, plan.parts, folds, unit)
        elif nest.rows and number == row.facts.passes - 1:
            with values.guard(apply("eq", part, 0)), values.guard(apply("eq", lane, 0)):
                code.store(nest.rows, places)
    return Launch(blocks=blocks, threads=(lanes, 1))


def _take_turns(here: _Part, take_turn: Callable[[Term, int], None], *, backwards: bool) -> None:
    """Write the turns of a block; what remains of a row after the last whole turn is the turn of one block.

    ``take_turn`` gets the first group, and the group before which the turn ends for some block.
    """
    plan, values, part = here.plan, here.code.values, here.part
    split, turn, whole = plan.row.nest.schedule.split, plan.turn, plan.whole
    # As for columns, kernels do not depend on whether rounds and parts divide the length of a row.
    general = plan.row.general

    def whole_turns() -> None:
        if not whole:
            return
        rounds = -(-whole // split)
        with ExitStack() as inner:
            number: Term = open_loop(values, inner, "turn", rounds, ParallelType.serial)
            number = values.simplify(rounds - 1 - number) if backwards else number
            turn_number = bound(values, inner, "number", number * split + part, whole, (rounds + general) * split)
            take_turn(turn_number * turn, whole * turn)

    def rest() -> None:
        if general or plan.row.groups > whole * turn:
            with values.guard(apply("eq", part, whole % split)):
                # As many steps as in other rounds, guarded, so that kernels for other depths are the same.
                take_turn(index(whole * turn), (whole + 1) * turn)

    for write in (rest, whole_turns) if backwards else (whole_turns, rest):
        write()


def _position(here: _Part, stack: ExitStack, start: Term) -> tuple[Term, Term]:
    """Open the loop over the groups of a thread in a turn; return a group's number in the turn and in the row."""
    schedule = here.plan.row.nest.schedule
    u = open_rounds(here.code.values, stack, "u", schedule.unroll)
    return u, start + u * schedule.threads[0] + here.lane


def _step(here: _Part, stack: ExitStack, start: Term, reach: int) -> tuple[Term, Term]:
    """Open the loop over the groups of a thread in a turn, without those beyond the row."""
    u, position = _position(here, stack, start)
    return u, bound(here.code.values, stack, "g", position, here.plan.row.groups, reach)


def _load_steps(here: _Part, start: Term, reach: int) -> None:
    """Write the loads of a turn of all threads from a given group."""
    if not here.words:
        return
    code, row = here.code, here.plan.row
    with ExitStack() as stack:
        u, position = _position(here, stack, start)
        g, _ = clamp_index(code.values, stack, "g", position, row.groups, reach)
        first = {**here.places, **neighbours(code, code.nest.reduced, row.width, g, ZERO)}
        for tensor, words in here.words.items():
            fetch(code, tensor, first, row.widths[tensor], words, u * row.width, row.width)


def _loaded_element(here: _Part, stack: ExitStack, u: Term, g: Term) -> Places:
    """Open the loop over the elements of a group that was loaded, and return their position in the nest."""
    code, width = here.code, here.plan.row.width
    v = stack.enter_context(each_neighbour(code.values, width))
    places = {**here.places, **neighbours(code, code.nest.reduced, width, g, v)}
    for tensor, words in here.words.items():
        know_word(code, tensor, words, places, u * width + v)
    return places


def _total_of_parts(plan: PartedRowPlan, row: Row, here: RowOfBlock) -> None:
    """Write the last phase of reductions whose results no other value of the row depends on."""
    with ExitStack() as stack:
        number, row = open_row(row, stack, here)
        _totals_of_parts(plan, row.code, row.lane, number, row.groups.places, plan.row.facts.passes)
        write_results(row)


def _totals_of_parts(
    plan: PartedRowPlan, code: PhaseCode, lane: Term, row: Term, places: Places, before: int,
) -> None:
    """Add up the partial results of passes over a row, in the order of the passes."""
    values, schedule, both = code.values, plan.row.nest.schedule, plan.moments
    lanes, split = schedule.threads[0], schedule.split
    for number in range(before):
        folds = open_folds(values, plan.row.facts.reductions_in(number))
        if not folds:
            continue
        with ExitStack() as stack:
            rounds = -(-split // lanes)
            step = open_rounds(values, stack, "step", rounds)
            part = bound(values, stack, "part", step * lanes + lane, split, rounds * lanes)
            at = values.simplify(row * split + part)
            if both is not None and number == 1:
                _add_part(plan, code, both, folds, places, part, at)
            else:
                for fold in folds:
                    buffer = plan.parts[fold.expr]
                    update(values, fold, Load(buffer.dtype, buffer, at))
        close_folds(code, share(values, folds, plan.row.scope), places)


# Sums and squared deviations from the mean in one pass


def _deviations(values: Values, folds: Sequence[Fold]) -> _Deviations:
    """Name the running values of a thread that no fold of the pass has."""
    total, squares, *others = folds
    zero = Const(total.identity.dtype, 0.0)

    def named(name: str) -> Fold:
        return Fold(expr=total.expr, fn="add", identity=zero, total=values.let(name, zero))

    rest = others[0] if others else named("rest")
    return _Deviations(total=total, squares=squares, rest=rest, count=named("count"), origin=named("origin"))


def _add_moments(here: _Part, start: Term, reach: int, both: Moments, running: _Deviations) -> None:
    """Write what a turn adds to a thread's sum and deviations.

    The deviations of a turn are from the mean of the turn, then from the origin (Chan, Golub and LeVeque, Updating
    formulae and a pairwise algorithm for computing sample variances, 1979).
    """
    code, values, row = here.code, here.code.values, here.plan.row

    def add(each: Callable[[ExitStack], tuple[Term, Term]], size: int) -> None:
        """Add the ``size`` elements of the groups that ``each`` opens."""
        total, origin, count = running.total, running.origin.total, running.count.total
        dtype = running.count.identity.dtype
        new, rest = (
            Fold(expr=both.total, fn="add", identity=total.identity, total=values.let(name, total.identity))
            for name in ("new", "new_rest")
        )
        with ExitStack() as stack:
            places = _loaded_element(here, stack, *each(stack))
            update(values, new, code.element(both.total.tensor_inputs[0], places))
        mean = values.let("new_mean", Apply(dtype, "mul", (new.total, Const(dtype, 1 / size))))
        with values.inlined({}, pinned=True):
            code.know(both.mean, here.places, mean)
            with ExitStack() as stack:
                places = _loaded_element(here, stack, *each(stack))
                update(values, rest, code.element(both.deviation, places))
                update(values, running.squares, code.element(both.squares.tensor_inputs[0], places))
        first = apply("eq", count, Const(dtype, 0.0))
        update(values, running.origin, select(first, mean, origin), replacing=True)
        number = Const(dtype, float(size))
        more, moved = _origin_change(values, mean - origin, rest.total, number)
        update(values, running.squares, _sum_if_finite(running.squares.total, more), replacing=True)
        update(values, running.rest, moved)
        update(values, total, new.total)
        update(values, running.count, number)

    if reach <= row.groups:
        add(lambda stack: _step(here, stack, start, reach), row.width * row.nest.schedule.unroll)
        return
    with ExitStack() as steps:
        u, g = _step(here, steps, start, reach)
        add(lambda _: (u, g), row.width)


def _origin_change(values: Values, distance: Term, rest: Term, count: Term) -> tuple[Term, Term]:
    """Return what a new origin adds to squared deviations, and the sum of deviations from it.

    ``distance`` is that of the old origin from the new one, ``rest`` the sum of deviations from the old one.
    """
    distance = values.let("distance", distance)
    apart = values.let("apart", distance * count)
    return distance * (rest + rest + apart), rest + apart


def _sum_if_finite(squares: Term, more: Term) -> Term:
    """Return a sum of squared deviations and ``more``, which may be minus infinity if the sum overflowed."""
    return select(apply("lt", squares, Const(squares.dtype, math.inf)), squares + more, squares)


def _mean_of(total: Term, count: Term) -> Term:
    """Return the mean of a part of a row, or 0 if the part has no elements."""
    return Apply(total.dtype, "div", (total, apply("max", count, Const(total.dtype, 1.0))))


def _if_any(count: Term, distance: Term) -> Term:
    """Return the distance of the origin of ``count`` elements, or 0 if they are none."""
    zero = Const(count.dtype, 0.0)
    return select(apply("gt", count, zero), distance, zero)


def _shared_moments(here: _Part, folds: Sequence[Fold], running: _Deviations) -> list[Fold]:
    """Combine the sums of all lanes, then their deviations from the mean of the block."""
    values, scope, (total, *others) = here.code.values, here.plan.row.scope, folds
    (total,) = share(values, [total], scope)
    count = running.count.total
    elements = _elements_of(here.plan, values, here.part, count.dtype)
    mean = values.let("block_mean", _mean_of(total.total, elements))
    distance = _if_any(count, running.origin.total - mean)
    more, moved = _origin_change(values, distance, running.rest.total, count)
    update(values, running.squares, _sum_if_finite(running.squares.total, more), replacing=True)
    update(values, running.rest, moved, replacing=True)
    return [total, *share(values, others, scope)]


def _add_part(
    plan: PartedRowPlan, code: PhaseCode, both: Moments, folds: Sequence[Fold], places: Places, part: Term, at: Term,
) -> None:
    """Add the deviations of a part, which are from its mean, to those from the mean of the row."""
    values = code.values
    total, squares, *others = (Load(b.dtype, b, at) for b in (plan.parts[expr] for expr in both.sums))
    count = _elements_of(plan, values, part, total.dtype)
    mean = code.element(both.mean, places)
    rest = values.let("part_rest", others[0]) if others else Const(total.dtype, 0.0)
    distance = _if_any(count, _mean_of(total, count) - mean)
    more, moved = _origin_change(values, distance, rest, count)
    added = dict(zip(both.sums[1:], (_sum_if_finite(values.let("part", squares), more), moved), strict=False))
    for fold in folds:
        update(values, fold, added[fold.expr])


def _elements_of(plan: PartedRowPlan, values: Values, part: Term, dtype: DataType) -> Term:
    """Return how many elements of a row a part has."""
    split, width, turn, whole = plan.row.nest.schedule.split, plan.row.width, plan.turn, plan.whole

    def chosen(condition: Term, number: int) -> Term:
        return Apply(DataType.Index, "select", (condition, index(number), ZERO))

    more = whole % split
    count = index(whole // split * turn * width) + chosen(part < more, turn * width)
    if rest := plan.row.groups - whole * turn:
        count = count + chosen(apply("eq", part, more), rest * width)
    return values.let("elements", cast(values.simplify(count), dtype))

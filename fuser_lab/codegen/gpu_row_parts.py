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

from fuser_lab.codegen.gpu_rows import RowNest, RowSection
from fuser_lab.codegen.index_math import simplify
from fuser_lab.codegen.kernel_ir import Buffer, Launch, Load, Phase
from fuser_lab.codegen.nest_lowering import Fold, Places
from fuser_lab.codegen.online import Moments, moments
from fuser_lab.codegen.persistence import inputs_needed
from fuser_lab.dtypes import DataType
from fuser_lab.ir import TensorView
from fuser_lab.ir.term import Apply, Const, Term, apply, cast, index, select
from fuser_lab.ir.transform import ParallelType


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deviations:
    """The running values of a thread: the sum of its elements, and what deviates from the ``origin``."""

    total: Fold
    squares: Fold
    rest: Fold
    count: Fold
    origin: Fold


class PartedRowNest(RowNest):
    """Writes rows that are cut into parts."""

    def _row_of_lanes(self, row: Term, sections: Sequence[RowSection]) -> None:
        if self._parts:
            self._total_of_parts(row)
        else:
            super()._row_of_lanes(row, sections)

    def phases(self) -> Iterator[Phase]:
        """Yield one phase, or one per pass and one for results if rows are cut into parts."""
        if self.schedule.split == 1:
            yield self._phase(self._rows)
            return
        for number in self._launched_passes:
            yield self._phase(partial(self._row_parts, number), f"_parts{f'_{number}' if number else ''}")
        if self._reductions_of(self._passes - 1):
            yield self._phase(self._rows, "_total")

    @property
    def _launched_passes(self) -> Sequence[int]:
        """The passes over rows that are a launch each."""
        return [number for number in range(self._passes) if number != 1 or self._moments is None]

    @property
    def _moments(self) -> Moments | None:
        """The sum and the squared deviations that the first pass over rows cut into parts computes together."""
        if not (self.schedule.online and self.space.moments and self.schedule.split > 1):
            return None
        return moments(self._fusion, self._nest, self._levels, self.space.depth)

    def _row_parts(self, number: int) -> Launch:
        """Write a pass over few long rows, whose steps are interleaved over blocks so that they read adjacent memory.

        Each block first adds up the parts of previous passes, always in the same order. Several passes alternate in
        direction, the first one backwards, so that each reads first what the L2 cache still holds: for four rows of
        8 M elements, two passes and the normalisation that follows take 129 us, and 134 if both go forwards. A single
        pass goes forwards, because the sum of a tensor takes 1 % more time backwards. So do kernels for many lengths of
        rows, which would depend on whether a block has one turn, two, or more.
        """
        nest, values, split, ahead = self._nest, self._values, self.schedule.split, self.schedule.unroll
        lanes = self.schedule.threads[0]
        blocks = self.space.rows * split
        with ExitStack() as stack:
            unit = self._loop(stack, "block", blocks, ParallelType.grid_x)
            self._lane = self._place = stack.enter_context(
                values.loop("lane", lanes, ParallelType.block_x, pinned=True),
            )
            row, part = self._quotient(unit, split), self._remainder(unit, split)
            places = self._flat(self._nest.kept, row)
            self._totals_of_parts(row, places, number)
            needed = inputs_needed(self._facts, number, ())
            fetched = {tv: width for tv in needed if (width := self._width_of(tv, self._fast))}
            words = {tv: self._words(tv, ahead * self.schedule.vector, "next") for tv in fetched}
            both = self._moments if number == 0 else None
            folds = self._open(self._reductions_of(number) if both is None else both.sums)
            stored = [tv for tv in nest.full if self._levels.get(tv, 0) == number]
            running = None if both is None else self._deviations(folds)

            def take_turn(start: Term, reach: int) -> None:
                given_before = dict(values.given)
                self._load_steps(places, start, reach, fetched, words)
                if both is None or running is None:
                    self._write_steps(places, start, reach, (folds, stored), words)
                else:
                    self._add_moments(places, start, reach, (both, running), words)
                values.given = given_before

            self._take_turns(part, take_turn, backwards=self._goes_backwards(number))
            if running is not None:
                self._share_moments(folds, running, part)
            elif folds:
                self._share(folds, self._scope())
            if folds:
                with values.guard(apply("eq", self._lane, 0)):
                    self._store_parts(folds, unit)
            elif nest.rows and number == self._passes - 1:
                with values.guard(apply("eq", part, 0)):
                    self._whole_rows(places)
        return Launch(blocks=blocks, threads=(lanes, 1))

    def _goes_backwards(self, number: int) -> bool:
        """Whether a pass reads the last parts of rows first."""
        launched = self._launched_passes
        return not self._is_general and len(launched) > 1 and launched.index(number) % 2 == 0

    def _take_turns(self, part: Term, take_turn: Callable[[Term, int], None], *, backwards: bool) -> None:
        """Write the turns of a block; what remains of a row after the last whole turn is the turn of one block.

        ``take_turn`` gets the first group, and the group before which the turn ends for some block.
        """
        values, split, (turn, whole) = self._values, self.schedule.split, self._turns
        # As for columns, kernels do not depend on whether rounds and parts divide the length of a row.
        general = self._is_general

        def whole_turns() -> None:
            if not whole:
                return
            rounds = -(-whole // split)
            with ExitStack() as inner:
                number: Term = self._loop(inner, "turn", rounds, ParallelType.serial)
                number = simplify(rounds - 1 - number, values.scope.ranges) if backwards else number
                turn_number = self._bound(inner, "number", number * split + part, whole, (rounds + general) * split)
                take_turn(turn_number * turn, whole * turn)

        def rest() -> None:
            if general or self._row_groups > whole * turn:
                with values.guard(apply("eq", part, whole % split)):
                    # As many steps as in other rounds, guarded, so that kernels for other depths are the same.
                    take_turn(index(whole * turn), (whole + 1) * turn)

        for write in (rest, whole_turns) if backwards else (whole_turns, rest):
            write()

    @property
    def _turns(self) -> tuple[int, int]:
        """The groups that a block reads in one turn, and the number of whole turns of a row."""
        turn = self.schedule.threads[0] * self.schedule.unroll
        return turn, self._row_groups // turn

    def _load_steps(
        self, places: Places, start: Term, reach: int, fetched: Mapping[TensorView, int],
        words: Mapping[TensorView, Buffer],
    ) -> None:
        """Write the loads of a turn of all threads from a given group."""
        if not words:
            return
        assert self._lane is not None
        with ExitStack() as stack:
            u = self._round(stack, "u", self.schedule.unroll)
            position = start + u * self.schedule.threads[0] + self._lane
            g = self._load_index(stack, "g", position, self._row_groups, reach)
            first = {**places, **self._neighbours(self._nest.reduced, g, index(0))}
            for tensor, width in fetched.items():
                self._fetch(tensor, width, words[tensor], first, u * self.schedule.vector)

    def _step(self, stack: ExitStack, start: Term, reach: int) -> tuple[Term, Term]:
        """Open the loop over the groups of a thread in a turn; return a group's number in the turn and in the row."""
        assert self._lane is not None
        u = self._round(stack, "u", self.schedule.unroll)
        position = start + u * self.schedule.threads[0] + self._lane
        return u, self._bound(stack, "g", position, self._row_groups, reach)

    def _loaded_element(
        self, stack: ExitStack, places: Places, u: Term, g: Term, words: Mapping[TensorView, Buffer],
    ) -> Places:
        """Open the loop over the elements of a group that was loaded, and return their position in the nest."""
        v = stack.enter_context(self._each_neighbour())
        here = {**places, **self._neighbours(self._nest.reduced, g, v)}
        for tensor, buffer in words.items():
            self._know(tensor, buffer, here, u * self.schedule.vector + v)
        return here

    def _write_steps(
        self, places: Places, start: Term, reach: int, written: tuple[Sequence[Fold], Sequence[TensorView]],
        words: Mapping[TensorView, Buffer],
    ) -> None:
        """Write what a turn folds and stores."""
        folds, stored = written
        with ExitStack() as stack:
            u, g = self._step(stack, start, reach)
            here = self._loaded_element(stack, places, u, g, words)
            self._point(here, folds, stored, (), index(0))

    def _total_of_parts(self, row: Term) -> None:
        """Write the last phase of reductions whose results no other value of the row depends on."""
        places = self._flat(self._nest.kept, row)
        self._totals_of_parts(row, places, self._passes)
        self._whole_rows(places)

    def _totals_of_parts(self, row: Term, places: Places, before: int) -> None:
        """Add up the partial results of passes over a row, in the order of the passes."""
        values, lanes, split, both = self._values, self.schedule.threads[0], self.schedule.split, self._moments
        assert self._lane is not None
        for number in range(before):
            folds = self._open(self._reductions_of(number))
            if not folds:
                continue
            with ExitStack() as stack:
                rounds = -(-split // lanes)
                step = self._round(stack, "step", rounds)
                part = self._bound(stack, "part", step * lanes + self._lane, split, rounds * lanes)
                at = simplify(row * split + part, values.scope.ranges)
                if both is not None and number == 1:
                    self._add_part(both, folds, places, part, at)
                else:
                    for fold in folds:
                        buffer = self._parts[fold.expr]
                        self._update(fold, Load(buffer.dtype, buffer, at))
            self._share(folds, self._scope())
            self._close(folds, places)

    # Sums and squared deviations from the mean in one pass

    def _deviations(self, folds: Sequence[Fold]) -> _Deviations:
        """Name the running values of a thread that no fold of the pass has."""
        total, squares, *others = folds
        zero = Const(total.identity.dtype, 0.0)

        def named(name: str) -> Fold:
            return Fold(expr=total.expr, fn="add", identity=zero, total=self._values.let(name, zero))

        rest = others[0] if others else named("rest")
        return _Deviations(total=total, squares=squares, rest=rest, count=named("count"), origin=named("origin"))

    def _add_moments(
        self, places: Places, start: Term, reach: int, written: tuple[Moments, _Deviations],
        words: Mapping[TensorView, Buffer],
    ) -> None:
        """Write what a turn adds to a thread's sum and deviations.

        The deviations of a turn are from the mean of the turn, then from the origin (Chan, Golub and LeVeque, Updating
        formulae and a pairwise algorithm for computing sample variances, 1979).
        """
        both, running = written

        def add(each: Callable[[ExitStack], tuple[Term, Term]], size: int) -> None:
            """Add the ``size`` elements of the groups that ``each`` opens."""
            values, total, origin, count = self._values, running.total, running.origin.total, running.count.total
            dtype = running.count.identity.dtype
            new, rest = (
                Fold(expr=both.total, fn="add", identity=total.identity, total=values.let(name, total.identity))
                for name in ("new", "new_rest")
            )
            with ExitStack() as stack:
                here = self._loaded_element(stack, places, *each(stack), words)
                source = both.total.tensor_inputs[0]
                self._update(new, values.value(source, self._nest.at(source, here)))
            mean = values.let("new_mean", Apply(dtype, "mul", (new.total, Const(dtype, 1 / size))))
            with self._inline({}, pinned=True):
                values.know(both.mean, self._nest.at(both.mean, places), mean)
                with ExitStack() as stack:
                    here = self._loaded_element(stack, places, *each(stack), words)
                    source = both.squares.tensor_inputs[0]
                    self._update(rest, values.value(both.deviation, self._nest.at(both.deviation, here)))
                    self._update(running.squares, values.value(source, self._nest.at(source, here)))
            first = apply("eq", count, Const(dtype, 0.0))
            self._update(running.origin, select(first, mean, origin), replacing=True)
            number = Const(dtype, float(size))
            more, moved = self._origin_change(mean - origin, rest.total, number)
            self._update(running.squares, self._sum_if_finite(running.squares.total, more), replacing=True)
            self._update(running.rest, moved)
            self._update(total, new.total)
            self._update(running.count, number)

        width = self.schedule.vector
        if reach <= self._row_groups:
            add(lambda stack: self._step(stack, start, reach), width * self.schedule.unroll)
            return
        with ExitStack() as steps:
            u, g = self._step(steps, start, reach)
            add(lambda _: (u, g), width)

    def _origin_change(self, distance: Term, rest: Term, count: Term) -> tuple[Term, Term]:
        """Return what a new origin adds to squared deviations, and the sum of deviations from it.

        ``distance`` is that of the old origin from the new one, ``rest`` the sum of deviations from the old one.
        """
        distance = self._values.let("distance", distance)
        apart = self._values.let("apart", distance * count)
        return distance * (rest + rest + apart), rest + apart

    @staticmethod
    def _sum_if_finite(squares: Term, more: Term) -> Term:
        """Return a sum of squared deviations and ``more``, which may be minus infinity if the sum overflowed."""
        return select(apply("lt", squares, Const(squares.dtype, math.inf)), squares + more, squares)

    @staticmethod
    def _mean_of(total: Term, count: Term) -> Term:
        """Return the mean of a part of a row, or 0 if the part has no elements."""
        return Apply(total.dtype, "div", (total, apply("max", count, Const(total.dtype, 1.0))))

    @staticmethod
    def _if_any(count: Term, distance: Term) -> Term:
        """Return the distance of the origin of ``count`` elements, or 0 if they are none."""
        zero = Const(count.dtype, 0.0)
        return select(apply("gt", count, zero), distance, zero)

    def _share_moments(self, folds: Sequence[Fold], running: _Deviations, part: Term) -> None:
        """Combine the sums of all lanes, then their deviations from the mean of the block."""
        total, *others = folds
        self._share([total], self._scope())
        count = running.count.total
        mean = self._values.let("block_mean", self._mean_of(total.total, self._elements_of(part, count.dtype)))
        distance = self._if_any(count, running.origin.total - mean)
        more, moved = self._origin_change(distance, running.rest.total, count)
        self._update(running.squares, self._sum_if_finite(running.squares.total, more), replacing=True)
        self._update(running.rest, moved, replacing=True)
        self._share(others, self._scope())

    def _add_part(self, both: Moments, folds: Sequence[Fold], places: Places, part: Term, at: Term) -> None:
        """Add the deviations of a part, which are from its mean, to those from the mean of the row."""
        values = self._values
        total, squares, *others = (Load(b.dtype, b, at) for b in (self._parts[expr] for expr in both.sums))
        count = self._elements_of(part, total.dtype)
        mean = values.value(both.mean, self._nest.at(both.mean, places))
        rest = values.let("part_rest", others[0]) if others else Const(total.dtype, 0.0)
        distance = self._if_any(count, self._mean_of(total, count) - mean)
        more, moved = self._origin_change(distance, rest, count)
        added = dict(zip(both.sums[1:], (self._sum_if_finite(values.let("part", squares), more), moved), strict=False))
        for fold in folds:
            self._update(fold, added[fold.expr])

    def _elements_of(self, part: Term, dtype: DataType) -> Term:
        """Return how many elements of a row a part has."""
        values, split, width, (turn, whole) = self._values, self.schedule.split, self.schedule.vector, self._turns

        def chosen(condition: Term, number: int) -> Term:
            return Apply(DataType.Index, "select", (condition, index(number), index(0)))

        more = whole % split
        count = index(whole // split * turn * width) + chosen(part < more, turn * width)
        if rest := self._row_groups - whole * turn:
            count = count + chosen(apply("eq", part, more), rest * width)
        return values.let("elements", cast(simplify(count, values.scope.ranges), dtype))

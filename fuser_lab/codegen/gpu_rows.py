"""Row reductions on a GPU: the threads of a block or warp share a row; values for several passes stay on chip.

A row is processed in steps, in each of which every thread processes one group of adjacent elements. The last steps stay
in registers, those before them in shared memory, and the first, if the row is longer still, are read again in every
pass, in alternating directions so that the L2 cache still holds what was read last.

If rows do not begin at memory lines, lanes do: the first lane processes the first group of a line within the row, and
the groups before it follow the last one. A row's first and last group, which may belong to it only in part, are then
processed in the last steps, and all other steps need no conditions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from fuser_lab.codegen.gpu_cluster_rows import ClusterRows
from fuser_lab.codegen.index_map import index_var
from fuser_lab.codegen.index_math import linear, simplify, variables
from fuser_lab.codegen.kernel_ir import (
    LARGEST_STATIC,
    Alloc,
    Arrive,
    Barrier,
    Buffer,
    Launch,
    Load,
    Role,
    Scope,
    Store,
    VectorLoad,
    VectorStore,
)
from fuser_lab.codegen.nest_lowering import Fold, Places, base_name
from fuser_lab.codegen.nests import Axis
from fuser_lab.codegen.online import finite, online_pair, scale, whole_sum
from fuser_lab.codegen.persistence import inputs_needed
from fuser_lab.codegen.progressions import ACCESS_BYTES, access_of
from fuser_lab.codegen.vectorize import SMALL
from fuser_lab.cost.device import LINE_BYTES, WARP
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, TensorView, Val
from fuser_lab.ir.term import Apply, Const, Term, Var, apply, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.gpu_loops import common_plain_steps

_SHIFTED_BYTES = (2, 4)  # of elements that are combined from two accesses


Named = Callable[[ExitStack, str, Term, int, int], Var]  # names an index that may reach a count


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSection:
    """Steps of a row that are kept in the same memory; ``place`` is None for steps that every pass reads again."""

    first: int
    count: int
    place: Role | None
    kept: dict[TensorView, Buffer]


class RowNest(ClusterRows):
    """Writes nests whose reduced axes are the fastest in memory."""

    _ends: tuple[Term, Term] = (index(0), index(0))  # of a divided row
    _leading: Term | None = None  # the first group of the first lane, chosen so that the groups of a warp fill lines
    _groups_of_line = 1
    _ahead: Mapping[TensorView, Buffer] = {}  # inputs that all rows share, loaded before the first row
    _sent: Mapping[TensorView, tuple[int, Buffer]] = {}  # inputs of which the next row is loaded in advance
    _row_turn: tuple[Term, Term, int] = (index(0), index(0), 1)  # number in the block, row, and rows per block

    def _rows(self) -> Launch:
        values, count = self._values, self.space.rows
        (lanes, height), cluster = self.schedule.threads, self.schedule.cluster
        each = -(-count // self.schedule.blocks) if self.schedule.blocks else height
        blocks = -(-count // each)
        launch = Launch(blocks=blocks * cluster, threads=(lanes, height), cluster=cluster)
        with ExitStack() as stack:
            block: Term = self._loop(stack, "block", launch.blocks, ParallelType.grid_x)
            position = block
            if height > 1:
                position = block * height + self._loop(stack, "line", height, ParallelType.block_y)
            self._lane = self._place = stack.enter_context(
                values.loop("lane", lanes, ParallelType.block_x, pinned=True),
            )
            if cluster > 1:
                values.emit(Arrive())
                place = values.let("member", self._remainder(block, cluster) * lanes + self._lane)
                stack.enter_context(self._inline({place.name: (0, self._row_lanes - 1)}, pinned=True))
                self._rank = self._remainder(block, cluster)
                block = position = self._quotient(block, cluster)
                self._place, self._waits = place, True
            self._shared_first: dict[TensorView, int] = {}
            sections = self._sections()
            if self.schedule.blocks:
                self._rows_in_turn(block, each, sections)
                return launch
            # Lanes that share a row are either all active or all inactive, so that their exchanges are defined.
            # The guard is written even if all blocks are full, so that kernels for other numbers of rows are the same.
            reach = blocks if height == 1 else max(blocks * height, count + 1)
            self._rows_of_block(stack, block, position, reach, sections)
        return launch

    def _rows_of_block(
        self, stack: ExitStack, block: Term, position: Term, reach: int, sections: Sequence[RowSection],
    ) -> None:
        """Write the row of a thread, which is at a position among all rows; ``reach`` bounds the positions."""
        row = self._bound(stack, "row", position, self.space.rows, reach) if self.space.rows > 1 else index(0)
        if self._is_divided:
            self._divide(stack, row)
        self._row_of_lanes(row, sections)

    def _row_of_lanes(self, row: Term, sections: Sequence[RowSection]) -> None:
        """Write all passes over a row."""
        self._begin_with_lines(row)
        self._read_for_results(self._flat(self._nest.kept, row))
        self._passes_over(row, sections)

    # Rows that begin anywhere in an access

    def _divide(self, stack: ExitStack, row: Term) -> None:
        """Name the access in which a row begins, and its beginning and end relative to the preceding access."""
        lead, values, width = self._lead, self._values, self.schedule.vector
        assert lead is not None
        start = self._facts.start_of_row(lead, self._flat(self._nest.kept, row), values.scope.ranges)
        first = values.let("first", self._quotient(start, width))
        before = self._remainder(start, width)
        ends = simplify(before + width, values.scope.ranges), before + (width + self.space.depth)
        low, high = (values.let(name, end) for name, end in zip(("low", "high"), ends, strict=True))
        stack.enter_context(self._inline({first.name: (0, self._buffers[lead.name].size // width)}))
        self._begin, self._ends = (first, start), (low, high)

    # Rows that begin anywhere in a line of memory

    def _begin_with_lines(self, row: Term) -> None:
        """Assign groups to lanes so that those of a warp fill whole lines of all large tensors, wherever a row begins.

        Lanes whose group would be before the row process one after the last group instead: the number of steps is the
        same, and every access of a warp begins at a line. An access that begins within a line would touch another line,
        and write two sectors partially.
        """
        self._leading = None
        nest, width, values = self._nest, self.schedule.vector, self._values
        if len(nest.reduced) != 1 or self.schedule.threads[0] < WARP or self._row_groups < 2 * WARP:
            return
        moved = [tv for tv in (*nest.full, *self._fusion.tensor_inputs) if tv in nest.index and self._is_fast(tv)]
        largest = max((tv.nbytes for tv in moved), default=0)
        large = [tv for tv in moved if tv.nbytes * SMALL >= largest]
        places, ranges = self._flat(nest.kept, row), values.scope.ranges
        starts = {self._facts.start_of_row(tv, places, ranges) for tv in large}
        lines = {LINE_BYTES // (width * tv.dtype.itemsize) for tv in large}
        if self._begin is None and (len(starts) != 1 or len(lines) != 1):
            return  # lines of some tensors would begin at other positions
        start = next(iter(starts), index(0))
        if any(step < 0 for _, step in linear(start, ranges).parts):
            return  # targets disagree on the remainder of negative numbers
        self._groups_of_line = max((*lines, 1))
        first = self._begin[0] if self._begin is not None else self._quotient(start, width)
        before = simplify(self._remainder(first, self._groups_of_line), ranges)
        if isinstance(before, Const):
            # All rows begin at a line; the first group of a divided row is also processed last.
            self._leading = index(self._groups_of_line) if self._begin is not None else None
            return
        self._leading = values.let("leading", index(self._groups_of_line) - before)

    def _is_fast(self, tensor: TensorView) -> bool:
        """Whether the elements of a row are adjacent in a tensor."""
        fast = self._nest.reduced[-1]
        ranges = {a.name: (0, max(a.extent - 1, 0)) for a in self._nest.axes}
        position = self._layouts[tensor].position(self._nest.at(tensor, {fast.name: index_var("v")}))
        return access_of(self._buffers[tensor.name], simplify(position, ranges), "v").step == 1

    def _reach(self, group: Term) -> Term:
        """Name the position after a group's last element, relative to the same access as the ends of a row."""
        return self._values.let("reach", simplify((group + 1) * self.schedule.vector, self._values.scope.ranges))

    @contextmanager
    def _within(self, reach: Term) -> Iterator[Term]:
        """Open a loop over the elements of a group that belong to the row."""
        values, width, (low, high) = self._values, self.schedule.vector, self._ends
        with ExitStack() as stack:
            v = stack.enter_context(values.loop(values.fresh("v"), width, ParallelType.serial))
            place = values.let("place", reach + v)
            for bound in (apply("ge", place, low), apply("lt", place, high)):
                stack.enter_context(values.guard(bound))
            yield v

    def _fetch_group(
        self, tensor: TensorView, width: int, words: Buffer, places: Places, group: Term, slot: Term, *,
        plain: bool = False,
    ) -> None:
        """Load a group, including elements of other rows, except beyond the end of a tensor."""
        values, count, (low, high) = self._values, self.schedule.vector, self._ends
        first = {**places, **self._neighbours(self._nest.reduced, group, index(0))}
        if self._begin is None or plain:
            self._fetch(tensor, width, words, first, slot)
            return
        buffer = self._buffers[tensor.name]
        position = self._layouts[tensor].position(values.simplified(self._nest.at(tensor, first)))
        position = simplify(position, values.scope.ranges)
        reach = self._reach(group)
        if position == simplify((self._begin[0] + group) * count, values.scope.ranges):
            # Almost always false, for all lanes, so that consecutive loads do not wait for it.
            beyond = apply("gt", position, buffer.size - count)
        else:
            # Other tensors have other offsets, and there may be no memory before a row.
            beyond = Apply(DataType.Bool, "or", (apply("lt", reach, low), apply("gt", reach + count, high)))
        # All threads fill their words, even if unused, because LLVM keeps words in memory that only one branch fills.
        self._load_group(buffer, Apply(DataType.Index, "select", (beyond, index(0), position)), width, words, slot)
        with values.guard(beyond), self._within(reach) as v:
            place, at = (simplify(term, values.scope.ranges) for term in (slot + v, position + v))
            values.emit(Store(buffer=words, position=place, value=Load(words.dtype, buffer, at)))

    def _is_shifted(self, tensor: TensorView) -> bool:
        """Whether an input is a row shared by all rows and read at offsets that differ from the rows' own alignment."""
        buffer, width = self._buffers[tensor.name], self.schedule.vector
        if self._begin is None or self._leading is None or tensor in self._fusion.producers:
            return False
        fast, item = self._nest.reduced[-1].name, tensor.dtype.itemsize
        position = simplify(self._layouts[tensor].position(self._nest.index[tensor]), self._facts.ranges())
        is_row = isinstance(position, Var) and position.name == fast and buffer.alignment == ACCESS_BYTES
        return is_row and width * item == ACCESS_BYTES and item in _SHIFTED_BYTES

    def _fetch_shifted(self, tensor: TensorView, words: Buffer, places: Places, group: Term) -> None:
        """Load a group of an input that begins anywhere in an access."""
        first, values = {**places, **self._neighbours(self._nest.reduced, group, index(0))}, self._values
        position = self._layouts[tensor].position(values.simplified(self._nest.at(tensor, first)))
        count = self.schedule.vector
        values.emit(VectorLoad(
            buffer=self._buffers[tensor.name], position=simplify(position, values.scope.ranges), words=words,
            slot=index(0), count=count, width=count, shifted=True,
        ))

    def _each_of_group(
        self, group: Term, write: Callable[[Term], None], *, plain: bool = False, stores: bool = True,
    ) -> None:
        """Write the body for each element of a group; for the first and last group of a divided row, only its elements.

        If nothing is stored, all lanes process elements one by one, because one code path is shorter than two.
        """
        values, width, (low, high) = self._values, self.schedule.vector, self._ends
        if self._begin is None or plain:
            with self._each_neighbour() as v:
                write(v)
            return
        reach = self._reach(group)
        if self._leading is not None and not stores:
            with self._within(reach) as v:
                write(v)
            return
        bounds = apply("ge", reach, low), apply("le", reach + width, high)
        with values.guard(Apply(DataType.Bool, "and", bounds)), self._each_neighbour() as v:
            write(v)
        bounds = apply("lt", reach, low), apply("gt", reach + width, high)
        with values.guard(Apply(DataType.Bool, "or", bounds)), self._within(reach) as v:
            write(v)

    def _read_for_results(self, places: Places) -> None:
        """Load inputs that only a row's results need before the row, to hide their latency."""
        nest = self._nest
        if nest.full or self._passes < 2:
            return
        needed: set[Val] = set(nest.rows)
        for expr in reversed(self._fusion.exprs):
            if not needed.isdisjoint(expr.outputs):
                needed.update(expr.inputs)
        row_axes = {axis.name for axis in nest.kept}
        for tensor in self._fusion.tensor_inputs:
            names = set[str]().union(*map(variables, nest.index.get(tensor, ())))
            if tensor in needed and names and names <= row_axes:
                self._values.value(tensor, nest.at(tensor, places))

    def _passes_over(self, row: Term, sections: Sequence[RowSection]) -> None:
        """Write the passes over one row, then the values of the whole row."""
        nest = self._nest
        places = self._flat(self._nest.kept, row)
        first = 0
        if self._is_online:
            self._online(places, sections)
            first = 2
        elif self._meets_once:
            self._relative_to_warps(places, sections)
            first = 2
        for number in range(first, self._passes):
            exprs = self._reductions_of(number)
            stored = [tv for tv in nest.full if self._levels.get(tv, 0) == number]
            written = [s.tensor for s in self._saved if s.written == number]
            if not exprs and not stored and not written:
                continue
            folds = self._open(exprs)
            for section in sections if number == 0 else reversed(sections):
                self._section(number, places, section, folds, stored)
                if number == self._passes - 1 and section is sections[-1]:
                    self._send_for_next(section)
            self._share(folds, self._scope())
            self._close(folds, places)
        self._whole_rows(places)

    def _reductions_of(self, number: int) -> list[Expr]:
        """Return the reductions that a pass over rows makes."""
        return [expr for expr in self._nest.reductions if self._levels.get(expr.inputs[0], 0) == number]

    # Rows of one block, each loaded in part while the previous one is written

    def _rows_in_turn(self, block: Term, each: int, sections: Sequence[RowSection]) -> None:
        """Write the loop over consecutive rows; the next row is loaded while the current one is stored."""
        values, count, section = self._values, self.space.rows, sections[-1]
        first = [s.tensor for s in self._saved if s.written == 0 and section.place is Role.WORDS]
        self._sent = {tv: (width, section.kept[tv]) for tv in first if (width := self._width_of(tv, self._fast))}
        begin = simplify(block * each, values.scope.ranges)
        with values.guard(apply("lt", begin, count)):
            self._load_row(self._flat(self._nest.kept, begin), section, self._sent)
        with ExitStack() as stack:
            i = self._loop(stack, "i", each, ParallelType.serial)
            row = self._bound(stack, "row", begin + i, count, -(-count // each) * each)
            stack.enter_context(self._inline({}, pinned=True))
            self._row_turn = (i, row, each)
            self._passes_over(row, sections)
            if len(self._nest.reductions) == 1:
                # All threads read what the warps exchanged before the next row overwrites it.
                values.emit(Barrier())
        self._sent = {}

    def _send_for_next(self, section: RowSection) -> None:
        """Load the part of the next row that stays in registers."""
        if not self._sent:
            return
        values, (i, row, each) = self._values, self._row_turn
        after = simplify(row + 1, values.scope.ranges)
        with values.guard(apply("lt", i, each - 1)), values.guard(apply("lt", after, self.space.rows)):
            following = values.let("row_after", after)
            with self._inline({following.name: (0, self.space.rows - 1)}):
                self._load_row(self._flat(self._nest.kept, following), section, self._sent)

    def _whole_rows(self, places: Places) -> None:
        if not self._nest.rows:
            return
        assert self._place is not None
        with self._values.guard(apply("eq", self._place, 0)):
            self._row_stores(self._nest.rows, places)

    # Maximum and sum of exponentials in one pass

    @property
    def _is_online(self) -> bool:
        return self.schedule.online and self.space.online

    def _online(self, places: Places, sections: Sequence[RowSection]) -> None:
        """Write the pass that computes a row's maximum together with the sum of exponentials relative to it.

        Each thread's sum is relative to the largest element that it has seen, and is rescaled when a larger one follows
        (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018).
        """
        pair = online_pair(self._fusion, self._nest, self._levels)
        assert pair is not None
        largest, total = folds = self._open(pair)
        for section in sections:
            self._section(0, places, section, folds, ())
        largest_seen, scope = largest.total, self._scope()
        meets = scope is Scope.CLUSTER
        self._share([largest], Scope.WARP if meets else scope)
        self._update(total, total.total * scale(largest_seen, finite(largest.total)), replacing=True)
        self._share([total], Scope.WARP if meets else scope)
        if meets:
            largest, total = folds = self._meet_in_cluster(pair, folds)
        whole = whole_sum(largest.total, total.total)
        total.total = self._values.let(f"{base_name(total)}_whole", whole, origin=total.expr.name)
        self._close(folds, places)

    def _rescale(
        self, folds: Sequence[Fold], parts: Sequence[tuple[int, int, bool]],
        visit: Callable[[ExitStack, tuple[int, int, bool]], tuple[Term, Term]],
        known_here: Callable[[Term, Term, Term], Places], places: Places,
    ) -> None:
        """Write the largest element of a round, and make a thread's sum relative to it."""
        values, (largest, total) = self._values, folds
        source = largest.expr.tensor_inputs[0]
        seen = largest.total
        newest = Fold(
            expr=largest.expr, fn=largest.fn, identity=largest.identity,
            total=values.let(f"{base_name(largest)}_next", seen, origin=largest.expr.name),
        )
        for part in parts:
            with ExitStack() as steps:
                group, u = visit(steps, part)

                def compare(v: Term, group: Term = group, u: Term = u) -> None:
                    here = known_here(group, u, v)
                    self._update(newest, values.value(source, self._nest.at(source, here)))

                self._each_of_group(group, compare, plain=part[2], stores=False)
        self._update(total, total.total * scale(seen, finite(newest.total)), replacing=True)
        self._update(largest, newest.total, replacing=True)
        origin = values.let(f"{base_name(largest)}_origin", finite(newest.total), origin=largest.expr.name)
        values.know(largest.expr.out, self._nest.at(largest.expr.out, places), origin)

    # Maximum and sum of exponentials in one exchange

    @property
    def _meets_once(self) -> bool:
        """Whether the blocks of a cluster exchange the maximum and the sum of exponentials of a row together.

        Kept values must not depend on the maximum, which is that of a warp when they would be written.
        """
        if self._scope() is not Scope.CLUSTER or any(s.written for s in self._saved):
            return False
        return online_pair(self._fusion, self._nest, self._levels) is not None

    def _relative_to_warps(self, places: Places, sections: Sequence[RowSection]) -> None:
        """Write the first two passes over a row: sums of exponentials are relative to the maximum of a warp.

        No thread needs the results of other warps between the passes, so blocks wait for each other once.
        """
        values, pair = self._values, online_pair(self._fusion, self._nest, self._levels)
        assert pair is not None
        largest, total = folds = self._open(pair)
        for section in sections:
            self._section(0, places, section, [largest], ())
        self._share([largest], Scope.WARP)
        with self._inline({}, pinned=True):
            # Values that are computed from this maximum stay in this scope.
            origin = values.let(f"{base_name(largest)}_origin", finite(largest.total), origin=largest.expr.name)
            values.know(largest.expr.out, self._nest.at(largest.expr.out, places), origin)
            for section in reversed(sections):
                self._section(1, places, section, [total], ())
        self._share([total], Scope.WARP)
        largest, total = folds = self._meet_in_cluster(pair, folds)
        whole = whole_sum(largest.total, total.total)
        total.total = values.let(f"{base_name(total)}_whole", whole, origin=total.expr.name)
        self._close(folds, places)

    # The memory of the steps of a row

    def _sections(self) -> tuple[RowSection, ...]:
        """Allocate memory for the kept steps, and return the sections in the order of the first pass."""
        steps, schedule = self._row_steps, self.schedule
        held = min(schedule.registers, steps) if self._saved else 0
        shared = min(schedule.shared, steps - held) if self._saved else 0
        again = steps - held - shared
        sections = []
        if again:
            sections.append(RowSection(first=0, count=again, place=None, kept={}))
        if shared:
            buffers, end = {}, 0
            for tensor in (s.tensor for s in self._saved):
                # Dynamic buffers begin at the same address; each uses a separate part.
                item = tensor.dtype.itemsize
                first = -(-end // ACCESS_BYTES) * ACCESS_BYTES
                end = first + shared * schedule.threads[0] * schedule.vector * item
                self._shared_first[tensor] = first // item
                buffers[tensor] = self._words(tensor, max(end, LARGEST_STATIC + item) // item, "shared", Role.SHARED)
            sections.append(RowSection(first=again, count=shared, place=Role.SHARED, kept=buffers))
        if held:
            buffers = {s.tensor: self._register_row(s.tensor, held * schedule.vector) for s in self._saved}
            sections.append(RowSection(first=again + shared, count=held, place=Role.WORDS, kept=buffers))
        return tuple(sections)

    def _register_row(self, tensor: TensorView, size: int) -> Buffer:
        if self._width_of(tensor, self._fast):
            return self._words(tensor, size, "row")
        buffer = Buffer(name=f"{tensor.name}_row", dtype=tensor.dtype.compute, size=max(size, 1), role=Role.SCRATCH)
        self._values.emit(Alloc(buffer=buffer))
        return buffer

    @property
    def _row_groups(self) -> int:
        """Number of groups in a row."""
        return self.space.groups(self.schedule.vector)

    @property
    def _row_steps(self) -> int:
        """Number of steps over a row.

        If one kernel is for many lengths, they are at least those that are kept, and whole rounds of the others.
        """
        steps = -(-self._row_groups // self._row_lanes)
        kept_steps = self.schedule.registers + self.schedule.shared
        if not self._is_general:
            return steps
        return kept_steps + -(-max(steps - kept_steps, 0) // self.schedule.unroll) * self.schedule.unroll

    @property
    def _is_general(self) -> bool:
        """Whether one kernel is for many lengths of rows, because these grow with the outermost extent."""
        return self.space.reduces_outermost and not self.schedule.specialized

    @property
    def _row_lanes(self) -> int:
        """Number of threads that share a row."""
        return self.schedule.threads[0] * self.schedule.cluster

    # One section in one pass

    def _section(
        self, number: int, places: Places, section: RowSection, folds: Sequence[Fold], stored: Sequence[TensorView],
    ) -> None:
        """Write one pass over one section in rounds of a few steps, with the loads of a round before its values."""
        values = self._values
        saved = self._saved if section.kept else ()
        needed = inputs_needed(self._facts, number, saved)
        fetched = {
            tv: width for tv in needed if tv not in self._ahead and (width := self._width_of(tv, self._fast))
        }
        new = {s.tensor: section.kept[s.tensor] for s in saved if s.written == number}
        fetched |= {tv: width for tv in new if (width := self._width_of(tv, self._fast))}
        old = {s.tensor: section.kept[s.tensor] for s in saved if s.written < number}
        given_before = dict(values.given)
        moved = [tv for tv in needed if tv not in fetched and tv not in self._ahead and self._is_shifted(tv)]
        online = number == 0 and self._is_online
        if section.place is Role.WORDS:
            # The whole row is in flight before anything waits for it.
            direct = {tv: buffer for tv, buffer in new.items() if tv in fetched}
            waiting = {tv: (fetched.pop(tv), buffer) for tv, buffer in direct.items()}
            self._fetch_row(places, section, {tv: load for tv, load in waiting.items() if tv not in self._sent})
            new = {tv: buffer for tv, buffer in new.items() if tv not in direct}
            at_hand, shared = {**old, **direct, **self._ahead}, {}
        else:
            at_hand, shared = {}, old
        size = self._steps_ahead(section, bool(fetched or shared))
        # What several passes read again is so long that its last step is a small part.
        again = section.place is None and self._passes > 1
        named = self._bound if again or stored or self._begin is not None else self._fold_index
        loaded = self._bound if again else self._load_index
        words = {tv: self._words(tv, size * self.schedule.vector, "next") for tv in (*fetched, *shared)}
        joined = {tv: self._words(tv, self.schedule.vector, "joined") for tv in moved}
        for first, rounds, plain in self._spans(section, size):
            parts = list(self._parts_of(size, plain))
            with ExitStack() as stack:
                start: Term = self._round(stack, "round", rounds) * size + first
                if section.place is None and number % 2:
                    start = index((rounds - 1) * size) - start

                def visit(
                    steps: ExitStack, part: tuple[int, int, bool], start: Term = start, named: Named = named,
                ) -> tuple[Term, Term]:
                    u = self._round(steps, "u", part[1]) + part[0]
                    return self._group(steps, section, start + u, plain=part[2], named=named), u

                if words:
                    for part in parts:
                        with ExitStack() as inner:
                            group, u = visit(inner, part, named=loaded)
                            slot = u * self.schedule.vector
                            for tensor, width in fetched.items():
                                self._fetch_group(tensor, width, words[tensor], places, group, slot, plain=part[2])
                            for tensor, buffer in shared.items():
                                position = self._shared_position(tensor, start + u)
                                self._load_group(
                                    buffer, position, shared_width(buffer, self.schedule.vector), words[tensor], slot,
                                )

                def known_here(group: Term, u: Term, v: Term, start: Term = start) -> Places:
                    """Make elements available from their memory; return their position in the nest."""
                    here = {**places, **self._neighbours(self._nest.reduced, group, v)}
                    for tensor, buffer in words.items():
                        self._know(tensor, buffer, here, u * self.schedule.vector + v)
                    for tensor, buffer in at_hand.items():
                        self._know(tensor, buffer, here, (start + u) * self.schedule.vector + v)
                    return here

                if online:
                    self._rescale(folds, parts, visit, known_here, places)
                for part in parts:
                    with ExitStack() as inner:
                        group, u = visit(inner, part)

                        here_only = joined if part[2] else {}
                        for tensor, buffer in here_only.items():
                            self._fetch_shifted(tensor, buffer, places, group)

                        def visit_element(
                            v: Term, group: Term = group, u: Term = u, start: Term = start,
                            joined: Mapping[TensorView, Buffer] = here_only,
                        ) -> None:
                            here = known_here(group, u, v)
                            for tensor, buffer in joined.items():
                                self._know(tensor, buffer, here, v)
                            slot = simplify((start + u) * self.schedule.vector + v, values.scope.ranges)
                            row_buffers = list(new.items()) if section.place is Role.WORDS else []
                            self._point(here, folds[1:] if online else folds, stored, row_buffers, slot)
                            if section.place is Role.SHARED:
                                apart = {tv: b for tv, b in new.items() if tv not in words}
                                self._share_elements(here, apart, start + u, v)

                        before = dict(values.given)
                        self._each_of_group(group, visit_element, plain=part[2], stores=bool(stored))
                        values.given = before
                        if section.place is Role.SHARED:
                            for tensor in (tv for tv in new if tv in words):
                                position = self._shared_position(tensor, start + u)
                                self._store_group(new[tensor], position, words[tensor], u * self.schedule.vector)
        values.given = given_before

    def _fetch_row(
        self, places: Places, section: RowSection, loads: Mapping[TensorView, tuple[int, Buffer]],
    ) -> None:
        """Load a section of a row that stays in registers."""
        self._load_row(places, section, loads)

    def _load_row(
        self, places: Places, section: RowSection, loads: Mapping[TensorView, tuple[int, Buffer]],
    ) -> None:
        """Write the loads of all steps of a section, with the width of accesses and the destination of each input."""
        if not loads:
            return
        for first, count, plain in self._parts_of(section.count, self._plain_steps(section)):
            with ExitStack() as stack:
                step = self._round(stack, "step", count) + first
                group = self._group(stack, section, step, plain=plain, named=self._load_index)
                for tensor, (width, buffer) in loads.items():
                    slot = step * self.schedule.vector
                    self._fetch_group(tensor, width, buffer, places, group, slot, plain=plain)

    def _share_elements(
        self, places: Places, buffers: Mapping[TensorView, Buffer], step: Term, place: Term,
    ) -> None:
        """Keep elements in shared memory that were not loaded as a group."""
        values = self._values
        for tensor, buffer in buffers.items():
            position = simplify(self._shared_position(tensor, step) + place, values.scope.ranges)
            value = values.value(tensor, self._nest.at(tensor, places))
            values.emit(Store(buffer=buffer, position=position, value=value))

    def _store_group(self, buffer: Buffer, position: Term, words: Buffer, slot: Term) -> None:
        """Write a group to shared memory."""
        values, count = self._values, self.schedule.vector
        position, slot = (simplify(term, values.scope.ranges) for term in (position, slot))
        if count == 1:
            values.emit(Store(buffer=buffer, position=position, value=Load(words.dtype, words, slot)))
            return
        values.emit(
            VectorStore(
                buffer=buffer, position=position, words=words, slot=slot, count=count,
                width=shared_width(buffer, count),
            ),
        )

    def _group(
        self, stack: ExitStack, section: RowSection, step: Term, *, plain: bool = False, named: Named | None = None,
    ) -> Var:
        """Name the group of a thread in a step of a section; ``plain`` groups are entirely in the row.

        ``named`` says what happens beyond the row; by default nothing is executed there.
        """
        lanes, named = self._row_lanes, named or self._bound
        assert self._place is not None
        reach = (section.first + section.count) * lanes
        position = (step + section.first) * lanes + self._place
        if self._leading is None:
            return named(stack, "g", position, self._row_groups, self._row_groups if plain else reach)
        whole = self._row_steps * lanes
        with self._inline({t.name: (1, self._groups_of_line) for t in (self._leading,) if isinstance(t, Var)}):
            position = simplify(position + self._leading, self._values.scope.ranges)
            position = position if plain else self._remainder(position, whole)
        return named(stack, "g", position, self._row_groups, self._row_groups if plain else whole)

    def _plain_steps(self, section: RowSection) -> int:
        """Return the number of leading steps of a section in which all groups are whole and in the row.

        Lanes that begin at a line process the first and the last groups of a row in its last steps.
        """
        if self._leading is None:
            whole = 0 if self._is_divided else self._row_groups // self._row_lanes
            plain = min(max(whole - section.first, 0), section.count)
            if not self._is_general or plain == section.count:
                return plain
            # Few kernels for all lengths: more steps than necessary have conditions.
            alone = section.place is Role.WORDS and not section.first
            return common_plain_steps(plain) if alone else plain - plain % self.schedule.unroll
        most = (self.space.depth // self.schedule.vector - self._groups_of_line) // self._row_lanes
        return min(max(most - section.first, 0), section.count)

    def _parts_of(self, count: int, plain: int) -> Iterator[tuple[int, int, bool]]:
        """Yield ranges of steps: the first, their number, and whether all of their groups are plain."""
        if plain:
            yield 0, plain, True
        if count > plain:
            yield plain, count - plain, False

    def _spans(self, section: RowSection, size: int) -> Iterator[tuple[int, int, int]]:
        """Yield rounds of a section: the first step, the number of rounds, and the leading plain steps of each."""
        plain = 0 if section.place is None else self._plain_steps(section)
        rounds, before = section.count // size, plain // size
        if before:
            yield 0, before, size
        if rounds > before:
            yield before * size, rounds - before, plain - before * size if rounds == before + 1 else 0

    def _shared_position(self, tensor: TensorView, step: Term) -> Term:
        """Return the position of a thread's group of a step in shared memory; no other thread reads it."""
        assert self._lane is not None
        return (step * self.schedule.threads[0] + self._lane) * self.schedule.vector + self._shared_first[tensor]

    def _steps_ahead(self, section: RowSection, loads: bool) -> int:
        """Return the number of steps per round."""
        if not loads:
            return section.count if section.place is Role.WORDS else 1
        most = min(max(self.schedule.unroll, 1), section.count)
        return next(n for n in range(most, 0, -1) if section.count % n == 0)

    @property
    def _fast(self) -> Axis | None:
        return self._nest.reduced[-1] if self._nest.reduced else None

def shared_width(buffer: Buffer, neighbours: int) -> int:
    """Return how many elements of shared memory one access has."""
    return min(16 // buffer.dtype.itemsize, neighbours)

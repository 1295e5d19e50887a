"""The common parts of GPU kernels with reductions: guarded indices, early loads, reductions over threads."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from fuser_lab.codegen.gpu_facts import GpuFacts
from fuser_lab.codegen.index_math import simplify
from fuser_lab.codegen.kernel_ir import (
    Alloc,
    Barrier,
    Buffer,
    If,
    Launch,
    Let,
    Load,
    Loop,
    Phase,
    Reduce,
    Role,
    Scope,
    Statement,
    Store,
    VectorLoad,
    walk,
)
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nest_facts import NestFacts
from fuser_lab.codegen.nest_lowering import Fold, NestLowering, Places, base_name
from fuser_lab.codegen.nest_writing import ZERO, PhaseCode, open_loop, written_phase
from fuser_lab.codegen.nests import Axis, axis_indices
from fuser_lab.codegen.persistence import Saved, rows_kept
from fuser_lab.codegen.progressions import access_of
from fuser_lab.codegen.values import Values
from fuser_lab.cost.device import WARP
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, Fusion, TensorView, Val
from fuser_lab.ir.term import COMPARISONS, Apply, Term, Var, cast, index, select
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.state import Evict, LoopSchedule, Style


class GpuReductions(NestLowering):
    """Writes the parts that `RowNest` and `ColumnNest` share."""

    _facts: GpuFacts
    _lane: Var | None = None  # number of the thread among those of its block that share a row or are adjacent
    _place: Term | None = None  # number of the thread in its cluster
    _begin: tuple[Term, Term] | None = None  # the access in which such a row begins, and the position of its beginning
    _inside: Term | None = None  # whether values are folded; None if all are
    _early = True  # whether inputs of later passes may be loaded with the first pass

    def _chosen_saved(self) -> tuple[Saved, ...]:
        early = self._early and self.schedule.constants
        return rows_kept(self._facts, values=self.schedule.values, early=early)

    def _phase(self, write: Callable[[], Launch], suffix: str = "") -> Phase:
        phase = super()._phase(write, suffix)
        dynamic = [s.buffer for s in walk(phase.body) if isinstance(s, Alloc) and s.buffer.is_dynamic]
        shared = max((b.size * b.dtype.itemsize for b in dynamic), default=0)
        resident = self.schedule.resident if self._nest.reductions else phase.launch.resident
        return replace(phase, launch=replace(phase.launch, shared=shared, resident=resident))

    def _bound(self, stack: ExitStack, name: str, position: Term, count: int, reach: int) -> Var:
        """Name an index, and guard it if it may reach ``count``."""
        values = self._values
        variable = values.let(name, simplify(position, values.scope.ranges))
        stack.enter_context(self._inline({variable.name: (0, max(reach - 1, 0))}))
        if reach > count:
            stack.enter_context(values.guard(variable < count))
        return variable

    def _load_index(self, stack: ExitStack, name: str, position: Term, count: int, reach: int) -> Var:
        """Name an index of loads: 0 in place of any that may reach ``count``.

        Loads under a condition would wait for one another: ptxas unpacks the words of each in the branch that loads
        them.
        """
        return self._clamp_index(stack, name, position, count, reach)[0]

    def _fold_index(self, stack: ExitStack, name: str, position: Term, count: int, reach: int) -> Var:
        """Name an index of values that are only folded: 0 in place of any that may reach ``count``, not folded there.

        ptxas would move the loads of values that only one branch uses into that branch.
        """
        variable, inside = self._clamp_index(stack, name, position, count, reach)
        before, self._inside = self._inside, inside

        def restore() -> None:
            self._inside = before

        stack.callback(restore)
        return variable

    def _clamp_index(
        self, stack: ExitStack, name: str, position: Term, count: int, reach: int,
    ) -> tuple[Var, Term | None]:
        """Name a position, or 0 where it reaches ``count``; also return the condition that it does not.

        The condition is None if the position never reaches it.
        """
        if reach <= count or not count:
            return self._bound(stack, name, position, count, reach), None
        reached = self._bound(stack, "reached", position, reach, reach)
        inside = reached < count
        place = Apply(DataType.Index, "select", (inside, reached, index(0)))
        return self._bound(stack, name, place, count, count), inside

    def _update(self, fold: Fold, value: Term, *, replacing: bool = False) -> None:
        if self._inside is not None and not replacing:
            value = select(self._inside, cast(value, fold.running.dtype), fold.identity)
        super()._update(fold, value, replacing=replacing)

    def _round(self, stack: ExitStack, name: str, count: int) -> Term:
        """Open a loop with a known number of iterations, or none for a single one."""
        return self._loop(stack, name, count, ParallelType.serial) if count > 1 else index(0)

    # Groups: the adjacent elements that a thread processes at a time

    def _neighbours(self, axes: Sequence[Axis], group: Term, place: Term) -> dict[str, Term]:
        """Return axes as terms of the number of a group of adjacent elements and a position in it."""
        width = self.schedule.vector
        if width == 1:
            return self._flat(axes, group)
        last = axes[-1]
        if self._begin is not None and axes == self._nest.reduced:
            first, start = self._begin
            at = (first + group) * width + place - start
            return {last.name: simplify(at, self._values.scope.ranges)}
        grouped = (*axes[:-1], Axis(name=last.name, extent=last.extent // width))
        places = axis_indices(grouped, group, self._values.scope.ranges)
        places[last.name] = simplify(places[last.name] * width + place, self._values.scope.ranges)
        return places

    @contextmanager
    def _each_neighbour(self) -> Iterator[Term]:
        """Open the loop over a group of adjacent elements, whose accesses are vectorized."""
        width = self.schedule.vector
        if width == 1:
            yield index(0)
            return
        with self._values.loop(self._values.fresh("v"), width, ParallelType.vectorize) as v:
            yield v

    # Loads ahead of their use

    def _width_of(self, tensor: TensorView, fast: Axis | None) -> int:
        """Return how many elements an access to a group has; 0 if the group's elements are not adjacent in memory."""
        if fast is None or tensor in self._fusion.producers or tensor not in self._nest.index:
            return 0
        count = self.schedule.vector
        places, ranges = self._facts.trial_places(fast, count, self._lead if self._is_divided else None)
        at = tuple(simplify(i, ranges) for i in self._nest.at(tensor, places))
        position = simplify(self._layouts[tensor].position(at), ranges)
        access = access_of(self._buffers[tensor.name], position, "v")
        width = 1 if count == 1 and access.step is None else access.width(count)
        # Elements of a divided row are read one by one, where they are known to belong to the row.
        return width if not self._is_divided or width > 1 else 0

    @property
    def _lead(self) -> TensorView | None:
        return self._facts.lead

    @property
    def _is_divided(self) -> bool:
        return self._lead is not None and self.schedule.vector > 1

    def _words(self, tensor: TensorView, size: int, suffix: str, role: Role = Role.WORDS) -> Buffer:
        """Allocate words for elements in their storage type."""
        name = self._values.fresh(f"{tensor.name}_{suffix}")
        buffer = Buffer(name=name, dtype=tensor.dtype, size=max(size, 1), role=role)
        self._values.emit(Alloc(buffer=buffer))
        return buffer

    def _fetch(
        self, tensor: TensorView, width: int, words: Buffer, places: Places, slot: Term, count: int = 0,
    ) -> None:
        """Load ``count`` adjacent elements of an input, or a group if 0; ``places`` is the position of the first."""
        position = self._layouts[tensor].position(self._values.simplified(self._nest.at(tensor, places)))
        self._load_group(self._buffers[tensor.name], position, width, words, slot, count)

    def _load_group(
        self, buffer: Buffer, position: Term, width: int, words: Buffer, slot: Term, count: int = 0,
    ) -> None:
        """Load ``count`` adjacent elements, or a group if 0, ``width`` per access."""
        values, count = self._values, count or self.schedule.vector
        position, slot = (simplify(term, values.scope.ranges) for term in (position, slot))
        if count == 1:
            values.emit(Store(buffer=words, position=slot, value=Load(words.dtype, buffer, position)))
            return
        values.emit(
            VectorLoad(buffer=buffer, position=position, words=words, slot=slot, count=count, width=width),
        )

    def _know(self, tensor: TensorView, buffer: Buffer, places: Places, slot: Term) -> None:
        """Make an element available from the words that hold it."""
        element = Load(tensor.dtype, buffer, simplify(slot, self._values.scope.ranges))
        self._values.know(tensor, self._nest.at(tensor, places), element)

    # Reductions over threads

    def _share(self, folds: Sequence[Fold], scope: Scope) -> None:
        """Combine the totals of all lanes."""
        if scope is Scope.THREAD:
            return
        for fold in folds:
            name = self._values.fresh(f"{base_name(fold)}_all")
            self._values.emit(
                Reduce(
                    name=name, fn=fold.fn, value=fold.total, identity=fold.identity.value, scope=scope,
                    origin=fold.expr.name,
                ),
            )
            fold.total = Var(fold.total.dtype, name)

    def _scope(self) -> Scope:
        """Return the scope of the threads that share a row."""
        lanes = self.schedule.threads[0]
        if self.schedule.cluster > 1:
            return Scope.CLUSTER
        return Scope.THREAD if lanes == 1 else Scope.WARP if lanes <= WARP else Scope.BLOCK


# What one of these returns: an index, and the condition under which values there are folded; None if all are.
Named = Callable[[Values, ExitStack, str, Term, int, int], tuple[Var, Term | None]]


def gpu_phase(plan: NestPlan, suffix: str, write: Callable[[PhaseCode], Launch]) -> Phase:
    """Return the phase that a function writes, with the shared memory of a block in its launch."""
    phase = written_phase(plan, suffix, write)
    dynamic = [s.buffer for s in walk(phase.body) if isinstance(s, Alloc) and s.buffer.is_dynamic]
    shared = max((b.size * b.dtype.itemsize for b in dynamic), default=0)
    resident = plan.choice.schedule.resident if plan.facts.nest.reductions else phase.launch.resident
    return replace(phase, launch=replace(phase.launch, shared=shared, resident=resident))


def parts_of(plan: NestPlan) -> dict[Expr, Buffer]:
    """Return the memory of the partial results of reductions that a second phase combines."""
    split, rows = plan.choice.schedule.split, plan.facts.space.rows
    return {
        expr: Buffer(
            name=f"{expr.name}_parts", dtype=expr.out.dtype.compute, size=rows * split, role=Role.WORKSPACE,
        )
        for expr in (plan.facts.nest.reductions if split > 1 else ())
    }


# Indices


def bound(values: Values, stack: ExitStack, name: str, position: Term, count: int, reach: int) -> Var:
    """Name an index, and guard it if it may reach ``count``."""
    variable = values.let(name, values.simplify(position))
    stack.enter_context(values.inlined({variable.name: (0, max(reach - 1, 0))}))
    if reach > count:
        stack.enter_context(values.guard(variable < count))
    return variable


def guarded(
    values: Values, stack: ExitStack, name: str, position: Term, count: int, reach: int,
) -> tuple[Var, Term | None]:
    """Name an index beyond which nothing is executed."""
    return bound(values, stack, name, position, count, reach), None


def clamped(
    values: Values, stack: ExitStack, name: str, position: Term, count: int, reach: int,
) -> tuple[Var, Term | None]:
    """Name an index, or 0 where it reaches ``count``, and return the condition that it does not, if it may.

    It is for loads, and for values that are only folded. Loads under a condition would wait for one another, because
    ptxas unpacks the words of each in the branch that loads them, and it would move the loads of values that only one
    branch uses into that branch.
    """
    if reach <= count or not count:
        return guarded(values, stack, name, position, count, reach)
    reached = bound(values, stack, "reached", position, reach, reach)
    inside = reached < count
    place = Apply(DataType.Index, "select", (inside, reached, ZERO))
    return bound(values, stack, name, place, count, count), inside


def open_rounds(values: Values, stack: ExitStack, name: str, count: int) -> Term:
    """Open a loop with a known number of iterations, or none for a single one."""
    return open_loop(values, stack, name, count, ParallelType.serial) if count > 1 else ZERO


# Groups: the adjacent elements that a thread processes at a time


def neighbours(code: PhaseCode, axes: Sequence[Axis], width: int, group: Term, place: Term) -> dict[str, Term]:
    """Return axes as terms of the number of a group of adjacent elements and a position in it."""
    if width == 1:
        return code.flat(axes, group)
    *outer, last = axes
    places = code.flat((*outer, Axis(name=last.name, extent=last.extent // width)), group)
    places[last.name] = code.values.simplify(places[last.name] * width + place)
    return places


@contextmanager
def each_neighbour(values: Values, width: int) -> Iterator[Term]:
    """Open the loop over a group of adjacent elements, whose accesses are vectorized."""
    if width == 1:
        yield ZERO
        return
    with values.loop(values.fresh("v"), width, ParallelType.vectorize) as v:
        yield v


# Loads ahead of their use


def words_of(values: Values, tensor: TensorView, size: int, suffix: str, role: Role = Role.WORDS) -> Buffer:
    """Allocate words for elements in their storage type."""
    buffer = Buffer(
        name=values.fresh(f"{tensor.name}_{suffix}"), dtype=tensor.dtype, size=max(size, 1), role=role,
    )
    values.emit(Alloc(buffer=buffer))
    return buffer


def load_group(
    values: Values, buffer: Buffer, position: Term, width: int, words: Buffer, slot: Term, count: int,
) -> None:
    """Load ``count`` adjacent elements, ``width`` per access."""
    position, slot = values.simplify(position), values.simplify(slot)
    if count == 1:
        values.emit(Store(buffer=words, position=slot, value=Load(words.dtype, buffer, position)))
        return
    values.emit(VectorLoad(buffer=buffer, position=position, words=words, slot=slot, count=count, width=width))


def know_word(code: PhaseCode, tensor: TensorView, words: Buffer, places: Places, slot: Term) -> None:
    """Make an element available from the words that hold it."""
    code.know(tensor, places, Load(tensor.dtype, words, code.values.simplify(slot)))


# Reductions over threads


def share(values: Values, folds: Sequence[Fold], scope: Scope) -> list[Fold]:
    """Return reductions with the combined totals of all lanes."""
    if scope is Scope.THREAD:
        return list(folds)
    if scope is Scope.CLUSTER:
        wait_for_cluster(values)
    shared = []
    for fold in folds:
        name = values.fresh(f"{base_name(fold)}_all")
        values.emit(Reduce(
            name=name, fn=fold.fn, value=fold.total, identity=fold.identity.value, scope=scope, origin=fold.expr.name,
        ))
        shared.append(replace(fold, total=Var(fold.total.dtype, name)))
    return shared


def wait_for_cluster(values: Values) -> None:
    """Wait until all blocks of a cluster have started, so that their memory can be written, unless that is done."""
    barrier = Barrier(scope=Scope.CLUSTER)
    if not any(barrier in scope.body for scope in values.scope.outward()):
        values.emit(barrier)


def open_lanes(values: Values, stack: ExitStack, name: str, count: int) -> Var:
    """Open the loop over the threads of a block in x, in which values of a thread stay."""
    return stack.enter_context(values.loop(name, count, ParallelType.block_x, pinned=True))


def open_lines(values: Values, stack: ExitStack, count: int) -> Term:
    """Open the loop over the threads of a block in y, if there are several."""
    return open_loop(values, stack, "line", count, ParallelType.block_y) if count > 1 else ZERO


def with_hints(phase: Phase, facts: NestFacts, schedule: LoopSchedule) -> Phase:
    """Return a phase whose loads of inputs have the schedule's L2 eviction priority, and whose divisions are cheap."""
    loads = [s.buffer for s in walk(phase.body) if isinstance(s, VectorLoad) and s.buffer.role is Role.INPUT]
    if schedule.style is Style.ELEMENTS:
        # Data that adjacent threads also read stays in the L1 cache for them, with or without a hint.
        loads = [buffer for buffer in loads if loads.count(buffer) == 1]
    body = with_eviction(phase.body, schedule.evict, frozenset(loads))
    return replace(phase, body=with_quotients(body, facts.fusion) if facts.nest.reductions else body)


def with_eviction(statements: tuple[Statement, ...], evict: Evict, among: frozenset[Buffer]) -> tuple[Statement, ...]:
    """Return statements whose vector loads of some buffers have an L2 eviction priority."""
    result: list[Statement] = []
    for statement in statements:
        match statement:
            case Loop(body=body):
                result.append(replace(statement, body=with_eviction(body, evict, among)))
            case If(then=then, otherwise=otherwise):
                sides = (with_eviction(side, evict, among) for side in (then, otherwise))
                result.append(replace(statement, then=next(sides), otherwise=next(sides)))
            case VectorLoad(buffer=buffer) if buffer in among:
                result.append(replace(statement, evict=evict))
            case _:
                result.append(statement)
    return tuple(result)


# Functions that can turn a difference in the last place into a large one.
_STEPS = COMPARISONS | {"floor", "ceil", "trunc", "round", "fmod", "remainder", "mod"}
# Functions that return one of their operands.
_CARRIES = frozenset({
    "abs", "broadcast", "cast", "cat", "clamp", "expand", "fmax", "fmin", "maximum", "minimum", "neg", "pad", "permute",
    "relu", "reshape", "segment_set", "set", "slice", "squeeze", "stride_order", "where",
})  # fmt: skip


def with_quotients(
    statements: tuple[Statement, ...], fusion: Fusion, inside: frozenset[str] | None = None,
) -> tuple[Statement, ...]:
    """Return statements in which float32 values of a loop are divided by a value from outside it without a branch.

    ``x / total`` -> ``quotient(x, total)``: within 2 units in the last place, and the reciprocal is computed once. A
    result that a thread keeps for each of its columns also counts as from outside. Quotients that are rounded to
    integers or 8-bit floats, or compared, stay exact.
    """
    result: list[Statement] = []
    for statement in statements:
        match statement:
            case Loop(body=body):
                result.append(replace(statement, body=with_quotients(body, fusion, _set_in(body))))
            case If(then=then, otherwise=otherwise):
                branches = (with_quotients(side, fusion, inside) for side in (then, otherwise))
                result.append(replace(statement, then=next(branches), otherwise=next(branches)))
            case Let(value=Apply(DataType.Float, "div", (a, Var(_, name) as b))) if (
                inside is not None and name not in inside and not _is_compared(statement.origin, fusion)
            ):
                result.append(replace(statement, value=Apply(DataType.Float, "quotient", (a, b))))
            case _:
                result.append(statement)
    return tuple(result)


def _set_in(body: tuple[Statement, ...]) -> frozenset[str]:
    """Return the names that a loop's body sets, without copies of values that a thread keeps from before the loop."""
    inside = list(walk(body))
    stored = {s.buffer for s in inside if isinstance(s, Store | VectorLoad)}

    def is_kept(statement: Let | Reduce) -> bool:
        value = statement.value
        return isinstance(value, Load) and value.buffer.role is Role.SCRATCH and value.buffer not in stored

    return frozenset(s.name for s in inside if isinstance(s, Let | Reduce) and not is_kept(s))


def _is_compared(origin: str | None, fusion: Fusion) -> bool:
    expr = next((e for e in fusion.exprs if e.name == origin), None)
    if expr is None:
        return True
    return _reaches_step(expr.outputs[0], fusion)


def _reaches_step(value: Val, fusion: Fusion) -> bool:
    """Whether a value, or a copy of it, is used by a function that is sensitive to the last place."""
    for user in fusion.users.get(value, ()):
        made = user.outputs[0]
        if user.op.name in _STEPS or made.dtype.is_float8 or not (made.dtype.is_float or made.dtype.is_complex):
            return True
        if user.op.name in _CARRIES and _reaches_step(made, fusion):
            return True
    return False

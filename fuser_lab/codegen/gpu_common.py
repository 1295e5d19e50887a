"""The common parts of GPU kernels with reductions: guarded indices, early loads, reductions over threads."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import numpy as np

from fuser_lab.codegen import kernel_ir as ir
from fuser_lab.codegen.gpu_element_facts import GpuElementFacts
from fuser_lab.codegen.index_map import Index
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nest_facts import NestFacts
from fuser_lab.codegen.nest_writing import ZERO, Fold, PhaseCode, Places, open_loop, written_phase
from fuser_lab.codegen.nests import Axis
from fuser_lab.codegen.values import Values
from fuser_lab.cost.device import WARP
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, Fusion, TensorView, Val
from fuser_lab.ir.term import COMPARISONS, Apply, Const, Term, Var, apply
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.state import Evict, LoopSchedule, Style

# What one of these returns: an index, and the condition under which values there are folded; None if all are.
Named = Callable[[Values, ExitStack, str, Term, int, int], tuple[Var, Term | None]]
ElementsAt = Callable[[Places], list[tuple[TensorView, Index]]]


def gpu_phase(plan: NestPlan, suffix: str, write: Callable[[PhaseCode], ir.Launch]) -> ir.Phase:
    """Return the phase that a function writes, with the shared memory of a block in its launch."""
    phase = written_phase(plan, suffix, write)
    dynamic = [s.buffer for s in ir.walk(phase.body) if isinstance(s, ir.Alloc) and s.buffer.is_dynamic]
    shared = max((b.size * b.dtype.itemsize for b in dynamic), default=0)
    resident = plan.schedule.resident if plan.facts.nest.reductions else phase.launch.resident
    return replace(phase, launch=replace(phase.launch, shared=shared, resident=resident))


# Indices


def bound(values: Values, stack: ExitStack, name: str, position: Term, count: int, reach: int) -> Var:
    """Name an index, and guard it if it may reach ``count``."""
    variable = values.let(name, values.simplify(position))
    stack.enter_context(values.inlined({variable.name: (0, max(reach - 1, 0))}))
    if reach > count:
        stack.enter_context(values.guard(variable < count))
    return variable


def guard_index(
    values: Values, stack: ExitStack, name: str, position: Term, count: int, reach: int,
) -> tuple[Var, Term | None]:
    """Name an index beyond which nothing is executed."""
    return bound(values, stack, name, position, count, reach), None


def clamp_index(
    values: Values, stack: ExitStack, name: str, position: Term, count: int, reach: int,
) -> tuple[Var, Term | None]:
    """Name an index, or 0 where it reaches ``count``, and return the condition that it does not, if it may.

    It is for loads, and for values that are only folded. Loads under a condition would wait for one another, because
    ptxas unpacks the words of each in the branch that loads them, and it would move the loads of values that only one
    branch uses into that branch.
    """
    if reach <= count or not count:
        return guard_index(values, stack, name, position, count, reach)
    reached = bound(values, stack, "reached", position, reach, reach)
    inside = reached < count
    place = Apply(DataType.Index, "select", (inside, reached, ZERO))
    return bound(values, stack, name, place, count, count), inside


@contextmanager
def each_round(values: Values, name: str, count: int) -> Iterator[Term]:
    """Open a loop with a known number of iterations, or none for a single one."""
    with ExitStack() as stack:
        yield open_loop(values, stack, name, count, ParallelType.serial) if count > 1 else ZERO


def open_rounds(values: Values, stack: ExitStack, name: str, count: int) -> Term:
    """Open such a loop until the stack is closed, and return its variable."""
    return stack.enter_context(each_round(values, name, count))


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


def words_of(values: Values, tensor: TensorView, size: int, suffix: str, role: ir.Role = ir.Role.WORDS) -> ir.Buffer:
    """Allocate words for elements in their storage type."""
    return values.allocate(values.fresh(f"{tensor.name}_{suffix}"), tensor.dtype, max(size, 1), role)


def load_group(
    values: Values, buffer: ir.Buffer, position: Term, width: int, words: ir.Buffer, slot: Term, count: int,
) -> None:
    """Load ``count`` adjacent elements, ``width`` per access."""
    position, slot = values.simplify(position), values.simplify(slot)
    if count == 1:
        values.put(words, slot, ir.Load(words.dtype, buffer, position))
        return
    values.emit(ir.VectorLoad(buffer=buffer, position=position, words=words, slot=slot, count=count, width=width))


def fetch(
    code: PhaseCode, tensor: TensorView, places: Places, width: int, words: ir.Buffer, slot: Term, count: int,
) -> None:
    """Load ``count`` adjacent elements of an input, of which ``places`` is the position of the first."""
    load_group(code.values, code.buffers[tensor.name], code.position(tensor, places), width, words, slot, count)


def know_word(code: PhaseCode, tensor: TensorView, words: ir.Buffer, places: Places, slot: Term) -> None:
    """Make an element available from the words that hold it."""
    code.know(tensor, places, ir.Load(tensor.dtype, words, code.values.simplify(slot)))


# Reads at positions that are data


def looked_up(
    code: PhaseCode, facts: GpuElementFacts, lookups: Mapping[Expr, int],
) -> Iterator[tuple[ElementsAt, ElementsAt]]:
    """Yield what is read in advance at a point of the nest: positions that are data, and the elements there.

    ``lookups`` has how many look-ups precede each; those that precede no other come last.
    """
    values, nest = code.values, code.nest
    for depth in sorted(set(lookups.values())):
        exprs = [expr for expr, level in lookups.items() if level == depth]

        def positions(here: Places, exprs: list[Expr] = exprs) -> list[tuple[TensorView, Index]]:
            reads = (read for expr in exprs for read in facts.positions(expr, nest.at(expr.out, here)))
            return list(dict.fromkeys((read.tensor, values.simplified(read.index)) for read in reads))

        def results(here: Places, exprs: list[Expr] = exprs) -> list[tuple[TensorView, Index]]:
            return [(expr.out, values.simplified(nest.at(expr.out, here))) for expr in exprs]

        yield positions, results


# Reductions over threads


def scope_of(schedule: LoopSchedule) -> ir.Scope:
    """Return what the threads that share a row are."""
    lanes = schedule.threads[0]
    if schedule.cluster > 1:
        return ir.Scope.CLUSTER
    return ir.Scope.THREAD if lanes == 1 else ir.Scope.WARP if lanes <= WARP else ir.Scope.BLOCK


def share(values: Values, folds: Sequence[Fold], scope: ir.Scope) -> list[Fold]:
    """Return reductions with the combined totals of all lanes."""
    if scope is ir.Scope.THREAD:
        return list(folds)
    if scope is ir.Scope.CLUSTER:
        wait_for_cluster(values)
    shared = []
    for fold in folds:
        name = values.fresh(f"{fold.name}_all")
        values.emit(ir.Reduce(
            name=name, fn=fold.fn, value=fold.total, identity=fold.identity.value, scope=scope, origin=fold.expr.name,
        ))
        shared.append(replace(fold, total=Var(fold.total.dtype, name)))
    return shared


def wait_for_cluster(values: Values) -> None:
    """Wait until all blocks of a cluster have started, so that their memory can be written, unless that is done."""
    barrier = ir.Barrier(scope=ir.Scope.CLUSTER)
    if not any(barrier in scope.body for scope in values.scope.outward()):
        values.emit(barrier)


def open_lanes(values: Values, stack: ExitStack, name: str, count: int) -> Var:
    """Open the loop over the threads of a block in x, in which values of a thread stay."""
    return stack.enter_context(values.loop(name, count, ParallelType.block_x, pinned=True))


def open_lines(values: Values, stack: ExitStack, count: int) -> Term:
    """Open the loop over the threads of a block in y, if there are several."""
    return open_loop(values, stack, "line", count, ParallelType.block_y) if count > 1 else ZERO


def with_hints(phase: ir.Phase, facts: NestFacts, schedule: LoopSchedule) -> ir.Phase:
    """Return a phase whose loads of inputs have the schedule's L2 eviction priority, and whose divisions are cheap."""
    loads = [s.buffer for s in ir.walk(phase.body) if isinstance(s, ir.VectorLoad) and s.buffer.role is ir.Role.INPUT]
    if schedule.style is Style.ELEMENTS:
        # Data that adjacent threads also read stays in the L1 cache for them, with or without a hint. A thread that
        # computes elements of both halves of a row has a load in each.
        loads = [buffer for buffer in loads if loads.count(buffer) <= facts.space.halves]
    body = with_eviction(phase.body, schedule.evict, frozenset(loads))
    body = with_library_functions(body, facts.fusion)
    has_quotients = facts.nest.reductions or facts.fusion.keeps_float
    return replace(phase, body=with_quotients(body, facts.fusion) if has_quotients else body)


def with_eviction(statements: ir.Block, evict: Evict, among: frozenset[ir.Buffer]) -> ir.Block:
    """Return statements whose vector loads of some buffers have an L2 eviction priority."""
    return tuple(
        replace(statement, evict=evict) if isinstance(statement, ir.VectorLoad) and statement.buffer in among
        else ir.map_blocks(statement, partial(with_eviction, evict=evict, among=among))
        for statement in statements
    )


# Functions that can turn a difference in the last place into a large one.
_STEPS = COMPARISONS | {"floor", "ceil", "trunc", "round", "floordiv", "fmod", "remainder", "mod"}
# Functions that return one of their operands, or a sum with it, which the last place may take to another integer.
_CARRIES = frozenset({
    "abs", "add", "broadcast", "cast", "cat", "clamp", "expand", "fmax", "fmin", "maximum", "minimum", "neg", "pad",
    "permute", "relu", "reshape", "segment_set", "set", "slice", "squeeze", "stride_order", "sub", "where",
})  # fmt: skip


def with_library_functions(statements: tuple[ir.Statement, ...], fusion: Fusion) -> tuple[ir.Statement, ...]:
    """Return statements in which exponentials that are rounded to integers or compared are as accurate as in PyTorch.

    A random number that is compared with a probability then gives PyTorch's own choice.
    """
    result: list[ir.Statement] = []
    for statement in statements:
        match statement:
            case ir.Let(value=Apply(DataType.Float as dtype, "exp" | "sigmoid" | "tanh" as fn, (x,))) if (
                _is_compared(statement.origin, fusion)
            ):
                unit = Const(dtype, 1.0)
                value = Apply(dtype, f"library_{fn}", (x,)) if fn != "sigmoid" else Apply(
                    dtype, "div", (unit, unit + Apply(dtype, "library_exp", (apply("neg", x),))),
                )
                result.append(replace(statement, value=value))
            case _:
                result.append(ir.map_blocks(statement, partial(with_library_functions, fusion=fusion)))
    return tuple(result)


def with_quotients(
    statements: tuple[ir.Statement, ...], fusion: Fusion, inside: frozenset[str] | None = None,
) -> tuple[ir.Statement, ...]:
    """Return statements in which values of a loop are divided by a value from outside it without a branch.

    The branches of the compiler's division and square root make a thread wait for the loads of its elements one after
    another.
    ``x / total`` -> ``quotient(x, total)`` for float32: within 2 units in the last place, and the reciprocal is
    computed once. A result that a thread keeps for each of its columns also counts as from outside. If values keep the
    precision of float32 between ops, all divisions are such, and ``x / 3`` -> ``x * (1 / 3)``, as in PyTorch's own
    kernels. Quotients that are rounded to integers or 8-bit floats, or compared, and those of float64 are rounded
    exactly: by ``rounded_quotient`` if values keep float32. Square roots are ``rounded_sqrt`` then.
    """
    result: list[ir.Statement] = []
    for statement in statements:
        match statement:
            case ir.Loop(body=body):
                result.append(replace(statement, body=with_quotients(body, fusion, _set_in(body))))
            case ir.Let(value=Apply(DataType.Float, "div", (a, b))) if (
                fusion.keeps_float or (inside is not None and isinstance(b, Var) and b.name not in inside)
            ):
                exact = _is_compared(statement.origin, fusion)
                result.append(replace(statement, value=_quotient(a, b, exact=exact, keeps_float=fusion.keeps_float)))
            case ir.Let(value=Apply(DataType.Double as dtype, "div", operands)) if fusion.keeps_float:
                result.append(replace(statement, value=Apply(dtype, "rounded_quotient", operands)))
            case ir.Let(value=Apply(DataType.Float | DataType.Double as dtype, "sqrt", operands)) if fusion.keeps_float:
                result.append(replace(statement, value=Apply(dtype, "rounded_sqrt", operands)))
            case _:
                result.append(ir.map_blocks(statement, partial(with_quotients, fusion=fusion, inside=inside)))
    return tuple(result)


def _quotient(a: Term, b: Term, *, exact: bool, keeps_float: bool) -> Term:
    """Return a quotient of float32 without a branch, or with one if the result must be that of a division."""
    if isinstance(b, Const) and not _is_normal(b.value):
        return Apply(DataType.Float, "div", (a, b))
    if isinstance(b, Const) and (not exact or abs(b.value.real).as_integer_ratio()[0].bit_count() == 1):
        return a * Const(DataType.Float, 1 / b.value)
    if exact:
        return Apply(DataType.Float, "rounded_quotient" if keeps_float else "div", (a, b))
    return Apply(DataType.Float, "quotient", (a, b))


def _is_normal(number: complex) -> bool:
    """Whether a number and its reciprocal are normal numbers of float32."""
    smallest = float(np.finfo(np.float32).smallest_normal)
    return smallest <= abs(number) <= 1 / smallest


def _set_in(body: tuple[ir.Statement, ...]) -> frozenset[str]:
    """Return the names that a loop's body sets, without copies of values from before the loop."""
    inside = list(ir.walk(body))
    stored = {s.buffer for s in inside if isinstance(s, ir.Store | ir.VectorLoad)}
    names = set[str]()
    for statement in inside:
        match statement:
            case ir.Let(value=Var(_, name)) if name not in names:
                pass
            case ir.Let(value=ir.Load(_, buffer)) if buffer.role is ir.Role.SCRATCH and buffer not in stored:
                pass
            case ir.Let(name=name) | ir.Reduce(name=name):
                names.add(name)
            case _:
                pass
    return frozenset(names)


def _is_compared(origin: str | None, fusion: Fusion) -> bool:
    expr = next((e for e in fusion.exprs if e.name == origin), None)
    if expr is None:
        return True
    return _reaches_step(expr.outputs[0], fusion)


def _reaches_step(value: Val, fusion: Fusion) -> bool:
    """Whether a value, or a copy of it, is used by a function that is sensitive to the last place."""
    # Each value once: between the rounds of ``x = where(c, x + d, x)``, the number of paths doubles.
    reached, waiting = {value}, [value]
    while waiting:
        for user in fusion.users.get(waiting.pop(), ()):
            made = user.outputs[0]
            if user.op.name in _STEPS or made.dtype.is_float8 or not (made.dtype.is_float or made.dtype.is_complex):
                return True
            if user.op.name in _CARRIES and made not in reached:
                reached.add(made)
                waiting.append(made)
    return False

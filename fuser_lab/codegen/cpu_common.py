"""What the writers of CPU kernels share: ranges of indices, running values, and passes over rows or columns.

The outermost loop is distributed over cores, and the compiler vectorizes the innermost.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from fuser_lab.codegen.kernel_ir import Buffer, Load, Store
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nest_writing import Fold, PhaseCode, Places, folds_of, open_loop, update
from fuser_lab.codegen.values import Values, call_text
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, TensorView
from fuser_lab.ir.term import Const, Term, Var, apply, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.cpu_loops import CPU_PARALLEL_FROM


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One visit to all points of a nest."""

    reductions: tuple[Expr, ...]
    stored: tuple[TensorView, ...]  # results, at each point
    ahead: tuple[TensorView, ...] = ()  # values of a row or column that are computed before it for many of them
    saved: tuple[TensorView, ...] = ()  # values of a row that later passes read
    restored: tuple[TensorView, ...] = ()  # values of a row that earlier passes saved
    read_back: tuple[TensorView, ...] = ()  # results of earlier passes that it reads from memory
    added: tuple[Expr, ...] = ()  # sums of columns to which it adds each row
    unscanned: tuple[Expr, ...] = ()  # scans whose operands it computes
    scanned: tuple[Expr, ...] = ()  # scans whose results earlier passes computed


def passes_of(plan: NestPlan) -> tuple[Pass, ...]:
    """Return the passes over the points of a nest, in which no value is kept between passes."""
    facts = plan.facts
    return tuple(
        Pass(
            reductions=facts.reductions_in(number), stored=facts.stored_in(number), unscanned=facts.scans_in(number),
            scanned=tuple(expr for expr in facts.nest.scans if facts.levels[expr.out] <= number),
        )
        for number in range(facts.passes)
    )


def with_values_ahead(passes: Sequence[Pass], ahead: Sequence[Sequence[TensorView]]) -> tuple[Pass, ...]:
    """Return passes before which some values are computed, each value once."""
    seen: set[TensorView] = set()
    result = []
    for step, tensors in zip(passes, ahead, strict=True):
        result.append(replace(step, ahead=tuple(tv for tv in tensors if tv not in seen)))
        seen.update(tensors)
    return tuple(result)


def outer_loop(plan: NestPlan) -> ParallelType:
    """Return how the outermost loop runs; adding up the parts of a reduction is too little work to distribute."""
    schedule = plan.choice.schedule
    is_small = schedule.split > 1 and plan.facts.space.rows * schedule.split < CPU_PARALLEL_FROM
    return ParallelType.grid_x if schedule.parallel and not is_small else ParallelType.serial


# Indices


def chunk(
    values: Values, number: Term, size: int, extent: int, *, guarded: bool = False, count: int = 0,
) -> tuple[Term, Term]:
    """Return start and stop of one of the ranges of ``size`` that cover ``extent``.

    If ``guarded``, the last may be shorter for every extent, so that kernels for other extents are the same.
    ``count`` is the number of ranges if that may be more than are needed: the others are empty.
    """
    start = values.simplify(number * size)
    if isinstance(start, Const) and size >= extent:
        return start, index(extent)
    end = values.simplify(start + size)
    exact = size > 0 and extent % size == 0 and count * size <= extent and not guarded
    return start, end if exact else apply("min", end, extent)


def index_variable(values: Values, name: str, term: Term) -> Term:
    """Return an index as a variable, unless it is a variable or a constant."""
    return term if isinstance(term, Const | Var) else values.let(name, term)


# Running values


def total_type(plan: NestPlan, fold: Fold) -> DataType:
    """Return the dtype of a total: twice as wide as subtotals, if many of these are added up one after another."""
    dtype = fold.identity.dtype
    return dtype.wider if fold.rounds and plan.facts.space.depth > plan.choice.schedule.partial else dtype


def open_totals(plan: NestPlan, values: Values, exprs: Sequence[Expr]) -> list[Fold]:
    """Return reductions whose totals are new variables."""
    return [
        replace(fold, total=values.let(
            fold.name, Const(total_type(plan, fold), fold.identity.value), origin=fold.expr.name,
            note=call_text(fold.expr),
        ))
        for fold in folds_of(exprs)
    ]


@contextmanager
def partials(values: Values, folds: Sequence[Fold]) -> Iterator[list[Fold]]:
    """Yield reductions with separate running values, which are added to the totals at the end."""
    parts = [
        replace(fold, total=values.let(f"{fold.name}_part", fold.identity, origin=fold.expr.name))
        for fold in folds
    ]
    yield parts
    for fold, part in zip(folds, parts, strict=True):
        update(values, fold, part.total)


def has_blocks(plan: NestPlan, length: int, folds: Sequence[Fold]) -> bool:
    """Whether a loop over indices is in blocks with separate sums, because these are more accurate."""
    return length > plan.choice.schedule.partial and any(fold.rounds for fold in folds)


def open_block(
    plan: NestPlan, values: Values, stack: ExitStack, name: str, ends: tuple[Term, Term], length: int, extent: int,
    folds: Sequence[Fold], parallel: ParallelType,
) -> tuple[list[Fold], Var]:
    """Open a loop over at most ``length`` indices, in blocks with separate sums if that is more accurate.

    The innermost loop never updates a total that is wider than the elements.
    """
    (start, stop), size = ends, plan.choice.schedule.partial
    if has_blocks(plan, length, folds):
        block = open_loop(values, stack, f"{name}_block", -(-length // size), ParallelType.serial)
        folds = stack.enter_context(partials(values, folds))
        start = values.simplify(start + block * size)
        end = values.simplify(start + size)
        exact = length % size == 0 and isinstance(stop, Const)
        stop = end if exact else apply("min", end, stop)
    elif any(fold.total.dtype is not fold.identity.dtype for fold in folds):
        folds = stack.enter_context(partials(values, folds))
    return list(folds), stack.enter_context(values.loop(name, stop, parallel, start=start, largest=extent))


def running_sums(
    plan: NestPlan, values: Values, size: int, suffix: str, *, wide: bool = False,
) -> dict[Expr, Buffer]:
    """Allocate running values of all reductions: totals of subtotals if ``wide``."""
    return {
        fold.expr: values.allocate(
            f"{fold.expr.name}_{suffix}", total_type(plan, fold) if wide else fold.identity.dtype, max(size, 1),
            origin=fold.expr.name,
        )
        for fold in folds_of(plan.facts.nest.reductions)
    }


def clear(values: Values, folds: Sequence[Fold]) -> None:
    """Write the identity to running values in scratch memory."""
    for fold in folds:
        total = fold.total
        assert isinstance(total, Load)
        first = Const(total.dtype, fold.identity.value)
        values.emit(Store(buffer=total.buffer, position=total.position, value=first, origin=fold.expr.name))


def add_parts(values: Values, parts: Mapping[Expr, Buffer], folds: Sequence[Fold], position: Term) -> None:
    """Add the partial results at a position of their memory to running values."""
    for fold in folds:
        buffer = parts[fold.expr]
        update(values, fold, Load(buffer.dtype, buffer, values.simplify(position)))


# Values of many rows or columns


def scratch_of(
    values: Values, tensors: Sequence[TensorView], suffix: str, size: int,
) -> dict[TensorView, Buffer]:
    """Allocate scratch memory for elements of tensors, in the dtypes in which they are computed."""
    return {tv: values.allocate(f"{tv.name}_{suffix}", tv.dtype.compute, max(size, 1)) for tv in tensors}


def write_ahead(code: PhaseCode, buffers: Mapping[TensorView, Buffer], places: Places, slot: Term) -> None:
    """Compute values of one row or column into scratch memory."""
    for tensor, buffer in buffers.items():
        value = code.values.value(tensor, code.values.simplified(code.nest.at(tensor, places)))
        code.values.emit(Store(buffer=buffer, position=slot, value=value))


def know_ahead(code: PhaseCode, buffers: Mapping[TensorView, Buffer], places: Places, slot: Term) -> None:
    """Make values in scratch memory available at one row or column."""
    for tensor, buffer in buffers.items():
        code.know(tensor, places, Load(tensor.dtype, buffer, slot))

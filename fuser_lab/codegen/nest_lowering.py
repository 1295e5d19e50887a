"""Passes, accumulators and row buffers of one nest; a subclass per target writes the enclosing loops."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from fuser_lab.codegen.index_math import simplify
from fuser_lab.codegen.kernel_ir import (
    Alloc,
    Buffer,
    Launch,
    Let,
    Load,
    Phase,
    Reduce,
    Role,
    Store,
    VectorLoad,
    VectorStore,
    terms_of,
    walk,
)
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nests import Axis, axis_indices
from fuser_lab.codegen.persistence import Saved, choose_saved, reads_several
from fuser_lab.codegen.values import Values, call_text
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, Fusion, TensorView
from fuser_lab.ir.term import Apply, Const, Term, Var, apply, cast, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.ops import OPS
from fuser_lab.targets import target_of

Places = Mapping[str, Term]


@dataclass(slots=True, kw_only=True)
class Fold:
    """A reduction whose loops are being written, with its running value."""

    expr: Expr
    fn: str
    identity: Const
    total: Term
    partial: Term | None = None

    @property
    def running(self) -> Term:
        """The value that the innermost loop updates."""
        return self.total if self.partial is None else self.partial

    @property
    def rounds(self) -> bool:
        """Whether the order of additions changes the result."""
        dtype = self.identity.dtype
        return self.fn in {"add", "mul"} and (dtype.is_float or dtype.is_complex)


Walking = Callable[[ExitStack, Sequence[Fold]], tuple[Places, Term]]


class NestLowering:
    """Writes the phases of one nest."""

    def __init__(self, plan: NestPlan) -> None:
        facts, schedule, target = plan.facts, plan.choice.schedule, plan.choice.target
        self._fusion, self._nest, self._buffers, self._layouts = facts.fusion, facts.nest, facts.buffers, facts.layouts
        self._levels, self._passes, self._inner_reduced = facts.levels, facts.passes, facts.inner_reduced
        self._kept_outer, self._kept_run = facts.kept_outer, facts.kept_run
        self._reduced_outer, self._reduced_run = facts.reduced_outer, facts.reduced_run
        self._facts, self._name = facts, plan.name
        self.space, self.schedule = facts.space, schedule
        self._parts = {
            expr: Buffer(
                name=f"{expr.name}_parts", dtype=expr.out.dtype.compute, size=self.space.rows * schedule.split,
                role=Role.WORKSPACE,
            )
            for expr in (self._nest.reductions if schedule.split > 1 else ())
        }
        self._saved = self._chosen_saved() if schedule.persistent else ()
        self._read_back = (
            self._results_read_back() if schedule.persistent and not target_of(target).has_blocks else ()
        )
        self._values = Values(self._fusion, self._buffers, self._layouts)

    def _chosen_saved(self) -> tuple[Saved, ...]:
        """Return the values of a row that are kept between passes."""
        return choose_saved(self._facts)

    def _results_read_back(self) -> tuple[TensorView, ...]:
        """Return the results that a pass stores and a later one reads, because computing them again reads more."""
        if not self._nest.reduced:
            return ()
        saved_tensors = {saved.tensor for saved in self._saved}
        return tuple(
            tv for tv in self._nest.full
            if self._levels.get(tv, 0) < self._passes - 1 and tv not in saved_tensors and self._is_stored(tv)
            and not tv.dtype.is_float8
            and (self._facts.steps(tv) or {}).get(self._nest.reduced[-1].name) == 1
            and reads_several(self._facts, tv)
        )

    def _is_stored(self, tensor: TensorView) -> bool:
        """Whether a tensor that the nest computes at each point is stored."""
        return True

    def phases(self) -> Iterator[Phase]:
        """Yield one phase, or one per pass and one for results if reductions are cut into parts."""
        raise NotImplementedError

    def _phase(self, write: Callable[[], Launch], suffix: str = "") -> Phase:
        self._values = Values(self._fusion, self._buffers, self._layouts)
        launch = write()
        body = tuple(self._values.scope.body)
        used: dict[Buffer, None] = {}
        scalars: dict[Var, None] = {}
        defined = {s.name for s in walk(body) if isinstance(s, Let | Reduce)}
        for statement in walk(body):
            if isinstance(statement, Store | VectorLoad | VectorStore):
                used[statement.buffer] = None
            for root in terms_of(statement):
                for term in root.walk():
                    if isinstance(term, Load):
                        used[term.buffer] = None
                    elif isinstance(term, Var) and term.dtype is not DataType.Index and term.name not in defined:
                        scalars[term] = None
        return Phase(
            name=self._name + suffix,
            buffers=tuple(sorted((b for b in used if not b.role.is_allocated), key=self._parameter_order)),
            scalars=tuple(scalars),
            body=body,
            launch=launch,
            schedule=self.schedule,
        )

    def _parameter_order(self, buffer: Buffer) -> tuple[int, int]:
        """Inputs and outputs in the fusion's order, then the workspace."""
        names = list(self._buffers)
        return (Role.INPUT, Role.OUTPUT, Role.WORKSPACE).index(buffer.role), (
            names.index(buffer.name) if buffer.name in names else 0
        )

    @contextmanager
    def _inline(self, binds: Mapping[str, tuple[int, int]], *, pinned: bool = False) -> Iterator[None]:
        """Open a scope whose statements are appended to the enclosing block when it is closed."""
        with self._values.inlined(binds, pinned=pinned):
            yield

    def _row(self, row: Term, buffers: Mapping[TensorView, Buffer], walking: Walking) -> None:
        """Write the passes over one row, then the values of the whole row."""
        nest, values = self._nest, self._values
        places = self._flat(nest.kept, row)
        first = 0
        if self._parts:
            with ExitStack() as stack:
                folds = self._open(nest.reductions)
                _, part = walking(stack, folds)
                for fold in folds:
                    buffer = self._parts[fold.expr]
                    at = simplify(row * self.schedule.split + part, values.scope.ranges)
                    self._update(fold, Load(buffer.dtype, buffer, at))
            self._close(folds, places)
            first = 1
        for number in range(first, self._passes):
            exprs = [e for e in nest.reductions if self._levels.get(e.inputs[0], 0) == number]
            self._close(self._pass_over_row(places, number, exprs, buffers, walking), places)
        self._row_stores(nest.rows, places)

    def _pass_over_row(
        self, places: Places, number: int, exprs: Sequence[Expr], buffers: Mapping[TensorView, Buffer],
        walking: Walking, first: Term | None = None,
    ) -> list[Fold]:
        """Write one pass over a row and return its reductions; ``first`` is where its kept values begin, 0 if None."""
        folds = self._open(exprs)
        written = [s.tensor for s in self._saved if s.written == number]
        stored = [tv for tv in self._nest.full if self._levels.get(tv, 0) == number]
        if folds or stored or written:
            with ExitStack() as stack:
                inner, slot = walking(stack, folds)
                if first is not None:
                    slot = simplify(first + slot, self._values.scope.ranges)
                self._know_saved({**places, **inner}, number, buffers, slot)
                self._point({**places, **inner}, folds, stored, [(tv, buffers[tv]) for tv in written], slot)
        return folds

    def _know_saved(
        self, places: Places, number: int, buffers: Mapping[TensorView, Buffer], slot: Term,
    ) -> None:
        """Make values that earlier passes kept or stored available to this pass."""
        for tensor in self._read_back:
            if self._levels.get(tensor, 0) < number:
                at = self._values.simplified(self._nest.at(tensor, places))
                position = simplify(self._layouts[tensor].position(at), self._values.scope.ranges)
                self._values.know(tensor, at, Load(tensor.dtype, self._buffers[tensor.name], position))
        for saved in self._saved:
            if saved.written < number:
                buffer = buffers[saved.tensor]
                self._values.know(saved.tensor, self._nest.at(saved.tensor, places), Load(buffer.dtype, buffer, slot))

    def _point(
        self, places: Places, folds: Sequence[Fold], stored: Sequence[TensorView],
        row_buffers: Sequence[tuple[TensorView, Buffer]], slot: Term,
    ) -> None:
        """Write the body for one element of a row."""
        values, nest = self._values, self._nest
        for tensor, buffer in row_buffers:
            value = values.value(tensor, nest.at(tensor, places))
            values.emit(Store(buffer=buffer, position=slot, value=value, origin=_origin(self._fusion, tensor)))
        for fold in folds:
            source = fold.expr.tensor_inputs[0]
            self._update(fold, values.value(source, nest.at(source, places)))
        for tensor in stored:
            values.store(tensor, nest.at(tensor, places), self._layouts[tensor])

    def _row_stores(self, tensors: Sequence[TensorView], places: Places) -> None:
        for tensor in tensors:
            self._values.store(tensor, self._nest.at(tensor, places), self._layouts[tensor])

    def _allocate(self, size: int) -> dict[TensorView, Buffer]:
        """Allocate a row buffer for each kept value, reusing buffers that are read for the last time."""
        buffers = {}
        for saved in self._saved:
            buffer = Buffer(
                name=f"{saved.tensor.name}_row", dtype=saved.tensor.dtype.compute, size=max(size, 1), role=Role.SCRATCH,
            )
            self._values.emit(Alloc(buffer=buffer))
            buffers[saved.tensor] = buffer
        return buffers

    def _total_type(self, expr: Expr) -> DataType:
        """Return the dtype of a reduction's total."""
        return expr.out.dtype.compute

    def _open_block(
        self, stack: ExitStack, name: str, start: Term, stop: Term, length: int, extent: int,
        folds: Sequence[Fold], parallel: ParallelType,
    ) -> Var:
        """Open a loop over at most ``length`` indices, in blocks with separate sums if that is more accurate.

        The innermost loop never updates a total that is wider than the elements.
        """
        values, size = self._values, self.schedule.partial
        if length > size and any(fold.rounds for fold in folds):
            block = self._loop(stack, f"{name}_block", -(-length // size), ParallelType.serial)
            stack.enter_context(self._partials(folds))
            start = simplify(start + block * size, values.scope.ranges)
            end = simplify(start + size, values.scope.ranges)
            exact = length % size == 0 and isinstance(stop, Const)
            stop = end if exact else apply("min", end, stop)
        elif any(fold.running.dtype is not fold.identity.dtype for fold in folds):
            stack.enter_context(self._partials(folds))
        return stack.enter_context(values.loop(name, stop, parallel, start=start, largest=extent))

    @contextmanager
    def _partials(self, folds: Sequence[Fold]) -> Iterator[None]:
        """Give every fold a separate running value that is added to the total at the end."""
        for fold in folds:
            fold.partial = self._values.let(f"{base_name(fold)}_part", fold.identity, origin=fold.expr.name)
        yield
        for fold in folds:
            partial, fold.partial = fold.partial, None
            if partial is not None:
                self._update(fold, partial)

    def _store_parts(self, folds: Sequence[Fold], position: Term) -> None:
        for fold in folds:
            buffer = self._parts[fold.expr]
            total = cast(fold.total, buffer.dtype)
            self._values.emit(Store(buffer=buffer, position=position, value=total, origin=fold.expr.name))

    def _lane_result(self, places: Places, row: Term) -> None:
        """Write the reduction of one lane."""
        values, nest = self._values, self._nest
        folds = self._open(nest.reductions)
        with ExitStack() as stack:
            if self._parts:
                part = self._loop(stack, "part", self.schedule.split, ParallelType.serial)
                at = simplify(part * self.space.rows + row, values.scope.ranges)
                for fold in folds:
                    buffer = self._parts[fold.expr]
                    self._update(fold, Load(buffer.dtype, buffer, at))
            else:
                depth = self.space.depth
                q = self._open_block(stack, "q", index(0), index(depth), depth, depth, folds, ParallelType.serial)
                inner = self._flat(nest.reduced, q)
                self._point({**places, **inner}, folds, nest.full, (), index(0))
        self._close(folds, places)
        self._row_stores(nest.rows, places)

    def _loop(self, stack: ExitStack, name: str, count: int, parallel: ParallelType) -> Var:
        return stack.enter_context(self._values.loop(name, count, parallel))

    def _flat(self, axes: Sequence[Axis], flat: Term) -> dict[str, Term]:
        return axis_indices(axes, flat, self._values.scope.ranges)

    def _index_variable(self, name: str, term: Term) -> Term:
        """Emit an index as a variable unless it already is one, and keep its range."""
        if isinstance(term, Const | Var):
            return term
        return self._values.let(name, term)

    def _quotient(self, term: Term, divisor: int) -> Term:
        return simplify(apply("floordiv", term, divisor), self._values.scope.ranges)

    def _remainder(self, term: Term, divisor: int) -> Term:
        return simplify(apply("mod", term, divisor), self._values.scope.ranges)

    def _chunk(
        self, number: Term, size: int, extent: int, *, guarded: bool = False, count: int = 0,
    ) -> tuple[Term, Term]:
        """Return start and stop of one of the ranges of ``size`` that cover ``extent``.

        If ``guarded``, the last may be shorter for every extent, so that kernels for other extents are the same.
        ``count`` is the number of ranges if that may be more than are needed: the others are empty.
        """
        ranges = self._values.scope.ranges
        start = simplify(number * size, ranges)
        if isinstance(start, Const) and size >= extent:
            return start, index(extent)
        end = simplify(start + size, ranges)
        exact = size > 0 and extent % size == 0 and count * size <= extent and not guarded
        return start, end if exact else apply("min", end, extent)

    def _folds_of(self, exprs: Sequence[Expr]) -> list[Fold]:
        folds = []
        for expr in exprs:
            combine = OPS[expr.op.name].combine
            assert combine is not None
            dtype = expr.out.dtype.compute
            identity = Const(dtype, combine.identity(expr.out.dtype))
            folds.append(Fold(expr=expr, fn=combine.fn, identity=identity, total=identity))
        return folds

    def _open(self, exprs: Sequence[Expr]) -> list[Fold]:
        folds = self._folds_of(exprs)
        for fold in folds:
            first = Const(self._total_type(fold.expr), fold.identity.value)
            fold.total = self._values.let(base_name(fold), first, origin=fold.expr.name, note=call_text(fold.expr))
        return folds

    def _update(self, fold: Fold, value: Term, *, replacing: bool = False) -> None:
        """Emit ``running = running fn value``, or ``running = value`` if ``replacing``."""
        running = fold.running
        operand = cast(value, running.dtype)
        term = operand if replacing else Apply(running.dtype, fold.fn, (running, operand))
        if isinstance(running, Load):
            self._values.emit(
                Store(buffer=running.buffer, position=running.position, value=term, origin=fold.expr.name),
            )
            return
        assert isinstance(running, Var)
        self._values.emit(Let(name=running.name, value=term, update=True, origin=fold.expr.name))

    def _close(self, folds: Sequence[Fold], places: Places) -> None:
        """Make results available to subsequent statements."""
        for fold in folds:
            out = fold.expr.out
            self._values.know(out, self._nest.at(out, places), cast(fold.total, out.dtype))
        self._values.pin({fold.total.name for fold in folds if isinstance(fold.total, Var)})

    def _stores(self, places: Places) -> None:
        for tensor in self._nest.full:
            self._values.store(tensor, self._nest.at(tensor, places), self._layouts[tensor])


def base_name(fold: Fold) -> str:
    """Return the name of a reduction's running value, ``t6_sum``."""
    return f"{fold.expr.name.lower()}_{fold.expr.op.name}"


def _origin(fusion: Fusion, tensor: TensorView) -> str | None:
    expr = fusion.producers.get(tensor)
    return None if expr is None else expr.name

"""Loop nests of a segment: the axes of each nest, and the reductions and outputs that it computes.

A nest's axes are named variables: ``i0, i1, ...`` for axes that results keep, ``r0, r1, ...`` for reduced ones, each
list ordered from the slowest in memory to the fastest.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from fuser_lab.codegen import kernel_ir as ir
from fuser_lab.codegen.index_map import ZERO, Components, Index, IndexMap, index_var
from fuser_lab.codegen.index_math import linear, simplify, substitute, variables
from fuser_lab.codegen.values import Values
from fuser_lab.errors import CodegenError
from fuser_lab.ir import Expr, Fusion, OpKind, TensorView
from fuser_lab.ir.term import Apply, Const, Term, Var, index, variables_in
from fuser_lab.ops import OPS
from fuser_lab.schedule.state import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A loop variable and its extent."""

    name: str
    extent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Nest:
    """One iteration space with the tensors that are computed in it."""

    kept: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    index: Mapping[TensorView, Index]  # in axis variables, of every tensor with a known index
    reductions: tuple[Expr, ...]
    rows: tuple[TensorView, ...]  # outputs with one element per result
    full: tuple[TensorView, ...]  # outputs with one element per point
    reduces_outermost: bool = False  # whether the slowest axis in memory is reduced
    scans: tuple[Expr, ...] = ()  # along the only reduced axis, in the fusion's order
    scans_between_passes: bool = False  # whether scans, reductions and results of points wait for reductions of rows
    # Statements at one point in axis variables, if they were written to sort the axes; see `at_one_point`.
    written: tuple[ir.Statement, ...] | None = field(default=None, repr=False, compare=False)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Kept axes, then reduced ones."""
        return (*self.kept, *self.reduced)

    @property
    def outputs(self) -> tuple[TensorView, ...]:
        """All outputs of the nest."""
        return (*self.rows, *self.full)

    def __str__(self) -> str:
        """Return the axes with their extents, and what the nest computes, as one line."""
        spaces = (f"{word} {', '.join(f'{axis.name} < {axis.extent}' for axis in axes) or 'nothing'}"
                for word, axes in (("keeps", self.kept), ("reduces", self.reduced)))
        names = (
            ("reductions", [expr.name for expr in self.reductions]), ("scans", [expr.name for expr in self.scans]),
            ("one element per result", [tensor.name for tensor in self.rows]),
            ("one per point", [tensor.name for tensor in self.full]),
        )
        return "; ".join((*spaces, *(f"{word}: {', '.join(listed)}" for word, listed in names if listed)))

    def axes_of(self, tensor: TensorView) -> set[str]:
        """Return the names of the axes that the index of a tensor depends on; none if the index is unknown."""
        return set[str]().union(*map(variables, self.index.get(tensor, ())))

    def at(self, tensor: TensorView, places: Mapping[str, Term]) -> Index:
        """Return a tensor's index with axis variables replaced by terms of the loops."""
        return tuple(substitute(component, places) for component in self.index[tensor])


def nests_of(
    fusion: Fusion, buffers: Mapping[str, ir.Buffer], layouts: Mapping[TensorView, ir.Layout], *, between: bool = True,
) -> tuple[Nest, ...] | Refused:
    """Return the nests of a segment; every output with elements is in exactly one.

    It is refused if an output needs a reduction whose nest does not reach it, or an op has no rule for one element.
    ``between`` says whether scans may be between passes over rows.
    """
    finder = _Finder(fusion, between=between)
    try:
        return tuple(_in_memory_order(fusion, nest, buffers, layouts) for nest in finder.nests())
    except CodegenError as error:
        return Refused(str(error))


class _Finder:
    def __init__(self, fusion: Fusion, *, between: bool) -> None:
        self._fusion, self._between = fusion, between
        self._open = [tv for tv in dict.fromkeys(fusion.outputs) if tv.numel]

    def nests(self) -> Iterator[Nest]:
        needed = _ancestors(self._fusion, self._open)
        pending = [e for e in self._fusion.tensor_exprs if e.kind is OpKind.REDUCTION and e in needed]
        scans = [e for e in self._fusion.tensor_exprs if e.kind is OpKind.SCAN and e in needed]
        while scans:
            nest = self._scans(scans, pending, between=self._between)
            scans = [expr for expr in scans if expr not in nest.scans]
            pending = [expr for expr in pending if expr not in nest.reductions]
            yield nest
        while pending:
            nest = self._reduction(pending)
            pending = [expr for expr in pending if expr not in nest.reductions]
            yield nest
        while self._open:
            yield self._elements()

    def _scans(self, pending: Sequence[Expr], reductions: Sequence[Expr], *, between: bool) -> Nest:
        """Return the nest of the first scan, of all other scans along the same axis, and of the ops around them.

        It has the reductions along this axis if nothing outside of the nest depends on them; unless ``between``, if
        nothing but their results does.
        """
        first = pending[0]
        dim = _dim(first)
        kept_axes, reduced, components = _axes((n, place == dim) for place, n in enumerate(first.out.stored_shape))
        places = IndexMap(self._fusion, {first.out: components}, ranges_of((*kept_axes, *reduced)), mirrors=True)
        names = {a.name for a in (*kept_axes, *reduced)}
        along = components[dim]
        scans = [
            expr for expr in pending
            if (index := places.complete(expr.out)) is not None and _covered_axes(expr.out, index) == names
            and index[_dim(expr)] == along and prod(expr.out.stored_shape) == prod(first.out.stored_shape)
        ]
        kept_names = {axis.name for axis in kept_axes}
        along_rows = [
            expr for expr in reductions
            if _axes_over(expr, places) == (kept_names, names - kept_names)
            and prod(expr.tensor_inputs[0].stored_shape) == prod(first.out.stored_shape)
        ]
        scans, folds = self._complete_rows(scans, along_rows, between=between)
        behind_points = {tv: _reductions_behind(self._fusion, tv) for tv in self._open}
        full = [
            tv for tv in self._open
            if _covered_axes(tv, places.complete(tv)) == names and behind_points[tv] <= (folds if between else set())
            and _behind(self._fusion, tv, OpKind.SCAN) <= set(scans)
            and prod(tv.stored_shape) == prod(first.out.stored_shape)
        ]
        rows = [
            tv for tv in self._open
            if _covered_axes(tv, places.complete(tv)) == kept_names
            and behind_points[tv] and behind_points[tv] <= folds
            and _behind(self._fusion, tv, OpKind.SCAN) <= set(scans)
        ]
        if first not in scans or any(folds & behind_points[tv] for tv in self._open if tv not in (*rows, *full)):
            if between:
                return self._scans(pending, reductions, between=False)
            folds, rows = set(), []
        if not full and not rows:
            raise CodegenError(f"no output has the elements of {first.out.name}, along which {first.op.name} runs.")
        self._open = [tv for tv in self._open if tv not in full and tv not in rows]
        return Nest(
            kept=kept_axes, reduced=reduced, index=_complete(places),
            reductions=tuple(expr for expr in reductions if expr in folds), rows=tuple(rows), full=tuple(full),
            scans=tuple(scans), scans_between_passes=any(
                not folds.isdisjoint(_reductions_behind(self._fusion, tv))
                for tv in (*full, *(expr.tensor_inputs[0] for expr in (*scans, *folds)))
            ),
        )

    def _complete_rows(
        self, scans: Sequence[Expr], reductions: Sequence[Expr], *, between: bool,
    ) -> tuple[list[Expr], set[Expr]]:
        """Return the scans and reductions of rows that depend on no others; unless ``between``, on no reduction."""
        while True:
            folds = set[Expr]()
            for expr in reductions:
                before = _reductions_behind(self._fusion, expr.tensor_inputs[0])
                if before <= (folds if between else set()) and _behind(self._fusion, expr.out, OpKind.SCAN) <= {*scans}:
                    folds.add(expr)
            complete = [
                expr for expr in scans if not between or (
                    _reductions_behind(self._fusion, expr.out) <= folds
                    and _behind(self._fusion, expr.out, OpKind.SCAN) <= {*scans}
                )
            ]
            if len(complete) == len(scans):
                return complete, folds
            scans = complete

    def _reduction(self, pending: Sequence[Expr]) -> Nest:
        first = pending[0]
        source = first.tensor_inputs[0]
        results = iter(first.out.stored_shape)
        kept_axes, reduced, components = _axes(
            (extent if axis.is_reduction else next(results), axis.is_reduction)
            for axis, extent in zip(first.out.domain.logical, source.shape, strict=True)
        )
        places = IndexMap(self._fusion, {source: components}, ranges_of((*kept_axes, *reduced)))
        reductions = [first, *(e for e in pending[1:] if self._joins(e, kept_axes, reduced, components, places, first))]
        rows, full = [], []
        row_names, all_names = {a.name for a in kept_axes}, {a.name for a in (*kept_axes, *reduced)}
        inside = set(reductions)
        for tensor in self._open:
            index = places.complete(tensor)
            names = _covered_axes(tensor, index)
            behind = _reductions_behind(self._fusion, tensor)
            if names is None or not behind <= inside:
                continue
            # A tensor combined with a view of itself is reached only along the diagonal, a repeated one many times.
            points = prod(a.extent for a in (*kept_axes, *reduced) if a.name in names)
            elements = prod(tensor.stored_shape)
            if elements > points or (elements < points and _divides(index)):
                continue
            if names == row_names and (behind or names != all_names):
                rows.append(tensor)
            elif names == all_names:
                full.append(tensor)
        if not rows and not full:
            raise CodegenError(f"no output is reached from the reduction {first.name}; its result cannot be stored.")
        self._open = [tv for tv in self._open if tv not in rows and tv not in full]
        return Nest(
            kept=kept_axes, reduced=reduced, index=_complete(places), reductions=tuple(reductions), rows=tuple(rows),
            full=tuple(full),
        )

    def _joins(
        self, expr: Expr, kept_axes: Sequence[Axis], reduced: Sequence[Axis], components: Components, places: IndexMap,
        first: Expr,
    ) -> bool:
        """Whether a reduction has the pattern of the nest, so that its operand's index is known."""
        source = expr.tensor_inputs[0]
        same = (
            source.shape == first.tensor_inputs[0].shape
            and [a.is_reduction for a in expr.out.domain.logical] == [a.is_reduction for a in first.out.domain.logical]
        )
        source_index = places.components.get(source, (None,) * source.ndim)
        if same and all(k is None or k == c for k, c in zip(source_index, components, strict=True)):
            places.add(source, components)
        return _axes_over(expr, places) == ({a.name for a in kept_axes}, {a.name for a in reduced})

    def _elements(self) -> Nest:
        reference = max(self._open, key=lambda tv: prod(tv.stored_shape))
        if _reductions_behind(self._fusion, reference):
            msg = f"{reference.name} depends on a reduction, but its elements do not match the reduced rows."
            raise CodegenError(msg)
        if _behind(self._fusion, reference, OpKind.SCAN):
            raise CodegenError(f"{reference.name} depends on a scan, but its elements do not match the scanned rows.")
        axes, _, components = _axes((size, False) for size in reference.stored_shape)
        places = IndexMap(self._fusion, {reference: components}, ranges_of(axes))
        names, points = {a.name for a in axes}, prod(a.extent for a in axes)
        full = [
            tv for tv in self._open
            if _covered_axes(tv, places.complete(tv)) == names and not _reductions_behind(self._fusion, tv)
            and not _behind(self._fusion, tv, OpKind.SCAN)
            and (prod(tv.stored_shape) == points or not _divides(places.complete(tv)))
        ]
        self._open = [tv for tv in self._open if tv not in full]
        return Nest(
            kept=axes, reduced=(), index=_complete(places), reductions=(), rows=(), full=tuple(full),
        )


def _axes(sizes: Iterable[tuple[int, bool]]) -> tuple[tuple[Axis, ...], tuple[Axis, ...], Components]:
    """Return the axes that are kept and those that are reduced, and the index, of a tensor with some sizes.

    Each size is given with whether its axis is reduced.
    """
    kept_axes, reduced, components = list[Axis](), list[Axis](), list[Term | None]()
    for size, is_reduced in sizes:
        if size == 1:
            components.append(ZERO)
            continue
        group, letter = (reduced, "r") if is_reduced else (kept_axes, "i")
        group.append(Axis(name=f"{letter}{len(group)}", extent=size))
        components.append(index_var(group[-1].name))
    return tuple(kept_axes), tuple(reduced), tuple(components)


def ranges_of(axes: Iterable[Axis]) -> dict[str, tuple[int, int]]:
    """Return the smallest and the largest value of each axis."""
    return {axis.name: (0, max(axis.extent - 1, 0)) for axis in axes}


def _complete(places: IndexMap) -> dict[TensorView, Index]:
    indices = ((tv, places.complete(tv)) for tv in places.components)
    return {tv: index for tv, index in indices if index is not None}


def _covered_axes(tensor: TensorView, index: Index | None) -> set[str] | None:
    """Return the axes that run over an output's stored elements, or None if its index is unknown."""
    if index is None:
        return None
    names: set[str] = set()
    for size, component in zip(tensor.stored_shape, index, strict=True):
        if size != 1:
            names |= variables(component)
    return names


def _axes_over(expr: Expr, places: IndexMap) -> tuple[set[str], set[str]] | None:
    """Return the axes that a reduction keeps and those that it reduces; None if its operand's index is unknown."""
    index = places.complete(expr.tensor_inputs[0])
    if index is None:
        return None
    along, over = set[str](), set[str]()
    for axis, component in zip(expr.out.domain.logical, index, strict=True):
        (over if axis.is_reduction else along).update(variables(component))
    return along, over


def _divides(index: Index | None) -> bool:
    """Whether several points of a nest may have the same index."""
    return any(isinstance(t, Apply) and t.fn in {"floordiv", "mod"} for c in index or () for t in c.walk())


def _ancestors(fusion: Fusion, tensors: Sequence[TensorView]) -> set[Expr]:
    ancestors: set[Expr] = set()
    stack = [fusion.producers[tv] for tv in tensors if tv in fusion.producers]
    while stack:
        expr = stack.pop()
        if expr in ancestors:
            continue
        ancestors.add(expr)
        stack.extend(fusion.producers[v] for v in expr.inputs if v in fusion.producers)
    return ancestors


def _reductions_behind(fusion: Fusion, tensor: TensorView) -> set[Expr]:
    return _behind(fusion, tensor, OpKind.REDUCTION)


def _behind(fusion: Fusion, tensor: TensorView, kind: OpKind) -> set[Expr]:
    return {expr for expr in _ancestors(fusion, [tensor]) if expr.kind is kind}


def _dim(scan: Expr) -> int:
    """Return the axis that a scan runs along."""
    dim = scan.attr("dim")
    assert isinstance(dim, int)
    return dim


# The accesses of a nest and their memory order


def trial(
    fusion: Fusion, nest: Nest, buffers: Mapping[str, ir.Buffer], layouts: Mapping[TensorView, ir.Layout],
    places: Mapping[str, Term], ranges: Mapping[str, tuple[int, int]],
) -> tuple[ir.Statement, ...]:
    """Return the statements of a nest at one point, without loops, to inspect its accesses.

    Between loads and stores of a long chain of pointwise ops there is nothing to inspect, so the values are left out.
    """
    values = Values(fusion, buffers, layouts)
    read = _read_in_place(fusion, nest)
    with values.block(ranges, pinned=True) as scope:
        for expr in (*nest.reductions, *nest.scans):
            values.know(expr.out, nest.at(expr.out, places), Var(expr.out.dtype, f"{expr.out.name}_result"))
        for expr in (*nest.reductions, *nest.scans):
            values.value(expr.tensor_inputs[0], nest.at(expr.tensor_inputs[0], places))
        for tensor in nest.outputs:
            if read is not None:
                for source in read[tensor]:
                    values.value(source, nest.at(source, places))
                values.know(tensor, nest.at(tensor, places), Const(tensor.dtype, 0))
            values.store(tensor, nest.at(tensor, places), layouts[tensor])
    return tuple(scope.body)


def _read_in_place(fusion: Fusion, nest: Nest) -> dict[TensorView, list[TensorView]] | None:
    """Return the inputs that each output of a nest of pointwise ops and copies, without views, is the first to read.

    None for all other nests, and if an input is an output, or its index is unknown.
    """
    if nest.reductions or nest.scans:
        return None
    read_first: dict[TensorView, list[TensorView]] = {}
    seen: set[TensorView] = set()
    for output in nest.outputs:
        waiting, read_first[output] = [output], []
        while waiting:
            tensor = waiting.pop()
            if tensor in seen:
                continue
            seen.add(tensor)
            expr = fusion.producers.get(tensor)
            if expr is not None and (OPS[expr.op.name].scalar is not None or expr.op.name == "set"):
                waiting += reversed(expr.tensor_inputs)
            elif expr is None and tensor in nest.index and tensor is not output:
                read_first[output].append(tensor)
            else:
                return None
    return read_first


def at_one_point(
    fusion: Fusion, nest: Nest, buffers: Mapping[str, ir.Buffer], layouts: Mapping[TensorView, ir.Layout],
) -> tuple[ir.Statement, ...]:
    """Return the statements of a nest at one point, whose indices are the axis variables."""
    if nest.written is not None:
        return nest.written
    return trial(fusion, nest, buffers, layouts, {}, ranges_of(nest.axes))


def _in_memory_order(
    fusion: Fusion, nest: Nest, buffers: Mapping[str, ir.Buffer], layouts: Mapping[TensorView, ir.Layout],
) -> Nest:
    """Return the nest with its axes in the memory order of the access that moves the most bytes."""
    steps: dict[str, int] = {}
    written = at_one_point(fusion, nest, buffers, layouts) if nest.reductions else None
    best = (-1, -1)
    if written is None:
        steps = _steps_of_result(nest, nest.full[0], layouts)
    else:
        behind = _axes_behind(written, nest.axes)
        for statement in ir.walk(written):
            for load in _loads(statement):
                candidate = _steps(load.buffer, load.position, nest.axes, behind)
                if (len(candidate), load.buffer.size) > best:
                    best, steps = (len(candidate), load.buffer.size), candidate

    def order(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(sorted(axes, key=lambda a: -steps.get(a.name, 0)))

    def reduces_outermost(of_axis: Mapping[str, int]) -> bool:
        axes = (*kept_axes[:1], *reduced[:1])
        return max(axes, key=lambda a: of_axis.get(a.name, 0), default=None) in reduced

    kept_axes, reduced = order(nest.kept), order(nest.reduced)
    # Inputs in another order than the results do not say that the reduced axis grows with the batch.
    outermost = [steps, *(_steps_of_result(nest, tensor, layouts) for tensor in nest.full)]
    reduces = all(map(reduces_outermost, outermost))
    return replace(nest, kept=kept_axes, reduced=reduced, reduces_outermost=reduces, written=written)


def _steps_of_result(nest: Nest, tensor: TensorView, layouts: Mapping[TensorView, ir.Layout]) -> dict[str, int]:
    """Return the stride of a result along each axis of a nest that is one of the result's own."""
    places = zip(nest.index[tensor], layouts[tensor].strides, strict=True)
    return {component.name: stride for component, stride in places if isinstance(component, Var)}


def _loads(statement: ir.Statement) -> Iterator[ir.Load]:
    for term in ir.terms_of(statement):
        yield from (t for t in term.walk() if isinstance(t, ir.Load))


def _axes_behind(statements: tuple[ir.Statement, ...], axes: Sequence[Axis]) -> dict[str, frozenset[str]]:
    """Return the names of the axes that each value of some statements is computed from."""
    behind = {axis.name: frozenset((axis.name,)) for axis in axes}
    for statement in ir.walk(statements):
        if isinstance(statement, ir.Let):
            read = variables_in([statement.value])
            behind[statement.name] = frozenset().union(*(behind.get(name, ()) for name in read))
    return behind


def _steps(
    buffer: ir.Buffer, position: Term, axes: Sequence[Axis], behind: Mapping[str, frozenset[str]],
) -> dict[str, int]:
    """Return the distance in memory between the first elements along each axis, if known and nonzero.

    An axis that a reshape made from others occurs in quotients and remainders, of which the first gives its step.
    Elements at positions that are data, which are computed from an axis, are as far apart as the buffer is long.
    """
    used = variables(position)
    origin = substitute(position, dict.fromkeys(used, ZERO))
    steps = {}
    for name in (axis.name for axis in axes if axis.name in used):
        second = substitute(position, {**dict.fromkeys(used, ZERO), name: index(1)})
        form = linear(Apply(ZERO.dtype, "sub", (second, origin)), {})
        if not form.parts and form.constant:
            steps[name] = abs(form.constant)
    data = frozenset().union(*(behind.get(term.name, ()) for term in position.walk() if isinstance(term, Var)))
    return steps | dict.fromkeys(sorted(data - used), buffer.size)


def fastest_is_reduced(
    fusion: Fusion,
    nest: Nest,
    buffers: Mapping[str, ir.Buffer],
    layouts: Mapping[TensorView, ir.Layout],
    reads: int = 1,
) -> bool:
    """Whether most bytes are contiguous along a reduced axis, so that loops are over rows and not columns.

    Inputs are read ``reads`` times.
    """
    if not nest.reduced or not nest.kept:
        return bool(nest.reduced)
    reduced = {axis.name for axis in nest.reduced}
    along: dict[tuple[ir.Buffer, bool], int] = {}
    statements = at_one_point(fusion, nest, buffers, layouts)
    behind = _axes_behind(statements, nest.axes)
    for statement in ir.walk(statements):
        for buffer, position in ir.accesses_of(statement):
            steps = _steps(buffer, position, nest.axes, behind)
            if not reduced.isdisjoint(steps):
                fastest = min(steps, key=lambda name: steps[name])
                times = reads if buffer.role is ir.Role.INPUT else 1
                along[buffer, fastest in reduced] = times * buffer.size * buffer.dtype.itemsize
    inside, across = (sum(n for (_, inner), n in along.items() if inner is which) for which in (True, False))
    return inside >= across


def even_run(
    fusion: Fusion, nest: Nest, buffers: Mapping[str, ir.Buffer], layouts: Mapping[TensorView, ir.Layout],
    axes: Sequence[Axis],
) -> int:
    """Return how many of the innermost ``axes`` have a single stride in every access and can be one loop."""
    for count in range(len(axes), 1, -1):
        run = axes[-count:]
        ranges = ranges_of(a for a in nest.axes if a not in run)
        ranges["run"] = (0, max(prod(a.extent for a in run) - 1, 0))
        places = axis_indices(run, index_var("run"), ranges)
        statements = trial(fusion, nest, buffers, layouts, places, ranges)
        if not any(_uneven(statement, "run") for statement in ir.walk(statements)):
            return count
    return min(len(axes), 1)


def _uneven(statement: ir.Statement, name: str) -> bool:
    if isinstance(statement, ir.Loop):
        return True
    if isinstance(statement, ir.If) and name in variables(statement.condition):
        return True
    for term in ir.every_term(statement):
        if isinstance(term, Apply) and term.fn in {"floordiv", "mod"} and name in variables(term):
            return True
    return False


def axis_indices(axes: Sequence[Axis], flat: Term, ranges: Mapping[str, tuple[int, int]]) -> dict[str, Term]:
    """Return each axis as a term of one index over all of them, row-major."""
    places: dict[str, Term] = {}
    inner = 1
    for axis in reversed(axes):
        whole = flat if inner == 1 else Apply(ZERO.dtype, "floordiv", (flat, type(ZERO)(ZERO.dtype, inner)))
        part = Apply(ZERO.dtype, "mod", (whole, type(ZERO)(ZERO.dtype, max(axis.extent, 1))))
        places[axis.name] = simplify(part, ranges)
        inner *= max(axis.extent, 1)
    return places

"""Segments that reduce rows and sum columns of the same tensors, as backward passes of norms do, cut into two fusions.

The first iterates over rows and adds each to a part of each column's sum; the second adds up the parts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from fuser_lab.codegen.index_map import Index
from fuser_lab.codegen.index_math import variables
from fuser_lab.codegen.kernel_ir import Buffer, Layout, Role, layout_of
from fuser_lab.codegen.nests import Nest, nests_of
from fuser_lab.ir import Expr, Fusion, IterType, OpKind, TensorDomain, TensorView, Val
from fuser_lab.passes.rewriter import Axes
from fuser_lab.schedule.state import LoopSchedule, Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward:
    """A segment cut into a part that iterates over rows and a part that adds up the column sums."""

    rows: Fusion  # its outputs include the operands of the column sums
    columns: tuple[Expr, ...]
    stored: frozenset[TensorView]


def backward_of(segment: Fusion) -> Backward | None:
    """Return a segment's rows and columns; None if column sums depend on each other, or rows on column sums."""
    reductions = [e for e in segment.tensor_exprs if e.kind is OpKind.REDUCTION]
    columns = tuple(e for e in reductions if not _reduces_last(e))
    if not columns or len(columns) == len(reductions):
        return None
    after: set[Val] = set()
    for expr in segment.exprs:
        if not after.isdisjoint(expr.inputs):
            if expr.kind is OpKind.REDUCTION:
                return None
            after.update(expr.outputs)
        elif expr in columns:
            after.update(expr.outputs)
    stored = tuple(tv for tv in segment.outputs if tv not in after)
    outputs = tuple(dict.fromkeys((*stored, *(e.tensor_inputs[0] for e in columns))))
    exprs = tuple(e for e in segment.exprs if after.isdisjoint(e.outputs))
    rows = Fusion(inputs=segment.inputs, exprs=exprs, outputs=outputs, keeps_float=segment.keeps_float)
    return Backward(rows=rows, columns=columns, stored=frozenset(stored))


def _reduces_last(expr: Expr) -> bool:
    """Whether a reduction is along the last axis of its operand that has more than one element."""
    pairs = zip(expr.out.domain.logical, expr.tensor_inputs[0].shape, strict=True)
    sized = [axis.is_reduction for axis, extent in pairs if extent != 1]
    return bool(sized) and sized[-1]


def rows_nest(
    cut: Backward, buffers: Mapping[str, Buffer], layouts: Mapping[TensorView, Layout],
) -> tuple[Nest, dict[str, Buffer], dict[TensorView, Layout]] | None:
    """Return the nest of the rows, and its buffers and layouts; None if rows and columns have different spaces."""
    all_buffers, all_layouts = dict(buffers), dict(layouts)
    for tensor in cut.rows.outputs:
        layout = all_layouts.setdefault(tensor, layout_of(tensor))
        all_buffers.setdefault(
            tensor.name, Buffer(name=tensor.name, dtype=tensor.dtype, size=layout.size, role=Role.WORKSPACE),
        )
    nests = nests_of(cut.rows, all_buffers, all_layouts)
    if isinstance(nests, Refused) or len(nests) != 1:  # not all of it matches the rows
        return None
    (nest,) = nests
    names = [{a.name for a in axes} for axes in (nest.kept, nest.reduced)]
    for expr in cut.columns:
        if expr.tensor_inputs[0] not in nest.full:
            return None
        if set().union(*(variables(i) for i in column_index(nest, expr))) != names[1]:
            return None
    if not nest.kept or not nest.reduced or prod(a.extent for a in nest.axes) == 0:
        return None
    return nest, all_buffers, all_layouts


def rows_each(schedule: LoopSchedule, rows: int) -> int:
    """Return how many consecutive rows make one part of each column sum."""
    if not schedule.blocks:
        return schedule.grain
    together = schedule.threads[1]
    return max(-(-rows // (schedule.blocks * together)), 1) * together


def column_index(nest: Nest, expr: Expr) -> Index:
    """Return the index of a column sum's result in axis variables of the rows' nest."""
    pairs = zip(nest.index[expr.tensor_inputs[0]], expr.out.domain.logical, strict=True)
    return tuple(component for component, axis in pairs if not axis.is_reduction)


def totals(segment: Fusion, cut: Backward, parts: int) -> tuple[Fusion, dict[Expr, TensorView]]:
    """Return the fusion that computes the rest of a segment from parts of its column sums, and these parts."""
    axes = Axes(segment)
    new_values: dict[Val, Val] = {}
    partials: dict[Expr, TensorView] = {}
    exprs: list[Expr] = []
    for expr in cut.columns:
        old = expr.out
        columns = [axes.fresh(n) for n in old.stored_shape]
        part = TensorView(
            name=f"{expr.name}_blocks", dtype=old.dtype.compute,
            domain=TensorDomain(logical=(axes.fresh(parts), *columns)),
        )
        logical = (axes.fresh(parts, IterType.REDUCTION), *map(axes.copy, old.domain.axes))
        new = replace(old, domain=TensorDomain(logical=logical, allocation=old.domain.allocation))
        attrs = tuple((key, (0,) if key == "dims" else value) for key, value in expr.attrs)
        exprs.append(Expr(op=expr.op, inputs=(part,), outputs=(new,), attrs=attrs))
        new_values[old], partials[expr] = new, part
    after: set[Val] = set(new_values)
    for expr in segment.exprs:
        if expr not in cut.columns and not after.isdisjoint(expr.inputs):
            after.update(expr.outputs)
            inputs = tuple(new_values.get(v, v) for v in expr.inputs)
            exprs.append(Expr(op=expr.op, inputs=inputs, outputs=expr.outputs, attrs=expr.attrs))
    outputs = tuple(new_values.get(tv, tv) for tv in segment.outputs if tv in after)
    # Other operands: factories and scalars are computed again.
    made = {out for e in exprs for out in e.outputs}
    missing = {v for e in exprs for v in e.inputs if v not in made and v not in segment.inputs} - set(partials.values())
    again: list[Expr] = []
    for expr in reversed(segment.exprs):
        if not missing.isdisjoint(expr.outputs):
            again.insert(0, expr)
            missing |= {v for v in expr.inputs if v not in segment.inputs}
    tensors = tuple(tv for tv in outputs if isinstance(tv, TensorView))
    rest = Fusion(
        inputs=(*segment.inputs, *partials.values()), exprs=(*again, *exprs), outputs=tensors,
        keeps_float=segment.keeps_float,
    )
    return rest, partials

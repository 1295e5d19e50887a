"""Reductions over rows and further axes, rewritten as reductions of the rows' results.

    T1 = max(T0, dims=[1])            T1 = max(T0, dims=[1])
    T2 = sum(T0, dims=[0, 1])   ->    T2_rows = sum(T0, dims=[1])
                                      T2 = sum(T2_rows, dims=[0])

One nest then computes all reductions along a row, and reads the input once. A reduction is rewritten if another
reduction of a tensor of the same shape is along some, but not all, of its axes.
"""

from dataclasses import replace

from fuser_lab.ir import Expr, Fusion, IterType, OpKind, TensorDomain, TensorView, Val
from fuser_lab.ir.expr import AttrValue
from fuser_lab.passes.rewriter import Axes


def with_sums_of_rows(fusion: Fusion) -> Fusion:
    """Return a fusion whose reductions along several axes begin with the axes of other reductions of the same shape."""
    reductions = [e for e in fusion.tensor_exprs if e.kind is OpKind.REDUCTION and len(e.outputs) == 1]
    first = {e: dims for e in reductions if (dims := _first_axes(e, reductions))}
    if not first:
        return fusion
    axes = Axes(fusion)
    new_values: dict[Val, Val] = {}
    exprs: list[Expr] = []
    for expr in fusion.exprs:
        made = replace(expr, inputs=tuple(new_values.get(v, v) for v in expr.inputs))
        if expr not in first:
            exprs.append(made)
            continue
        both = _in_two(made, first[expr], axes)
        exprs.extend(both)
        new_values[expr.out] = both[1].out
    outputs = tuple(new_values.get(tv, tv) for tv in fusion.outputs)
    return Fusion(
        inputs=fusion.inputs, exprs=tuple(exprs), outputs=tuple(tv for tv in outputs if isinstance(tv, TensorView)),
    )


def _reduced_axes(expr: Expr) -> frozenset[int]:
    """Return the positions of the axes that a reduction reduces."""
    return frozenset(n for n, axis in enumerate(expr.out.domain.logical) if axis.is_reduction)


def _first_axes(expr: Expr, reductions: list[Expr]) -> tuple[int, ...]:
    """Return the axes that another reduction reduces, preferring the fastest axes; () if there is none."""
    shape, reduced = expr.tensor_inputs[0].shape, _reduced_axes(expr)
    candidates = [
        tuple(sorted(_reduced_axes(other))) for other in reductions
        if other.tensor_inputs[0].shape == shape and _reduced_axes(other) < reduced
    ]
    return max(candidates, key=lambda dims: dims[::-1], default=())


def _in_two(expr: Expr, first: tuple[int, ...], axes: Axes) -> tuple[Expr, Expr]:
    """Return the reduction along some of its axes, and the reduction of its result along the others."""
    out, operand = expr.out, expr.tensor_inputs[0]
    logical = tuple(
        axes.fresh(axis.extent, IterType.REDUCTION) if number in first else axes.copy(axis)
        for number, axis in enumerate(operand.domain.axes)
    )
    part = TensorView(name=f"{out.name}_rows", dtype=out.dtype.compute, domain=TensorDomain(logical=logical))
    rest = [number for number in range(operand.ndim) if number not in first]
    last = replace(out, domain=replace(out.domain, logical=tuple(out.domain.logical[n] for n in rest)))
    dims = tuple(place for place, number in enumerate(rest) if out.domain.logical[number].is_reduction)
    return (
        replace(expr, outputs=(part,), attrs=_with_dims(expr, first)),
        replace(expr, inputs=(part, *expr.inputs[1:]), outputs=(last,), attrs=_with_dims(expr, dims)),
    )


def _with_dims(expr: Expr, dims: tuple[int, ...]) -> tuple[tuple[str, AttrValue], ...]:
    return tuple((key, dims if key == "dims" else value) for key, value in expr.attrs)

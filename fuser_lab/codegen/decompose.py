"""Rewrites of a segment's ops into those that its kernel computes.

`decompose` writes Welford as a mean and a sum of squared deviations. `accurate` rewrites reductions whose rounding
errors would grow with their operands, or with the number of these. `with_sums_of_rows` lets reductions along several
axes begin with the reductions along rows. `with_transposed_reads` separates inputs that are read both straight and
transposed.

``accurate``: squared deviations are corrected for the rounding of the mean, which the sum of the deviations measures:

    q = sum(d * d)    ->    q = sum(d * d) - sum(d)**2 / n    with d = x - sum(x) / n

A mean of 1e6 is off by up to 0.03, so that a variance of 1 would be off by a thousandth (Chan, Golub and LeVeque,
Algorithms for computing the sample variance, 1983). Where the correction overflows, it is left out. Elements that were
rounded to fewer bits than the mean need none: those that differ at all do so by more than the mean is off.

A product of n elements has n - 1 rounding errors in any order, so products and running products of Float are computed
in Double, whose range also holds those of some elements. A product of two is rounded once in either type.

``with_sums_of_rows``: reductions over rows and further axes are rewritten as reductions of the rows' results.

    T1 = max(T0, dims=[1])            T1 = max(T0, dims=[1])
    T2 = sum(T0, dims=[0, 1])   ->    T2_rows = sum(T0, dims=[1])
                                      T2 = sum(T2_rows, dims=[0])

One nest then computes all reductions along a row, and reads the input once. A reduction is rewritten if another
reduction of a tensor of the same shape is along some, but not all, of its axes.

``with_transposed_reads``: the transposed read of an input becomes a separate tensor. A nest has one index per tensor,
so tiles belong to tensors. With a second name, the same memory is read once in its order and once by tiles that are
transposed in shared memory. Ops before the permutation, such as a cast or a slice, are computed twice.

``with_float_values``: values of Half and BFloat16 between inputs and outputs of a segment stay in Float, without a
rounding after each op. A value that a reduction and a reader of its result are both computed from is kept for the
second pass over a row, so it stays as small as it is recorded.
"""

import math
from dataclasses import replace
from functools import reduce
from operator import or_

from fuser_lab.analysis.deviations import squared_deviations
from fuser_lab.cost.crossovers import crossover
from fuser_lab.dtypes import DataType
from fuser_lab.ir import AttrValue, Expr, Fusion, IterType, OpKind, Scalar, TensorDomain, TensorView, Val, needed_exprs
from fuser_lab.ops import OPS
from fuser_lab.passes.base import with_inputs
from fuser_lab.passes.rewriter import Axes, Rewriter
from fuser_lab.segmentation.privatization import again
from fuser_lab.segmentation.welford import written_out


def decompose(fusion: Fusion) -> Fusion:
    """Return the fusion with each remaining Welford written as a mean and a sum of squared deviations from it."""
    return written_out(fusion, {expr.name for expr in fusion.exprs if expr.op.name == "welford"})


def welford_of(fusion: Fusion) -> dict[str, str]:
    """Return, for each expression that `decompose` makes, the name of the Welford that it comes from."""
    origins: dict[str, str] = {}
    former_names = {expr.name for expr in fusion.exprs}
    for expr in fusion.exprs:
        if expr.op.name == "welford":
            origins.update((f"{expr.name}_{part}", expr.name) for part in _PARTS)
            origins[f"{expr.outputs[2].name}_once"] = expr.name
            origins.update((out.name, expr.name) for out in expr.outputs if out.name not in former_names)
    return origins


_PARTS = ("wide", "total", "mean", "placed", "deviation", "square", "squares")

_PRODUCTS = frozenset({"cumprod", "prod"})


def accurate(fusion: Fusion) -> Fusion:
    """Return a fusion with corrected squared deviations, and with products of Float in Double."""
    squares = {e for e in fusion.exprs if _needs_correction(fusion, e)}
    products = {e for e in fusion.exprs if _is_rounded_often(e)}
    if not squares and not products:
        return fusion
    writer = Rewriter(fusion)
    for expr in fusion.exprs:
        if expr in products:
            _in_double(writer, expr)
        elif expr in squares:
            _correct(writer, expr)
        else:
            writer.keep(expr)
    return writer.fusion_of()


def _is_rounded_often(expr: Expr) -> bool:
    """Whether an expression multiplies more than two elements in a type that has a wider one."""
    if expr.op.name not in _PRODUCTS or expr.out.dtype.wider is expr.out.dtype:
        return False
    shape = expr.tensor_inputs[0].shape
    return expr.op.name != "prod" or math.prod(shape[dim] for dim in expr.ints("dims")) > 2


def _needs_correction(fusion: Fusion, expr: Expr) -> bool:
    """Whether an expression adds up squared deviations from a mean of elements that have as many bits as the mean."""
    if expr.op.name != "sum" or not (expr.out in fusion.centered or squared_deviations(fusion, expr)):
        return False
    square = fusion.producers.get(expr.inputs[0])
    if square is None or square.out.numel == 0:
        return False  # the squares are an input, and nothing has the deviations; or there are none to correct
    difference = fusion.producers.get(square.inputs[0])
    maker = None if difference is None else fusion.producers.get(difference.inputs[0])
    while maker is not None and maker.kind.is_view:
        maker = fusion.producers.get(maker.inputs[0])
    if maker is None or maker.op.name != "cast":
        return True
    source = maker.inputs[0].dtype
    return not source.is_float or source.itemsize >= expr.out.dtype.itemsize


def _in_double(writer: Rewriter, expr: Expr) -> None:
    out, (operand, *others) = expr.out, expr.inputs
    wide = writer.emit(writer.new_name(out.name, "wide"), "cast", writer.now(operand), dtype=out.dtype.wider)
    product = writer.emit(writer.new_name(out.name, "product"), expr.op.name, wide, *others, **dict(expr.attrs))
    writer.remake(out, "cast", product, dtype=out.dtype)


def _correct(writer: Rewriter, expr: Expr) -> None:
    out, dims = expr.out, expr.ints("dims")
    square = writer.fusion.producers[expr.inputs[0]]
    deviation = square.tensor_inputs[0]
    count = math.prod(deviation.shape[d] for d in dims)

    def number(value: float) -> Scalar:
        return Scalar(name="", dtype=out.dtype, value=value)

    def emit(part: str, op: str, *inputs: Val, **attrs: AttrValue) -> TensorView:
        return writer.emit(writer.new_name(out.name, part), op, *inputs, **attrs)

    squares = emit("squares", "sum", writer.now(square.out), dims=dims)
    rest = emit("rest", "sum", writer.now(deviation), dims=dims)
    excess = emit("excess", "mul", rest, emit("off", "mul", rest, number(1 / count)))
    positive = emit("positive", "maximum", emit("less", "sub", squares, excess), number(0.0))
    finite = emit("finite", "lt", excess, number(math.inf))
    writer.remake(out, "where", finite, positive, squares)


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
        keeps_float=fusion.keeps_float,
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


MOST_REPEATED = crossover("tiles.repeated_exprs")
_REPEATED = frozenset({OpKind.POINTWISE, OpKind.COPY})  # and slices
_SHARED = frozenset({OpKind.BROADCAST, OpKind.FACTORY})  # have few elements, which both reads find in the cache


def with_transposed_reads(segment: Fusion) -> tuple[Fusion, dict[TensorView, TensorView]]:
    """Return a segment whose permutations read separate inputs (twins), and the original input of each twin.

    The segment is returned unchanged if no input is read in both ways, or if it has a scan.
    """
    if any(expr.kind is OpKind.SCAN for expr in segment.exprs):
        return segment, {}
    axes, twins = Axes(segment), dict[TensorView, TensorView]()
    exprs = list(segment.exprs)
    for expr in segment.exprs:
        if _moves_last_axis(expr):
            exprs = _with_twins(segment, expr, exprs, axes, twins)
    if not twins:
        return segment, {}
    return (
        Fusion(
            inputs=(*segment.inputs, *twins), exprs=needed_exprs(exprs, segment.outputs), outputs=segment.outputs,
            keeps_float=segment.keeps_float,
        ),
        twins,
    )


def _moves_last_axis(expr: Expr) -> bool:
    """Whether an expression moves the last axis that has more than one element."""
    if expr.op.name != "permute":
        return False
    dims, shape = expr.ints("dims"), expr.tensor_inputs[0].shape
    sized = [axis for axis in range(len(shape)) if shape[axis] > 1]
    return bool(sized) and next(axis for axis in reversed(dims) if shape[axis] > 1) != sized[-1]


def _with_twins(
    segment: Fusion, turn: Expr, exprs: list[Expr], axes: Axes, twins: dict[TensorView, TensorView],
) -> list[Expr]:
    """Return expressions in which a permutation reads twins of inputs, added to ``twins``, if it needs them."""
    chain = _chain(segment, turn)
    if chain is None:
        return exprs
    names = {expr.name for expr in (*chain, turn)}
    sources = {v for expr in (*chain, turn) for v in expr.tensor_inputs if v in segment.inputs}
    shared = [v for v in sources if any(user.name not in names for user in segment.users.get(v, ()))]
    feeds = any(user.name not in names for expr in chain for v in expr.outputs for user in segment.users.get(v, ()))
    if not shared and not feeds:
        return exprs
    instead: dict[Val, Val] = {}
    for source in sorted(sources if feeds else shared, key=lambda tv: tv.name):
        twin = replace(
            source, name=f"{source.name}_transposed_{turn.name}",
            domain=replace(source.domain, logical=tuple(map(axes.copy, source.domain.logical))),
        )
        instead[source] = twin
        twins[twin] = source
    made = []
    for expr in chain:
        copy = again(with_inputs(expr, instead), f"{expr.name}_transposed_{turn.name}", axes)
        instead[expr.out] = copy.out
        made.append(copy)
    rewritten = []
    for expr in exprs:
        if expr.name == turn.name:
            rewritten += [*made, with_inputs(expr, instead)]
        else:
            rewritten.append(expr)
    return rewritten


def _chain(segment: Fusion, turn: Expr) -> list[Expr] | None:
    """Return the expressions before a permutation, in order; None if they must not be computed twice."""
    chain: list[Expr] = []
    needed: set[Val] = set(turn.inputs)
    for expr in reversed(segment.exprs[: segment.positions[turn.name]]):
        if needed.isdisjoint(expr.tensor_outputs) or expr.kind in _SHARED:
            continue  # arithmetic on scalars is shared
        is_repeated = expr.kind in _REPEATED or expr.op.name == "slice"
        if not is_repeated or len(expr.outputs) > 1 or len(chain) == MOST_REPEATED:
            return None
        chain.insert(0, expr)
        needed.update(expr.inputs)
    return chain


_ROUNDED = frozenset({DataType.Half, DataType.BFloat16})
_OF_VALUES = frozenset(  # kinds whose results do not depend on how their operands are in memory
    {
        OpKind.POINTWISE, OpKind.COPY, OpKind.BROADCAST, OpKind.SQUEEZE, OpKind.EXPAND, OpKind.RESHAPE,
        OpKind.REDUCTION,
    },
)
_OF_DTYPES = frozenset({"bitcast", "nextafter"})  # whose results depend on the bits or the spacing of numbers


def with_float_values(fusion: Fusion) -> Fusion:
    """Return a segment's fusion with values in Float, if it is marked so; names are unchanged."""
    if not fusion.keeps_float:
        return fusion
    again = _read_again(fusion)
    wide: dict[Val, TensorView] = {}
    for expr in fusion.exprs:
        for tensor in expr.tensor_outputs:
            if (
                tensor.dtype in _ROUNDED and tensor not in fusion.outputs and tensor not in again
                and all(map(_computes_with_values, (expr, *fusion.users.get(tensor, ()))))
            ):
                wide[tensor] = replace(tensor, dtype=DataType.Float)
    return replace(fusion, exprs=tuple(_with_wide_values(expr, wide) for expr in fusion.exprs)) if wide else fusion


def _computes_with_values(expr: Expr) -> bool:
    is_known = expr.kind is not OpKind.POINTWISE or OPS[expr.op.name].scalar is not None
    return expr.kind in _OF_VALUES and is_known and expr.op.name not in _OF_DTYPES


def _with_wide_values(expr: Expr, wide: dict[Val, TensorView]) -> Expr:
    outputs = tuple(wide.get(value, value) for value in expr.outputs)
    attrs = expr.attrs
    if expr.op.name == "cast" and outputs != expr.outputs:
        attrs = tuple((name, DataType.Float if name == "dtype" else value) for name, value in attrs)
    inputs = tuple(wide.get(value, value) for value in expr.inputs)
    return Expr(op=expr.op, inputs=inputs, outputs=outputs, attrs=attrs)


def _read_again(fusion: Fusion) -> set[Val]:
    """Return the tensors that lead to a reduction and are also read, perhaps converted, by an op that depends on it."""
    reductions = {expr: 1 << n for n, expr in enumerate(e for e in fusion.exprs if e.kind is OpKind.REDUCTION)}
    behind: dict[Val, int] = {}  # for each value, the reductions that it depends on, as bits
    for expr in fusion.exprs:
        bits = reductions.get(expr, 0) | reduce(or_, (behind.get(value, 0) for value in expr.inputs), 0)
        behind.update(dict.fromkeys(expr.outputs, bits))
    ahead: dict[Val, int] = {}  # the reductions that depend on it
    late: dict[Val, int] = {}  # those that an op that reads it, or a conversion of it, depends on
    for expr in reversed(fusion.exprs):
        reduction = reductions.get(expr, 0)
        leads = reduction | reduce(or_, (ahead.get(value, 0) for value in expr.outputs), 0)
        reads = behind[expr.outputs[0]] & ~reduction
        if expr.op.name == "cast":
            reads |= late.get(expr.out, 0)
        for value in expr.inputs:
            ahead[value] = ahead.get(value, 0) | leads
            late[value] = late.get(value, 0) | reads
    return {value for value, leads in ahead.items() if leads & late[value]}

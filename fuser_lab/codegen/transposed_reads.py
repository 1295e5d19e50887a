"""Inputs that a segment reads both straight and transposed: the transposed read becomes a separate tensor.

A nest has one index per tensor, so tiles belong to tensors. With a second name, the same memory is read once in its
order and once by tiles that are transposed in shared memory. Ops before the permutation, such as a cast, are computed
twice.
"""

from dataclasses import replace

from fuser_lab.cost.crossovers import crossover
from fuser_lab.ir import Expr, Fusion, OpKind, TensorView, Val
from fuser_lab.passes.rewriter import Axes
from fuser_lab.segmentation.privatization import again, reading

MOST_REPEATED = crossover("tiles.repeated_exprs")
_REPEATED = frozenset({OpKind.POINTWISE, OpKind.COPY})


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
        Fusion(inputs=(*segment.inputs, *twins), exprs=_needed_exprs(exprs, segment.outputs), outputs=segment.outputs),
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
        copy = again(reading(expr, instead), f"{expr.name}_transposed_{turn.name}", axes)
        instead[expr.out] = copy.out
        made.append(copy)
    rewritten = []
    for expr in exprs:
        if expr.name == turn.name:
            rewritten += [*made, reading(expr, instead)]
        else:
            rewritten.append(expr)
    return rewritten


def _chain(segment: Fusion, turn: Expr) -> list[Expr] | None:
    """Return the expressions before a permutation, in order; None if they must not be computed twice."""
    chain: list[Expr] = []
    needed: set[Val] = set(turn.inputs)
    for expr in reversed(segment.exprs[: segment.positions[turn.name]]):
        if needed.isdisjoint(expr.tensor_outputs):
            continue  # arithmetic on scalars is shared
        if expr.kind not in _REPEATED or len(expr.outputs) > 1 or len(chain) == MOST_REPEATED:
            return None
        chain.insert(0, expr)
        needed.update(expr.inputs)
    return chain


def _needed_exprs(exprs: list[Expr], outputs: tuple[TensorView, ...]) -> tuple[Expr, ...]:
    needed: set[Val] = set(outputs)
    needed_exprs: list[Expr] = []
    for expr in reversed(exprs):
        if not needed.isdisjoint(expr.outputs):
            needed_exprs.insert(0, expr)
            needed.update(expr.inputs)
    return tuple(needed_exprs)

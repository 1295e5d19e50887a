"""Forwarding: chains of unary ops from inputs and factories are recomputed in each reader."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fuser_lab.cost.rules import follows
from fuser_lab.ir import Expr, Fusion, OpKind, TensorView, Val
from fuser_lab.segmentation.events import Attempt, Kind, Outcome
from fuser_lab.segmentation.options import SegmenterOptions


@dataclass(frozen=True, slots=True)
class Chain:
    """Expressions from an input (or from a factory, which then comes first) to the value that readers need."""

    exprs: tuple[Expr, ...]

    @property
    def end(self) -> TensorView:
        """The value that is recomputed where it is read."""
        return self.exprs[-1].out

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the expressions."""
        return tuple(expr.name for expr in self.exprs)


def forward_attempt(chain: Chain, phase: str) -> Attempt:
    """Return the attempt that has each reader of a chain compute it again."""
    return Attempt(
        phase=phase, kind=Kind.FORWARD, subjects=(chain.names,), outcome=Outcome.ACCEPTED,
        text=f"{chain.end.name} is recomputed by each reader",
    )


@follows("fusion_segmenter", "shouldForward", 4421, 4458)
@follows("fusion_segmenter", "SegmentCandidateFinder::forwardInputs", 4460, 4533)
def forwarded_chains(fusion: Fusion, options: SegmenterOptions, fixed: Iterable[Expr] = ()) -> Iterator[Chain]:
    """Yield the chains that are excluded from grouping; no two have an expression in common.

    A chain starts at a tensor input or at a factory whose result is not a fusion output, and follows while the value
    has exactly one user, the user is unary, its result is not a fusion output and no ``segment_set`` reads that result.
    With ``forward_factory_outputs`` a factory or a constant whose result is an output is a chain too, and ends there.
    With ``forward_broadcasts`` a broadcast or an expand counts as unary where the chain starts at an input, and each
    broadcast of an input that has several users starts a chain. Constants are recomputed whole, with all expressions
    that compute them. Random numbers never are, because generating them again would cost as much as reading them.
    Expressions in ``fixed`` are left alone.
    """
    taken = set(fixed)
    if "constant" in options.forward_factories:
        for exprs in _constants(fusion, taken, with_outputs=options.forward_factory_outputs):
            taken.update(exprs)
            yield Chain(exprs)
    for factory in _factories(fusion, options):
        if factory not in taken:
            after = () if factory.out in fusion.outputs else _follow(fusion, factory.out, taken)
            yield Chain((factory, *after))
    if not options.forward_inputs:
        return
    for tensor in fusion.tensor_inputs:
        for exprs in _from_input(fusion, tensor, taken, options):
            taken.update(exprs)
            yield Chain(exprs)


def _from_input(
    fusion: Fusion, tensor: TensorView, taken: set[Expr], options: SegmenterOptions,
) -> Iterator[tuple[Expr, ...]]:
    """Yield the chains that start at an input: one for each broadcast of it where these are forwarded."""
    if not options.forward_broadcasts:
        starts: list[TensorView] = []
    else:
        starts = [user.out for user in fusion.users.get(tensor, ()) if _starts(fusion, user, taken)]
    for start in starts:
        yield (fusion.producers[start], *_follow(fusion, start, taken, widening=True))
    exprs = () if starts else tuple(_follow(fusion, tensor, taken, widening=options.forward_broadcasts))
    if exprs:
        yield exprs


def _starts(fusion: Fusion, expr: Expr, taken: set[Expr]) -> bool:
    """Whether an expression that reads an input is a broadcast or an expand that can be forwarded."""
    return _widens(expr) and _is_free(fusion, expr, taken)


def _widens(expr: Expr) -> bool:
    return expr.kind in {OpKind.BROADCAST, OpKind.EXPAND}


def _is_free(fusion: Fusion, expr: Expr, taken: set[Expr]) -> bool:
    """Whether an expression may be recomputed: its result is not an output, and no ``segment_set`` reads it."""
    if expr in taken or expr.out in fusion.outputs:
        return False
    return not any(user.op.name == "segment_set" for user in fusion.users.get(expr.out, ()))


def _factories(fusion: Fusion, options: SegmenterOptions) -> list[Expr]:
    outputs = set(fusion.outputs)
    return [
        expr
        for expr in fusion.tensor_exprs
        if expr.kind is OpKind.FACTORY and expr.op.name in options.forward_factories
        and (expr.out not in outputs or (options.forward_factory_outputs and expr.out in fusion.users))
    ]


def _constants(fusion: Fusion, taken: set[Expr], *, with_outputs: bool) -> Iterator[tuple[Expr, ...]]:
    """Yield the expressions behind each constant: a value made of factories only, and the one that others read."""
    outputs: set[Val] = set(fusion.outputs)
    group: dict[Val, int] = {}
    members: dict[int, list[Expr]] = {}
    for expr in fusion.tensor_exprs:
        if expr in taken or not _is_constant(expr, fusion, group):
            continue
        is_kept = expr.out in outputs
        if is_kept and not (with_outputs and fusion.users.get(expr.out)):
            continue
        joined = sorted({group[tensor] for tensor in expr.tensor_inputs})
        number = joined[0] if joined else fusion.positions[expr.name]
        for other in joined[1:]:
            for moved in members[other]:
                if moved.out in group:
                    group[moved.out] = number
            members[number] += members.pop(other)
        if not is_kept:
            group[expr.out] = number  # expressions that depend on an output read it
        members.setdefault(number, []).append(expr)
    for exprs in members.values():
        inside = set(exprs)
        ends = [e for e in exprs if any(user not in inside for user in fusion.users.get(e.out, ()))]
        # If several are read, each reader would recompute all of them.
        if len(ends) == 1:
            yield tuple(sorted(exprs, key=lambda e: fusion.positions[e.name]))


def _is_constant(expr: Expr, fusion: Fusion, constants: Mapping[Val, int]) -> bool:
    if expr.kind is OpKind.FACTORY:
        return True
    if expr.kind is not OpKind.POINTWISE and (not expr.kind.is_view or expr.op.name == "segment_set"):
        return False
    if len(expr.outputs) > 1 or any(user.op.name == "segment_set" for user in fusion.users.get(expr.out, ())):
        return False
    return all(tensor in constants for tensor in expr.tensor_inputs)


def _follow(
    fusion: Fusion, tensor: TensorView, frozen: set[Expr], *, widening: bool = False,
) -> Iterator[Expr]:
    value = tensor
    while True:
        users = fusion.users.get(value, ())
        if len(users) != 1 or not (is_unary(users[0]) or (widening and _widens(users[0]))):
            return
        if not _is_free(fusion, users[0], frozen):
            return
        yield users[0]
        value = users[0].out


def is_unary(expr: Expr) -> bool:
    """Whether nvFuser calls the op unary: pointwise with one operand, casts included; copies and views are not."""
    return expr.kind is OpKind.POINTWISE and len(expr.inputs) == 1 and bool(expr.tensor_outputs)

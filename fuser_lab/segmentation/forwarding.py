"""Forwarding: chains of unary ops from inputs and factories are recomputed in each reader.

Follows nvFuser's ``SegmentCandidateFinder::forwardInputs`` (csrc/fusion_segmenter.cpp; factories since PR #4269).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fuser_lab.ir import Expr, Fusion, OpKind, TensorView
from fuser_lab.segmentation.options import SegmenterOptions


@dataclass(frozen=True, slots=True)
class Chain:
    """Expressions from an input (or from a factory, which then comes first) to the value that readers want."""

    exprs: tuple[Expr, ...]

    @property
    def end(self) -> TensorView:
        """The value that is recomputed where it is read."""
        return self.exprs[-1].out

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the expressions."""
        return tuple(expr.name for expr in self.exprs)


def forwarded_chains(fusion: Fusion, options: SegmenterOptions, fixed: Iterable[Expr] = ()) -> Iterator[Chain]:
    """Yield the chains that are excluded from grouping.

    A chain starts at a tensor input or at a factory whose result is no fusion output, and follows while the value has
    exactly one user, the user is unary, its result is no fusion output and no ``segment_set`` reads that result.
    Expressions in ``fixed`` are left alone.
    """
    frozen = set(fixed)
    for factory in _factories(fusion, options):
        if factory not in frozen:
            yield Chain((factory, *_follow(fusion, factory.out, frozen)))
    if not options.forward_inputs:
        return
    for tensor in fusion.tensor_inputs:
        exprs = tuple(_follow(fusion, tensor, frozen))
        if exprs:
            yield Chain(exprs)


def _factories(fusion: Fusion, options: SegmenterOptions) -> list[Expr]:
    outputs = set(fusion.outputs)
    return [
        expr
        for expr in fusion.tensor_exprs
        if expr.kind is OpKind.FACTORY and expr.op.name in options.forward_factories and expr.out not in outputs
    ]


def _follow(fusion: Fusion, tensor: TensorView, frozen: set[Expr]) -> Iterator[Expr]:
    outputs = set(fusion.outputs)
    value = tensor
    while True:
        users = fusion.users.get(value, ())
        if len(users) != 1 or not is_unary(users[0]) or users[0] in frozen or users[0].out in outputs:
            return
        if any(user.op.name == "segment_set" for user in fusion.users.get(users[0].out, ())):
            return
        yield users[0]
        value = users[0].out


def is_unary(expr: Expr) -> bool:
    """Whether nvFuser calls the op unary: pointwise with one operand, casts included; copies and views are not."""
    return expr.kind is OpKind.POINTWISE and len(expr.inputs) == 1 and bool(expr.tensor_outputs)

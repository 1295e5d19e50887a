"""MarkAliasesPrepare: ops that only move elements on the way to an output are split off, since they need no kernel.

nvFuser's pass of this name (csrc/preseg_passes/mark_aliases_prepare.cpp). It creates most of the hints that the
segmenter sees.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from fuser_lab.analysis.aliasing import Strides, input_strides, is_dense, view_strides
from fuser_lab.ir import Expr, Fusion, OrderHint, TensorView, Val
from fuser_lab.passes.base import Pass
from fuser_lab.passes.rewriter import Rewriter


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkAliases(Pass):
    """``output = permute(x)`` becomes ``output = permute(segment_set(x))``, for any run of views up to an output.

    The hint is placed after the last value that arithmetic reads: a view that arithmetic also reads stays in its
    segment. If ``x`` is itself an output, it becomes the result of the hint, so it is still written only once. Each
    view gets the memory order that makes it a view, unless it is already dense and row-major.
    """

    name: ClassVar[str] = "mark_aliases_prepare"
    nvfuser: ClassVar[str] = "MarkAliasesPrepare"
    example: ClassVar[str] = """
        x = fd.define_tensor([2, 3])
        y = fd.ops.mul(x, x)
        fd.add_output(fd.ops.permute(y, [1, 0]))
    """

    def run(self, fusion: Fusion) -> Fusion:
        """Return the fusion with hints before its trailing views."""
        views = views_of(fusion)
        hinted = _hinted_tensors(fusion, views)
        orders = {tensor: order for tensor in views if (order := _order(tensor, views)) is not None}
        if not hinted and not orders:
            return fusion
        return _Marking(fusion, hinted, orders).run()


def views_of(fusion: Fusion) -> dict[TensorView, Strides]:
    """Return strides of the results that are views of another tensor of the fusion."""
    strides: dict[TensorView, Strides] = {}
    written = {output for output, _ in fusion.aliases}
    views: dict[TensorView, Strides] = {}
    for expr in fusion.tensor_exprs:
        if not expr.kind.is_view or expr.out in written or expr.op.name == "pad":
            continue
        source = expr.tensor_inputs[0]
        seen = view_strides(expr, strides[source] if source in strides else input_strides(source))
        if seen is not None:
            views[expr.out] = strides[expr.out] = seen
    return views


def _order(tensor: TensorView, views: Mapping[TensorView, Strides]) -> tuple[int, ...] | None:
    """Return the memory order of a view with an open layout, None if it is row-major and dense."""
    if tensor.domain.allocation is not None or is_dense(tensor, views[tensor]):
        return None
    strides, axes = views[tensor], tensor.domain.axes
    places = [place for place, axis in enumerate(axes) if not axis.is_broadcast]
    ranked = iter(sorted(places, key=lambda place: -strides[place]))
    return tuple(next(ranked) if place in places else place for place in range(len(axes)))


def _hinted_tensors(fusion: Fusion, views: Mapping[TensorView, Strides]) -> dict[TensorView, tuple[Expr, ...]]:
    """Return the tensors that get a hint, with the expressions that read it instead of the tensor."""
    computing = _computing(fusion, views)
    hints: dict[TensorView, dict[Expr, None]] = {}
    for output in fusion.outputs:
        tensor: TensorView = output
        user: Expr | None = None
        while tensor in views and fusion.producers[tensor] not in computing:
            user = fusion.producers[tensor]
            tensor = user.tensor_inputs[0]
        if user is not None:
            hints.setdefault(tensor, {})[user] = None
    return {tensor: tuple(users) for tensor, users in hints.items() if _worthwhile(fusion, tensor, tuple(users))}


def _computing(fusion: Fusion, views: Mapping[TensorView, Strides]) -> set[Expr]:
    """Return the expressions on which some tensor that is not a view depends."""
    computing: set[Expr] = set()
    operands: set[Val] = set()
    for expr in reversed(fusion.exprs):
        if not operands.isdisjoint(expr.outputs) or any(out not in views for out in expr.outputs):
            computing.add(expr)
            operands.update(expr.inputs)
    return computing


def _worthwhile(fusion: Fusion, tensor: TensorView, users: Sequence[Expr]) -> bool:
    """Whether a hint separates expressions that are not yet separate."""
    if all(user.op.name == "segment_set" for user in users):
        return False
    maker = fusion.producers.get(tensor)
    alone = set(fusion.users[tensor]) <= set(users)
    return not (alone and (maker is None or maker.op.name == "segment_set"))


class _Marking:
    def __init__(
        self, fusion: Fusion, hinted: Mapping[TensorView, tuple[Expr, ...]],
        orders: Mapping[TensorView, tuple[int, ...]],
    ) -> None:
        self._fusion = fusion
        self._hinted = hinted
        self._orders = orders
        self._writer = Rewriter(fusion)
        self._hints: dict[tuple[Expr, Val], TensorView] = {}
        self._final: dict[TensorView, TensorView] = {}

    def run(self) -> Fusion:
        for value in self._fusion.tensor_inputs:
            if value in self._hinted:
                self._hint(value, value, self._writer.new_name(value.name, "hint"))
        for expr in self._fusion.exprs:
            self._expr(expr)
        return self._writer.fusion_of(self._final)

    def _expr(self, expr: Expr) -> None:
        inputs = tuple(self._hints.get((expr, value), value) for value in expr.inputs)
        current = Expr(op=expr.op, inputs=inputs, outputs=expr.outputs, attrs=expr.attrs)
        made: dict[Val, TensorView] = {}
        for out in expr.tensor_outputs:
            placed = out
            if out in self._orders:
                order, viewed = self._orders[out], current.tensor_inputs[0].name
                hint = OrderHint(order=order, origin=viewed, strength=out.ndim)
                placed = replace(out, domain=replace(out.domain, allocation=order, contiguity=None, hint=hint))
                made[out] = placed
            if out in self._hinted and out in self._fusion.outputs:
                made[out] = replace(placed, name=self._writer.new_name(out.name, "computed"))
        self._writer.redo(current, made)
        for out in expr.tensor_outputs:
            if out not in self._hinted:
                continue
            if out in self._fusion.outputs:
                self._final[out] = self._hint(out, made[out], out.name)
            else:
                self._hint(out, made.get(out, out), self._writer.new_name(out.name, "hint"))

    def _hint(self, old: TensorView, source: TensorView, name: str) -> TensorView:
        # The hint of an input with gaps is a view as well, so that its order is determined.
        gaps = old in self._fusion.inputs and not is_dense(old, input_strides(old))
        hint = self._writer.copy(name, "segment_set", source, source.domain.allocation_order if gaps else None)
        self._hints.update(((user, old), hint) for user in self._hinted[old])
        return hint

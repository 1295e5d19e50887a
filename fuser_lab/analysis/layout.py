"""Memory orders of results inferred from the inputs (nvFuser: csrc/preseg_passes/allocation_order_inference.cpp).

Orders list positions of axes, slowest in memory first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

from fuser_lab.analysis.domain_map import ExactMap, FusionLinks, axis_pairs, exact_map
from fuser_lab.ir import Expr, Fusion, OpKind, OrderHint, TensorView, Val

Order = tuple[int, ...]

# The operand whose order each result of an attention has, if it has as many axes.
_ATTENTION = {"sdpfa_fwd": (0,), "sdpfa_bwd": (1, 2, 3)}


def propose_orders(
    fusion: Fusion, targets: Iterable[TensorView], *, past_reductions: bool = False,
) -> dict[TensorView, OrderHint]:
    """Return the orders of computed tensors that follow the layout of the input that they resemble most.

    Tensors for which no input decides are left out. Of the inputs that a target depends on, the one with the most axes
    decides; if several have the most axes, their orders must agree. The order is followed from the fastest axis on, up
    to the first axis that the target does not have, because only the innermost run matters for vector accesses. All
    other axes come first. If two axes of a tensor are the same axis of the fusion, nothing is proposed at all.

    Parameters
    ----------
    fusion
        A concretized fusion.
    targets
        Tensors that it computes.
    past_reductions
        nvFuser's workaround for its issue #2202: an axis that a reduction or a product removes on the way to the target
        does not end the run. For ``linear`` of [b, m, k] and [n, k] it then proposes (n, b, m), which no library
        writes.
    """
    proposals = Proposals(fusion)
    hints = ((target, proposals.of(target, past_reductions=past_reductions)) for target in targets)
    return {target: hint for target, hint in hints if hint is not None}


class Proposals:
    """The proposals of `propose_orders`, tensor by tensor; everything that tensors share is computed once."""

    def __init__(self, fusion: Fusion, links: FusionLinks | None = None) -> None:
        self._fusion = fusion
        self._links = FusionLinks(fusion) if links is None else links

    @cached_property
    def _axes(self) -> ExactMap:
        return exact_map(self._links.of(self._fusion.tensor_exprs))

    @cached_property
    def _read(self) -> dict[Val, frozenset[Val]]:
        return _inputs_of(self._fusion)

    def of(self, target: TensorView, *, past_reductions: bool = False) -> OrderHint | None:
        """Return the proposed order of one computed tensor; None if no input decides."""
        axes = self._axes
        if axes.self_mapped is not None:
            return None
        maker = self._fusion.producers[target]
        if maker.kind is OpKind.ATTENTION:
            return _like_operand(maker, target)
        read = self._read[target]
        reference = _reference([tensor for tensor in self._fusion.tensor_inputs if tensor in read], axes)
        if reference is None:
            return None
        skipped = _taken_away(maker, target, axes) if past_reductions else frozenset()
        return _project(reference, target, axes, skipped)


def _inputs_of(fusion: Fusion) -> dict[Val, frozenset[Val]]:
    """Return for each value the tensor inputs that it depends on."""
    inputs: dict[Val, frozenset[Val]] = {tensor: frozenset({tensor}) for tensor in fusion.tensor_inputs}
    none: frozenset[Val] = frozenset()
    for expr in fusion.exprs:
        sets = {inputs.get(value, none) for value in expr.inputs}
        both = next(iter(sets)) if len(sets) == 1 else none.union(*sets)
        inputs.update((out, both) for out in expr.outputs)
    return inputs


def _reference(candidates: Sequence[TensorView], axes: ExactMap) -> TensorView | None:
    """Return the input with the most axes; None if several have the most axes and their orders differ."""
    best: TensorView | None = None
    most = 0
    for tensor in candidates:
        count = len(axes.concrete(tensor))
        if count > most:
            best, most = tensor, count
        elif best is not None and count == most and _in_memory(best, axes) != _in_memory(tensor, axes):
            best = None
    return best


def _in_memory(tensor: TensorView, axes: ExactMap) -> tuple[int, ...]:
    """Return the classes of a tensor's axes that are not broadcast axes, slowest in memory first."""
    numbers = axes.classes[tensor.name]
    return tuple(numbers[place] for place in tensor.domain.allocation_order if not axes.broadcast[numbers[place]])


def _taken_away(maker: Expr, target: TensorView, axes: ExactMap) -> frozenset[int]:
    """Return the classes of the operands' axes that a reduction or a product sums over."""
    gone = frozenset(axes.reduced.get(target.name, ()))
    if maker.kind is not OpKind.MATMUL:
        return gone
    paired = {(pair.operand, pair.producer.id) for pair in axis_pairs(maker)}
    return gone | {
        axes.classes[tensor.name][place]
        for number, tensor in enumerate(maker.tensor_inputs)
        for place, axis in enumerate(tensor.domain.axes)
        if (number, axis.id) not in paired
    }


def _project(reference: TensorView, target: TensorView, axes: ExactMap, skipped: frozenset[int]) -> OrderHint:
    numbers = axes.classes[target.name]
    run: list[int] = []
    for number in reversed(_in_memory(reference, axes)):
        if number in numbers:
            run.append(numbers.index(number))
        elif number not in skipped:
            break
    order = (*(place for place in range(len(numbers)) if place not in run), *reversed(run))
    return OrderHint(order=order, origin=reference.name, strength=len(run))


def _like_operand(maker: Expr, target: TensorView) -> OrderHint | None:
    """Return the order of a result of an attention: that of its query, or of the tensor whose gradient it is."""
    places = _ATTENTION.get(maker.op.name, ())
    for result, place in zip(maker.tensor_outputs, places, strict=False):
        operand = maker.tensor_inputs[place]
        if result == target and operand.ndim == target.ndim:
            return OrderHint(order=operand.domain.allocation_order, origin=operand.name, strength=target.ndim)
    return None


def is_row_major(tensor: TensorView, order: Order) -> bool:
    """Whether an order is row-major, ignoring axes of size 1."""
    places = [place for place in order if not tensor.domain.axes[place].is_broadcast]
    return places == sorted(places)


def lies_so(tensor: TensorView, order: Order) -> bool:
    """Whether a tensor already has an order, ignoring axes of size 1."""
    axes = tensor.domain.axes
    now, then = ([p for p in o if not axes[p].is_broadcast] for o in (tensor.domain.allocation_order, order))
    return now == then


def with_order(tensor: TensorView, order: Order | None) -> TensorView:
    """Return a tensor whose axes are dense in an order, None for no order of its own; its hint is unchanged."""
    allocation = None if order == tuple(range(tensor.ndim)) else order
    if order == tensor.domain.allocation_order or allocation == tensor.domain.allocation:
        return tensor
    return replace(tensor, domain=replace(tensor.domain, allocation=allocation, contiguity=None))

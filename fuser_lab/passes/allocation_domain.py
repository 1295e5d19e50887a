"""AllocationDomain: outputs are laid out like the input that they resemble most.

nvFuser's pass of this name (csrc/preseg_passes/allocation_order_inference.cpp).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fuser_lab.analysis.domain_map import ExactMap, FusionLinks, exact_map
from fuser_lab.ir import Fusion, OpKind, TensorView, Val
from fuser_lab.passes.base import Pass
from fuser_lab.passes.mark_aliases import views_of
from fuser_lab.passes.rewriter import Rewriter, in_memory_order

# What the array library computes lies as the library leaves it.
_LIBRARY = frozenset({OpKind.MATMUL, OpKind.ATTENTION})


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationDomain(Pass):
    """An output computed from a channels-last input is channels-last, so that both are read and written in one order.

    Among the inputs that an output depends on, the one with the most axes decides; if several have as many, they have
    to agree. Axes that only the output has come first. Outputs with a layout of their own keep it, views are left
    alone, and so is what the array library computes.
    """

    name: ClassVar[str] = "allocation_domain"
    nvfuser: ClassVar[str] = "AllocationDomain"

    def run(self, fusion: Fusion) -> Fusion:
        """Return the fusion with layouts for its outputs."""
        if _is_row_major(fusion):
            return fusion
        views = views_of(fusion)
        targets = [tensor for tensor in dict.fromkeys(fusion.outputs) if _is_open(fusion, tensor, views)]
        axes = exact_map(FusionLinks(fusion).of(fusion.tensor_exprs)) if targets else None
        if axes is None or axes.self_mapped is not None:
            return fusion
        read = _inputs_of(fusion)
        orders = {}
        for target in targets:
            reference = _reference([t for t in fusion.tensor_inputs if t in read[target]], axes)
            order = None if reference is None else _projected(reference, target, axes)
            if order is not None:
                orders[target] = order
        if not orders:
            return fusion
        writer = Rewriter(fusion)
        for expr in fusion.exprs:
            made: dict[Val, TensorView] = {
                out: _placed(out, orders[out]) for out in expr.tensor_outputs if out in orders
            }
            writer.redo(expr, made) if made else writer.keep(expr)
        return writer.fusion_of()


_REORDERING = frozenset({OpKind.COPY, OpKind.RESHAPE, OpKind.BROADCAST, OpKind.EXPAND, OpKind.INDEXING})


def _is_row_major(fusion: Fusion) -> bool:
    """Whether nothing can give an output another order of axes than all inputs have, which lie row-major."""
    return not any(
        tensor.domain.allocation is not None or any(axis.is_broadcast for axis in tensor.domain.axes)
        for tensor in fusion.tensor_inputs
    ) and not any(expr.kind in _REORDERING for expr in fusion.exprs)


def _placed(tensor: TensorView, order: tuple[int, ...]) -> TensorView:
    domain = in_memory_order(tensor.domain, order)
    return TensorView(name=tensor.name, dtype=tensor.dtype, domain=domain, is_cpu=tensor.is_cpu)


def _is_open(fusion: Fusion, tensor: TensorView, views: Mapping[TensorView, object]) -> bool:
    """Whether an output's layout is for the pass to choose."""
    maker = fusion.producers.get(tensor)
    if maker is None or maker.kind in _LIBRARY or maker.kind.is_reserved or tensor.domain.allocation is not None:
        return False
    return tensor not in views and tensor not in {output for output, _ in fusion.aliases}


def _inputs_of(fusion: Fusion) -> dict[Val, frozenset[Val]]:
    """Return for each value the tensor inputs that it depends on."""
    found: dict[Val, frozenset[Val]] = {tensor: frozenset({tensor}) for tensor in fusion.tensor_inputs}
    none: frozenset[Val] = frozenset()
    for expr in fusion.exprs:
        sets = {found.get(value, none) for value in expr.inputs}
        both = next(iter(sets)) if len(sets) == 1 else none.union(*sets)
        found.update((out, both) for out in expr.outputs)
    return found


def _reference(candidates: Sequence[TensorView], axes: ExactMap) -> TensorView | None:
    """Return the input with the most axes; None if several have as many and do not lie alike."""
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
    """Return the classes of a tensor's axes that are no broadcast axes, slowest in memory first."""
    numbers = axes.classes[tensor.name]
    return tuple(numbers[place] for place in tensor.domain.allocation_order if not axes.broadcast[numbers[place]])


def _projected(reference: TensorView, target: TensorView, axes: ExactMap) -> tuple[int, ...] | None:
    """Return the target's memory order, slowest axis first; None where that is row-major."""
    numbers = axes.classes[target.name]
    reduced = axes.reduced.get(target.name, ())
    run: list[int] = []
    for number in reversed(_in_memory(reference, axes)):
        if number in numbers:
            run.append(numbers.index(number))
        elif number not in reduced:
            break
    order = (*(place for place in range(len(numbers)) if place not in run), *reversed(run))
    concrete = [place for place in order if not axes.broadcast[numbers[place]]]
    return None if concrete == sorted(concrete) else order

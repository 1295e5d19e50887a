"""AllocationDomain: outputs are laid out like the input that they resemble most.

nvFuser's pass of this name (csrc/preseg_passes/allocation_order_inference.cpp).
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from fuser_lab.analysis.layout import lies_so, propose_orders
from fuser_lab.ir import Fusion, OpKind, OrderHint, TensorView, Val
from fuser_lab.passes.base import Pass
from fuser_lab.passes.mark_aliases import views_of
from fuser_lab.passes.rewriter import Rewriter, in_memory_order

# Results of the array library keep the library's layout.
_LIBRARY = frozenset({OpKind.MATMUL, OpKind.ATTENTION})
_REORDERING = frozenset({OpKind.COPY, OpKind.RESHAPE, OpKind.BROADCAST, OpKind.EXPAND, OpKind.INDEXING})


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationDomain(Pass):
    """An output computed from a channels-last input is channels-last, so both are accessed in the same order.

    Among the inputs that an output depends on, the one with the most axes decides; if several have the most axes, their
    orders have to agree. Axes that only the output has come first. Outputs with their own layout keep it; views and
    results of the array library are unchanged. With ``every_tensor``, tensors between segments follow the same rule;
    ``past_reductions`` is nvFuser's workaround for its issue #2202, see `propose_orders`.
    """

    name: ClassVar[str] = "allocation_domain"
    nvfuser: ClassVar[str] = "AllocationDomain"
    example: ClassVar[str] = """
        x = fd.define_tensor([2, 3, 4, 4], contiguity=True, stride_order=[3, 0, 2, 1])
        fd.add_output(fd.ops.relu(x))
    """

    every_tensor: bool = False
    past_reductions: bool = False

    def run(self, fusion: Fusion) -> Fusion:
        """Return the fusion with layouts for its outputs, or for all results."""
        if _all_row_major(fusion):
            return fusion
        hints = propose_orders(fusion, self._targets(fusion), past_reductions=self.past_reductions)
        chosen = {tensor: hint for tensor, hint in hints.items() if not lies_so(tensor, hint.order)}
        if not chosen:
            return fusion
        writer = Rewriter(fusion)
        for expr in fusion.exprs:
            made: dict[Val, TensorView] = {
                out: _place(out, chosen[out]) for out in expr.tensor_outputs if out in chosen
            }
            writer.redo(expr, made) if made else writer.keep(expr)
        return writer.fusion_of()

    def _targets(self, fusion: Fusion) -> list[TensorView]:
        """Return the tensors whose layout the pass may choose."""
        if self.every_tensor:
            results = dict.fromkeys(tv for expr in fusion.exprs for tv in expr.tensor_outputs)
            return [tensor for tensor in results if _is_open(fusion, tensor) and fusion.required_order(tensor) is None]
        views = views_of(fusion)
        return [
            tensor for tensor in dict.fromkeys(fusion.outputs)
            if tensor not in views and tensor.domain.allocation is None and _is_open(fusion, tensor)
        ]


def _all_row_major(fusion: Fusion) -> bool:
    """Whether all inputs are row-major and nothing can give a result another order of axes."""
    return not any(
        tensor.domain.allocation is not None or any(axis.is_broadcast for axis in tensor.domain.axes)
        for tensor in fusion.tensor_inputs
    ) and not any(expr.kind in _REORDERING for expr in fusion.exprs)


def _place(tensor: TensorView, hint: OrderHint) -> TensorView:
    return replace(tensor, domain=replace(in_memory_order(tensor.domain, hint.order), hint=hint))


def _is_open(fusion: Fusion, tensor: TensorView) -> bool:
    """Whether a kernel writes a tensor to its own memory."""
    maker = fusion.producers.get(tensor)
    if maker is None or maker.kind in _LIBRARY or maker.kind.is_reserved:
        return False
    return tensor not in {output for output, _ in fusion.aliases}

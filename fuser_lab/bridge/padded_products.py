"""Matrix products of 16-bit floats on GPUs, with sizes padded to multiples of 16 bytes where that is faster.

The fast kernels of cuBLAS need rows that begin at multiples of 16 bytes (NVIDIA, *Matrix Multiplication Background*,
"Tensor Core Requirements"): the product that gives the logits of GPT-2, with 50,257 words, takes 6.6 ms, and 0.9 ms
with 50,264 words (H200). As in ``torch._inductor.fx_passes.pad_mm``, the operands get zeros at their ends, the result
is a slice, and both ways are timed once. Pads and slices are ordinary ops, so a region pads what it computes, and reads
the slice where it needs the result. The slice is copied only where something relies on dense rows (`row_gaps`).
"""

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fuser_lab.bridge.lowerings.views import ALIASES
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.row_gaps import set_values, values_with
from fuser_lab.bridge.symbolic import is_symbolic
from fuser_lab.bridge.traced import Node, target_of, without_modes
from fuser_lab.runtime import store
from fuser_lab.runtime.clocks import DeviceClock
from fuser_lab.targets import is_on_host

_ALIGNED = 16  # bytes of which each row's address should be a multiple
# Multiplications per element that is read or written, below which a product waits for memory in any case: half of the
# 206 of an H200 (989 Tflop/s with 16-bit floats, 4.8 TB/s), as in pad_mm.
_LEAST_INTENSITY = 103
_ROUNDS = 3  # runs of each way, of which the fastest counts
_PADDED = b"padded"  # the answer on disk that pads are faster
_PRODUCTS = frozenset({"aten.mm.default", "aten.addmm.default", "aten.bmm.default"})

Decision = Callable[[Any, Sequence[Any], tuple[int, int, int], bool], bool]


def pad_products(gm: Any, is_faster: Decision | None = None, *, changes_results: bool = False) -> None:
    """Rewrite the products of a graph of ATen ops whose sizes are no multiples of 16 bytes.

    ``is_faster`` says for an op, its operands as fake tensors, the numbers of added rows, inner elements and columns,
    and whether the result is copied, whether the padded product is faster; by default both are timed, on GPUs. With
    ``changes_results``, results of the graph may have gaps between their rows.
    """
    if is_symbolic(gm):
        return
    decide = is_faster or TimedProducts()
    pads: dict[tuple[Node, tuple[int, ...]], Node] = {}
    for node in list(gm.graph.nodes):
        if target_of(node) not in _PRODUCTS or node.kwargs:
            continue
        *bias, a, b = (operand.meta.get("val") for operand in node.args)
        added = _missing(a, b)
        if not any(added) or any(vector is None or vector.ndim > 1 for vector in bias):
            continue
        is_copied = values_with(node, _slice_of(node.meta["val"], added), with_results=changes_results) is None
        if decide(node.target, [operand.meta["val"] for operand in node.args], added, is_copied):
            _pad(gm.graph, node, added, pads, is_copied)
    gm.recompile()


def _slice_of(result: Any, added: tuple[int, int, int]) -> Any:
    """Return a product's result, a fake tensor, as a slice of the padded one."""
    *batch, height, width = result.shape
    rows, _, columns = added
    return result.new_empty((*batch, height + rows, width + columns))[..., :height, :width]


def _missing(a: Any, b: Any) -> tuple[int, int, int]:
    """Return the rows, inner elements and columns that a product lacks; none if its rows are aligned."""
    if a is None or b is None or a.dtype.itemsize != 2 or not a.dtype.is_floating_point or a.dtype != b.dtype:
        return 0, 0, 0
    rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    # The size along which each of the three matrices is contiguous.
    lengths = {columns, inner if a.stride(-1) == 1 else rows, columns if b.stride(-1) == 1 else inner}
    each = _ALIGNED // a.dtype.itemsize
    added = [-size % each if size in lengths else 0 for size in (rows, inner, columns)]
    moved = rows * inner + inner * columns + rows * columns
    if not moved or rows * inner * columns < _LEAST_INTENSITY * moved:
        return 0, 0, 0
    return added[0], added[1], added[2]


def _pad(
    graph: Any, node: Node, added: tuple[int, int, int], pads: dict[tuple[Node, tuple[int, ...]], Node],
    is_copied: bool,
) -> None:
    """Replace a product by a slice of the product of padded operands, or a copy of it."""
    aten = torch_for("fuser_lab.bridge").ops.aten
    rows, inner, columns = added
    *bias, a, b = node.args
    *_, height, width = node.meta["val"].shape
    with graph.inserting_before(node):
        operands = [
            *(_pad_operand(graph, vector, (columns,), pads) for vector in bias),
            _pad_operand(graph, a, (rows, inner), pads), _pad_operand(graph, b, (inner, columns), pads),
        ]
        result = _call(graph, node.target, tuple(operands), node)
        for dim, (length, more) in enumerate(((height, rows), (width, columns)), node.meta["val"].ndim - 2):
            if more:
                result = _call(graph, aten.slice.Tensor, (result, dim, 0, length), node)
        if is_copied:
            layout = {"memory_format": torch_for("fuser_lab.bridge").contiguous_format}
            result = _call(graph, aten.clone.default, (result,), node, layout)
        elif rows or columns:
            set_values(values_with(node, result.meta["val"], with_results=True) or {})
            # A product is no view of another tensor, so that users may write to it.
            shape = list(result.meta["val"].shape)
            result = _call(graph, aten._unsafe_view.default, (result, shape), node)  # noqa: SLF001
    node.replace_all_uses_with(result)
    _erase(graph, node)


def _erase(graph: Any, node: Node) -> None:
    """Erase a node, and the views that only it reads: their base would be kept for them."""
    operands = node.all_input_nodes
    graph.erase_node(node)
    for operand in operands:
        if not operand.users and target_of(operand) in ALIASES:
            _erase(graph, operand)


def _pad_operand(
    graph: Any, operand: Node, added: tuple[int, ...], pads: dict[tuple[Node, tuple[int, ...]], Node],
) -> Node:
    """Return an operand with zeros at the ends of its last axes; a transposed matrix is padded as it is stored."""
    if not any(added):
        return operand
    key = operand, added
    if key not in pads:
        if _is_transposed(operand):
            stored = _pad_operand(graph, operand.args[0], added[::-1], pads)
            pads[key] = _call(graph, operand.target, (stored, *operand.args[1:]), operand)
        else:
            widths = [width for more in reversed(added) for width in (0, more)]
            pad = torch_for("fuser_lab.bridge").ops.aten.constant_pad_nd.default
            pads[key] = _call(graph, pad, (operand, widths, 0.0), operand)
    return pads[key]


def _is_transposed(operand: Node) -> bool:
    """Whether an operand is the transpose of a matrix."""
    target = target_of(operand)
    orders = [1, 0], [-1, -2]
    return target == "aten.t.default" or (target == "aten.permute.default" and list(operand.args[1]) in orders)


def _call(graph: Any, target: Any, args: tuple[Any, ...], like: Node, kwargs: dict[str, Any] | None = None) -> Node:
    """Return a new call, with the result that its op has for fake tensors."""
    def value(argument: Any) -> Any:
        return argument.meta["val"] if isinstance(argument, type(like)) else argument

    node = graph.call_function(target, args, kwargs or {})
    node.meta = {**like.meta, "val": target(*map(value, args), **(kwargs or {}))}
    return node


class TimedProducts:
    """Times products once: their answers stay in the object, and on disk for other processes."""

    def __init__(self) -> None:
        """Set up without answers."""
        self._answers: dict[str, bool] = {}

    def __call__(self, op: Any, operands: Sequence[Any], added: tuple[int, int, int], is_copied: bool) -> bool:
        """Return whether a padded product is faster on its GPU, with the time to pad, and to copy the slice if so."""
        device = operands[0].device
        if is_on_host(device.type):
            return False
        torch = torch_for("fuser_lab.bridge")
        described = [(tuple(map(int, x.shape)), tuple(map(int, x.stride()))) for x in operands]
        content = repr((
            torch.__version__, torch.cuda.get_device_name(device), str(op), str(operands[-1].dtype), described, added,
            is_copied,
        ))
        return self.answer(content, partial(_measure, torch, op, operands, added, is_copied))

    def answer(self, content: str, measure: Callable[[], bool]) -> bool:
        """Return the answer that this or another process measured for a content, or else measure it."""
        if content not in self._answers:
            name = f"products/{hashlib.sha256(content.encode()).hexdigest()}"
            stored = store.read(name)
            self._answers[content] = measure() if stored is None else stored == _PADDED
            if stored is None:
                store.write(name, _PADDED if self._answers[content] else b"as it is")
        return self._answers[content]


def _measure(torch: Any, op: Any, operands: Sequence[Any], added: tuple[int, int, int], is_copied: bool) -> bool:
    """Time a product with and without pads, on zeros; False if there is not enough memory to do so."""
    rows, inner, columns = added
    pad = torch.nn.functional.pad
    with contextlib.suppress(torch.cuda.OutOfMemoryError), without_modes(), torch.no_grad():
        *bias, a, b = (
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).zero_() for x in operands
        )
        height, width = a.shape[-2], b.shape[-1]

        def product() -> Any:
            return op(*bias, a, b)

        def product_with_pads() -> Any:
            longer = [pad(vector, (0, columns)) for vector in bias]
            result = op(*longer, pad(a, (0, inner, 0, rows)), pad(b, (0, columns, 0, inner)))
            return result[..., :height, :width].contiguous() if is_copied else result

        clock = DeviceClock()
        measures = [clock.measured_warm(call) for call in (product, product_with_pads)]
        first, second = (min(measure() for _ in range(_ROUNDS)) for measure in measures)
        return bool(second < first)
    return False

"""What an op of a captured graph moves and computes, and what a region does at least, from shapes and dtypes alone."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod

from fuser_lab.bridge.lowerings import Call, TracedTensor, can_lower
from fuser_lab.bridge.lowerings.views import VIEWS
from fuser_lab.bridge.region import Region
from fuser_lab.bridge.signature import Cutting, Ref, record_definition, signature_of
from fuser_lab.bridge.traced import Node, call_of, results_of, target_of, tensors_of
from fuser_lab.cost.device import Device
from fuser_lab.cost.predicted_times import TimeModel
from fuser_lab.cost.traffic import one_kernel_traffic
from fuser_lab.cost.work import product_flops
from fuser_lab.definition.binding import bind
from fuser_lab.errors import FuserLabError
from fuser_lab.ir import Fusion

_NUMBER = re.compile(r"\d+")
_BACKWARD_PRODUCTS = 2.5  # matrix products in the gradient of attention for each one in attention: five for two


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """Bytes that are moved, floating-point operations of products, the least seconds of both, and predicted seconds.

    The bound is one launch, and the longer of the time for the bytes and the time for the operations; ``limit`` names
    the longer one, ``"bytes"`` or ``"flops"``.
    """

    bytes: int
    flops: int
    bound: float
    predicted: float
    limit: str


def op_cost(node: Node, device: Device) -> OpCost:
    """Return the cost of an op of the library, which reads each operand once and writes each result once."""
    model, moved, flops = TimeModel.of(device), op_bytes(node), op_flops(node)
    memory, arithmetic = model.memory(moved), flops / _product_rate(device, results_of(node))
    least = (model.launch if moved else 0.0) + max(memory, arithmetic)
    return OpCost(
        bytes=moved, flops=flops, bound=least, predicted=least, limit="flops" if arithmetic > memory else "bytes",
    )


def region_cost(region: Region, device: Device) -> OpCost:
    """Return the cost of a region's plan; the bound is that of one kernel for the region."""
    plan, model = region.plan, TimeModel.of(device)
    exprs = plan.fusion.tensor_exprs
    flops, memory = product_flops(exprs), model.memory(plan.bytes_ideal)
    arithmetic = model.arithmetic(model.work(exprs), flops)
    predicted = sum(segment.predicted_time().seconds for segment in plan.segments)
    least = (model.launch if memory else 0.0) + max(memory, arithmetic)
    return OpCost(
        bytes=sum(segment.bytes for segment in plan.segments), flops=flops,
        bound=min(least, predicted),  # small data come from caches, which are faster than the data sheet's memory
        predicted=predicted,
        limit="flops" if arithmetic > memory else "bytes",
    )


def op_bytes(node: Node) -> int:
    """Return the bytes that a call moves: those of its fusion, or of all its operands and results if it has none."""
    if target_of(node) in VIEWS:
        return 0
    call = call_of(node)
    if call is not None and can_lower(call):
        with suppress(FuserLabError):
            return _fusion_bytes(node, call)
    results = [tensor for tensor in results_of(node) if tensor is not None]
    operands = [tensor for operand in node.all_input_nodes for tensor in tensors_of(operand)]
    return sum(map(stored_bytes, (*operands, *results)))


def _fusion_bytes(node: Node, call: Call) -> int:
    """Return the bytes that a call moves as a fusion in one kernel."""
    return one_kernel_traffic(recorded_call(node, call)).total


def recorded_call(node: Node, call: Call) -> Fusion:
    """Return a call as a fusion."""
    signature = signature_of([node], node.all_input_nodes, [node], Cutting(), {})
    results = tuple(Ref(0, place) for place, result in enumerate(call.results) if result is not None)
    recording = record_definition(replace(signature, outputs=results))
    return bind(recording.definition.fusion, recording.specs).fusion


def stored_bytes(tensor: TracedTensor) -> int:
    """Return the bytes of a tensor's distinct elements in memory."""
    elements = prod(size for size, stride in zip(tensor.shape, tensor.strides, strict=True) if stride or not size)
    number = _NUMBER.search(tensor.dtype)  # the bits of an element, as in float8_e4m3fn or complex64
    return elements * (max(1, int(number[0]) // 8) if number else 1)


def _product_rate(device: Device, results: Sequence[TracedTensor | None]) -> float:
    """Return the operations per second of matrix products with results of these dtypes."""
    first = next((tensor for tensor in results if tensor is not None), None)
    is_narrow = first is not None and first.dtype in {"bfloat16", "float16"}
    return TimeModel.of(device).product if is_narrow or device.host is not None else device.fp32 * 1e12


# Floating-point operations, two per multiplication

def op_flops(node: Node) -> int:
    """Return the floating-point operations of a matrix product, a convolution or attention; 0 for other ops."""
    target, call = target_of(node), call_of(node)
    if call is None or not call.tensors:
        return 0
    name = target.split(".")[1] if "." in target else target
    count = next((count for names, count in _FLOPS if names.match(name)), None)
    if count is None:
        return 0
    return int(count(call) / (2 if _is_causal(node) else 1))


def _is_causal(node: Node) -> bool:
    """Whether attention skips the half of the scores that a causal mask excludes."""
    schema = getattr(node.target, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    place = names.index("is_causal") if "is_causal" in names else len(node.args)
    return bool(node.args[place] if place < len(node.args) else node.kwargs.get("is_causal"))


def _size(call: Call) -> int:
    return next((prod(tensor.shape) for tensor in call.results if tensor is not None), 0)


def _product(call: Call) -> float:
    """Count a product whose first factor has the summed axis last."""
    return 2 * _size(call) * call.tensors[0].shape[-1]


def _product_and_sum(call: Call) -> float:
    return 2 * _size(call) * call.tensors[1].shape[-1]


def _general_product(call: Call) -> float:
    (summed, _), _ = dict(call.kwargs)["dimension_numbers"]
    return float(2 * _size(call) * prod(call.tensors[0].shape[axis] for axis in summed))


def _convolution(call: Call) -> float:
    """Count one multiplication per element of the result and of one filter, or per element that is spread."""
    x, weight = call.tensors[:2]
    if call.argument(6, "transposed"):
        return 2 * prod(x.shape) * prod(weight.shape[1:])
    return 2 * _size(call) * prod(weight.shape[1:])


def _convolution_backward(call: Call) -> float:
    gradient, x, weight = call.tensors[:3]
    spread = x if call.argument(7, "transposed") else gradient
    mask = call.argument(10, "output_mask") or (True, True)
    return 2 * prod(spread.shape) * prod(weight.shape[1:]) * sum(map(bool, mask[:2]))


def _lax_convolution(call: Call) -> float:
    weight, numbers = call.tensors[1], dict(call.kwargs)["dimension_numbers"]
    return float(2 * _size(call) * prod(weight.shape) / weight.shape[numbers.rhs_spec[0]])


def _attention(call: Call, first: int = 0) -> float:
    query, key, value = call.tensors[first: first + 3]
    return 2 * prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def _attention_backward(call: Call) -> float:
    return _BACKWARD_PRODUCTS * _attention(call, 1)


_FLOPS: tuple[tuple[re.Pattern[str], Callable[[Call], float]], ...] = (
    (re.compile(r"(mm|bmm|mv|dot|vdot|_grouped_mm|_scaled_mm|linear)$"), _product),
    (re.compile(r"(addmm|baddbmm|addmv)$"), _product_and_sum),
    (re.compile(r"dot_general$"), _general_product),
    (re.compile(r"conv_general_dilated$"), _lax_convolution),
    (re.compile(r"convolution$"), _convolution),
    (re.compile(r"convolution_backward$"), _convolution_backward),
    (re.compile(r"_scaled_dot_product_\w*_backward$"), _attention_backward),
    (re.compile(r"_scaled_dot_product_"), _attention),
)

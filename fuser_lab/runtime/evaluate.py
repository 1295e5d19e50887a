"""Work that the inputs' array library does without a kernel: evaluated segments, and results that are views."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser_lab.analysis.aliasing import Strides, input_strides, view_strides
from fuser_lab.dtypes import number_of
from fuser_lab.interpreter.numpy_eval import constant, evaluate_expr
from fuser_lab.ir import Expr, Fusion, Scalar, TensorView, Val
from fuser_lab.ops import OPS
from fuser_lab.ops.positions import indexed_axis
from fuser_lab.runtime.arrays import TORCH_OF, from_numpy_as, is_torch, may_overlap, to_numpy, torch_module
from fuser_lab.targets import is_on_host


def evaluate_segment(
    fusion: Fusion, arguments: Mapping[str, Any], into: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the outputs of a segment by name; operands are NumPy arrays or torch tensors, by name, and numbers.

    ``into`` are tensors for outputs: results that torch writes there are returned as these tensors.
    """
    values: dict[Val, Any] = {}
    deque(evaluation(fusion, arguments, values, into), maxlen=0)
    return {tv.name: values[tv] for tv in fusion.outputs}


def evaluation(
    fusion: Fusion, arguments: Mapping[str, Any], values: dict[Val, Any], into: Mapping[str, Any] | None = None,
) -> Iterator[Expr]:
    """Yield each op of a segment before its results are evaluated and added to ``values``."""
    values.update(
        (value, number_of(arguments[value.name], value.dtype) if isinstance(value, Scalar) else arguments[value.name])
        for value in fusion.inputs
    )
    devices = [value.device for value in values.values() if is_torch(value)]
    # A 0-d tensor may stay on the CPU beside GPU tensors; factories create tensors on their device.
    device = next((device for device in devices if not is_on_host(device.type)), next(iter(devices), None))
    for expr in fusion.exprs:
        yield expr
        operands = [values[v] if v in values else constant(v) for v in expr.inputs]
        target = (into or {}).get(expr.outputs[0].name)
        if target is not None and device is not None and _is_written(expr, operands, target):
            values[expr.outputs[0]] = target
            continue
        results = evaluate_expr(expr, operands) if device is None else _torch_expr(expr, operands, device)
        values.update(zip(expr.outputs, results, strict=True))


Seen = Callable[[Sequence[Any]], Any]  # makes a result that is a view of an input, given all inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The input whose memory holds a returned result, and the view that gives the result.

    ``base`` is the tensor that is viewed: the input, or the result that is written over it.
    """

    number: int  # of the input
    base: TensorView
    exprs: tuple[Expr, ...]  # views that lead from the base to the result
    updated: bool  # viewed after results were written over inputs
    overwritten: bool  # the input is overwritten, so the result has to be a copy


def origins_of(fusion: Fusion) -> dict[TensorView, Origin]:
    """Return the origins of the results of a concretized fusion that are views of its inputs, as in nvFuser.

    A result that is written over an input is that input, and its views are views of the input.
    """
    numbers = {value: number for number, value in enumerate(fusion.inputs)}
    writers = {target: output for output, target in fusion.aliases}
    targets = {output: target for target, output in reversed(writers.items())}
    aliased = {output for output, _ in fusion.aliases}
    origins: dict[TensorView, Origin] = {}
    for result in fusion.outputs:
        exprs: list[Expr] = []
        tensor = result
        while tensor not in targets and tensor not in numbers and tensor not in aliased:
            expr = fusion.producers[tensor]
            if expr.op.name not in _SEEN_AS or any(v in fusion.producers for v in expr.inputs[1:]):
                break
            exprs.insert(0, expr)
            tensor = expr.tensor_inputs[0]
        source = tensor if tensor in numbers else targets.get(tensor, tensor)
        if result in fusion.hidden or source not in numbers or not _is_view(source, exprs):
            continue
        updated = tensor not in numbers or (tensor in writers and not exprs)
        origins[result] = Origin(
            number=numbers[source], base=writers[source] if updated else tensor, exprs=tuple(exprs), updated=updated,
            overwritten=source in writers and not updated,
        )
    return origins


def _is_view(source: TensorView, exprs: Sequence[Expr]) -> bool:
    """Whether expressions only view a tensor that has the definition's layout, without moving elements."""
    strides: Strides | None = input_strides(source)
    for expr in exprs:
        if strides is None:
            return False
        if expr.op.name == "squeeze" and 0 in expr.tensor_inputs[0].shape:
            return False
        if expr.op.name == "select":
            dropped = indexed_axis(dict(expr.attrs))
            strides = tuple(s for axis, s in enumerate(strides) if axis != dropped)
        else:
            strides = view_strides(expr, strides)
    return strides is not None


def apply_views(array: Any, exprs: Sequence[Expr], scalars: Mapping[str, Any]) -> Any:
    """Apply views to an array of NumPy or torch; the result is a view unless a reshape has to move elements."""
    for expr in exprs:
        operands = [scalars[v.name] if v.name in scalars else constant(v) for v in expr.inputs[1:]]
        array = _SEEN_AS[expr.op.name](expr, array, *operands)
    return array


def view_of(origin: Origin, inputs: Sequence[Any], output: Any) -> Seen:
    """Return a function that repeats a view of an input; torch makes any chain of views in one step."""
    number, exprs, torch = origin.number, origin.exprs, torch_module()
    base = inputs[number]
    if torch is None or type(base) not in {torch.Tensor, torch.nn.Parameter} or base.dtype is not output.dtype:
        return lambda inputs: apply_views(detach(inputs[number]), exprs, {})
    if base.untyped_storage().data_ptr() != output.untyped_storage().data_ptr() or not output.numel():
        return lambda inputs: apply_views(detach(inputs[number]), exprs, {})
    shape, strides = output.shape, output.stride()
    shift = output.storage_offset() - base.storage_offset()
    if (shape, strides, shift) == (base.shape, base.stride(), 0):
        return lambda inputs: detach(inputs[number])

    def strided(inputs: Sequence[Any]) -> Any:
        source = detach(inputs[number])
        return source.as_strided(shape, strides, source.storage_offset() + shift)

    return strided


def needs_scalars(origin: Origin | None) -> bool:
    """Whether a view depends on an unknown number."""
    exprs = () if origin is None else origin.exprs
    return any(isinstance(v, Scalar) and v.value is None for expr in exprs for v in expr.inputs[1:])


def detach(value: Any) -> Any:
    """Return a tensor without its gradient; other values are unchanged."""
    return value.detach() if getattr(value, "requires_grad", False) else value


def _torch_expr(expr: Expr, operands: Sequence[Any], device: Any) -> tuple[Any, ...]:
    """Return the results of one expression on a device, from torch if it has the op in these dtypes.

    Otherwise NumPy computes them from copies: torch lacks, for example, integer products on a GPU, and most ops for
    UInt64 and floats of 8 bits.
    """
    torch = torch_module()
    library, view = OPS[expr.op.name].library, _BY_TORCH.get(expr.op.name)
    if all(is_torch(x) for x in operands[:1]):
        try:
            if view is not None:
                return (view(expr, *operands),)
            if library is not None:
                results = library(torch, *operands, **dict(expr.attrs))
                return results if isinstance(results, tuple) else (results,)
        except RuntimeError as error:
            if not _is_missing(error):
                raise
    plain = [to_numpy(x) if is_torch(x) else x for x in operands]
    results = evaluate_expr(expr, plain)
    return tuple(from_numpy_as("torch", _own_memory(x)).to(device) for x in results)


def _is_written(expr: Expr, operands: Sequence[Any], target: Any) -> bool:
    """Whether torch has written the result of an expression into a tensor."""
    into = OPS[expr.op.name].into
    if into is None or not all(is_torch(x) for x in (target, operands[0])):
        return False
    if target.dtype is not operands[0].dtype or 0 in target.stride() or target.requires_grad:
        return False
    if any(is_torch(x) and (x.requires_grad or may_overlap(x, target)) for x in operands):
        return False
    try:
        return into(torch_module(), target, *operands, **dict(expr.attrs))
    except RuntimeError as error:
        if not _is_missing(error):
            raise
        return False


def _is_missing(error: RuntimeError) -> bool:
    """Whether an error says that torch has no kernel for a dtype; it does so before it launches anything."""
    return isinstance(error, NotImplementedError) or "not implemented for" in str(error)


def _own_memory(array: Any) -> Any:
    return array if array.flags.writeable else array.copy()


def _slice(expr: Expr, x: Any) -> Any:
    starts, ends = expr.ints("start_indices"), expr.ints("end_indices")
    return x[(*(slice(a, b) for a, b in zip(starts, ends, strict=True)), ...)]


def _broadcast(expr: Expr, x: Any) -> Any:
    flags = expr.attr("is_broadcast_dim")
    return x[(*(None if flag else slice(None) for flag in (flags if isinstance(flags, tuple) else ())), ...)]


def _squeeze(expr: Expr, x: Any) -> Any:
    dropped = expr.ints("dims")
    return x[(*(0 if axis in dropped else slice(None) for axis in range(len(x.shape))), ...)]


def _permute(expr: Expr, x: Any) -> Any:
    dims = expr.ints("dims")
    return x.permute(dims) if is_torch(x) else x.transpose(dims)


def _expand(expr: Expr, x: Any) -> Any:
    return x.expand(expr.out.shape) if is_torch(x) else np.broadcast_to(x, expr.out.shape)


def _select(expr: Expr, x: Any, index: Any) -> Any:
    return x[(*(slice(None),) * indexed_axis(dict(expr.attrs)), int(index), ...)]


def _cast(expr: Expr, x: Any) -> Any:
    if expr.out.dtype.is_integral and not expr.tensor_inputs[0].dtype.is_integral:
        # Torch's result for a number out of range depends on the device.
        raise NotImplementedError(f"a cast to {expr.out.dtype!r}")
    return x.to(getattr(torch_module(), TORCH_OF[expr.out.dtype]))


# For arrays of NumPy and of torch. With an ellipsis, NumPy's indexing gives views even for 0-d results; attributes do
# not contain the shape of the result.
_VIEWS: dict[str, Callable[..., Any]] = {
    "set": lambda expr, x: x,
    "segment_set": lambda expr, x: x,
    "permute": _permute,
    "broadcast": _broadcast,
    "squeeze": _squeeze,
    "expand": _expand,
    "reshape": lambda expr, x: x.reshape(expr.out.shape),
    "slice": _slice,
}
_SEEN_AS = {**_VIEWS, "select": _select}  # views of inputs that are results
_BY_TORCH = {**_VIEWS, "stride_order": lambda expr, x: x, "cast": _cast}

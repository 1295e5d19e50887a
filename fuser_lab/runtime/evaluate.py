"""Segments without a kernel: evaluated expression by expression by the array library of the inputs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fuser_lab.interpreter.numpy_eval import constant, evaluate_expr
from fuser_lab.ir import Expr, Fusion, Val
from fuser_lab.ops import OPS
from fuser_lab.runtime.arrays import TORCH_OF, from_numpy_as, is_torch, to_numpy, torch_module


def evaluate_segment(fusion: Fusion, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs of a segment by name; operands are NumPy arrays or torch tensors, by name, and numbers."""
    known: dict[Val, Any] = {value: given[value.name] for value in fusion.inputs}
    on_torch = any(is_torch(value) for value in known.values())
    for expr in fusion.exprs:
        operands = [known[v] if v in known else constant(v) for v in expr.inputs]
        results = _torch_expr(expr, operands) if on_torch else evaluate_expr(expr, operands)
        known.update(zip(expr.outputs, results, strict=True))
    return {tv.name: known[tv] for tv in fusion.outputs}


def _torch_expr(expr: Expr, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Return the results of one expression, by torch where it has the op, else by NumPy on copies."""
    torch = torch_module()
    library, view = OPS[expr.op.name].library, _VIEWS.get(expr.op.name)
    if all(is_torch(x) for x in operands[:1]):
        if view is not None:
            return (view(expr, *operands),)
        if library is not None:
            results = library(torch, *operands, **dict(expr.attrs))
            return results if isinstance(results, tuple) else (results,)
    device = next((x.device for x in operands if is_torch(x)), torch.device("cpu"))
    plain = [to_numpy(x) if is_torch(x) else x for x in operands]
    results = evaluate_expr(expr, plain)
    return tuple(from_numpy_as("torch", _owned(x)).to(device) for x in results)


def _owned(array: Any) -> Any:
    return array if array.flags.writeable else array.copy()


def _slice(expr: Expr, x: Any) -> Any:
    starts, ends = expr.ints("start_indices"), expr.ints("end_indices")
    return x[tuple(slice(a, b) for a, b in zip(starts, ends, strict=True))]


def _unsqueezed(expr: Expr, x: Any) -> Any:
    flags = expr.attr("is_broadcast_dim")
    for position, flag in enumerate(flags if isinstance(flags, tuple) else ()):
        x = x.unsqueeze(position) if flag else x
    return x


def _squeezed(expr: Expr, x: Any) -> Any:
    for dim in sorted(expr.ints("dims"), reverse=True):
        x = x.select(dim, 0)
    return x


def _cast(expr: Expr, x: Any) -> Any:
    return x.to(getattr(torch_module(), TORCH_OF[expr.out.dtype]))


# Views stay views; what they need of the result's shape no attribute has.
_VIEWS: dict[str, Callable[..., Any]] = {
    "set": lambda expr, x: x,
    "segment_set": lambda expr, x: x,
    "stride_order": lambda expr, x: x,
    "permute": lambda expr, x: x.permute(expr.ints("dims")),
    "broadcast": _unsqueezed,
    "squeeze": _squeezed,
    "expand": lambda expr, x: x.expand(expr.out.shape),
    "reshape": lambda expr, x: x.reshape(expr.out.shape),
    "slice": _slice,
    "cast": _cast,
}

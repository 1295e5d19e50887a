"""Segments without a kernel: evaluated expression by expression by the array library of the inputs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fuser_lab.interpreter.numpy_eval import constant, evaluate_expr
from fuser_lab.ir import Expr, Fusion, Val
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
    call = _TORCH.get(expr.op.name)
    if call is not None and all(is_torch(x) for x in operands[:1]):
        return (call(expr, *operands),)
    torch = torch_module()
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


# Only what a view or a product needs: everything else has kernels.
_TORCH: dict[str, Callable[..., Any]] = {
    "matmul": lambda expr, a, b: a @ b,
    "linear": lambda expr, *operands: torch_module().nn.functional.linear(*operands),
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

"""Data-dependent indices, and the checks for reads and writes at them.

An index is an integer tensor or scalar. An index outside its axis is an error, and so is a negative one: the reference
evaluation raises it, and so do runs in host memory (`codegen.position_checks`). On a device, a kernel reads nothing out
of range and gives 0.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from fuser_lab.errors import DefinitionError, PositionError
from fuser_lab.ir import Expr, IterDomain, OpKind, TensorView, Val
from fuser_lab.ops.operands import wrap_dim
from fuser_lab.ops.registry import Recorder
from fuser_lab.ops.rules import Array, Attrs, AxisFactory, Operand


def dimension(dim: object, tensor: TensorView, op: str) -> int:
    """Return ``dim`` counted from the front, or raise DefinitionError with nvFuser's condition."""
    refusal = "arg has {ndim} axes, so dim argument must satisfy {least} <= dim < {ndim}, given {dim}."
    return wrap_dim(dim, tensor.ndim, op, refusal=refusal)


def indexed_axis(attrs: Attrs) -> int:
    """Return the indexed axis of the first operand; embeddings read rows."""
    dim = attrs.get("dim", 0)
    return dim if isinstance(dim, int) else 0


def positions_operand(rec: Recorder, operand: Operand, op: str, argument: str = "index") -> TensorView:
    """Return an operand that contains indices; a tensor of another dtype is refused."""
    tensor = rec.tensor(operand, op, argument)
    if not tensor.dtype.is_integral:
        raise DefinitionError(f"{op}: {argument} must be an integer tensor, given {tensor.dtype!r}.")
    return tensor


def same_rank(op: str, **operands: TensorView) -> None:
    """Raise DefinitionError unless the operands, by argument, have the same number of axes."""
    (first, a), *others = operands.items()
    for name, b in others:
        if a.ndim != b.ndim:
            msg = f"{op}: {first} has {a.ndim} axes and {name} has {b.ndim}; they must have the same number."
            raise DefinitionError(msg)


def out_of_range(op: str, value: int, size: int, index: str = "index") -> str:
    """Return the sentence for an index outside its axis."""
    places = f"0 to {size - 1}" if size else "no positions"
    return f"{op}: {index} has the value {value}, out of range: the indexed axis has size {size} ({places})."


def checked_positions(op: str, index: Any, size: int) -> Array:
    """Return indices as int64, or raise PositionError if one is outside ``[0, size)``."""
    positions = np.asarray(index)
    if positions.size:
        for value in (int(positions.min()), int(positions.max())):
            if not 0 <= value < size:
                raise PositionError(out_of_range(op, value, size))
    return positions.astype(np.int64)


def checked_positions_torch(torch: Any, op: str, index: Any, size: int) -> Any:
    """Return indices as int64, or raise PositionError: torch would abort every later use of the device."""
    positions = index.long()
    capturing = positions.is_cuda and torch.cuda.is_current_stream_capturing()  # nothing can be checked then
    if positions.numel() and not capturing:
        once = positions[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in positions.stride())]
        for value in map(int, torch.aminmax(once)):
            if not 0 <= value < size:
                raise PositionError(out_of_range(op, value, size))
    return positions


def apply_move(torch: Any, x: Any, move: Callable[..., Any], *others: Any) -> Any:
    """Return ``move(x, *others)``, all of one dtype; types that torch cannot index are passed as integers."""
    if x.dtype is torch.uint64 or "float8" in str(x.dtype):
        words = torch.int64 if x.dtype is torch.uint64 else torch.uint8
        return move(*(operand.contiguous().view(words) for operand in (x, *others))).view(x.dtype)
    return move(x, *others)


def fill_like(torch: Any, value: Any, like: Any) -> Any:
    """Return a tensor, or a number as a 0-d tensor of another one's dtype and device."""
    if torch.is_tensor(value):
        return value
    return torch.as_tensor(value.item() if isinstance(value, np.generic) else value, dtype=like.dtype).to(like.device)


def new_axis(axis: IterDomain, axes: AxisFactory) -> IterDomain:
    """Return an axis of another's size whose elements may all differ."""
    size = axis.visible_extent
    return axes.copy(axis) if axis.is_broadcast and axis.expanded is None else axes.fresh(size)


def indexed_operands(expr: Expr) -> tuple[Val, int] | None:
    """Return the operand that contains indices and the size of the indexed axis; None for other ops."""
    if expr.kind not in {OpKind.INDEXING, OpKind.SCATTER}:
        return None
    if expr.op.name == "embedding_fwd":
        return expr.inputs[0], expr.tensor_inputs[1].shape[0]
    return expr.inputs[1], expr.tensor_inputs[0].shape[indexed_axis(dict(expr.attrs))]


def check_within(op: str, dim: int | None, small: TensorView, large: TensorView, names: tuple[str, str]) -> None:
    """Raise DefinitionError if an axis other than ``dim`` is longer in one operand than in another."""
    for place, (a, b) in enumerate(zip(small.extents, large.extents, strict=True)):
        if place != dim and isinstance(a, int) and isinstance(b, int) and a > b:
            raise DefinitionError(f"{op}: {names[0]} has size {a} on axis {place}, {names[1]} only {b}.")

"""RemoveBcastSqueeze: an axis that is added and then removed is not needed.

nvFuser's pass of this name (csrc/preseg_passes/remove_bcast_squeeze.cpp).
"""

from dataclasses import dataclass
from typing import ClassVar

from fuser_lab.ir import Expr, Fusion, TensorView
from fuser_lab.passes.base import Pass
from fuser_lab.passes.rewriter import Rewriter


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveBroadcastSqueeze(Pass):
    """``squeeze(broadcast(x)) -> x``, or the remaining broadcast or squeeze if their axes differ."""

    name: ClassVar[str] = "remove_broadcast_squeeze"
    nvfuser: ClassVar[str] = "RemoveBcastSqueeze"
    example: ClassVar[str] = """
        x = fd.define_tensor([4])
        column = fd.ops.broadcast(x, [False, True])
        fd.add_output(fd.ops.exp(fd.ops.squeeze(column, [1])))
    """

    def run(self, fusion: Fusion) -> Fusion:
        """Return the fusion without such pairs."""
        if not any(_pair(expr, fusion.producers.get(expr.inputs[0])) for expr in fusion.exprs if expr.inputs):
            return fusion
        writer = Rewriter(fusion)
        outputs = set(fusion.outputs)
        for expr in fusion.exprs:
            current = writer.reading(expr)
            before = writer.makers.get(current.inputs[0]) if current.inputs else None
            left = _pair(current, before)
            if before is None or left is None:
                writer.keep(expr)
                continue
            _shorten(writer, expr.out, before.tensor_inputs[0], left, is_output=expr.out in outputs)
        return writer.fusion_of()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """The combined effect of two ops: insert axes where ``flags`` are True, or remove the operand's axes ``dims``."""

    flags: tuple[bool, ...]
    dims: tuple[int, ...]


def _pair(expr: Expr, before: Expr | None) -> _Left | None:
    """Return the remainder of a squeeze after a broadcast; None if it is not such a pair or nothing is gained."""
    if expr.op.name != "squeeze" or before is None or before.op.name != "broadcast":
        return None
    is_new = before.attr("is_broadcast_dim")
    added = tuple(bool(flag) for flag in is_new) if isinstance(is_new, tuple) else ()
    dropped = expr.ints("dims")
    source_axes = [place for place, new in enumerate(added) if not new]
    flags = tuple(new for place, new in enumerate(added) if place not in dropped)
    dims = tuple(source_axes.index(place) for place in dropped if not added[place])
    # Both ops would remain.
    return None if any(flags) and dims else _Left(flags=flags, dims=dims)


def _shorten(writer: Rewriter, out: TensorView, source: TensorView, left: _Left, *, is_output: bool) -> None:
    if any(left.flags):
        writer.remake(out, "broadcast", source, is_broadcast_dim=left.flags)
    elif left.dims:
        writer.remake(out, "squeeze", source, dims=left.dims, squeeze_expanded=True)
    elif is_output:
        writer.remake(out, "set", source)
    else:
        writer.replace(out, source)

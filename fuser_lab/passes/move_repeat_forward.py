"""MoveRepeatForward: compute first, then repeat the result.

nvFuser's pass of this name (csrc/preseg_passes/move_repeat_forward.cpp). A repeat is the result of
TranslateRepeatToExpand: broadcast, expand, reshape. It moves only after pointwise ops, which preserves every value.
"""

from dataclasses import dataclass
from typing import ClassVar

from fuser_lab.ir import Expr, Fusion, OpKind, TensorView
from fuser_lab.passes.base import Pass
from fuser_lab.passes.rewriter import Rewriter

_Repeat = tuple[Expr, Expr, Expr]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRepeatForward(Pass):
    """``exp(reshape(expand(broadcast(x)))) -> reshape(expand(broadcast(exp(x))))``: fewer elements are computed.

    The repeat moves below pointwise ops that read no other tensor, as long as nothing else reads its result.
    """

    name: ClassVar[str] = "move_repeat_forward"
    nvfuser: ClassVar[str] = "MoveRepeatForward"
    example: ClassVar[str] = """
        x = fd.define_tensor([4, 6])
        row = fd.ops.expand(fd.ops.broadcast(x, [True, False, False]), [3, 4, 6])
        fd.add_output(fd.ops.neg(fd.ops.exp(fd.ops.reshape(row, [12, 6]))))
    """

    def run(self, fusion: Fusion) -> Fusion:
        """Return the fusion in which repeats come last."""
        moved: dict[Expr, tuple[_Repeat, list[Expr]]] = {}
        for expr in fusion.exprs:
            repeat = _repeat(expr, fusion)
            passed = [] if repeat is None else _behind(expr, fusion)
            if repeat is not None and passed:
                moved[passed[-1]] = (repeat, passed)
        if not moved:
            return fusion
        writer = Rewriter(fusion)
        gone = {expr for repeat, passed in moved.values() for expr in (*repeat, *passed)}
        for expr in fusion.exprs:
            if expr in moved:
                _move(writer, *moved[expr])
            elif expr not in gone:
                writer.keep(expr)
        return writer.fusion_of()


def _repeat(reshape: Expr, fusion: Fusion) -> _Repeat | None:
    """Return the broadcast, expand and reshape that repeat a tensor along one of its axes, or None."""
    if reshape.kind is not OpKind.RESHAPE:
        return None
    expand = _only_maker(reshape, OpKind.EXPAND, fusion)
    broadcast = None if expand is None else _only_maker(expand, OpKind.BROADCAST, fusion)
    if expand is None or broadcast is None:
        return None
    source, placed, wide = broadcast.tensor_inputs[0], broadcast.out, expand.out
    new = [place for place, flag in enumerate(_flags(broadcast)) if flag]
    grown = [place for place, (a, b) in enumerate(zip(placed.shape, wide.shape, strict=True)) if a != b]
    result = reshape.out.shape
    if len(new) != 1 or grown != new or len(result) != source.ndim:
        return None
    changed = [place for place, (a, b) in enumerate(zip(source.shape, result, strict=True)) if a != b]
    # The new axis is merged with the axis before or after it.
    return (broadcast, expand, reshape) if len(changed) == 1 and changed[0] - new[0] in {0, -1} else None


def _only_maker(expr: Expr, kind: OpKind, fusion: Fusion) -> Expr | None:
    """Return the producer of an operand that nothing else reads, if it has this kind."""
    value = expr.tensor_inputs[0]
    maker = fusion.producers.get(value)
    alone = maker is not None and maker.kind is kind and len(fusion.users[value]) == 1
    return maker if alone and value not in fusion.outputs else None


def _flags(broadcast: Expr) -> tuple[bool, ...]:
    flags = broadcast.attr("is_broadcast_dim")
    return tuple(map(bool, flags)) if isinstance(flags, tuple) else ()


def _behind(repeat: Expr, fusion: Fusion) -> list[Expr]:
    """Return the expressions after which a repeat can be moved, in order."""
    chain: list[Expr] = []
    value: TensorView = repeat.out
    while value not in fusion.outputs:
        users = fusion.users.get(value, ())
        if len(users) != 1 or users[0].kind is not OpKind.POINTWISE or set(users[0].tensor_inputs) != {value}:
            break
        chain.append(users[0])
        value = users[0].out
    return chain


def _move(writer: Rewriter, repeat: _Repeat, passed: list[Expr]) -> None:
    """Add the computations, then the repeat, under their names except for the last computation and the reshape."""
    broadcast, expand, reshape = repeat
    value, old = writer.tensor(broadcast.tensor_inputs[0]), reshape.out
    for expr in passed:
        name = expr.name if expr is not passed[-1] else writer.new_name(expr.name, "once")
        inputs = [value if v is old else writer.now(v) for v in expr.inputs]
        value, old = writer.emit(name, expr.op.name, *inputs, **dict(expr.attrs)), expr.out
    placed = writer.emit(broadcast.name, "broadcast", value, **dict(broadcast.attrs))
    wide = writer.emit(expand.name, "expand", placed, **dict(expand.attrs))
    writer.remake(passed[-1].out, "reshape", wide, new_shape=passed[-1].out.shape)

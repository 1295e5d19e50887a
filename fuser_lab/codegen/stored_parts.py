"""Concatenations that a kernel stores part by part, so that what several parts depend on is computed once.

    T3 = cat(T1, T2)    ->    T1 and T2 are outputs, each with the memory of its part of T3

A nest over the elements of T3 decides at each element of which operand it is, and computes only that one. If both
operands are computed from a common value, such as the state of a recurrence whose steps are stacked, that value is
computed for each of them, and a step from all steps before it. A nest over the elements of the parts has the value in
a register.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fuser_lab.codegen.kernel_ir import Layout
from fuser_lab.ir import Expr, Fusion, OpKind, TensorView, Val, needed_exprs
from fuser_lab.passes.cat_parts import cat_axis, cat_sources
from fuser_lab.passes.rewriter import Rewriter

_SAME_INDEX = frozenset({OpKind.POINTWISE, OpKind.COPY, OpKind.BROADCAST, OpKind.SQUEEZE, OpKind.EXPAND})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredParts:
    """A segment that stores concatenations part by part; ``layouts`` has the output of each part and its layout."""

    fusion: Fusion
    layouts: Mapping[TensorView, tuple[TensorView, Layout]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """A tensor that fills a part of an output, and the ops on one tensor that lead from it to the output, in order."""

    tensor: TensorView
    layout: Layout
    ops: tuple[Expr, ...]


def with_stored_parts(segment: Fusion, layouts: Mapping[TensorView, Layout]) -> StoredParts | None:
    """Return the segment with parts as outputs; None if no two parts of a concatenation depend on a common value."""
    parts = {
        output: pieces for output in segment.outputs if not segment.users.get(output)
        and len(pieces := _parts(segment, output, layouts[output])) > 1
        and _share_values(segment, [part.tensor for part in pieces])
    }
    if not parts:
        return None
    writer, made = Rewriter(segment), dict[TensorView, tuple[TensorView, Layout]]()
    for expr in segment.exprs:
        writer.keep(expr)
    outputs: list[TensorView] = []
    for output in segment.outputs:
        if output not in parts:
            outputs.append(output)
            continue
        for part in parts[output]:
            tensor = part.tensor
            for expr in part.ops:
                inputs = [tensor if isinstance(value, TensorView) else value for value in expr.inputs]
                tensor = writer.emit(writer.new_name(output.name, "part"), expr.op.name, *inputs, **dict(expr.attrs))
            if tensor in made or tensor in segment.outputs or tensor in segment.inputs:
                tensor = writer.copy(writer.new_name(output.name, "part"), "set", tensor)
            made[tensor] = output, part.layout
            outputs.append(tensor)
    exprs = needed_exprs(writer.exprs, outputs)
    return StoredParts(fusion=replace(segment, exprs=exprs, outputs=tuple(outputs)), layouts=made)


def _parts(segment: Fusion, tensor: TensorView, layout: Layout, ops: tuple[Expr, ...] = ()) -> list[_Piece]:
    """Return the parts of a tensor that is stored with a layout, after some ops; itself if nothing joins it."""
    whole = [_Piece(tensor=tensor, layout=layout, ops=ops)]
    while True:
        maker = segment.producers.get(tensor)
        if maker is None or len(segment.users.get(tensor, ())) + segment.outputs.count(tensor) > 1:
            return whole
        if maker.op.name == "cat":
            break
        if len(maker.tensor_inputs) != 1:
            return whole
        (source,) = maker.tensor_inputs
        if maker.kind is OpKind.BROADCAST:
            flags = maker.attr("is_broadcast_dim")
            assert isinstance(flags, tuple)
            strides = tuple(stride for stride, is_new in zip(layout.strides, flags, strict=True) if not is_new)
            layout = replace(layout, strides=strides)
        elif maker.kind is OpKind.POINTWISE and source.shape == tensor.shape:
            ops = (maker, *ops)
        else:
            return whole
        tensor = source
    dim, pieces, start = cat_axis(maker), list[_Piece](), 0
    for operand in cat_sources(maker, segment.producers) or ():
        pieces += _parts(segment, operand, replace(layout, offset=layout.offset + start * layout.strides[dim]), ops)
        start += operand.shape[dim]
    return pieces if len(pieces) > 1 else whole


def _share_values(segment: Fusion, parts: Sequence[TensorView]) -> bool:
    """Whether two parts are computed from a common value, at the same index."""
    seen = set[Expr]()
    for part in parts:
        behind, waiting = set[Expr](), list[Val]([part])
        while waiting:
            expr = segment.producers.get(waiting.pop())
            if expr is None or expr in behind or expr.kind not in _SAME_INDEX:
                continue
            behind.add(expr)
            waiting += expr.tensor_inputs
        computed = {expr for expr in behind if expr.kind is OpKind.POINTWISE and expr.op.name != "cast"}
        if not seen.isdisjoint(computed):
            return True
        seen |= computed
    return False

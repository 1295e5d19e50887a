"""RemoveEmpty: tensors without elements are not computed.

nvFuser's pass of this name (csrc/preseg_passes/remove_empty.cpp).
"""

from dataclasses import dataclass
from typing import ClassVar

from fuser_lab.ir import Expr, Fusion, Scalar, TensorView
from fuser_lab.ops import OPS
from fuser_lab.ops.promotion import convert_number
from fuser_lab.passes.base import Pass
from fuser_lab.passes.cat_parts import cat_parts
from fuser_lab.passes.rewriter import Rewriter


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveEmpty(Pass):
    """Tensors without elements, and results computed from them alone, become ``full``; a cat loses empty operands.

    ``cat([x, nothing]) -> set(x)``, ``sum(nothing) -> full(0)``, ``pad(nothing, value=v) -> full(v)``.
    """

    name: ClassVar[str] = "remove_empty"
    nvfuser: ClassVar[str] = "RemoveEmpty"
    example: ClassVar[str] = """
        x = fd.define_tensor([0, 4])
        y = fd.define_tensor([3, 4])
        fd.add_output(fd.ops.cat([x, y]))
        fd.add_output(fd.ops.sum(x, [0]))
    """

    def run(self, fusion: Fusion) -> Fusion:
        """Return the fusion without computations on empty tensors."""
        if not any(0 in tensor.shape for tensor in fusion.tensors.values()):
            return fusion
        writer = Rewriter(fusion)
        changed = False
        for expr in fusion.exprs:
            if expr.tensor_outputs and _rewritten(writer, expr):
                changed = True
            else:
                writer.keep(expr)
        return writer.fusion_of() if changed else fusion


def _rewritten(writer: Rewriter, expr: Expr) -> bool:
    """Add the replacement of an expression with empty tensors; return whether it was one."""
    if len(expr.outputs) > 1 or expr.op.name == "full":
        return False
    out = expr.out
    if 0 in out.shape:
        return _fill(writer, out, 0)
    if expr.op.name == "cat":
        parts = cat_parts(expr)
        non_empty = [writer.tensor(tensor) for tensor, (start, end) in parts if start < end]
        if len(non_empty) == len(parts):
            return False
        if len(non_empty) > 1:
            writer.remake(out, "cat", *non_empty, dim=expr.attr("dim"))
        else:
            pad = writer.makers.get(non_empty[0])
            writer.remake(out, "set", non_empty[0] if pad is None or pad.op.name != "pad" else pad.inputs[0])
        return True
    if not expr.tensor_inputs or 0 not in expr.tensor_inputs[0].shape:
        return False
    combine = OPS[expr.op.name].combine
    if combine is not None:
        return _fill(writer, out, combine.identity(out.dtype))
    if expr.op.name in {"matmul", "squeeze"}:
        return _fill(writer, out, 0)
    fill = expr.inputs[1] if expr.op.name == "pad" else None
    return isinstance(fill, Scalar) and _fill(writer, out, fill)


def _fill(writer: Rewriter, out: TensorView, fill: Scalar | complex) -> bool:
    """Add ``out = full(fill)``; expanded axes are expanded afterwards, if there is an element."""
    repeats = any(axis.expanded is not None for axis in out.domain.axes)
    if repeats and 0 in out.shape:
        return False
    dtype = out.dtype
    number = fill if isinstance(fill, Scalar) else convert_number(fill, dtype, "full", "fill_value")
    value = number if isinstance(number, Scalar) else Scalar(name="", dtype=dtype, value=number)
    if repeats:
        shape = tuple(1 if axis.expanded is not None else n for axis, n in zip(out.domain.axes, out.shape, strict=True))
        element = writer.emit(writer.new_name(out.name, "element"), "full", value, shape=shape, dtype=dtype)
        writer.remake(out, "expand", element, shape=out.shape)
    else:
        writer.fill(out, value)
    return True

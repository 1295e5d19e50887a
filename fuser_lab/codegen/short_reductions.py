"""Short reductions written as ops on the parts of their operands, which a nest of elements computes in registers.

The sum of rows of three elements becomes ``T0[:, 0] + T0[:, 1] + T0[:, 2]``. So one kernel has reductions along several
short axes, and those between ops of other shapes.
"""

from itertools import product
from math import prod
from typing import Final

from fuser_lab.cost.crossovers import crossover
from fuser_lab.ir import Expr, Fusion, OpKind, TensorView
from fuser_lab.passes.rewriter import Rewriter

LONGEST: Final = crossover("elements.reduced")
STEPS: Final = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}


def with_parts(fusion: Fusion) -> Fusion | None:
    """Return a fusion whose short reductions are written as ops on parts; None if it has none."""
    short = {expr for expr in fusion.exprs if _is_short(expr)}
    if not short:
        return None
    writer = Rewriter(fusion)
    for expr in fusion.exprs:
        if expr in short:
            _write_out(writer, expr)
        else:
            writer.keep(expr)
    return writer.fusion_of()


def _is_short(expr: Expr) -> bool:
    if expr.kind is not OpKind.REDUCTION or expr.op.name not in STEPS:
        return False
    return 1 <= prod(expr.tensor_inputs[0].shape[dim] for dim in expr.ints("dims")) <= LONGEST


def _write_out(writer: Rewriter, expr: Expr) -> None:
    out, dims = expr.out, expr.ints("dims")
    operand = writer.tensor(expr.tensor_inputs[0])
    shape = operand.shape
    parts: list[TensorView] = []
    for places in product(*(range(shape[dim]) for dim in dims)):
        at = dict(zip(dims, places, strict=True))
        starts = tuple(at.get(axis, 0) for axis in range(len(shape)))
        ends = tuple(at[axis] + 1 if axis in at else size for axis, size in enumerate(shape))
        part = writer.emit(
            writer.new_name(out.name, "part"), "slice", operand,
            start_indices=starts, end_indices=ends, manual_normalization=False,
        )
        parts.append(
            writer.emit(writer.new_name(out.name, "element"), "squeeze", part, dims=dims, squeeze_expanded=False),
        )
    total, *rest = parts
    for part in rest[:-1]:
        total = writer.emit(writer.new_name(out.name, "total"), STEPS[expr.op.name], total, part)
    if rest:
        writer.remake(out, STEPS[expr.op.name], total, rest[-1])
    else:
        writer.remake(out, "set", total)

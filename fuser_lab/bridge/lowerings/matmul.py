"""ATen's matrix products, which are recorded only on request."""

from typing import Any

from fuser_lab.bridge.lowerings.registry import Call, Emitter, lowering

MATMULS = frozenset({
    "aten.mm.default", "aten.bmm.default", "aten.addmm.default", "aten.baddbmm.default", "aten.mv.default",
    "aten.addmv.default", "aten.dot.default", "aten.vdot.default",
})  # fmt: skip


def _floats(call: Call) -> str | None:
    if not call.result.is_float:
        return "it multiplies integers"
    return None if all(tensor.size for tensor in call.tensors) else "a tensor is empty"


@lowering(
    "aten.mm.default", "aten.bmm.default", "aten.mv.default", "aten.dot.default", "aten.vdot.default", refuse=_floats,
)  # fmt: skip
def _matmul(to: Emitter, x: Any, y: Any) -> Any:
    return to.ops.matmul(x, y)


@lowering("aten.addmm.default", "aten.baddbmm.default", "aten.addmv.default", refuse=_floats)
def _addmm(to: Emitter, bias: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    product = to.ops.matmul(x, y)
    product = product if alpha == 1 else to.ops.mul(product, float(alpha))
    if beta == 0:
        return product
    return to.ops.add(product, bias if beta == 1 else to.ops.mul(bias, float(beta)))

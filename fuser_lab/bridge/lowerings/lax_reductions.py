"""JAX's reductions, scans and orders."""

from typing import Any

from fuser_lab.bridge.lowerings.reductions import place_of
from fuser_lab.bridge.lowerings.registry import Call, Emitter, Lower, primitive


def _not_empty(call: Call) -> str | None:
    return None if call.tensors and call.tensors[0].size else "it has no value for an empty tensor"


def _reduction(op: str) -> Lower:
    def lower(to: Emitter, x: Any) -> Any:
        axes = list(to.call.option("axes"))
        if op in {"sum", "prod"}:
            x = to.cast(x, to.dtype.compute)
        return getattr(to.ops, op)(x, axes) if axes else to.ops.set(x)

    return lower


def _truths(call: Call) -> str | None:
    return None if call.result.dtype == "bool" else "it combines bits"


primitive("reduce_sum")(_reduction("sum"))
primitive("reduce_prod")(_reduction("prod"))
primitive("reduce_max", refuse=_not_empty)(_reduction("max"))
primitive("reduce_min", refuse=_not_empty)(_reduction("min"))
primitive("reduce_or", refuse=_truths)(_reduction("max"))
primitive("reduce_and", refuse=_truths)(_reduction("min"))
for _name, _own in (("argmax", "max"), ("argmin", "min")):
    primitive(_name, refuse=_not_empty)(
        lambda to, x, name=_own: place_of(to, x, name, to.call.option("axes")[0], keepdim=False)[1],
    )


# Scans: part of a kernel with the ops around them; alone, the array library evaluates them inside the plan.

def _scan(name: str, op: str) -> None:
    @primitive(name, refuse=_not_empty)
    def lower(to: Emitter, x: Any) -> Any:
        axis = to.call.option("axis")
        size = to.shape(x)[axis]

        def reversed_along(y: Any) -> Any:
            back = to.call.option("reverse")
            return to.ops.index_select(y, to.places(size, size - 1, -1), axis) if back else y

        x = reversed_along(x)
        return reversed_along(getattr(to.ops, op)(to.cast(x, to.dtype.compute), axis))


for _name in ("cumsum", "cumprod", "cummax", "cummin"):
    _scan(_name, _name)
_scan("cumlogsumexp", "logcumsumexp")


# Orders

def _by_one_key(call: Call) -> str | None:
    if call.option("num_keys") != 1:
        return "it sorts by several keys"
    return _not_empty(call)


@primitive("sort", refuse=_by_one_key)
def _sort(to: Emitter, *operands: Any) -> Any:
    axis = to.call.option("dimension")
    order = to.ops.argsort(operands[0], axis, False, True)
    return [to.ops.take_along_axis(x, order, axis) for x in operands]

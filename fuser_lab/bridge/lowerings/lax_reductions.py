"""JAX's reductions, scans and orders."""

from collections.abc import Callable
from typing import Any

from fuser_lab.bridge.lowerings.reductions import place_of
from fuser_lab.bridge.lowerings.registry import Call, Emitter, primitive


def _not_empty(call: Call) -> str | None:
    return None if call.tensors and call.tensors[0].size else "it has no value for an empty tensor"


def _reduction(name: str, op: str, samples: tuple[str, ...], refuse: Callable[[Call], str | None] | None) -> None:
    @primitive(name, refuse=refuse, samples=samples)
    def lower(to: Emitter, x: Any) -> Any:
        axes = list(to.call.option("axes"))
        if op in {"sum", "prod"}:
            x = to.cast(x, to.dtype.compute)
        return getattr(to.ops, op)(x, axes) if axes else to.ops.set(x)


def _truths(call: Call) -> str | None:
    return None if call.result.dtype == "bool" else "it combines bits"


_reduction("reduce_sum", "sum", ("jnp.sum(b, (0, 2))", "jnp.sum(n)", "lax.reduce_sum(h, (1,))"), None)
_reduction("reduce_prod", "prod", ("jnp.prod(p, 1)",), None)
_reduction("reduce_max", "max", ("jnp.max(w, 1)", "jnp.max(n)", "jnp.max(h, 0)"), _not_empty)
_reduction("reduce_min", "min", ("jnp.min(w, 0)", "jnp.min(k, 1)"), _not_empty)
_reduction("reduce_or", "max", ("jnp.any(m, 1)",), _truths)
_reduction("reduce_and", "min", ("jnp.all(m, 0)",), _truths)


for _name, _own in (("argmax", "max"), ("argmin", "min")):
    primitive(
        _name, refuse=_not_empty,
        samples=[f"lax.{_name}(w, 1, jnp.int32)", f"lax.{_name}(k, 0, jnp.int32)", f"lax.{_name}(a, 1, jnp.int32)"],
    )(lambda to, x, name=_own: place_of(to, x, name, to.call.option("axes")[0], keepdim=False)[1])


# Scans: part of a kernel with the ops around them; alone, the array library evaluates them inside the plan.

def _scan(name: str, op: str, operand: str = "n") -> None:
    @primitive(name, refuse=_not_empty, samples=[f"lax.{name}(a, 1)", f"lax.{name}({operand}, 0, reverse=True)"])
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
_scan("cumlogsumexp", "logcumsumexp", "a")


# Orders

def _by_one_key(call: Call) -> str | None:
    if call.option("num_keys") != 1:
        return "it sorts by several keys"
    return _not_empty(call)


@primitive(
    "sort", refuse=_by_one_key,
    samples=["lax.sort(w, 1)", "lax.sort(n, 0)", "jnp.argsort(k, 1)", "lax.sort([n, a], 1, num_keys=1)"],
)
def _sort(to: Emitter, *operands: Any) -> Any:
    axis = to.call.option("dimension")
    order = to.ops.argsort(operands[0], axis, False, True)
    return [to.ops.take_along_axis(x, order, axis) for x in operands]

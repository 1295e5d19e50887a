"""The same fusion with values named in order of appearance, so that equal fusions have equal kernels."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fuser_lab.ir import AttrValue, Expr, Fusion, Scalar, TensorView, Val


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """A fusion whose tensors are ``T0``, ``T1``, ... and whose scalars are ``s0``, ``s1``, ...

    ``names`` maps the names that its tensors had to those that they have.
    """

    fusion: Fusion
    names: Mapping[str, str]


def number_values(fusion: Fusion) -> Numbered:
    """Return a fusion with values named in order of appearance."""
    naming = _Naming()
    inputs = tuple(map(naming.value, fusion.inputs))
    exprs = tuple(map(naming.expr, fusion.exprs))
    made = Fusion(
        inputs=inputs, exprs=exprs, outputs=tuple(map(naming.tensor, fusion.outputs)),
        aliases=tuple((naming.tensor(a), naming.tensor(b)) for a, b in fusion.aliases),
        hidden=frozenset(map(naming.tensor, fusion.hidden)),
        stride_orders=tuple((naming.tensor(tv), ranks) for tv, ranks in fusion.stride_orders),
        centered=tuple(map(naming.tensor, fusion.centered)),
        keeps_float=fusion.keeps_float,
    )
    return Numbered(fusion=made, names={old.name: new.name for old, new in naming.tensors.items()})


class _Naming:
    def __init__(self) -> None:
        self.tensors: dict[TensorView, TensorView] = {}
        self._scalars: dict[Scalar, Scalar] = {}

    def tensor(self, tensor: TensorView) -> TensorView:
        return self.tensors.setdefault(tensor, replace(tensor, name=f"T{len(self.tensors)}"))

    def value(self, value: Val) -> Val:
        if isinstance(value, TensorView):
            return self.tensor(value)
        return self._scalars.setdefault(value, replace(value, name=f"s{len(self._scalars)}"))

    def expr(self, expr: Expr) -> Expr:
        return Expr(
            op=expr.op, inputs=tuple(map(self.value, expr.inputs)), outputs=tuple(map(self.value, expr.outputs)),
            attrs=tuple((name, self._attr(value)) for name, value in expr.attrs),
        )

    def _attr(self, value: AttrValue) -> AttrValue:
        if isinstance(value, Scalar):
            return self.value(value)  # type: ignore[return-value]
        return tuple(map(self._attr, value)) if isinstance(value, tuple) else value

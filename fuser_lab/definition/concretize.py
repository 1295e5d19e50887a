"""From symbolic to known sizes: a fusion re-inferred for the sizes of given inputs."""

from collections.abc import Mapping

from fuser_lab.definition.builder import AxisNumbers
from fuser_lab.errors import DefinitionError, InputError
from fuser_lab.ir import (
    AttrValue,
    Expr,
    Extent,
    Fusion,
    IterDomain,
    Number,
    Scalar,
    TensorDomain,
    TensorView,
    Val,
)
from fuser_lab.ops import OPS


def concretize(fusion: Fusion, shapes: Mapping[str, tuple[int, ...]], scalars: Mapping[str, Number]) -> Fusion:
    """Return the fusion with every extent an int; names stay.

    Parameters
    ----------
    fusion
        A definition, maybe with symbolic sizes.
    shapes
        Shape of each tensor input by name.
    scalars
        Values of scalar inputs that decide sizes, by name; other scalar inputs stay symbolic.

    Raises
    ------
    InputError
        If the sizes contradict the definition or each other.
    """
    return _Concretizer(shapes, scalars).run(fusion)


class _Concretizer:
    def __init__(self, shapes: Mapping[str, tuple[int, ...]], scalars: Mapping[str, Number]) -> None:
        self._shapes = shapes
        self._scalars = scalars
        self._axes = AxisNumbers()
        self._new: dict[Val, Val] = {}
        self._sizes: dict[str, int] = {}

    def run(self, fusion: Fusion) -> Fusion:
        inputs = tuple(self._input(value) for value in fusion.inputs)
        exprs = tuple(new for expr in fusion.exprs if (new := self._expr(expr)) is not None)

        def tensor(old: TensorView) -> TensorView:
            new = self._new[old]
            if not isinstance(new, TensorView):
                raise TypeError(new)
            return new

        return Fusion(
            inputs=inputs,
            exprs=exprs,
            outputs=tuple(tensor(tv) for tv in fusion.outputs),
            aliases=tuple((tensor(a), tensor(b)) for a, b in fusion.aliases),
            hidden=frozenset(tensor(tv) for tv in fusion.hidden),
        )

    def _input(self, value: Val) -> Val:
        if isinstance(value, Scalar):
            self._new[value] = value
            return value
        shape = self._shapes[value.name]
        axes: list[IterDomain] = []
        for position, (axis, size) in enumerate(zip(value.domain.logical, shape, strict=True)):
            self._bind(value, position, axis.visible_extent, size)
            expanded = None if axis.expanded is None else size
            axes.append(self._axes.fresh(1 if axis.is_broadcast else size, axis.kind, expanded))
        domain = TensorDomain(
            logical=tuple(axes), allocation=value.domain.allocation, contiguity=value.domain.contiguity,
        )
        new = TensorView(name=value.name, dtype=value.dtype, domain=domain, is_cpu=value.is_cpu)
        self._new[value] = new
        return new

    def _bind(self, tensor: TensorView, position: int, extent: Extent, size: int) -> None:
        known = self._sizes.setdefault(extent.name, size) if isinstance(extent, Scalar) else extent
        if known != size:
            msg = f"{tensor.name} has size {size} on axis {position}; the fusion was defined for {known} there."
            raise InputError(msg)

    def _expr(self, expr: Expr) -> Expr | None:
        inputs = tuple(self._value(v) for v in expr.inputs)
        attrs = {key: self._attr(value) for key, value in expr.attrs}
        if not expr.tensor_outputs and all(isinstance(v, Scalar) and v.value is not None for v in inputs):
            self._fold(expr, [v for v in inputs if isinstance(v, Scalar)], attrs)
            return None
        try:
            results = OPS[expr.op.name].infer(inputs, attrs, self._axes)
        except DefinitionError as error:
            msg = f"these inputs do not fit the fusion at {expr.name}: {error}"
            if any(_has_plain_one(v) for v in inputs):
                msg = (
                    f"{msg.removesuffix('.')} (an axis declared -1 does not broadcast, even where its size is 1; "
                    "it has to be declared 1)."
                )
            raise InputError(msg) from None
        outputs: list[Val] = []
        for old, result in zip(expr.outputs, results, strict=True):
            if isinstance(old, TensorView) and result.domain is not None:
                new: Val = TensorView(name=old.name, dtype=result.dtype, domain=result.domain)
                self._learn(old, new)
            else:
                new = old
            self._new[old] = new
            outputs.append(new)
        return Expr(op=expr.op, inputs=inputs, outputs=tuple(outputs), attrs=tuple(attrs.items()))

    def _learn(self, old: TensorView, new: Val) -> None:
        if isinstance(new, TensorView):
            for before, after in zip(old.extents, new.extents, strict=True):
                if isinstance(before, Scalar) and isinstance(after, int):
                    self._sizes.setdefault(before.name, after)

    def _fold(self, expr: Expr, inputs: list[Scalar], attrs: Mapping[str, AttrValue]) -> None:
        out = expr.outputs[0]
        arrays = [v.dtype.numpy.type(v.value) for v in inputs]
        number = OPS[expr.op.name].reference(*arrays, **attrs)
        value = out.dtype.numpy.type(number).item()
        self._new[out] = Scalar(name="", dtype=out.dtype, value=value)

    def _value(self, value: Val) -> Val:
        if isinstance(value, Scalar):
            return self._scalar(value)
        return self._new[value]

    def _scalar(self, value: Scalar) -> Scalar:
        if value.value is not None:
            return value
        if value.name in self._sizes:
            return Scalar(name="", dtype=value.dtype, value=self._sizes[value.name])
        new = self._new.get(value, value)
        return new if isinstance(new, Scalar) else value

    def _attr(self, value: AttrValue) -> AttrValue:
        if isinstance(value, tuple):
            return tuple(self._attr(v) for v in value)
        if not isinstance(value, Scalar):
            return value
        known = self._scalar(value)
        if known.value is None and known.name in self._scalars:
            return int(self._scalars[known.name].real)
        if known.value is None:
            msg = f"the size {value} depends on the scalar input {known.name}, whose value is not given."
            raise InputError(msg)
        return int(known.value.real)


def _has_plain_one(value: Val) -> bool:
    """Whether a tensor has an axis that happens to have size 1 but is no broadcast."""
    return isinstance(value, TensorView) and any(
        axis.visible_extent == 1 and not axis.is_broadcast for axis in value.domain.axes
    )

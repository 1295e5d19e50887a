"""From symbolic to known sizes: a fusion is inferred again for the sizes of given inputs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fuser_lab import ir
from fuser_lab.definition.axis_numbers import AxisNumbers
from fuser_lab.dtypes import narrow, number_of
from fuser_lab.errors import DefinitionError, InputError, VerificationError
from fuser_lab.ops import OPS
from fuser_lab.ops.registry import COPY
from fuser_lab.ops.rules import Result


def concretize(fusion: ir.Fusion, shapes: Mapping[str, tuple[int, ...]], scalars: Mapping[str, ir.Number]) -> ir.Fusion:
    """Return the fusion with every extent an int; names do not change.

    Parameters
    ----------
    fusion
        A definition, possibly with symbolic sizes.
    shapes
        Shape of each tensor input by name.
    scalars
        Values of scalar inputs by name. They are used only if a size or another attribute depends on them; as operands,
        scalar inputs remain symbolic, so the result is valid for other values.

    Raises
    ------
    InputError
        If the sizes contradict the definition or each other.
    """
    return _Concretizer(shapes, scalars).run(fusion)


class _Concretizer:
    """``_sizes`` and ``_values`` map symbols to values: those that shapes determine, and all that inputs determine."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], scalars: Mapping[str, ir.Number]) -> None:
        self._shapes = shapes
        self._axes = AxisNumbers()
        self._new: dict[ir.Val, ir.Val] = {}
        self._sizes: dict[str, int] = {}
        self._values: dict[str, ir.Number] = dict(scalars)
        self._orders: dict[str, tuple[int, ...]] = {}  # required of outputs
        self._returned: set[ir.TensorView] = set()
        self._fixed: set[ir.Val] = set()  # inputs, and outputs that are not just returned

    def run(self, fusion: ir.Fusion) -> ir.Fusion:
        self._orders = {tv.name: ir.allocation_of(ranks) for tv, ranks in fusion.stride_orders}
        inputs = tuple(self._input(value) for value in fusion.inputs)
        self._fixed = {*fusion.inputs, *fusion.hidden, *(v for pair in fusion.aliases for v in pair)}
        self._fixed.update(tv for tv, _ in fusion.stride_orders)
        self._returned = set(fusion.outputs)
        built = [new for expr in fusion.exprs for new in self._build(expr)]

        def tensor(old: ir.TensorView) -> ir.TensorView:
            new = self._new[old]
            if not isinstance(new, ir.TensorView):
                raise TypeError(new)
            return new

        outputs = tuple(tensor(tv) for tv in fusion.outputs)
        return ir.Fusion(
            inputs=inputs,
            # Not arithmetic for sizes, nor operands of what zeros replace.
            exprs=ir.needed_exprs(built, outputs),
            outputs=outputs,
            aliases=tuple((tensor(a), tensor(b)) for a, b in fusion.aliases),
            hidden=frozenset(tensor(tv) for tv in fusion.hidden),
            stride_orders=tuple((tensor(tv), ranks) for tv, ranks in fusion.stride_orders),
        )

    def _input(self, value: ir.Val) -> ir.Val:
        if isinstance(value, ir.Scalar):
            self._new[value] = value
            return value
        shape = self._shapes[value.name]
        axes: list[ir.IterDomain] = []
        for position, (axis, size) in enumerate(zip(value.domain.logical, shape, strict=True)):
            self._bind(value, position, axis.visible_extent, size)
            expanded = None if axis.expanded is None or size == 1 else size
            # Axes of size 1 of an empty tensor broadcast, as do those of the `full` that replaces it.
            broadcasts = axis.is_broadcast or (size == 1 and 0 in shape)
            kind = ir.IterType.BROADCAST if broadcasts else ir.IterType.ITERATION
            axes.append(self._axes.fresh(1 if broadcasts else size, kind, expanded))
        domain = ir.TensorDomain(logical=tuple(axes), allocation=value.domain.allocation)
        if value.domain.contiguity is not None:
            places = zip(domain.allocation_order, value.domain.contiguity, strict=True)
            flags = (None if axes[place].is_broadcast else flag for place, flag in places)
            domain = replace(domain, contiguity=tuple(flags))
        new = ir.TensorView(name=value.name, dtype=value.dtype, domain=domain, is_cpu=value.is_cpu)
        self._new[value] = new
        return new

    def _bind(self, tensor: ir.TensorView, position: int, extent: ir.Extent, size: int) -> None:
        bound = self._sizes.setdefault(extent.name, size) if isinstance(extent, ir.Scalar) else extent
        if bound != size:
            msg = f"{tensor.name} has size {size} on axis {position}; the fusion was defined for {bound} there."
            raise InputError(msg)

    def _build(self, expr: ir.Expr) -> list[ir.Expr]:
        """Return what nvFuser's builder makes of a call: mostly the expression, and others for calls that do less."""
        bound = self._expr(expr)
        if bound is None:
            return []
        builds = OPS[bound.op.name].builds
        steps = builds(expr, bound) if builds is not None and bound.tensor_inputs else None
        if steps is None:
            return [bound]
        operand = bound.tensor_inputs[0]
        if not steps:
            if not self._must_copy(expr):
                self._new[expr.out] = operand
                return []
            steps = COPY
        made: list[ir.Expr] = []
        for place, step in enumerate(steps, 1):
            inputs = (operand if step.fill is None else step.fill,)
            (result,) = OPS[step.op].infer(inputs, dict(step.attrs), self._axes)
            if place == len(steps):
                part = self._tensor(expr.tensor_outputs[0], result)
            else:
                name = f"{bound.out.name}_{step.suffix}"
                part = ir.TensorView(name=name, dtype=result.dtype, domain=_domain_of(result))
            made.append(ir.Expr(op=OPS[step.op], inputs=inputs, outputs=(part,), attrs=step.attrs))
            operand = part
        return made

    def _must_copy(self, expr: ir.Expr) -> bool:
        """Whether an output that equals its operand stays a tensor of its own."""
        return expr.out in self._returned and not self._fixed.isdisjoint((expr.out, expr.inputs[0]))

    def _expr(self, expr: ir.Expr) -> ir.Expr | None:
        inputs = tuple(self._value(v) for v in expr.inputs)
        attrs = {key: self._attr(value) for key, value in expr.attrs}
        if not expr.tensor_outputs and self._fold(expr, [v for v in inputs if isinstance(v, ir.Scalar)], attrs):
            return None
        try:
            results = OPS[expr.op.name].infer(inputs, attrs, self._axes)
        except (DefinitionError, VerificationError) as error:
            msg = f"these inputs do not fit the fusion at {expr.name}: {error}"
            if any(_has_plain_one(v) for v in inputs):
                msg = (
                    f"{msg.removesuffix('.')} (an axis declared -1 does not broadcast, even if its size is 1; it "
                    "has to be declared 1)."
                )
            raise InputError(msg) from None
        outputs: list[ir.Val] = []
        for old, result in zip(expr.outputs, results, strict=True):
            if isinstance(old, ir.TensorView):
                outputs.append(self._tensor(old, result))
            else:
                self._new[old] = old
                outputs.append(old)
        return ir.Expr(op=expr.op, inputs=inputs, outputs=tuple(outputs), attrs=tuple(attrs.items()))

    def _tensor(self, old: ir.TensorView, result: Result) -> ir.TensorView:
        order, domain = self._orders.get(old.name), _domain_of(result)
        if order is not None:
            domain = replace(domain, allocation=order)
        new = ir.TensorView(name=old.name, dtype=result.dtype, domain=domain)
        self._learn(old, new)
        self._new[old] = new
        return new

    def _learn(self, old: ir.TensorView, new: ir.TensorView) -> None:
        for before, after in zip(old.extents, new.extents, strict=True):
            if isinstance(before, ir.Scalar) and isinstance(after, int):
                self._sizes.setdefault(before.name, after)

    def _fold(self, expr: ir.Expr, inputs: list[ir.Scalar], attrs: Mapping[str, ir.AttrValue]) -> bool:
        """Compute scalar results as far as inputs are known; return whether the expression became constants."""
        numbers = [self._number(v) for v in inputs]
        if any(number is None for number in numbers):
            return False
        arrays = [
            number_of(n, v.dtype).astype(v.dtype.compute.numpy)
            for v, n in zip(inputs, numbers, strict=True) if n is not None
        ]
        with np.errstate(all="ignore"):
            results = OPS[expr.op.name].reference(*arrays, **attrs)
        constant = all(v.value is not None for v in inputs)
        for out, result in zip(expr.outputs, results if isinstance(results, tuple) else (results,), strict=True):
            number = _as_number(result, out)
            self._values[out.name] = number
            if constant:
                self._new[out] = ir.Scalar(name="", dtype=out.dtype, value=number)
        return constant

    def _number(self, value: ir.Scalar) -> ir.Number | None:
        """Return the value of a symbol, None if inputs do not determine it."""
        if value.value is not None:
            return value.value
        return self._sizes.get(value.name, self._values.get(value.name))

    def _value(self, value: ir.Val) -> ir.Val:
        if isinstance(value, ir.Scalar):
            return self._scalar(value)
        return self._new[value]

    def _scalar(self, value: ir.Scalar) -> ir.Scalar:
        if value.value is not None:
            return value
        if value.name in self._sizes:
            return ir.Scalar(name="", dtype=value.dtype, value=self._sizes[value.name])
        new = self._new.get(value, value)
        return new if isinstance(new, ir.Scalar) else value

    def _attr(self, value: ir.AttrValue) -> ir.AttrValue:
        if isinstance(value, tuple):
            return tuple(self._attr(v) for v in value)
        if not isinstance(value, ir.Scalar):
            return value
        number = self._number(value)
        if number is None:
            raise InputError(f"a size depends on {value}, whose value is not given.")
        return int(number.real) if value.dtype.is_integral else number


def _domain_of(result: Result) -> ir.TensorDomain:
    if result.domain is None:
        raise TypeError(result)
    return result.domain


def _as_number(result: Any, out: ir.Val) -> ir.Number:
    with np.errstate(all="ignore"):
        array = narrow(np.asarray(result), out.dtype)
    if out.dtype.is_complex:
        return complex(array)
    if out.dtype.is_float:
        return float(array)
    return bool(array) if array.dtype == np.bool_ else int(array)


def _has_plain_one(value: ir.Val) -> bool:
    """Whether a tensor has an axis that happens to have size 1 but is not a broadcast."""
    return isinstance(value, ir.TensorView) and any(
        axis.visible_extent == 1 and not axis.is_broadcast for axis in value.domain.axes
    )

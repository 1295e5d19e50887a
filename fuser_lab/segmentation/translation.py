"""A segment defined again: its expressions in a separate definition, symbolic where the whole definition is."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.dtypes import DataType
from fuser_lab.errors import VerificationError
from fuser_lab.ir import (
    AttrValue,
    Expr,
    Extent,
    Scalar,
    TensorView,
    Val,
    scalars_in,
    stride_order_of,
)
from fuser_lab.ops import OPS
from fuser_lab.segmentation.graph import SegmentedGroup
from fuser_lab.segmentation.lifting import Lifting, seeds_in


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """An expression to define, and for each of its results the name in the segment and extents in the definition."""

    expr: Expr
    results: tuple[tuple[str, tuple[Extent, ...]], ...]


class Translation:
    """Defines groups of a segmented fusion in definitions that are open and empty.

    Parameters
    ----------
    lifting
        The segmented fusion and its definition.
    target
        Where to define one group.
    orders
        Stride orders to require of tensors that the group writes, by name: the rank of each axis counted from the
        fastest.
    """

    def __init__(self, lifting: Lifting, target: FusionBuilder, orders: Mapping[str, tuple[int, ...]]) -> None:
        self._lifting = lifting
        self._definition = lifting.definition
        self._target = target
        self._orders = orders
        self._new: dict[str, Val] = {}
        self._seeds = seeds_in(lifting.definition, lifting.segmented.fusion)
        self._is_symbolic = not lifting.definition.is_concrete

    def run(self, group: SegmentedGroup) -> list[tuple[Val, Val]]:
        """Return the pairs (new, old) of inputs and outputs."""
        steps = [self._step(expr) for expr in group.exprs if expr.tensor_outputs]
        pairs: list[tuple[Val, Val]] = [(self._input(tensor), tensor) for tensor in group.tensor_inputs]
        made: set[str] = set()
        for step in steps:
            scalars = (s for s in self._leaves(step.expr) if s.name not in self._new and s.name not in made)
            pairs.extend((self._scalar_input(scalar), scalar) for scalar in scalars)
            made.update(e.name for _, extents in step.results for e in extents if isinstance(e, Scalar))
        for step in steps:
            self._emit(step.expr, step.results)
        for tensor in group.outputs:
            new = self._tensor(tensor)
            self._target.add_output(self._target.wrap(new))
            if tensor.name in self._orders:
                self._target.set_output_stride_order(self._target.wrap(new), self._orders[tensor.name])
            pairs.append((new, tensor))
        return pairs

    def _step(self, expr: Expr) -> _Step:
        """Return an expression of a group with the definition's own sizes and scalars.

        Expressions created by passes or the segmenter are copied unchanged, but without their own seed.
        """
        results = tuple((tv.name, self._lifting.extents(tv) or ()) for tv in expr.tensor_outputs)
        old = self._lifting.original(expr)
        if old is None:
            inputs = tuple(v for v in expr.inputs if isinstance(v, TensorView) or v.name not in self._seeds)
            return _Step(expr=Expr(op=expr.op, inputs=inputs, outputs=expr.outputs, attrs=expr.attrs), results=results)
        pairs = zip(expr.inputs[: len(old.inputs)], old.inputs, strict=True)
        inputs = tuple(new if isinstance(new, TensorView) else symbolic for new, symbolic in pairs)
        return _Step(expr=Expr(op=old.op, inputs=inputs, outputs=expr.outputs, attrs=old.attrs), results=results)

    def _leaves(self, expr: Expr) -> Iterator[Scalar]:
        """Yield the scalars that must be passed to the segment for an expression."""
        operands = (v for v in expr.inputs if isinstance(v, Scalar) and v.value is None)
        waiting = [*operands, *(s for s in scalars_in(value for _, value in expr.attrs) if s.value is None)]
        for scalar in waiting:
            maker = self._definition.producers.get(scalar)
            if maker is not None:
                waiting += [v for v in maker.inputs if isinstance(v, Scalar) and v.value is None]
            else:
                yield scalar

    def _input(self, tensor: TensorView) -> Val:
        """Define an input for a tensor that the segment reads."""
        extents = self._lifting.extents(tensor)
        domain = tensor.domain
        shape: list[int] = []
        for axis, extent in zip(domain.axes, extents or tensor.extents, strict=True):
            plain_broadcast = axis.is_broadcast and axis.expanded is None
            fixed = extents is not None or not self._is_symbolic
            shape.append(1 if plain_broadcast else extent if fixed and isinstance(extent, int) else -1)
        order = domain.allocation_order
        if domain.contiguity is not None:
            contiguity = list(domain.contiguity)
        else:
            contiguity = [None if domain.axes[axis].is_broadcast else True for axis in order]
        handle = self._target.define_tensor(
            shape=shape, contiguity=contiguity, dtype=tensor.dtype, is_cpu=tensor.is_cpu,
            stride_order=() if domain.allocation is None else stride_order_of(domain.allocation),
        )
        self._learn(tensor.name, extents or (), handle.val)
        return handle.val

    def _scalar_input(self, scalar: Scalar) -> Val:
        new = self._target.define_scalar(None, dtype=scalar.dtype).val
        self._new[scalar.name] = new
        return new

    def _learn(self, name: str, extents: Sequence[Extent], new: TensorView) -> None:
        """Record the translation of a tensor, and its sizes."""
        self._new[name] = new
        for before, after in zip(extents, new.extents, strict=bool(extents)):
            if isinstance(before, Scalar):
                self._new.setdefault(before.name, _as_scalar(after))

    def _emit(self, expr: Expr, results: Sequence[tuple[str, tuple[Extent, ...]]]) -> None:
        attrs = {name: self._attribute(value) for name, value in expr.attrs}
        values = self._target.emit(OPS[expr.op.name], [self._value(v) for v in expr.inputs], **attrs)
        extents = dict(results)
        for old, new in zip(expr.outputs, values, strict=True):
            if isinstance(new, TensorView):
                self._learn(old.name, extents.get(old.name, ()), new)
            else:
                self._new[old.name] = new

    def _tensor(self, tensor: TensorView) -> TensorView:
        new = self._new[tensor.name]
        if not isinstance(new, TensorView):
            raise TypeError(new)
        return new

    def _value(self, value: Val) -> Val:
        return self._new[value.name] if isinstance(value, TensorView) else self._scalar(value)

    def _scalar(self, scalar: Scalar) -> Scalar:
        if scalar.value is not None:
            return scalar
        maker = self._definition.producers.get(scalar)
        if scalar.name not in self._new and maker is not None:
            for part in _makers(maker, self._definition.producers):
                if part.name not in self._new:
                    self._emit(part, ())
        new = self._new.get(scalar.name)
        if not isinstance(new, Scalar):
            msg = f"a segment reads {scalar}, which is not passed to it."
            raise VerificationError(msg)
        return new

    def _attribute(self, value: AttrValue) -> AttrValue:
        if isinstance(value, tuple):
            return tuple(self._attribute(part) for part in value)
        if not isinstance(value, Scalar):
            return value
        new = self._scalar(value)
        return new if new.value is None else int(new.value.real) if new.dtype.is_integral else new.value


def _makers(expr: Expr, producers: Mapping[Val, Expr]) -> list[Expr]:
    """Return the scalar arithmetic of an expression and the expression itself, in order."""
    makers: dict[Expr, None] = {}
    waiting = [expr]
    while waiting:
        here = waiting.pop()
        makers.pop(here, None)
        makers[here] = None
        waiting += [producers[v] for v in here.inputs if isinstance(v, Scalar) and v in producers]
    return list(makers)[::-1]


def _as_scalar(extent: Extent) -> Scalar:
    return extent if isinstance(extent, Scalar) else Scalar(name="", dtype=DataType.Int, value=extent)

"""How a pass rewrites a fusion: expression by expression, in order, with new axes and names."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count

from fuser_lab.errors import VerificationError
from fuser_lab.ir import AttrValue, Expr, Extent, Fusion, IterDomain, IterType, Scalar, TensorDomain, TensorView, Val
from fuser_lab.ir.domain import Merge, Split
from fuser_lab.ir.expr import needed_exprs
from fuser_lab.ops import OPS
from fuser_lab.ops.rules import AxisFactory


class Axes:
    """Numbers new axes after those of a fusion."""

    def __init__(self, fusion: Fusion) -> None:
        numbers = (axis.id for tensor in fusion.tensors.values() for axis in _axes_of(tensor.domain))
        self._numbers = count(max(numbers, default=-1) + 1)

    def fresh(
        self, extent: Extent, kind: IterType = IterType.ITERATION, expanded: Extent | None = None,
    ) -> IterDomain:
        """Return a new axis."""
        return IterDomain(id=next(self._numbers), extent=extent, kind=kind, expanded=expanded)

    def copy(self, axis: IterDomain) -> IterDomain:
        """Return a new axis with the extent, kind and expansion of another."""
        return self.fresh(axis.extent, axis.kind, axis.expanded)

    def symbol(self) -> Scalar:
        """Raise: passes run after all sizes are known, so no rule may request an unknown one."""
        raise VerificationError("a concretized fusion has no unknown sizes.")


def _axes_of(domain: TensorDomain) -> Iterator[IterDomain]:
    yield from domain.logical
    yield from domain.root or ()
    for step in domain.transforms:
        if isinstance(step, Merge):
            yield step.result
        elif isinstance(step, Split):
            yield from (step.outer, step.inner)
        else:
            yield step.result


class Rewriter:
    """Collects the expressions of the fusion that a pass returns.

    Readers of a replaced value read its replacement. Unchanged values keep their names; a new one is named after the
    value that it serves, such as ``T3_hint``.
    """

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self.exprs: list[Expr] = []
        self.makers: dict[Val, Expr] = {}
        self._replaced: dict[Val, TensorView] = {}
        self._axes: Axes | None = None
        self._required = {tensor.name: tensor.domain.allocation for tensor, _ in fusion.stride_orders}
        self._taken = {*fusion.tensors, *(v.name for v in fusion.inputs)}

    def now(self, value: Val) -> Val:
        """Return the replacement of a value of the original fusion."""
        return self._replaced.get(value, value)

    def tensor(self, value: TensorView) -> TensorView:
        """Return the replacement of a tensor of the original fusion."""
        return self._replaced.get(value, value)

    def replace(self, old: TensorView, new: TensorView) -> None:
        """Let later expressions read another tensor."""
        self._replaced[old] = new

    def reading(self, expr: Expr) -> Expr:
        """Return an expression with its current operands."""
        inputs = tuple(self.now(v) for v in expr.inputs)
        if inputs == expr.inputs:
            return expr
        return Expr(op=expr.op, inputs=inputs, outputs=expr.outputs, attrs=expr.attrs)

    def keep(self, expr: Expr) -> Expr:
        """Add an expression with its current operands, and return it."""
        rewritten = self.reading(expr)
        self._add(rewritten)
        return rewritten

    def _add(self, expr: Expr) -> None:
        self.exprs.append(expr)
        self.makers.update((value, expr) for value in expr.outputs)

    def new_name(self, base: str, suffix: str) -> str:
        """Return a name for a new value."""
        name = f"{base}_{suffix}"
        for number in count(2):
            if name not in self._taken:
                break
            name = f"{base}_{suffix}{number}"
        self._taken.add(name)
        return name

    def emit(self, name: str, op: str, *inputs: Val, **attrs: AttrValue) -> TensorView:
        """Add ``name = op(inputs)`` and return the result; ``name`` is new, or that of a recomputed value."""
        return self._emit(name, op, inputs, attrs, None)

    def remake(self, old: TensorView, op: str, *inputs: Val, **attrs: AttrValue) -> TensorView:
        """Add ``old = op(inputs)`` in place of the producer of ``old``, with the same name and memory order."""
        new = self._emit(old.name, op, inputs, attrs, old.domain.allocation)
        self.replace(old, new)
        return new

    def copy(self, name: str, op: str, source: TensorView, order: tuple[int, ...] | None = None) -> TensorView:
        """Add a copy, by ``set`` or ``segment_set``, in a memory order, by default that of the operand."""
        return self._emit(name, op, (source,), {}, order or source.domain.allocation)

    def _emit(
        self, name: str, op: str, inputs: tuple[Val, ...], attrs: dict[str, AttrValue], order: tuple[int, ...] | None,
    ) -> TensorView:
        if self._axes is None:
            self._axes = Axes(self.fusion)
        out = result_named(name, op, inputs, attrs, self._axes)
        required = self._required.get(name)
        if required is not None:
            out = replace(out, domain=replace(out.domain, allocation=required))
        elif order is not None:
            out = replace(out, domain=replace(out.domain, allocation=order, contiguity=None))
        self._add(Expr(op=OPS[op], inputs=inputs, outputs=(out,), attrs=tuple(attrs.items())))
        return out

    def fill(self, old: TensorView, value: Scalar) -> None:
        """Add ``old = full(value)`` in place of the producer of ``old``, with the same axes."""
        domain = TensorDomain(logical=old.domain.axes, allocation=old.domain.allocation)
        new = TensorView(name=old.name, dtype=old.dtype, domain=domain)
        attrs = (("shape", old.shape), ("dtype", old.dtype))
        self._add(Expr(op=OPS["full"], inputs=(value,), outputs=(new,), attrs=attrs))
        self.replace(old, new)

    def redo(self, expr: Expr, made: Mapping[Val, TensorView]) -> None:
        """Add an expression with some results replaced by tensors of another name or memory order."""
        current = self.reading(expr)
        outputs = tuple(made.get(value, value) for value in expr.outputs)
        self._add(Expr(op=current.op, inputs=current.inputs, outputs=outputs, attrs=current.attrs))
        for value in expr.tensor_outputs:
            if value in made:
                self.replace(value, made[value])

    def fusion_of(self, outputs: Mapping[TensorView, TensorView] | None = None) -> Fusion:
        """Return the fusion of the collected expressions, without those that no output needs.

        ``outputs`` maps outputs to the tensors returned in their place; all others follow their replacements.
        """
        final = outputs or {}
        fusion = self.fusion

        def result(tensor: TensorView) -> TensorView:
            return final.get(tensor) or self.tensor(tensor)

        new = Fusion(
            inputs=fusion.inputs,
            exprs=tuple(self.exprs),
            outputs=tuple(map(result, fusion.outputs)),
            aliases=tuple((result(a), b) for a, b in fusion.aliases),
            hidden=frozenset(map(result, fusion.hidden)),
            stride_orders=tuple((result(tv), ranks) for tv, ranks in fusion.stride_orders),
            keeps_float=fusion.keeps_float,
        )
        live = needed_exprs(new.exprs, new.outputs)
        if len(live) == len(new.exprs):
            return new
        return replace(new, exprs=live)


def result_named(
    name: str, op: str, inputs: tuple[Val, ...], attrs: Mapping[str, AttrValue], axes: AxisFactory,
) -> TensorView:
    """Return the tensor of this name that an op returns."""
    (result,) = OPS[op].infer(inputs, attrs, axes)
    if result.domain is None:
        raise VerificationError(f"{op} of {name} is a scalar, but a tensor is required.")
    return TensorView(name=name, dtype=result.dtype, domain=result.domain)


def in_memory_order(domain: TensorDomain, order: tuple[int, ...]) -> TensorDomain:
    """Return a domain that is dense in ``order``, slowest axis first."""
    natural = order == tuple(range(len(domain.axes)))
    return TensorDomain(
        logical=domain.logical, root=domain.root, transforms=domain.transforms, allocation=None if natural else order,
    )

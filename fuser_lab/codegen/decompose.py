"""Reductions with several results, written as reductions that kernels know."""

from itertools import count
from math import prod

from fuser_lab.dtypes import DataType
from fuser_lab.errors import CodegenError
from fuser_lab.ir import (
    AttrValue,
    Expr,
    Extent,
    Fusion,
    IterDomain,
    IterType,
    OpKind,
    Scalar,
    TensorDomain,
    TensorView,
    Val,
)
from fuser_lab.ops import OPS


def decompose(fusion: Fusion) -> Fusion:
    """Return the fusion with each Welford as a mean and a sum of squared deviations from it.

    ``avg, var, n = welford(x)`` -> ``avg = sum(x) / n; var = sum((x - avg)**2); n = full(...)``. The results keep their
    names, so that everything around finds them. Two passes round less than a running update does, and all that is
    known of sums (rows kept between passes, partial sums) serves.
    """
    if not any(expr.op.name == "welford" for expr in fusion.exprs):
        return fusion
    return _Decomposition(fusion).run(fusion)


def welford_of(fusion: Fusion) -> dict[str, str]:
    """Return for each expression that `decompose` makes the name of the Welford that it comes from."""
    origins: dict[str, str] = {}
    known = {expr.name for expr in fusion.exprs}
    for expr in fusion.exprs:
        if expr.op.name == "welford":
            origins.update((f"{expr.name}_{part}", expr.name) for part in _PARTS)
            origins[f"{expr.outputs[2].name}_once"] = expr.name
            origins.update((out.name, expr.name) for out in expr.outputs if out.name not in known)
    return origins


_PARTS = ("wide", "total", "mean", "placed", "deviation", "square", "squares")


class _Axes:
    """Numbers new axes after those of a fusion."""

    def __init__(self, fusion: Fusion) -> None:
        taken = [axis.id for tv in fusion.tensors.values() for axis in (*tv.domain.logical, *(tv.domain.root or ()))]
        taken += [axis.id for tv in fusion.tensors.values() for t in tv.domain.transforms for axis in _made(t)]
        self._numbers = count(max(taken, default=-1) + 1)

    def fresh(
        self, extent: Extent, kind: IterType = IterType.ITERATION, expanded: Extent | None = None,
    ) -> IterDomain:
        return IterDomain(id=next(self._numbers), extent=extent, kind=kind, expanded=expanded)

    def copy(self, axis: IterDomain) -> IterDomain:
        return self.fresh(axis.extent, axis.kind, axis.expanded)

    def symbol(self) -> Scalar:
        msg = "a segment has no sizes that are unknown."
        raise CodegenError(msg)


def _made(transform: object) -> list[IterDomain]:
    found = (getattr(transform, name, None) for name in ("outer", "inner", "result", "source"))
    return [axis for axis in found if isinstance(axis, IterDomain)]


class _Decomposition:
    def __init__(self, fusion: Fusion) -> None:
        self._axes = _Axes(fusion)
        self._exprs: list[Expr] = []
        self._new: dict[Val, Val] = {}
        self._results: dict[str, TensorView] = {}

    def run(self, fusion: Fusion) -> Fusion:
        for expr in fusion.exprs:
            inputs = tuple(self._new.get(v, v) for v in expr.inputs)
            if expr.op.name == "welford":
                self._welford(expr, inputs[0])
            else:
                self._exprs.append(Expr(op=expr.op, inputs=inputs, outputs=expr.outputs, attrs=expr.attrs))
        return Fusion(
            inputs=fusion.inputs,
            exprs=tuple(self._exprs),
            outputs=tuple(self._tensor(self._new.get(tv, tv)) for tv in fusion.outputs),
            aliases=tuple((self._tensor(self._new.get(a, a)), b) for a, b in fusion.aliases),
            hidden=frozenset(self._tensor(self._new.get(tv, tv)) for tv in fusion.hidden),
        )

    def _emit(self, name: str, op: str, *inputs: Val, **attrs: AttrValue) -> TensorView:
        (result,) = OPS[op].infer(inputs, attrs, self._axes)
        if result.domain is None:
            msg = f"{op} of {name} is a scalar; a tensor is needed here."
            raise CodegenError(msg)
        # Results keep the layout, and the axes that are stored, that everything around counts with.
        kept, domain = self._results.get(name), result.domain
        if kept is not None:
            logical = kept.domain.logical if OPS[op].kind is OpKind.REDUCTION else kept.domain.axes
            domain = TensorDomain(logical=logical, allocation=kept.domain.allocation)
        out = TensorView(name=name, dtype=result.dtype, domain=domain)
        self._exprs.append(Expr(op=OPS[op], inputs=inputs, outputs=(out,), attrs=tuple(attrs.items())))
        return out

    def _welford(self, expr: Expr, operand: Val) -> None:
        x, dims = self._tensor(operand), expr.ints("dims")
        avg, var, number = expr.outputs
        self._results |= {tv.name: tv for tv in expr.tensor_outputs}
        base, dtype = expr.name, x.dtype
        flags = tuple(i in dims for i in range(x.ndim))
        elements = prod(x.shape[d] for d in dims)
        if dtype.is_reduced_float:
            # One rounding per result: everything between is Float.
            x = self._emit(f"{base}_wide", "cast", x, dtype=DataType.Float)
        wide = x.dtype
        number_of = Scalar(name="", dtype=wide, value=float(elements))
        narrow = wide is not dtype
        total = self._emit(f"{base}_total", "sum", x, dims=dims)
        mean = self._emit(f"{base}_mean" if narrow else avg.name, "truediv", total, number_of)
        placed = self._emit(f"{base}_placed", "broadcast", mean, is_broadcast_dim=flags)
        deviation = self._emit(f"{base}_deviation", "sub", x, placed)
        square = self._emit(f"{base}_square", "mul", deviation, deviation)
        squares = self._emit(f"{base}_squares" if narrow else var.name, "sum", square, dims=dims)
        self._new[avg] = self._emit(avg.name, "cast", mean, dtype=dtype) if narrow else mean
        self._new[var] = self._emit(var.name, "cast", squares, dtype=dtype) if narrow else squares
        self._new[number] = self._number(number, elements)

    def _number(self, number: Val, elements: int) -> TensorView:
        """Return how many elements there are at each result; an axis that only repeats is not stored."""
        result = self._tensor(number)
        value = Scalar(name="", dtype=DataType.Int, value=elements)
        if result.stored_shape == result.shape:
            return self._emit(result.name, "full", value, shape=result.shape, dtype=DataType.Int)
        once = self._emit(f"{result.name}_once", "full", value, shape=result.stored_shape, dtype=DataType.Int)
        return self._emit(result.name, "expand", once, shape=result.shape)

    @staticmethod
    def _tensor(value: Val) -> TensorView:
        if isinstance(value, TensorView):
            return value
        msg = f"{value} is a scalar; a tensor is needed here."
        raise CodegenError(msg)

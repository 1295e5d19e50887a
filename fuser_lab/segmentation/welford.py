"""Welford's statistics as plain sums: the formula, and the condition for rewriting a segment.

nvFuser rewrites a Welford if the rows stay on chip between two passes over them. Kernels of all other Welfords compute
the same formula (`fuser_lab.codegen.decompose`), so it is defined only here.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from math import prod

from fuser_lab.cost.rules import follows
from fuser_lab.cost.verdict import Answer, SchedulerType
from fuser_lab.dtypes import DataType
from fuser_lab.errors import VerificationError
from fuser_lab.ir import AttrValue, Expr, Fusion, OpKind, Scalar, TensorDomain, TensorView, Val
from fuser_lab.ops import OPS
from fuser_lab.passes.rewriter import Axes, result_named
from fuser_lab.segmentation.oracle import Candidate, SchedulerOracle, candidate

PERSISTENT = frozenset(
    {SchedulerType.INNER_PERSISTENT, SchedulerType.OUTER_PERSISTENT, SchedulerType.INNER_OUTER_PERSISTENT},
)


def welfords(exprs: Iterable[Expr], fusion: Fusion) -> tuple[Expr, ...]:
    """Return the Welfords among expressions whose mean or squares are read."""
    return tuple(e for e in exprs if e.op.name == "welford" and any(_is_used(tv, fusion) for tv in e.outputs[:2]))


def _is_used(value: Val, fusion: Fusion) -> bool:
    return bool(fusion.users.get(value)) or value in fusion.outputs


@follows("fusion_segmenter", "TranslateApplicableWelford::wouldTranslateToPersistent", 2508, 2606)
def rewrite_answer(group: Candidate, oracle: SchedulerOracle) -> Answer:
    """Return the schedulers' answer about a copy of a group whose Welfords are sums.

    The copy also returns means and squares that nothing reads yet: a later merge may read them, and the answer must not
    depend on that. A count that is read is a constant that does not depend on the sums, so no scheduler that keeps rows
    accepts both, and such a Welford is not rewritten.
    """
    welford_exprs = welfords(group.exprs, group.fusion)
    moments = (tv for expr in welford_exprs for tv in expr.tensor_outputs[:2])
    exposed = tuple(dict.fromkeys((*group.outputs, *moments)))
    whole = Fusion(
        inputs=group.inputs, exprs=group.exprs, outputs=exposed, keeps_float=group.fusion.keeps_float,
    )
    copy = written_out(whole, {e.name for e in welford_exprs})
    return oracle.ask(candidate(copy, copy.tensor_exprs))


@follows("fusion_segmenter", "TranslateApplicableWelford::isValidPersistentFusion", 2474, 2504)
def keeps_rows(answer: Answer) -> bool:
    """Whether the accepting scheduler keeps the reduced tensor on chip without reductions across blocks of the grid."""
    return answer.chosen in PERSISTENT and answer.verdicts[-1].persistent and not answer.verdicts[-1].cross_grid


def written_out(fusion: Fusion, names: Collection[str]) -> Fusion:
    """Return the fusion with the Welfords of these names as a mean and a sum of squared deviations from it.

    ``avg, var, n = welford(x)`` -> ``avg = sum(x) / n; var = sum((x - avg)**2); n = full(...)``. The results keep their
    names, so their readers do not change; an unused result is not computed. If the fusion already broadcasts the mean,
    deviations use that broadcast. Two passes have smaller rounding errors than a running update, and everything
    implemented for sums (rows kept between passes, partial sums) applies.
    """
    if not any(expr.op.name == "welford" and expr.name in names for expr in fusion.exprs):
        return fusion
    return _Writer(fusion).run(names)


@dataclass(frozen=True, slots=True)
class _UsedResults:
    """Which of a Welford's results are used."""

    avg: bool
    var: bool
    number: bool


class _Writer:
    def __init__(self, fusion: Fusion) -> None:
        self._fusion = fusion
        self._axes = Axes(fusion)
        self._exprs: list[Expr] = []
        self._new: dict[Val, Val] = {}
        self._results: dict[str, TensorView] = {}
        self._early: set[Expr] = set()

    def run(self, names: Collection[str]) -> Fusion:
        fusion = self._fusion
        for expr in fusion.exprs:
            inputs = tuple(self._new.get(v, v) for v in expr.inputs)
            if expr.op.name == "welford" and expr.name in names:
                self._welford(expr, inputs[0])
            elif expr not in self._early:
                self._exprs.append(Expr(op=expr.op, inputs=inputs, outputs=expr.outputs, attrs=expr.attrs))
        return Fusion(
            inputs=fusion.inputs,
            exprs=tuple(self._exprs),
            outputs=tuple(map(self._now, fusion.outputs)),
            aliases=tuple((self._now(a), b) for a, b in fusion.aliases),
            hidden=frozenset(map(self._now, fusion.hidden)),
            stride_orders=tuple((self._now(tv), ranks) for tv, ranks in fusion.stride_orders),
            centered=tuple(map(self._now, fusion.centered)),
            keeps_float=fusion.keeps_float,
        )

    def _now(self, tensor: TensorView) -> TensorView:
        return self._tensor(self._new.get(tensor, tensor))

    def _emit(self, name: str, op: str, *inputs: Val, **attrs: AttrValue) -> TensorView:
        out, earlier = result_named(name, op, inputs, attrs, self._axes), self._results.get(name)
        if earlier is not None:  # results keep their layout and stored axes, on which their readers rely
            logical = earlier.domain.logical if OPS[op].kind is OpKind.REDUCTION else earlier.domain.axes
            out = replace(out, domain=TensorDomain(logical=logical, allocation=earlier.domain.allocation))
        self._exprs.append(Expr(op=OPS[op], inputs=inputs, outputs=(out,), attrs=tuple(attrs.items())))
        return out

    def _welford(self, expr: Expr, operand: Val) -> None:
        x, dims = self._tensor(operand), expr.ints("dims")
        avg, var, number = expr.outputs
        used = _UsedResults(*(_is_used(value, self._fusion) for value in expr.outputs))
        self._results |= {tv.name: tv for tv in expr.tensor_outputs}
        base, dtype = expr.name, x.dtype
        elements = prod(x.shape[d] for d in dims)
        if used.number:
            self._new[number] = self._number(number, elements)
        if not (used.avg or used.var):
            return
        if dtype.is_reduced_float:
            # One rounding per result: everything between is Float.
            x = self._emit(f"{base}_wide", "cast", x, dtype=DataType.Float)
        number_of = Scalar(name="", dtype=x.dtype, value=float(elements))
        narrow = x.dtype is not dtype
        total = self._emit(f"{base}_total", "sum", x, dims=dims)
        mean = self._emit(f"{base}_mean" if narrow and used.avg else avg.name, "truediv", total, number_of)
        if used.avg:
            self._new[avg] = self._emit(avg.name, "cast", mean, dtype=dtype) if narrow else mean
        if not used.var:
            return
        placed = self._mean_at_elements(expr, mean, tuple(i in dims for i in range(x.ndim)))
        deviation = self._emit(f"{base}_deviation", "sub", x, placed)
        square = self._emit(f"{base}_square", "mul", deviation, deviation)
        squares = self._emit(f"{base}_squares" if narrow else var.name, "sum", square, dims=dims)
        self._new[var] = self._emit(var.name, "cast", squares, dtype=dtype) if narrow else squares

    def _mean_at_elements(self, welford: Expr, mean: TensorView, flags: tuple[bool, ...]) -> TensorView:
        """Return the mean at each element: an existing broadcast, moved up, or a new one."""
        avg = welford.outputs[0]
        if self._new.get(avg) is mean:
            for user in self._fusion.users.get(avg, ()):
                if user.op.name == "broadcast" and dict(user.attrs)["is_broadcast_dim"] == flags:
                    self._early.add(user)
                    self._exprs.append(Expr(op=user.op, inputs=(mean,), outputs=user.outputs, attrs=user.attrs))
                    return self._tensor(user.out)
        return self._emit(f"{welford.name}_placed", "broadcast", mean, is_broadcast_dim=flags)

    def _number(self, number: Val, elements: int) -> TensorView:
        """Return the number of elements per result; an axis that only repeats is not stored."""
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
        msg = f"{value} is a scalar, but a tensor is required."
        raise VerificationError(msg)


def in_fusion(fusion: Fusion, exprs: Iterable[Expr]) -> tuple[Expr, ...]:
    """Return expressions as they are in a rewritten fusion, by name."""
    return tuple(fusion.exprs[fusion.positions[expr.name]] for expr in exprs)

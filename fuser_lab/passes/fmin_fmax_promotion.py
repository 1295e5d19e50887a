"""FMinFMaxPromotion: maxima that may ignore NaN, since a sum of the same rows propagates it anyway.

nvFuser's pass of this name (csrc/preseg_passes/fmin_fmax_promotion.cpp). Which uses restore NaN is decided by our own,
conservative proof: in every output, a row with NaN must be all NaN before and after.
"""

from collections.abc import Container
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import ClassVar

from fuser_lab.ir import Expr, Fusion, OpKind, TensorView, Val
from fuser_lab.ops import OPS
from fuser_lab.passes.base import Pass, rebuilt


@dataclass(frozen=True, slots=True, kw_only=True)
class FMinFMaxPromotion(Pass):
    """``max(x) -> fmax(x)``, a single instruction that ignores NaN, if a sum over the same axes restores the NaN.

    In a softmax, for example, ``exp(x - max(x))`` keeps a NaN in its place, so the sum of that row is NaN, and so is
    everything divided by the sum. ``min`` is treated likewise. The op is unchanged if its result is an output, or if
    its readers are anything other than arithmetic that propagates NaN, casts between floats, broadcasts along the
    reduced axes and such sums.
    """

    name: ClassVar[str] = "fmin_fmax_promotion"
    nvfuser: ClassVar[str] = "FMinFMaxPromotion"
    example: ClassVar[str] = """
        x = fd.define_tensor([4, 6])
        most = fd.ops.max(x, [1], keepdim=True)
        exp = fd.ops.exp(fd.ops.sub(x, most))
        fd.add_output(fd.ops.truediv(exp, fd.ops.sum(exp, [1], keepdim=True)))
    """

    def run(self, fusion: Fusion) -> Fusion:
        """Return the fusion with every such maximum and minimum promoted."""
        candidates = [e for e in fusion.exprs if e.op.name in _PROMOTED]
        outputs = {tv.name for tv in fusion.outputs} if candidates else set()
        promoted = {e.name for e in candidates if _Rows(fusion, e).are_repaired(outputs)}
        if not promoted:
            return fusion
        exprs = [
            Expr(op=OPS[_PROMOTED[e.op.name]], inputs=e.inputs, outputs=e.outputs, attrs=e.attrs)
            if e.name in promoted else e
            for e in fusion.exprs
        ]
        return rebuilt(fusion, exprs)


_PROMOTED = {"max": "fmax", "min": "fmin"}
# Pointwise ops whose result is NaN wherever an operand is.
_HANDS_ON = frozenset(
    {"abs", "add", "cos", "exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "mul", "neg", "reciprocal", "rsqrt"}
    | {"sigmoid", "silu", "sin", "sqrt", "sub", "tanh", "truediv"},
)
# Ops whose operand is NaN wherever the result is.
_SAME_NAN = frozenset({"abs", "neg", "set"})


class _Rows:
    """Facts about each tensor, by name, in the rows in which the operand of one reduction has NaN.

    ``marked``: NaN at least where the operand is, with the promotion too. ``before`` and ``after``: NaN everywhere,
    without the promotion and with it. ``unlike`` are tensors that the promotion may change.
    """

    def __init__(self, fusion: Fusion, reduction: Expr) -> None:
        self._fusion, self._reduction = fusion, reduction
        self._operand = reduction.tensor_inputs[0]
        self._dims = reduction.ints("dims")
        self._flags = tuple(i in self._dims for i in range(self._operand.ndim))
        self._wide = self._operand.shape
        self._placed = tuple(1 if gone else n for n, gone in zip(self._wide, self._flags, strict=True))
        self._narrow = tuple(n for n, gone in zip(self._wide, self._flags, strict=True) if not gone)
        self._marked: set[str] = set()
        self._before: set[str] = {reduction.out.name}
        self._after: set[str] = set()
        self._unlike: set[str] = {reduction.out.name}

    def _sources(self) -> list[TensorView]:
        """Return the operand and the tensors that it is a cast or a similar op of, with NaN at the same positions."""
        sources = [self._operand]
        while (maker := self._fusion.producers.get(sources[-1])) is not None and _keeps_nan(maker):
            sources.append(maker.tensor_inputs[0])
        return sources

    def are_repaired(self, outputs: Container[str]) -> bool:
        """Whether the promotion changes no output."""
        if not _has_nan(self._operand):
            return False
        place = self._fusion.positions
        values = [*self._sources(), self._reduction.out]
        self._marked.update(value.name for value in values[:-1])
        waiting: list[int] = []  # readers of tensors with known facts, in the order of the fusion
        decisive: set[int] = set()  # those among them that read a tensor that the promotion may change
        seen = {place[self._reduction.name]}
        while True:
            for value in values:
                if value.name in self._unlike and value.name in outputs:
                    return False
                for user in self._fusion.users.get(value, ()):
                    here = place[user.name]
                    if value.name in self._unlike:
                        decisive.add(here)
                    if here not in seen:
                        seen.add(here)
                        heappush(waiting, here)
            if not decisive:
                return True
            here = heappop(waiting)
            decisive.discard(here)
            expr = self._fusion.exprs[here]
            if not self._follow(expr):
                return False
            classified = self._marked | self._before | self._after | self._unlike
            values = [tv for tv in expr.tensor_outputs if tv.name in classified]

    def _follow(self, expr: Expr) -> bool:
        """Derive facts about an expression; False if it reads a tensor that may change in an unknown way."""
        operands = {value.name for value in expr.tensor_inputs}
        touched = not self._unlike.isdisjoint(operands)
        if not self._is_understood(expr):
            return not touched
        name, wide = expr.name, expr.out.shape == self._wide
        if not self._marked.isdisjoint(operands):
            if expr.kind is OpKind.REDUCTION:
                self._after.add(name)
                if not touched:
                    self._before.add(name)
            elif wide:
                self._marked.add(name)
        if not self._before.isdisjoint(operands):
            self._before.add(name)
        if not self._after.isdisjoint(operands):
            self._after.add(name)
            if wide:
                self._marked.add(name)
        if touched and not (name in self._before and name in self._after):
            self._unlike.add(name)
        return True

    def _is_understood(self, expr: Expr) -> bool:
        """Whether an expression propagates NaN row by row: all its tensors are these rows, or one number per row."""
        if len(expr.outputs) != 1 or not expr.tensor_inputs or not _has_nan(expr.out):
            return False
        shapes = {tensor.shape for tensor in (*expr.tensor_inputs, *expr.tensor_outputs)}
        if expr.op.name == "sum":
            return expr.tensor_inputs[0].shape == self._wide and expr.ints("dims") == self._dims
        if expr.kind is OpKind.BROADCAST:
            return dict(expr.attrs)["is_broadcast_dim"] == self._flags and expr.out.shape == self._placed
        if expr.op.name in _HANDS_ON or expr.op.name in _SAME_NAN or _is_float_cast(expr):
            return shapes <= {self._wide, self._placed} or shapes == {self._narrow}
        return False


def _keeps_nan(expr: Expr) -> bool:
    return expr.op.name in _SAME_NAN or _is_float_cast(expr)


def _is_float_cast(expr: Expr) -> bool:
    return expr.op.name == "cast" and _has_nan(expr.inputs[0]) and _has_nan(expr.out)


def _has_nan(value: Val) -> bool:
    """Whether a dtype can represent NaN: some types of 8 bits and less cannot."""
    return value.dtype.is_float and value.dtype.itemsize > 1

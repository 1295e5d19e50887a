"""A small stand-in for a plan: fusions by hand, cut and glued without a segmenter."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any

from fuser_lab.dtypes import DataType
from fuser_lab.errors import IllegalEdit
from fuser_lab.ir import Expr, Fusion, IterDomain, OpKind, TensorDomain, TensorView
from fuser_lab.segmentation.events import Attempt, DecisionLog, Kind, Outcome, VerdictRecord

_IDS = itertools.count()


class StubScheduler(Enum):
    """A few scheduler types."""

    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    RESIZE = "resize"


@dataclass(frozen=True)
class StubOp:
    """An op with a name and a kind."""

    name: str
    kind: OpKind = OpKind.POINTWISE


@dataclass(frozen=True)
class StubVerdict:
    """One scheduler's answer."""

    scheduler: Any
    accepted: bool
    code: str
    text: str


@dataclass(frozen=True)
class StubWhy:
    """The reason why two values are together or separate."""

    text: str
    verdicts: tuple[StubVerdict, ...] = ()


@dataclass(frozen=True)
class StubSegment:
    """Expressions that one kernel computes."""

    index: int
    scheduler: Any
    exprs: tuple[Expr, ...]
    inputs: tuple[TensorView, ...]
    outputs: tuple[TensorView, ...]
    bytes_crossing: int = 0
    verdicts: tuple[StubVerdict, ...] = ()

    @property
    def bytes_in(self) -> int:
        """Bytes read."""
        return sum(t.nbytes for t in self.inputs)

    @property
    def bytes_out(self) -> int:
        """Bytes written."""
        return sum(t.nbytes for t in self.outputs)

    def source(self, target: str) -> str:
        """Return source text."""
        body = "\n".join(f"    {e.out.name} = {e.op.name}({', '.join(v.name for v in e.inputs)})" for e in self.exprs)
        return f'"""Segment {self.index}, {target}."""\n\n\ndef segment_{self.index}():\n{body}\n'


@dataclass(frozen=True)
class StubPlan:
    """Groups of expression names over a fusion."""

    fusion: Fusion
    groups: tuple[tuple[str, ...], ...]
    name: str = "plan"
    strategy: str = "bottom_up"
    refused: frozenset[int] = frozenset()
    log: DecisionLog = field(default_factory=DecisionLog)
    makers: tuple[tuple[str, Callable[[], StubPlan]], ...] = ()

    @property
    def hash(self) -> str:
        """A content hash."""
        return f"{hash(self.groups) & 0xFFFFFFFF:08x}"

    @property
    def decisions(self) -> DecisionLog:
        """Number of attempts."""
        return self.log

    @cached_property
    def segments(self) -> tuple[StubSegment, ...]:
        """Segments in order."""
        by_name = {e.name: e for e in self.fusion.exprs}
        made = {e.name: n for n, group in enumerate(self.groups) for e in map(by_name.__getitem__, group)}
        return tuple(self._segment(n, tuple(by_name[g] for g in group), made) for n, group in enumerate(self.groups))

    def _segment(self, index: int, exprs: tuple[Expr, ...], made: dict[str, int]) -> StubSegment:
        own = {e.name for e in exprs}
        inputs = dict.fromkeys(t for e in exprs for t in e.tensor_inputs if t.name not in own)
        read_elsewhere = {t for e in self.fusion.exprs if made.get(e.name) != index for t in e.tensor_inputs}
        outputs = [e.out for e in exprs if e.out in read_elsewhere or e.out in self.fusion.outputs]
        scheduler = StubScheduler.POINTWISE
        if any(e.kind is OpKind.REDUCTION for e in exprs):
            scheduler = StubScheduler.REDUCTION
        verdicts = (
            StubVerdict(StubScheduler.REDUCTION, False, "no_reduction", "No reduction in the segment."),
            StubVerdict(scheduler, True, "", "One reference tensor covers all outputs."),
        )
        if index in self.refused:
            verdicts = tuple(replace(v, accepted=False) for v in verdicts)
        return StubSegment(
            index, None if index in self.refused else scheduler, exprs, tuple(inputs), tuple(outputs), verdicts=verdicts
        )

    def cut(self, edge: Any) -> StubPlan:
        """Split a segment after a tensor, or on one edge: a pair of tensor and consumer."""
        tensor, consumer = edge if isinstance(edge, tuple) else (edge, None)
        for n, group in enumerate(self.groups):
            if tensor in group:
                after = self._downstream(tensor if consumer is None else consumer) & set(group)
                after |= {consumer} if consumer else set()
                if not after:
                    break
                first = tuple(g for g in group if g not in after)
                second = tuple(g for g in group if g in after)
                return replace(self, groups=(*self.groups[:n], first, second, *self.groups[n + 1 :]), strategy="edited")
        msg = f"{tensor} is not read inside a segment, so there is nothing to cut."
        raise IllegalEdit(msg)

    def glue(self, a: int, b: int) -> StubPlan:
        """Join two adjacent groups."""
        a, b = sorted((a, b))
        if any(e.kind is OpKind.REDUCTION for e in self.segments[a].exprs) and len(self.segments[b].exprs) > 1:
            msg = (
                f"S{a} and S{b} cannot be one kernel: no scheduler accepts a reduction whose result is broadcast back."
            )
            raise IllegalEdit(msg)
        groups = [g for n, g in enumerate(self.groups) if n != b]
        groups[a] = self.groups[a] + self.groups[b]
        return replace(self, groups=tuple(groups), strategy="edited")

    def resegmented(self, strategy: str, **_: Any) -> StubPlan:
        """Return the plan of a strategy."""
        made = dict(self.makers).get(strategy)
        return self if made is None else replace(made(), makers=self.makers)

    def why(self, a: str, b: str) -> StubWhy:
        """Explain a pair."""
        refusal = StubVerdict(StubScheduler.POINTWISE, False, "reduction", "A reduction is inside: T1.")
        return StubWhy(f"{a} and {b} are separate: every scheduler refused them.", (refusal,))

    def to_python(self, form: str = "fuser_lab") -> str:
        """Return code that creates this plan."""
        if form != "fuser_lab":
            return f"# {form}\n"
        return f"plan = fl.segment(fd, inputs)  # {len(self.groups)} segments\n"

    def _downstream(self, name: str) -> set[str]:
        found = {name}
        for e in self.fusion.exprs:
            if found & {t.name for t in e.tensor_inputs}:
                found.add(e.name)
        return found - {name}


def tensor(name: str, shape: tuple[int, ...], dtype: DataType = DataType.Float) -> TensorView:
    """Return a contiguous tensor."""
    return TensorView(
        name=name, dtype=dtype, domain=TensorDomain(logical=tuple(IterDomain(id=next(_IDS), extent=n) for n in shape))
    )


def expr(op: str, result: TensorView, *operands: TensorView, kind: OpKind = OpKind.POINTWISE) -> Expr:
    """Return one expression."""
    return Expr(op=StubOp(op, kind), inputs=operands, outputs=(result,))


def sum_broadcast_add(names: tuple[str, ...] = ("T0", "T1", "T2", "T3", "T4")) -> StubPlan:
    """Return the smallest fusion with two segments."""
    x, y = tensor(names[0], (8192, 4096)), tensor(names[1], (8192, 4096))
    s, b, o = tensor(names[2], (8192,)), tensor(names[3], (8192, 1)), tensor(names[4], (8192, 4096))
    exprs = (
        expr("sum", s, x, kind=OpKind.REDUCTION),
        expr("broadcast", b, s, kind=OpKind.BROADCAST),
        expr("add", o, b, y),
    )
    refusal = VerdictRecord(scheduler="reduction", accepted=False, code="post_broadcast", text="T3 re-expands the sum.")
    log = DecisionLog(
        (
            Attempt(
                phase="level rounds",
                kind=Kind.MERGE,
                subjects=((s.name,), (b.name,)),
                outcome=Outcome.REFUSED,
                text="Reduction: the reduced result is broadcast back.",
                verdicts=(refusal,),
            ),
            Attempt(
                phase="level rounds",
                kind=Kind.MERGE,
                subjects=((b.name,), (o.name,)),
                outcome=Outcome.ACCEPTED,
                text="pointwise took it.",
            ),
        ),
    )
    return StubPlan(
        Fusion(inputs=(x, y), exprs=exprs, outputs=(o,)), ((s.name,), (b.name, o.name)), "sum_broadcast_add", log=log
    )


def rope_like(heads: int = 10, segments: int = 4) -> StubPlan:
    """Return a fusion of about eight ops per head, shaped like a rotary embedding's backward."""
    inputs, exprs, outputs = [], [], []
    numbers = itertools.count()
    name = lambda: f"T{next(numbers)}"  # noqa: E731 - a counter with a prefix
    full, half, bf16 = (1, 32, 8192, 128), (1, 32, 8192, 64), DataType.BFloat16
    cos, sin = tensor(name(), (8192, 128), bf16), tensor(name(), (8192, 128), bf16)
    inputs += [cos, sin]
    previous = None
    for _ in range(heads):
        x = tensor(name(), full, bf16)
        inputs.append(x)
        f = tensor(name(), full)
        a, b = tensor(name(), half), tensor(name(), half)
        n, c = tensor(name(), half), tensor(name(), full)
        m, p, r = tensor(name(), full), tensor(name(), full), tensor(name(), full)
        o = tensor(name(), full, bf16)
        exprs += [
            expr("cast", f, x),
            expr("slice", a, f, kind=OpKind.RESIZE),
            expr("slice", b, f, kind=OpKind.RESIZE),
            expr("neg", n, b),
            expr("cat", c, n, a, kind=OpKind.RESIZE),
            expr("mul", m, c, sin),
            expr("mul", p, f, cos),
            expr("add", r, m, p),
            expr("cast", o, r),
        ]
        if previous is not None:
            total = tensor(name(), full)
            exprs.append(expr("add", total, previous, r))
            previous = total
        else:
            previous = r
        outputs.append(o)
    size = -(-len(exprs) // segments)
    groups = tuple(tuple(e.name for e in exprs[n : n + size]) for n in range(0, len(exprs), size))
    return StubPlan(Fusion(inputs=tuple(inputs), exprs=tuple(exprs), outputs=tuple(outputs)), groups, "RoPE backward")

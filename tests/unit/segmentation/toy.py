"""Small fusions and an oracle with simple rules."""

from collections.abc import Callable
from typing import Any
from zlib import crc32

from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import Answer, SchedulerType, accept, reason, refuse
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Fusion, OpKind
from fuser_lab.segmentation import Candidate
from tests.unit.builders import record

BF16, FLOAT = DataType.BFloat16, DataType.Float
REFUSED = Answer((refuse(SchedulerType.POINTWISE, reason(ReasonCode.DISABLED)),))
ACCEPTED = Answer((accept(SchedulerType.POINTWISE),))


class Rule:
    """Accepts candidates by a function; counts questions."""

    def __init__(self, rule: Callable[[Candidate], bool]) -> None:
        self.rule = rule
        self.asked: list[frozenset[str]] = []

    def ask(self, candidate: Candidate) -> Answer:
        self.asked.append(candidate.key)
        return ACCEPTED if self.rule(candidate) else REFUSED


def everything() -> Rule:
    """Return an oracle that accepts everything."""
    return Rule(lambda _: True)


def one_reduction() -> Rule:
    """Return an oracle that accepts at most one reduction, and no binary op on a reduction's result."""
    return Rule(
        lambda c: sum(e.kind is OpKind.REDUCTION for e in c.exprs) < 2
        and not (
            any(e.kind is OpKind.REDUCTION for e in c.exprs)
            and any(len(e.tensor_inputs) > 1 for e in c.exprs)
        ),
    )


def chance(seed: int, percent: int) -> Rule:
    """Return an oracle that always accepts single expressions, and others by a hash of their names."""
    return Rule(lambda c: len(c.exprs) == 1 or crc32(f"{seed}{sorted(c.key)}".encode()) % 100 < percent)


def sum_broadcast_add() -> Fusion:
    """Return T2 = sum(T0); T3 = broadcast(T2); T4 = add(T1, T3)."""

    def body(fd: Any) -> None:
        x, y = fd.define_tensor([4, 8], contiguity=True), fd.define_tensor([4, 8], contiguity=True)
        column = fd.ops.broadcast(fd.ops.sum(x, dims=[1]), [False, True])
        fd.add_output(fd.ops.add(y, column))

    return record(body)


def random_dag(numbers: list[tuple[int, int, int]], outputs: int) -> Fusion:
    """Return a fusion of [4] tensors from (op, operand, operand) triples; the last ``outputs`` results are outputs."""

    def body(fd: Any) -> None:
        values = [fd.define_tensor([4], contiguity=True) for _ in range(2)]
        for kind, a, b in numbers:
            x, y = values[a % len(values)], values[b % len(values)]
            made = (
                lambda x=x, y=y: fd.ops.add(x, y),
                lambda x=x: fd.ops.neg(x),
                lambda x=x: fd.ops.segment_set(x),
                lambda x=x: fd.ops.cast(fd.ops.cast(x, dtype=BF16), dtype=FLOAT),
                lambda x=x: fd.ops.add(x, fd.ops.full([4], 1.0, FLOAT)),
                lambda x=x: fd.ops.add(x, fd.ops.sum(x, [0], keepdim=True)),
                lambda: fd.ops.full([4], 1.0, FLOAT),
            )
            values.append(made[kind % len(made)]())
        for value in values[-outputs:]:
            fd.add_output(value)

    return record(body)

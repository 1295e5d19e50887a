"""All legal plans of a small fusion, enumerated: the oracle of the search."""

from collections.abc import Iterator
from itertools import product
from zlib import crc32

from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.traffic import CostModel, traffic
from fuser_lab.cost.verdict import Answer, SchedulerType, accept, reason, refuse
from fuser_lab.ir import Expr, Fusion
from fuser_lab.segmentation import Candidate, SegmenterOptions, candidate
from fuser_lab.segmentation.forwarding import forwarded_chains
from fuser_lab.segmentation.graph import run_order
from fuser_lab.segmentation.hints import refused_by_hint
from fuser_lab.segmentation.oracle import SchedulerOracle

PLAIN = SegmenterOptions(forward_inputs=False, forward_factories=frozenset(), segment_set="ignore")


class Pairs:
    """Refuses for good sets with both members of some pairs, and some other sets by a hash of their names."""

    def __init__(self, seed: int, pairs: int, percent: int) -> None:
        self.seed, self.pairs, self.percent = seed, pairs, percent

    def _hash(self, *names: str) -> int:
        return crc32(f"{self.seed}{sorted(names)}".encode()) % 100

    def ask(self, group: Candidate) -> Answer:
        names = [expr.name for expr in group.exprs]
        if len(names) == 1:
            return Answer((accept(SchedulerType.POINTWISE),))
        for i, a in enumerate(names):
            for b in names[:i]:
                if self._hash(a, b) < self.pairs:
                    why = reason(ReasonCode.MATMUL_INSIDE, tensor=a, op=b)
                    return Answer((refuse(SchedulerType.POINTWISE, why, a, b, monotone=True),))
        if self._hash(*names) < self.percent:
            return Answer((accept(SchedulerType.POINTWISE),))
        return Answer((refuse(SchedulerType.POINTWISE, reason(ReasonCode.DISABLED)),))


def partitions(items: list[Expr]) -> Iterator[list[list[Expr]]]:
    """Yield every partition of a list."""
    if not items:
        yield []
        return
    first, *others = items
    for rest in partitions(others):
        yield [[first], *rest]
        for i, group in enumerate(rest):
            yield [*rest[:i], [first, *group], *rest[i + 1 :]]


def least_cost(fusion: Fusion, oracle: SchedulerOracle, options: SegmenterOptions, model: CostModel) -> int:
    """Return the cost of the cheapest plan in which forwarded chains are copied, or stored if that is not possible."""
    chains = list(forwarded_chains(fusion, options))
    copied = frozenset(name for chain in chains for name in chain.names)
    launch = model.launch_bytes
    answers: dict[frozenset[str], bool] = {}

    def takes(exprs: list[Expr]) -> bool:
        key = frozenset(expr.name for expr in exprs)
        if key not in answers:
            group = candidate(fusion, exprs, copied)
            answers[key] = len(key) == 1 or not (
                refused_by_hint(group, options) or oracle.ask(group).chosen is None
            )
        return answers[key]

    def stored(number: int) -> int:
        exprs = list(chains[number].exprs)
        parts = [exprs] if takes(exprs) else [[expr] for expr in exprs]
        return sum(launch + traffic(fusion, part, copied).total for part in parts)

    def ways(group: list[Expr]) -> list[tuple[int, frozenset[int]]]:
        """Return (cost, chains read from memory) for each legal way to supply a group with its chains."""
        reads = [n for n, c in enumerate(chains) if any(c.end in e.tensor_inputs for e in group)]
        found = []
        for choice in product((True, False), repeat=len(reads)):
            inside = [n for n, taken in zip(reads, choice, strict=True) if taken]
            exprs = [*group, *(e for n in inside for e in chains[n].exprs)]
            if takes(exprs):
                absent = frozenset(reads) - frozenset(inside)
                found.append((launch + traffic(fusion, exprs, copied).total, absent))
        return found

    always = {
        n for n, c in enumerate(chains)
        if c.end in fusion.outputs or not any(c.end in e.tensor_inputs for e in fusion.tensor_exprs)
    }
    known: dict[frozenset[str], list[tuple[int, frozenset[int]]]] = {}
    least = -1
    for partition in partitions([e for e in fusion.tensor_exprs if e.name not in copied]):
        options_of = []
        for group in partition:
            key = frozenset(e.name for e in group)
            if key not in known:
                known[key] = ways(group)
            options_of.append(known[key])
        if not all(options_of) or run_order([candidate(fusion, group, copied) for group in partition]) is None:
            continue
        for chosen in product(*options_of):
            kept = always.union(*(absent for _, absent in chosen))
            total = sum(cost for cost, _ in chosen) + sum(map(stored, kept))
            least = total if least < 0 else min(least, total)
    return least

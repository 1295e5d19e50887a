"""Certificates: what a plan costs, what every plan costs at least, and why, as data."""

import enum
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from fuser_lab.cost.traffic import CostModel
from fuser_lab.segmentation.options import SegmentSetMeaning

if TYPE_CHECKING:
    import pandas as pd


class TermKind(enum.Enum):
    """What a part of a bound stands for."""

    INPUT = "input"  # a tensor that is in memory already is read, once for each member
    OUTPUT = "output"  # a fusion output is written
    MEMORY = "through memory"  # a tensor is written, and read by others than its producer's segment
    STORED = "stored chain"  # some reader can never hold a copy of a chain: it is a segment of its own
    LAUNCHES = "launches"
    SEARCH = "search"  # what a search found beyond the other terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One part of a bound.

    ``members`` are expressions that are in different segments each (for a search, all those that it covers);
    ``cost`` is in bytes. Where readers of the tensor hand results on that nobody else reads, the members are those
    that the results arrive at, and ``through`` has the steps before each of them, in order.
    """

    kind: TermKind
    subject: str
    members: tuple[str, ...]
    cost: int
    text: str
    through: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A bound for all plans that recompute the same chains: each a tuple of expression names."""

    recomputed: tuple[tuple[str, ...], ...]
    terms: tuple[Term, ...]

    @property
    def bound(self) -> int:
        """What each of these plans costs at least."""
        return sum(term.cost for term in self.terms)

    @property
    def without_search(self) -> int:
        """The part of the bound that needs no search."""
        return sum(term.cost for term in self.terms if term.kind is not TermKind.SEARCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCost:
    """What one segment costs, in bytes."""

    exprs: tuple[str, ...]
    scheduler: str
    read: int
    written: int
    launch: int

    @property
    def cost(self) -> int:
        """The sum."""
        return self.read + self.written + self.launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What a plan costs under the model, and what every plan costs at least.

    Attributes
    ----------
    model
        Bandwidth and cost of a launch.
    segment_set
        How ``segment_set`` is read by the plans that are compared.
    segments
        Costs of the plan's segments, in order.
    known
        Cost of the cheapest plan that is known.
    proofs
        One for each way to recompute chains that is considered; the bound is the least of theirs.
    obstacle
        Why the plan is none of those that the model compares; empty for a legal plan.
    """

    model: CostModel
    segment_set: SegmentSetMeaning
    segments: tuple[SegmentCost, ...]
    known: int
    proofs: tuple[Proof, ...]
    obstacle: str = ""

    @property
    def cost(self) -> int:
        """Cost of the plan, in bytes (a launch counts as the bytes that memory moves meanwhile)."""
        return sum(segment.cost for segment in self.segments)

    @property
    def bound(self) -> int:
        """What every plan costs at least."""
        return min(proof.bound for proof in self.proofs)

    @property
    def proof(self) -> Proof:
        """The proof with the least bound."""
        return min(self.proofs, key=lambda proof: proof.bound)

    @property
    def terms(self) -> tuple[Term, ...]:
        """Terms of the bound, largest first."""
        return tuple(sorted(self.proof.terms, key=lambda term: -term.cost))

    @property
    def gap(self) -> float:
        """How much dearer than the bound the plan is at most, as a share of the bound."""
        return self.cost / self.bound - 1 if self.bound else 0.0

    @property
    def is_optimal(self) -> bool:
        """Whether no plan is cheaper."""
        return not self.obstacle and self.cost <= self.bound

    @property
    def status(self) -> str:
        """What is known, in a few words."""
        if self.obstacle:
            return f"not a legal plan under this model: {self.obstacle}"
        if not self.is_optimal:
            return f"within {ceil(1000 * self.gap) / 10:.1f} %"
        if min(proof.without_search for proof in self.proofs) >= self.cost:
            return "certified optimal under this model"
        return "proved by search"

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each term of the bound, largest first."""
        return [
            {
                "term": term.kind.value,
                "subject": term.subject,
                "MiB": term.cost / 2**20,
                "us": 1e6 * self.model.seconds(term.cost),
                "because": term.text,
            }
            for term in self.terms
        ]

    def to_pandas(self) -> "pd.DataFrame":
        """Return the terms as a table."""
        import pandas as pd

        return pd.DataFrame(self.rows(), columns=["term", "subject", "MiB", "us", "because"])

    def __str__(self) -> str:
        """Return the verdict, the costs and the terms as text."""
        count = len(self.segments)
        moved = sum(segment.read + segment.written for segment in self.segments)
        launches = f"{count} launch{'es' if count != 1 else ''}"
        lines = [
            f"{self.status}",
            f"cost   {self._time(self.cost)}: {byte_text(moved)} read and written, {launches}",
            f"bound  {self._time(self.bound)}",
        ]
        if self.known < self.cost:
            lines.append(f"known  {self._time(self.known)}: a cheaper plan")
        launch = f"{1e6 * self.model.launch:g} us a launch"
        lines.append(f"model  {self.model.device}: {self.model.bandwidth / 1e9:,.0f} GB/s, {launch}")
        lines.append("every plan pays")
        lines += [f"  {self._time(term.cost):>10}  {term.text}" for term in self.terms if term.cost]
        return "\n".join(lines)

    def _time(self, cost: int) -> str:
        return f"{1e6 * self.model.seconds(cost):,.1f} us"

    def __repr__(self) -> str:
        """Return the text, so that a notebook shows it."""
        return str(self)


def byte_text(size: int) -> str:
    """Return a number of bytes for a person."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} B"

"""Certificates: the cost of a plan, a lower bound for every plan, and the reasons, as data."""

import enum
from dataclasses import asdict, dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from fuser_lab.cost.amounts import bytes_label, seconds_label
from fuser_lab.cost.traffic import CostModel
from fuser_lab.files.json_text import json_text
from fuser_lab.segmentation.missed import Missed
from fuser_lab.segmentation.options import SegmentSetMeaning
from fuser_lab.segmentation.origins import origins_text

if TYPE_CHECKING:
    import pandas as pd


LEAST_SHOWN = 1000  # differences that save less than this share of the total saving are omitted from texts
SHORTEST = 5e-9  # seconds, below which a cost is given in bytes
MOST_DIGITS = 6  # maximum number of decimals, used where costs differ by little
READINGS = {
    SegmentSetMeaning.HINT: "with hints kept",
    SegmentSetMeaning.CUT: "with cuts kept",
    SegmentSetMeaning.IGNORE: "with hints ignored",
}


class TermKind(enum.Enum):
    """The meaning of a term of a bound."""

    INPUT = "input"  # a tensor that is already in memory is read, once for each member
    OUTPUT = "output"  # a fusion output is written
    MEMORY = "through memory"  # a tensor is written, and read by others than its producer's segment
    PATH = "on the way"  # two units exclude each other: a tensor on each path between them is stored
    STORED = "stored chain"  # a separate segment: some reader can never contain a copy, or the chain ends in an output
    LAUNCHES = "launches"
    VIEWS = "segments of views"  # what each segment of views leaves apart: a producer and the readers behind the views
    SEARCH = "search"  # the amount that a search found beyond the other terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One part of a bound.

    ``members`` are expressions that are in different segments each (for a search, all those that it covers);
    ``cost`` is in bytes. If readers of the tensor pass on results that nothing else reads, the members are the
    expressions that these results reach, and ``through`` has the steps before each of them, in order. For a path
    between two units that exclude each other, the members are the units on the path in order, and the one entry of
    ``through`` has the tensors that each shares with the next.
    """

    kind: TermKind
    subject: str
    members: tuple[str, ...]
    cost: int
    text: str
    through: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A bound for all plans that recompute the same chains: each a tuple of expression names.

    ``merged`` pairs replicas with the expressions that they repeat if the bound is for plans that compute these once,
    not for plans with the replicas. ``free_views`` says that the bound is for plans in which some segments only make
    views, and otherwise for plans without such segments.
    """

    recomputed: tuple[tuple[str, ...], ...]
    terms: tuple[Term, ...]
    merged: tuple[tuple[str, str], ...] = ()
    free_views: bool = False

    @property
    def bound(self) -> int:
        """The lower bound of these plans' cost."""
        return sum(term.cost for term in self.terms)

    @property
    def without_search(self) -> int:
        """The part of the bound that needs no search."""
        return sum(term.cost for term in self.terms if term.kind is not TermKind.SEARCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCost:
    """The cost of one segment in bytes."""

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
    """The cost of a plan under the model, and a lower bound on the cost of every plan.

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
        One for each way to recompute chains that is considered; the bound is the smallest of theirs.
    obstacle
        Why the plan is not among those that the model compares; empty for a legal plan.
    missed
        The differences to the cheapest known plan, if that plan is cheaper.
    hints
        The results of ``segment_set`` in the fusion.
    ignoring
        Cost of a plan that reads hints as plain copies, if that is cheaper than all known plans that keep them.
    made
        Names that are not the user's, each with the pass or rule that created it, if known.
    views
        Numbers of the segments that only make views, which cost nothing; None if the model counts all segments.
    """

    model: CostModel
    segment_set: SegmentSetMeaning
    segments: tuple[SegmentCost, ...]
    known: int
    proofs: tuple[Proof, ...]
    obstacle: str = ""
    missed: tuple[Missed, ...] = ()
    hints: tuple[str, ...] = ()
    ignoring: int | None = None
    made: tuple[tuple[str, str], ...] = ()
    views: tuple[int, ...] | None = None

    @property
    def reading(self) -> str:
        """How the plans that are compared read the fusion's hints, in a few words; empty if there are none."""
        return READINGS[self.segment_set] if self.hints else ""

    @property
    def cost(self) -> int:
        """Cost of the plan, in bytes (a launch counts as the bytes that memory could move in the same time)."""
        return sum(segment.cost for segment in self.segments)

    @property
    def launches(self) -> int:
        """The number of segments that launch a kernel."""
        return sum(segment.launch > 0 for segment in self.segments)

    @property
    def bound(self) -> int:
        """The lower bound of every plan's cost."""
        return min(proof.bound for proof in self.proofs)

    @property
    def proof(self) -> Proof:
        """The proof with the smallest bound."""
        return min(self.proofs, key=lambda proof: proof.bound)

    @property
    def terms(self) -> tuple[Term, ...]:
        """Terms of the bound, largest first."""
        return tuple(sorted(self.proof.terms, key=lambda term: -term.cost))

    @property
    def gap(self) -> float:
        """The difference between the plan's cost and the bound, as a fraction of the bound."""
        return self.cost / self.bound - 1 if self.bound else 0.0

    @property
    def is_optimal(self) -> bool:
        """Whether no plan is cheaper."""
        return not self.obstacle and self.cost <= self.bound

    @property
    def status(self) -> str:
        """The result in a few words, with the plans it applies to if the fusion has hints."""
        if self.obstacle:
            return f"not a legal plan under this model: {self.obstacle}"
        return f"{self._verdict}, {self.reading}" if self.reading else self._verdict

    @property
    def _verdict(self) -> str:
        if not self.is_optimal:
            share = 100 * self.gap
            digits = next((n for n in range(1, MOST_DIGITS) if share * 10**n >= 1), MOST_DIGITS)
            more = f"{ceil(share * 10**digits) / 10**digits:.{digits}f} %"
            return f"at most {more} more costly than the cheapest possible plan"
        if min(proof.without_search for proof in self.proofs) >= self.cost:
            return "certified optimal under this model"
        return "proved by search"

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about the plans that are compared and about names in the texts, one sentence each."""
        texts = [*self.hints, *(entry.text for entry in self.missed), *(term.text for term in self.terms)]
        origins = origins_text(texts, dict(self.made))
        notes = (*self._hint_notes, *self._view_notes)
        return (*notes, f"{origins}.") if origins else notes

    @property
    def _view_notes(self) -> tuple[str, ...]:
        if not self.views:
            return ()
        names = ", ".join(f"S{number}" for number in self.views)
        return (f"{names} only {'makes views and costs' if len(self.views) == 1 else 'make views and cost'} nothing.",)

    @property
    def _hint_notes(self) -> tuple[str, ...]:
        if not self.hints:
            return ()
        names = ", ".join(self.hints)
        if self.segment_set is SegmentSetMeaning.IGNORE:
            return (f"Plans that merge across segment_set ({names}) are also compared.",)
        reading = f"segment_set={self.segment_set.value!r}"
        note = f"Plans that merge across segment_set ({names}) are not compared, as {reading}."
        if self.ignoring is None:
            return (note,)
        return (note, f"With segment_set='ignore' a plan of {self.total_text(self.ignoring)} is known.")

    @property
    def missed_shown(self) -> tuple[Missed, ...]:
        """The differences to the cheapest known plan, without negligible ones."""
        least = (self.cost - self.known) // LEAST_SHOWN
        return tuple(entry for entry in self.missed if abs(entry.cost) > least)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each term of the bound, largest first."""
        return [
            {
                "term": term.kind.value,
                "subject": term.subject,
                "cost [MB]": term.cost / 1e6,
                "cost [µs]": 1e6 * self.model.seconds(term.cost),
                "because": term.text,
            }
            for term in self.terms
        ]

    @property
    def model_text(self) -> str:
        """The model in a few words."""
        launch = f"{1e6 * self.model.launch:g} µs per launch"
        return f"{self.model.device}: {self.model.bandwidth / 1e9:,.0f} GB/s, {launch}"

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate for JSON; costs are in bytes and include launches."""
        return {
            "status": self.status,
            "cost": self.cost,
            "bound": self.bound,
            "views": self.views,
            "known": self.known,
            "optimal": self.is_optimal,
            "obstacle": self.obstacle,
            "segment_set": self.segment_set.value,
            "reading": self.reading,
            "hints": self.hints,
            "ignoring": self.ignoring,
            "made": dict(self.made),
            "notes": self.notes,
            "model": asdict(self.model) | {"launch_bytes": self.model.launch_bytes},
            "segments": [asdict(segment) for segment in self.segments],
            "missed": [asdict(entry) for entry in self.missed],
            "proofs": [
                {
                    "recomputed": proof.recomputed,
                    "merged": proof.merged,
                    "free_views": proof.free_views,
                    "bound": proof.bound,
                    "terms": [asdict(term) | {"kind": term.kind.value} for term in proof.terms],
                }
                for proof in self.proofs
            ],
        }

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the same as JSON text."""
        return json_text(self.to_dict(), indent=indent)

    def to_pandas(self) -> "pd.DataFrame":
        """Return the terms as a table."""
        import pandas as pd

        return pd.DataFrame(self.rows(), columns=["term", "subject", "cost [MB]", "cost [µs]", "because"])

    def __str__(self) -> str:
        """Return the verdict, the costs and the terms as text."""
        moved = sum(segment.read + segment.written for segment in self.segments)
        launches = f"{self.launches} launch{'es' if self.launches != 1 else ''}"
        lines = [
            f"{self.status}",
            f"cost   {self.total_text(self.cost)}: {bytes_label(moved)} read and written, {launches}",
            f"bound  {self.total_text(self.bound)}: no plan costs less",
        ]
        if self.known < self.cost:
            shown = self.missed_shown
            lines.append(f"known  {self.total_text(self.known)}: a cheaper plan{', which saves' if shown else ''}")
            lines += [f"  {self.time_text(entry.cost):>10}  {entry.text}" for entry in shown]
        lines.append(f"model  {self.model_text}")
        lines += [f"{'note' if place == 0 else '':<7}{note}" for place, note in enumerate(self.notes)]
        lines.append("every plan pays")
        lines += [f"  {self.time_text(term.cost):>10}  {term.text}" for term in self.terms if term.cost]
        return "\n".join(lines)

    def time_text(self, cost: int) -> str:
        """Return a cost as time on the model's device, or as bytes if the time is too short to compare."""
        seconds = self.model.seconds(cost)
        return bytes_label(cost) if cost and abs(seconds) < SHORTEST else seconds_label(seconds)

    def total_text(self, cost: int) -> str:
        """Return a plan's cost as time, with enough digits to distinguish the cost, the bound and the known plan."""
        totals = {self.cost, self.bound, self.known}
        if len({seconds_label(self.model.seconds(total)) for total in totals}) == len(totals):
            return seconds_label(self.model.seconds(cost))
        for digits in range(1, MOST_DIGITS):
            if len({f"{1e6 * self.model.seconds(total):.{digits}f}" for total in totals}) == len(totals):
                break
        else:
            digits = MOST_DIGITS
        return f"{1e6 * self.model.seconds(cost):,.{digits}f} µs"

    def __repr__(self) -> str:
        """Return the text, so that a notebook shows it."""
        return str(self)

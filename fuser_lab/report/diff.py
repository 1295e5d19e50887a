"""The difference between two plans: moved expressions, tensors that now cross, and their bytes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fuser_lab.report.diff_picture import diff_dot, diff_mermaid, diff_svg
from fuser_lab.report.difference import Crossing, Difference, Move, Side
from fuser_lab.report.html import document, table_html
from fuser_lab.report.records import Records, words
from fuser_lab.report.save import picture_writers, save, table_writers
from fuser_lab.report.shown import Shown
from fuser_lab.report.tables import Table, table_text
from fuser_lab.report.units import bytes_label
from fuser_lab.segmentation import SegmentedFusion


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDiff(Shown, Difference):
    """The difference of two plans of one definition, for display; false if both have the same cuts."""

    def table(self) -> Table:
        """Return one row per change."""
        rows = [
            (f"{m.name} = {m.op}", "moved", _segments(m.before), _segments(m.after), "") for m in self.moved
        ]
        rows += [(c.name, "now crosses", "", "between segments", bytes_label(c.bytes)) for c in self.now_crossing]
        rows += [
            (c.name, "no longer crosses", "between segments", "", bytes_label(c.bytes))
            for c in self.no_longer_crossing
        ]
        rows += [(name, "only before", "yes", "", "") for name in self.only_before]
        rows += [(name, "only after", "", "yes", "") for name in self.only_after]
        pairs = [(f"S{a} and S{b}", self.before.schedulers[a], self.after.schedulers[b]) for a, b in self.partners]
        rows += [(which, "scheduler", scheduler, other, "") for which, scheduler, other in pairs if scheduler != other]
        columns = ("what", "change", "before", "after", "bytes")
        return Table(columns=columns, rows=tuple(rows), numeric=frozenset({"bytes"}))

    def records(self) -> Records:
        """Return one row per change, as numbers; before and after are numbers of segments, or schedulers."""
        rows: list[tuple[str | int | None, ...]] = [
            (m.name, m.op, "moved", words(m.before), words(m.after), None) for m in self.moved
        ]
        rows += [(c.name, "", "now crosses", "", "", c.bytes) for c in self.now_crossing]
        rows += [(c.name, "", "no longer crosses", "", "", c.bytes) for c in self.no_longer_crossing]
        rows += [(name, "", "only before", "", "", None) for name in self.only_before]
        rows += [(name, "", "only after", "", "", None) for name in self.only_after]
        pairs = [(f"S{a} S{b}", self.before.schedulers[a], self.after.schedulers[b]) for a, b in self.partners]
        rows += [
            (which, "", "scheduler", scheduler, other, None) for which, scheduler, other in pairs if scheduler != other
        ]
        return Records(columns=("what", "op", "change", "before", "after", "size [bytes]"), rows=tuple(rows))

    def __str__(self) -> str:
        """Return the headline and the changes."""
        return f"{self.headline}\n\n{table_text(self.table())}" if self else self.headline

    def __repr__(self) -> str:
        """Return the text; a notebook shows a table."""
        return str(self)

    def _picture(self) -> str:
        """Return the changes as a picture."""
        return diff_svg(self)

    def _repr_html_(self) -> str:
        """Return the picture, and the changes as a table."""
        return diff_svg(self) + table_html(self.table(), note=self.headline)

    def save(self, path: str | Path) -> Path:
        """Write the changes as .svg, .png, .html, .json, .dot, .mmd, .csv or .txt (by extension); return the path.

        Raises
        ------
        InputError
            If the extension is not one of these.
        UnsupportedError
            If a PNG is requested and no browser is installed to draw it.
        """
        title = f"{self.before.name} and {self.after.name}"
        writers = picture_writers(lambda: diff_svg(self)) | {
            ".html": lambda: document(title, self._repr_html_()),
            ".dot": lambda: diff_dot(self),
            ".mmd": lambda: diff_mermaid(self),
        }
        return save("a difference", path, table_writers(self.table(), self.records, self.to_dict) | writers)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form, with the version of its schema first."""
        return {"schema": "fuser_lab.diff", "version": 1, **asdict(self), "bytes_saved": self.bytes_saved}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanComparison:
    """Several plans of one definition: their numbers side by side, and the difference of each from the first."""

    diffs: tuple[PlanDiff, ...]

    def table(self) -> Table:
        """Return one row per plan; the first is the baseline."""
        first = self.diffs[0].before
        sides = [(first, None), *((d.after, d) for d in self.diffs)]
        rows = [
            (
                side.name,
                str(len(side.schedulers)),
                bytes_label(side.bytes),
                bytes_label(side.bytes_crossing),
                f"{side.bytes / first.bytes:.2f}" if first.bytes else "",
                "" if difference is None else str(len(difference.moved)),
                ", ".join(dict.fromkeys(side.schedulers)),
            )
            for side, difference in sides
        ]
        columns = ("plan", "segments", "moved", "crossing", "ratio", "ops grouped differently", "schedulers")
        return Table(columns=columns, rows=tuple(rows), numeric=frozenset(columns) - {"plan", "schedulers"})

    def records(self) -> Records:
        """Return one row per plan, as numbers; the first is the baseline."""
        first = self.diffs[0].before
        sides = [(first, None), *((d.after, d) for d in self.diffs)]
        columns = (
            "plan", "segments", "moved [bytes]", "crossing [bytes]", "moved / moved by the first",
            "ops grouped differently", "schedulers",
        )
        rows = tuple(
            (
                side.name, len(side.schedulers), side.bytes, side.bytes_crossing,
                side.bytes / first.bytes if first.bytes else None, None if change is None else len(change.moved),
                words(side.schedulers),
            )
            for side, change in sides
        )
        return Records(columns=columns, rows=rows)

    def save(self, path: str | Path) -> Path:
        """Write the numbers as .csv, .json, .html or .txt and return the path.

        Raises
        ------
        InputError
            If the extension is not one of these.
        """
        return save("a comparison", path, table_writers(self.table(), self.records, self.to_dict, title="plans"))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form, with the version of its schema first."""
        return {"schema": "fuser_lab.comparison", "version": 1, "diffs": [d.to_dict() for d in self.diffs]}

    def __str__(self) -> str:
        """Return the numbers, and each difference from the first plan."""
        return "\n\n".join([table_text(self.table()), *map(str, self.diffs)])

    def __repr__(self) -> str:
        """Return the text; a notebook shows tables."""
        return str(self)

    def _repr_html_(self) -> str:
        """Return the numbers as a table, and the differences below."""
        return table_html(self.table()) + "".join(d._repr_html_() for d in self.diffs)


def plan_comparison(plans: Sequence[Any]) -> PlanComparison:
    """Return the differences of plans from the first one."""
    first, *others = plans
    return PlanComparison(diffs=tuple(plan_diff(first, other) for other in others))


def plan_diff(before: Any, after: Any) -> PlanDiff:
    """Return the difference of two plans."""
    first, second = before.segmented, after.segmented
    partners = _partners(first, second)
    mate = dict(partners)
    here, there = before.crossing_bytes, after.crossing_bytes
    moved = [
        Move(name=e.name, op=e.op.name, before=first.homes[e.name], after=second.homes[e.name])
        for e in first.fusion.tensor_exprs
        if e.name not in first.replicas and e.name in second.homes
        and {mate.get(i) for i in first.homes[e.name]} != set(second.homes[e.name])
    ]
    return PlanDiff(
        before=_side(before),
        after=_side(after),
        partners=partners,
        moved=tuple(moved),
        now_crossing=tuple(Crossing(name=n, bytes=size) for n, size in there.items() if n not in here),
        no_longer_crossing=tuple(Crossing(name=n, bytes=size) for n, size in here.items() if n not in there),
        only_before=_own(first, second),
        only_after=_own(second, first),
    )


def _own(first: SegmentedFusion, second: SegmentedFusion) -> tuple[str, ...]:
    """Return the expressions that only the first plan has; a replica counts as the expression that it repeats."""
    names = (e.name for e in first.fusion.tensor_exprs)
    return tuple(name for name in names if name not in second.home and name not in first.replicas)


def _side(plan: Any) -> Side:
    return Side(
        name=plan.name,
        target=plan.target,
        schedulers=tuple(s.scheduler.value if s.scheduler else "none" for s in plan.segments),
        ops=tuple(tuple(e.name for e in s.exprs) for s in plan.segments),
        bytes=sum(s.bytes for s in plan.segments),
        bytes_crossing=plan.bytes_crossing,
    )


def _partners(first: SegmentedFusion, second: SegmentedFusion) -> tuple[tuple[int, int], ...]:
    """Pair segments greedily, those with the most common expressions first."""
    common = Counter(
        (i, j) for name, places in first.home.items() for i in places for j in second.home.get(name, ())
    )
    partners: dict[int, int] = {}
    taken = set[int]()
    for (i, j), _ in sorted(common.items(), key=lambda pair: (-pair[1], pair[0])):
        if i not in partners and j not in taken:
            partners[i] = j
            taken.add(j)
    return tuple(sorted(partners.items()))


def _segments(indices: Iterable[int]) -> str:
    return ", ".join(f"S{index}" for index in indices)

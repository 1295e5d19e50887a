"""What became slower between two commits, with the command that finds the commit."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fuser_lab.arguments import ANYTHING, TEXT, brief, optional, takes
from fuser_lab.cost.measured_times import TimingRow
from fuser_lab.errors import InputError
from fuser_lab.lab.comparison import ComparedRow, compared_rows
from fuser_lab.lab.ledger import Ledger
from fuser_lab.lab.records import samples_of
from fuser_lab.lab.views.rows import Row, is_missing, number, rows_of, text
from fuser_lab.report.records import Records
from fuser_lab.report.tables import Table
from fuser_lab.report.units import plural, seconds_label, three_digits
from fuser_lab.report.view import View

_UNSAVED = "+"  # at the end of a commit: files of the working directory differ from it


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """One plan or segment that is slower: ``fusion`` is the hash of its text, ``row`` the id of an earlier row.

    ``command`` is what ``git bisect run`` runs at each commit: its exit status is 0 if the time is as before.
    """

    fusion: str
    plan: str
    segment: int | None
    device: str
    found: ComparedRow
    row: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Regressions(View):
    """Regressions between two commits, the largest first; ``compared`` counts the pairs measured at both."""

    what: ClassVar[str] = "a table of regressions"
    before: str
    after: str
    rows: tuple[Regression, ...]
    compared: int
    ties: int

    @property
    def bisect(self) -> tuple[str, ...]:
        """Commands that find the commit of the largest regression; none if there is none, or if no commit is known."""
        good, bad = self.before.removesuffix(_UNSAVED), self.after.removesuffix(_UNSAVED)
        if not self.rows or not good or not bad or good == bad:
            return ()
        return (f"git bisect start {bad} {good}", f"git bisect run {self.rows[0].command}", "git bisect reset")

    @property
    def note(self) -> str:
        """How many were compared, and how to find the commit."""
        faster = self.compared - self.ties - len(self.rows)
        said = (
            f"{plural(len(self.rows), 'regression')} of {self.compared} compared from {self.before or 'no commit'} to "
            f"{self.after or 'no commit'}; {self.ties} tie, {faster} are faster."
        )
        if self.bisect:
            said += f" To find the commit of the largest one: {' && '.join(self.bisect[:2])}."
        elif self.rows:
            said += " There is no commit to search for, because both measurements have the same commit or none."
        if self.before.endswith(_UNSAVED) or self.after.endswith(_UNSAVED):
            said += f" A commit ending in {_UNSAVED} was measured with uncommitted changes."
        return said

    def _table(self) -> Table:
        rows = tuple(
            (
                row.fusion, row.plan, "" if row.segment is None else f"S{row.segment}", row.device,
                seconds_label(row.found.before), seconds_label(row.found.after), three_digits(row.found.ratio),
                f"{three_digits(row.found.low)} to {three_digits(row.found.high)}", row.command,
            )
            for row in self.rows
        )
        columns = ("fusion", "plan", "segment", "device", "before", "after", "ratio", "interval", "git bisect run ...")
        return Table(columns=columns, rows=rows, numeric=frozenset(columns[4:8]))

    def _records(self) -> Records:
        columns = (
            "fusion", "plan", "segment", "device", "before [s]", "after [s]", "ratio", "low", "high", "row", "command",
        )
        rows = tuple(
            (
                row.fusion, row.plan, row.segment, row.device, row.found.before, row.found.after, row.found.ratio,
                row.found.low, row.found.high, row.row, row.command,
            )
            for row in self.rows
        )
        return Records(columns=columns, rows=rows)


@takes(data=ANYTHING, before=optional(TEXT), after=optional(TEXT), ledger=optional(TEXT))
def regressions(
    data: object, before: str | None = None, after: str | None = None, *, ledger: str | None = None,
) -> Regressions:
    """Return the plans and segments that are slower at one commit than at another, beyond the noise of their samples.

    The last measurement of each commit counts. A ratio whose bootstrap interval contains 1 is a tie
    (`fuser_lab.compare`).

    Parameters
    ----------
    data
        A ledger, a data frame with a ledger's columns, or a list of mappings.
    before, after
        Commits, or beginnings of them; by default the one measured first and the one measured last.
    ledger
        Folder of the ledger in commands; optional if ``data`` is the ledger.

    Raises
    ------
    InputError
        If nothing was measured at one of the commits, or nothing at both.
    ArgumentTypeError
        If ``data`` is not one of these.
    """
    rows = sorted(
        (row for row in rows_of(data, "regressions") if number(row.get("median")) > 0 and samples_of(row)),
        key=lambda row: text(row, "measured_at"),
    )
    commits = list(dict.fromkeys(text(row, "commit") for row in rows))
    first, last = _commit(commits, before, 0, "before"), _commit(commits, after, -1, "after")
    old, new = ({_key(row): row for row in rows if text(row, "commit") == commit} for commit in (first, last))
    shared = [key for key in old if key in new]
    if not shared or first == last:
        why = "they are the same commit" if first == last else "nothing was measured at both"
        raise InputError(f"regressions: {first or 'no commit'} and {last or 'no commit'} cannot be compared: {why}.")
    folder = ledger or (str(data.folder) if isinstance(data, Ledger) else "LEDGER")
    compared = [(key, compared_rows(_timing_row(old[key]), _timing_row(new[key]))) for key in shared]
    slower = [_regression(key, pair, old[key], folder) for key, pair in compared if pair.verdict == "slower"]
    return Regressions(
        before=first, after=last, compared=len(compared), ties=sum(comparison.tie for _, comparison in compared),
        rows=tuple(sorted(slower, key=lambda row: -row.found.ratio)),
    )


def _commit(commits: Sequence[str], start: str | None, place: int, name: str) -> str:
    if not commits:
        raise InputError("regressions: no row has samples.")
    if start is None:
        return commits[place]
    matches = [commit for commit in commits if commit.startswith(start) and (start or not commit)]
    exact = [commit for commit in matches if commit == start]
    if len(exact or matches) != 1:
        choices = ", ".join(commit or "''" for commit in commits)
        msg = f"regressions: {name}={brief(start)!r} is the beginning of {len(matches)} commits; choose from {choices}."
        raise InputError(msg)
    return (exact or matches)[0]


def _key(row: Row) -> tuple[str, str, int | None, str]:
    segment = None if is_missing(row.get("segment")) else int(number(row["segment"]))
    return text(row, "fusion_hash"), text(row, "plan"), segment, text(row, "device")


def _timing_row(row: Row) -> TimingRow:
    seconds = samples_of(row)
    segment = None if is_missing(row.get("segment")) else int(number(row["segment"]))
    return TimingRow(
        plan=text(row, "plan"), segment=segment, scheduler=text(row, "scheduler"), ops=0, bytes_in=0, bytes_out=0,
        bytes_crossing=0, median=number(row["median"]), samples=len(seconds), seconds=seconds,
        device=text(row, "device"),
    )


def _regression(key: tuple[str, str, int | None, str], comparison: ComparedRow, old: Row, folder: str) -> Regression:
    limit = math.sqrt(comparison.before * comparison.after)
    row = text(old, "id")
    command = f"python -m fuser_lab retime {shlex.quote(folder)} {row or 'ROW'} --below {limit:.3g}"
    return Regression(
        fusion=key[0], plan=key[1], segment=key[2], device=key[3], found=comparison, row=row, command=command,
    )

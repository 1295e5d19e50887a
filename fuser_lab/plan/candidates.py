"""The candidates of a segment's kernel in the order of their predicted times, beside the heuristics' choice."""

import math
from dataclasses import dataclass

from fuser_lab.codegen.candidates import RankedCandidate, ranked
from fuser_lab.codegen.kernel_features import kernel_features
from fuser_lab.codegen.pipeline import lower
from fuser_lab.cost.candidate_model import candidate_model
from fuser_lab.cost.kernel_time import kernel_model
from fuser_lab.errors import InputError
from fuser_lab.plan.requests import request_of
from fuser_lab.plan.segment_edit import ScheduledSegment
from fuser_lab.report import html
from fuser_lab.report.shown import Shown
from fuser_lab.report.tables import Table, table_text
from fuser_lab.report.units import seconds_label
from fuser_lab.schedule.parameters import NestChoice, suggestions
from fuser_lab.targets import target_of

_SHOWN = 16  # rows


@dataclass(frozen=True, kw_only=True)
class Candidates(Shown):
    """What `fl.tune` would try first for a nest of a segment's kernel, predicted fastest first.

    ``seconds`` is the predicted time of the kernel as it runs; NaN on a CPU, where nothing is predicted. ``ranked`` has
    the candidates. ``source`` says what the prediction is from.
    """

    nest: NestChoice
    seconds: float
    ranked: tuple[RankedCandidate, ...]
    source: str

    def table(self) -> Table:
        """Return one row per candidate and one for the kernel as it runs, by predicted time."""
        runs = RankedCandidate(values=(), ratio=1.0)
        rows = sorted((*self.ranked, runs), key=lambda row: (math.isnan(row.ratio), row.ratio))
        if math.isnan(self.seconds):
            rows = [runs, *self.ranked]
        shown = tuple(
            (
                self.nest_text if row is runs else row.text,
                seconds_label(self.seconds * row.ratio),
                "" if math.isnan(self.seconds * row.ratio) else f"{row.ratio:.2f}",
                "runs" if row is runs else row.verdict, row.because,
            )
            for row in rows
        )
        columns, strong = ("parameters", "predicted", "ratio", "verdict", "because"), frozenset({rows.index(runs)})
        return Table(columns=columns, rows=shown, numeric=frozenset({"predicted", "ratio"}), strong=strong)

    def _shortened(self) -> Table:
        """Return the first rows of the table, and that of the kernel as it runs."""
        table = self.table()
        (runs,) = table.strong
        first = [*range(min(_SHOWN, len(table.rows))), *((runs,) if runs >= _SHOWN else ())]
        strong = frozenset({first.index(runs)})
        return Table(
            columns=table.columns, rows=tuple(table.rows[n] for n in first), numeric=table.numeric, strong=strong,
        )

    @property
    def nest_text(self) -> str:
        """The parameters that the kernel has."""
        return ", ".join(f"{name}={value}" for name, value in self.nest.values.items())

    def __repr__(self) -> str:
        """Return the first rows of the table as text."""
        return f"{table_text(self._shortened())}\n{self._said()}"

    def _repr_html_(self) -> str:
        """Return the first rows of the table as HTML."""
        return html.table_html(self._shortened(), note=self._said())

    def _said(self) -> str:
        left = len(self.ranked) + 1 - len(self._shortened().rows)
        more = f"{left} more candidates are in table(). " if left else ""
        if math.isnan(self.seconds):
            return f"{more}No model ranks kernels of a CPU; fl.tune measures them in this order."
        return (
            f"{more}Ratios are predicted by a model fitted to {self.source}. It does not replace the heuristics, which "
            "choose as well without it; fl.tune measures in this order."
        )


def candidates_of(segment: ScheduledSegment, target: str, nest: int) -> Candidates:
    """Return the candidates of a nest of a segment's kernel for a target.

    Raises
    ------
    InputError
        If the kernel has no such nest.
    CodegenError
        If the segment has no kernel.
    """
    nests = segment.params(target)
    if nest not in range(len(nests)):
        has = f"from 0 to {len(nests) - 1}" if nests else "none, because the schedule set by hand has no parameters"
        msg = f"candidates: nest must be {has}; given {nest}."
        raise InputError(msg)
    choice, request = nests[nest], request_of(segment, target)
    here = next((change.values for change in segment.changes if (change.target, change.nest) == (target, nest)), ())
    values = [tuple(sorted({**dict(here), **dict(suggestion)}.items())) for suggestion in suggestions(choice)]
    seconds = math.nan
    if target_of(target).has_blocks:
        runs = kernel_features(segment.fusion, lower(request))
        seconds = kernel_model(request.device).seconds(runs)
    return Candidates(
        nest=choice, seconds=seconds, source=candidate_model().source,
        ranked=ranked(request, nest, values),
    )

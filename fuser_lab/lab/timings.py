"""Timings with views and files; the numbers do not depend on views."""

from pathlib import Path
from typing import TYPE_CHECKING

from fuser_lab.arguments import FLAG, PATH, instance, optional, takes
from fuser_lab.cost import measured_times as measured
from fuser_lab.errors import InputError
from fuser_lab.lab.calibration import model_that_ran
from fuser_lab.lab.records import loaded_timings, timings_data
from fuser_lab.plan import Plan
from fuser_lab.report import html, plots, records, save, timing_table
from fuser_lab.report.bars import bars_svg
from fuser_lab.report.shown import Shown

if TYPE_CHECKING:
    import pandas as pd

_PLAN = instance(Plan)


class Timings(Shown, measured.Timings):
    """Measured times of plans: one row per segment, a total row per plan, NaN if not measured."""

    @takes(verbose=FLAG)
    def to_pandas(self, *, verbose: bool = False) -> "pd.DataFrame":
        """Return the numbers with units in the columns' names; ``verbose`` adds each row's device and deviation."""
        return timing_table.timings_frame(self, verbose=verbose)

    @takes(path=PATH)
    def save(self, path: str | Path) -> Path:
        """Write the table as .csv, .html or .txt, all samples as .json, or the bars as .svg or .png; return the path.

        `load` reads the .json again.

        Raises
        ------
        InputError
            If the extension is not one of these.
        UnsupportedError
            If a PNG is requested and no browser is installed to draw it.
        """
        note = timing_table.timing_note(self)
        table = timing_table.timing_table(self, verbose=True)
        writers = save.table_writers(
            table, lambda: records.timing_records(self), lambda: timings_data(self), note=note, title="timings",
        )
        return save.save("timings", path, save.picture_writers(self.bars) | writers)

    @classmethod
    @takes(path=PATH)
    def load(cls, path: str | Path) -> "Timings":
        """Return the timings that `save` wrote to a .json file.

        Raises
        ------
        InputError
            If the file cannot be read, or does not contain timings.
        """
        return with_views(loaded_timings(Path(path)))

    @takes(style=FLAG)
    def bars(self, *, style: bool = True) -> str:
        """Return the medians of whole plans and peers as bars in static SVG, with the quartiles drawn over them.

        If only one plan was timed, its segments have bars too.
        """
        return bars_svg(timing_table.timing_bars(self), "Median times", style=style)

    @takes(plan=_PLAN, before=optional(_PLAN), style=FLAG)
    def roofline(self, plan: Plan, *, before: Plan | None = None, style: bool = True) -> str:
        """Return the roofline of a plan's segments in static SVG, with measured points below the roof of their device.

        Parameters
        ----------
        plan
            One of the plans that were timed.
        before
            Another plan, whose segments are drawn as well, with arrows to where the same work is now.
        style
            Whether the picture includes its own style sheet.

        Raises
        ------
        InputError
            If no segment of the plan was measured.
        """
        loads = plots.loads(plan, self._seconds(plan))
        if not any(load.seconds > 0 for load in loads):
            names = dict.fromkeys(row.plan for row in self.rows if row.segment is not None and row.median > 0)
            said = ", ".join(names) or "nothing"
            raise InputError(f"roofline: no segment of {plan.name!r} was measured; the times are of {said}.")
        model, target = model_that_ran(self, plan), plots.device_of(plan)
        places = " and ".join(dict.fromkeys(row.device for row in self.rows))
        ran = plots.roof_that_ran(target, model)
        return plots.roofline_svg(
            loads, ran, style=style,
            note=f"Hollow marks show the bound of {ran.name}; filled ones were measured on {places}.",
            before=() if before is None else plots.loads(before, self._seconds(before)),
            pairs=() if before is None else plots.flows(before, plan),
        )

    def _seconds(self, plan: Plan) -> dict[int, float]:
        """Return the medians of a plan's segments; plans may share a name."""
        rows = [row for row in self.rows if row.plan_hash == plan.hash and row.segment is not None]
        return {row.segment: row.median for row in reversed(rows) if row.segment is not None and row.median > 0}

    def __repr__(self) -> str:
        """Return the table as text, with the conditions of the measurement."""
        return timing_table.timings_text(self)

    def _repr_html_(self) -> str:
        """Return the table with bars below."""
        table = html.table_html(timing_table.timing_table(self), note=timing_table.timing_note(self))
        return table + self.bars()

    def _picture(self) -> str:
        """Return the bars."""
        return self.bars()


def with_views(timings: measured.Timings) -> Timings:
    """Return timings as an object with views."""
    return Timings(
        rows=timings.rows, preallocated=timings.preallocated, system_load=timings.system_load, cores=timings.cores,
        environment=timings.environment,
    )

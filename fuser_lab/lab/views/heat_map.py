"""One number over two sizes."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fuser_lab.arguments import ANYTHING, TEXT, takes
from fuser_lab.errors import InputError
from fuser_lab.lab.views.rows import is_seconds, number, reader, rows_of
from fuser_lab.report.heat_plot import heat_svg
from fuser_lab.report.records import Records
from fuser_lab.report.tables import Table
from fuser_lab.report.units import seconds_label, three_digits
from fuser_lab.report.view import View


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HeatMap(View):
    """The median of a number for each pair of two values.

    Attributes
    ----------
    x, y, value
        The quantities in columns, rows and cells.
    columns, rows
        The values of both, in order.
    cells
        Medians by column and row; pairs without a measurement are left out.
    counts
        The number of rows behind each median.
    """

    what: ClassVar[str] = "a heat map"
    x: str
    y: str
    value: str
    columns: tuple[Any, ...]
    rows: tuple[Any, ...]
    cells: Mapping[tuple[Any, Any], float]
    counts: Mapping[tuple[Any, Any], int]

    @property
    def note(self) -> str:
        """The meaning of a cell."""
        most = max(self.counts.values())
        of = "one row" if most == 1 else f"the median of up to {most} rows"
        return f"{self.value} by {self.x} (columns) and {self.y} (rows); each cell is {of}."

    def svg(self) -> str:
        """Return the picture as static SVG: larger values are darker."""
        cells = {(str(x), str(y)): value for (x, y), value in self.cells.items()}
        return heat_svg(
            cells, tuple(map(str, self.columns)), tuple(map(str, self.rows)), (self.x, self.y),
            f"{self.value} over {self.x} and {self.y}", self._value_text,
        )

    def _value_text(self, value: float) -> str:
        return seconds_label(value) if is_seconds(self.value) else three_digits(value)

    def _table(self) -> Table:
        names = tuple(map(str, self.columns))
        rows = tuple(
            (str(y), *(self._value_text(self.cells[x, y]) if (x, y) in self.cells else "" for x in self.columns))
            for y in self.rows
        )
        return Table(columns=(f"{self.y} \\ {self.x}", *names), rows=rows, numeric=frozenset(names))

    def _records(self) -> Records:
        name = f"{self.value} [s]" if is_seconds(self.value) else self.value
        rows = tuple((_plain(x), _plain(y), value, self.counts[x, y]) for (x, y), value in self.cells.items())
        return Records(columns=(self.x, self.y, name, "rows"), rows=rows)


@takes(data=ANYTHING, x=TEXT, y=TEXT, value=TEXT)
def heat_map(data: object, x: str, y: str, value: str = "median") -> HeatMap:
    """Return the median of a column for each pair of two others, as a grid.

    Parameters
    ----------
    data
        A ledger, a data frame (what `Ledger.sql` returns), or a list of mappings.
    x, y
        Columns, or parts of columns that hold JSON: ``"sizes[0][1]"`` is the second axis of the first input,
        ``"tags[width]"`` a tag.
    value
        The number in the cells; ``"median"`` is shown as a time.

    Raises
    ------
    InputError
        If there is no such column, or no row has all three.
    ArgumentTypeError
        If ``data`` is not one of these.
    """
    rows = rows_of(data, "heat_map")
    reads = [reader(rows, path, "heat_map", name) for path, name in ((x, "x"), (y, "y"), (value, "value"))]
    values: dict[tuple[Any, Any], list[float]] = {}
    for row in rows:
        across, up, cell = (read(row) for read in reads)
        if across is not None and up is not None and number(cell) == number(cell):
            values.setdefault((_key(across), _key(up)), []).append(number(cell))
    if not values:
        raise InputError(f"heat_map: no row has {x}, {y} and a number in {value}.")
    columns, lines = (tuple(sorted({place[n] for place in values}, key=_order)) for n in (0, 1))
    ordered = [(a, b) for b in lines for a in columns if (a, b) in values]
    return HeatMap(
        x=x, y=y, value=value, columns=columns, rows=lines,
        cells={place: statistics.median(values[place]) for place in ordered},
        counts={place: len(values[place]) for place in ordered},
    )


def _key(value: Any) -> Any:
    return value if isinstance(value, int | float | str) else str(value)


def _order(value: Any) -> tuple[bool, float, str]:
    is_text = isinstance(value, str)
    return is_text, 0.0 if is_text else float(value), str(value)


def _plain(value: Any) -> str | int | float:
    return value if isinstance(value, str | int | float) else str(value)

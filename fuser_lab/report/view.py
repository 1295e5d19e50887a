"""The base of results that are tables: numbers, files, a text, and often a picture."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fuser_lab.arguments import PATH, takes
from fuser_lab.report import save
from fuser_lab.report.html import table_html
from fuser_lab.report.records import Records
from fuser_lab.report.shown import Shown
from fuser_lab.report.tables import Table, table_text

if TYPE_CHECKING:
    import pandas as pd


class View(Shown, ABC):
    """Data with a table and an optional picture; immutable."""

    __slots__ = ()
    what: ClassVar[str]  # with its article, in messages

    @property
    @abstractmethod
    def note(self) -> str:
        """One or two sentences below the table."""

    @abstractmethod
    def _table(self) -> Table:
        """Return the formatted cells."""

    @abstractmethod
    def _records(self) -> Records:
        """Return the plain numbers."""

    def svg(self) -> str:
        """Return the picture as static SVG, or ``""`` if there is nothing to draw."""
        return ""

    def to_pandas(self) -> "pd.DataFrame":
        """Return the numbers, with units in the names of columns."""
        import pandas as pd

        records = self._records()
        return pd.DataFrame(records.rows, columns=list(records.columns))

    @takes(path=PATH)
    def save(self, path: str | Path) -> Path:
        """Write the table as .csv, .json, .html or .txt, or the picture as .svg or .png, and return the path.

        Raises
        ------
        InputError
            If the extension is not one of these.
        UnsupportedError
            If a PNG is requested and no browser is installed to draw it.
        """
        writers = save.table_writers(self._table(), self._records, self._data, note=self.note, title=self.what)
        return save.save(self.what, path, (save.picture_writers(self.svg) if self.svg() else {}) | writers)

    def _data(self) -> Any:
        """Return the data of the JSON file."""
        records = self._records()
        return [dict(zip(records.columns, row, strict=True)) for row in records.rows]

    def __str__(self) -> str:
        """Return the table as text."""
        return f"{table_text(self._table())}\n{self.note}"

    def __repr__(self) -> str:
        """Return the table as text."""
        return str(self)

    def _repr_html_(self) -> str:
        """Return the picture, and the table as HTML."""
        return f"{self.svg()}{table_html(self._table(), note=self.note)}"

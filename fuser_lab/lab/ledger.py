"""The ledger: a folder of measurements, with what was measured and where."""

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from fuser_lab import arguments as kinds
from fuser_lab.cost import measured_times as measured
from fuser_lab.errors import InputError, LedgerWarning, warn
from fuser_lab.files.json_text import json_text
from fuser_lab.lab import store
from fuser_lab.lab.environment import now
from fuser_lab.lab.query import ask_again, duckdb_module, engine, readable, written_as_parquet
from fuser_lab.lab.records import timings_of
from fuser_lab.lab.rows import timing_rows
from fuser_lab.lab.schema import BY_NAME, Row
from fuser_lab.lab.timings import Timings, with_views
from fuser_lab.plan import Plan
from fuser_lab.process.forks import after_fork, new_lock

if TYPE_CHECKING:
    import pandas as pd

_LARGEST_JOURNAL: Final = 1 << 26  # bytes after which a writer begins another one
_MANY_JOURNALS: Final = 64  # above this number or size, readers pack them first
_MUCH_IN_JOURNALS: Final = 1 << 24  # bytes of journals from which they are compacted
_MANY_PARQUET: Final = 64  # Parquet files from which they are merged


_VALUE: Final = (kinds.TEXT | kinds.FLAG | kinds.number() | kinds.NONE).worded("text, a number, True, False or None")


class Ledger:
    """A folder of measurements that any number of processes can append to and read.

    A context manager: leaving it closes the ledger's own journal. Rows are lines of JSON until the journal of a process
    that has ended is packed into Parquet, which needs DuckDB (``pip install duckdb``); without it, rows stay JSON, and
    SQLite answers queries. The columns are those of `fuser_lab.lab.schema`.

    Attributes
    ----------
    folder
        The path of the files.
    damaged
        Files that the last query could not read completely, as ``(file, why)``; the other rows are in the answer.

    Raises
    ------
    InputError
        If the folder cannot be created or read, or was written by a newer version.
    """

    @kinds.takes(folder=kinds.PATH)
    def __init__(self, folder: str | Path) -> None:
        """Open the ledger of a folder, which is created if it does not exist."""
        self.folder = store.open_folder(Path(folder))
        self.damaged: tuple[store.Damage, ...] = ()
        self._journal: store.Journal | None = None
        self._lock = new_lock()
        after_fork(self._end)

    def __enter__(self) -> Self:
        """Return the ledger."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        """Close the journal."""
        self.close()

    def __repr__(self) -> str:
        """Return the folder."""
        return f"Ledger({str(self.folder)!r})"

    def close(self) -> None:
        """Close the journal; a row that is added later begins another one."""
        with self._lock:
            self._end()

    @kinds.takes(row=kinds.mapping(kinds.TEXT, kinds.ANYTHING, "a mapping of columns to values"))
    def append(self, row: Mapping[str, Any]) -> str:
        """Add one row and return its identifier; the row is in the file when this returns.

        Parameters
        ----------
        row
            Values by column. ``id``, ``measured_at`` and ``measurement`` are set if they are missing.

        Raises
        ------
        InputError
            If a column is unknown, a value has the wrong type, or the file system is full.
        """
        for name, value in row.items():
            if name not in BY_NAME:
                msg = f"Ledger.append: unknown column {kinds.brief(name)}; choose from {', '.join(sorted(BY_NAME))}."
                raise InputError(msg)
            kind = BY_NAME[name].kind
            if not kind.holds(value):
                msg = f"Ledger.append: the column {name!r} is {kind.duckdb}, given {kinds.short_text(value)}."
                raise InputError(msg)
        identifier = uuid.uuid4().hex
        whole: Row = {"id": identifier, "measurement": identifier, "measured_at": now(), **row}
        with self._lock:
            if self._journal is not None and self._journal.size > _LARGEST_JOURNAL:
                self._end()
            self._journal = self._journal or store.Journal(self.folder)
            self._journal.append(whole)
        return str(whole["id"])

    @kinds.takes(
        timings=kinds.instance(measured.Timings, accepted="what fl.time returns"),
        plans=kinds.list_of(kinds.instance(Plan), "a list of plans"),
        tags=kinds.optional(kinds.mapping(kinds.TEXT, kinds.TEXT, "a mapping of names to text")),
    )
    def add(
        self, timings: measured.Timings, plans: Sequence[Plan] = (), *, tags: Mapping[str, str] | None = None,
    ) -> str:
        """Add the rows of timings and return the identifier of the measurement that they share.

        Parameters
        ----------
        timings
            What `fl.time` returned.
        plans
            The plans that were timed, which describe what was measured.
        tags
            Further information, such as ``{"experiment": "larger blocks"}``.
        """
        measurement = uuid.uuid4().hex
        shared = {"measurement": measurement, "tags": json_text(dict(tags or {}))}
        for row in timing_rows(timings, plans):
            self.append({**row, **shared})
        return measurement

    @kinds.takes(query=kinds.TEXT, parameters=kinds.list_of(_VALUE, "a list of text and numbers"))
    def sql(self, query: str, parameters: Sequence[Any] = ()) -> "pd.DataFrame":
        """Return the answer to a query of the table ``rows``, in DuckDB's SQL (SQLite's without DuckDB).

        The rows of damaged files are missing; ``damaged`` and a warning name these files.

        Parameters
        ----------
        query
            Such as ``"select fusion_hash, commit, median(median) from rows group by all"``.
        parameters
            Values for the question marks in it.

        Raises
        ------
        InputError
            If the query is invalid.
        UnsupportedError
            If DuckDB is not installed and the ledger has Parquet files.
        """
        names, rows = self._ask(query, parameters)
        import pandas as pd

        return pd.DataFrame(rows, columns=names)

    def to_pandas(self) -> "pd.DataFrame":
        """Return all rows, the oldest first."""
        return self.sql("SELECT * FROM rows ORDER BY measured_at")

    @kinds.takes(measurement=kinds.optional(kinds.TEXT))
    def timings(self, measurement: str | None = None) -> Timings:
        """Return the rows of one measurement, by default the last one, as timings to compare.

        Raises
        ------
        InputError
            If the ledger has no such measurement.
        """
        condition = "measurement = ?" if measurement else (
            "measurement = (SELECT measurement FROM rows ORDER BY measured_at DESC LIMIT 1)"
        )
        query = f"SELECT * FROM rows WHERE {condition}"  # noqa: S608 - one of two texts of our own
        names, rows = self._ask(query, [measurement] if measurement else [])
        if not rows:
            subject = f"measurement {kinds.brief(measurement)}" if measurement else "measurement"
            raise InputError(f"Ledger.timings: {kinds.brief(str(self.folder))} has no {subject}.")
        return with_views(timings_of([dict(zip(names, row, strict=True)) for row in rows]))

    def pack(self) -> int:
        """Pack the journals of writers that have ended into one Parquet file, and return their number.

        Readers and writers do not wait, and queries pack automatically if there are many journals. Without DuckDB, or
        while another process packs, nothing happens.
        """
        if duckdb_module() is None:
            return 0
        with store.packing(self.folder) as may:
            if not may:
                return 0
            store.tidy(self.folder)
            files = store.files_of(self.folder)
            journals = store.abandoned_journals(files.journals)
            parquet = list(files.parquet) if len(files.parquet) > _MANY_PARQUET else []
            if not journals and not parquet:
                return 0
            packed = readable(store.Files(journals=tuple(journals), parquet=tuple(parquet)))
            several = [*packed.journals, *packed.parquet]
            if several:
                store.replace_by_parquet(
                    self.folder, several, partial(written_as_parquet, packed.journals, packed.parquet),
                )
            return len(several)

    def _end(self) -> None:
        """Close the journal, if there is one; in a child of a fork, it stays that of the parent."""
        if self._journal is not None:
            self._journal.close()
        self._journal = None

    def _ask(self, query: str, parameters: Sequence[Any]) -> tuple[list[str], list[tuple[Any, ...]]]:
        journals = store.files_of(self.folder).journals
        size = 0
        for journal in journals:
            with contextlib.suppress(OSError):
                size += journal.stat().st_size
        if len(journals) > _MANY_JOURNALS or size > _MUCH_IN_JOURNALS:
            self.pack()
        asks = engine()
        answer, damage = ask_again(lambda: asks.ask(store.files_of(self.folder), query, parameters))
        self.damaged = tuple(damage)
        if damage:
            warn("; ".join(
                f"{self.folder / problem.file} is damaged: {problem.why}" for problem in damage
            ), LedgerWarning)
        names, rows = answer
        return names, rows

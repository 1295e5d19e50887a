"""Queries of a ledger's files: DuckDB reads them in place; without it, SQLite gets a copy of the rows.

Queries created here contain only our column names, and quoted paths.
"""
# ruff: noqa: S608 - see above

import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from fuser_lab.arguments import brief
from fuser_lab.errors import InputError, UnsupportedError
from fuser_lab.files.json_text import json_text
from fuser_lab.lab.schema import COLUMNS, Kind, Row
from fuser_lab.lab.store import Damage, Files, rows_of

Answer = tuple[list[str], list[tuple[Any, ...]]]

_ROWS: Final = ", ".join(f'"{column.name}"' for column in COLUMNS)
_WRONG_QUERIES: Final = (
    "ParserException", "SyntaxException", "BinderException", "CatalogException", "ConversionException",
    "NotImplementedException",
)
_TRIES: Final = 5  # attempts to read files that are packed in the meantime


class Engine(ABC):
    """An engine that answers queries of the table ``rows``."""

    @abstractmethod
    def ask(self, files: Files, query: str, parameters: Sequence[Any]) -> tuple[Answer, list[Damage]]:
        """Return the answer, and the damaged files.

        Raises
        ------
        InputError
            If the query cannot be answered.
        FileNotFoundError
            If a file has been packed in the meantime.
        """


def engine() -> Engine:
    """Return DuckDB's engine if DuckDB is installed, otherwise SQLite's."""
    duckdb = duckdb_module()
    return _Sqlite() if duckdb is None else _DuckDB(duckdb)


def duckdb_module() -> Any:
    """Return DuckDB, or None if it is not installed."""
    try:
        import duckdb
    except ImportError:
        return None
    return duckdb


def readable(files: Files) -> Files:
    """Return files without those that DuckDB refuses completely, such as journals with a line of 100 MB."""
    duckdb = duckdb_module()
    try:
        with duckdb.connect() as connection:
            connection.execute(f"SELECT count(*), {_all_columns()} FROM {_source(files)}").fetchall()
    except duckdb.Error:
        files, _ = _DuckDB(duckdb).sound(files)
    return files


def written_as_parquet(journals: Sequence[Path], parquet: Sequence[Path], place: Path) -> None:
    """Write the rows of files to one Parquet file; damaged rows of journals are left out."""
    duckdb = duckdb_module()
    with duckdb.connect() as connection:
        source = _source(Files(journals=tuple(journals), parquet=tuple(parquet)))
        connection.execute(f"COPY (SELECT {_ROWS} FROM {source}) TO {_text(place)} (FORMAT parquet)")


class _DuckDB(Engine):
    def __init__(self, duckdb: Any) -> None:
        self._duckdb = duckdb

    def ask(self, files: Files, query: str, parameters: Sequence[Any]) -> tuple[Answer, list[Damage]]:
        damage = [*files.damage, *self._damaged_journals(files.journals)]
        try:
            return self._answer(files, query, parameters), damage
        except self._duckdb.Error as error:
            # An invalid query says nothing about the files, and reading all of them takes long.
            is_wrong = isinstance(error, tuple(getattr(self._duckdb, name) for name in _WRONG_QUERIES))
            sound, damaged = (files, []) if is_wrong else self.sound(files)
            if not damaged:
                raise InputError(f"Ledger.sql: {_first_line(error)}.") from None
        try:
            return self._answer(sound, query, parameters), damage + damaged
        except self._duckdb.Error as error:
            raise InputError(f"Ledger.sql: {_first_line(error)}.") from None

    def _answer(self, files: Files, query: str, parameters: Sequence[Any]) -> Answer:
        with self._duckdb.connect() as connection:
            # A view's definition takes no parameters; paths are quoted.
            connection.execute(f"CREATE VIEW rows AS SELECT {_ROWS} FROM {_source(files)}")
            cursor = connection.execute(query, list(parameters))
            names = [entry[0] for entry in cursor.description or ()]
            return names, cursor.fetchall() if names else []

    def _damaged_journals(self, journals: Sequence[Path]) -> list[Damage]:
        """Return the damage; DuckDB skips damaged lines silently."""
        if not journals:
            return []
        files = Files(journals=tuple(journals), parquet=())
        query = f"SELECT filename, count(*) FROM {_source(files, damaged=True)} GROUP BY filename"
        try:
            with self._duckdb.connect() as connection:
                counts = connection.execute(query).fetchall()
        except self._duckdb.Error:  # of a file that DuckDB refuses completely
            counts = [(str(journal), 2) for journal in journals]
        # An incomplete last line is a row in flight.
        suspects = [Path(name) for name, count in counts if count > (not _is_ended(Path(name)))]
        return [damage for journal in suspects for _, damage in (rows_of(journal),) if damage]

    def sound(self, files: Files) -> tuple[Files, list[Damage]]:
        """Return the files that can be read completely, and the damage of the others."""
        journals = [Files(journals=(path,), parquet=()) for path in files.journals]
        parquet = [Files(journals=(), parquet=(path,)) for path in files.parquet]
        sound: list[Files] = []
        damaged = []
        for alone in (*journals, *parquet):
            (path,) = (*alone.journals, *alone.parquet)
            try:
                with self._duckdb.connect() as connection:
                    connection.execute(f"SELECT count(*), {_all_columns()} FROM {_source(alone)}").fetchall()
            except self._duckdb.Error as error:
                if not path.exists():
                    raise FileNotFoundError(path) from None
                damaged.append(Damage(path.name, _first_line(error)))
            else:
                sound.append(alone)
        whole = Files(
            journals=tuple(path for alone in sound for path in alone.journals),
            parquet=tuple(path for alone in sound for path in alone.parquet),
        )
        return whole, damaged


class _Sqlite(Engine):
    def ask(self, files: Files, query: str, parameters: Sequence[Any]) -> tuple[Answer, list[Damage]]:
        if files.parquet:
            msg = f"Ledger: {files.parquet[0].name} is a Parquet file; DuckDB reads it: pip install duckdb."
            raise UnsupportedError(msg)
        damage = list(files.damage)
        connection = sqlite3.connect(":memory:")
        try:
            types = ", ".join(f'"{column.name}" {column.kind.sqlite}' for column in COLUMNS)
            connection.execute(f"CREATE TABLE rows ({types})")
            marks = ", ".join("?" for _ in COLUMNS)
            for journal in files.journals:
                rows, damaged = rows_of(journal)
                damage += [damaged] if damaged else []
                connection.executemany(f"INSERT INTO rows VALUES ({marks})", map(_sqlite_values, rows))
            try:
                cursor = connection.execute(query, tuple(parameters))
                names = [entry[0] for entry in cursor.description or ()]
                return (names, cursor.fetchall()), damage
            except (sqlite3.Error, sqlite3.Warning) as error:
                raise InputError(f"Ledger.sql: {_first_line(error)}.") from None
        finally:
            connection.close()


def ask_again(asked: Any) -> Any:
    """Return the result of a function, which is called again if files were packed while it read them."""
    for left in reversed(range(_TRIES)):
        try:
            return asked()
        except FileNotFoundError:
            if not left:
                raise
    raise AssertionError


def _source(files: Files, *, damaged: bool = False) -> str:
    """Return the rows of files as a table expression; for damage, only the journals' lines that are not rows."""
    parts = []
    if files.journals:
        kinds = ", ".join(f"'{column.name}': '{column.kind.duckdb}'" for column in COLUMNS)
        paths = ", ".join(_text(path) for path in files.journals)
        read = (
            f"read_json([{paths}], format='newline_delimited', ignore_errors=true, filename=true, "
            f"maximum_object_size=67108864, columns={{{kinds}}})"
        )
        if damaged:
            return f"(SELECT filename FROM {read} WHERE id IS NULL)"
        parts.append(f"SELECT {_ROWS} FROM {read} WHERE id IS NOT NULL")
    if files.parquet:
        paths = ", ".join(_text(path) for path in files.parquet)
        # Files of an earlier version lack the columns that came later.
        parts.append(
            f"SELECT {_ROWS} FROM (SELECT {_nothing()} WHERE false UNION ALL BY NAME "
            f"SELECT * FROM read_parquet([{paths}], union_by_name=true))",
        )
    if not parts:
        parts.append(f"SELECT {_nothing()} WHERE false")
    return f"({' UNION ALL '.join(parts)})"


def _nothing() -> str:
    return ", ".join(f'CAST(NULL AS {column.kind.duckdb}) AS "{column.name}"' for column in COLUMNS)


def _all_columns() -> str:
    """Return an expression that reads all columns; a count would not need to."""
    return ", ".join(f'bit_xor(hash("{column.name}"))' for column in COLUMNS)


def _sqlite_values(row: Row) -> tuple[Any, ...]:
    return tuple(
        json_text(row.get(column.name)) if column.kind is Kind.REALS else _plain(row.get(column.name))
        for column in COLUMNS
    )


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float) else json_text(value)


def _text(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _is_ended(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
    except OSError:
        return True


def _first_line(error: Exception) -> str:
    return brief((str(error).strip().splitlines() or [type(error).__name__])[0].rstrip("."))

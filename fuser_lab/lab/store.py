"""The files of a ledger: rows are appended to journals, and journals are packed into Parquet.

A journal belongs to one writer, which holds a lock on it while it lives. Each row is one line of JSON, written by one
system call, so a process that is killed loses at most the row in flight, and writers do not wait for each other.
Journals that no writer holds any more are packed into a Parquet file. The names of the packed files are first written
to a file beside it, so each row is read exactly once even if a process is killed at any moment.
"""

import contextlib
import os
import socket
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fuser_lab.arguments import brief, short_text
from fuser_lab.errors import InputError
from fuser_lab.files.json_text import json_text
from fuser_lab.files.reading import MissingFileError, UnreadableError, content_of, json_of, parse_json
from fuser_lab.lab.schema import COLUMNS, VERSION, Row

try:
    import fcntl
except ImportError:  # Windows: each process packs only its own journals
    fcntl = None  # type: ignore[assignment]

_HEAD: Final = "ledger.json"
_LOCK: Final = "packing.lock"
_ROWS: Final = (".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that is damaged: its rows, or some of them, are missing from answers."""

    file: str
    why: str


@dataclass(frozen=True, slots=True)
class Files:
    """The files that a reader reads; no row is in two of them. ``damage`` has those that are not regular files."""

    journals: tuple[Path, ...]
    parquet: tuple[Path, ...]
    damage: tuple[Damage, ...] = ()


def open_folder(folder: Path) -> Path:
    """Return the folder of a ledger, created if it does not exist.

    Raises
    ------
    InputError
        If the folder cannot be created or read, or was written by a newer version of the package.
    """
    head, name = folder / _HEAD, brief(str(folder))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not head.exists():
            _replace(head, json_text({"format": "fuser_lab ledger", "version": VERSION}))
        content = json_of(head)
    except UnreadableError as error:
        raise InputError(f"Ledger: {name} cannot be used as a ledger: its {_HEAD} is damaged: {error}.") from None
    except (OSError, ValueError) as error:  # ValueError: its name contains NUL
        msg = f"Ledger: {name} cannot be used as a ledger: {getattr(error, 'strerror', None) or error}."
        raise InputError(msg) from None
    version = content.get("version") if isinstance(content, dict) else None
    if version != VERSION:
        raise InputError(
            f"Ledger: {name} has version {short_text(version)}, and this version of fuser_lab reads version "
            f"{VERSION}."
        )
    return folder


class Journal:
    """A file to which one writer appends rows."""

    def __init__(self, folder: Path) -> None:
        """Create a journal in a ledger's folder."""
        self.path = folder / f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:12]}.jsonl"
        self.size = 0
        made = self.path if fcntl is None else self.path.with_suffix(".unlocked")
        self._file = os.open(made, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        if fcntl is not None:
            # Locked before others see it, because an unlocked journal counts as that of a writer that has ended and is
            # packed.
            fcntl.flock(self._file, fcntl.LOCK_EX)
            made.rename(self.path)

    def append(self, row: Row) -> None:
        """Write a row; it is in the file when this returns."""
        line = f"{json_text({name: value for name, value in row.items() if value is not None})}\n".encode()
        try:
            written = os.write(self._file, line)
            why = "the disk is full"
        except OSError as error:
            written, why = 0, error.strerror or "it cannot be written"
        if written != len(line):
            os.ftruncate(self._file, self.size)  # a partial line would corrupt the next one
            raise InputError(f"Ledger: {brief(str(self.path))} cannot store a row: {why}.")
        self.size += written

    def close(self) -> None:
        """Release the journal, which may then be packed."""
        os.close(self._file)


def files_of(folder: Path) -> Files:
    """Return the files that a reader currently reads; anything else with such a name would be waited for."""
    entries = {name: os.path.isfile(folder / name) for name in os.listdir(folder) if name.endswith(_ROWS)}  # noqa: PTH113, PTH208
    names = [name for name, is_file in entries.items() if is_file]
    parquet = sorted(name for name in names if name.endswith(".parquet"))
    packed: set[str] = set()
    for name in parquet:
        packed.update(_sources(folder / f"{name}.sources"))
    journals = sorted(name for name in names if name.endswith(".jsonl") and name not in packed)
    return Files(
        journals=tuple(folder / name for name in journals),
        parquet=tuple(folder / name for name in parquet if name not in packed),
        damage=tuple(
            Damage(name, "it is not a regular file")
            for name, is_file in sorted(entries.items()) if not is_file and os.path.lexists(folder / name)
        ),
    )


def rows_of(journal: Path) -> tuple[list[Row], Damage | None]:
    """Return the rows of a journal, and its damage: lines that are not rows. An incomplete last line is in flight.

    Raises
    ------
    FileNotFoundError
        If the journal has been packed in the meantime.
    """
    try:
        content = content_of(journal)
    except MissingFileError:
        raise FileNotFoundError(journal) from None
    except UnreadableError as error:
        return [], Damage(journal.name, str(error))
    whole, _, _ = content.rpartition(b"\n")
    rows: list[Row] = []
    damaged = 0
    for line in whole.split(b"\n") if whole else ():
        try:
            row = parse_json(line)
        except UnreadableError:
            damaged += 1
            continue
        if _is_row(row):
            rows.append(row)
        else:
            damaged += 1
    return rows, Damage(journal.name, f"{damaged} of {damaged + len(rows)} lines are not rows") if damaged else None


def _is_row(data: Any) -> bool:
    return isinstance(data, dict) and data.get("id") is not None and all(
        column.kind.holds(data.get(column.name)) for column in COLUMNS
    )


@contextlib.contextmanager
def packing(folder: Path) -> Iterator[bool]:
    """Hold the packing lock; the value is False if another process holds it, or locking is not supported."""
    if fcntl is None:
        yield False
        return
    lock = os.open(folder / _LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(lock)


def abandoned_journals(journals: Iterable[Path]) -> list[Path]:
    """Return the journals that no writer holds."""
    free = []
    for journal in journals:
        with contextlib.suppress(OSError):
            file = os.open(journal, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                free.append(journal)
            finally:
                os.close(file)
    return free


def replace_by_parquet(folder: Path, packed: Sequence[Path], write: Any) -> Path:
    """Replace files by one Parquet file, which ``write`` writes to a given path."""
    place = folder / f"rows-{uuid.uuid4().hex}.parquet"
    unfinished, sources = place.with_suffix(".unfinished"), folder / f"{place.name}.sources"
    try:
        write(unfinished)
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        _replace(sources, json_text([path.name for path in packed]))
        unfinished.replace(place)  # from here on, readers skip the packed files
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    for path in packed:
        path.unlink(missing_ok=True)
        path.with_name(f"{path.name}.sources").unlink(missing_ok=True)
    sources.unlink(missing_ok=True)
    return place


def tidy(folder: Path) -> None:
    """Remove the leftovers of a packer that was killed; only the holder of the packing lock may call this."""
    for sources in folder.glob("*.parquet.sources"):
        if (folder / sources.name.removesuffix(".sources")).exists():
            for name in _sources(sources):
                (folder / name).unlink(missing_ok=True)
        sources.unlink(missing_ok=True)
    for unfinished in folder.glob("rows-*.unfinished"):
        unfinished.unlink(missing_ok=True)


def _sources(path: Path) -> list[str]:
    try:
        names = json_of(path)
    except UnreadableError:
        return []
    names = names if isinstance(names, list) else []
    return [name for name in names if isinstance(name, str) and Path(name).name == name]


def _replace(path: Path, text: str) -> None:
    """Write a file atomically."""
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)

"""Records of all texts of a working tree or a revision, and what differs between two of them."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from difflib import unified_diff
from fnmatch import fnmatchcase
from functools import cache
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Final

import fuser_lab
from tests.processes import results
from tests.replay.cases import LOG, PLAN, Case, cases, short

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "test-output" / "replay"  # git ignores it
DIGESTS: Final = Path(__file__).with_name("digests.txt")  # of the short form
KINDS: Final = {"kernel": "kernels", PLAN: "plans", LOG: "decision logs"}
_CHUNK: Final = 4  # cases
Row = tuple[str, str, str, bytes]  # name, kind, digest and compressed text


def rows_of(case: Case) -> Iterator[Row]:
    """Yield the texts of a case; an exception that is no error of the package is the text of a kernel."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for part, text in case.texts():
                yield row(f"{case.name}: {part}", part if part in {PLAN, LOG} else "kernel", text)
        except Exception as error:  # noqa: BLE001 - it is compared like a text
            yield row(f"{case.name}: raised", "kernel", f"{type(error).__name__}: {error}\n")


def row(name: str, kind: str, text: str) -> Row:
    """Return a text as a row of a record."""
    content = text.encode()
    return name, kind, sha256(content).hexdigest()[:16], zlib.compress(content, 1)


@cache
def _cases(pattern: str) -> list[Case]:
    return cases(pattern)


def _some_rows(pattern: str, numbers: Sequence[int]) -> list[Row]:
    every = _cases(pattern)
    return [row for number in numbers for row in rows_of(every[number])]


def recorded(place: Path, pattern: str = "*", workers: int = 1) -> Path:
    """Write the texts of the working tree to a file and return it."""
    if Path(fuser_lab.__file__).resolve().parents[1] != ROOT:
        sys.exit(f"replay: fuser_lab is imported from {fuser_lab.__file__}; run from its checkout, {ROOT}.")
    numbers = range(len(_cases(pattern)))
    chunks = [(pattern, numbers[first : first + _CHUNK]) for first in numbers[::_CHUNK]]
    return written(place, results(_some_rows, chunks, workers), len(chunks))


def written(place: Path, chunks: Iterable[Iterable[Row]], count: int) -> Path:
    """Write chunks of rows to a file and return it; if fewer than ``count`` arrive, there is no file."""
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_suffix(f".{os.getpid()}")
    with closing(sqlite3.connect(unfinished)) as base, base:
        base.execute("CREATE TABLE texts (name TEXT PRIMARY KEY, kind TEXT, digest TEXT, text BLOB)")
        for rows in chunks:
            base.executemany("INSERT INTO texts VALUES (?, ?, ?, ?)", rows)
            count -= 1
    if count:
        unfinished.unlink()
        sys.exit(f"replay: the record was interrupted; {count} chunks of cases are missing.")
    unfinished.replace(place)
    return place


def recorded_revision(revision: str, pattern: str, workers: int) -> Path:
    """Return the record of a revision, made by its own code and kept by its hash.

    A revision without a replay gets this one.
    """
    commit = _git("rev-parse", "--verify", f"{revision}^{{commit}}").decode().strip()
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=BytesIO(_git("archive", commit))) as archive:
            archive.extractall(folder, filter="data")
        replay = Path(folder, *Path(__file__).parent.relative_to(ROOT).parts)
        if not replay.is_dir():
            shutil.copytree(Path(__file__).parent, replay)
        content = b"".join(path.read_bytes() for path in sorted(replay.glob("*.py")))
        key = sha256(content + pattern.encode()).hexdigest()[:8]
        place = FOLDER / f"{commit[:16]}.{key}.sqlite"
        if not place.exists():
            command = [sys.executable, "-m", "tests.replay", "record", pattern]
            command += ["--to", str(place), "--workers", str(workers)]
            environment = {**os.environ, "PYTHONPATH": folder}
            subprocess.run(command, cwd=folder, env=environment, check=True)
    return place


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Names of the texts of one kind that differ, that only one record has, and the number of those in both."""

    kind: str
    count: int
    differing: tuple[str, ...]
    removed: tuple[str, ...]
    added: tuple[str, ...]

    def __str__(self) -> str:
        """Return the counts in one line."""
        more = [f"{len(n)} {word}" for n, word in ((self.added, "added"), (self.removed, "removed")) if n]
        return ", ".join([f"{len(self.differing)} of {self.count} {KINDS[self.kind]} differ", *more])


@contextmanager
def _both(before: Path, after: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(after)) as base:
        base.execute("ATTACH ? AS older", (str(before),))
        yield base


def compared(before: Path, after: Path, pattern: str = "*") -> list[Comparison]:
    """Return what differs between two records of the cases whose names match a pattern, by kind."""
    with _both(before, after) as base:
        sides = [
            {name: (kind, digest) for name, kind, digest in base.execute(f"SELECT name, kind, digest FROM {of}.texts")
             if fnmatchcase(name.rpartition(": ")[0], pattern)}
            for of in ("older", "main")
        ]
    return [_comparison(kind, *({n: d for n, (k, d) in side.items() if k == kind} for side in sides)) for kind in KINDS]


def _comparison(kind: str, before: dict[str, str], after: dict[str, str]) -> Comparison:
    both = before.keys() & after.keys()
    return Comparison(
        kind=kind, count=len(both), differing=tuple(sorted(name for name in both if before[name] != after[name])),
        removed=tuple(sorted(before.keys() - both)), added=tuple(sorted(after.keys() - both)),
    )


def difference(before: Path, after: Path, name: str) -> str:
    """Return the difference of a text in two records as a unified diff."""
    with _both(before, after) as base:
        texts = [
            zlib.decompress(base.execute(f"SELECT text FROM {of}.texts WHERE name = ?", (name,)).fetchone()[0]).decode()
            for of in ("older", "main")
        ]
    lines = unified_diff(*(text.splitlines() for text in texts), f"{name} before", f"{name} after", lineterm="")
    return "\n".join(lines)


def digests() -> dict[str, str]:
    """Return the digests of the kernels and plans of the short form, by name."""
    rows = [row for case in short(cases()) for row in rows_of(case)]
    return {name: digest for name, kind, digest, _ in sorted(rows) if kind != LOG}

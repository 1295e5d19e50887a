"""The corpus: fusions of examples, real issues, functions and models, as text with their origin."""

import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final, overload

from fuser_lab.api.fusion_definition import FusionDefinition
from fuser_lab.arguments import FLAG, TEXT, brief, optional, takes
from fuser_lab.definition.repro import read_script
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import InputError
from fuser_lab.ir import Number
from fuser_lab.report.html import table_html
from fuser_lab.report.tables import Table, table_text
from fuser_lab.report.units import bytes_label

if TYPE_CHECKING:
    import pandas as pd

KINDS: Final = ("example", "gallery", "forward", "backward")
_FILE: Final = "corpus.txt.gz"
_MARK, _SMALL = "%% ", "%% small"
_MOST_SHOWN: Final = 60  # entries of a table
_PATTERN: Final = optional(TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusEntry:
    """One fusion with its inputs, at real sizes and, if there is one, in a small form.

    Attributes
    ----------
    name
        Such as ``"llama_8b/backward/3"``: the source, the kind of graph and the number of the region in it.
    kind
        ``"example"``, ``"gallery"``, ``"forward"`` or ``"backward"``.
    origin
        Its origin: a title with an issue, or a model with the paths of its modules.
    ops
        Number of expressions.
    bytes
        Bytes of the inputs and outputs at real sizes.
    script, small_script
        Python that defines it and makes its inputs; ``small_script`` is ``""`` if there is no small form.
    also
        Sources that have the same fusion.
    """

    name: str
    kind: str
    origin: str
    ops: int
    bytes: int
    script: str
    small_script: str = ""
    also: tuple[str, ...] = ()

    @takes(small=FLAG)
    def load(self, *, small: bool = False) -> tuple[FusionDefinition, list[TensorSpec | Number]]:
        """Return the definition and descriptions of its inputs, as `fuser_lab.load_repro` does.

        Parameters
        ----------
        small
            Whether to load the small form.

        Raises
        ------
        InputError
            If there is no small form.
        """
        if small and not self.small_script:
            raise InputError(f"CorpusEntry.load: {self.name} has no small form.")
        return read_script(self.small_script if small else self.script, FusionDefinition, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Entries of the corpus in order of their names; an index is a number, a slice or a name."""

    entries: tuple[CorpusEntry, ...]

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.entries)

    def __iter__(self) -> Iterator[CorpusEntry]:
        """Iterate over the entries."""
        return iter(self.entries)

    @overload
    def __getitem__(self, place: int | str) -> CorpusEntry: ...

    @overload
    def __getitem__(self, place: slice) -> "Corpus": ...

    def __getitem__(self, place: int | str | slice) -> "CorpusEntry | Corpus":
        """Return the entry with an index or a name, or those of a slice.

        Raises
        ------
        InputError
            If no entry has the name.
        """
        if isinstance(place, str):
            match = next((entry for entry in self.entries if entry.name == place), None)
            if match is None:
                msg = f"corpus: no entry is called {brief(place)}; fl.corpus('softmax*') selects entries by pattern."
                raise InputError(msg)
            return match
        return Corpus(entries=self.entries[place]) if isinstance(place, slice) else self.entries[place]

    @takes(name=_PATTERN, kind=_PATTERN, origin=_PATTERN)
    def select(self, name: str | None = None, *, kind: str | None = None, origin: str | None = None) -> "Corpus":
        """Return the entries that match all given patterns.

        Parameters
        ----------
        name, kind
            Names with wildcards: ``"llama*"``, ``"*/backward/*"``.
        origin
            Text that the origin or the name of another source contains, in upper or lower case.

        Raises
        ------
        InputError
            If no entry matches.
        """
        matches = tuple(entry for entry in self.entries if _matches(entry, name, kind, origin))
        if not matches:
            patterns = {"name": name, "kind": kind, "origin": origin}
            given_text = ", ".join(f"{key}={brief(value)}" for key, value in patterns.items() if value is not None)
            msg = f"corpus: none of {len(self.entries)} entries matches {given_text}; kinds are {', '.join(KINDS)}."
            raise InputError(msg)
        return Corpus(entries=matches)

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row per entry."""
        import pandas as pd

        columns = ["name", "kind", "ops", "bytes", "small form", "origin", "also"]
        rows = [
            (
                entry.name, entry.kind, entry.ops, entry.bytes, bool(entry.small_script), entry.origin,
                ", ".join(entry.also),
            )
            for entry in self.entries
        ]
        return pd.DataFrame(rows, columns=columns)

    def __repr__(self) -> str:
        """Return the table as text; of many entries, the first."""
        return f"{table_text(self._table())}\n{self._note()}"

    def _repr_html_(self) -> str:
        """Return the table as HTML; of many entries, the first."""
        return table_html(self._table(), note=self._note())

    def _note(self) -> str:
        counts = {kind: sum(entry.kind == kind for entry in self.entries) for kind in KINDS}
        counted = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        shown = f"; the first {_MOST_SHOWN} are shown" if len(self.entries) > _MOST_SHOWN else ""
        return f"{len(self.entries)} entries ({counted}){shown}."

    def _table(self) -> Table:
        rows = [
            (
                entry.name, entry.kind, str(entry.ops), bytes_label(entry.bytes), "yes" if entry.small_script else "",
                entry.origin,
            )
            for entry in self.entries[:_MOST_SHOWN]
        ]
        columns = ("name", "kind", "ops", "inputs and outputs", "small", "origin")
        return Table(columns=columns, rows=tuple(rows), numeric=frozenset({"ops", "inputs and outputs"}))


@takes(name=_PATTERN, kind=_PATTERN, origin=_PATTERN)
def corpus(name: str | None = None, *, kind: str | None = None, origin: str | None = None) -> Corpus:
    """Return the fusions that come with fuser_lab: examples, real issues, and regions of functions and models.

    Regions of models have the sizes of published configurations; equal fusions occur once.

    Parameters
    ----------
    name, kind
        Names with wildcards: ``"llama*"``, ``"*/backward/*"``.
    origin
        Text that the origin or the name of another source contains, in upper or lower case.

    Raises
    ------
    InputError
        If no entry matches.
    """
    whole = Corpus(entries=_entries())
    return whole if name is kind is origin is None else whole.select(name, kind=kind, origin=origin)


def _matches(entry: CorpusEntry, name: str | None, kind: str | None, origin: str | None) -> bool:
    return (
        (name is None or fnmatchcase(entry.name, name))
        and (kind is None or fnmatchcase(entry.kind, kind))
        and (origin is None or origin.lower() in " ".join((entry.origin, *entry.also)).lower())
    )


@cache
def _entries() -> tuple[CorpusEntry, ...]:
    return read_entries(gzip.decompress(files(__package__).joinpath(_FILE).read_bytes()).decode())


def read_entries(text: str) -> tuple[CorpusEntry, ...]:
    """Return the entries that `written_entries` wrote."""
    entries = []
    for part in f"\n{text}".split(f"\n{_MARK}entry ")[1:]:
        head, _, body = part.partition("\n\n")
        name, *lines = head.split("\n")
        facts = dict(line.split(": ", 1) for line in lines)
        script, _, small = body.partition(f"{_SMALL}\n")
        entries.append(CorpusEntry(
            name=name, kind=facts["kind"], origin=facts["origin"], ops=int(facts["ops"]), bytes=int(facts["bytes"]),
            script=f"{script.rstrip()}\n", small_script=f"{small.rstrip()}\n" if small else "",
            also=tuple(filter(None, facts.get("also", "").split(", "))),
        ))
    return tuple(entries)


def written_entries(entries: Iterable[CorpusEntry]) -> str:
    """Return entries as text, in order of their names."""
    lines = []
    for entry in sorted(entries, key=_order):
        lines += [f"{_MARK}entry {entry.name}", f"kind: {entry.kind}", f"origin: {entry.origin}", f"ops: {entry.ops}"]
        lines += [
            f"bytes: {entry.bytes}", *([f"also: {', '.join(entry.also)}"] if entry.also else []), "", entry.script,
        ]
        lines += [_SMALL, entry.small_script] if entry.small_script else []
    return "\n".join(lines)


def _order(entry: CorpusEntry) -> tuple[int, str, str, int]:
    source, _, rest = entry.name.partition("/")
    graph, _, number = rest.rpartition("/")
    return KINDS.index(entry.kind) >= 2, source, graph or rest, int(number) if number.isdecimal() else 0


def written_corpus(entries: Iterable[CorpusEntry], path: str | Path | None = None) -> Path:
    """Write the corpus of the package, or another file, and return its path; equal entries give equal bytes."""
    place = Path(path) if path is not None else Path(str(files(__package__).joinpath(_FILE)))
    place.write_bytes(gzip.compress(written_entries(entries).encode(), 9, mtime=0))
    return place

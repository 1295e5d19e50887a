"""``fusion.lock``: the partition of a function in a file that reads well in a diff, and its strict reading."""

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from fuser_lab.arguments import short_text
from fuser_lab.contracts.partition import GraphPartition, Partition
from fuser_lab.errors import InputError
from fuser_lab.files.json_text import json_text
from fuser_lab.files.reading import UnreadableError, json_of, record_of

FORMAT: Final = "fuser_lab.fusion_lock"
VERSION: Final = 1  # of the format; a file of another version is refused
MOST_FILE_BYTES: Final = 1 << 26  # of a lock, so that a hostile one cannot fill the memory
MOST_KERNELS: Final = 100_000  # of a lock; the comparison takes quadratic time
_ONE_LINE: Final = frozenset({"decisions", "ops"})  # lists whose entries have a line each
_DIGITS: Final = 4  # of predicted seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """The content of a file: the function as ``model.py:step``, the git revision of its file, and its partition."""

    format: str = FORMAT
    version: int = VERSION
    function: str = ""
    revision: str = ""
    partition: Partition


def lock_text(lock: Lock) -> str:
    """Return the text of a file: strict JSON, with a line for each op, each decision and each circumstance."""
    data = asdict(lock, dict_factory=_without_empty)
    for name in ("seconds", "bound_seconds"):
        data["partition"][name] = float(f"{data['partition'][name]:.{_DIGITS}g}")
    return "\n".join(_lines(data, "", "")) + "\n"


def _without_empty(entries: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the entries of a record without those of an empty text, which is what a missing one means."""
    return {name: value for name, value in entries if not isinstance(value, str) or value}


def _lines(value: Any, indent: str, key: str) -> Iterator[str]:
    """Yield the lines of a value of JSON; ``key`` is the key of the object that it belongs to."""
    if not isinstance(value, Mapping | list | tuple) or not value:
        yield f"{indent}{json_text(value)}"
        return
    is_object = isinstance(value, Mapping)
    entries = list(value.items()) if isinstance(value, Mapping) else [("", entry) for entry in value]
    yield f"{indent}{'{' if is_object else '['}"
    for number, (name, entry) in enumerate(entries):
        lines = [f"{indent} {json_text(entry)}"] if key in _ONE_LINE else list(_lines(entry, f"{indent} ", name))
        if is_object:
            lines[0] = f"{indent} {json_text(name)}: {lines[0].lstrip()}"
        yield from lines[:-1]
        yield lines[-1] + ("," if number < len(entries) - 1 else "")
    yield f"{indent}{'}' if is_object else ']'}"


def lock_of(path: str | Path, who: str = "check") -> Lock:
    """Return the content of a file; no code of it is run.

    Raises
    ------
    InputError
        If it is not a file that `lock_text` wrote, or is larger than `MOST_FILE_BYTES`.
    """
    try:
        return _lock(json_of(Path(path), MOST_FILE_BYTES))
    except UnreadableError as error:
        raise InputError(f"{who}: {short_text(str(path))} is not a fusion lock: {error}.") from None


def _lock(data: Any) -> Lock:
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise UnreadableError(f"it has no entry format with {FORMAT!r}")
    if data.get("version") != VERSION:
        raise UnreadableError(f"it has version {str(data.get('version'))[:40]!r}, and version {VERSION} is read")
    _check_texts(data)
    lock = record_of(Lock, data)
    for graph in lock.partition.graphs:
        _check(graph)
    numbers = (lock.partition.bytes, lock.partition.bound_bytes, *(
        kernel.bytes for graph in lock.partition.graphs for kernel in graph.kernels
    ))
    if lock.partition.kernels > MOST_KERNELS or min(numbers) < 0:
        raise UnreadableError(f"it has more than {MOST_KERNELS:,} kernels, or a negative number of bytes")
    return lock


def _check_texts(data: Any) -> None:
    """Raise for a text that a terminal may not print as it is, because it has control characters."""
    waiting = [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and not value.isprintable():
            raise UnreadableError(f"the text {value[:40]!r} has characters that cannot be printed")


def _check(graph: GraphPartition) -> None:
    """Raise if kernels or decisions of a graph name ops that it does not have."""
    named = (op for kernel in graph.kernels for op in kernel.ops)
    decided = (op for decision in graph.decisions for op in decision.groups)
    for op in (*named, *decided):
        if op not in graph.ops:
            msg = f"a kernel or a decision has the op {op[:40]!r}, which is not among the ops of its graph"
            raise UnreadableError(msg)


def printable(partition: Partition) -> Partition:
    """Return a partition whose texts are on one line each and printable, as locks have them."""
    return record_of(Partition, _toml_of(asdict(partition)))


def _toml_of(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_toml_of(name): _toml_of(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_toml_of(entry) for entry in value]
    return " ".join("".join(c if c.isprintable() else " " for c in value).split()) if isinstance(value, str) else value


def revision_of(file: str) -> str:
    """Return the git commit of a file's repository, with ``+`` if the file was edited since; empty without one."""
    folder = Path(file).resolve().parent
    commit = git("rev-parse", "HEAD", folder=folder)
    if not commit:
        return ""
    return commit + ("+" if git("status", "--porcelain", "--untracked-files=no", folder=folder) else "")


def git(*arguments: str, folder: Path) -> str:
    """Return what a command of git prints; an empty text if it fails or git is not installed."""
    try:
        done = subprocess.run(  # noqa: S603 - the arguments are our own
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True,  # noqa: S607 - the user's git
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()

"""The files of parameters that a user kept from `fl.tune`: one for each result, so that processes may write at once.

They are in ``tuned`` below the cache directory (``FUSER_LAB_CACHE``). Nothing in them can change what a kernel
computes, because every value is checked as one that is set by hand.
"""

import contextlib
import functools
import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from fuser_lab.errors import FuserLabError, TuningWarning, warn
from fuser_lab.files.json_text import json_text
from fuser_lab.files.reading import MissingFileError, UnreadableError, content_of, parse_json, record_of
from fuser_lab.runtime.processors import processor_name, processors
from fuser_lab.runtime.store import configured_folder
from fuser_lab.schedule.parameter_values import check_values
from fuser_lab.schedule.tuned_parameters import KeptResult, Machine

_SCHEMA: Final = "fuser_lab.tuned"
_VERSION: Final = 1  # version of the schema; files of another version are not read
_MOST_BYTES: Final = 1 << 16  # bytes of the largest file that is read

_WARNED: set[str] = set()


def folder() -> Path:
    """Return where results are kept; it need not exist."""
    return configured_folder() / "tuned"


def this_host(target: str = "", threads: int | None = None) -> Machine:
    """Return the processor of this machine, for kernels of a target with some threads; by default Numba's number."""
    if threads is None:
        setting = os.environ.get("NUMBA_NUM_THREADS", "").strip()
        threads = int(setting) if setting.isdecimal() else processors()
    return Machine(target=target, device=processor_name(), detail=str(threads))


def keep(result: KeptResult) -> Path:
    """Write a result, in place of an earlier one for the same kernel, and return the file.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    place = path_of(result)
    place.parent.mkdir(parents=True, exist_ok=True)
    record = {"schema": _SCHEMA, "version": _VERSION, "result": asdict(result)}
    # Another process sees the old file or the new one, never a part.
    temporary = place.with_name(f"{secrets.token_hex(8)}.tmp")
    try:
        temporary.write_text(json_text(record, indent=1) + "\n", encoding="utf-8")
        temporary.replace(place)
    finally:
        temporary.unlink(missing_ok=True)
    return place


def path_of(result: KeptResult) -> Path:
    """Return the file of a result."""
    return folder() / f"{hashlib.sha256(repr(result.key).encode()).hexdigest()[:32]}.json"


def forget(results: Iterable[KeptResult]) -> None:
    """Delete the files of results; those that are already gone do not matter."""
    for result in results:
        with contextlib.suppress(FileNotFoundError):
            path_of(result).unlink()


def forget_unreadable() -> None:
    """Delete the files that `load` ignores."""
    for place, content in _all_files():
        if isinstance(content, str):
            with contextlib.suppress(FileNotFoundError):
                place.unlink()


def load() -> tuple[KeptResult, ...]:
    """Return all results that are kept, the newest first; one warning says which files are ignored, and why."""
    results: list[KeptResult] = []
    ignored: list[tuple[Path, str]] = []
    for place, content in _all_files():
        if isinstance(content, str):
            ignored.append((place, content))
        else:
            results.append(content)
    new = [(place, why) for place, why in ignored if str(place) not in _WARNED]
    if new:
        _WARNED.update(str(place) for place, _ in new)
        first, why = new[0]
        several = f"{len(new)} files in {first.parent} are" if len(new) > 1 else f"{first} is"
        which = f"{first.name} {why}" if len(new) > 1 else f"it {why}"
        msg = f"Kept parameters: {several} ignored: {which}. fl.kept_results().forget_ignored() deletes such files."
        warn(msg, TuningWarning)
    return tuple(sorted(results, key=lambda result: (result.date, result.ops, result.shapes), reverse=True))


def _all_files() -> Iterator[tuple[Path, "KeptResult | str"]]:
    """Yield each file with its result, or with why it has none; one that goes meanwhile is left out."""
    try:
        places = sorted(folder().glob("*.json"))
    except OSError:
        return
    for place in places:
        try:
            content = content_of(place, _MOST_BYTES)
        except MissingFileError:
            continue
        except UnreadableError as error:
            yield place, f"cannot be read ({error})"
        else:
            yield place, _parse(content)


@functools.lru_cache(maxsize=4096)
def _parse(content: bytes) -> "KeptResult | str":
    """Return the result that a file's content is, or why it is none."""
    try:
        record = parse_json(content)
        if not isinstance(record, dict) or record.get("schema") != _SCHEMA:
            return f"is not a record of the schema {_SCHEMA!r}"
        if record.get("version") != _VERSION:
            return f"has format {record.get('version')!r}, and this version of fuser_lab reads format {_VERSION}"
        return _result(record.get("result"))
    except (UnreadableError, FuserLabError) as error:
        return f"cannot be read ({error})"


def _result(record: Any) -> KeptResult:
    result = record_of(KeptResult, record, "the result")
    if not (result.before > 0 and result.after > 0):
        raise UnreadableError("its times are not positive")
    return replace(result, changes=tuple((nest, check_values(dict(values))) for nest, values in result.changes))

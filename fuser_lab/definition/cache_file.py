"""A fusion cache on disk: JSON that contains only calls, nothing that could be executed.

``records`` are canonical records as (index of the previous record, call), ``fusions`` the indices where fusions end,
with the number of hits and the number of each, least recently used first. Reading defines every fusion again; kernels
are compiled when they are needed.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from fuser_lab.arguments import brief
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.known import KnownDefinitions
from fuser_lab.definition.record import Record, bare, from_json, named_in, to_json
from fuser_lab.errors import FuserLabError, InputError
from fuser_lab.files.json_text import json_text
from fuser_lab.files.reading import UnreadableError, json_of
from fuser_lab.ir import Val

FORMAT = "fuser_lab fusion cache"
VERSION = 2  # of the format of files

Cache = TypeVar("Cache", bound=KnownDefinitions[Any])


def write_cache(cache: KnownDefinitions[Any], path: Path) -> None:
    """Write a cache; an existing file is replaced atomically.

    Raises
    ------
    InputError
        If the directory cannot be written.
    """
    places: dict[tuple[int, Record], int] = {}
    fusions: list[list[int]] = []
    for end in cache.paths():
        here = -1
        for step in end.steps:
            here = places.setdefault((here, step.record), len(places))
        fusions.append([here, end.schedules.hits, end.schedules.fusion_id])
    data = {
        "format": FORMAT,
        "version": VERSION,
        "max_fusions": cache.max_fusions,
        "records": [[before, to_json(call)] for before, call in places],
        "fusions": fusions,
    }
    text = json_text(data)
    if not path.name or os.path.isdir(path):  # noqa: PTH112 - False, not an error, where a name is too long
        raise InputError(f"FusionCache.save: {path} is a directory; give the path of a file.")
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise InputError(f"FusionCache.save: {brief(str(path))} cannot be written: {error.strerror}.") from None


def read_cache(path: Path, max_fusions: int | None, empty: Callable[[int], Cache]) -> Cache:
    """Return the cache in a file; ``empty`` creates one with a given capacity.

    Raises
    ------
    InputError
        If the file cannot be read, or was not written by `write_cache` of this version.
    """
    data = _content(path)
    match data:
        case {"records": list(records), "fusions": list(fusions), "max_fusions": int(room)}:
            calls = [_call(path, place, entry) for place, entry in enumerate(records)]
        case _:
            raise _refusal(path, "records, fusions or max_fusions are missing")
    cache = empty(room if max_fusions is None else max_fusions)
    seen: set[int] = set()
    for end in fusions:
        match end:
            case [int(place), int(hits), int(number)] if 0 <= place < len(calls) and min(hits, number) >= 0:
                if place in seen:
                    raise _refusal(path, f"record {place} ends two fusions")
                seen.add(place)
                _define(path, cache, calls, place, hits, number)
            case _:
                raise _refusal(path, f"{json_text(end)[:80]} is not the end of a fusion")
    return cache


def _content(path: Path) -> dict[str, Any]:
    try:
        data = json_of(path)
    except UnreadableError as error:
        raise _refusal(path, str(error)) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise _refusal(path, f"its format is not {FORMAT!r}")
    if data.get("version") != VERSION:
        raise _refusal(path, f"its version is {json_text(data.get('version'))[:80]}; this one reads {VERSION}")
    return data


def _call(path: Path, place: int, entry: Any) -> tuple[int, Record]:
    match entry:
        # Each node follows its predecessor, so paths contain no cycles.
        case [int(before), call] if -1 <= before < place:
            try:
                return before, from_json(call)
            except (InputError, RecursionError) as error:
                raise _refusal(path, f"record {place}: {error}") from None
    raise _refusal(path, f"record {place} has no predecessor")


def _define(
    path: Path, cache: KnownDefinitions[Any], calls: list[tuple[int, Record]], end: int, hits: int, number: int,
) -> None:
    places: list[int] = []
    here = end
    while here >= 0:
        places.append(here)
        here = calls[here][0]
    builder = FusionBuilder()
    values: dict[str, Val] = {}
    with builder:
        for place in reversed(places):
            try:
                result = bare(builder.call(calls[place][1], values))
            except (FuserLabError, TypeError, ValueError, RecursionError) as error:
                raise _refusal(path, f"record {place} cannot be executed: {error}") from None
            values.update(named_in(result))
    try:
        taken = [(step.record, (step,)) for step in builder.steps]
        cache.insert(taken, builder.fusion, builder.state, hits=hits, fusion_id=number)
    except FuserLabError as error:
        raise _refusal(path, f"record {end} does not end a definition: {error}") from None


def _refusal(path: Path, why: str) -> InputError:
    return InputError(f"FusionCache.load: {brief(str(path))} is not a readable cache: {why.removesuffix('.')}.")

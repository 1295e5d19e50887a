"""Sweeps that a TOML file describes: ``python -m fuser_lab sweep FILE``."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fuser_lab.api.functions import load_repro
from fuser_lab.arguments import brief, short_text
from fuser_lab.errors import FuserLabError, InputError
from fuser_lab.files.reading import UnreadableError, text_of
from fuser_lab.lab.sweeps import Sweep, sweep
from fuser_lab.segmentation import SegmenterOptions

_KEYS: Final = (
    "name", "ledger", "work", "device", "seconds", "strategies", "targets", "schedules", "sizes", "fusions", "options",
)
_FUSION_KEYS: Final = ("example", "file", "definition", "name", "sizes")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFile:
    """A sweep, and the folder of its ledger if the file names one."""

    sweep: Sweep
    ledger: str | None


def read_sweep(path: Path) -> SweepFile:
    """Return the sweep of a TOML file: the arguments of `fuser_lab.sweep` by name, fusions and options as tables.

    A fusion is ``example = "softmax"`` or ``file = "softmax.py"``, a repro script beside the TOML file. ``definition``
    selects one of several definitions; ``name`` and ``sizes`` may be added. Scripts are read and never executed.

    Raises
    ------
    InputError
        If the file cannot be read, or does not describe a sweep.
    """
    file = brief(str(path))
    try:
        data = tomllib.loads(text_of(path))
    except (ValueError, RecursionError) as error:  # UnreadableError and TOMLDecodeError are ValueErrors
        why = "its values are nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError(f"sweep: {file} cannot be read: {why.rstrip('.')}.") from None
    try:
        return _sweep_of(data, path.parent)
    except FuserLabError as error:
        raise InputError(f"{file}: {error}") from None


def _sweep_of(data: Mapping[str, Any], folder: Path) -> SweepFile:
    _check_keys(data, _KEYS, "")
    entries = data.get("fusions")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise InputError('sweep: fusions must be tables, such as [[fusions]] with example = "softmax".')
    fusions: dict[str, Any] = {}
    sizes: dict[str, Any] = {}
    for entry in entries:
        name, fusion = _fusion(entry, folder)
        if name in fusions:
            raise InputError(f"sweep: two fusions are called {short_text(name)}; give one of them another name.")
        fusions[name] = fusion
        if "sizes" in entry or "sizes" in data:
            sizes[name] = entry.get("sizes", data.get("sizes"))
    arguments = {key: data[key] for key in data if key not in {"fusions", "sizes", "ledger", "options"}}
    if "options" in data:
        arguments["options"] = [_options(entry) for entry in data["options"]]
    if "schedules" in arguments and isinstance(arguments["schedules"], list):
        arguments["schedules"] = [schedule or None for schedule in arguments["schedules"]]  # TOML has no null
    ledger = data.get("ledger")
    if ledger is not None and not isinstance(ledger, str):
        raise InputError(f"sweep: ledger must be the path of a folder, given {short_text(ledger)}.")
    return SweepFile(sweep=sweep(fusions, sizes or None, **arguments), ledger=ledger)


def _fusion(entry: Mapping[str, Any], folder: Path) -> tuple[str, Any]:
    _check_keys(entry, _FUSION_KEYS, " of a fusion")
    sources = [key for key in ("example", "file") if key in entry]
    if len(sources) != 1 or not all(isinstance(entry[key], str) for key in entry if key != "sizes"):
        raise InputError(f"sweep: a fusion needs either example or file, as text, given {short_text(dict(entry))}.")
    if sources == ["example"]:
        return str(entry.get("name", entry["example"])), entry["example"]
    path = folder / entry["file"]
    try:
        text = text_of(path)
    except UnreadableError as error:
        raise InputError(f"sweep: {brief(str(path))} cannot be read: {error}.") from None
    fd, inputs = load_repro(text, name=entry.get("definition"))
    return str(entry.get("name", path.stem)), (fd, inputs) if inputs else fd


def _options(entry: Any) -> SegmenterOptions:
    if not isinstance(entry, dict):
        raise InputError(f"sweep: options must be tables, such as [[options]], given {short_text(entry)}.")
    _check_keys(entry, tuple(SegmenterOptions.__dataclass_fields__), " of the segmenter's options")
    default = SegmenterOptions()
    values: dict[str, Any] = {
        key: (frozenset(value) if isinstance(getattr(default, key), frozenset) else tuple(value))
        if isinstance(value, list) else value
        for key, value in entry.items()
    }
    return SegmenterOptions(**values)


def _check_keys(entry: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    unknown = [key for key in entry if key not in keys]
    if unknown:
        raise InputError(f"sweep: unknown key {short_text(unknown[0])}{where}; choose from {', '.join(keys)}.")

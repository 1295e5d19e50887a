"""What was recorded of a compiler's plans, as plain data, and its file: strict JSON, which needs no library to read."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from fuser_lab.arguments import short_text
from fuser_lab.errors import InputError
from fuser_lab.files.json_text import json_text
from fuser_lab.files.reading import UnreadableError, json_of, record_of
from fuser_lab.segmentation.events import Attempt

FORMAT = "fuser_lab.compiled_plans"
VERSION = 1  # of the format; a file of another version is refused
MOST_FILE_BYTES = 1 << 26  # of a recorded file, so that a hostile one cannot fill the memory
MOST_STEPS = 1 << 20  # from buffers made without code to their sources; our largest graphs have a few thousand
# What a terminal obeys, and halves of characters, which no file can have; a tab and the end of a line are neither.
_UNPRINTED = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\ud800-\\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCall:
    """A call of the graph that was compiled: its op, the op of torch that it was decomposed from, the user's line."""

    target: str
    original: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOp:
    """A line of a source, counted from 0, with the operation and the node of the graph that it computes.

    ``node`` is empty if the compiler added the line by itself.
    """

    line: int
    operation: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRecord:
    """One kernel: names of its operations, buffers and nodes of the graph; `CompiledKernel` states the meaning."""

    names: tuple[str, ...]
    writes: tuple[str, ...]
    reads: tuple[str, ...]
    nodes: tuple[str, ...]
    function: str
    launch: int
    opaque: bool
    bytes: int
    loops: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionCost:
    """The cost of a region's fusion cut as the compiler cuts: bytes between segments, and predicted seconds.

    ``bound`` are the least seconds that any plan of the region is predicted to take.
    """

    region: int
    ops: int
    segments: int
    bytes_crossing: int
    seconds: float
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """A compiler's plan of one graph.

    ``groups`` are the operations of all kernels and of nodes without code, ``through`` the sources of buffers made
    without code, ``in_place`` the buffer to whose memory an operation wrote each, ``sizes`` the bytes of each that is
    known, ``writers`` the operation that writes each buffer, and ``read_by`` the operations that each reads.
    ``computes`` are the nodes of the captured graph that each operation computes, with those that are computed again.
    ``lines`` are the lines of each source that compute an op.
    ``pairwise`` is how many kernels that use a buffer are tried with each, and ``unfusable`` what is never tried.
    """

    compiler: str
    number: int
    kind: str
    digest: str
    calls: Mapping[str, TracedCall]
    attempts: tuple[Attempt, ...]
    kernels: tuple[KernelRecord, ...]
    groups: tuple[tuple[str, ...], ...]
    through: Mapping[str, tuple[str, ...]]
    writers: Mapping[str, str]
    read_by: Mapping[str, tuple[str, ...]]
    sources: Mapping[str, str]
    output_code: str
    unfusable: tuple[str, ...] = ()
    pairwise: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    in_place: Mapping[str, str] = field(default_factory=dict)
    computes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lines: Mapping[str, tuple[LineOp, ...]] = field(default_factory=dict)

    def bases(self, name: str) -> tuple[str, ...]:
        """Return the buffers with memory behind a buffer that was made without code; others stand for themselves."""
        return tuple(each for each in behind(self.through, name) if each not in self.through)


def behind(through: Mapping[str, Sequence[str]], name: str) -> tuple[str, ...]:
    """Return the buffers that a buffer is made of, with itself and those that are made without code in turn."""
    reached = {name: None}
    waiting = [name]
    while waiting:
        new = [source for source in through.get(waiting.pop(), ()) if source not in reached]
        reached.update(dict.fromkeys(new))
        waiting += dict.fromkeys(new)
    return tuple(reached)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPlan:
    """A plan in a file, with the costs of its regions."""

    plan: PlanRecord
    costs: tuple[RegionCost, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The content of a file: the map of the model as text, a note about versions, and the plans."""

    format: str = FORMAT
    version: int = VERSION
    map: str = ""
    note: str = ""
    plans: tuple[RecordedPlan, ...] = field(default=())


def bare(target: str) -> str:
    """Return the name of an op without its namespace and overload."""
    parts = target.split(".")
    return parts[1] if len(parts) > 1 else target


def text_of_recording(recording: Recording) -> str:
    """Return the JSON of a recording."""
    return json_text(asdict(recording, dict_factory=_plain), indent=1)


def _plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value.value if isinstance(value, Enum) else value for name, value in items}


def recording_of(path: Path) -> Recording:
    """Return the content of a file.

    Raises
    ------
    InputError
        If it is not a file that `text_of_recording` wrote, or is larger than `MOST_FILE_BYTES`.
    """
    try:
        recording = _recording(json_of(path, MOST_FILE_BYTES))
    except UnreadableError as error:
        raise InputError(f"load_recorded: {short_text(str(path))} is not a file of recorded plans: {error}.") from None
    return recording


def _recording(data: Any) -> Recording:
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise UnreadableError(f"it has no entry format with {FORMAT!r}")
    if data.get("version") != VERSION:
        raise UnreadableError(f"it has version {str(data.get('version'))[:40]}, and version {VERSION} is read")
    unprinted = next((text for text in _texts(data) if _UNPRINTED.search(text)), None)
    if unprinted is not None:
        raise UnreadableError(f"it has {unprinted[:40]!r}, with a character that cannot be printed")
    recording = record_of(Recording, data)
    for entry in recording.plans:
        _check(entry.plan)
    return recording


def _texts(data: Any) -> Iterator[str]:
    """Yield the texts in data of JSON, with those that are keys."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, list):
        for entry in data:
            yield from _texts(entry)
    elif isinstance(data, dict):
        for key, entry in data.items():
            yield key
            yield from _texts(entry)


def _check(plan: PlanRecord) -> None:
    """Raise if names in a plan refer to nothing, or buffers made without code to one another in a circle."""
    for kernel in plan.kernels:
        missing = next((node for node in kernel.nodes if node not in plan.calls), None)
        if missing is not None:
            raise UnreadableError(f"a kernel has node {missing[:40]!r}, which is not among the calls")
    for attempt in plan.attempts:
        if len(attempt.subjects) != 2 or (not attempt.verdicts and not attempt.accepted):
            raise UnreadableError("an attempt is not about two groups, or is a refusal without a verdict")
    try:
        TopologicalSorter(plan.through).prepare()
    except CycleError as error:
        raise UnreadableError(f"buffer {error.args[1][0][:40]!r} is made of itself") from None
    steps = 0
    for name in plan.through:
        steps += sum(len(plan.through.get(each, ())) + 1 for each in behind(plan.through, name))
        if steps > MOST_STEPS:
            raise UnreadableError(f"buffer {name[:40]!r} and others are made of more buffers than are read")

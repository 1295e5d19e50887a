"""The trie of a fusion cache: its nodes, and the data at the end of a path."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from fuser_lab.definition.canonical import Effect, Step
from fuser_lab.definition.record import Record
from fuser_lab.definition.state import FusionState
from fuser_lab.errors import FuserLabError
from fuser_lab.ir import Fusion
from fuser_lab.process.forks import new_lock

Payload = TypeVar("Payload")


@dataclass(eq=False, repr=False)
class FusionSchedules(Generic[Payload]):
    """A fusion in a cache, with its number and its compiled form.

    ``fusion`` and ``state`` are those of the first such definition; ``payload`` is None until something has run.
    """

    fusion_id: int
    fusion: Fusion
    state: FusionState
    hits: int = 0
    payload: Payload | None = None
    _lock: threading.Lock = field(default_factory=new_lock, repr=False)

    def __repr__(self) -> str:
        """Return one line."""
        state = self.state
        numbers = f"{len(state.states)} states, inputs {list(state.inputs)}, outputs {list(state.outputs)}"
        numbers += f", extents {list(state.extent_fids)}"
        run = "has not run" if self.payload is None else "has run"
        return f"<FusionSchedules {self.fusion_id}: {numbers}, {count_text(self.hits, 'hit')}, {run}>"

    def made(self, make: Callable[[Fusion], Payload]) -> Payload:
        """Return the payload, created if there is none; thread-safe."""
        with self._lock:
            if self.payload is None:
                self.payload = make(self.fusion)
            return self.payload


class End(NamedTuple):
    """The end of a path: the shared data of the fusion, and fusion, state and records of this path.

    Paths with equal fusions share data; names and states may differ.
    """

    schedules: FusionSchedules[Any]
    fusion: Fusion
    state: FusionState
    steps: tuple[Step, ...]


_NONE: Mapping[Record, FuserLabError] = MappingProxyType({})


class Node:
    """A canonical record at its position in the trie; the root has none.

    ``spelled`` maps a call as spelled to the last of its records, after those of its constants.
    ``refused`` holds calls that were refused here, and the errors.
    """

    __slots__ = ("children", "end", "parent", "refused", "spelled", "spellings", "step")

    def __init__(self, parent: "Node | None", step: Step | None) -> None:
        self.parent = parent
        self.step = step
        self.children: dict[Effect, Node] = {}
        self.spelled: dict[Record, Node] = {}
        self.spellings: tuple[tuple[Node, Record], ...] = ()  # the entries of `spelled` that lead here
        self.refused: Mapping[Record, FuserLabError] = _NONE
        self.end: End | None = None

    @property
    def leads_nowhere(self) -> bool:
        """Whether no fusion and no recorded error needs this node."""
        return not self.children and not self.refused and self.end is None


# A call as spelled, None if it cannot be looked up by that, and its records.
Taken = tuple[Record | None, tuple[Step, ...]]


def count_text(count: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{count} {noun}{'s' * (count != 1)}"


__all__ = ["End", "FusionSchedules", "Node", "Step", "Taken", "count_text"]

"""The trie of a fusion cache: nodes, what stands at the end of a path, and where a definition stands on its way."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from fuser_lab.definition.canonical import Effect, Step
from fuser_lab.definition.record import Record, Unrecordable, record_of
from fuser_lab.definition.state import FusionState
from fuser_lab.errors import FuserLabError
from fuser_lab.ir import Fusion

if TYPE_CHECKING:
    from fuser_lab.definition.cache import FusionCache

Payload = TypeVar("Payload")


@dataclass(eq=False, repr=False)
class FusionSchedules(Generic[Payload]):
    """A fusion that a cache knows, with its number and what was made to run it.

    ``fusion`` and ``state`` are those of the definition that came first; ``payload`` is None until something has run.
    """

    fusion_id: int
    fusion: Fusion
    state: FusionState
    hits: int = 0
    payload: Payload | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __repr__(self) -> str:
        """Return one line."""
        state = self.state
        numbers = f"{len(state.states)} states, inputs {list(state.inputs)}, outputs {list(state.outputs)}"
        numbers += f", extents {list(state.extent_fids)}"
        run = "has not run" if self.payload is None else "has run"
        return f"<FusionSchedules {self.fusion_id}: {numbers}, {counted(self.hits, 'hit')}, {run}>"

    def made(self, make: Callable[[Fusion], Payload]) -> Payload:
        """Return the payload, made now if there is none; any number of threads may ask."""
        with self._lock:
            if self.payload is None:
                self.payload = make(self.fusion)
            return self.payload


class End(NamedTuple):
    """What stands at the end of a path: what is kept of the fusion, and fusion, state and records of this path.

    Paths whose fusions are equal share what is kept; names and states may differ.
    """

    schedules: FusionSchedules[Any]
    fusion: Fusion
    state: FusionState
    steps: tuple[Step, ...]


_NONE: Mapping[Record, FuserLabError] = MappingProxyType({})


class Node:
    """A canonical record at its place in the trie; the root has none.

    ``spelled`` leads from a call as it was spelled to the last of its records, past those of its constants.
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
        """Whether no fusion and no remembered error needs this node."""
        return not self.children and not self.refused and self.end is None


# A call as it was spelled, None if it is not to be found by that, and its records.
Taken = tuple[Record | None, tuple[Step, ...]]


class Walk(Generic[Payload]):
    """Where a definition stands that is being recorded.

    It is *following* as long as all its calls are known as they are spelled; then nothing is built. Otherwise calls
    are carried out, and what they do is compared.
    """

    __slots__ = ("_cache", "_followed", "_node", "_taken", "cacheable", "following")

    def __init__(self, cache: "FusionCache[Payload]", root: Node) -> None:
        self._cache = cache
        self._node: Node | None = root
        self._followed: list[tuple[Record, Node]] = []
        self._taken: list[Taken] = []
        self.following = True
        self.cacheable = True

    @property
    def steps(self) -> tuple[Step, ...]:
        """The records so far, of a definition that is following."""
        found: list[Step] = []
        node = self._node
        while node is not None and node.step is not None:
            found.append(node.step)
            node = node.parent
        return tuple(reversed(found))

    def record(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], owner: object) -> Record | None:
        """Return a call as data; None if it has no written form, and then the definition is not kept."""
        if not self.cacheable:
            return None
        try:
            return record_of(name, args, kwargs, owner)
        except Unrecordable:
            self.cacheable = False
            return None

    def follow(self, record: Record | None) -> Node | None:
        """Return the next node if the definition is following and this call is known there."""
        if record is None or not self.following or self._node is None:
            return None
        node = self._node.spelled.get(record)
        if node is not None:
            self._node = node
            self._followed.append((record, node))
        return node

    def refused(self, record: Record | None) -> FuserLabError | None:
        """Return a copy of the error that this call was refused with here, None if it is not known to be refused."""
        if record is None or self._node is None:
            return None
        error = self._node.refused.get(record)
        return None if error is None else type(error)(*error.args)

    def leave(self) -> list[tuple[Record, Any]]:
        """Stop following, and return the calls that have to be carried out, with their results."""
        self.following = False
        self._node = self._cache.root
        calls = [(record, node.step.result) for record, node in self._followed if node.step is not None]
        self._followed.clear()
        return calls

    def advance(self, spelled: Record, steps: tuple[Step, ...]) -> None:
        """Go on by what a call that was carried out has done."""
        self._taken.append((spelled, steps))
        if self._node is not None:
            self._node = self._cache.child(self._node, spelled, steps)

    def give_up(self) -> None:
        """Keep nothing of this definition."""
        self.cacheable = False

    def remember(self, record: Record | None, error: BaseException) -> None:
        """Remember that a call is refused here."""
        if self.cacheable and record is not None and isinstance(error, FuserLabError):
            self._cache.refuse(self._taken, record, error)

    def found(self, *, again: bool = False) -> End | None:
        """Return what an equal definition left, now that this one is complete; ``again`` does not count it."""
        return self._cache.found(self._node if self.cacheable else None, again=again)

    def keep(self, fusion: Fusion, state: FusionState) -> End | None:
        """Return what is now kept of a definition that was built; None if it cannot be kept."""
        return self._cache.insert(self._taken, fusion, state) if self.cacheable else None


def counted(count: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{count} {noun}{'s' * (count != 1)}"


__all__ = ["End", "FusionSchedules", "Node", "Step", "Taken", "Walk", "counted"]

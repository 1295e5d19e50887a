"""The position of a definition in the cache while it is recorded."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from fuser_lab.definition.canonical import Step
from fuser_lab.definition.known import KnownDefinitions
from fuser_lab.definition.record import Record, Unrecordable, record_of
from fuser_lab.definition.state import FusionState
from fuser_lab.definition.trie import End, Node, Taken
from fuser_lab.errors import FuserLabError
from fuser_lab.ir import Fusion

Payload = TypeVar("Payload")


class Walk(Generic[Payload]):
    """The position of a definition that is being recorded.

    It is *following* as long as all its calls are known as spelled; then nothing is built. Otherwise calls are
    executed, and their records are compared.
    """

    __slots__ = ("_cache", "_followed", "_node", "_taken", "cacheable", "following")

    def __init__(self, cache: KnownDefinitions[Payload]) -> None:
        self._cache = cache
        self._node: Node | None = cache.root
        self._followed: list[tuple[Record, Node]] = []
        self._taken: list[Taken] = []
        self.following = True
        self.cacheable = True

    @property
    def steps(self) -> tuple[Step, ...]:
        """The records so far of a definition that is following."""
        steps: list[Step] = []
        node = self._node
        while node is not None and node.step is not None:
            steps.append(node.step)
            node = node.parent
        return tuple(reversed(steps))

    def record(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], owner: object) -> Record | None:
        """Return a call as data; None if it has no written form, in which case the definition is not cached."""
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
        """Return a copy of the error with which this call was refused here, None if it is not known to be refused."""
        if record is None or self._node is None:
            return None
        error = self._node.refused.get(record)
        return None if error is None else type(error)(*error.args)

    def leave(self) -> list[tuple[Record, Any]]:
        """Stop following, and return the calls that must be executed, with their results."""
        self.following = False
        self._node = self._cache.root
        calls = [(record, node.step.result) for record, node in self._followed if node.step is not None]
        self._followed.clear()
        return calls

    def advance(self, spelled: Record, steps: tuple[Step, ...]) -> None:
        """Advance by the records of an executed call."""
        self._taken.append((spelled, steps))
        if self._node is not None:
            self._node = self._cache.child(self._node, spelled, steps)

    def give_up(self) -> None:
        """Do not cache this definition."""
        self.cacheable = False

    def remember(self, record: Record | None, error: BaseException) -> None:
        """Record that a call is refused here."""
        if self.cacheable and record is not None and isinstance(error, FuserLabError):
            self._cache.refuse(self._taken, record, error)

    def find_end(self, *, again: bool = False) -> End | None:
        """Return the data of an equal definition, now that this one is complete; ``again`` does not count it."""
        return self._cache.end_of(self._node if self.cacheable else None, again=again)

    def keep(self, fusion: Fusion, state: FusionState) -> End | None:
        """Return the cached data of a definition that was built; None if it cannot be cached."""
        return self._cache.insert(self._taken, fusion, state) if self.cacheable else None

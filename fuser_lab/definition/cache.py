"""FusionCache: definitions by the calls they are made of, in a trie.

After nvFuser's cache of that name (csrc/python_frontend/fusion_cache.h, removed in 2026 with the frontend it was made
for). Each child of a node is one more call. While a definition walks along calls that are known, nothing is built: its
handles come from the nodes. At the end it finds the `FusionSchedules` that an equal definition left there. Where it
leaves the known paths, what it walked along is built after all.

nvFuser refuses the fusion after the last that its cache has room for; here the least recently used one goes.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from fuser_lab.definition.cache_text import MOST_LINES, TreeLine, tree_html, tree_text
from fuser_lab.definition.record import Record, Unrecordable, record_of, record_text
from fuser_lab.definition.state import FusionState
from fuser_lab.errors import ArgumentTypeError, DefinitionError, StateError
from fuser_lab.ir import Fusion

Payload = TypeVar("Payload")

MAX_FUSIONS = 16384  # nvFuser's


@dataclass(slots=True, eq=False, repr=False)
class FusionSchedules(Generic[Payload]):
    """What stands at the end of a definition's path: the fusion, its states and what was made to run it.

    ``payload`` is None until something has run.
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
        return f"<FusionSchedules {self.fusion_id}: {numbers}, {_counted(self.hits, 'hit')}, {run}>"

    def made(self, make: Callable[[Fusion], Payload]) -> Payload:
        """Return the payload, made now if there is none; any number of threads may ask."""
        with self._lock:
            if self.payload is None:
                self.payload = make(self.fusion)
            return self.payload


class Node(Generic[Payload]):
    """A call at its place in the trie, with the values it returned; the root has none."""

    __slots__ = ("children", "parent", "record", "result", "schedules")

    def __init__(self, parent: "Node[Payload] | None", record: Record | None, result: Any) -> None:
        self.parent = parent
        self.record = record
        self.result = result
        self.children: dict[Record, Node[Payload]] = {}
        self.schedules: FusionSchedules[Payload] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Counts of a cache: ``lookups`` are definitions that were closed, ``hits`` those that were known."""

    max_fusions: int
    fusions: int
    records: int
    lookups: int
    hits: int
    evictions: int
    hits_of: tuple[tuple[int, int], ...]  # (fusion id, hits), most recently used first

    def __str__(self) -> str:
        """Return the counts as nvFuser's caches print them."""
        head = f"Max Fusions Allowed: {self.max_fusions}\n"
        if not self.fusions:
            return f"{head}The fusion cache is empty.\n"
        lines = [
            f"Total Fusions in Cache: {self.fusions}",
            f"Total Records in Cache: {self.records}",
            "Cache Hits by Fusion Id:",
            *(f"\t{fusion_id} -> {hits} hits" for fusion_id, hits in sorted(self.hits_of)),
            f"Cache Lookups: {self.lookups}",
            f"Cache Hits: {self.hits}",
            f"Hit Rate: {100.0 * self.hits / max(self.lookups, 1):g}%",
        ]
        return head + "\n".join(lines) + "\n"


class FusionCache(Generic[Payload]):
    """Definitions that are known, by the calls they are made of; give it to each, ``FusionDefinition(cache=cache)``.

    Equal calls in equal order are one definition: the spelling of arguments counts, names of variables do not. Any
    number of threads may define at once.

    Parameters
    ----------
    max_fusions
        How many fusions are kept; then the least recently used one is forgotten.

    Raises
    ------
    ArgumentTypeError
        If it is no int.
    DefinitionError
        If it is below 1.
    """

    def __init__(self, max_fusions: int = MAX_FUSIONS) -> None:
        if not isinstance(max_fusions, int) or isinstance(max_fusions, bool):
            msg = f"FusionCache: max_fusions must be an int, given {max_fusions!r}."
            raise ArgumentTypeError(msg)
        if max_fusions < 1:
            msg = f"FusionCache: max_fusions is {max_fusions}; there must be room for 1 fusion at least."
            raise DefinitionError(msg)
        self._max = max_fusions
        self._lock = threading.Lock()
        self._root: Node[Payload] = Node(None, None, None)
        self._ends: OrderedDict[int, Node[Payload]] = OrderedDict()  # by fusion id, least recently used first
        self._next_id = self._records = self._lookups = self._hits = self._evictions = 0
        # The classmethod makes a new cache: called on this one, it would leave this one as it is.
        self.load = _refuse_to_load  # type: ignore[method-assign]

    @property
    def max_fusions(self) -> int:
        """How many fusions are kept."""
        return self._max

    def num_fusions(self) -> int:
        """Return how many fusions are known."""
        return len(self._ends)

    __len__ = num_fusions

    def schedules(self, fusion_id: int) -> FusionSchedules[Payload]:
        """Return what is kept of a fusion.

        Raises
        ------
        DefinitionError
            If no fusion that is known has this number.
        """
        with self._lock:
            node = self._ends.get(fusion_id)
        if node is None or node.schedules is None:
            msg = f"FusionCache: no fusion has the number {fusion_id!r}; there are {self.num_fusions()}."
            raise DefinitionError(msg)
        return node.schedules

    def __iter__(self) -> Iterator[FusionSchedules[Payload]]:
        """Iterate over what is kept of each fusion, least recently used first."""
        with self._lock:
            nodes = list(self._ends.values())
        return iter([node.schedules for node in nodes if node.schedules is not None])

    def stats(self) -> CacheStats:
        """Return counts of what is kept, looked up and found."""
        with self._lock:
            ends = [(fusion_id, node.schedules) for fusion_id, node in reversed(self._ends.items())]
            return CacheStats(
                max_fusions=self._max, fusions=len(ends), records=self._records, lookups=self._lookups,
                hits=self._hits, evictions=self._evictions,
                hits_of=tuple((fusion_id, s.hits) for fusion_id, s in ends if s is not None),
            )

    def reset(self) -> None:
        """Forget everything."""
        with self._lock:
            self._root = Node(None, None, None)
            self._ends.clear()
            self._records = self._lookups = self._hits = self._evictions = 0

    def save(self, path: str | Path) -> Path:
        """Write the calls of all fusions to a JSON file, without what is compiled, and return its path.

        Raises
        ------
        ArgumentTypeError
            If the path is none.
        InputError
            If nothing can be written there.
        """
        from fuser_lab.definition.cache_file import path_of, write_cache

        target = path_of("save", path)
        write_cache(self, target)
        return target

    @classmethod
    def load(cls, path: str | Path, max_fusions: int | None = None) -> "FusionCache[Any]":
        """Return the cache that `save` wrote; reading executes nothing, and each fusion is defined and checked again.

        Parameters
        ----------
        path
            The file.
        max_fusions
            How many fusions are kept; as many as in the cache that was saved if left out.

        Raises
        ------
        ArgumentTypeError
            If the path is none.
        InputError
            If the file is no such cache.
        """
        from fuser_lab.definition.cache_file import path_of, read_cache

        return read_cache(path_of("load", path), max_fusions)

    # Walking along

    def walk(self) -> "Walk[Payload]":
        """Return where a definition begins."""
        return Walk(self, self._root)

    def found(self, node: Node[Payload] | None) -> FusionSchedules[Payload] | None:
        """Return what an equal definition left at the end of its path, None beside all paths; count the question."""
        with self._lock:
            self._lookups += 1
            schedules = None if node is None else node.schedules
            # A path that was forgotten or reset while a definition walked along it leads nowhere.
            if schedules is None or self._ends.get(schedules.fusion_id) is not node:
                return None
            self._hits += 1
            schedules.hits += 1
            self._ends.move_to_end(schedules.fusion_id)
            return schedules

    def insert(
        self, path: list[tuple[Record, Any]], fusion: Fusion, state: FusionState, *, hits: int = 0,
    ) -> FusionSchedules[Payload]:
        """Return what is kept at the end of a path of calls with their results, which is made where there is none."""
        with self._lock:
            node = self._root
            for record, result in path:
                child = node.children.get(record)
                if child is None:
                    child = node.children[record] = Node(node, record, result)
                    self._records += 1
                node = child
            if node.schedules is None:
                node.schedules = FusionSchedules(self._next_id, fusion, state, hits)
                self._ends[self._next_id] = node
                self._next_id += 1
                if len(self._ends) > self._max:
                    _, oldest = self._ends.popitem(last=False)
                    self._forget(oldest)
            return node.schedules

    def _forget(self, end: Node[Payload]) -> None:
        end.schedules = None
        self._evictions += 1
        node = end
        while node.parent is not None and node.record is not None and not node.children and node.schedules is None:
            del node.parent.children[node.record]
            self._records -= 1
            node = node.parent

    # Showing

    def _lines(self) -> list[TreeLine]:
        """Return the calls, each before those that follow it, and the fusions that end there; of many the first."""
        found: list[TreeLine] = []
        with self._lock:
            tops = list(self._root.children.values())
            waiting = [(0, len(tops) > 1, node) for node in reversed(tops)]
            while waiting and len(found) < MOST_LINES:
                depth, begins, node = waiting.pop()
                text = record_text(node.record, node.result) if node.record is not None else ""
                found.append(TreeLine(depth=depth, text=text, begins=begins))
                kept = node.schedules
                parts = len(node.children) + (kept is not None) > 1
                if kept is not None:
                    note = f"fusion {kept.fusion_id}: {_counted(kept.hits, 'hit')}, "
                    note += "has not run" if kept.payload is None else "has run"
                    found.append(TreeLine(depth=depth + parts, text=note, begins=parts, is_end=True))
                waiting += [(depth + parts, parts, child) for child in reversed(node.children.values())]
            left = self._records + len(self._ends) - len(found)
        if left:
            found.append(TreeLine(depth=0, text=f"... and {left:,} more lines"))
        return found

    def __str__(self) -> str:
        """Return the trie as text: what stands further to the right is one of several ways to go on."""
        return tree_text(self._headline(), self._lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the trie for a notebook, ways to fold away where they part."""
        return tree_html(self._headline(), self._lines())

    def _headline(self) -> str:
        stats = self.stats()
        return (
            f"FusionCache: {_counted(stats.fusions, 'fusion')} in {_counted(stats.records, 'record')}, "
            f"{_counted(stats.lookups, 'lookup')}, {_counted(stats.hits, 'hit')}"
        )

    def paths(self) -> Iterator[tuple[FusionSchedules[Payload], list[Record]]]:
        """Yield each fusion with its calls, least recently used first."""
        with self._lock:
            ends = list(self._ends.values())
        for end in ends:
            calls: list[Record] = []
            node: Node[Payload] | None = end
            while node is not None and node.record is not None:
                calls.append(node.record)
                node = node.parent
            if end.schedules is not None:
                yield end.schedules, calls[::-1]


def _refuse_to_load(*_: object, **__: object) -> NoReturn:
    msg = "load: a cache that exists is not filled from a file; cache = FusionCache.load(path) makes a new one."
    raise StateError(msg)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


class Walk(Generic[Payload]):
    """Where a definition stands that is being recorded.

    It is *following* as long as all its calls are known; `path` are its calls with their results.
    """

    __slots__ = ("_cache", "_node", "cacheable", "path")

    def __init__(self, cache: FusionCache[Payload], root: Node[Payload]) -> None:
        self._cache = cache
        self._node: Node[Payload] | None = root
        self.path: list[tuple[Record, Any]] = []
        self.cacheable = True

    @property
    def following(self) -> bool:
        """Whether nothing has been built so far."""
        return self._node is not None

    def record(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], owner: object) -> Record | None:
        """Return a call as data; None if it has no written form, and then the definition is not kept."""
        if not self.cacheable:
            return None
        try:
            return record_of(name, args, kwargs, owner)
        except Unrecordable:
            self.cacheable = False
            return None

    def follow(self, record: Record | None) -> Node[Payload] | None:
        """Return the next node if this call is known there."""
        if self._node is None or record is None:
            return None
        child = self._node.children.get(record)
        if child is not None:
            self._node = child
            self.path.append((record, child.result))
        return child

    def leave(self) -> list[tuple[Record, Any]]:
        """Stop following, and return what has to be built."""
        self._node = None
        return self.path

    def found(self) -> FusionSchedules[Payload] | None:
        """Return what an equal definition left, now that the definition is complete."""
        return self._cache.found(self._node)

    def keep(self, fusion: Fusion, state: FusionState) -> FusionSchedules[Payload] | None:
        """Return what is now kept of a definition that was built; None if it cannot be kept."""
        return self._cache.insert(self.path, fusion, state) if self.cacheable else None

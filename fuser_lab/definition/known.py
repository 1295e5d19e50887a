"""Known definitions in a trie of their calls: the in-memory part of a `FusionCache`.

After nvFuser's cache of that name (csrc/python_frontend/fusion_cache.h, removed in 2026 with the frontend it was made
for). Each child of a node is one more canonical record (`fuser_lab.definition.canonical`). While a definition's calls
are known as spelled, nothing is built: its handles come from the nodes. At the end it finds the `FusionSchedules` that
an equal definition stored there. If a call is not known as spelled, the definition is built; its records may still be
known, and then the spelling is stored for the next time.

Paths that end in equal fusions share their data, so a definition and its printed form, which contains the parts of
composite ops, are one fusion.

When its cache is full, nvFuser refuses a new fusion; here the least recently used one is evicted.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fuser_lab.arguments import short_text, takes, whole
from fuser_lab.definition.cache_text import MOST_LINES, TreeLine, tree_html, tree_text
from fuser_lab.definition.canonical import Step
from fuser_lab.definition.record import Record, record_text
from fuser_lab.definition.state import FusionState
from fuser_lab.definition.trie import End, FusionSchedules, Node, Taken, count_text
from fuser_lab.errors import DefinitionError, FuserLabError
from fuser_lab.ir import Fusion
from fuser_lab.process.forks import new_lock

Payload = TypeVar("Payload")

MAX_FUSIONS = 16384  # nvFuser's
_MOST_SPELLINGS = 64  # of the calls that may follow a record, as spelled
_MOST_REFUSALS = 256  # refused calls whose messages are cached


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Counts of a cache: ``lookups`` counts definitions that were closed, ``hits`` those that were known."""

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


class KnownDefinitions(Generic[Payload]):
    """Definitions in a trie of their calls, which any number of threads may follow and extend; see `FusionCache`."""

    @takes("FusionCache", max_fusions=whole(accepted="an int"))
    def __init__(self, max_fusions: int = MAX_FUSIONS) -> None:
        if max_fusions < 1:
            raise DefinitionError(f"FusionCache: max_fusions is {short_text(max_fusions)}; it must be at least 1.")
        self._max = max_fusions
        self._lock = new_lock()
        self.root = Node(None, None)
        self._ends: OrderedDict[int, list[Node]] = OrderedDict()  # by fusion id, least recently used first
        self._known: dict[str, FusionSchedules[Payload]] = {}  # by the fusion's digest
        self._refusals: OrderedDict[tuple[Node, Record], None] = OrderedDict()
        self._next_id = self._records = self._lookups = self._hits = self._evictions = 0

    @property
    def max_fusions(self) -> int:
        """Maximum number of stored fusions."""
        return self._max

    def num_fusions(self) -> int:
        """Return the number of fusions."""
        return len(self._ends)

    __len__ = num_fusions

    @takes("FusionCache.end", fusion_id=whole(accepted="the number of a fusion"))
    def end(self, fusion_id: int) -> End:
        """Return the end of the path by which a fusion became known.

        Raises
        ------
        DefinitionError
            If no known fusion has this number.
        """
        with self._lock:
            nodes = self._ends.get(fusion_id, [])
        ends = [node.end for node in nodes if node.end is not None]
        if not ends:
            msg = f"FusionCache: no fusion has the number {short_text(fusion_id)}; there are {self.num_fusions()}."
            raise DefinitionError(msg)
        return ends[0]

    @takes("FusionCache.schedules", fusion_id=whole(accepted="the number of a fusion"))
    def schedules(self, fusion_id: int) -> FusionSchedules[Payload]:
        """Return the data of a fusion; DefinitionError if no known fusion has this number."""
        return self.end(fusion_id).schedules

    def __iter__(self) -> Iterator[FusionSchedules[Payload]]:
        """Iterate over the data of each fusion, least recently used first."""
        with self._lock:
            ends = [nodes[0].end for nodes in self._ends.values()]
        return iter([end.schedules for end in ends if end is not None])

    def stats(self) -> CacheStats:
        """Return counts of stored fusions, lookups and hits."""
        with self._lock:
            ends = [(fusion_id, nodes[0].end) for fusion_id, nodes in reversed(self._ends.items())]
            return CacheStats(
                max_fusions=self._max, fusions=len(ends), records=self._records, lookups=self._lookups,
                hits=self._hits, evictions=self._evictions,
                hits_of=tuple((fusion_id, end.schedules.hits) for fusion_id, end in ends if end is not None),
            )

    def reset(self) -> None:
        """Remove everything."""
        with self._lock:
            self.root = Node(None, None)
            self._ends.clear()
            self._known.clear()
            self._refusals.clear()
            self._records = self._lookups = self._hits = self._evictions = 0

    # Following calls

    def end_of(self, node: Node | None, *, again: bool = False) -> End | None:
        """Return the data that an equal definition stored at the end of its path, or None; count the lookup."""
        with self._lock:
            self._lookups += not again
            end = None if node is None else node.end
            # A path that was evicted or reset while a definition followed it leads nowhere.
            if end is None or node not in self._ends.get(end.schedules.fusion_id, ()):
                return None
            self._use(end.schedules)
            return end

    def _use(self, schedules: FusionSchedules[Payload]) -> None:
        self._hits += 1
        schedules.hits += 1
        self._ends.move_to_end(schedules.fusion_id)

    def child(self, node: Node, spelled: Record, steps: Sequence[Step]) -> Node | None:
        """Return the node that the records of a call lead to, None if there is none; store the call's spelling."""
        with self._lock:
            here: Node | None = node
            for step in steps:
                here = None if here is None else here.children.get(step.effect)
            if here is not None:
                _spell(node, spelled, here)
            return here

    def insert(
        self, taken: Sequence[Taken], fusion: Fusion, state: FusionState, *, hits: int = 0,
        fusion_id: int | None = None,
    ) -> End:
        """Return the data at the end of a path of calls, which is created if it does not exist.

        An equal fusion with another path counts as a hit, unless a file is being read, which provides ``hits`` and
        ``fusion_id``.
        """
        with self._lock:
            node = self._path(taken)
            if node.end is not None:
                return node.end
            schedules = self._known.get(fusion.digest)
            if schedules is None:
                number = self._next_id if fusion_id is None or fusion_id in self._ends else fusion_id
                schedules = self._known[fusion.digest] = FusionSchedules(number, fusion, state, hits)
                self._next_id = max(self._next_id, number + 1)
                self._ends[number] = []
            elif fusion_id is None:
                self._use(schedules)
            node.end = End(schedules, fusion, state, tuple(step for _, steps in taken for step in steps))
            self._ends[schedules.fusion_id].append(node)
            if len(self._ends) > self._max:
                _, oldest = self._ends.popitem(last=False)
                self._forget(oldest)
            return node.end

    def refuse(self, taken: Sequence[Taken], spelled: Record, error: FuserLabError) -> None:
        """Record that a call is refused after a path of calls."""
        with self._lock:
            node = self._path(taken)
            node.refused = {**node.refused, spelled: type(error)(*error.args)}
            self._refusals[node, spelled] = None
            if len(self._refusals) > _MOST_REFUSALS:
                (oldest, call), _ = self._refusals.popitem(last=False)
                oldest.refused = {earlier: said for earlier, said in oldest.refused.items() if earlier != call}
                self._prune(oldest)

    def _path(self, taken: Sequence[Taken]) -> Node:
        node = self.root
        for spelled, steps in taken:
            begin = node
            for step in steps:
                child = node.children.get(step.effect)
                if child is None:
                    child = node.children[step.effect] = Node(node, step)
                    self._records += 1
                node = child
            if spelled is not None:
                _spell(begin, spelled, node)
        return node

    def _forget(self, ends: Sequence[Node]) -> None:
        self._evictions += 1
        for node in ends:
            if node.end is not None:
                self._known.pop(node.end.schedules.fusion.digest, None)
            node.end = None
            self._prune(node)

    def _prune(self, node: Node) -> None:
        """Remove records that no longer lead anywhere."""
        while node.parent is not None and node.step is not None and node.leads_nowhere:
            del node.parent.children[node.step.effect]
            for owner, spelled in node.spellings:
                owner.spelled.pop(spelled, None)
            self._records -= 1
            node = node.parent

    # Showing

    def _lines(self) -> list[TreeLine]:
        """Return the calls, each before those that follow it, and the fusions that end there; the first of many."""
        lines: list[TreeLine] = []
        with self._lock:
            tops = list(self.root.children.values())
            waiting = [(0, len(tops) > 1, node) for node in reversed(tops)]
            while waiting and len(lines) < MOST_LINES:
                depth, begins, node = waiting.pop()
                text = record_text(node.step.record, node.step.result) if node.step is not None else ""
                lines.append(TreeLine(depth=depth, text=text, begins=begins))
                parts = len(node.children) + len(node.refused) + (node.end is not None) > 1
                if node.end is not None:
                    schedules = node.end.schedules
                    note = f"fusion {schedules.fusion_id}: {count_text(schedules.hits, 'hit')}, "
                    note += "has not run" if schedules.payload is None else "has run"
                    lines.append(TreeLine(depth=depth + parts, text=note, begins=parts, is_end=True))
                lines += [
                    TreeLine(depth=depth + parts, text=f"{record_text(call)} is refused: {error}", begins=parts)
                    for call, error in node.refused.items()
                ]
                waiting += [(depth + parts, parts, child) for child in reversed(node.children.values())]
            every = self._records + len(self._refusals) + sum(map(len, self._ends.values()))
            left = every - len(lines)
        if left:
            lines.append(TreeLine(depth=0, text=f"... and {left:,} more lines"))
        return lines

    def __str__(self) -> str:
        """Return the trie as text: indented lines are alternative branches."""
        return tree_text(self._headline(), self._lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the trie for a notebook, with branches that can be folded."""
        return tree_html(self._headline(), self._lines())

    def _headline(self) -> str:
        stats = self.stats()
        return (
            f"FusionCache: {count_text(stats.fusions, 'fusion')} in {count_text(stats.records, 'record')}, "
            f"{count_text(stats.lookups, 'lookup')}, {count_text(stats.hits, 'hit')}"
        )

    def paths(self) -> Iterator[End]:
        """Yield the end of each path, least recently used fusions first."""
        with self._lock:
            ends = [node.end for nodes in self._ends.values() for node in nodes]
        yield from (end for end in ends if end is not None)


def _spell(node: Node, spelled: Record, to: Node) -> None:
    """Let a spelling of a call lead directly to the node of its records."""
    if node is not to and spelled not in node.spelled and len(node.spelled) < _MOST_SPELLINGS + len(node.children):
        node.spelled[spelled] = to
        to.spellings = (*to.spellings, (node, spelled))

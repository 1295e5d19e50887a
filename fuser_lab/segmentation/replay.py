"""From attempts to groups: the fold that makes a plan of a log."""

from collections.abc import Iterable

from fuser_lab.errors import SegmentationError
from fuser_lab.events import Attempt, Kind, Names
from fuser_lab.ir import Expr, Fusion
from fuser_lab.segmentation.graph import SegmentedFusion, assemble
from fuser_lab.segmentation.oracle import SchedulerOracle


class Fold:
    """Groups of expression names, changed by accepted attempts and by nothing else."""

    def __init__(self, fusion: Fusion) -> None:
        self._fusion = fusion
        self._groups: dict[str, frozenset[str]] = {e.name: frozenset({e.name}) for e in fusion.tensor_exprs}
        self._chains: dict[Names, None] = {}
        self._copies: list[tuple[Names, Names]] = []
        self._stored: list[Names] = []

    def apply(self, attempt: Attempt) -> None:
        """Apply one attempt; a refusal changes nothing."""
        if not attempt.accepted:
            return
        if attempt.kind is Kind.MERGE:
            self._merge(attempt.subjects)
        elif attempt.kind is Kind.FORWARD:
            for chain in attempt.subjects:
                self._chains[chain] = None
                for name in chain:
                    self._groups.pop(name)
        elif attempt.kind is Kind.REPLICATE:
            self._copies.append((attempt.subjects[0], attempt.subjects[1]))
        elif attempt.kind is Kind.STORE:
            self._stored.extend(attempt.subjects)
        else:
            self._groups.clear()
            self._merge_all(attempt.subjects)

    def _merge(self, subjects: Iterable[Names]) -> None:
        union = frozenset(name for group in subjects for name in group)
        if not union <= self._groups.keys():
            msg = f"the log merges {', '.join(sorted(union - self._groups.keys()))}, which no group holds."
            raise SegmentationError(msg)
        for name in union:
            self._groups[name] = union

    def _merge_all(self, groups: Iterable[Names]) -> None:
        for group in groups:
            for name in group:
                self._groups[name] = frozenset(group)

    @property
    def recomputed(self) -> frozenset[str]:
        """Names of the expressions that readers make for themselves."""
        return frozenset(name for chain in self._chains for name in chain)

    def groups(self) -> list[list[Expr]]:
        """Return the groups as they are now, with their copies."""
        place = self._fusion.positions
        found: list[set[str]] = [set(group) for group in dict.fromkeys(self._groups.values())]
        for chain, reader in self._copies:
            next(group for group in found if reader[0] in group).update(chain)
        found += [set(chain) for chain in self._stored]
        return [[self._fusion.exprs[place[name]] for name in sorted(group, key=place.__getitem__)] for group in found]


def replay(fusion: Fusion, attempts: Iterable[Attempt], oracle: SchedulerOracle) -> SegmentedFusion:
    """Return the segmented fusion that a log's accepted attempts make.

    Raises
    ------
    SegmentationError
        If the log does not belong to this fusion.
    """
    fold = Fold(fusion)
    for attempt in attempts:
        fold.apply(attempt)
    return assemble(fusion, fold.groups(), fold.recomputed, oracle)

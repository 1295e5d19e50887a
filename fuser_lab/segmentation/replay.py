"""From attempts to groups: the fold that turns a log into a plan."""

from collections.abc import Iterable, Sequence

from fuser_lab.errors import SegmentationError
from fuser_lab.ir import Expr, Fusion
from fuser_lab.segmentation.boundary_casts import cast_of, chosen_dtype, with_casts
from fuser_lab.segmentation.events import Attempt, Kind, Names
from fuser_lab.segmentation.graph import SegmentedFusion, assemble
from fuser_lab.segmentation.oracle import SchedulerOracle
from fuser_lab.segmentation.privatization import Replica, replicas_in, with_replicas, without
from fuser_lab.segmentation.recomputation import copies_in, with_copies
from fuser_lab.segmentation.welford import welfords, written_out


class Fold:
    """Groups of expression names, changed only by accepted attempts.

    ``fusion`` is the fusion of the groups; rewrites change it, unless it is already rewritten.
    """

    def __init__(self, fusion: Fusion) -> None:
        self._fusion = fusion
        self._groups: dict[str, frozenset[str]] = {e.name: frozenset({e.name}) for e in fusion.tensor_exprs}
        self._chains: dict[Names, None] = {}
        self._copies: list[tuple[Names, Names]] = []
        self._stored: list[Names] = []
        self._new: list[Replica] = []
        self._dropped: dict[str, str] = {}
        self._replicas: dict[str, str] = {}

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
        elif attempt.kind is Kind.PRIVATIZE:
            self._privatize(replicas_in(attempt))
        elif attempt.kind is Kind.REVERT:
            self._revert(attempt.subjects)
        elif attempt.kind is Kind.REWRITE:
            self._rewrite(attempt.subjects)
        elif attempt.kind is Kind.CAST:
            self._cast(attempt)
        elif attempt.kind is Kind.RECOMPUTE:
            self._recompute(attempt)
        else:
            self._join_chains(frozenset().union(*attempt.subjects))
            self._groups.clear()
            self._merge_all(attempt.subjects)

    def _merge(self, subjects: Iterable[Names]) -> None:
        union = frozenset().union(*subjects)
        self._join_chains(union)
        if not union <= self._groups.keys():
            msg = f"the log merges {', '.join(sorted(union - self._groups.keys()))}, which no group contains."
            raise SegmentationError(msg)
        self._groups.update(dict.fromkeys(union, union))

    def _join_chains(self, names: frozenset[str]) -> None:
        """Make forwarded expressions ordinary parts of the group that contains them: it stores what others read."""
        joined = names & self.recomputed
        if joined:
            self._groups.update((name, frozenset({name})) for name in joined)
            left = (tuple(name for name in chain if name not in joined) for chain in self._chains)
            self._chains = dict.fromkeys(filter(None, left))
            self._stored = [stored for stored in self._stored if joined.isdisjoint(stored)]
            self._copies = [(chain, reader) for chain, reader in self._copies if joined.isdisjoint(chain)]

    def _rewrite(self, subjects: Iterable[Names]) -> None:
        names = {name for group in subjects for name in group}
        missing = sorted(names - self.fusion.positions.keys())
        if missing:
            msg = f"the log rewrites {', '.join(missing)}, which the fusion does not compute."
            raise SegmentationError(msg)
        exprs = [self.fusion.exprs[self.fusion.positions[name]] for name in names]
        self._fusion = written_out(self.fusion, {expr.name for expr in welfords(exprs, self.fusion)})
        for expr in self.fusion.tensor_exprs:
            if expr.name in names or expr.name not in self._groups:
                self._groups[expr.name] = frozenset({expr.name})

    def _cast(self, attempt: Attempt) -> None:
        subjects = attempt.subjects
        cast = cast_of(self.fusion, subjects, chosen_dtype(attempt))
        self._fusion = with_casts(self.fusion, [cast])
        self._join(cast.lower, (self._fusion.producers[self._fusion.tensors[cast.tensor]].name,))
        for place, group in enumerate(subjects[1:]):
            self._join(cast.back(place), group)

    def _recompute(self, attempt: Attempt) -> None:
        copies, moved = copies_in(attempt)
        named = {*copies.originals, *copies.readers, *moved}
        if not copies.readers or not named <= self.fusion.positions.keys():
            missing = ", ".join(sorted(named - self.fusion.positions.keys())) or "what nothing reads"
            msg = f"the log computes {missing} again, which the fusion does not compute."
            raise SegmentationError(msg)
        self._fusion = with_copies(self.fusion, copies)
        for name in moved:
            left = self._groups.pop(name, frozenset()) - {name}
            self._groups.update(dict.fromkeys(left, left))
            self._join(name, copies.readers)
        for name, original in copies.pairs.items():
            self._replicas[name] = self._replicas.get(original, original)
            self._join(name, copies.readers)

    def _join(self, name: str, beside: Names) -> None:
        """Put a new expression into the group of others."""
        member = next((other for other in beside if other in self._groups), None)
        if member is None:
            msg = f"the log adds {name} to the group of {', '.join(beside)}, which does not exist."
            raise SegmentationError(msg)
        union = self._groups[member] | {name}
        self._groups.update(dict.fromkeys(union, union))

    def _privatize(self, replicas: Sequence[Replica]) -> None:
        self._new += replicas
        for replica in replicas:
            is_possible = {replica.original, replica.reader} <= self._groups.keys()
            if not is_possible or replica.name in self._groups:
                msg = (
                    f"the log makes {replica.name} a replica of {replica.original} for {replica.reader}, which is not "
                    "possible."
                )
                raise SegmentationError(msg)
            self._replicas[replica.name] = self._replicas.get(replica.original, replica.original)
            self._groups[replica.name] = frozenset({replica.name})

    def _revert(self, subjects: Iterable[Names]) -> None:
        for stays, *dropped in subjects:
            gone = frozenset(dropped)
            if not gone < self._groups.get(stays, frozenset()):
                msg = f"the log merges {', '.join(dropped)} with {stays}, which is in another group."
                raise SegmentationError(msg)
            left = self._groups[stays] - gone
            self._groups.update(dict.fromkeys(left, left))
            for name in dropped:
                self._dropped[name] = stays
                del self._groups[name], self._replicas[name]

    @property
    def fusion(self) -> Fusion:
        """The fusion of the groups."""
        if self._new or self._dropped:
            self._fusion = without(with_replicas(self._fusion, self._new), self._dropped)
            self._new, self._dropped = [], {}
        return self._fusion

    @property
    def replicas(self) -> dict[str, str]:
        """The current replicas, each with the expression that it repeats."""
        return dict(self._replicas)

    def _merge_all(self, groups: Iterable[Names]) -> None:
        for group in groups:
            for name in group:
                self._groups[name] = frozenset(group)

    @property
    def recomputed(self) -> frozenset[str]:
        """Names of the expressions that readers recompute."""
        return frozenset(name for chain in self._chains for name in chain)

    def groups(self) -> list[list[Expr]]:
        """Return the current groups, with their copies."""
        place = self.fusion.positions
        groups: list[set[str]] = [set(group) for group in dict.fromkeys(self._groups.values())]
        for chain, reader in self._copies:
            ends = {value for name in chain for value in self.fusion.exprs[place[name]].outputs}
            for group in groups:
                # A recomputation may have moved the reader, or some expressions from beside it.
                inside = group & set(reader)
                if any(not ends.isdisjoint(self.fusion.exprs[place[name]].inputs) for name in inside):
                    group.update(chain)
        groups += [set(chain) for chain in self._stored]
        return [[self.fusion.exprs[place[name]] for name in sorted(group, key=place.__getitem__)] for group in groups]


def replay(fusion: Fusion, attempts: Iterable[Attempt], oracle: SchedulerOracle) -> SegmentedFusion:
    """Return the segmented fusion that results from a log's accepted attempts.

    Raises
    ------
    SegmentationError
        If the log does not belong to this fusion.
    """
    fold = Fold(fusion)
    for attempt in attempts:
        fold.apply(attempt)
    return assemble(fold.fusion, fold.groups(), fold.recomputed, oracle, fold.replicas)

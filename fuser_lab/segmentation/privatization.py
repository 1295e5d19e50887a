"""Privatization: each reader of a widening cast or a squeeze gets its own, so that boundaries fall on its operand.

A replica is a separate expression, with its own name: if the groups of two readers end up in one segment, their
replicas become one expression again; otherwise each segment computes its own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from fuser_lab.cost.rules import follows
from fuser_lab.ir import Expr, Fusion, OpKind, Val
from fuser_lab.passes.base import with_inputs
from fuser_lab.passes.rewriter import Axes, result_named
from fuser_lab.segmentation.casts import is_widening
from fuser_lab.segmentation.events import Attempt, Kind, Names, Outcome

MOST_SQUEEZE_READERS = 2  # squeezes with more readers are unchanged, as in nvFuser


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """Names: ``reader`` reads ``name``, which computes what ``original`` does, instead of ``original``."""

    original: str
    name: str
    reader: str


@follows("fusion_segmenter", "SegmentCandidateFinder::privatizeUpCastOrSqueezeOp", 4143, 4254)
def replicas_of(fusion: Fusion, fixed: Iterable[Expr] = ()) -> list[Replica]:
    """Return the replicas that privatization makes, in the order in which they are made.

    Every reader but the first of a widening cast, or of a squeeze with two readers, gets a replica. This is repeated
    until nothing changes, since a replica has the operands of its original. Expressions in ``fixed`` are neither
    replicated nor given replicas to read.
    """
    replicas: list[Replica] = []
    readers = _Readers(fusion, {expr.name for expr in fixed})
    while some := list(readers.round()):
        replicas += some
    return replicas


class _Readers:
    """The readers of each expression that can be replicated, updated as replicas are created."""

    def __init__(self, fusion: Fusion, fixed: set[str]) -> None:
        self._taken = {*fusion.tensors, *(value.name for value in fusion.inputs)}
        self._most = {
            expr.name: MOST_SQUEEZE_READERS if expr.kind is OpKind.SQUEEZE else len(fusion.exprs)
            for expr in fusion.tensor_exprs
            if expr.name not in fixed and (expr.kind is OpKind.SQUEEZE or is_widening(expr))
        }
        self._of: dict[str, list[str]] = {name: [] for name in self._most}
        self._reads: dict[str, list[str]] = {}
        self._fixed = fixed
        for expr in fusion.tensor_exprs if self._most else ():
            for value in dict.fromkeys(expr.tensor_inputs):
                maker = fusion.producers.get(value)
                if maker is not None and maker.name in self._most:
                    self._of[maker.name].append(expr.name)
                    self._reads.setdefault(expr.name, []).append(maker.name)

    def round(self) -> Iterator[Replica]:
        """Create and yield the replicas for all current readers."""
        for reader in list(self._reads):
            for maker in list(self._reads[reader]):
                if reader in self._fixed or self._of[maker][0] == reader:
                    continue
                if 1 < len(self._of[maker]) <= self._most[maker]:
                    yield self._replica(maker, reader)

    def _replica(self, maker: str, reader: str) -> Replica:
        name = next(n for i in count(1) if (n := f"{maker}_replica{i if i > 1 else ''}") not in self._taken)
        self._taken.add(name)
        self._most[name] = self._most[maker]
        self._of[maker].remove(reader)
        self._of[name] = [reader]
        self._reads[reader][self._reads[reader].index(maker)] = name
        if maker in self._reads:
            self._reads[name] = list(self._reads[maker])
            for source in self._reads[name]:
                self._of[source].append(name)
        return Replica(original=maker, name=name, reader=reader)


def attempts(replicas: Iterable[Replica]) -> Iterator[Attempt]:
    """Yield one attempt for each expression that is replicated: it, and each replica with its reader.

    A replica that is read by another replica comes after that one; its original may then have a second attempt.
    """
    by_original: dict[str, list[Names]] = {}
    made: set[str] = set()
    for replica in replicas:
        if not made.isdisjoint((replica.original, replica.reader)):
            yield from _privatize(by_original)
            by_original, made = {}, set()
        by_original.setdefault(replica.original, []).append((replica.name, replica.reader))
        made.add(replica.name)
    yield from _privatize(by_original)


def _privatize(by_original: Mapping[str, Sequence[Names]]) -> Iterator[Attempt]:
    for original, pairs in by_original.items():
        each = ", ".join(f"{reader} has {name}" for name, reader in pairs)
        yield Attempt(
            phase="privatize",
            kind=Kind.PRIVATIZE,
            subjects=((original,), *pairs),
            outcome=Outcome.ACCEPTED,
            text=f"each reader of {original} computes it for itself: {each}",
        )


def originals_of(replicas: Iterable[Replica]) -> dict[str, str]:
    """Return, for each replica, the expression of the fusion without replicas that it repeats."""
    originals: dict[str, str] = {}
    for replica in replicas:
        originals[replica.name] = originals.get(replica.original, replica.original)
    return originals


def replicas_in(attempt: Attempt) -> list[Replica]:
    """Return the replicas that an attempt of `attempts` makes."""
    (original,), *pairs = attempt.subjects
    return [Replica(original=original, name=name, reader=reader) for name, reader in pairs]


def with_replicas(fusion: Fusion, replicas: Sequence[Replica]) -> Fusion:
    """Return the fusion with replicas, each right before its reader; the same object if there are none.

    Raises
    ------
    KeyError
        If the fusion has no expression of some name.
    """
    if not replicas:
        return fusion
    axes = Axes(fusion)
    exprs = {expr.name: expr for expr in fusion.exprs}
    before: dict[str, list[str]] = {}
    for replica in replicas:
        original, reader = exprs[replica.original], exprs[replica.reader]
        made = again(original, replica.name, axes)
        exprs[replica.name] = made
        exprs[replica.reader] = with_inputs(reader, {original.out: made.out})
        before.setdefault(replica.reader, []).append(replica.name)
    ordered: list[Expr] = []
    for expr in fusion.exprs:
        waiting, last_first = [expr.name], []
        while waiting:
            name = waiting.pop()
            last_first.append(exprs[name])
            waiting += before.get(name, ())
        ordered += reversed(last_first)
    return replace(fusion, exprs=tuple(ordered))


def without(fusion: Fusion, dropped: Mapping[str, str]) -> Fusion:
    """Return the fusion without some replicas; their readers read the expressions that they are mapped to."""
    if not dropped:
        return fusion
    instead: dict[Val, Val] = {fusion.tensors[name]: fusion.tensors[into] for name, into in dropped.items()}
    exprs = (with_inputs(expr, instead) for expr in fusion.exprs if expr.name not in dropped)
    return replace(fusion, exprs=tuple(exprs))


def repeated_exprs(exprs: Iterable[Expr], originals: Mapping[str, str]) -> dict[str, str]:
    """Return the replicas that repeat another expression of their segment, each with that expression.

    Parameters
    ----------
    exprs
        Expressions of a segment in topological order.
    originals
        For each replica, the expression of the fusion without replicas that it repeats.
    """
    first: dict[tuple[str, tuple[str, ...]], str] = {}
    same: dict[str, str] = {}
    for expr in exprs:
        reads = tuple(same.get(value.name, value.name) for value in expr.inputs)
        stays = first.setdefault((originals.get(expr.name, expr.name), reads), expr.name)
        if stays != expr.name:
            same[expr.name] = stays
    return same


def read_together(exprs: Iterable[Expr], same: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the tensors that a segment reads several times as replicas of one tensor, by the name of that tensor.

    Schedulers may accept a segment that reads two replicas of x, but refuse ``x + x.T``.
    """
    read = {value.name for expr in exprs for value in expr.tensor_inputs}
    together: dict[str, list[str]] = {}
    for name, into in same.items():
        if name in read:
            together.setdefault(into, [into] if into in read else []).append(name)
    return {into: names for into, names in together.items() if len(names) > 1}


def again(expr: Expr, name: str, axes: Axes) -> Expr:
    """Return a copy of an expression with another name and new axes."""
    result, old = result_named(name, expr.op.name, expr.inputs, dict(expr.attrs), axes), expr.out.domain
    domain = replace(result.domain, allocation=old.allocation, contiguity=old.contiguity, hint=old.hint)
    out = replace(expr.out, name=name, domain=domain)
    return Expr(op=expr.op, inputs=expr.inputs, outputs=(out,), attrs=expr.attrs)



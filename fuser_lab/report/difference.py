"""The difference of two plans as data: moved expressions, crossing tensors, and the traffic of both."""

from dataclasses import dataclass

from fuser_lab.report.units import bytes_label, plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two plans in numbers; ``bytes`` is the total that its segments read and write.

    ``ops`` names the expressions of each segment.
    """

    name: str
    target: str
    schedulers: tuple[str, ...]
    ops: tuple[tuple[str, ...], ...]
    bytes: int
    bytes_crossing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An expression that is grouped differently: its segments in the first plan and in the second."""

    name: str
    op: str
    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A tensor that passes between segments in only one of the plans."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The difference of two plans of one definition; false if both have the same cuts.

    ``partners`` pairs the segments that share the most expressions. An expression has moved if its segments in the two
    plans are not partners. ``only_before`` and ``only_after`` name expressions that only one of the fusions has because
    different passes ran.
    """

    before: Side
    after: Side
    partners: tuple[tuple[int, int], ...]
    moved: tuple[Move, ...]
    now_crossing: tuple[Crossing, ...]
    no_longer_crossing: tuple[Crossing, ...]
    only_before: tuple[str, ...] = ()
    only_after: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether any cut or scheduler differs."""
        return bool(self._changes) or self.before.schedulers != self.after.schedulers

    @property
    def _changes(self) -> tuple[object, ...]:
        crossing = (*self.now_crossing, *self.no_longer_crossing)
        return (*self.moved, *crossing, *self.only_before, *self.only_after)

    @property
    def bytes_saved(self) -> int:
        """Bytes of traffic that the second plan saves; negative if it costs more."""
        return self.before.bytes - self.after.bytes

    @property
    def headline(self) -> str:
        """Both plans in one line."""
        first, second = self.before, self.after
        targets = "" if first.target == second.target else f", for {first.target} and for {second.target}"
        if not self:
            return f"{first.name} and {second.name}{targets}: the same {plural(len(first.schedulers), 'segment')}"
        saved = self.bytes_saved
        word = f"{bytes_label(abs(saved))} {'less' if saved > 0 else 'more'}" if saved else "the same bytes"
        return (
            f"{first.name} → {second.name}{targets}: {len(first.schedulers)} → "
            f"{plural(len(second.schedulers), 'segment')}, {bytes_label(first.bytes)} → {bytes_label(second.bytes)} "
            f"moved ({word})"
        )

"""The tensors that pass between the segments of a plan, by the bytes that kernels write and read of each."""

from collections.abc import Mapping
from dataclasses import dataclass

from fuser_lab.report.memory_plot import bytes_of
from fuser_lab.report.roofline_plot import device_of
from fuser_lab.report.subject import PlanLike
from fuser_lab.report.tables import Table
from fuser_lab.report.units import bytes_label, seconds_label


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A tensor that kernels write for others: who writes and reads it, and the bytes of each."""

    tensor: str
    writers: tuple[int, ...]
    readers: tuple[int, ...]
    written: int
    read: int

    @property
    def moved(self) -> int:
        """Bytes of both."""
        return self.written + self.read


def passages(plan: PlanLike) -> tuple[Passage, ...]:
    """Return the tensors that kernels write for other kernels, the one of which they move the most bytes first.

    A view counts as its base: who reads the view reads the base. Tensors of which no kernel reads anything are omitted.
    """
    bases: Mapping[str, str] = getattr(plan, "bases", {})
    writes, reads = dict[str, dict[int, int]](), dict[str, dict[int, int]]()
    for segment in plan.segments:
        if getattr(segment, "is_view", False):
            continue
        for result in segment.outputs:
            writes.setdefault(result.name, {})[segment.index] = bytes_of(result)
        group = getattr(segment, "group", None)
        sizes = {t: bytes_of(t) for t in segment.inputs} if group is None else group.bytes_read
        for tensor, size in sizes.items():
            into = reads.setdefault(bases.get(tensor.name, tensor.name), {})
            into[segment.index] = into.get(segment.index, 0) + size
    crossing = (
        Passage(
            tensor=name, writers=tuple(written), readers=tuple(reads[name]), written=sum(written.values()),
            read=sum(reads[name].values()),
        )
        for name, written in writes.items() if name in reads
    )
    return tuple(sorted(crossing, key=lambda passage: -passage.moved))


def passage_table(plan: PlanLike) -> Table:
    """Return one row per tensor that kernels write for other kernels, the one that costs the most first."""
    device = device_of(plan)
    time = f"at {device.bandwidth:,.0f} GB/s ({device.name})"
    columns = ("tensor", "from", "to", "written", "read", "moved", time)
    rows = (
        (
            p.tensor, _segments(p.writers), _segments(p.readers), bytes_label(p.written), bytes_label(p.read),
            bytes_label(p.moved), seconds_label(p.moved / (device.bandwidth * 1e9)),
        )
        for p in passages(plan)
    )
    return Table(columns=columns, rows=tuple(rows), numeric=frozenset(columns[3:]))


def _segments(numbers: tuple[int, ...]) -> str:
    return ", ".join(f"S{number}" for number in numbers)

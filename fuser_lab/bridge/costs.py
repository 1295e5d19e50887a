"""What the cuts of a whole model cost: the bytes that pass between segments, by module and by reason."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from fuser_lab.bridge.model_view import region_rows
from fuser_lab.cost.verdict import Answer
from fuser_lab.report.units import bytes_label

if TYPE_CHECKING:
    from fuser_lab.bridge.capture import CapturedGraph
    from fuser_lab.bridge.region import Region
    from fuser_lab.segmentation import Why

MOST_BOUNDARIES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """Two segments of a region between which tensors pass, in all regions that are equal.

    ``bytes`` counts what passes once, in each of the ``count`` regions; ``why`` says why the segments are apart.
    """

    kind: str
    region: int
    count: int
    segments: tuple[int, int]
    tensors: tuple[str, ...]
    bytes: int
    module: str
    line: str
    reason: str
    why: str

    def __str__(self) -> str:
        """Return one line."""
        times = f"{self.count} × " if self.count > 1 else ""
        where = f"; {self.line}" if self.line else ""
        return (
            f"{bytes_label(self.bytes)}: {times}{self.kind} region {self.region}, S{self.segments[0]} to "
            f"S{self.segments[1]} ({', '.join(self.tensors)}): {self.reason}{where}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCosts:
    """The boundaries of all regions, the dearest first, and the bytes that cross them."""

    boundaries: tuple[Boundary, ...]

    @property
    def bytes_crossing(self) -> int:
        """Bytes that pass between segments of regions."""
        return sum(boundary.bytes for boundary in self.boundaries)

    @property
    def by_module(self) -> dict[str, int]:
        """Bytes by the path of the module that made the tensor, the most first."""
        return _summed((boundary.module, boundary.bytes) for boundary in self.boundaries)

    @property
    def by_reason(self) -> dict[str, int]:
        """Bytes by the code of the reason for which two segments are apart, the most first."""
        return _summed((boundary.reason, boundary.bytes) for boundary in self.boundaries)

    def __repr__(self) -> str:
        """Return the sums and the ten dearest boundaries as text."""
        lines = [f"{bytes_label(self.bytes_crossing)} pass between segments of regions"]
        for title, sums in (("by module", self.by_module), ("by reason", self.by_reason)):
            lines += [f"{title}:", *(f"  {bytes_label(n)}: {name or '(no module)'}" for name, n in sums.items())]
        lines += ["dearest boundaries:", *(f"  {boundary}" for boundary in self.boundaries[:MOST_BOUNDARIES])]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the same as static HTML."""
        return f"<pre>{escape(repr(self))}</pre>"


def _summed(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for name, count in pairs:
        sums[name] += count
    return dict(sums.most_common())


def model_costs(graphs: Sequence["CapturedGraph"]) -> ModelCosts:
    """Return what the cuts of captured graphs cost; equal regions are looked at once."""
    found = [
        boundary
        for graph in graphs
        for row in region_rows(graph.regions)
        for boundary in _boundaries(graph.kind, row.region, row.count)
    ]
    return ModelCosts(boundaries=tuple(sorted(found, key=lambda boundary: -boundary.bytes)))


def _boundaries(kind: str, region: "Region", count: int) -> Iterable[Boundary]:
    plan = region.plan
    origins = {name: op.origin for op in region.ops for name in op.tensors}
    for why in plan.boundaries():
        first, second = why.segments
        read = set(plan.segments[second].inputs)
        crossing = [tensor for tensor in plan.segments[first].outputs if tensor in read]
        origin = next((origins[tensor.name] for tensor in crossing if tensor.name in origins), None)
        yield Boundary(
            kind=kind, region=region.index, count=count, segments=why.segments,
            tensors=tuple(tensor.name for tensor in crossing), bytes=count * sum(tensor.nbytes for tensor in crossing),
            module=origin.module if origin else "", line=str(origin) if origin else "", reason=_reason(why),
            why=str(why),
        )


def _reason(why: "Why") -> str:
    """Return the code of the reason that decides, or how the two segments stand."""
    decisive = [verdict for verdict in Answer(why.verdicts).decisive if not verdict.accepted]
    return decisive[0].code if decisive else why.relation.value

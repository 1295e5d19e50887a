"""A captured model as text and HTML: its regions by module, and the ops left to torch."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from fuser_lab.bridge.partition import ADDED, NO_KERNEL
from fuser_lab.bridge.remedies import remedy
from fuser_lab.report.units import plural

if TYPE_CHECKING:
    from fuser_lab.bridge.capture import CapturedGraph, GraphBreak
    from fuser_lab.bridge.region import Region
    from fuser_lab.bridge.signature import Signature

MOST_LINES = 40  # rows of each list of a text
# Ops that no fusion of memory-bound ops contains.
_OWN_KERNELS = (
    "mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "linear", "convolution", "convolution_backward",
    "_scaled_dot_product", "_grouped_mm", "_flash_attention", "_efficient_attention", "_cdist", "_trilinear",
    "dot_general", "ragged_dot", "conv_general_dilated",
)


@dataclass(frozen=True, slots=True)
class LeftOver:
    """An op that is left to the library of the graph: how often, why, its first source line, and what it would take."""

    op: str
    count: int
    reason: str
    origin: str
    takes: str

    @property
    def is_free(self) -> bool:
        """Whether it computes nothing, because it is only a view or a constant."""
        return is_free(self.reason)

    def __str__(self) -> str:
        """Return one line."""
        first = "the first: " if self.count > 1 else ""
        where = f"; {first}{self.origin}" if self.origin else ""
        takes = f"; what it takes: {self.takes}" if self.takes else ""
        return f"{self.count} × {self.op}: {self.reason}{where}{takes}"


def graph_titles(graphs: Sequence["CapturedGraph"]) -> tuple[str, ...]:
    """Return the kinds of captured graphs; several of one kind are numbered."""
    kinds = [graph.kind for graph in graphs]
    return tuple(
        kind if kinds.count(kind) == 1 else f"{kind} {kinds[:number].count(kind)}" for number, kind in enumerate(kinds)
    )


def left_rows(
    graphs: Sequence["CapturedGraph"], breaks: Sequence["GraphBreak"] = (),
) -> tuple[LeftOver, ...]:
    """Return the ops left to torch, in graphs and between them, the most frequent first; free views come last."""
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], str] = {}
    for graph in graphs:
        for left in graph.left:
            counts[left.op, left.reason] += 1
            first.setdefault((left.op, left.reason), str(left.origin))
    for graph_break in breaks:
        if graph_break.op:
            counts[graph_break.op, graph_break.why_outside] += 1
            first.setdefault((graph_break.op, graph_break.why_outside), graph_break.place)
    library = graphs[0].library if graphs else "torch"
    rows = [
        LeftOver(op, count, why, first[op, why], remedy(library, op, why)) for (op, why), count in counts.items()
    ]
    return tuple(sorted(rows, key=lambda row: (row.is_free, -row.count, row.op)))


def is_free(reason: str) -> bool:
    """Whether a call that is left to torch for this reason is free."""
    return reason.startswith(("a view at the edge", "a region would hold views"))


@dataclass(frozen=True, slots=True)
class Shares:
    """How many calls of the captured graphs are in regions, and why the others are not."""

    in_regions: int  # computed by kernels of regions
    free: int  # views at the edges of regions, and views and constants without other ops
    own_kernels: int  # matrix products, attention, convolutions, random numbers
    others: int
    evaluated: int = 0  # in regions, but evaluated by the array library, because no kernel computes them
    outside: int = 0  # run by the library between two graphs

    @property
    def fused(self) -> float:
        """The share in regions of the calls that are neither free nor have their own kernels."""
        return self.in_regions / max(1, self.in_regions + self.others + self.evaluated + self.outside)


def shares_of(graphs: Sequence["CapturedGraph"], breaks: Sequence["GraphBreak"] = ()) -> Shares:
    """Return the distribution of calls; calls of a failed region count among ``others``."""
    free = separate = others = 0
    for graph in graphs:
        for left in graph.left:
            packet = left.op.removeprefix("aten.").removeprefix("lax.").partition(".")[0]
            if is_free(left.reason):
                free += 1
            elif left.reason.startswith(("it draws", "it only copies", ADDED)) or packet.startswith(_OWN_KERNELS):
                separate += 1
            elif left.op != "getitem":
                others += 1
    regions = [region for graph in graphs for region in graph.regions]
    whole = [region for region in regions if region.failed is None]
    others += sum(len(region) for region in regions if region.failed is not None)
    evaluated = sum(len(region.evaluated) for region in whole)
    outside = sum(bool(graph_break.op) for graph_break in breaks)
    return Shares(sum(map(len, whole)) - evaluated, free, separate, others, evaluated, outside)


@dataclass(frozen=True, slots=True)
class RegionRow:
    """Equal regions of a graph, in order."""

    regions: tuple["Region", ...]

    @property
    def region(self) -> "Region":
        """The first of them."""
        return self.regions[0]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.regions)

    @property
    def label(self) -> str:
        """One line: the region's number, the number of equal regions, its size and its modules."""
        times = f"{self.count} × " if self.count > 1 else ""
        places = ", ".join(self.region.places[:3]) + (" …" if len(self.region.places) > 3 else "")
        where = f" of {places}" if places else ""
        return f"region {self.region.index}: {times}{plural(len(self.region), 'op')}{where}"


def region_rows(regions: Sequence["Region"]) -> tuple[RegionRow, ...]:
    """Return regions with equal ones counted once, in order."""
    equal: dict[Signature, list[Region]] = {}
    for region in regions:
        equal.setdefault(region.signature, []).append(region)
    return tuple(map(RegionRow, map(tuple, equal.values())))


def headline(graphs: Sequence["CapturedGraph"], breaks: Sequence["GraphBreak"] = ()) -> str:
    """Return a line with the numbers of graphs and regions, and the distribution of ops."""
    regions = [region for graph in graphs for region in graph.regions]
    distinct = len({region.signature for region in regions})
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(graph.kind for graph in graphs).items())
    shares = shares_of(graphs, breaks)
    library = graphs[0].library if graphs else "torch"
    equal = f" ({distinct} distinct)" if distinct < len(regions) else ""
    clauses = [
        f"{plural(len(regions), 'region')}{equal} with {plural(sum(map(len, regions)), 'op')}" if regions
        else "no regions",
    ]
    if shares.evaluated:
        clauses.append(f"the array library evaluates {shares.evaluated} of these, for which there is no kernel")
    failed = sum(len(region) for region in regions if region.failed is not None)
    unlowered = shares.others - failed
    without = sum(left.reason.startswith(NO_KERNEL) for graph in graphs for left in graph.left)
    left = (
        (shares.own_kernels, "with kernels of its own"), (unlowered - without, "without a lowering here"),
        (without, "without a kernel here"), (failed, "of regions that failed"), (shares.outside, "between graphs"),
    )
    if any(count for count, _ in left):
        parts = [f"{plural(count, 'op')} {which}" for count, which in left if count]
        clauses.append(f"{library} runs {', '.join(parts[:-1])}{' and ' * (len(parts) > 1)}{parts[-1]}")
    if shares.free:
        some = f"{shares.free} views and constants cost" if shares.free > 1 else "1 view or constant costs"
        clauses.append(f"{some} nothing")
    return f"{plural(len(graphs), 'graph')} ({kinds}): {'; '.join(clauses)}"


def model_text(graphs: Sequence["CapturedGraph"], breaks: Sequence["GraphBreak"]) -> str:
    """Return the map of a model as text."""
    lines = [headline(graphs, breaks), *(str(graph_break) for graph_break in breaks)]
    for graph in graphs:
        lines.append(f"{graph.kind}:" if graph.regions else f"{graph.kind}: no regions")
        lines += [
            f"  {row.label}" + (f"; {graph.library} runs it: {row.region.failed}" if row.region.failed else "")
            for row in region_rows(graph.regions)[:MOST_LINES]
        ]
    rows = left_rows(graphs, breaks)
    if rows:
        lines += [f"left to {graphs[0].library}:", *(f"  {row}" for row in rows[:MOST_LINES])]
    return "\n".join(lines)


def model_html(graphs: Sequence["CapturedGraph"], breaks: Sequence["GraphBreak"]) -> str:
    """Return a model's map as static HTML: a table of regions for each graph, and one of the ops not in them."""
    parts = [
        f"<p>{escape(headline(graphs, breaks))}</p>", *(f"<p>{escape(str(graph_break))}</p>" for graph_break in breaks),
    ]
    for graph in graphs:
        rows = "".join(
            f"<tr><td>{row.region.index}</td><td>{row.count}</td><td>{len(row.region)}</td>"
            f"<td>{escape(', '.join(row.region.places))}</td>"
            f"<td>{escape(row.region.failed or _first_lines(row.region))}</td></tr>"
            for row in region_rows(graph.regions)
        )
        head = "<tr><th>region</th><th>equal ones</th><th>ops</th><th>modules</th><th>lines</th></tr>"
        parts.append(f"<h4>{escape(graph.kind)}</h4><table>{head}{rows}</table>")
    left = "".join(
        f"<tr><td>{escape(row.op)}</td><td>{row.count}</td><td>{escape(row.reason)}</td>"
        f"<td>{escape(row.origin)}</td><td>{escape(row.takes)}</td></tr>"
        for row in left_rows(graphs, breaks)
    )
    if left:
        heads = (f"left to {graphs[0].library}", "count", "why", "first line", "what it takes")
        head = f"<tr>{''.join(f'<th>{title}</th>' for title in heads)}</tr>"
        parts.append(f"<table>{head}{left}</table>")
    return "".join(parts)


def _first_lines(region: "Region") -> str:
    lines = dict.fromkeys(f"{op.origin.code} ({op.origin.place})" for op in region.ops if op.origin.place)
    return "; ".join(list(lines)[:3])

"""How well pictures read: ``python -m tests.browser.flow`` compares the layout with Graphviz' dot and prints one table.

The pictures are those of all examples, of the gallery and of 100 captured regions. dot gets the same boxes: equal sizes
and gaps, labels of tensors as boxes, and a cluster with the first line of its header for each segment. It draws edges
between the middles of two boxes, cut off at their borders (free ports). The last line compares with its pictures in
which edges lead from the middle of the bottom of a box to that of the top of another (fixed ports), as ours do not.
*Against* is the number of edges that run upwards somewhere. *Crossings* is the number of pairs of edges that meet
although they have no end in common, *length* that of all edges in thousands of pixels, *ms* the processor time of a
layout, for dot the time of its process. Patterns select pictures: ``python -m tests.browser.flow 'example/*'``.
The first line has the lengths of the edges of a sum that is broadcast and added, the picture that opens the quickstart:
the tensor that crosses segments has the shortest one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Final
from zlib import crc32

import numpy as np

import fuser_lab as fl
from fuser_lab.report import measure
from fuser_lab.report.layout import PADDING, RANK_GAP, lay_out
from fuser_lab.report.measure import GAP
from fuser_lab.report.view_model import view_plan

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from fuser_lab.report.view_model import EdgeView, ViewModel

REGIONS: Final = 100  # of the corpus
MOST_AGAINST: Final = 0
MOST_RATIO: Final = 1.1  # of dot's crossings and length, in sum
_STEPS: Final = 8  # pieces of each Bézier curve
_TOLERANCE: Final = 0.5  # pixels that an edge may rise, which are rounding
_INCH: Final = 72.0  # pixels, in which dot has points

Lines = dict[str, np.ndarray]  # corners by the id of an edge


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one picture."""

    against: int
    crossings: int
    length: float
    seconds: float


def pictures(pattern: str = "*") -> Iterator[tuple[str, ViewModel]]:
    """Yield the names and view models of all pictures that match."""
    regions = sorted(
        (entry for kind in ("forward", "backward") for entry in fl.corpus(kind=kind)),
        key=lambda entry: (crc32(entry.name.encode()), entry.name),
    )
    named = [(f"example/{name}", partial(fl.example, name)) for name in fl.examples.names()]
    named += [(f"corpus/{entry.name}", entry.load) for entry in (*fl.corpus(kind="gallery"), *regions[:REGIONS])]
    for name, make in named:
        if fnmatchcase(name, pattern):
            yield name, view_plan(fl.segment(*make()), decisions=False)


def measured(view: ViewModel) -> tuple[Figures, Collection[str]]:
    """Return the figures of the layout of a view, and the edges that it draws as stubs."""
    start = time.process_time()
    layout = lay_out(view)
    seconds = time.process_time() - start
    lines = {name: sampled(curve.points, curve.tip) for name, curve in layout.edges.items()}
    stubs = {edge.id for edge in view.edges if layout.edges[edge.id].label is not None and not edge.labelled}
    return figures(view, lines, seconds), stubs


def hero() -> dict[str, float]:
    """Return the lengths of the edges of a sum that is broadcast and added, those between segments first."""
    view = view_plan(fl.segment(*fl.example("sum_broadcast_add")), decisions=False)
    edges = sorted(view.edges, key=lambda edge: edge.kind != "boundary")
    curves = [lay_out(view).edges[edge.id] for edge in edges]
    lengths = [length_of(sampled(curve.points, curve.tip)) for curve in curves]
    return {f"{edge.kind} {edge.tensor}": length for edge, length in zip(edges, lengths, strict=True)}


def figures(view: ViewModel, lines: Lines, seconds: float) -> Figures:
    """Return the figures of a picture with these lines."""
    return Figures(
        against=sum(bool((np.diff(line[:, 1]) < -_TOLERANCE).any()) for line in lines.values()),
        crossings=crossings(view, lines),
        length=sum(length_of(line) for line in lines.values()),
        seconds=seconds,
    )


def length_of(line: np.ndarray) -> float:
    """Return the length of a line."""
    return float(np.hypot(*np.diff(line, axis=0).T).sum())


def sampled(points: Sequence[tuple[float, float]], tip: tuple[float, float] | None) -> np.ndarray:
    """Return corners of a chain of Bézier curves, and its tip."""
    corners = np.array(points, dtype=float)
    shares = np.linspace(0.0, 1.0, _STEPS + 1)[1:, None]
    weights = [(1 - shares) ** 3, 3 * shares * (1 - shares) ** 2, 3 * shares**2 * (1 - shares), shares**3]
    pieces = [
        sum(weight * corner for weight, corner in zip(weights, corners[n : n + 4], strict=True))
        for n in range(0, len(corners) - 3, 3)
    ]
    return np.concatenate([corners[:1], *pieces, *([[tip]] if tip is not None else [])])


def crossings(view: ViewModel, lines: Lines) -> int:
    """Return the number of pairs of edges without a common end that meet."""
    edges = [edge for edge in view.edges if edge.id in lines]
    pieces = np.concatenate([np.hstack([lines[e.id][:-1], lines[e.id][1:]]) for e in edges])
    owner = np.repeat(np.arange(len(edges)), [len(lines[e.id]) - 1 for e in edges])
    pairs: set[tuple[int, int]] = set()
    for n in range(len(pieces)):
        later = slice(n + 1, None)
        others = np.flatnonzero(meet(pieces[n], pieces[later])) + n + 1
        pairs |= {(owner[n], owner[m]) for m in others if owner[n] != owner[m]}
    met = [(edges[a], edges[b]) for a, b in {tuple(sorted(pair)) for pair in pairs}]
    return sum(not {a.source, a.target} & {b.source, b.target} for a, b in met)


def meet(one: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return which of the other pieces of lines cross one."""
    (a, b), (c, d) = (one[:2], one[2:]), (others[:, :2], others[:, 2:])

    def side(p: np.ndarray, q: np.ndarray, r: np.ndarray) -> np.ndarray:
        return (q[..., 0] - p[..., 0]) * (r[..., 1] - p[..., 1]) - (q[..., 1] - p[..., 1]) * (r[..., 0] - p[..., 0])

    return (side(a, b, c) * side(a, b, d) < 0) & (side(c, d, a) * side(c, d, b) < 0)


# The same picture by dot

def by_dot(view: ViewModel, stubs: Collection[str], *, has_ports: bool = False) -> tuple[Lines, float]:
    """Return the lines of dot's drawing of the same boxes and stubs, and its seconds."""
    start = time.perf_counter()
    text = dot_text(view, stubs, has_ports=has_ports)
    answer = subprocess.run(["dot", "-Tjson0"], input=text, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - start
    legs: dict[str, np.ndarray] = {}
    for edge in json.loads(answer.stdout).get("edges", ()):
        legs[edge["id"]] = _spline(edge["pos"])
    lines = {}
    for edge in view.edges:
        line = legs[edge.id]
        first = None if edge.id in stubs else legs.get(f"{_port(edge)} label")
        lines[edge.id] = line if first is None else np.concatenate([first, line])
    return lines, seconds


def _spline(text: str) -> np.ndarray:
    tip, points = None, []
    for part in text.split():
        x, y = part.removeprefix("e,").removeprefix("s,").split(",")
        if part.startswith("e,"):
            tip = float(x), -float(y)
        else:
            points.append((float(x), -float(y)))
    return sampled(points, tip)


def _port(edge: EdgeView) -> str:
    return f"{edge.source}|{edge.tensor}|{edge.segments[1]}"


def dot_text(view: ViewModel, stubs: Collection[str] = (), *, has_ports: bool = False) -> str:
    """Return the graph of a view in dot's language; an edge among the ``stubs`` begins at a label in its segment."""
    ports = "headport=n tailport=s " if has_ports else ""
    def box(name: str, size: tuple[float, float]) -> str:
        return f"{_quoted(name)} [width={size[0] / _INCH:.4f} height={size[1] / _INCH:.4f}]"

    sizes = {}
    for node in view.nodes:
        text = measure.node_text(node, compact=view.compact)
        sizes[node.id] = text.width, text.height
    lines = [
        f"digraph {{ graph [nodesep={GAP / _INCH:.4f} ranksep={RANK_GAP / _INCH:.4f}]",
        f'node [shape=box fixedsize=true label=""] edge [{ports}arrowsize=0.7]',
    ]
    for segment in view.segments:
        width, _ = measure.header_size(segment)
        size = f'fixedsize="true" width="{width:.0f}" height="{measure.HEADER_LINE:.0f}"'
        lines.append(f"subgraph cluster_{segment.index} {{ margin={PADDING:.0f}")
        lines.append(f'label=<<table border="0" {size}><tr><td></td></tr></table>>')
        lines += [box(name, sizes.pop(name)) for name in segment.nodes]
        within = [edge for edge in view.edges if edge.id in stubs and edge.target in segment.nodes]
        lines += [box(edge.id, measure.edge_label_room(edge)) for edge in within]
        lines.append("}")
    lines += [box(name, size) for name, size in sizes.items()]
    labels = {_port(edge): edge for edge in view.edges if edge.labelled and edge.id not in stubs}
    for port, edge in labels.items():
        lines.append(box(port, measure.edge_label_room(edge)))
        lines.append(f"{_quoted(edge.source)} -> {_quoted(port)} [id={_quoted(f'{port} label')}]")
    for edge in view.edges:
        source = _port(edge) if _port(edge) in labels and edge.kind != "inside" else edge.source
        source = edge.id if edge.id in stubs else source
        lines.append(f"{_quoted(source)} -> {_quoted(edge.target)} [id={_quoted(edge.id)}]")
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    return json.dumps(text)


def main(pattern: str = "*") -> int:
    """Print the table; return 1 if a figure exceeds its limit."""
    crossing, *others = hero().values()
    print(", ".join(f"{name} {length:.0f}" for name, length in hero().items()))
    print(f"{'picture':44}{'nodes':>6}{'edges':>6}{'against':>8}{'crossings':>12}{'length':>14}{'ms':>12}")
    ours: list[Figures] = []
    dots: list[Figures] = []
    with_ports: list[Figures] = []
    for name, view in pictures(pattern):
        if not len(view.edges):
            continue
        mine, stubs = measured(view)
        its = figures(view, *by_dot(view, stubs))
        ours.append(mine)
        dots.append(its)
        with_ports.append(figures(view, *by_dot(view, stubs, has_ports=True)))
        print(_row(name[-44:], len(view.nodes), len(view.edges), mine, its), flush=True)
    mine, its, fixed = (
        Figures(
            against=sum(f.against for f in each), crossings=sum(f.crossings for f in each),
            length=sum(f.length for f in each), seconds=sum(f.seconds for f in each),
        ) for each in (ours, dots, with_ports)
    )
    print(_row("sum", 0, 0, mine, its))
    ratios = [
        (mine.crossings / max(each.crossings, 1), mine.length / max(each.length, 1.0)) for each in (its, fixed)
    ]
    print(f"against the flow {mine.against}")
    for (crossed, length), ports in zip(ratios, ("free", "fixed"), strict=True):
        print(f"of dot's crossings {crossed:.3f}, of its length {length:.3f}, with {ports} ports")
    return int(mine.against > MOST_AGAINST or max(ratios[0]) > MOST_RATIO or crossing >= min(others))


def _row(name: str, nodes: int, edges: int, mine: Figures, its: Figures) -> str:
    return (
        f"{name:44}{nodes:6}{edges:6}{mine.against:8}{mine.crossings:6}/{its.crossings:<5}"
        f"{mine.length / 1e3:7.1f}/{its.length / 1e3:<6.1f}{mine.seconds * 1e3:6.0f}/{its.seconds * 1e3:<5.0f}"
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))

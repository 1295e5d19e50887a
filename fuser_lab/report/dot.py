"""Coordinates by Graphviz: DOT made with ``graphviz``, laid out by dot, read back as boxes and curves."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from typing import TYPE_CHECKING, Any

from fuser_lab.errors import FuserLabError
from fuser_lab.report import measure
from fuser_lab.report.geometry import Box, Curve, Layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fuser_lab.report.geometry import Point
    from fuser_lab.report.view_model import EdgeView, ViewModel

_INCH = 72.0
_MARGIN = 8.0
_INSET = 3.0  # so that neighbouring segments do not touch
_HEADER_ROOM = 20.0  # so that a header ends before its box does
_LOCK = threading.Lock()  # Graphviz is a C library with global state

class GraphvizError(FuserLabError, RuntimeError):
    """No Graphviz, or one that could not lay out the graph."""


def lay_out_with_dot(view: ViewModel) -> Layout:
    """Return the coordinates of everything in ``view``.

    Raises
    ------
    GraphvizError
        If neither pygraphviz nor a ``dot`` program is there, or the layout failed.
    """
    return _parse(view, json.loads(_run_dot(to_dot(view))))


def to_dot(view: ViewModel) -> str:
    """Return the graph as DOT; names are positions, so no text of the user stands in it."""
    try:
        import graphviz
    except ImportError:
        msg = "Drawing needs the Python packages graphviz and pygraphviz: pip install graphviz pygraphviz."
        raise GraphvizError(msg) from None
    graph = graphviz.Digraph(
        graph_attr={
            "rankdir": "TB",
            "ranksep": "0.34",
            "nodesep": "0.26",
            "margin": "0",
            "pad": "0",
            "splines": "true",
        },
        node_attr={"shape": "box", "fixedsize": "true", "label": ""},
        edge_attr={"arrowsize": "0.7"},
    )
    compact = view.compact
    numbers = {node.id: f"n{n}" for n, node in enumerate(view.nodes)}
    sizes = {node.id: _node_size(measure.node_text(node, compact=compact)) for node in view.nodes}
    for node in view.nodes:
        if node.segment is None:
            graph.node(numbers[node.id], **sizes[node.id])
    for segment in view.segments:
        with graph.subgraph(name=f"cluster_{segment.index}") as cluster:
            size = measure.header_width(segment) + _HEADER_ROOM, measure.HEADER_HEIGHT
            cluster.attr(label=_spacer(*size), labeljust="l", labelloc="t", margin="16")
            for name in segment.nodes:
                cluster.node(numbers[name], **sizes[name])
    for n, edge in enumerate(view.edges):
        graph.edge(numbers[edge.source], numbers[edge.target], **_edge_attrs(edge, n))
    return str(graph.source)


def _edge_attrs(edge: EdgeView, n: int) -> dict[str, str]:
    attrs = {"comment": str(n), "weight": "4" if edge.kind == "inside" else "1"}
    if edge.labelled:
        attrs["label"] = _spacer(*measure.edge_label_size(edge))
    return attrs


def _node_size(box: measure.BoxText) -> dict[str, str]:
    return {"width": f"{box.width / _INCH:.3f}", "height": f"{box.height / _INCH:.3f}"}


def _spacer(width: float, height: float) -> str:
    """Return an empty label of an exact size; Graphviz then needs no font."""
    return (
        f'<<TABLE BORDER="0" CELLBORDER="0" CELLPADDING="0" FIXEDSIZE="TRUE" WIDTH="{width:.0f}" HEIGHT="{height:.0f}">'
        "<TR><TD></TD></TR></TABLE>>"
    )


def _run_dot(source: str) -> bytes:
    try:
        import pygraphviz
    except ImportError:
        return _run_program(source)
    with _LOCK:
        drawn = pygraphviz.AGraph(string=source).draw(format="json", prog="dot")
    if not isinstance(drawn, bytes):
        msg = "The Graphviz that pygraphviz carries returned no layout."
        raise GraphvizError(msg)
    return drawn


def _run_program(source: str) -> bytes:
    program = shutil.which("dot")
    if program is None:
        msg = "Drawing needs Graphviz: install the Python package pygraphviz, which carries it, or the program dot."
        raise GraphvizError(msg)
    done = subprocess.run([program, "-Tjson"], input=source.encode(), capture_output=True, check=False)  # noqa: S603
    if done.returncode:
        msg = f"dot failed: {done.stderr.decode(errors='replace').strip()}"
        raise GraphvizError(msg)
    return done.stdout


def _parse(view: ViewModel, drawn: Mapping[str, Any]) -> Layout:
    _, _, right, top = _numbers(drawn["bb"])
    objects = drawn.get("objects", ())
    clusters = {o["name"]: _cluster_box(o, top) for o in objects if "bb" in o}
    nodes = {o["name"]: _node_box(o, top) for o in objects if "pos" in o}
    curves = {int(e["comment"]): _curve(e, top) for e in drawn.get("edges", ())}
    return Layout(
        width=right + 2 * _MARGIN,
        height=top + 2 * _MARGIN,
        nodes={node.id: nodes[f"n{n}"] for n, node in enumerate(view.nodes)},
        segments={s.index: clusters[f"cluster_{s.index}"] for s in view.segments if f"cluster_{s.index}" in clusters},
        edges={edge.id: curves[n] for n, edge in enumerate(view.edges)},
    )


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _cluster_box(drawn: Mapping[str, Any], top: float) -> Box:
    left, bottom, right, upper = _numbers(drawn["bb"])
    x, y = left + _MARGIN + _INSET, top - upper + _MARGIN
    return Box(x=x, y=y, width=right - left - 2 * _INSET, height=upper - bottom)


def _node_box(drawn: Mapping[str, Any], top: float) -> Box:
    x, y = _point(drawn["pos"], top)
    width, height = float(drawn["width"]) * _INCH, float(drawn["height"]) * _INCH
    return Box(x=x - width / 2, y=y - height / 2, width=width, height=height)


def _curve(drawn: Mapping[str, Any], top: float) -> Curve:
    parts = drawn["pos"].split()
    tips = [p for p in parts if p.startswith("e,")]
    points = tuple(_point(p, top) for p in parts if p[0] not in "es")
    label = _point(drawn["lp"], top) if "lp" in drawn else None
    return Curve(points=points, tip=_point(tips[0][2:], top) if tips else points[-1], label=label)


def _point(text: str, top: float) -> Point:
    x, y = _numbers(text)[:2]
    return x + _MARGIN, top - y + _MARGIN

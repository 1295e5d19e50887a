"""The picture of a plan: one box a segment, one kernel each, as engineers draw it by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from xml.etree.ElementTree import Element, SubElement, tostring

from fuser_lab.report import measure, theme
from fuser_lab.report.layout import lay_out
from fuser_lab.report.markup import cleaned
from fuser_lab.report.units import bytes_label, plural
from fuser_lab.report.view_model import view_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fuser_lab.report.geometry import Box, Curve, Layout, Point
    from fuser_lab.report.subject import PlanLike
    from fuser_lab.report.view_model import EdgeView, NodeView, SegmentView, ViewModel

_XMLNS: Final = "http://www.w3.org/2000/svg"
_SPINE: Final = 7.0
_HIT_WIDTH: Final = 14
_TEXT_DROP: Final = 0.35  # of the font size: from the middle of a line to its baseline


def plan_svg(plan: PlanLike, *, title: str | None = None) -> str:
    """Return a standalone SVG document of a plan."""
    return view_svg(view_plan(plan, title=title, decisions=False))


def view_svg(view: ViewModel, layout: Layout | None = None, *, prefix: str = "", style: bool = True) -> str:
    """Return the SVG of a view model.

    ``prefix`` keeps ids apart where several drawings share a page; without it one is made from the content.
    ``style=False`` leaves the style sheet out, for pages that carry it once.
    """
    return tostring(view_element(view, layout, prefix=prefix, style=style), encoding="unicode")


def view_element(view: ViewModel, layout: Layout | None = None, *, prefix: str = "", style: bool = True) -> Element:
    """Return the SVG of a view model as an element, to be put into a page."""
    return _Painter(view, layout or lay_out(view), prefix).paint(style=style)


class _Painter:
    """Draws boxes, then edges, then headers, then nodes and labels, so that nothing hides text."""

    def __init__(self, view: ViewModel, layout: Layout, prefix: str) -> None:
        self._view = view
        self._layout = layout
        self._prefix = prefix or "fl" + sha256(repr(view).encode()).hexdigest()[:8]
        self._compact = measure.is_compact(view.header.ops)
        self._refused = {s.index for s in view.segments if not s.ok}

    def paint(self, *, style: bool) -> Element:
        layout, header = self._layout, self._view.header
        size = f"{layout.width:.0f}", f"{layout.height:.0f}"
        root = Element(
            "svg",
            {
                "xmlns": _XMLNS,
                "class": "fl-svg",
                "viewBox": f"0 0 {size[0]} {size[1]}",
                "width": size[0],
                "height": size[1],
                "font-family": theme.SANS,
                "role": "graphics-document",
                "aria-labelledby": f"{self._prefix}-t {self._prefix}-d",
            },
        )
        _text_element(root, "title", header.title, id=f"{self._prefix}-t")
        _text_element(root, "desc", describe(self._view), id=f"{self._prefix}-d")
        if style:
            _text_element(root, "style", theme.graph_style())
        self._patterns(root)
        SubElement(
            root, "rect", {"class": "fl-paper", "width": "100%", "height": "100%", "fill": theme.colour("paper")}
        )
        scene = SubElement(root, "g", {"class": "fl-scene"})
        boxed = [s for s in self._view.segments if s.index in layout.segments]
        for segment in boxed:
            self._segment(scene, segment, layout.segments[segment.index])
        edges = SubElement(scene, "g", {"class": "fl-edges", "fill": "none"})
        for edge in self._view.edges:
            self._edge(edges, edge, layout.edges[edge.id])
        for segment in boxed:
            self._header(scene, segment, layout.segments[segment.index])
        labels = SubElement(scene, "g", {"class": "fl-labels"})
        for edge in self._view.edges:
            self._label(labels, edge, layout.edges[edge.id].label)
        nodes = SubElement(scene, "g", {"class": "fl-nodes"})
        for node in self._view.nodes:
            self._node(nodes, node, layout.nodes[node.id])
        return cleaned(root)

    def _patterns(self, root: Element) -> None:
        defs = SubElement(root, "defs")
        for segment in self._view.segments:
            index, name = segment.index, theme.pattern(segment.index)
            pattern = SubElement(
                defs,
                "pattern",
                {
                    "id": f"{self._prefix}-p{index}",
                    "width": "6",
                    "height": "6",
                    "patternUnits": "userSpaceOnUse",
                    "class": _hue_class(index),
                },
            )
            hue = theme.colour("bad") if not segment.ok else theme.hue(index)
            SubElement(
                pattern,
                "rect",
                {
                    "width": "6",
                    "height": "6",
                    "class": "fl-tint",
                    "fill": hue,
                    "fill-opacity": "1" if name == "solid" else "0.3",
                },
            )
            if name != "solid":
                SubElement(
                    pattern,
                    "path",
                    {
                        "class": "fl-ink",
                        "d": _PATTERN_PATHS[name],
                        "stroke": hue,
                        "stroke-width": "1.8",
                        "fill": "none",
                    },
                )

    def _segment(self, parent: Element, segment: SegmentView, box: Box) -> None:
        group = SubElement(
            parent,
            "g",
            {
                "class": f"fl-segment {_hue_class(segment.index)}" + ("" if segment.ok else " fl-refused"),
                "data-kind": "segment",
                "data-id": f"segment:{segment.index}",
                "role": "graphics-object",
            },
        )
        _describe(group, segment_title(segment), segment_text(segment))
        hue = theme.hue(segment.index) if segment.ok else theme.colour("bad")
        SubElement(
            group,
            "rect",
            {
                "class": "fl-box",
                **_rect(box),
                "rx": "10",
                "fill": hue,
                "fill-opacity": "0.07",
                "stroke": hue,
                "stroke-width": "1.5",
                **({} if segment.ok else {"stroke-dasharray": "6 4", "stroke-width": "2.5"}),
            },
        )
        SubElement(
            group,
            "path",
            {
                "class": "fl-spine",
                "d": _spine(box),
                "fill": f"url(#{self._prefix}-p{segment.index})",
                "stroke": "none",
            },
        )

    def _header(self, parent: Element, segment: SegmentView, box: Box) -> None:
        chip, scheduler, moved = measure.segment_label(segment)
        group = SubElement(
            parent,
            "g",
            {
                "class": f"fl-head {_hue_class(segment.index)}" + ("" if segment.ok else " fl-refused"),
                "data-id": f"segment:{segment.index}",
                "data-kind": "segment",
            },
        )
        hue = theme.hue(segment.index) if segment.ok else theme.colour("bad")
        x, y = box.x + 14.0, box.y + 8.0
        width, height = measure.header_width(segment), 20.0
        band = {"x": _n(x), "y": _n(y), "width": _n(width), "height": _n(height), "rx": "5"}
        SubElement(group, "rect", {"class": "fl-band", **band, "fill": theme.colour("paper")})
        SubElement(group, "rect", {"class": "fl-tint", **band, "fill": hue, "fill-opacity": "0.14"})
        chip_width = measure.chip_width(chip)
        SubElement(
            group,
            "rect",
            {
                "class": "fl-chip",
                "x": _n(x),
                "y": _n(y),
                "width": _n(chip_width),
                "height": _n(height),
                "rx": "5",
                "fill": hue,
            },
        )
        middle = y + height / 2
        size = measure.LABEL_SIZE + 1
        _write(
            group, chip, (x + chip_width / 2, middle), size, "fl-chip-text", anchor="middle", weight="700", fill="paper"
        )
        x += chip_width + 8
        _write(group, scheduler, (x, middle), size, "fl-name", weight="600")
        x += measure.sans_width(scheduler, size) + 8
        _write(group, moved, (x, middle), measure.LABEL_SIZE, "fl-detail", fill="muted")

    def _edge(self, parent: Element, edge: EdgeView, curve: Curve) -> None:
        inside = edge.segments[0] if edge.kind == "inside" else None
        stroke = theme.hue(inside) if inside is not None else theme.colour("ink" if edge.kind == "boundary" else "wire")
        width = edge_width(edge.bytes) * (0.6 if self._compact else 1.0)
        group = SubElement(
            parent,
            "g",
            {
                "class": f"fl-edge fl-{edge.kind}" + (f" {_hue_class(inside)}" if inside is not None else ""),
                "data-id": edge.id,
                "data-kind": edge.kind,
                "role": "graphics-symbol",
                **({"opacity": "0.75"} if edge.kind == "inside" else {}),
            },
        )
        _describe(group, edge_title(edge), f"{bytes_label(edge.bytes)} ({edge.bytes:,} bytes)")
        path, tip = _arrow(curve, width)
        SubElement(group, "path", {"class": "fl-wire", "d": path, "stroke": stroke, "stroke-width": f"{width:.1f}"})
        SubElement(group, "path", {"class": "fl-tip", "d": tip, "fill": stroke, "stroke": "none"})
        SubElement(
            group,
            "path",
            {
                "class": "fl-hit",
                "d": path,
                "stroke": "#000",
                "stroke-opacity": "0",
                "stroke-width": str(_HIT_WIDTH),
                "pointer-events": "stroke",
            },
        )

    def _label(self, parent: Element, edge: EdgeView, centre: Point | None) -> None:
        if centre is None:
            return
        group = SubElement(parent, "g", {"class": "fl-label", "data-id": edge.id, "data-kind": edge.kind})
        width, height = measure.edge_label_size(edge)
        SubElement(
            group,
            "rect",
            {
                "class": "fl-tag",
                "x": _n(centre[0] - width / 2 + 2),
                "y": _n(centre[1] - height / 2 + 1),
                "width": _n(width - 4),
                "height": _n(height - 2),
                "rx": "9",
                "fill": theme.colour("paper"),
                "stroke": theme.colour("line"),
                "pointer-events": "all",
            },
        )
        _write(group, measure.edge_label(edge), centre, measure.LABEL_SIZE, "fl-name", anchor="middle")

    def _node(self, parent: Element, node: NodeView, box: Box) -> None:
        refused = node.segment in self._refused
        group = SubElement(
            parent,
            "g",
            {
                "class": " ".join(
                    filter(
                        None,
                        (
                            "fl-node",
                            "fl-op" if node.kind == "op" else f"fl-io fl-{node.kind}-node",
                            "" if node.segment is None else _hue_class(node.segment),
                            "fl-replica" if node.replica else "",
                            "fl-refused" if refused else "",
                        ),
                    )
                ),
                "data-id": node.id,
                "data-kind": node.kind,
                "role": "graphics-symbol",
            },
        )
        _describe(group, node.text, node_text(node, self._view))
        stroke = theme.colour("muted") if node.segment is None else theme.hue(node.segment)
        if node.replica:  # a second sheet behind it says that there is another one
            behind = replace(box, x=box.x + 3, y=box.y - 3)
            sheet = {"class": "fl-sheet", "d": _outline(node, behind), "fill": "none", "stroke": stroke}
            SubElement(group, "path", sheet | {"stroke-width": "1.2", "stroke-dasharray": "4 3"})
        SubElement(
            group,
            "path",
            {
                "class": "fl-shape",
                "d": _outline(node, box),
                "fill": theme.colour("node" if node.kind == "op" else "panel"),
                "stroke": stroke,
                "stroke-width": "1.4" if node.kind != "output" else "2",
                **({"stroke-dasharray": "4 3"} if node.replica else {}),
            },
        )
        self._node_lines(group, node, box)

    def _node_lines(self, group: Element, node: NodeView, box: Box) -> None:
        lines = measure.node_text(node, compact=self._compact)
        middle = box.x + box.width / 2
        name_y = box.y + (box.height / 2 if not lines.detail else box.height * 0.34)
        text = SubElement(
            group,
            "text",
            {
                "class": "fl-name",
                "x": _n(middle),
                "y": _n(name_y + measure.NAME_SIZE * _TEXT_DROP),
                "text-anchor": "middle",
                "font-size": _n(measure.NAME_SIZE),
                "font-weight": "600",
                "fill": theme.colour("ink"),
            },
        )
        text.text = lines.name
        aside = SubElement(
            text,
            "tspan",
            {
                "class": "fl-detail fl-mono",
                "dx": "7",
                "font-family": "monospace",
                "font-size": _n(measure.DETAIL_SIZE),
                "font-weight": "400",
                "fill": theme.colour("muted"),
            },
        )
        aside.text = lines.aside
        if lines.detail:
            at = middle, box.y + box.height * 0.72
            _write(
                group,
                lines.detail,
                at,
                measure.DETAIL_SIZE,
                "fl-detail fl-mono",
                anchor="middle",
                fill="muted",
                mono=True,
            )


_PATTERN_PATHS: Final = {
    "diagonal": "M-1,7 L7,-1",
    "back": "M-1,-1 L7,7",
    "bars": "M0,3 L6,3",
    "cross": "M-1,7 L7,-1 M-1,-1 L7,7",
    "dots": "M2,3 L4,3",
    "dashes": "M3,1 L3,5",
    "grid": "M0,3 L6,3 M3,0 L3,6",
}


def describe(view: ViewModel) -> str:
    """Return the plan in a sentence, for those who do not see it."""
    header = view.header
    kernels = "; ".join(f"S{s.index} {s.scheduler} with {plural(len(s.ops), 'op')}" for s in view.segments)
    return (
        f"{plural(header.ops, 'op')} in {plural(header.segments, 'segment')}, one kernel each: {kernels}. "
        f"{bytes_label(header.bytes_moved)} moved; a single kernel would move {bytes_label(header.bytes_ideal)}."
    )


def segment_title(segment: SegmentView) -> str:
    """Return the name of a segment."""
    return f"Segment {segment.index}: {segment.scheduler}"


def segment_text(segment: SegmentView) -> str:
    """Return what a segment computes and moves, or why nothing takes it."""
    if not segment.ok:
        return "; ".join(f"{v.scheduler}: {v.text}" for v in segment.verdicts) or "No scheduler takes it."
    return (
        f"{', '.join(segment.ops)}. Reads {', '.join(segment.inputs)} ({bytes_label(segment.bytes_in)}), "
        f"writes {', '.join(segment.outputs)} ({bytes_label(segment.bytes_out)})."
    )


def node_text(node: NodeView, view: ViewModel) -> str:
    """Return type, size and place of a node."""
    kind = f"{node.dtype} [{', '.join(node.shape)}], {bytes_label(node.bytes)}"
    if node.segment is None:
        return kind
    scheduler = next((s.scheduler for s in view.segments if s.index == node.segment), "")
    place = f"{kind}; segment {node.segment}, {scheduler}"
    return f"{place}; computed in {node.copies} segments" if node.replica else place


def edge_title(edge: EdgeView) -> str:
    """Return which way a tensor goes."""
    source, target = edge.segments
    if edge.kind == "inside":
        return f"{edge.tensor} inside segment {source}"
    if edge.kind == "boundary":
        return f"{edge.tensor} from segment {source} to segment {target}"
    if edge.kind == "input":
        return f"{edge.tensor}, a fusion input"
    return f"{edge.tensor}, a fusion output"


def edge_width(count: int) -> float:
    """Return the width of an edge: 1.2 px up to 1 kB, then 0.16 px more with each doubling, up to 4.4 px at 1 GB."""
    return 1.2 + 0.16 * min(max(math.log2(max(count, 1)) - 10, 0), 20)


def _hue_class(index: int) -> str:
    return f"fl-h{index % len(theme.HUES_LIGHT)}"


def _outline(node: NodeView, box: Box) -> str:
    """Return the outline: a capsule for inputs, a rounded box for ops, a hexagon for outputs."""
    x, y, w, h = box.x, box.y, box.width, box.height
    if node.kind == "output":
        cut = h * 0.32
        corners = (
            (x + cut, y),
            (x + w - cut, y),
            (x + w, y + h / 2),
            (x + w - cut, y + h),
            (x + cut, y + h),
            (x, y + h / 2),
        )
        return "M" + " L".join(f"{_n(a)},{_n(b)}" for a, b in corners) + "Z"
    r = h / 2 if node.kind == "input" else 6.0
    return (
        f"M{_n(x + r)},{_n(y)} h{_n(w - 2 * r)} a{_n(r)},{_n(r)} 0 0 1 {_n(r)},{_n(r)} v{_n(h - 2 * r)} "
        f"a{_n(r)},{_n(r)} 0 0 1 {_n(-r)},{_n(r)} h{_n(2 * r - w)} a{_n(r)},{_n(r)} 0 0 1 {_n(-r)},{_n(-r)} "
        f"v{_n(2 * r - h)} a{_n(r)},{_n(r)} 0 0 1 {_n(r)},{_n(-r)}Z"
    )


def _spine(box: Box) -> str:
    """Return the patterned strip along the left side of a segment, inside its rounded corners."""
    r, x, y, h = 10.0, box.x + 0.75, box.y + 0.75, box.height - 1.5
    return (
        f"M{_n(x + _SPINE)},{_n(y + 0.6)} A{_n(r)},{_n(r)} 0 0 0 {_n(x)},{_n(y + r)} V{_n(y + h - r)} "
        f"A{_n(r)},{_n(r)} 0 0 0 {_n(x + _SPINE)},{_n(y + h - 0.6)}Z"
    )


def _arrow(curve: Curve, width: float) -> tuple[str, str]:
    """Return the path of an edge and the triangle at its end."""
    start, *rest = curve.points
    path = f"M{_p(start)} C" + " ".join(map(_p, rest))
    (x0, y0), (x1, y1) = curve.points[-1], curve.tip
    length = math.hypot(x1 - x0, y1 - y0) or 1.0
    across = (y0 - y1) / length, (x1 - x0) / length
    half = 2.6 + width * 0.75
    left, right = (x0 + across[0] * half, y0 + across[1] * half), (x0 - across[0] * half, y0 - across[1] * half)
    return path, f"M{_p(left)} L{_p(curve.tip)} L{_p(right)}Z"


def _write(
    parent: Element,
    text: str,
    at: Point,
    size: float,
    css: str,
    *,
    anchor: str = "",
    weight: str = "",
    fill: str = "ink",
    mono: bool = False,
) -> None:
    given = {
        "class": css,
        "x": _n(at[0]),
        "y": _n(at[1] + size * _TEXT_DROP),
        "font-size": _n(size),
        "text-anchor": anchor,
        "font-weight": weight,
        "font-family": "monospace" if mono else "",
        "fill": theme.colour(fill),
    }
    _text_element(parent, "text", text, **{key: value for key, value in given.items() if value})


def _describe(group: Element, title: str, text: str) -> None:
    _text_element(group, "title", title)
    _text_element(group, "desc", text)


def _text_element(parent: Element, tag: str, content: str, **attributes: str) -> None:
    SubElement(parent, tag, attributes).text = content


def _rect(box: Box) -> dict[str, str]:
    return {"x": _n(box.x), "y": _n(box.y), "width": _n(box.width), "height": _n(box.height)}


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _p(point: Sequence[float]) -> str:
    return f"{_n(point[0])},{_n(point[1])}"

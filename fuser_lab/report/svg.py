"""The picture of a plan: one box per segment, one kernel each.

It is written directly as text: a fusion of 300 operations is redrawn after each edit, and building and serialising a
tree of elements took ten times as long.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from html import escape
from itertools import chain
from typing import Final
from xml.etree.ElementTree import Element, fromstring

from fuser_lab.ir.tensor_names import full_name, named_text
from fuser_lab.report import measure, theme
from fuser_lab.report.geometry import Box, Curve
from fuser_lab.report.layers import Point
from fuser_lab.report.layout import PADDING, RIM, lay_out
from fuser_lab.report.markup import clean
from fuser_lab.report.subject import PlanLike
from fuser_lab.report.units import bytes_label, plural
from fuser_lab.report.view_model import EdgeView, NodeView, SegmentView, ViewModel, view_plan

_XMLNS: Final = "http://www.w3.org/2000/svg"
SPACE: Final = "\u2002"  # between the name in a box and what follows
_SPINE: Final = 7.0  # pixels of the coloured edge of a node
_MARK_AT: Final = 9.0  # from the start of a wire
_MOST_SAID: Final = 60  # segments in the description of a picture
_TEXT_DROP: Final = 0.35  # of the font size: from the middle of a line to its baseline


def plan_svg(plan: PlanLike, *, title: str | None = None) -> str:
    """Return a standalone SVG document of a plan."""
    return view_svg(view_plan(plan, title=title, decisions=False))


def view_svg(view: ViewModel) -> str:
    """Return the SVG of a view model."""
    return f'<svg xmlns="{_XMLNS}"' + _document(view, style=True)


def view_element(view: ViewModel, *, style: bool = True) -> Element:
    """Return the SVG of a view model as an element for a page.

    ``style=False`` omits the style sheet, what it sets, and descriptions, for pages that contain it once.
    """
    root = fromstring("<svg" + _document(view, style=style))  # noqa: S314 - written just now, by this module
    root.set("xmlns", _XMLNS)
    return root


def _document(view: ViewModel, *, style: bool) -> str:
    """Return the text after ``<svg``: boxes, then edges, headers, labels and nodes, so that nothing hides text.

    Colours are in attributes as well as in the style sheet, for viewers that ignore style sheets (``style=True``).
    """
    # The prefix keeps ids distinct if several drawings share a page.
    layout, prefix = lay_out(view), "fl" + sha256(repr(view).encode()).hexdigest()[:8]
    painter = Painter(prefix=prefix, style=style, compact=view.compact, segments=view.segments, hints=hints_of(view))
    size = f"{layout.width:.0f}", f"{layout.height:.0f}"
    boxed = [(s, layout.segments[s.index]) for s in view.segments if s.index in layout.segments]
    labels = ((edge, layout.edges[edge.id].label) for edge in view.edges)
    parts = [
        f' class="fl-svg" viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}" height="{size[1]}"',
        f' font-family="{escape(theme.SANS)}" role="graphics-document" aria-labelledby="{prefix}-t {prefix}-d">',
        f'<title id="{prefix}-t">{_text(view.header.title)}</title>',
        f'<desc id="{prefix}-d">{_text(describe(view))}</desc>',
        f"<style>{escape(theme.graph_style(), quote=False)}</style>" if style else "",
        f"<defs>{painter.patterns(view.segments)}</defs>",
        f'<rect class="fl-paper" width="100%" height="100%"{painter.paint(fill="paper")}/><g class="fl-scene">',
        *(
            f'<g class="{painter.segment_css(s)}{_css_hue(s.index)}" data-kind="segment" data-id="segment:{s.index}" '
            f'role="graphics-object">{painter.segment(s, box)}</g>'
            for s, box in boxed
        ),
        '<g class="fl-edges" fill="none">',
        *(
            f'<g class="{painter.edge_css(e)}{_css_hue(inner(e))}" data-id="{_text(e.id)}" data-kind="{e.kind}" '
            f'role="graphics-symbol">'
            f"{painter.edge(e, layout.edges[e.id])}</g>"
            for e in view.edges
        ),
        "</g>",
        *(
            f'<g class="{painter.header_css(s)}{_css_hue(s.index)}" data-id="segment:{s.index}" data-kind="segment">'
            f"{painter.header(s, box)}</g>"
            for s, box in boxed
        ),
        '<g class="fl-labels">',
        *(
            f'<g class="fl-label" data-id="{_text(edge.id)}" data-kind="{edge.kind}">{painter.label(edge, centre)}</g>'
            for edge, centre in labels
            if centre is not None
        ),
        f'</g><g class="fl-nodes" text-anchor="middle" font-size="{_n(measure.NAME_SIZE)}">',
        *(
            f'<g class="{painter.node_css(n)}{_css_hue(n.segment)}" data-id="{_text(n.id)}" data-kind="{n.kind}" '
            f'role="graphics-symbol">'
            f"{painter.node(n, layout.nodes[n.id])}</g>"
            for n in view.nodes
        ),
        "</g></g></svg>",
    ]
    return "".join(parts)


class Painter:
    """Draws the contents of each group of the picture: a segment, a header, an edge, a label, a node.

    ``style=False`` omits what the page's style sheet sets, and descriptions: the page itself describes the selection.
    ``numbered=False`` writes ``#`` for the numbers of segments and of their patterns.
    """

    def __init__(
        self, *, prefix: str, style: bool, compact: bool, numbered: bool = True, segments: Sequence[SegmentView] = (),
        hints: Collection[str] = (),
    ) -> None:
        self._numbered = numbered
        self._hints = hints
        self._prefix = prefix
        self._style = style
        self.compact = compact
        self._refused = {s.index for s in segments if not s.ok}
        self._schedulers = {s.index: s.scheduler for s in segments}

    def paint(self, **colours: str) -> str:
        """Return attributes with named colours (or ``#...`` as given), or nothing if the page has the rules."""
        if not self._style:
            return ""
        attributes = {key: value if value[:1] == "#" else theme.colour(value) for key, value in colours.items()}
        return "".join(f' {key}="{value}"' for key, value in attributes.items())

    def _hue(self, segment: SegmentView) -> str:
        return theme.hue(segment.index) if segment.ok else theme.colour("bad")

    def _description(self, title: str, text: str) -> str:
        return f"<title>{_text(title)}</title>" + (f"<desc>{_text(text)}</desc>" if self._style else "")

    def patterns(self, segments: Iterable[SegmentView]) -> str:
        """Return the patterns of the segments' strips, each once."""
        return "".join(map(self._pattern, {self._pattern_id(segment): segment for segment in segments}.values()))

    def _pattern_id(self, segment: SegmentView) -> str:
        return f"{self._prefix}-p{theme.look(segment.index)}{'' if segment.ok else 'x'}"

    def _pattern(self, segment: SegmentView) -> str:
        index, name, hue = segment.index, theme.pattern(segment.index), self._hue(segment)
        opacity = "1" if name == "solid" else "0.3"
        lines = "" if name == "solid" else (
            f'<path class="fl-ink" d="{_PATTERN_PATHS[name]}"{self.paint(stroke=hue)} stroke-width="1.8" fill="none"/>'
        )
        return (
            f'<pattern id="{self._pattern_id(segment)}" width="6" height="6" patternUnits="userSpaceOnUse" '
            f'class="{_hue_class(index)}"><rect width="6" height="6" class="fl-tint"{self.paint(fill=hue)} '
            f'fill-opacity="{opacity}"/>{lines}</pattern>'
        )

    def segment_css(self, segment: SegmentView) -> str:
        """Return the classes of a segment's box."""
        return "fl-segment" if segment.ok else "fl-segment fl-refused"

    def segment(self, segment: SegmentView, box: Box) -> str:
        """Return the box of a segment with its patterned strip."""
        hue, title = self._hue(segment), segment_title(segment) if self._numbered else f"Segment #: {segment.scheduler}"
        look = self._pattern_id(segment) if self._numbered else f"{self._prefix}-p#{'' if segment.ok else 'x'}"
        border = 'stroke-width="1.5"' if segment.ok else 'stroke-width="2.5" stroke-dasharray="6 4"'
        return (
            f"{self._description(title, segment_text(segment))}"
            f'<rect class="fl-box"{_rect(box)} rx="10"{self.paint(fill=hue, stroke=hue)} fill-opacity="0.07" {border}/>'
            f'<path class="fl-spine" d="{_spine(box)}" fill="url(#{look})" stroke="none"/>'
        )

    def header_css(self, segment: SegmentView) -> str:
        """Return the classes of a segment's header."""
        return "fl-head" if segment.ok else "fl-head fl-refused"

    def header(self, segment: SegmentView, box: Box) -> str:
        """Return the header in the top left corner of a segment's box."""
        chip, scheduler, *details = measure.segment_label(segment)
        x, y = box.x + PADDING, box.y + RIM
        width, height = measure.header_size(segment)
        chip_width, line = measure.chip_width(chip), measure.HEADER_LINE
        middle, size = y + line / 2, measure.LABEL_SIZE + 1
        after = x + chip_width + 8
        return (
            f'<rect class="fl-band" x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" fill="none"/>'
            f'<rect class="fl-chip" x="{_n(x)}" y="{_n(y)}" width="{_n(chip_width)}" height="{_n(line)}" rx="5"'
            f"{self.paint(fill=self._hue(segment))}/>"
            + self._write(
                chip if self._numbered else "S#", (x + chip_width / 2, middle), size, "fl-chip-text",
                more=' text-anchor="middle" font-weight="700"', fill="paper",
            )
            + self._write(scheduler, (after, middle), size, "fl-name", more=' font-weight="600"')
            + "".join(
                self._write(
                    detail, (x, y + line + (n + 0.5) * measure.HEADER_DETAIL), measure.LABEL_SIZE, "fl-detail",
                    fill="muted",
                ) for n, detail in enumerate(details)
            )
        )

    def edge_css(self, edge: EdgeView) -> str:
        """Return the classes of an edge."""
        return f"fl-edge fl-{edge.kind}{' fl-hinted' if edge.tensor in self._hints else ''}"

    def edge(self, edge: EdgeView, curve: Curve) -> str:
        """Return the wire of an edge and its tip."""
        width = edge_width(edge.passed) * (0.6 if self.compact else 1.0)
        path, tip = _arrow(curve, width)
        mark = self._mark(curve) if edge.tensor in self._hints else ""
        if not self._style:  # a title would show a second tooltip beside the page's own
            wire = f'<path class="fl-wire" d="{path}" stroke-width="{width:.1f}"/>'
            return f'{wire}<path class="fl-tip" d="{tip}"/>{mark}'
        inside = inner(edge)
        stroke = theme.hue(inside) if inside is not None else "ink" if edge.kind == "boundary" else "wire"
        title = named_text(edge_title(edge), {edge.tensor: edge.called})
        thin = ("", "") if inside is None else (' stroke-opacity="0.75"', ' fill-opacity="0.75"')
        return (
            f"{self._description(title, f'{bytes_label(edge.passed)} ({edge.passed:,} bytes)')}"
            f'<path class="fl-wire" d="{path}"{self.paint(stroke=stroke)} stroke-width="{width:.1f}"{thin[0]}/>'
            f'<path class="fl-tip" d="{tip}"{self.paint(fill=stroke)} stroke="none"{thin[1]}/>{mark}'
        )

    def _mark(self, curve: Curve) -> str:
        """Return the mark of an annotation: a diamond on the wire, just after its start."""
        (x0, y0), (x1, y1) = curve.points[:2]
        length = math.hypot(x1 - x0, y1 - y0) or 1.0
        x, y = x0 + _MARK_AT * (x1 - x0) / length, y0 + _MARK_AT * (y1 - y0) / length
        path = f"M{x:.1f},{y - 7:.1f} l7,7 -7,7 -7,-7Z"
        return f'<path class="fl-mark" d="{path}"{self.paint(fill="accent", stroke="paper")} stroke-width="1.5"/>'

    def label(self, edge: EdgeView, centre: Point) -> str:
        """Return the label of an edge between segments."""
        width, height = measure.edge_label_size(edge)
        name, tensor, more = measure.edge_label_parts(edge)
        text = f"{_text(name)}{self._suffix(tensor)}{_text(more)}"
        return (
            f'<rect class="fl-tag" x="{_n(centre[0] - width / 2 + 2)}" y="{_n(centre[1] - height / 2 + 1)}" '
            f'width="{_n(width - 4)}" height="{_n(height - 2)}" rx="9"{self.paint(fill="paper", stroke="line")} '
            'pointer-events="all"/>'
            + self._write(text, centre, measure.LABEL_SIZE, "fl-name", more=' text-anchor="middle"', marked=True)
        )

    def _suffix(self, tensor: str) -> str:
        """Return a tensor's own name beside the user's name, in a label."""
        return f'<tspan class="fl-detail"{self.paint(fill="muted")}>{_text(tensor)}</tspan>' if tensor else ""

    def node_css(self, node: NodeView) -> str:
        """Return the classes of a node."""
        css = {"op": "fl-node fl-op", "segment": "fl-node fl-op fl-whole"}.get(node.kind)
        css = css or f"fl-node fl-io fl-{node.kind}-node"
        if node.replica:
            css += " fl-replica"
        if node.segment in self._refused:
            css += " fl-refused"
        return css

    def node(self, node: NodeView, box: Box) -> str:
        """Return the outline of a node with its text; a replica has a second sheet behind it."""
        behind = replace(box, x=box.x + 3, y=box.y - 3)
        if not self._style:
            sheet = _outline(node, behind, "fl-sheet") if node.replica else ""
            return (
                f"<title>{_text(node_title(node))}</title>{sheet}{_outline(node, box, 'fl-shape')}"
                f"{self._node_lines(node, box)}"
            )
        stroke = "muted" if node.segment is None else theme.hue(node.segment)
        dashes = ' stroke-dasharray="4 3"' if node.replica else ""
        sheet = ""
        if node.replica:
            sheet_paint = f' fill="none"{self.paint(stroke=stroke)} stroke-width="1.2"{dashes}'
            sheet = _outline(node, behind, "fl-sheet", sheet_paint)
        fill = "panel" if node.kind in {"input", "output"} else "node"
        width = "2" if node.kind == "output" else "1.4"
        paint = f'{self.paint(fill=fill, stroke=stroke)} stroke-width="{width}"{dashes}'
        return (
            f"{self._description(node_title(node), node_text(node, self._schedulers))}{sheet}"
            f"{_outline(node, box, 'fl-shape', paint)}{self._node_lines(node, box)}"
        )

    def _node_lines(self, node: NodeView, box: Box) -> str:
        lines = measure.node_text(node, compact=self.compact)
        middle = box.x + box.width / 2
        name_y = box.y + (box.height / 2 if not lines.detail else box.height * 0.34) + measure.NAME_SIZE * _TEXT_DROP
        mono = f' font-family="monospace" font-size="{_n(measure.DETAIL_SIZE)}"' if self._style else ""
        bold, light = (' font-weight="600"', ' font-weight="400"') if self._style else ("", "")
        called = ""
        if lines.called:
            called = (
                f'<tspan class="fl-detail fl-mono fl-called"{mono}{light}{self.paint(fill="ink")}>'
                f"{SPACE}{_text(lines.called)}</tspan>"
            )
        detail = ""
        if lines.detail:
            at = box.y + box.height * 0.72 + measure.DETAIL_SIZE * _TEXT_DROP
            detail = (
                f'<text class="fl-detail fl-mono" x="{_n(middle)}" y="{_n(at)}"{mono}'
                f'{self.paint(fill="muted")}>{_text(lines.detail)}</text>'
            )
        return (
            f'<text class="fl-name" x="{_n(middle)}" y="{_n(name_y)}"{bold}{self.paint(fill="ink")}>'
            f'{_text(lines.name)}{called}<tspan class="fl-detail fl-mono"{mono}{light}{self.paint(fill="muted")}>'
            f"{' ' if called else SPACE}{_text(lines.aside)}</tspan></text>{detail}"
        )

    def _write(
        self, text: str, at: Point, size: float, css: str, *, more: str = "", fill: str = "ink", marked: bool = False,
    ) -> str:
        """Return text at a place; ``marked`` text is markup already."""
        return (
            f'<text class="{css}" x="{_n(at[0])}" y="{_n(at[1] + size * _TEXT_DROP)}" font-size="{_n(size)}"{more}'
            f"{self.paint(fill=fill)}>{text if marked else _text(text)}</text>"
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
    """Return a sentence that describes the plan, for screen readers."""
    header = view.header
    said = view.segments[:_MOST_SAID]
    kernels = "; ".join([f"S{s.index} {s.scheduler} with {plural(len(s.ops), 'op')}" for s in said])
    if len(view.segments) > _MOST_SAID:
        kernels += f"; and {len(view.segments) - _MOST_SAID} more"
    return (
        f"{plural(header.ops, 'op')} in {plural(header.segments, 'segment')}, one kernel each: {kernels}. "
        f"{bytes_label(header.bytes_moved)} moved; a single kernel would move {bytes_label(header.bytes_ideal)}."
    )


def hints_of(view: ViewModel) -> frozenset[str]:
    """Return the results of all ``segment_set``: edges that carry them are marked."""
    return frozenset(annotation.hint for annotation in view.annotations)


def segment_title(segment: SegmentView) -> str:
    """Return the name of a segment."""
    return f"Segment {segment.index}: {segment.scheduler}"


def segment_text(segment: SegmentView) -> str:
    """Return what a segment computes and moves, or why no scheduler accepts it."""
    if not segment.ok:
        return "; ".join(f"{v.scheduler}: {v.text}" for v in segment.verdicts) or "No scheduler accepts it."
    return (
        f"{', '.join(segment.ops)}. Reads {', '.join(segment.inputs)} ({bytes_label(segment.bytes_in)}), "
        f"writes {', '.join(segment.outputs)} ({bytes_label(segment.bytes_out)})."
    )


def node_title(node: NodeView) -> str:
    """Return the expression of a node, with the whole of the user's names for its results."""
    named = [full_name(tensor, name) for tensor, name in zip(node.tensors, node.called, strict=False) if name]
    return f"{node.text}\n{', '.join(named)}" if named else node.text


def node_text(node: NodeView, schedulers: Mapping[int, str]) -> str:
    """Return type, size and place of a node, given the scheduler of each segment."""
    if node.kind == "segment":
        return node.detail
    kind = f"{node.dtype} [{', '.join(node.shape)}], {bytes_label(node.bytes)}"
    if node.segment is None:
        return kind
    place = f"{kind}; segment {node.segment}, {schedulers.get(node.segment, '')}"
    return f"{place}; computed in {node.copies} segments" if node.replica else place


def edge_title(edge: EdgeView) -> str:
    """Return the source and the target of a tensor."""
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


def inner(edge: EdgeView) -> int | None:
    """Return the segment that contains an edge, whose hue it has; None for other edges."""
    return edge.segments[0] if edge.kind == "inside" else None


def _css_hue(segment: int | None) -> str:
    return "" if segment is None else f" {_hue_class(segment)}"


def _hue_class(index: int) -> str:
    return f"fl-h{index % len(theme.HUES_LIGHT)}"


def _outline(node: NodeView, box: Box, css: str, paint: str = "") -> str:
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
        return f'<path class="{css}" d="M{" L".join(map(_p, corners))}Z"{paint}/>'
    return f'<rect class="{css}"{_rect(box)} rx="{_n(h / 2 if node.kind == "input" else 6.0)}"{paint}/>'


def _spine(box: Box) -> str:
    """Return the patterned strip along the left side of a segment, inside its rounded corners."""
    r, x, y, h = 10.0, box.x + 0.75, box.y + 0.75, box.height - 1.5
    return (
        f"M{_n(x + _SPINE)},{_n(y + 0.6)} A{_n(r)},{_n(r)} 0 0 0 {_n(x)},{_n(y + r)} V{_n(y + h - r)} "
        f"A{_n(r)},{_n(r)} 0 0 0 {_n(x + _SPINE)},{_n(y + h - 0.6)}Z"
    )


def _arrow(curve: Curve, width: float) -> tuple[str, str]:
    """Return the path of an edge and the triangle at its end."""
    # Numbers are formatted all at once: they are most of the work of drawing a large fusion.
    path = _path_form(len(curve.points)) % tuple(chain.from_iterable(curve.points))
    path = path.replace(".0,", ",").replace(".0 ", " ").rstrip()
    (x0, y0), (x1, y1) = curve.points[-1], curve.tip
    length = math.hypot(x1 - x0, y1 - y0) or 1.0
    across = (y0 - y1) / length, (x1 - x0) / length
    half = 2.6 + width * 0.75
    dx, dy = across[0] * half, across[1] * half
    tip = _TIP_FORM % (x0 + dx, y0 + dy, x1, y1, x0 - dx, y0 - dy)
    return path, tip.replace(".0,", ",").replace(".0 ", " ").replace(".0Z", "Z")


_TIP_FORM: Final = "M%.1f,%.1f L%.1f,%.1f L%.1f,%.1fZ"


@lru_cache(maxsize=256)
def _path_form(points: int) -> str:
    """Return the format of a curve through ``count`` points, with a space after the last number."""
    return "M%.1f,%.1f C" + "%.1f,%.1f " * (points - 1)


@lru_cache(maxsize=1 << 14)
def _text(text: str) -> str:
    """Return text escaped for content and attributes."""
    return escape(clean(text))


def _rect(box: Box) -> str:
    return f' x="{_n(box.x)}" y="{_n(box.y)}" width="{_n(box.width)}" height="{_n(box.height)}"'


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _p(point: Sequence[float]) -> str:
    return f"{_n(point[0])},{_n(point[1])}"

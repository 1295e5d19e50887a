"""A rewrite of a fusion as a picture: the changed ops and their neighbours, before and after side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree.ElementTree import Element, fromstring

from fuser_lab.report import chart, layers, measure, theme
from fuser_lab.report.layers import Point
from fuser_lab.report.pass_diff import Mark, OpMark, Rewrite, RewriteSide
from fuser_lab.report.units import plural

_GAP, _RANK_GAP, _TOP, _MARGIN, _HEIGHT, _PADDING = 14.0, 22.0, 30.0, 10.0, 24.0, 9.0
_GUTTER, _NARROWEST = 28.0, 150.0
_NAMESPACE: Final = ' xmlns="http://www.w3.org/2000/svg"'
_SIGNS: Final = {Mark.REMOVED: "−", Mark.ADDED: "+", Mark.REWRITTEN: "≠", Mark.UNCHANGED: ""}
_COLOURS: Final = {Mark.REMOVED: "bad", Mark.ADDED: "good", Mark.REWRITTEN: "accent", Mark.UNCHANGED: "line"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """The positions of the ops and inputs of both sides; a common op has the same position in both."""

    centres: Mapping[str, Point]
    routes: Mapping[tuple[str, str], tuple[Point, ...]]
    height: float

    def across(self, side: RewriteSide) -> tuple[float, float]:
        """Return the left and the right end of one side's drawing."""
        ends = [x for reader in side.ops for source in reader.reads for x, _ in self.routes[source, reader.name]]
        for op in side.ops:
            ends += [self.centres[op.name][0] + sign * _width(op) / 2 for sign in (-1, 1)]
            ends += [self.centres[name][0] + sign * _io_width(name) / 2 for name in op.reads for sign in (-1, 1)]
        return min(ends, default=0.0), max(ends, default=0.0)


def rewrite_svg(rewrite: Rewrite, *, style: bool = True, ids: Mapping[str, str] | None = None) -> str:
    """Return the change of a rewrite as two graphs side by side.

    A sign and a colour mark each op: − removed, + added, ≠ rewritten; unchanged ops have neither. Common ops have the
    same position in both graphs. ``ids`` are the ``data-id`` of ops of the right-hand graph, by name.
    """
    sides = rewrite.before, rewrite.after
    parts, x = [], _MARGIN
    frames = _frames(*sides)
    for side, frame, words in zip(sides, frames, ("before", "after"), strict=True):
        heading = _heading(words, side)
        low, high = frame.across(side)
        named = (ids or {}) if side is rewrite.after else {}
        parts.append(chart.label(heading, (x, 18), "fl-name"))
        parts.append(f'<g transform="translate({x - low:.1f},{_TOP:.1f})">{_graph(side, frame, named)}</g>')
        x += max(high - low, measure.sans_width(heading, measure.LABEL_SIZE), _NARROWEST) + _GUTTER
        parts.append(_divider(x - _GUTTER / 2, _TOP + frame.height))
    size = (x - _GUTTER + _MARGIN, _TOP + max(frame.height for frame in frames) + _MARGIN)
    changed = [op for side in sides for op in side.ops if op.mark is not Mark.UNCHANGED]
    words = " ".join((f"{rewrite.headline}.", *(f"{op.mark}: {op.text}." for op in changed)))
    return chart.document(rewrite.headline, words, "".join(parts[:-1]), size, style=style)


def rewrite_element(rewrite: Rewrite, *, style: bool = True, ids: Mapping[str, str] | None = None) -> Element:
    """Return the picture as an element for a page."""
    text = rewrite_svg(rewrite, style=style, ids=ids).replace(_NAMESPACE, "", 1)  # tags would get a prefix
    root = fromstring(text)  # noqa: S314 - written just now, by this module
    root.set("xmlns", _NAMESPACE.partition("=")[2].strip('"'))
    return root


def _divider(x: float, height: float) -> str:
    return f'<path class="fl-grid" d="M{x:.1f},8V{height:.1f}" stroke="{theme.colour("line")}"/>'


def _heading(words: str, side: RewriteSide) -> str:
    return f"{words} · {plural(side.left_out, 'other op')} not drawn" if side.left_out else words


def _frames(before: RewriteSide, after: RewriteSide) -> tuple[_Frame, _Frame]:
    """Return the positions of both sides: from one layout, unless reordered ops would make it cyclic."""
    try:
        both = _frame(before.ops, after.ops)
    except ValueError:
        return _frame(before.ops), _frame(after.ops)
    return both, both


def _frame(*sides: Sequence[OpMark]) -> _Frame:
    """Return one layout of the ops of all sides.

    Raises
    ------
    ValueError
        If their edges together form a cycle.
    """
    widths: dict[str, float] = {}
    edges: dict[tuple[str, str], None] = {}
    for ops in sides:
        for op in ops:
            widths[op.name] = max(_width(op), widths.get(op.name, 0.0))
            for source in op.reads:
                edges[source, op.name] = None
    for source, _ in edges:
        widths.setdefault(source, _io_width(source))
    numbers = {name: n for n, name in enumerate(widths)}
    graph = layers.Graph(
        items=tuple(layers.Item(width=width, height=_HEIGHT) for width in widths.values()),
        wires=tuple(layers.Wire(source=numbers[a], target=numbers[b], trunk=numbers[a]) for a, b in edges),
        gap=_GAP,
        rank_gap=_RANK_GAP,
    )
    placed = layers.place(graph)
    return _Frame(
        centres={name: placed.centres[n] for name, n in numbers.items()},
        routes=dict(zip(edges, placed.routes, strict=True)),
        height=placed.height,
    )


def _label(op: OpMark) -> str:
    sign = _SIGNS[op.mark]
    return f"{sign} {op.name} = {op.op}" if sign else f"{op.name} = {op.op}"


def _width(op: OpMark) -> float:
    return measure.sans_width(_label(op), measure.LABEL_SIZE) + 2 * _PADDING


def _io_width(name: str) -> float:
    return measure.sans_width(name, measure.LABEL_SIZE) + 2 * _PADDING


def _graph(side: RewriteSide, frame: _Frame, ids: Mapping[str, str]) -> str:
    there = {op.name for op in side.ops}
    outside = dict.fromkeys(source for op in side.ops for source in op.reads if source not in there)
    parts = [
        _wire(frame.routes[source, op.name], faint=op.mark is Mark.UNCHANGED)
        for op in side.ops for source in op.reads
    ]
    parts += [_outside(name, frame.centres[name]) for name in outside]
    parts += [_op(op, frame.centres[op.name], ids.get(op.name, "")) for op in side.ops]
    return "".join(parts)


def _wire(route: Sequence[Point], *, faint: bool) -> str:
    x, y = route[-1]
    way = "M" + " L".join(f"{a:.1f},{b:.1f}" for a, b in route)
    opacity = "0.55" if faint else "1"
    stroke = theme.colour("wire")
    tip = f'<path class="fl-tip" d="M{x:.1f},{y:.1f} l-3,-6 h6Z" fill="{stroke}"/>'
    return f'<g opacity="{opacity}"><path class="fl-wire" d="{way}" fill="none" stroke="{stroke}"/>{tip}</g>'


def _outside(name: str, at: Point) -> str:
    """Return a fusion input, or an op that is not drawn, as its name."""
    width = _io_width(name)
    return (
        f'<g class="fl-io"><rect class="fl-shape" x="{at[0] - width / 2:.1f}" y="{at[1] - _HEIGHT / 2:.1f}" '
        f'width="{width:.1f}" height="{_HEIGHT:.1f}" rx="12" fill="{theme.colour("panel")}" '
        f'stroke="{theme.colour("muted")}" stroke-dasharray="2 2"/>'
        + chart.label(name, (at[0], at[1] + 4), anchor="middle") + "</g>"
    )


def _op(op: OpMark, at: Point, node: str) -> str:
    width, mark = _width(op), f' data-id="{chart.escape_text(node)}"' if node else ""
    strong = op.mark is not Mark.UNCHANGED
    dashes = ' stroke-dasharray="5 3"' if op.mark is Mark.REMOVED else ""
    end = f'<path d="M{at[0] - width / 2 + 6:.1f},{at[1] + 8:.1f}h{width - 12:.1f}" stroke="{theme.colour("ink")}"/>'
    return (
        f'<g class="fl-rewrite fl-{op.mark}"{mark}><title>{chart.escape_text(f"{op.mark}: {op.text}")}</title>'
        f'<rect x="{at[0] - width / 2:.1f}" y="{at[1] - _HEIGHT / 2:.1f}" width="{width:.1f}" '
        f'height="{_HEIGHT:.1f}" rx="5" fill="{theme.colour("node")}" stroke="{theme.colour(_COLOURS[op.mark])}" '
        f'stroke-width="{2 if strong else 1}"{dashes}/>'
        + (end if op.output else "")
        + chart.label(_label(op), (at[0], at[1] + 4), "fl-name" if strong else "fl-detail", anchor="middle")
        + "</g>"
    )

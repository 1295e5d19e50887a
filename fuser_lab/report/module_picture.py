"""The boxes of a module map as SVG: nested levels, each in layers from top to bottom."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final
from xml.etree.ElementTree import Element

from fuser_lab.report import measure, theme
from fuser_lab.report.layers import Graph, Item, Placed, Point, Wire, place
from fuser_lab.report.markup import element, to_html
from fuser_lab.report.module_map import Link, ModuleBox
from fuser_lab.report.svg import edge_width
from fuser_lab.report.units import bytes_label, plural

_PADDING: Final = 14.0  # pixels between a frame and its boxes
_HEAD: Final = 28.0  # pixels of a frame's title
_GAP: Final = 18.0  # pixels between neighbouring boxes
_RANK_GAP: Final = 36.0  # pixels between rows of boxes
_MARGIN: Final = 6.0  # pixels around the picture and between its parts
_BACK: Final = 26.0  # bulge of a backward link
_PORT: Final = 34.0  # pixels between the ends of wires at a box
_WIDEST_NAME: Final = 44  # characters of a name
_MOST_OPS: Final = 3  # ops named in the box of a region
_COLOURED: Final = frozenset({"region", "kernel"})  # kinds whose boxes have a colour by number


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A box with its size and, where it is open, its level laid out."""

    box: ModuleBox
    width: float
    height: float
    level: Placed | None = None
    inside: "tuple[_Drawn, ...]" = ()
    forward: tuple[Link, ...] = ()


def map_svg(wholes: Sequence[ModuleBox], *, style: bool = True) -> str:
    """Return the picture of maps, one below another; ``style=False`` leaves the style sheet to the page."""
    drawn = [_laid_out(whole) for whole in wholes]
    width = max((part.width for part in drawn), default=0.0) + 2 * _MARGIN
    height = sum(part.height + 2 * _MARGIN for part in drawn)
    root = element(
        "svg", css="fl-svg fl-map", viewBox=f"0 0 {width:.0f} {height:.0f}", width=f"{width:.0f}",
        height=f"{height:.0f}", role="group", aria_label="; ".join(map(describe, wholes)),
        xmlns="http://www.w3.org/2000/svg",
    )
    if style:
        root.append(element("style", f"{theme.graph_style()}{theme.MAP_RULES}"))
        root.append(element("rect", css="fl-paper", width="100%", height="100%"))
    y = _MARGIN
    for box_drawing in drawn:
        _paint(root, box_drawing, (_MARGIN, y), 0)
        y += box_drawing.height + 2 * _MARGIN
    return to_html(root)


def describe(box: ModuleBox) -> str:
    """Return a sentence that describes a box's contents."""
    moved = f"reads {bytes_label(box.bytes_in)} from other ops and gives them {bytes_label(box.bytes_out)}"
    if _is_whole(box):
        moved = f"its results have {bytes_label(box.bytes_out)}"
    ops = plural(len(box.calls), "op")
    if box.kind in _COLOURED:
        return f"{box.kind} {box.name}: {ops} here; {moved}"
    if box.kind == "torch":
        return f"{box.library}: {box.name}: {ops}; {moved}"
    if box.kind == "kernels":
        return f"{box.name}: {_counted_kernels(box)}"
    times = f"{box.times} equal modules, together " if box.times > 1 else ""
    if box.turns > 1:
        times = f"{box.modules} modules, {box.turns} that take turns {box.times} times, together "
    cls = f" ({box.cls})" if box.cls else ""
    return (
        f"{box.name}{cls}: {times}{ops}, {len(box.calls) - box.left} in {plural(len(box.regions), 'region')}, "
        f"{box.left} run by {box.library}; {moved}"
    )


def box_lines(box: ModuleBox) -> tuple[str, str, str]:
    """Return the three lines of a closed box."""
    moved = f"out {bytes_label(box.bytes_out)}" if _is_whole(box) else (
        f"in {bytes_label(box.bytes_in)} · out {bytes_label(box.bytes_out)}"
    )
    if box.kind in _COLOURED:
        ops = ", ".join(box.ops[:_MOST_OPS]) + (", …" if len(box.ops) > _MOST_OPS else "")
        return f"{box.kind} {box.name}", f"{plural(len(box.calls), 'op')}: {ops}", moved
    if box.kind == "torch":
        return f"{box.library}: {box.name}" + (f" × {len(box.calls)}" if len(box.calls) > 1 else ""), "", moved
    if box.kind == "kernels":
        return box.name, _counted_kernels(box), ""
    name = box.name if len(box.name) <= _WIDEST_NAME else f"…{box.name[1 - _WIDEST_NAME:]}"
    left = f" · {box.left} {box.library}" if box.left else ""
    counted = f"{plural(len(box.calls), 'op')} · {plural(len(box.regions), 'region')}{left}"
    turns = f"{box.turns} in turn, " if box.turns > 1 else ""
    return f"{name}{f': {turns}' if turns else ' '}× {box.times}" if box.times > 1 else name, counted, moved


def _is_whole(box: ModuleBox) -> bool:
    """Whether a box is the whole graph, which has no other ops beside it."""
    return box.kind == "module" and not box.id


def _counted_kernels(box: ModuleBox) -> str:
    elsewhere = f", {box.left} of them from elsewhere" if box.left else ""
    return f"{plural(len(box.regions) + box.left, 'kernel')}{elsewhere}"


# Where things go

def _laid_out(box: ModuleBox) -> _Drawn:
    if box.inside is None:
        name, *details = box_lines(box)
        details = [line for line in details if line]
        width = max(
            measure.sans_width(name, measure.NAME_SIZE), *(measure.sans_width(d, measure.DETAIL_SIZE) for d in details),
        )
        return _Drawn(box, width + 26, 30 + 15 * len(details))
    inside = tuple(map(_laid_out, box.inside.boxes))
    forward = tuple(link for link in box.inside.links if not link.back)
    level = place(Graph(
        items=tuple(Item(width=part.width, height=part.height) for part in inside), wires=_wires(inside, forward),
        gap=_GAP, rank_gap=_RANK_GAP,
    ))
    more = _BACK if len(forward) < len(box.inside.links) else 0.0
    width = max(level.width + 2 * _PADDING + more, measure.sans_width(_head(box), measure.DETAIL_SIZE + 1.5) + 30)
    return _Drawn(box, width, level.height + _HEAD + 2 * _PADDING, level, inside, forward)


def _wires(inside: Sequence[_Drawn], links: Sequence[Link]) -> tuple[Wire, ...]:
    entering: dict[int, int] = {}
    for link in links:
        entering[link.target] = entering.get(link.target, 0) + 1
    seen: dict[int, int] = {}
    made = []
    for link in links:
        at, count = seen.get(link.target, 0), entering[link.target]
        seen[link.target] = at + 1
        step = min(_PORT, inside[link.target].width / (count + 1))
        offset = (at - (count - 1) / 2) * step
        made.append(Wire(source=link.source, target=link.target, trunk=link.source, enters=offset))
    return tuple(made)


def _head(box: ModuleBox) -> str:
    name, counted, moved = box_lines(box)
    shown = "the first is shown" if box.turns == 1 else f"the first {box.turns} are shown"
    first = f", {shown}" if box.times > 1 else ""
    title = f"▾ {name}{f' {box.cls}' if box.cls else ''}{first}"
    return " · ".join(filter(None, (title, counted, moved)))


# Painting

def _paint(root: Element, drawn: _Drawn, at: Point, depth: int) -> None:
    box, (x, y) = drawn.box, at
    state = {"true": drawn.level is not None, "false": drawn.level is None}
    expanded = {"aria_expanded": next(k for k, v in state.items() if v)} if box.kind == "module" and box.id else {}
    is_coloured = box.kind in _COLOURED
    css = "fl-mapbox " + (f"fl-region fl-h{int(box.name) % len(theme.HUES_LIGHT)}" if is_coloured else f"fl-{box.kind}")
    label = {"role": "button", "aria_label": describe(box), "tabindex": "-1", "data_box": box.id} if box.id else {}
    group = element("g", css=css, **label, **expanded)
    group.append(element("title", describe(box)))
    root.append(group)
    if drawn.level is None:
        _paint_closed(group, drawn, at)
        return
    frame = f"fl-frame{' fl-odd' if depth % 2 else ''}"
    group.append(_rect(x, y, drawn.width, drawn.height, frame))
    group.append(_text(_head(box), x + 12, y + 19, "fl-name" if not box.id else "fl-head fl-name"))
    assert box.inside is not None
    left = x + (drawn.width - drawn.level.width) / 2
    top = y + _HEAD + _PADDING
    labels: list[tuple[float, float, float]] = []
    for link, route in zip(drawn.forward, drawn.level.routes, strict=True):
        on_left = route[-1][0] < drawn.level.centres[link.target][0]
        _paint_wire(root, drawn, link, [(left + px, top + py) for px, py in route], labels, on_left=on_left)
    for link in box.inside.links:
        if link.back:
            _paint_back(root, drawn, link, (left, top))
    for part, (cx, cy) in zip(drawn.inside, drawn.level.centres, strict=True):
        _paint(root, part, (left + cx - part.width / 2, top + cy - part.height / 2), depth + 1)


def _paint_closed(group: Element, drawn: _Drawn, at: Point) -> None:
    box, (x, y) = drawn.box, at
    if box.times > 1:
        group.append(_rect(x + 4, y - 4, drawn.width, drawn.height, "fl-sheet"))
    group.append(_rect(x, y, drawn.width, drawn.height, "fl-shape"))
    if box.kind in _COLOURED:
        group.append(element("rect", css="fl-strip", x=_n(x), y=_n(y + 4), width="4", height=_n(drawn.height - 8)))
    name, *details = box_lines(box)
    middle = x + drawn.width / 2
    group.append(_text(name, middle, y + 19, "fl-name", anchor="middle"))
    for n, line in enumerate(line for line in details if line):
        group.append(_text(line, middle, y + 35 + 15 * n, "fl-detail", anchor="middle"))


def _paint_wire(
    root: Element, drawn: _Drawn, link: Link, route: Sequence[Point], labels: list[tuple[float, float, float]], *,
    on_left: bool,
) -> None:
    width = edge_width(link.bytes)
    *start, (tx, ty) = route
    points = [*start, (tx, ty - 7)]
    path = f"M{_p(points[0])}" + "".join(
        f" C{_p((a[0], (a[1] + b[1]) / 2))} {_p((b[0], (a[1] + b[1]) / 2))} {_p(b)}" for a, b in pairwise(points)
    )
    group = element("g", element("title", _link_title(drawn, link)))
    group.append(element("path", css="fl-wire", d=path, stroke_width=f"{width:.1f}"))
    half = 2.6 + width * 0.75
    tip = f"M{_p((tx - half, ty - 8))} L{_p((tx, ty))} L{_p((tx + half, ty - 8))}Z"
    group.append(element("path", css="fl-tip", d=tip))
    text = bytes_label(link.bytes)
    room = measure.sans_width(text, measure.DETAIL_SIZE)
    lx, ly = tx - 6 - room if on_left else tx + 6, ty - 12
    if all(abs(ly - oy) > 13 or lx > ox + ow or ox > lx + room for ox, oy, ow in labels):
        labels.append((lx, ly, room))
        at, anchor = (tx - 6, "end") if on_left else (tx + 6, "start")
        group.append(_text(text, at, ly, "fl-tag", anchor=anchor))
    root.append(group)


def _paint_back(root: Element, drawn: _Drawn, link: Link, origin: Point) -> None:
    assert drawn.level is not None
    ends = []
    for n in (link.source, link.target):
        (cx, cy), part = drawn.level.centres[n], drawn.inside[n]
        ends.append((origin[0] + cx + part.width / 2, origin[1] + cy))
    (ax, ay), (bx, by) = ends
    out = max(ax, bx) + _BACK
    path = f"M{_p((ax, ay))} C{_p((out, ay))} {_p((out, by))} {_p((bx + 7, by))}"
    group = element("g", element("title", f"{_link_title(drawn, link)}, which is called again"))
    group.append(element("path", css="fl-wire fl-back", d=path, stroke_width=f"{edge_width(link.bytes):.1f}"))
    group.append(element("path", css="fl-tip", d=f"M{_p((bx + 8, by - 4))} L{_p((bx, by))} L{_p((bx + 8, by + 4))}Z"))
    root.append(group)


def _link_title(drawn: _Drawn, link: Link) -> str:
    names = [box_lines(drawn.inside[n].box)[0] for n in (link.source, link.target)]
    return f"{plural(link.tensors, 'tensor')}, {bytes_label(link.bytes)}, from {names[0]} to {names[1]}"


def _rect(x: float, y: float, width: float, height: float, css: str) -> Element:
    return element("rect", css=css, x=_n(x), y=_n(y), width=_n(width), height=_n(height), rx="6")


def _text(text: str, x: float, y: float, css: str, *, anchor: str = "start") -> Element:
    return element("text", text, css=css, x=_n(x), y=_n(y), text_anchor=anchor)


def _n(value: float) -> str:
    return f"{value:.1f}"


def _p(point: Point) -> str:
    return f"{point[0]:.1f},{point[1]:.1f}"

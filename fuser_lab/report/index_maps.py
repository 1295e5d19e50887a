"""The correspondence between the numbers of segments and those of the definition, as text and drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from xml.etree.ElementTree import Element

from fuser_lab.definition.state import FusionState, State, StateKind
from fuser_lab.ir import TensorView
from fuser_lab.report.html import fragment
from fuser_lab.report.markup import element

_WIDTH, _HEIGHT, _GAP = 46, 34, 8  # of a number's box, and between two boxes
_APART = 28  # between two segments
_TOP, _BELOW, _TITLE = 22, 110, 16
_ROLES = {"input": "--fl-accent", "output": "--fl-good", "size": "--fl-muted"}


@dataclass(frozen=True, kw_only=True)
class IndexMaps:
    """The numbers of a definition and of its segments, and for each segment a map of its numbers to the original ones.

    ``decided`` names the sizes that ops of the definition determine; their numbers follow those of the input extents.
    ``crossing`` names tensors that passes or the segmenter made and that pass between segments; their numbers come
    last.
    """

    original: FusionState
    segments: tuple[tuple[FusionState, Mapping[int, int]], ...]
    decided: Mapping[int, str] = field(default_factory=dict)
    crossing: Mapping[int, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return one line per segment, ``segment 0: 0 is 0 (T0), 2 is 3 (T3)``."""
        names = self._names
        lines = []
        for index, (_, numbers) in enumerate(self.segments):
            pairs = (f"{new} is {old} ({_name(names.get(old), old)})" for new, old in numbers.items())
            lines.append(f"segment {index}: {', '.join(pairs)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the numbers as boxes, with lines between those of the same value."""
        return fragment(element("div", self._picture(), css="fl-picture"))

    def _picture(self) -> Element:
        definition_boxes = _boxes(self.original, extents=self._used_extents(), names=self._names)
        rows = [_boxes(state, extents={}, names=state.name_of) for state, _ in self.segments]
        above = _row_width(len(definition_boxes))
        below = sum(_row_width(len(row)) for row in rows) + _APART * (len(rows) - 1)
        width, height = max(above, below) + 2 * _GAP, _TOP + 2 * _HEIGHT + _BELOW + _TITLE
        places, parts = _row(definition_boxes, (width - above) / 2, _TOP, "")
        parts.insert(0, _text("definition", (width - above) / 2, _TOP - 8))
        left, down = (width - below) / 2, _TOP + _HEIGHT + _BELOW
        for index, (row, (_, numbers)) in enumerate(zip(rows, self.segments, strict=True)):
            hue = f"--fl-h{index % 8}"
            inner, drawn = _row(row, left, down, hue)
            for new, old in numbers.items():
                parts.append(_line(places[old], inner[new], hue, f"segment {index}: {new} is {old}"))
            parts += [*drawn, _text(f"segment {index}", left, down + _HEIGHT + 14)]
            left += _row_width(len(row)) + _APART
        title = element("title", f"{len(definition_boxes)} numbers of the definition and those of {len(rows)} segments")
        return element(
            "svg", title, *parts, width=f"{width:g}", height=f"{height:g}", viewBox=f"0 0 {width:g} {height:g}",
            role="img", xmlns="http://www.w3.org/2000/svg",
        )

    @cached_property
    def _names(self) -> Mapping[int, str]:
        """Names by number, including crossing tensors that passes or the segmenter made."""
        return {**self.crossing, **self.original.name_of, **self.decided}

    def _used_extents(self) -> dict[int, str]:
        """Return the sizes that segments read, by number."""
        used = sorted({old for _, numbers in self.segments for old in numbers.values() if old < 0})
        extents = self.original.extents
        return {fid: str(extents[-1 - fid]) if -fid <= len(extents) else self.decided[fid] for fid in used}


def _boxes(
    state: FusionState, *, extents: Mapping[int, str], names: Mapping[int, str],
) -> list[tuple[int, str, str]]:
    """Return (number, name, role) of used extents, states, and inner values that have a role."""
    roles = dict.fromkeys(state.outputs, "output") | dict.fromkeys(state.inputs, "input")
    numbers = [(fid, name, "size") for fid, name in extents.items()]
    numbers += [(s.fid, _label(s), roles.get(s.fid, "")) for s in state.states]
    inner = sorted(fid for fid in names if fid >= len(state.states))
    return [*numbers, *((fid, names[fid], roles.get(fid, "inside")) for fid in inner)]


def _label(state: State) -> str:
    """Return the name of a value, or the number of a constant."""
    if state.kind is StateKind.VECTOR:
        return f"{len(state.values)} sizes"
    value = state.values[0]
    return value.name if isinstance(value, TensorView) or value.value is None else f"{value.value:g}"


def _name(name: str | None, fid: int) -> str:
    return name if name is not None else f"size {fid}"


def _row_width(count: int) -> float:
    return max(count, 1) * (_WIDTH + _GAP) - _GAP


def _row(
    boxes: Sequence[tuple[int, str, str]], left: float, top: float, hue: str,
) -> tuple[dict[int, tuple[float, float]], list[Element]]:
    """Return the position of each number in a row of boxes, and the boxes."""
    places: dict[int, tuple[float, float]] = {}
    parts: list[Element] = []
    for fid, name, role in boxes:
        stroke = hue or _ROLES.get(role, "--fl-line")
        shape = element(
            "rect", x=f"{left:g}", y=f"{top:g}", width=str(_WIDTH), height=str(_HEIGHT), rx="5",
            style=f"fill:var(--fl-node);stroke:var({stroke});stroke-width:{2 if role else 1}"
            + (";stroke-dasharray:4 3" if role == "inside" else ""),
        )
        middle = left + _WIDTH / 2
        parts.append(element(
            "g", element("title", f"{fid}: {name}{f', {role}' if role else ''}"), shape,
            _text(str(fid), middle, top + 15, css="fl-number"), _text(name, middle, top + 28, css="fl-value"),
        ))
        places[fid] = (middle, top + (_HEIGHT if not hue else 0))
        left += _WIDTH + _GAP
    return places, parts


def _text(content: str, x: float, y: float, *, css: str = "") -> Element:
    bold = css == "fl-number"
    return element(
        "text", content, css=css, x=f"{x:g}", y=f"{y:g}", **{"text-anchor": "middle" if css else "start"},
        style=f"font-size:{12 if bold else 11}px;font-weight:{600 if bold else 400};"
        f"fill:var({'--fl-ink' if bold else '--fl-muted'})",
    )


def _line(start: tuple[float, float], end: tuple[float, float], hue: str, title: str) -> Element:
    (x0, y0), (x1, y1) = start, end
    bend = (y1 - y0) / 2
    return element(
        "path", element("title", title), d=f"M{x0:g},{y0:g}C{x0:g},{y0 + bend:g} {x1:g},{y1 - bend:g} {x1:g},{y1:g}",
        style=f"fill:none;stroke:var({hue});stroke-width:2",
    )

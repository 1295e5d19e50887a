"""The difference of two plans as a picture: the segments of both side by side, linked by shared expressions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fuser_lab.report import chart, measure, theme
from fuser_lab.report.difference import Difference, Side
from fuser_lab.report.dot_text import quote
from fuser_lab.report.mermaid import quote_text as mermaid_quoted
from fuser_lab.report.units import bytes_label, plural

_WIDTH, _BOX, _LEFT = 680.0, 250.0, 10.0
_TOP, _HEIGHT, _GAP, _LINE = 46.0, 38.0, 10.0, 16.0
_MARGIN: Final = 4.0  # pixels above and below the bands at a box
_NAMED: Final = 2  # most expressions that a band names; otherwise it shows their number
_MOST_TENSORS: Final = 12  # lines of a box


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Expressions shared by a segment of each plan; ``moved`` if the two segments are not partners."""

    before: int
    after: int
    names: tuple[str, ...]
    moved: bool

    @property
    def label(self) -> str:
        """The names of the expressions, or their number if there are many."""
        return ", ".join(self.names) if len(self.names) <= _NAMED else plural(len(self.names), "op")


def links(difference: Difference) -> tuple[Link, ...]:
    """Return the pairs of segments of the two plans that share expressions."""
    pairs = set(difference.partners)
    bands = []
    for a, first in enumerate(difference.before.ops):
        for b, second in enumerate(difference.after.ops):
            names = tuple(name for name in first if name in second)
            if names:
                bands.append(Link(before=a, after=b, names=names, moved=(a, b) not in pairs))
    return tuple(bands)


def diff_svg(difference: Difference, *, style: bool = True) -> str:
    """Return the first plan's segments on the left, the second's on the right, and bands for shared expressions.

    Partners have the same colour and a grey band; bands of regrouped expressions are coloured and named. Tensors that
    cross between segments in only one of the plans are listed below.
    """
    sides = difference.before, difference.after
    hues = [range(len(sides[0].ops)), [_hue(b, difference) for b in range(len(sides[1].ops))]]
    right = _WIDTH - _LEFT - _BOX
    parts = [_heading(side, x) for side, x in zip(sides, (_LEFT, right), strict=True)]
    bands = links(difference)
    parts += [_band(link, bands, right) for link in sorted(bands, key=lambda link: link.moved)]
    for side, x, colours in zip(sides, (_LEFT, right), hues, strict=True):
        chosen = side is sides[1]  # pages make the second plan, which they show, selectable
        parts += [_segment(side, n, (x, _row(n)), colours[n], chosen=chosen) for n in range(len(side.ops))]
    y = _row(max(len(side.ops) for side in sides)) + 8
    changes = _crossings(difference)
    for words, colour in changes:
        parts.append(chart.label(words, (_LEFT, y + 8), f"fl-{colour}", colour=colour))
        y += _LINE
    crossing = "; ".join(words for words, _ in changes) or "the same tensors cross"
    moved = plural(len(difference.moved), "op") + " grouped differently"
    return chart.document(difference.headline, f"{moved}. {crossing}.", "".join(parts), (_WIDTH, y + 4), style=style)


def diff_mermaid(difference: Difference) -> str:
    """Return the picture as a Mermaid flowchart; links of expressions grouped differently are dashed."""
    lines = ["flowchart LR"]
    for key, side in zip("ab", (difference.before, difference.after), strict=True):
        lines.append(f'  subgraph {key}["{mermaid_quoted(side.name)}"]')
        lines += [f'    {key}{n}["{mermaid_quoted(_name(side, n))}"]' for n in range(len(side.ops))]
        lines.append("  end")
    for link in links(difference):
        label = mermaid_quoted(link.label)
        arrow = f'-. "{label}" .->' if link.moved else f'-- "{label}" -->'
        lines.append(f"  a{link.before} {arrow} b{link.after}")
    return "\n".join(lines) + "\n"


def diff_dot(difference: Difference) -> str:
    """Return the picture as DOT text, one cluster per plan; links of expressions grouped differently are dashed."""
    lines = ["digraph difference {", "  rankdir=LR; node [fontname=sans, shape=box]; edge [fontname=sans];"]
    for key, side in zip("ab", (difference.before, difference.after), strict=True):
        lines += [f"  subgraph cluster_{key} {{", f"    label={quote(side.name)};"]
        lines += [f"    {key}{n} [label={quote(_name(side, n))}];" for n in range(len(side.ops))]
        lines.append("  }")
    for link in links(difference):
        dashes = ", style=dashed" if link.moved else ""
        lines.append(f"  a{link.before} -> b{link.after} [label={quote(link.label)}{dashes}];")
    return "\n".join([*lines, "}", ""])


def _heading(side: Side, x: float) -> str:
    numbers = f"{plural(len(side.ops), 'segment')} · {bytes_label(side.bytes)} moved"
    name = _fit(side.name, _BOX, measure.LABEL_SIZE)
    return chart.label(name, (x, 18), "fl-name") + chart.label(numbers, (x, 34))


def _segment(side: Side, index: int, at: tuple[float, float], hue: int, *, chosen: bool) -> str:
    x, y = at
    names = side.ops[index]
    title = f"S{index} {side.schedulers[index]}: {', '.join(names)}"
    colour, css = theme.hue(hue), f"fl-h{hue % len(theme.HUES_LIGHT)}"
    box = f'x="{x:.1f}" y="{y:.1f}" height="{_HEIGHT:.0f}"'
    mark = f' data-id="segment:{index}"' if chosen else ""
    words = _fit(", ".join(names), _BOX - 20, measure.LABEL_SIZE)
    return (
        f'<g class="fl-point {css}"{mark}><title>{chart.escape_text(title)}</title>'
        f'<rect {box} width="{_BOX:.0f}" rx="5" fill="{theme.colour("paper")}" class="fl-paper"/>'
        f'<rect {box} width="{_BOX:.0f}" rx="5" fill="{colour}" fill-opacity="0.1" stroke="{colour}" class="fl-box"/>'
        f'<rect {box} width="5" rx="2" fill="{colour}" class="fl-tint"/>'
        + chart.label(f"S{index} {side.schedulers[index]}", (x + 13, y + 16), "fl-name")
        + chart.label(words, (x + 13, y + 30)) + "</g>"
    )


def _band(link: Link, bands: Sequence[Link], right: float) -> str:
    """Return a band as wide as its share of the larger segment; bands at a box follow the opposite order."""
    leaving = [band for band in bands if band.before == link.before]
    arriving = [band for band in bands if band.after == link.after]
    start, from_width = _port(link, leaving, _row(link.before))
    end, to_width = _port(link, arriving, _row(link.after))
    x, middle = _LEFT + _BOX, (_LEFT + _BOX + right) / 2
    way = f"M{x:.1f},{start:.1f} C{middle:.1f},{start:.1f} {middle:.1f},{end:.1f} {right:.1f},{end:.1f}"
    title = f"S{link.before} there and S{link.after} here: {', '.join(link.names)}"
    hue, css = theme.hue(link.before), f"fl-h{link.before % len(theme.HUES_LIGHT)} fl-ink"
    colour, css = (hue, css) if link.moved else (theme.colour("wire"), "fl-wire")
    opacity = "0.7" if link.moved else "0.35"
    width = max(1.5, min(from_width, to_width))
    name = chart.label(link.label, (right - 8, end - width / 2 - 3), anchor="end") if link.moved else ""
    return (
        f'<g class="fl-link{" fl-moved" if link.moved else ""}"><title>{chart.escape_text(title)}</title>'
        f'<path class="{css}" d="{way}" fill="none" stroke="{colour}" stroke-opacity="{opacity}" '
        f'stroke-width="{width:.1f}"/>{name}</g>'
    )


def _port(link: Link, beside: Sequence[Link], top: float) -> tuple[float, float]:
    """Return where the middle of a band meets a box, and its maximum width there."""
    room = (_HEIGHT - 2 * _MARGIN) / sum(len(neighbour.names) for neighbour in beside)
    above = sum(len(neighbour.names) for neighbour in beside[: beside.index(link)])
    return top + _MARGIN + room * (above + len(link.names) / 2), room * len(link.names)


def _crossings(difference: Difference) -> list[tuple[str, str]]:
    lines = [(f"+ {c.name} now crosses: {bytes_label(c.bytes)}", "bad") for c in difference.now_crossing]
    lines += [(f"− {c.name} no longer crosses: {bytes_label(c.bytes)}", "good") for c in difference.no_longer_crossing]
    if len(lines) > _MOST_TENSORS:
        lines = [*lines[:_MOST_TENSORS], (f"… and {len(lines) - _MOST_TENSORS} more", "muted")]
    return lines


def _hue(after: int, difference: Difference) -> int:
    """Return the colour of the partner, or preferably one that no segment of the first plan has."""
    return next((a for a, b in difference.partners if b == after), len(difference.before.ops) + after)


def _row(index: int) -> float:
    return _TOP + index * (_HEIGHT + _GAP)


def _name(side: Side, index: int) -> str:
    return f"S{index} {side.schedulers[index]} ({plural(len(side.ops[index]), 'op')})"


def _fit(words: str, width: float, size: float) -> str:
    if measure.sans_width(words, size) <= width:
        return words
    while words and measure.sans_width(f"{words}…", size) > width:
        words = words[:-1]
    return f"{words}…"

"""The bytes that are alive while the units of a captured step run, as numbers and as static SVG."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fuser_lab.report import chart, theme
from fuser_lab.report.units import bytes_label

_WIDTH: Final = 900.0  # pixels of the picture
_HEIGHT: Final = 170.0  # pixels of the picture
_LEFT, _RIGHT, _TOP, _BOTTOM = 76.0, 14.0, 26.0, 24.0
_MOST_TITLED: Final = 400  # units with a tooltip each


@dataclass(frozen=True, slots=True, kw_only=True)
class AliveBytes:
    """Bytes while one unit runs: ``held`` are the inputs and parameters of its graph, ``computed`` all other values."""

    graph: str
    unit: str
    held: int
    computed: int

    @property
    def total(self) -> int:
        """All bytes."""
        return self.held + self.computed


def peak_of(line: Sequence[AliveBytes]) -> AliveBytes | None:
    """Return the first of the units during which the most bytes are alive; None if nothing runs."""
    return max(line, key=lambda each: each.total, default=None)


def memory_line_svg(line: Sequence[AliveBytes], *, style: bool = True) -> str:
    """Return the bytes over the units in run order: held below, computed above, and the peak marked."""
    peak = peak_of(line)
    if peak is None or not peak.total:
        return ""
    step, scale = (_WIDTH - _LEFT - _RIGHT) / len(line), (_HEIGHT - _TOP - _BOTTOM) / peak.total
    floor = _HEIGHT - _BOTTOM

    def area(heights: Sequence[int], colour: str, css: str) -> str:
        points = [(_LEFT, floor)]
        for n, height in enumerate(heights):
            y = floor - height * scale
            points += [(_LEFT + n * step, y), (_LEFT + (n + 1) * step, y)]
        points.append((_LEFT + len(heights) * step, floor))
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        return f'<polygon class="{css}" points="{text}" fill="{theme.colour(colour)}"/>'

    parts = [
        area([each.total for each in line], "accent", "fl-bar-between"),
        area([each.held for each in line], "wire", "fl-bar-inputs"),
        chart.label("0", (_LEFT - 8, floor), anchor="end"),
        chart.label(bytes_label(peak.total), (_LEFT - 8, _TOP + 4), anchor="end"),
    ]
    start = 0
    for n, each in enumerate(line):
        if n + 1 == len(line) or line[n + 1].graph != each.graph:
            parts.append(chart.label(each.graph, (_LEFT + start * step, _HEIGHT - 6)))
            start = n + 1
    if len(line) <= _MOST_TITLED:
        parts += [
            f'<rect x="{_LEFT + n * step:.1f}" y="{_TOP:.1f}" width="{step:.1f}" height="{floor - _TOP:.1f}" '
            'fill="transparent"><title>'
            f'{chart.escape_text(f"{each.graph} {each.unit}: {bytes_label(each.total)}")}</title></rect>'
            for n, each in enumerate(line)
        ]
    heading = (
        f"Memory over the step: at most {bytes_label(peak.total)}, at {peak.graph} {peak.unit}; "
        f"the lower band, {bytes_label(peak.held)} there, is inputs and parameters"
    )
    parts.append(chart.label(heading, (_LEFT, 14)))
    return chart.document(heading, f"{heading}.", "".join(parts), (_WIDTH, _HEIGHT), style=style)

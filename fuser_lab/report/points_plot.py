"""Points over two linear axes as static SVG: medians with their intervals, joined by lines."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from fuser_lab.report import chart, theme

_WIDTH, _HEIGHT = 660.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 78.0, 130.0, 16.0, 46.0
_TICKS: Final = 5  # ticks of an axis, about
_ROOM: Final = 0.06  # share of the range that stays free at both ends
_NEAR: Final = 13.0  # pixels between labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One mark; ``low`` and ``high`` bound its y, NaN for no interval. ``full`` marks are filled."""

    x: float
    y: float
    label: str = ""
    title: str = ""
    low: float = math.nan
    high: float = math.nan
    hue: int = 0
    full: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis: its name, the format of its values, and its ticks, round numbers by default."""

    name: str
    written: Callable[[float], str]
    ticks: tuple[tuple[float, str], ...] = ()


def points_svg(
    points: Sequence[Point], across: Axis, up: Axis, title: str, *,
    lines: Sequence[Sequence[tuple[float, float]]] = (),
) -> str:
    """Return the points, and lines between places, as static SVG."""
    shown = [p for p in points if math.isfinite(p.x) and math.isfinite(p.y)]
    x = _range([p.x for p in shown] + [value for value, _ in across.ticks])
    y = _range([v for p in shown for v in (p.y, p.low, p.high) if math.isfinite(v)])
    place = _Place(x=x, y=y)
    parts = [_frame(place, across, up)]
    parts += [place.line(line) for line in lines if len(line) > 1]
    parts += [place.mark(point) for point in shown]
    parts += place.labels(shown)
    said = "; ".join(f"{p.label or across.written(p.x)}: {up.written(p.y)}" for p in shown)
    return chart.document(title, f"{said}.", "".join(parts), (_WIDTH, _HEIGHT), style=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The mapping of values to the plot: the ranges of both axes."""

    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + (x - self.x[0]) / (self.x[1] - self.x[0]) * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - (y - self.y[0]) / (self.y[1] - self.y[0]) * (_HEIGHT - _TOP - _BOTTOM),
        )

    def line(self, points: Sequence[tuple[float, float]]) -> str:
        way = " L".join("{:.1f},{:.1f}".format(*self.at(*point)) for point in points)
        return f'<path class="fl-fall" d="M{way}" fill="none" stroke="{theme.colour("wire")}" stroke-width="1.2"/>'

    def mark(self, point: Point) -> str:
        x, y = self.at(point.x, point.y)
        hue = theme.hue(point.hue)
        fill = hue if point.full else theme.colour("paper")
        css = f"fl-h{point.hue % len(theme.HUES_LIGHT)} {'fl-full' if point.full else 'fl-hollow'}"
        parts = [f"<title>{chart.escape_text(point.title or point.label)}</title>"]
        if math.isfinite(point.low + point.high):
            ends = [self.at(point.x, value)[1] for value in (point.low, point.high)]
            parts.append(
                f'<path class="fl-fall" d="M{x:.1f},{ends[0]:.1f} L{x:.1f},{ends[1]:.1f}" '
                f'stroke="{theme.colour("wire")}" stroke-width="1.4"/>',
            )
        parts.append(
            f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}" stroke="{hue}" stroke-width="2"/>',
        )
        return f'<g class="fl-point">{"".join(parts)}</g>'

    def labels(self, points: Sequence[Point]) -> list[str]:
        """Return the labels to the right of their marks; overlapping labels move down."""
        taken: list[tuple[float, float]] = []
        labels = []
        for point in sorted((p for p in points if p.label), key=lambda p: (-p.y, p.x)):
            x, y = self.at(point.x, point.y)
            y += 4
            while any(abs(y - other) < _NEAR and abs(x - left) < _RIGHT for left, other in taken):
                y += _NEAR
            taken.append((x, y))
            labels.append(chart.label(point.label, (x + 9, y), "fl-name"))
        return labels


def _frame(place: _Place, across: Axis, up: Axis) -> str:
    right, foot = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for value, words in across.ticks or [(v, across.written(v)) for v in _round_numbers(*place.x)]:
        x, _ = place.at(value, place.y[0])
        parts += [chart.rule((x, _TOP), (x, foot)), chart.label(words, (x, foot + 16), anchor="middle")]
    for value, words in up.ticks or [(v, up.written(v)) for v in _round_numbers(*place.y)]:
        _, y = place.at(place.x[0], value)
        parts += [chart.rule((_LEFT, y), (right, y)), chart.label(words, (_LEFT - 8, y + 4), anchor="end")]
    parts.append(chart.label(across.name, ((_LEFT + right) / 2, foot + 34), anchor="middle"))
    middle = f'<g transform="translate(14,{(_TOP + foot) / 2:.0f}) rotate(-90)">'
    parts.append(f'{middle}{chart.label(up.name, (0, 0), anchor="middle")}</g>')
    return "".join(parts)


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = (high - low) * _ROOM or abs(high) * _ROOM or 1.0
    return low - room, high + room


def _round_numbers(low: float, high: float) -> list[float]:
    """Return about five multiples of 1, 2 or 5 times a power of ten inside a range."""
    least = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= least)
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]

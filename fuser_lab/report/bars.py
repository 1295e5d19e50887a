"""Measured times as bars, with the middle half of the samples drawn over each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fuser_lab.report import chart, measure, theme
from fuser_lab.report.units import seconds_label

_WIDTH: Final = 660.0  # pixels of the picture
_HEIGHT, _GAP, _TOP, _RIGHT = 18.0, 7.0, 14.0, 150.0
_WIDEST_LABEL: Final = 260.0  # pixels of the column of labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One time in seconds with the quartiles of its samples; NaN if it was not measured."""

    label: str
    seconds: float
    low: float = math.nan
    high: float = math.nan
    hue: int = 0
    strong: bool = False
    note: str = ""


def bars_svg(bars: Sequence[Bar], title: str, *, style: bool = True) -> str:
    """Return the bars as static SVG on one scale from zero; unmeasured entries have text instead of a bar."""
    ends = [value for bar in bars for value in (bar.seconds, bar.high) if not math.isnan(value)]
    longest = max(ends, default=0.0)
    widths = [measure.sans_width(bar.label, measure.LABEL_SIZE) for bar in bars]
    left = min(max(widths, default=0.0), _WIDEST_LABEL) + 16
    scale = (_WIDTH - left - _RIGHT) / longest if longest > 0 else 0.0
    parts = [_bar_svg(bar, _TOP + n * (_HEIGHT + _GAP), left, scale) for n, bar in enumerate(bars)]
    height = _TOP * 2 + len(bars) * (_HEIGHT + _GAP)
    said = "; ".join(f"{bar.label} {_seconds(bar)}" for bar in bars)
    return chart.document(title, f"{said}.", "".join(parts), (_WIDTH, height), style=style)


def _bar_svg(bar: Bar, y: float, left: float, scale: float) -> str:
    words = _seconds(bar) + (f" · {bar.note}" if bar.note else "")
    name = chart.label(bar.label, (left - 8, y + 13), anchor="end", colour="ink")
    parts = [f"<title>{chart.escape_text(f'{bar.label}: {words}')}</title>", name]
    x = left
    if not math.isnan(bar.seconds):
        x += bar.seconds * scale
        faint = "" if bar.strong else ' fill-opacity="0.6"'
        parts.append(
            f'<rect x="{left:.1f}" y="{y:.1f}" width="{bar.seconds * scale:.1f}" height="{_HEIGHT:.0f}" '
            f'class="fl-h{bar.hue % len(theme.HUES_LIGHT)}" fill="{theme.hue(bar.hue)}"{faint}/>',
        )
        if not math.isnan(bar.low + bar.high):
            a, b, middle = left + bar.low * scale, left + bar.high * scale, y + _HEIGHT / 2
            parts.append(
                f'<path class="fl-grid" d="M{a:.1f},{middle:.1f} L{b:.1f},{middle:.1f} M{a:.1f},{y + 5:.1f} v8 '
                f'M{b:.1f},{y + 5:.1f} v8" stroke="{theme.colour("ink")}" stroke-width="1.4" fill="none"/>',
            )
            x = max(x, b)
    parts.append(chart.label(words, (x + 8, y + 13), colour="ink"))
    return f'<g class="fl-point">{"".join(parts)}</g>'


def _seconds(bar: Bar) -> str:
    return "not measured" if math.isnan(bar.seconds) else seconds_label(bar.seconds)

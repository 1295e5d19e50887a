"""A grid of coloured cells as static SVG: one number for each pair of values."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fuser_lab.report import chart, measure, theme

_TOP, _FOOT, _HEIGHT = 14.0, 44.0, 26.0
_NARROWEST: Final = 46.0  # pixels of a cell
_DARK: Final = 0.55  # opacity above which text on a cell has the colour of the paper
_LEAST, _MOST = 0.06, 0.92  # opacity of the smallest and the largest value


def heat_svg(
    cells: Mapping[tuple[str, str], float], columns: Sequence[str], rows: Sequence[str], names: tuple[str, str],
    title: str, written: Callable[[float], str],
) -> str:
    """Return the grid, larger values darker, on a logarithmic scale if all are positive; missing cells are empty.

    ``cells`` holds values by column and row, ``names`` the names of the two axes.
    """
    finite = [value for value in cells.values() if math.isfinite(value)]
    shares = _shares(finite)
    words = {place: written(value) for place, value in cells.items()}
    wide = [measure.sans_width(text, measure.LABEL_SIZE) for text in (*words.values(), *columns)]
    width = max(max(wide, default=0.0) + 12, _NARROWEST)
    left = max((measure.sans_width(row, measure.LABEL_SIZE) for row in rows), default=0.0) + 40
    parts = []
    for n, row in enumerate(rows):
        y = _TOP + n * _HEIGHT
        parts.append(chart.label(row, (left - 8, y + 17), anchor="end"))
        for m, column in enumerate(columns):
            value = cells.get((column, row), math.nan)
            if math.isfinite(value):
                parts.append(_cell((left + m * width, y), width, shares(value), words[column, row], f"{column}, {row}"))
    foot = _TOP + len(rows) * _HEIGHT
    parts += [
        chart.label(column, (left + (m + 0.5) * width, foot + 16), anchor="middle") for m, column in enumerate(columns)
    ]
    size = max(left + len(columns) * width + 14, 200.0), foot + _FOOT
    parts.append(chart.label(names[0], (left + len(columns) * width / 2, foot + 34), anchor="middle"))
    side = f'<g transform="translate(14,{(_TOP + foot) / 2:.0f}) rotate(-90)">'
    parts.append(f'{side}{chart.label(names[1], (0, 0), anchor="middle")}</g>')
    said = "; ".join(f"{column}, {row}: {words[column, row]}" for column, row in words)
    return chart.document(title, f"{said}.", "".join(parts), size, style=True)


def _cell(at: tuple[float, float], width: float, share: float, words: str, place: str) -> str:
    opacity = _LEAST + share * (_MOST - _LEAST)
    css, colour = ("fl-chip-text", "paper") if opacity > _DARK else ("fl-name", "ink")
    return (
        f'<g class="fl-point"><title>{chart.escape_text(f"{place}: {words}")}</title>'
        f'<rect class="fl-bar-between" x="{at[0]:.1f}" y="{at[1]:.1f}" width="{width - 2:.1f}" '
        f'height="{_HEIGHT - 2:.1f}" fill="{theme.colour("accent")}" fill-opacity="{opacity:.2f}"/>'
        + chart.label(words, (at[0] + (width - 2) / 2, at[1] + 16), css, anchor="middle", colour=colour) + "</g>"
    )


def _shares(values: Sequence[float]) -> Callable[[float], float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    scale: Callable[[float], float] = math.log if low > 0 else float
    span = scale(high) - scale(low) if high > low else 0.0
    return lambda value: (scale(value) - scale(low)) / span if span else 0.5

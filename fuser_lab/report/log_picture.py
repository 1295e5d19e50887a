"""A decision log as a picture: one row per attempt, one column per expression, marks for those it concerns."""

from collections.abc import Iterable, Sequence
from typing import Final

from fuser_lab.report import chart, measure, theme
from fuser_lab.report.tables import decision_reason
from fuser_lab.report.units import plural
from fuser_lab.report.view_model import DecisionView, view_decisions
from fuser_lab.segmentation.events import Attempt

_LEFT, _RIGHT, _ROW, _TOP = 190.0, 12.0, 15.0, 20.0
_WIDEST, _NARROWEST = 34.0, 6.0
_ROOM: Final = 480.0  # pixels for all columns, unless they become too narrow
_MOST_ROWS: Final = 200  # decisions of a picture


def decisions_svg(log: Iterable[Attempt]) -> str:
    """Return the attempts from top to bottom, with full marks if accepted and hollow ones if rejected.

    A line joins the expressions that an attempt would merge. Long logs show the first 200 rows.
    """
    decisions = view_decisions(log)
    shown = decisions[:_MOST_ROWS]
    names = list(dict.fromkeys(name for d in shown for name in d.names))
    names.sort(key=_number)
    step = min(max(_ROOM / max(len(names), 1), _NARROWEST), _WIDEST)
    columns = {name: _LEFT + step * (n + 0.5) for n, name in enumerate(names)}
    parts = _heads(names, columns, step)
    parts += [_row(d, _TOP + n * _ROW, columns, step) for n, d in enumerate(shown)]
    height = _TOP + len(shown) * _ROW + 8
    if len(decisions) > len(shown):
        parts.append(chart.label(f"… and {len(decisions) - len(shown)} more", (10, height + 6)))
        height += _ROW
    accepted = sum(d.accepted for d in decisions)
    words = f"{accepted} accepted, {len(decisions) - accepted} refused."
    width = _LEFT + step * len(names) + _RIGHT
    title = plural(len(decisions), "decision")
    return chart.document(title, words, "".join(parts), (max(width, _LEFT * 2), height), style=True)


def _heads(names: Sequence[str], columns: dict[str, float], step: float) -> list[str]:
    """Return the names above the columns, as many as fit."""
    widest = max((measure.sans_width(name, measure.LABEL_SIZE) for name in names), default=0.0) + 4
    every = max(1, round(widest / step + 0.5))
    return [chart.label(name, (columns[name], 14), anchor="middle") for name in names[::every]]


def _row(decision: DecisionView, y: float, columns: dict[str, float], step: float) -> str:
    middle = y + _ROW / 2
    colour = theme.colour("good" if decision.accepted else "bad")
    css = "fl-yes" if decision.accepted else "fl-no"
    subject = " · ".join(filter(None, (decision.phase, decision.kind))).replace("_", " ")
    mark = "✓" if decision.accepted else "✗"
    at = sorted(columns[name] for name in decision.names)
    parts = [
        f"<title>{chart.escape_text(f'{decision.seq} {mark} {decision.of}: {decision_reason(decision)}')}</title>",
        chart.label(str(decision.seq), (28, middle + 4), anchor="end"),
        chart.label(f"{mark} {subject}", (36, middle + 4)),
    ]
    if len(at) > 1:
        dashes = "" if decision.accepted else ' stroke-dasharray="3 2"'
        way = f"M{at[0]:.1f},{middle:.1f} H{at[-1]:.1f}"
        parts.append(f'<path d="{way}" stroke="{colour}" stroke-width="1.4"{dashes}/>')
    size = min(4.0, step * 0.42)
    fill = colour if decision.accepted else theme.colour("paper")
    parts += [
        f'<circle cx="{x:.1f}" cy="{middle:.1f}" r="{size:.1f}" fill="{fill}" stroke="{colour}" stroke-width="1.2"/>'
        for x in at
    ]
    return f'<g class="fl-attempt {css}">{"".join(parts)}</g>'


def _number(name: str) -> tuple[int, str]:
    digits = "".join(c for c in name.partition("_")[0] if c.isdigit())
    return int(digits) if digits else -1, name

"""The time of a plan's segments and of the gaps between them, predicted and measured: as numbers, table and SVG.

A gap is what passes before a kernel starts: its launch, or the pause after the kernel before it. Segments and gaps add
up to the time of the plan.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fuser_lab.cost.device import THIS_CPU
from fuser_lab.report import chart, measure, theme
from fuser_lab.report.roofline_plot import device_of, is_label_of
from fuser_lab.report.subject import PlanLike
from fuser_lab.report.tables import Table
from fuser_lab.report.units import seconds_label
from fuser_lab.report.view_model import SegmentView

GAPS: Final = "gaps"
_WIDTH: Final = 660.0  # pixels of the picture
_LEFT, _RIGHT, _TOP = 14.0, 14.0, 6.0
_BAR, _LINE = 22.0, 76.0  # pixels of a bar, and from one line to the next
_HEAD, _NAMES = 14.0, 32.0  # pixels from the top of a line to the base lines of its heading and of the segments' names
_UNITS: Final = {"ns": 1e9, "µs": 1e6, "ms": 1e3, "s": 1.0}  # per second
_NARROWEST: Final = 1.0  # pixels of a segment that takes hardly any time


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A time in seconds from the start of the plan: that of a segment, or of the gap before it."""

    segment: int
    start: float
    seconds: float
    is_gap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLine:
    """Segments and gaps in run order; ``spans`` cover the ``seconds`` of the plan.

    ``gaps`` is the sum of the gaps. ``excess`` is what the medians of measured segments take beyond that of the plan,
    which happens on a busy machine; there are no gaps then, and the spans cover more than the ``seconds``.
    """

    kind: str
    device: str
    spans: tuple[Span, ...]
    gaps: float
    seconds: float
    excess: float = 0.0

    @property
    def label(self) -> str:
        """What the times are, and the device."""
        return f"{self.kind} ({self.device})"

    @property
    def of_segments(self) -> dict[int, float]:
        """The seconds of each segment."""
        return {span.segment: span.seconds for span in self.spans if not span.is_gap}


def time_lines(plan: PlanLike, rows: Iterable[Any] = ()) -> tuple[TimeLine, ...]:
    """Return the predicted time line of a plan, and the measured one if all its segments and the plan are timed.

    ``rows`` are the rows of timings, of this plan and of others.
    """
    return tuple(line for line in (_predicted_line(plan), _measured_line(plan, list(rows))) if line is not None)


def _predicted_line(plan: PlanLike) -> TimeLine | None:
    parts = getattr(plan, "segment_times", None)
    if parts is None:
        return None
    gaps = {n: time.launch for n, time in enumerate(parts) if time.seconds}
    work = {n: time.seconds - gaps.get(n, 0.0) for n, time in enumerate(parts)}
    return TimeLine(
        kind="predicted", device=device_of(plan).name, spans=_in_order(work, gaps), gaps=sum(gaps.values()),
        seconds=sum(work.values()) + sum(gaps.values()),
    )


def _measured_line(plan: PlanLike, rows: Sequence[Any]) -> TimeLine | None:
    mine = [row for row in rows if row.plan_hash == plan.hash]
    whole = next((row for row in mine if row.segment is None), None)
    work = {row.segment: row.median for row in mine if row.segment is not None and not math.isnan(row.median)}
    if whole is None or math.isnan(whole.median) or not work:
        return None
    rest = whole.median - sum(work.values())
    gaps = max(rest, 0.0)
    # A run is timed as a whole and in each segment: only the sum of the gaps is known.
    each = gaps / len(work)
    device = THIS_CPU if whole.device.startswith("CPU") else whole.device
    if is_label_of(device_of(plan), whole.device):
        device = device_of(plan).name
    return TimeLine(
        kind="measured", device=device, spans=_in_order(work, dict.fromkeys(work, each)), gaps=gaps,
        seconds=whole.median, excess=max(-rest, 0.0),
    )


def _in_order(work: dict[int, float], gaps: dict[int, float]) -> tuple[Span, ...]:
    spans, at = list[Span](), 0.0
    for segment, seconds in sorted(work.items()):
        for length, is_gap in ((gaps.get(segment, 0.0), True), (seconds, False)):
            if length or not is_gap:
                spans.append(Span(segment=segment, start=at, seconds=length, is_gap=is_gap))
                at += length
    return tuple(spans)


def time_table(segments: Sequence[SegmentView], lines: Sequence[TimeLine]) -> Table:
    """Return one row per segment, one for the gaps, and the total, which is their sum, in one unit per column.

    Segments that take more than the plan do not add up to it, and the row of the gaps says so.
    """
    excess = "".join(f"; {line.label}: {excess_text(line.excess)}" for line in lines if line.excess)
    names = [*(f"S{s.index} {s.scheduler}" for s in segments), f"{GAPS}{excess}", "total"]
    columns = [column for line in lines for column in _columns([s.index for s in segments], line)]
    headings = tuple(heading for heading, _ in columns)
    return Table(
        columns=("part", *headings),
        rows=tuple((name, *(cells[n] for _, cells in columns)) for n, name in enumerate(names)),
        numeric=frozenset(headings), strong=frozenset({len(names) - 1}),
    )


def _columns(segments: Sequence[int], line: TimeLine) -> Iterator[tuple[str, list[str]]]:
    """Yield heading and cells of the times of a line, in the unit of the total, and of their shares."""
    number, unit = seconds_label(line.seconds).split(" ")
    decimals = len(number.partition(".")[2]) + 1
    times = [line.of_segments.get(n, math.nan) for n in segments]
    for heading, factor, places in (
        (f"{line.label} [{unit}]", _UNITS[unit], decimals), ("%", 100 / (line.seconds or 1.0), 1),
    ):
        parts, total = [time * factor for time in (*times, line.gaps)], line.seconds * factor
        cells = _round_parts(parts, total + line.excess * factor, places)
        yield heading, [*cells[:-1], f"{total:.{places}f}"]


def excess_text(seconds: float) -> str:
    """Return that segments took more time than the run of their plan."""
    return f"segments took {seconds_label(seconds)} more than the run, as the machine was busy"


def _round_parts(parts: Sequence[float], total: float, decimals: int) -> list[str]:
    """Return numbers as text with their total, which the rounded numbers add up to; NaN is not timed."""
    scaled = {n: part * 10**decimals for n, part in enumerate(parts) if not math.isnan(part)}
    units = {n: math.floor(part) for n, part in scaled.items()}
    rest = round(total * 10**decimals) - sum(units.values())
    for n in sorted(scaled, key=lambda n: units[n] - scaled[n])[:rest]:  # those that lose the most
        units[n] += 1
    cells = [f"{units[n] / 10**decimals:.{decimals}f}" if n in units else "not timed" for n in range(len(parts))]
    return [*cells, f"{total:.{decimals}f}"]


def time_line_svg(lines: Sequence[TimeLine], *, style: bool = True) -> str:
    """Return the lines below each other, on one scale if their times are of one device, otherwise each on its own."""
    room = _WIDTH - _LEFT - _RIGHT
    is_shared = len({line.device for line in lines}) == 1
    ends = [max(line.seconds, sum(span.seconds for span in line.spans)) for line in lines]
    parts = []
    for n, line in enumerate(lines):
        end = max(ends) if is_shared else ends[n]
        parts.append(_line_svg(line, _TOP + n * _LINE, room / end if end else 0.0))
    heading = "Time line: " + ", ".join(f"{line.label} {seconds_label(line.seconds)}" for line in lines)
    described = "; ".join(
        f"{line.label}: " + ", ".join(f"S{n} {seconds_label(value)}" for n, value in line.of_segments.items())
        + f", {GAPS} {seconds_label(line.gaps)}" for line in lines
    )
    return chart.document(heading, f"{described}.", "".join(parts), (_WIDTH, _TOP + len(lines) * _LINE), style=style)


def _line_svg(line: TimeLine, top: float, scale: float) -> str:
    y, middle = top + _NAMES + 5, top + _NAMES + 5 + _BAR / 2
    parts = [chart.label(f"{line.label}: {seconds_label(line.seconds)}", (_LEFT, top + _HEAD), "fl-name")]
    free = _LEFT  # where the next name may begin
    for span in line.spans:
        x, width = _LEFT + span.start * scale, span.seconds * scale
        words = f"S{span.segment}" if not span.is_gap else f"gap before S{span.segment}"
        title = f"<title>{chart.escape_text(f'{words}: {seconds_label(span.seconds)}')}</title>"
        if span.is_gap:
            parts.append(
                f'<g>{title}<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_BAR:.0f}" fill="transparent"/>'
                f'<path class="fl-grid" d="M{x:.1f},{middle:.1f} h{width:.1f}" stroke="{theme.colour("muted")}" '
                'stroke-width="1.4" stroke-dasharray="2 3" fill="none"/></g>',
            )
            continue
        width = max(width, _NARROWEST)
        name = ""
        centre, half = x + width / 2, measure.sans_width(words, measure.LABEL_SIZE) / 2
        begin = max(centre - half, _LEFT)
        if begin >= free and begin + 2 * half <= _WIDTH - _RIGHT:
            name = chart.label(words, (begin, top + _NAMES))
            free = begin + 2 * half + 4
        parts.append(
            f'<g class="fl-point" data-id="segment:{span.segment}">{title}{name}<rect x="{x:.1f}" y="{y:.1f}" '
            f'width="{width:.1f}" height="{_BAR:.0f}" class="fl-h{span.segment % len(theme.HUES_LIGHT)} fl-full" '
            f'fill="{theme.hue(span.segment)}"/></g>',
        )
    return "".join(parts)

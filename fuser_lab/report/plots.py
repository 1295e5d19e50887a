"""Plots of a plan as static SVG: the roofline of its segments, and what lies in memory while they run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

from fuser_lab.cost.device import DEFAULT
from fuser_lab.ir import OpKind
from fuser_lab.report import measure, theme
from fuser_lab.report.markup import clean
from fuser_lab.report.tables import Table
from fuser_lab.report.units import bytes_label, seconds_label, three_digits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fuser_lab.cost.device import Device
    from fuser_lab.ir import Expr, TensorView
    from fuser_lab.report.subject import PlanLike, SegmentLike

_COUNTED: Final = frozenset({OpKind.POINTWISE, OpKind.RANDOM})
_WIDTH, _HEIGHT = 660.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 66.0, 150.0, 16.0, 44.0
_BAR_HEIGHT, _BAR_GAP = 20.0, 8.0
_PARTS: Final = (
    ("inputs", "wire", "fusion inputs"), ("between", "accent", "between segments"), ("results", "good", "results"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a segment does: arithmetic operations and bytes; ``seconds`` is NaN where it was not measured."""

    segment: int
    scheduler: str
    operations: int
    bytes: int
    seconds: float = math.nan

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.operations / self.bytes if self.bytes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What lies in memory while a segment runs, in bytes: fusion inputs, tensors for later segments, results."""

    segment: int
    inputs: int
    between: int
    results: int

    @property
    def total(self) -> int:
        """Bytes of all."""
        return self.inputs + self.between + self.results


def operations(expr: Expr) -> int:
    """Return the arithmetic operations of an expression: one an element, two a multiply-add, none for moving data."""
    results, operands = expr.tensor_outputs, expr.tensor_inputs
    if not all(isinstance(extent, int) for tensor in (*results, *operands) for extent in tensor.extents):
        return 0
    if expr.kind is OpKind.MATMUL and operands:
        inner = operands[0].extents[-1]
        return 2 * _elements(results[0]) * (inner if isinstance(inner, int) else 0)
    if expr.kind is OpKind.REDUCTION:
        return max((_elements(tensor) for tensor in operands), default=0)
    return _elements(results[0]) if expr.kind in _COUNTED and results else 0


def loads(plan: PlanLike, seconds: Mapping[int, float] | None = None) -> tuple[Load, ...]:
    """Return the load of each segment; ``seconds`` are measured times by segment."""
    return tuple(
        Load(
            segment=s.index,
            scheduler=str(getattr(s.scheduler, "value", s.scheduler) or "no scheduler"),
            operations=sum(map(operations, s.exprs)),
            bytes=_bytes(s),
            seconds=(seconds or {}).get(s.index, math.nan),
        )
        for s in plan.segments
    )


def device_of(plan: Any) -> Device:
    """Return the device whose limits decided the cuts."""
    found: Device = getattr(getattr(plan, "oracle", None), "device", DEFAULT)
    return found


def measured_seconds(plan: Any, rows: Iterable[Any]) -> dict[int, float]:
    """Return the medians of a plan's segments among the rows of timings."""
    return {r.segment: r.median for r in rows if r.segment is not None and r.plan == plan.name and r.median > 0}


def load_table(found: Sequence[Load], device: Device) -> Table:
    """Return one row a segment: its load, and the least time that the device's data sheet allows."""
    rows = [
        (
            f"S{one.segment}",
            one.scheduler,
            _count(one.operations),
            bytes_label(one.bytes),
            three_digits(one.intensity),
            seconds_label(least_seconds(one, device)),
            "" if math.isnan(one.seconds) else seconds_label(one.seconds),
        )
        for one in found
    ]
    columns = ("segment", "scheduler", "operations", "bytes", "op/byte", f"{device.name} at best", "measured")
    return Table(columns=columns, rows=tuple(rows), numeric=frozenset(columns) - {"segment", "scheduler"})


def least_seconds(load: Load, device: Device) -> float:
    """Return the longer of the times for a segment's bytes and for its operations by the data sheet."""
    return max(load.bytes / (device.bandwidth * 1e9), load.operations / (device.fp32 * 1e12))


def roofline_svg(found: Sequence[Load], device: Device, *, note: str = "", style: bool = True) -> str:
    """Return the roofline: operations per second over operations per byte, both logarithmic.

    A hollow mark is what the device allows a segment, a full one what was measured.
    """
    shown = [one for one in found if one.operations and one.bytes]
    peak, slope = device.fp32 * 1e12, device.bandwidth * 1e9
    knee = peak / slope
    marks = [one.intensity for one in shown] + [knee]
    speeds = [one.operations / one.seconds for one in shown if one.seconds > 0]
    left, right = _decades(min(marks) / 2, max(marks) * 4)
    low, high = _decades(min([*speeds, *(min(peak, slope * one.intensity) for one in shown), peak]) / 2, peak * 1.5)
    plot = _Plot(x=(left, right), y=(low, high))
    parts = [plot.frame("operations per byte", "operations per second")]
    foot = max(left, low / slope)  # where the slope enters the frame
    start, corner, end = (foot, slope * foot), (knee, peak), (right, peak)
    parts.append(plot.line([start, corner, end], "fl-roof"))
    parts.append(plot.text(f"{device.name}: {three_digits(device.fp32)} TFLOP/s fp32", end, dx=6, dy=4))
    parts.append(plot.text(f"{device.bandwidth:.0f} GB/s", start, dx=16, dy=-2))
    free = _Rows()
    for one in shown:
        best = min(peak, slope * one.intensity)
        title = f"S{one.segment} {one.scheduler}: {_count(one.operations)} operations, {bytes_label(one.bytes)}"
        speed = one.operations / one.seconds if one.seconds > 0 else math.nan
        marked = [plot.mark((one.intensity, best), one.segment, full=False)]
        if not math.isnan(speed):
            marked += [
                plot.line([(one.intensity, best), (one.intensity, speed)], "fl-fall"),
                plot.mark((one.intensity, speed), one.segment, full=True),
            ]
            title += f", measured {seconds_label(one.seconds)}"
        at = plot.place((one.intensity, best if math.isnan(speed) else speed))
        marked.append(_label(f"S{one.segment}", (at[0] + 8, free.take(at[0], at[1] + 4)), "fl-name"))
        parts.append(
            f'<g class="fl-point" data-id="segment:{one.segment}"><title>{_text(title)}</title>{"".join(marked)}</g>',
        )
    measured = "full marks were measured" if speeds else "nothing was measured yet"
    words = note or f"Hollow marks are what the {device.name} allows; {measured}."
    described = "; ".join(f"S{o.segment}: {three_digits(o.intensity)} operations per byte" for o in shown)
    title, text = "Roofline of the segments", f"{described}. {words}"
    return _document(title, text, "".join(parts), (_WIDTH, _HEIGHT), style=style)


def memory_steps(plan: PlanLike) -> tuple[Step, ...]:
    """Return what lies in memory while each segment runs, in run order.

    Inputs stay throughout, as their owner keeps them; what passes between segments lives from the segment that writes
    it to the last that reads it; results stay from where they are written.
    """
    given = {t.name: t for t in plan.fusion.tensor_inputs}
    results = {t.name for t in plan.fusion.outputs}
    last: dict[str, int] = {}
    for n, segment in enumerate(plan.segments):
        last |= {t.name: n for t in segment.inputs if hasattr(t, "nbytes")}
    inputs = sum(map(_size, given.values()))
    live: dict[str, int] = {}
    steps = []
    for n, segment in enumerate(plan.segments):
        live |= {t.name: _size(t) for t in segment.outputs}
        steps.append(
            Step(
                segment=segment.index,
                inputs=inputs,
                between=sum(size for name, size in live.items() if name not in results),
                results=sum(size for name, size in live.items() if name in results),
            ),
        )
        live = {name: size for name, size in live.items() if name in results or last.get(name, -1) > n}
    return tuple(steps)


def memory_svg(plan: PlanLike, *, style: bool = True) -> str:
    """Return one bar a segment in run order: inputs, tensors between segments, results."""
    steps = memory_steps(plan)
    peak = max((step.total for step in steps), default=0)
    room = _WIDTH - _LEFT - _RIGHT
    scale = room / peak if peak else 0.0
    parts = []
    for n, step in enumerate(steps):
        y, x = _TOP + 14 + n * (_BAR_HEIGHT + _BAR_GAP), _LEFT
        sizes = {"inputs": step.inputs, "between": step.between, "results": step.results}
        title = f"S{step.segment}: " + ", ".join(f"{name} {bytes_label(size)}" for name, size in sizes.items())
        bars = []
        for name, colour, _ in _PARTS:
            size = sizes[name]
            width = size * scale
            bars.append(
                f'<rect class="fl-bar-{name}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_BAR_HEIGHT:.0f}" '
                f'fill="{theme.colour(colour)}"/>',
            )
            x += width
        words = bytes_label(step.total) + (" (peak)" if step.total == peak else "")
        parts.append(
            f'<g class="fl-point" data-id="segment:{step.segment}"><title>{_text(title)}</title>'
            + _label(f"S{step.segment}", (_LEFT - 10, y + 14), "fl-name", anchor="end")
            + "".join(bars)
            + _label(words, (x + 8, y + 14), "fl-detail")
            + "</g>",
        )
    legend, x = [], _LEFT
    for name, colour, words in _PARTS:
        legend.append(
            f'<rect class="fl-bar-{name}" x="{x:.0f}" y="5" width="12" height="12" fill="{theme.colour(colour)}"/>',
        )
        legend.append(_label(words, (x + 17, 15), "fl-detail"))
        x += 17 + measure.sans_width(words, measure.LABEL_SIZE) + 16
    height = _TOP + 22 + len(steps) * (_BAR_HEIGHT + _BAR_GAP)
    described = "; ".join(f"S{step.segment} {bytes_label(step.total)}" for step in steps)
    heading = f"Memory while segments run: at most {bytes_label(peak)}"
    return _document(heading, f"{described}.", "".join((*legend, *parts)), (_WIDTH, height), style=style)


class _Rows:
    """Keeps labels at nearly the same x from lying on each other."""

    def __init__(self) -> None:
        self._taken: list[tuple[float, float]] = []

    def take(self, x: float, y: float) -> float:
        while any(abs(x - a) < 26 and abs(y - b) < 12 for a, b in self._taken):
            y += 12
        self._taken.append((x, y))
        return y


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plot:
    """A frame with two logarithmic axes."""

    x: tuple[float, float]
    y: tuple[float, float]

    def place(self, point: tuple[float, float]) -> tuple[float, float]:
        across = _share(point[0], *self.x), _share(point[1], *self.y)
        return _LEFT + across[0] * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - across[1] * (_HEIGHT - _TOP - _BOTTOM)

    def frame(self, across: str, up: str) -> str:
        right, foot = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        parts = []
        for value in _powers(*self.x):
            x, _ = self.place((value, self.y[0]))
            parts.append(_rule((x, _TOP), (x, foot)))
            parts.append(_label(_power(value), (x, foot + 16), "fl-detail", anchor="middle"))
        for value in _powers(*self.y):
            _, y = self.place((self.x[0], value))
            parts.append(_rule((_LEFT, y), (right, y)))
            parts.append(_label(_power(value), (_LEFT - 8, y + 4), "fl-detail", anchor="end"))
        parts.append(_label(across, ((_LEFT + right) / 2, foot + 34), "fl-detail", anchor="middle"))
        parts.append(
            f'<g transform="translate(14,{(_TOP + foot) / 2:.0f}) rotate(-90)">'
            + _label(up, (0, 0), "fl-detail", anchor="middle") + "</g>",
        )
        return "".join(parts)

    def line(self, points: Sequence[tuple[float, float]], css: str) -> str:
        way = " L".join("{:.1f},{:.1f}".format(*self.place(p)) for p in points)
        roof = css == "fl-roof"
        paint = f'stroke="{theme.colour("ink" if roof else "wire")}" stroke-width="{"2" if roof else "1.2"}"'
        return f'<path class="{css}" d="M{way}" fill="none" {paint}{"" if roof else chr(32) + _DASHES}/>'

    def mark(self, point: tuple[float, float], segment: int, *, full: bool) -> str:
        x, y = self.place(point)
        hue = theme.hue(segment)
        css = f"fl-h{segment % len(theme.HUES_LIGHT)} {'fl-full' if full else 'fl-hollow'}"
        fill = hue if full else theme.colour("paper")
        return f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}" stroke="{hue}" stroke-width="2"/>'

    def text(self, words: str, point: tuple[float, float], *, dx: float, dy: float) -> str:
        x, y = self.place(point)
        return _label(words, (x + dx, y + dy), "fl-detail")


_DASHES: Final = 'stroke-dasharray="3 3"'


def _document(title: str, text: str, body: str, size: tuple[float, float], *, style: bool) -> str:
    sheet = f"<style>{escape(theme.graph_style(), quote=False)}</style>" if style else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="fl-svg fl-plot" viewBox="0 0 {size[0]:.0f} {size[1]:.0f}" '
        f'width="{size[0]:.0f}" height="{size[1]:.0f}" font-family="{escape(theme.SANS)}" role="img">'
        f"<title>{_text(title)}</title><desc>{_text(text)}</desc>{sheet}"
        f'<rect class="fl-paper" width="100%" height="100%" fill="{theme.colour("paper")}"/>{body}</svg>'
    )


def _label(words: str, at: tuple[float, float], css: str, *, anchor: str = "") -> str:
    fill = theme.colour("ink" if css == "fl-name" else "muted")
    end = f' text-anchor="{anchor}"' if anchor else ""
    return (
        f'<text class="{css}" x="{at[0]:.1f}" y="{at[1]:.1f}" font-size="{measure.LABEL_SIZE:.0f}" fill="{fill}"{end}>'
        f"{_text(words)}</text>"
    )


def _rule(start: tuple[float, float], end: tuple[float, float]) -> str:
    way = f"M{start[0]:.1f},{start[1]:.1f} L{end[0]:.1f},{end[1]:.1f}"
    return f'<path class="fl-grid" d="{way}" stroke="{theme.colour("line")}" stroke-width="1" fill="none"/>'


def _text(words: str) -> str:
    return escape(clean(words))


def _share(value: float, low: float, high: float) -> float:
    return min(max(math.log(max(value, low) / low) / math.log(high / low), 0.0), 1.0)


def _decades(low: float, high: float) -> tuple[float, float]:
    return 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high))


def _powers(low: float, high: float) -> list[float]:
    first, last = round(math.log10(low)), round(math.log10(high))
    step = 1 + (last - first) // 8
    return [10.0**n for n in range(first, last + 1, step)]


def _power(value: float) -> str:
    """Return a power of ten with a prefix, such as ``10 G``."""
    power = round(math.log10(value))
    prefix, below = next(((p, n) for p, n in (("T", 12), ("G", 9), ("M", 6), ("k", 3), ("", 0)) if power >= n), ("", 0))
    number = 10.0 ** (power - below)
    return f"{number:g} {prefix}".strip()


def _count(number: int) -> str:
    return bytes_label(number).removesuffix("B").strip()


def _elements(tensor: TensorView) -> int:
    return math.prod(int(extent) for extent in tensor.extents if isinstance(extent, int))


def _bytes(segment: SegmentLike) -> int:
    return sum(_size(t) for t in (*segment.inputs, *segment.outputs))


def _size(tensor: Any) -> int:
    """Return the bytes of a tensor; none for numbers, and while an extent is unknown."""
    extents = getattr(tensor, "extents", None)
    return int(tensor.nbytes) if extents is not None and all(isinstance(e, int) for e in extents) else 0

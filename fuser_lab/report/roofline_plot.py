"""The roofline of a plan's segments, as numbers and as static SVG, with arrows from the segments of another plan."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fuser_lab.cost.device import DEFAULT, Device
from fuser_lab.cost.traffic import CostModel
from fuser_lab.ir import Expr, OpKind, TensorView
from fuser_lab.report import chart, theme
from fuser_lab.report.identity_cache import cached_by_identity
from fuser_lab.report.measure import LABEL_SIZE, sans_width
from fuser_lab.report.memory_plot import bytes_of
from fuser_lab.report.subject import PlanLike, SegmentLike
from fuser_lab.report.tables import Table
from fuser_lab.report.units import bytes_label, seconds_label, three_digits

_COUNTED: Final = frozenset({OpKind.POINTWISE, OpKind.RANDOM})
_WIDTH, _HEIGHT = 660.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 66.0, 150.0, 16.0, 44.0
_MARK: Final = 7.0  # pixels from the middle of a mark to the tip of an arrow
_NEAR: Final = 12.0  # pixels within which marks share a label
_MOST_NAMES: Final = 4  # segments that a label names
_LINE: Final = 13.0  # pixels from one label to the next below it


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The work of a segment: arithmetic operations and bytes; ``seconds`` is NaN if not measured."""

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
class Roof:
    """The limits of a device: its name, GB/s of memory, and TFLOP/s of arithmetic, None if unknown."""

    name: str
    bandwidth: float
    fp32: float | None = None

    @classmethod
    def of(cls, device: Device) -> "Roof":
        """Return the roof of a GPU from its data sheet."""
        return cls(name=device.name, bandwidth=device.bandwidth, fp32=device.fp32)

    def speed(self, intensity: float) -> float:
        """Return the maximum operations per second at some operations per byte."""
        slope = self.bandwidth * 1e9 * intensity
        return slope if self.fp32 is None else min(self.fp32 * 1e12, slope)


@cached_by_identity
def operations(expr: Expr) -> int:
    """Return the arithmetic operations of an expression: one per element, two per multiply-add, none for moves."""
    results, operands = expr.tensor_outputs, expr.tensor_inputs
    if not all(isinstance(extent, int) for tensor in (*results, *operands) for extent in tensor.extents):
        return 0
    if expr.kind is OpKind.MATMUL and operands:
        inner = operands[0].extents[-1]
        return 2 * _elements(results[0]) * (inner if isinstance(inner, int) else 0)
    if expr.kind is OpKind.REDUCTION:
        return max((_elements(tensor) for tensor in operands), default=0)
    return _elements(results[0]) if expr.kind in _COUNTED and results else 0


@cached_by_identity
def _operations(exprs: Sequence[Expr]) -> int:
    return sum(map(operations, exprs))


def loads(plan: PlanLike, seconds: Mapping[int, float] | None = None) -> tuple[Load, ...]:
    """Return the load of each segment; ``seconds`` are measured times by segment."""
    return tuple(
        Load(
            segment=s.index,
            scheduler=str(getattr(s.scheduler, "value", s.scheduler) or "no scheduler"),
            operations=_operations(s.exprs),
            bytes=_bytes(s),
            seconds=(seconds or {}).get(s.index, math.nan),
        )
        for s in plan.segments
    )


def device_of(plan: Any) -> Device:
    """Return the device whose limits determined the cuts."""
    device: Device = getattr(getattr(plan, "oracle", None), "device", DEFAULT)
    return device


def is_label_of(device: Device, label: str) -> bool:
    """Return whether a label of measurements, such as ``NVIDIA H200`` or ``CPU (8 threads)``, names the device."""
    words = label.replace("-", " ").split()
    return device.name in words or (device.host is not None and words[:1] == ["CPU"])


def roof_that_ran(target: Device, model: CostModel | None) -> Roof:
    """Return the roof of the device that ran the plan: the target, or the device of ``model`` if it is another one."""
    if model is None or model.device == target.name:
        return Roof.of(target)
    return Roof(name=model.device, bandwidth=model.bandwidth / 1e9)


def measured_seconds(plan: Any, rows: Iterable[Any]) -> dict[int, float]:
    """Return the medians of a plan's segments from the rows of timings.

    Plans may share a name: a row belongs to the plan of its hash, and only a row without one to the plan of its name.
    """
    plan_rows = (r for r in rows if (r.plan_hash == plan.hash if r.plan_hash else r.plan == plan.name))
    return {r.segment: r.median for r in plan_rows if r.segment is not None and r.median > 0}


def flows(before: PlanLike, after: PlanLike) -> tuple[tuple[int, int], ...]:
    """Return where the work of one plan's segments is in another: pairs of segments that share expressions.

    Each segment has at least one pair: with the segment that shares the most expressions with it.
    """
    first, second = ([(s.index, {e.name for e in s.exprs}) for s in plan.segments] for plan in (before, after))
    common = {(a, b): len(x & y) for a, x in first for b, y in second if x & y}
    pairs = {max((p for p in common if p[0] == a), key=lambda p: common[p], default=None) for a, _ in first}
    pairs |= {max((p for p in common if p[1] == b), key=lambda p: common[p], default=None) for b, _ in second}
    return tuple(sorted(pair for pair in pairs if pair is not None))


def load_table(
    loads_shown: Sequence[Load], device: Device, pairs: Sequence[tuple[int, int]] = (), *, ran: Roof | None = None,
    place: str = "",
) -> Table:
    """Return one row per segment: its load, the minimum time by the device's data sheet, and the measured time.

    ``pairs`` adds the segments of another plan that its work comes from; ``ran`` adds the minimum time on the measured
    device if that is another one, and ``place`` is its name.
    """
    origins = {load.segment: ", ".join(f"S{a}" for a, b in pairs if b == load.segment) for load in loads_shown}
    rows = [
        (
            f"S{load.segment}",
            load.scheduler,
            _count(load.operations),
            bytes_label(load.bytes),
            three_digits(load.intensity),
            seconds_label(least_seconds(load, device)),
            *([] if ran is None else [seconds_label(least_seconds(load, ran))]),
            "" if math.isnan(load.seconds) else seconds_label(load.seconds),
            *([origins[load.segment]] if pairs else []),
        )
        for load in loads_shown
    ]
    best = [f"{device.name} at best", *([] if ran is None else [f"{ran.name} at best"])]
    measured = f"measured ({place})" if place else "measured"
    columns = ("segment", "scheduler", "operations", "bytes", "op/byte", *best, measured)
    numeric = frozenset(columns) - {"segment", "scheduler"}
    return Table(columns=(*columns, "from there") if pairs else columns, rows=tuple(rows), numeric=numeric)


def least_seconds(load: Load, device: Device | Roof) -> float:
    """Return the longer of the known times for a segment's bytes and operations."""
    arithmetic = 0.0 if device.fp32 is None else load.operations / (device.fp32 * 1e12)
    return max(load.bytes / (device.bandwidth * 1e9), arithmetic)


def roofline_svg(
    loads_shown: Sequence[Load],
    device: Device | Roof,
    *,
    before: Sequence[Load] = (),
    pairs: Sequence[tuple[int, int]] = (),
    note: str = "",
    style: bool = True,
) -> str:
    """Return the roofline: operations per second over operations per byte, both logarithmic.

    A hollow mark is a segment's limit on the device, a full one its measured speed. ``before`` holds the loads of
    another plan, drawn as squares; an arrow goes from one of its segments to one of these for each of the ``pairs``.
    Measurements must come from the device whose roof is drawn.
    """
    roof = device if isinstance(device, Roof) else Roof.of(device)
    shown = [point for point in loads_shown if point.operations and point.bytes]
    old = [point for point in before if point.operations and point.bytes]
    slope = roof.bandwidth * 1e9
    most = max((point.intensity for point in (*shown, *old)), default=1.0)
    knee = 2 * most if roof.fp32 is None else roof.fp32 * 1e12 / slope
    peak = roof.speed(knee)
    marks = [point.intensity for point in (*shown, *old)] + [knee]
    speeds = [point.operations / point.seconds for point in shown if point.seconds > 0]
    speeds_before = [point.operations / point.seconds for point in old if point.seconds > 0]
    allowed = [roof.speed(point.intensity) for point in (*shown, *old)]
    left, right = min(marks) / 2, max(marks) * 2
    low, high = min([*speeds, *speeds_before, *allowed, peak]) / 3, peak * 2
    plot = _Plot(x=(left, right), y=(low, high))
    parts = [plot.frame("operations per byte", "operations per second")]
    foot = max(left, low / slope)  # the point where the slope enters the frame
    start, corner, end = (foot, slope * foot), (knee, peak), (right, peak)
    has_ceiling = roof.fp32 is not None
    parts.append(plot.line([start, corner, end] if has_ceiling else [start, corner], "fl-roof"))
    limit = f"{three_digits(roof.fp32)} TFLOP/s fp32" if roof.fp32 is not None else "its memory"
    parts.append(plot.text(f"{roof.name}: {limit}", end if has_ceiling else corner, dx=6, dy=4))
    x, y = plot.place((foot**0.3 * knee**0.7, slope * foot**0.3 * knee**0.7))  # above the slope, far from most marks
    parts.append(chart.label(f"{roof.bandwidth:.0f} GB/s", (x - 8, y - 6), anchor="end"))
    # Arrows join marks of the same kind: measured ones if both plans were measured.
    timed = bool(speeds) and bool(speeds_before)
    ends = [{point.segment: plot.place(_point(point, roof, timed=timed)) for point in part} for part in (old, shown)]
    parts += [
        _arrow(ends[0][a], ends[1][b], f"S{a} there to S{b} here") for a, b in pairs if a in ends[0] and b in ends[1]
    ]
    parts += [_before(point, ends[0][point.segment]) for point in old]
    names = _names({point.segment: plot.place(_point(point, roof, timed=True)) for point in shown})
    for load in shown:
        best = roof.speed(load.intensity)
        title = f"S{load.segment} {load.scheduler}: {_count(load.operations)} operations, {bytes_label(load.bytes)}"
        marked = [plot.mark((load.intensity, best), load.segment, full=False)]
        if load.seconds > 0:
            speed = load.operations / load.seconds
            marked += [
                plot.line([(load.intensity, best), (load.intensity, speed)], "fl-fall"),
                plot.mark((load.intensity, speed), load.segment, full=True),
            ]
            title += f", measured {seconds_label(load.seconds)}"
        if load.segment in names:
            words, at = names[load.segment]
            marked.append(chart.label(words, at, "fl-name"))
        about = f"<title>{chart.escape_text(title)}</title>"
        parts.append(f'<g class="fl-point" data-id="segment:{load.segment}">{about}{"".join(marked)}</g>')
    measured = "full marks were measured" if speeds else "nothing was measured yet"
    words = note or f"Hollow marks are what {_the(roof)} allows; {measured}."
    if old:
        words += " Squares are the segments of the other plan; arrows show where their work is now."
    described = "; ".join(f"S{o.segment}: {three_digits(o.intensity)} operations per byte" for o in shown)
    title, text = "Roofline of the segments", f"{described}. {words}"
    return chart.document(title, text, "".join(parts), (_WIDTH, _HEIGHT), style=style)


def _the(roof: Roof) -> str:
    return roof.name if " " in roof.name else f"the {roof.name}"


def _point(load: Load, roof: Roof, *, timed: bool) -> tuple[float, float]:
    """Return the position of a segment's mark: its measured speed if ``timed`` and known, or else the roof."""
    measured = timed and load.seconds > 0
    return load.intensity, load.operations / load.seconds if measured else roof.speed(load.intensity)


def _before(load: Load, at: tuple[float, float]) -> str:
    title = f"S{load.segment} there, {load.scheduler}: {_count(load.operations)} operations, {bytes_label(load.bytes)}"
    if load.seconds > 0:
        title += f", measured {seconds_label(load.seconds)}"
    paint = f'fill="{theme.colour("paper")}" stroke="{theme.colour("wire")}" stroke-width="1.6"'
    return (
        f'<g><title>{chart.escape_text(title)}</title>'
        f'<rect class="fl-before" x="{at[0] - 4:.1f}" y="{at[1] - 4:.1f}" width="8" height="8" {paint}/></g>'
    )


def _arrow(start: tuple[float, float], end: tuple[float, float], title: str) -> str:
    """Return a bent arrow, so that it does not cover the roof; none between touching marks."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = math.hypot(dx, dy)
    if length < _MARK * 2 + 4:
        return ""
    bend = max(0.2 * length, 16) / length  # to the left of the path, above the roof on the rising side
    middle = (start[0] + end[0]) / 2 + abs(dy) * -bend, (start[1] + end[1]) / 2 - abs(dx) * bend
    back = math.hypot(end[0] - middle[0], end[1] - middle[1])
    along = (end[0] - middle[0]) / back, (end[1] - middle[1]) / back
    tip = end[0] - along[0] * _MARK, end[1] - along[1] * _MARK
    foot = tip[0] - along[0] * 8, tip[1] - along[1] * 8
    wings = " ".join(f"{foot[0] - s * along[1] * 4:.1f},{foot[1] + s * along[0] * 4:.1f}" for s in (1, -1))
    way = f"M{start[0]:.1f},{start[1]:.1f} Q{middle[0]:.1f},{middle[1]:.1f} {foot[0]:.1f},{foot[1]:.1f}"
    return (
        f'<g class="fl-arrow"><title>{chart.escape_text(title)}</title>'
        f'<path class="fl-wire" d="{way}" fill="none" stroke="{theme.colour("wire")}" stroke-width="1.4"/>'
        f'<polygon class="fl-tip" points="{tip[0]:.1f},{tip[1]:.1f} {wings}" fill="{theme.colour("wire")}"/></g>'
    )


def _names(places: Mapping[int, tuple[float, float]]) -> dict[int, tuple[str, tuple[float, float]]]:
    """Return labels by the segment that carries them: adjacent marks share one, below them where there is room."""
    together: dict[int, list[int]] = {}
    for n, (x, y) in places.items():
        near = (m for m in together if abs(places[m][0] - x) < _NEAR and abs(places[m][1] - y) < _NEAR)
        together.setdefault(next(near, n), []).append(n)
    labels: dict[int, tuple[str, tuple[float, float]]] = {}
    taken: list[tuple[float, float, float]] = []  # left, right and foot of each label
    for first, members in together.items():
        more = f" +{len(members) - _MOST_NAMES}" if len(members) > _MOST_NAMES else ""
        words = ", ".join(f"S{n}" for n in members[:_MOST_NAMES]) + more
        (x, y), wide = places[first], sans_width(words, LABEL_SIZE)
        sides = [(x + 8, y + 15 + n * _LINE) for n in range(3)] + [(x - 8 - wide, y - 8 - n * _LINE) for n in range(3)]
        at = next((side for side in sides if not any(_meets(side, wide, other) for other in taken)), sides[0])
        taken.append((at[0], at[0] + wide, at[1]))
        labels[first] = words, at
    return labels


def _meets(at: tuple[float, float], wide: float, other: tuple[float, float, float]) -> bool:
    left, right, foot = other
    return at[0] < right and left < at[0] + wide and abs(at[1] - foot) < _LINE


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
            parts.append(chart.rule((x, _TOP), (x, foot)))
            parts.append(chart.label(_power(value), (x, foot + 16), "fl-detail", anchor="middle"))
        for value in _powers(*self.y):
            _, y = self.place((self.x[0], value))
            parts.append(chart.rule((_LEFT, y), (right, y)))
            parts.append(chart.label(_power(value), (_LEFT - 8, y + 4), "fl-detail", anchor="end"))
        parts.append(chart.label(across, ((_LEFT + right) / 2, foot + 34), "fl-detail", anchor="middle"))
        parts.append(
            f'<g transform="translate(14,{(_TOP + foot) / 2:.0f}) rotate(-90)">'
            + chart.label(up, (0, 0), "fl-detail", anchor="middle") + "</g>",
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
        return chart.label(words, (x + dx, y + dy), "fl-detail")


_DASHES: Final = 'stroke-dasharray="3 3"'


def _share(value: float, low: float, high: float) -> float:
    return min(max(math.log(max(value, low) / low) / math.log(high / low), 0.0), 1.0)


def _powers(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
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
    moved: int | None = getattr(segment, "bytes", None)
    return sum(bytes_of(t) for t in (*segment.inputs, *segment.outputs)) if moved is None else moved

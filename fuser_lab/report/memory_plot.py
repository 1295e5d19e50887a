"""Memory use while the segments of a plan run, in run order, as numbers and as static SVG."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fuser_lab.report import chart, measure, theme
from fuser_lab.report.subject import PlanLike
from fuser_lab.report.units import bytes_label, tensor_bytes

_WIDTH: Final = 660.0  # pixels of the picture
_LEFT, _RIGHT, _TOP = 66.0, 150.0, 16.0
_BAR_HEIGHT, _BAR_GAP = 20.0, 8.0
_PARTS: Final = (
    ("inputs", "wire", "fusion inputs"), ("between", "accent", "between segments"), ("results", "good", "results"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Memory use while a segment runs, in bytes: fusion inputs, tensors for later segments, results."""

    segment: int
    inputs: int
    between: int
    results: int

    @property
    def total(self) -> int:
        """Bytes of all."""
        return self.inputs + self.between + self.results


def memory_steps(plan: PlanLike) -> tuple[Step, ...]:
    """Return the memory use while each segment runs, in run order.

    Inputs live throughout, as their owner keeps them; tensors between segments live from the segment that writes them
    to the last that reads them; results live from the segment that writes them. Views share the memory of their base,
    which lives as long as they do.
    """
    fusion_inputs = {t.name: t for t in plan.fusion.tensor_inputs}
    results = {t.name for t in plan.fusion.outputs}
    bases: Mapping[str, str] = getattr(plan, "bases", {})
    results |= {bases.get(name, name) for name in results}
    last: dict[str, int] = {}
    for n, segment in enumerate(plan.segments):
        last |= {bases.get(t.name, t.name): n for t in segment.inputs if hasattr(t, "nbytes")}
    inputs = sum(map(bytes_of, fusion_inputs.values()))
    live: dict[str, int] = {}
    steps = []
    for n, segment in enumerate(plan.segments):
        live |= {t.name: bytes_of(t) for t in segment.outputs if t.name not in bases}
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
    """Return one bar per segment in run order: inputs, tensors between segments, results."""
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
            f'<g class="fl-point" data-id="segment:{step.segment}"><title>{chart.escape_text(title)}</title>'
            + chart.label(f"S{step.segment}", (_LEFT - 10, y + 14), "fl-name", anchor="end")
            + "".join(bars)
            + chart.label(words, (x + 8, y + 14), "fl-detail")
            + "</g>",
        )
    legend, x = [], _LEFT
    for name, colour, words in _PARTS:
        legend.append(
            f'<rect class="fl-bar-{name}" x="{x:.0f}" y="5" width="12" height="12" fill="{theme.colour(colour)}"/>',
        )
        legend.append(chart.label(words, (x + 17, 15), "fl-detail"))
        x += 17 + measure.sans_width(words, measure.LABEL_SIZE) + 16
    height = _TOP + 22 + len(steps) * (_BAR_HEIGHT + _BAR_GAP)
    described = "; ".join(f"S{step.segment} {bytes_label(step.total)}" for step in steps)
    heading = f"Memory while segments run: at most {bytes_label(peak)}"
    return chart.document(heading, f"{described}.", "".join((*legend, *parts)), (_WIDTH, height), style=style)


def bytes_of(value: Any) -> int:
    """Return the bytes of a tensor; 0 for numbers and for unknown extents."""
    return tensor_bytes(value) if hasattr(value, "extents") else 0

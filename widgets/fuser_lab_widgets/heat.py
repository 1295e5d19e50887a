"""Values by which the picture can be coloured: bytes, time, and distance from the roof, one per segment."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fuser_lab.report.roofline_plot import device_of, is_label_of, least_seconds, loads, measured_seconds
from fuser_lab.report.units import bytes_label, seconds_label, three_digits
from fuser_lab.report.view_model import ViewModel
from fuser_lab_widgets.amounts import place
from fuser_lab_widgets.session import EditablePlan


def heat(plan: EditablePlan, view: ViewModel, rows: Iterable[Any]) -> dict[str, Any]:
    """Return, for each colouring, each segment's value as a fraction of the largest, and the meaning of the colours.

    Times are measured if there is one for each segment, otherwise predicted; the distance from the roof is the time of
    a segment, predicted or measured on the target, divided by the minimum time that the target's data sheet allows.
    Labels, which boxes show, name the device of times that are not those of the target.
    """
    taken = list(rows)
    moved = {s.index: s.bytes_in + s.bytes_out for s in view.segments}
    scales = {"bytes": _scale(moved, bytes_label, "bytes read and written")}
    parts = getattr(plan, "segment_times", None)
    if parts is None:
        return scales
    device = device_of(plan)
    times = {index: part.seconds for index, part in enumerate(parts) if index in moved}
    measured = measured_seconds(plan, taken)
    on_target = all(is_label_of(device, row.device) for row in taken)
    by = f"predicted for {device.name}"
    if set(measured) == set(times):
        devices = sorted({r.device for r in taken})
        scales["time"] = _scale(measured, seconds_label, f"measured on {', '.join(devices)}")
        if not on_target:
            where = ", ".join(dict.fromkeys(map(place, devices)))
            scales["time"]["labels"] = {n: f"{label}, {where}" for n, label in scales["time"]["labels"].items()}
        if on_target:
            times, by = measured, f"measured on {device.name}"
    else:
        scales["time"] = _scale(times, seconds_label, by)
    least = {load.segment: least_seconds(load, device) for load in loads(plan)}
    away = {n: seconds / least[n] for n, seconds in times.items() if least.get(n, 0) > 0}
    scales["roof"] = _scale(away, lambda x: f"{three_digits(x)} ×", f"times the minimum time on {device.name}; {by}")
    return scales


def _scale(numbers: Mapping[int, float], label: Callable[[Any], str], about: str) -> dict[str, Any]:
    finite = {n: value for n, value in numbers.items() if math.isfinite(value)}
    most = max(finite.values(), default=0.0)
    return {
        "values": {str(n): round(value / most, 3) if most else 0.0 for n, value in finite.items()},
        "least": label(min(finite.values(), default=0)),
        "most": label(most),
        "about": about,
        "labels": {str(n): label(value) for n, value in finite.items()},
    }

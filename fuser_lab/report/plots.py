"""Plots of a plan as static SVG: the roofline of its segments, and the memory use while they run."""

from fuser_lab.report.memory_plot import Step, memory_steps, memory_svg
from fuser_lab.report.roofline_plot import (
    Load,
    Roof,
    device_of,
    flows,
    is_label_of,
    least_seconds,
    load_table,
    loads,
    measured_seconds,
    operations,
    roof_that_ran,
    roofline_svg,
)

__all__ = [
    "Load",
    "Roof",
    "Step",
    "device_of",
    "flows",
    "is_label_of",
    "least_seconds",
    "load_table",
    "loads",
    "measured_seconds",
    "memory_steps",
    "memory_svg",
    "operations",
    "roof_that_ran",
    "roofline_svg",
]

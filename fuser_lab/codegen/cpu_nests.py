"""The plan of a nest on the CPU, and the function that writes its style."""

from typing import Any

from fuser_lab.codegen.cpu_backward import write_rows_with_column_sums
from fuser_lab.codegen.cpu_bands import band_plan, write_bands
from fuser_lab.codegen.cpu_columns import column_plan, write_columns
from fuser_lab.codegen.cpu_elements import element_plan, write_elements
from fuser_lab.codegen.cpu_rows import row_plan, with_stages, write_rows, write_staged_rows
from fuser_lab.codegen.cpu_scans import scan_plan, write_scans
from fuser_lab.codegen.cpu_tiles import tile_plan, write_tiles
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nest_writing import StylePlan
from fuser_lab.schedule.state import Style


def cpu_style(nest: NestPlan) -> StylePlan[Any]:
    """Return the plan of a nest and the function that writes it."""
    style = nest.schedule.style
    if nest.facts.nest.scans:
        return StylePlan(nest, scan_plan(nest), write_scans)
    if style is Style.ELEMENTS:
        return StylePlan(nest, element_plan(nest), write_elements)
    if style is Style.TILES:
        return StylePlan(nest, tile_plan(nest), write_tiles)
    if style is Style.COLUMNS:
        return StylePlan(nest, column_plan(nest), write_columns)
    rows = row_plan(nest)
    if nest.facts.column_sums:
        return StylePlan(nest, rows, write_rows_with_column_sums)
    if bands := band_plan(rows):
        return StylePlan(nest, bands, write_bands)
    if staged := with_stages(rows):
        return StylePlan(nest, staged, write_staged_rows)
    return StylePlan(nest, rows, write_rows)

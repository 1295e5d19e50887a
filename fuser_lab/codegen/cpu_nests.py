"""The phases of a nest on the CPU, by the function that writes its style."""

from collections.abc import Iterator

from fuser_lab.codegen.cpu_backward import write_rows_with_column_sums
from fuser_lab.codegen.cpu_bands import band_plan, write_bands
from fuser_lab.codegen.cpu_columns import column_plan, write_columns
from fuser_lab.codegen.cpu_elements import element_plan, write_elements
from fuser_lab.codegen.cpu_rows import row_plan, with_stages, write_rows, write_staged_rows
from fuser_lab.codegen.cpu_scans import scan_plan, write_scans
from fuser_lab.codegen.cpu_tiles import tile_plan, write_tiles
from fuser_lab.codegen.kernel_ir import Phase
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.schedule.state import Style


def cpu_phases(nest: NestPlan) -> Iterator[Phase]:
    """Yield the phases of a nest."""
    style = nest.choice.schedule.style
    if nest.facts.nest.scans:
        return write_scans(scan_plan(nest))
    if style is Style.ELEMENTS:
        return write_elements(element_plan(nest))
    if style is Style.TILES:
        return write_tiles(tile_plan(nest))
    if style is Style.COLUMNS:
        return write_columns(column_plan(nest))
    rows = row_plan(nest)
    if nest.facts.column_sums:
        return write_rows_with_column_sums(rows)
    if bands := band_plan(rows):
        return write_bands(bands)
    if staged := with_stages(rows):
        return write_staged_rows(staged)
    return write_rows(rows)

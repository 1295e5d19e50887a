"""For each kind of nest, how it is planned in the terms of its style, and the function that writes the plan."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from fuser_lab.codegen import (
    cpu_bands,
    cpu_columns,
    cpu_elements,
    cpu_rows,
    cpu_scans,
    cpu_tiles,
    gpu_backward,
    gpu_columns,
    gpu_elements,
    gpu_kept_columns,
    gpu_row_parts,
    gpu_rows,
    gpu_scans,
    gpu_staged_rows,
    gpu_tiles,
)
from fuser_lab.codegen.kernel_ir import Phase
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nest_writing import StylePlan
from fuser_lab.schedule.state import NestKind

_Plan = TypeVar("_Plan")
_Planner = Callable[[NestPlan], StylePlan[Any]]


def style_plan(nest: NestPlan) -> StylePlan[Any]:
    """Return the plan of a nest in the terms of its style, and the function that writes it."""
    return _PLANNERS[nest.schedule.kind](nest)


def _writer(plan: Callable[[NestPlan], _Plan], write: Callable[[_Plan], Iterator[Phase]]) -> _Planner:
    return lambda nest: StylePlan(nest, plan(nest), write)


def _rows_of_blocks(nest: NestPlan) -> StylePlan[Any]:
    rows = gpu_rows.row_plan(nest)
    if nest.schedule.split > 1:
        return StylePlan(nest, gpu_row_parts.parted_row_plan(rows), gpu_row_parts.write_parted_rows)
    return StylePlan(nest, rows, gpu_staged_rows.write_staged_rows if nest.schedule.staged else gpu_rows.write_rows)


def _rows_of_cores(nest: NestPlan) -> StylePlan[Any]:
    rows = cpu_rows.row_plan(nest)
    if bands := cpu_bands.band_plan(rows):
        return StylePlan(nest, bands, cpu_bands.write_bands)
    if staged := cpu_rows.with_stages(rows):
        return StylePlan(nest, staged, cpu_rows.write_staged_rows)
    return StylePlan(nest, rows, cpu_rows.write_rows)


_PLANNERS: Mapping[NestKind, _Planner] = {
    NestKind.BLOCK_ELEMENTS: _writer(gpu_elements.element_plan, gpu_elements.write_elements),
    NestKind.BLOCK_TILES: _writer(gpu_tiles.tile_plan, gpu_tiles.write_tiles),
    NestKind.BLOCK_TILE_SUMS: _writer(gpu_tiles.tile_plan, gpu_tiles.write_tile_sums),
    NestKind.BLOCK_ROWS: _rows_of_blocks,
    NestKind.BLOCK_ROWS_WITH_COLUMN_SUMS: _writer(gpu_backward.backward_plan, gpu_backward.write_backward),
    NestKind.BLOCK_ROWS_WITH_SCANS: _writer(gpu_rows.row_plan, gpu_rows.write_rows),
    NestKind.BLOCK_SCANNED_ROWS: _writer(gpu_scans.scan_plan, gpu_scans.write_scans),
    NestKind.BLOCK_COLUMNS: _writer(gpu_columns.column_plan, gpu_columns.write_columns),
    NestKind.BLOCK_KEPT_COLUMNS: _writer(gpu_kept_columns.kept_column_plan, gpu_kept_columns.write_kept_columns),
    NestKind.BLOCK_SCANNED_COLUMNS: _writer(gpu_scans.scan_plan, gpu_scans.write_scans),
    NestKind.CORE_ELEMENTS: _writer(cpu_elements.element_plan, cpu_elements.write_elements),
    NestKind.CORE_TILES: _writer(cpu_tiles.tile_plan, cpu_tiles.write_tiles),
    NestKind.CORE_ROWS: _rows_of_cores,
    NestKind.CORE_ROWS_WITH_COLUMN_SUMS: _writer(cpu_rows.row_plan, cpu_rows.write_rows_with_column_sums),
    NestKind.CORE_ROWS_WITH_SCANS: _writer(cpu_rows.row_plan, cpu_rows.write_rows),
    NestKind.CORE_SCANNED_ROWS: _writer(cpu_scans.scan_plan, cpu_scans.write_scanned_rows),
    NestKind.CORE_COLUMNS: _writer(cpu_columns.column_plan, cpu_columns.write_columns),
    NestKind.CORE_SCANNED_COLUMNS: _writer(cpu_scans.scan_plan, cpu_scans.write_scanned_columns),
}

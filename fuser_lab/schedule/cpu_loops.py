"""The loops of a nest on a CPU, from the extents only."""

from dataclasses import replace

from fuser_lab.cost.crossovers import crossover
from fuser_lab.cost.planned_cpu import CORES, HALF_L1, L1_BYTES, L2_BYTES, SIDE
from fuser_lab.dtypes import DataType
from fuser_lab.schedule.state import LoopSchedule, NestKind, Refused, Space

CPU_PARALLEL_FROM = crossover("cpu.parallel_from")
CPU_TILE = crossover("cpu.columns.tile")
CPU_WHOLE_ROW = crossover("cpu.columns.whole_row")
CPU_COLUMNS_BYTES = crossover("cpu.columns.bytes")
CPU_LEAST_TILE = crossover("cpu.columns.least")
CPU_SUMS_BYTES = L2_BYTES // 2  # bytes of running column sums; the rest of the cache holds rows
CPU_FEW_UNITS = CORES // 2  # iterations of the parallel loop; with fewer, most cores would be idle, and loops are cut
SECTION = L1_BYTES // 4 // DataType.Double.itemsize  # elements of a row; scans and what they read stay in the cache
PARTIAL_ROWS = 256  # rows that are added to one running column sum, which bounds the rounding error of Float sums
PARTIAL_ELEMENTS = 4096  # elements of a row that are added to one running sum, for the same reason
PARTIAL_ADDITIONS = 128  # additions to each of the 32 running values of a row's sum in vectors: as many elements in all


def cpu_loops(space: Space) -> LoopSchedule | Refused:
    """Return the loops of a nest on a CPU; rows that add to column sums are refused if these do not fit in a cache."""
    if space.scans and space.passes > 1:
        return _loops_with_scans(space)
    loops = _loops(space)
    if not space.column_sums:
        return loops
    if not space.inner_reduced or loops.split > 1 or sum(space.column_sums) * space.depth > CPU_SUMS_BYTES:
        return Refused(f"the sums of {space.depth} columns do not fit in a core's cache, so they read the rows again")
    # Rows of a band: few enough for accurate sums and to occupy all cores.
    least = CORES if loops.parallel else 1
    grain = max(min(PARTIAL_ROWS, -(-space.rows // least)), 1)
    return replace(loops, kind=NestKind.CORE_ROWS_WITH_COLUMN_SUMS, grain=grain)


def _loops(space: Space) -> LoopSchedule:
    work = space.rows * max(space.depth, 1)
    parallel = work >= CPU_PARALLEL_FROM
    if space.scans:
        return _scan_loops(space, parallel=parallel)
    if space.transposed != (0, 0):
        side = SIDE if space.itemsize <= 4 else SIDE // 2
        return LoopSchedule(kind=NestKind.CORE_TILES, parallel=parallel, tile=side)
    if not space.reduces:
        return LoopSchedule(kind=NestKind.CORE_ELEMENTS, parallel=parallel)
    if space.inner_reduced:
        few = space.rows < CORES and space.passes == 1
        split = CORES if parallel and few and space.depth >= CPU_PARALLEL_FROM // 4 else 1
        # A few rows per iteration amortize its scratch memory; enough iterations remain to balance the cores.
        # With short rows, one row is treated as a few, so that kernels for few and many rows are the same.
        short = PARTIAL_ELEMENTS // max(space.depth, 1)
        grain = max(min(2, short, space.rows), min(space.rows // 64, short), 1)
        return LoopSchedule(
            kind=NestKind.CORE_ROWS, parallel=parallel, grain=grain, split=split, persistent=space.passes > 1,
            partial=PARTIAL_ADDITIONS if space.scalar else PARTIAL_ELEMENTS,
        )
    tile = min(space.kept_run, HALF_L1) if space.passes == 1 else _columns_at_a_time(space, parallel=parallel)
    units = (space.rows // max(space.kept_run, 1)) * -(-space.kept_run // max(tile, 1))
    few = units < CPU_FEW_UNITS and space.passes == 1
    split = CORES if parallel and few and space.depth >= 2 * CORES else 1
    return LoopSchedule(kind=NestKind.CORE_COLUMNS, parallel=parallel, tile=tile, split=split, partial=PARTIAL_ROWS)


def _loops_with_scans(space: Space) -> LoopSchedule | Refused:
    """Return the loops of rows that are scanned between passes, if a core keeps a row near."""
    if not space.inner_reduced or space.column_sums or space.depth > SECTION:
        return Refused(f"a core scans rows of at most {SECTION} elements between passes")
    return replace(_loops(replace(space, scans=0)), kind=NestKind.CORE_ROWS_WITH_SCANS)


def _scan_loops(space: Space, *, parallel: bool) -> LoopSchedule:
    if space.inner_reduced:
        return LoopSchedule(kind=NestKind.CORE_SCANNED_ROWS, parallel=parallel and space.rows > 1)
    tile = _columns_at_a_time(space, parallel=parallel)
    return LoopSchedule(kind=NestKind.CORE_SCANNED_COLUMNS, parallel=parallel and space.rows > tile, tile=tile)


def _columns_at_a_time(space: Space, *, parallel: bool) -> int:
    """Return how many adjacent columns one iteration of a parallel loop traverses several times.

    They are fewer if there would otherwise be too few iterations to distribute, but no fewer than a line of memory.
    """
    run = max(space.kept_run, 1)
    if not parallel:
        return min(run, CPU_WHOLE_ROW)
    tile, units = (run, CPU_FEW_UNITS) if run <= CPU_WHOLE_ROW else (CPU_TILE, CORES)
    if run > CPU_WHOLE_ROW and 0 < CPU_WHOLE_ROW * space.depth * space.read_bytes <= CPU_COLUMNS_BYTES:
        tile = CPU_WHOLE_ROW
    while tile > CPU_LEAST_TILE and space.rows // run * -(-run // tile) < units:
        tile = CPU_TILE if tile > CPU_TILE else max(tile // 2, CPU_LEAST_TILE)
    return tile

"""The table of measured crossovers: every number of the choice of kernels that no model derives, with its source.

A number that follows from bytes, lanes, registers or a device is computed where it is used and has no row. The date of
a row without a device is that of the commit that chose the number: no measurement of the number alone is recorded, and
docs/benchmarks.md was measured with it. ``python -m tests.pages.thresholds > docs/thresholds.md`` prints the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a number is from: the processor, the day, and the command, or that no measurement is recorded."""

    device: str
    date: str
    command: str

    @property
    def is_measured(self) -> bool:
        """Whether a measurement of the number is recorded."""
        return bool(self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """A number that decides between two forms of a kernel, or the size of a form."""

    name: str
    value: float
    unit: str
    decides: str
    source: Source


def _choice(date: str) -> Source:
    """Return the source of a number of which no measurement is recorded."""
    return Source(device="", date=date, command="not measured alone")


_LENGTHS = Source(
    device="H200", date="2026-11-27",
    command="a script with rows of sixty lengths, not kept; docs/benchmarks.md, Rows of any length",
)
_COPIED = Source(
    device="H200", date="2026-11-27",
    command="a script with rows of eleven lengths, not kept; docs/benchmarks.md, Rows of any length",
)
_KEPT_COLUMNS = Source(
    device="H200", date="2026-11-27",
    command="parameters set by hand in one call, not kept; docs/benchmarks.md, The second set on a GPU",
)
_DIVIDED_COLUMNS = Source(
    device="H200", date="2026-11-24",
    command="functions of tests/benchmarks/gpu/__main__.py with --strategy fastest --rep 8",
)
_CLUSTERS = Source(
    device="H200", date="2026-11-27",
    command="softmax_256k of python -m tests.benchmarks.gpu --set second; docs/benchmarks.md, The second set on a GPU",
)
_CLUSTER_PARTS = Source(
    device="H200", date="2026-11-24",
    command="softmax_256k with other numbers of blocks and threads; docs/benchmarks.md, The second set on a GPU",
)
_BLOCK_STARTS = Source(
    device="GPU, not recorded", date="2026-11-23",
    command="an early run of python -m tests.benchmarks.gpu --set second; docs/benchmarks.md, The second set on a GPU",
)
_CPU_COLUMNS = Source(
    device="Intel Xeon, family 6, model 167, 2 threads, processor time", date="2026-11-27",
    command="int8_columns of python -m tests.benchmarks.cpu --set third; docs/benchmarks.md, The third set",
)
_CPU_SHORT_ROWS = Source(
    device="2 busy cores, processor time", date="2026-11-27",
    command="kernels measured alternately, not kept; docs/benchmarks.md, Threads and vectors",
)
_UNROLLED = Source(
    device="ptxas for cc 9.0, registers and local memory", date="2026-11-29",
    command="Segment.launches() of chains of tanh, erf or sin with products and sums, not kept: at most 43 registers "
    "with 2,016 statements, 117 with 3,600",
)
_SHORT = Source(
    device="ptxas for cc 9.0, registers", date="2026-11-29",
    command="machine code of sums of n differences and of n / 2 exponentials, four results per thread, not kept: 40 "
    "registers for n = 4, 72 for 8, 140 for 16, 234 for 32",
)
_PER_OP = Source(
    device="Kernel IR for an H200 and a CPU", date="2026-11-29",
    command="4,287 phases of every seventh fusion of fl.corpus() with open schedulers, not kept: at most 2.5 values "
    "per op of elements and 7.2 of rows, in phases of four ops or more",
)
_RATES = Source(
    device="H200", date="2026-11-23",
    command="python -m tests.fitting tests/data/kernels/H200.csv.gz: lines, and blocks of four warps, for 1.7 GHz",
)
_COMPILING = Source(
    device="CPU, not recorded, processor time", date="2026-11-28", command="python -m tests.benchmarks.chains",
)


def _row(name: str, value: float, unit: str, decides: str, source: Source) -> Crossover:
    return Crossover(name=name, value=value, unit=unit, decides=decides, source=source)


ROWS: Final[tuple[Crossover, ...]] = (
    _row(
        "gpu.short_rows.threads", 1536, "threads per multiprocessor",
        "registers are limited so that these threads of short rows fit, if each has one access in flight",
        _choice("2026-11-23"),
    ),
    _row("gpu.rows.least_threads", 64, "threads", "fewest threads per block", _choice("2026-11-23")),
    _row(
        "gpu.rows.least_parts", 4, "parts of a row",
        "from here, a second phase that combines parts is worth its launch", _choice("2026-11-24"),
    ),
    _row("gpu.rows.few", 2, "rows per multiprocessor", "below, blocks share a long row", _choice("2026-11-21")),
    _row(
        "gpu.rows.long", 3 << 17, "bytes of a row", "from here, each pass over few rows is a launch of all blocks",
        _choice("2026-11-23"),
    ),
    _row("gpu.loads_in_flight", 8, "loads per thread", "loads in flight at once", _choice("2026-11-21")),
    _row(
        "gpu.unrolled", 2048, "statements per thread",
        "up to here, NVVM is asked to write out the loops over the elements of a thread", _UNROLLED,
    ),
    _row(
        "values.repeated", 1024, "values of a phase",
        "beyond these and those of the next two rows, ops that are computed again at other positions have no kernel: "
        "an H200 writes and reads an element of Float in the time of 55 instructions, and positions may be "
        "exponentially many", _PER_OP,
    ),
    _row(
        "values.elements", 4, "values per op of a phase",
        "each op of elements is computed in vectors, in their remainder, and in advance", _PER_OP,
    ),
    _row(
        "values.parts_of_rows", 16, "values per op of a phase",
        "each op of rows is computed in each pass, in the first, whole and last vectors", _PER_OP,
    ),
    _row(
        "elements.reduced", 8, "elements of a reduction",
        "up to here, a reduction may be written as ops on the parts of its operand, which are as many copies of them",
        _SHORT,
    ),
    _row(
        "gpu.concurrent_blocks", 4, "blocks of 256 threads per multiprocessor",
        "rows are divided among so many blocks, which run concurrently", _choice("2026-11-21"),
    ),
    _row(
        "gpu.kept_columns.threads", 256, "threads",
        "threads per block that keeps columns, if its columns fit in their registers", _KEPT_COLUMNS,
    ),
    _row(
        "gpu.kept_columns.width", 4, "elements per access",
        "widest access of blocks that keep columns with fewer threads than the most", _KEPT_COLUMNS,
    ),
    _row(
        "gpu.columns.words", 40, "registers per thread", "loads of columns in flight and running sums",
        _DIVIDED_COLUMNS,
    ),
    _row(
        "gpu.short_rows.steps_of_16_bytes", 2.5, "steps per lane",
        "fewest steps over a short row in accesses of 16 bytes, if lanes are idle", _LENGTHS,
    ),
    _row("gpu.short_rows.steps_of_8_bytes", 3.5, "steps per lane", "the same in accesses of 8 bytes", _LENGTHS),
    _row(
        "gpu.short_rows.steps_of_narrow", 4, "steps per lane",
        "the same in narrower accesses; twice as many if the row is read once", _LENGTHS,
    ),
    _row(
        "gpu.shifted_rows.steps", 8, "steps per thread",
        "with fewer steps, accesses of rows that begin anywhere in an access are made narrower", _LENGTHS,
    ),
    _row(
        "gpu.rows.later_elements", 24, "elements per thread", "inputs of later passes that are in flight at once",
        _choice("2026-11-27"),
    ),
    _row(
        "gpu.clusters.resident", 2, "blocks per multiprocessor", "clusters grow until so many of their blocks fit",
        _choice("2026-11-24"),
    ),
    _row(
        "gpu.clusters.part_bytes", 32 << 10, "bytes of a row", "part of a softmax row per block of a cluster",
        _CLUSTER_PARTS,
    ),
    _row(
        "gpu.clusters.part_threads", 256, "threads", "threads per block that keeps a part of a softmax row",
        _CLUSTER_PARTS,
    ),
    _row(
        "gpu.clusters.part_resident", 4, "blocks per multiprocessor",
        "blocks with parts of softmax rows, half of them in registers", _CLUSTERS,
    ),
    _row(
        "gpu.clusters.small_parts", 4, "blocks per cluster",
        "from here, small parts of softmax rows are faster than larger ones of fewer blocks", _choice("2026-11-24"),
    ),
    _row(
        "gpu.clusters.busy", 0.9, "share of the multiprocessors",
        "from here, clusters share few rows; below, each pass is a launch", _choice("2026-11-24"),
    ),
    _row(
        "gpu.rows.l1_bytes", 32 << 10, "bytes of a multiprocessor", "left to the L1 cache by a single block",
        _choice("2026-11-21"),
    ),
    _row(
        "gpu.columns.short", 16, "elements of a column", "up to here, one thread may reduce a column by itself",
        _choice("2026-11-23"),
    ),
    _row(
        "gpu.columns.many_threads", 256, "threads per multiprocessor", "from here, a result needs no more threads",
        _choice("2026-11-23"),
    ),
    _row(
        "gpu.short_rows.block_bytes", 4 << 10, "bytes per block",
        "with fewer bytes, blocks of short rows end faster than others start: one starts in about 140 cycles",
        _BLOCK_STARTS,
    ),
    _row(
        "gpu.copied_rows.bytes", 32 << 10, "bytes of shared memory per block",
        "rows that are copied to shared memory, and their results", _COPIED,
    ),
    _row(
        "gpu.copied_rows.lanes", 8, "lanes per row",
        "with fewer lanes, rows that are read element by element are copied to shared memory first: one lane "
        "gained, eight lost", _COPIED,
    ),
    _row(
        "gpu.copied_rows.steps", 4, "steps per lane",
        "up to here, rows whose first and last steps have conditions are copied first: three and four steps "
        "gained, six lost", _COPIED,
    ),
    _row(
        "gpu.columns.small", 1 << 22, "elements",
        "up to here, one more launch for columns costs more than idle memory", _choice("2026-11-21"),
    ),
    _row(
        "gpu.shifted_rows.divided_from", 128, "elements of a row",
        "from here, the first and last accesses of a row may be partial; shorter rows are read element by element",
        _choice("2026-11-23"),
    ),
    _row(
        "gpu.lookups.depth", 2, "look-ups",
        "up to here, look-ups at positions that are looked up load several positions together", _choice("2026-11-23"),
    ),
    _row(
        "gpu.elements.many", 1 << 12, "elements", "from here, a rest after whole vectors is worth its condition",
        _choice("2026-11-21"),
    ),
    _row(
        "gpu.elements.repeats", 8, "chunks per thread", "most chunks that share the elements of an input that repeats",
        _choice("2026-11-21"),
    ),
    _row(
        "gpu.elements.l1_bytes", 1 << 17, "bytes of inputs",
        "up to here, inputs that repeat stay in the L1 cache, and no thread has several chunks for them",
        _choice("2026-11-21"),
    ),
    _row(
        "gpu.elements.sharing", 4, "chunks per thread", "chunks that need the same value of a function that takes long",
        _choice("2026-11-27"),
    ),
    _row(
        "gpu.lookups.chunks", 4, "chunks per thread",
        "positions that are data are loaded together, then the elements there", _choice("2026-11-23"),
    ),
    _row(
        "gpu.elements.many_blocks", 16, "blocks per multiprocessor",
        "from here, threads have several chunks, for scalars or look-ups", _choice("2026-11-27"),
    ),
    _row(
        "gpu.elements.threads", 128, "threads", "threads per block: small blocks that end make room soon",
        _choice("2026-11-21"),
    ),
    _row(
        "gpu.tiles.largest", 64, "elements along a side", "largest tile; twice as large for many tiles",
        _choice("2026-11-21"),
    ),
    _row("gpu.tiles.smallest", 16, "elements along a side", "smallest tile", _choice("2026-11-21")),
    _row("gpu.tiles.many", 8, "tiles per multiprocessor", "from here, tiles are twice as large", _choice("2026-11-21")),
    _row(
        "gpu.tiles.large_bytes", 64 << 10, "bytes of shared memory",
        "up to here, tiles are twice as large: a few blocks fit", _choice("2026-11-21"),
    ),
    _row(
        "gpu.scans.elements", 16, "elements per thread", "elements along a row, for each scan, in flight at once",
        _choice("2026-11-23"),
    ),
    _row(
        "gpu.scans.rows", 8, "elements of a column", "most adjacent elements of a column per thread",
        _choice("2026-11-23"),
    ),
    _row(
        "gpu.scans.row_threads", 128, "threads", "threads per block if a row has at most a warp",
        _choice("2026-11-23"),
    ),
    _row(
        "gpu.scans.column_threads", 256, "threads", "threads per block that walks down columns", _choice("2026-11-23"),
    ),
    _row(
        "gpu.scans.resident", 1024, "threads per multiprocessor", "up to here, more threads share each column",
        _choice("2026-11-23"),
    ),
    _row("gpu.tile_sums.largest", 64, "elements along a side", "largest tile of a reduction", _choice("2026-11-21")),
    _row("gpu.tile_sums.threads", 256, "threads", "threads per block that reduces tiles", _choice("2026-11-23")),
    _row(
        "gpu.tile_sums.resident", 4, "blocks per multiprocessor", "while some wait at a barrier, others load",
        _choice("2026-11-23"),
    ),
    _row(
        "gpu.columns.total_threads", 256, "threads", "threads per block that adds up partial results",
        _choice("2026-11-21"),
    ),
    _row(
        "gpu.columns.shared_words", 16, "registers per thread",
        "values of columns that are computed once for all rows of a thread", _choice("2026-11-23"),
    ),
    _row(
        "cpu.parallel_from", 1 << 17, "elements", "below, waking the other cores costs more than it saves",
        _choice("2026-11-21"),
    ),
    _row(
        "cpu.columns.tile", 256, "columns", "columns that are traversed several times over all rows stay in caches",
        _choice("2026-11-26"),
    ),
    _row(
        "cpu.columns.whole_row", 512, "columns",
        "up to here, rows are not cut, so that a core reads contiguous memory", _choice("2026-11-26"),
    ),
    _row(
        "cpu.columns.bytes", 512 << 10, "bytes of inputs", "up to here, the widest tile of columns is read together",
        _CPU_COLUMNS,
    ),
    _row("cpu.columns.least", 32, "columns", "fewest columns of a tile", _choice("2026-11-23")),
    _row(
        "cpu.windows.narrow", 4, "elements of a window", "up to here, vectors of adjacent windows share cache lines",
        _choice("2026-11-23"),
    ),
    _row(
        "cpu.windows.unrolled", 16, "elements of a reduction",
        "up to here, a reduction is written out, with a result per lane", _choice("2026-11-21"),
    ),
    _row(
        "cpu.functions.written", 24, "functions of a phase",
        "with more, functions are called: LLVM would compile them for seconds", _choice("2026-11-26"),
    ),
    _row(
        "cpu.rows.chunk", 16384, "elements of a row", "part of a long row per iteration of the parallel loop",
        _choice("2026-11-21"),
    ),
    _row(
        "cpu.rows.runs", 8, "runs of a row", "from here, a row has a running value for each element of a run",
        _choice("2026-11-27"),
    ),
    _row(
        "cpu.rows.sections", 6, "sections", "most loops into which the last digit of an index cuts a row",
        _choice("2026-11-23"),
    ),
    _row(
        "cpu.rows.shortest_run", 4, "elements", "shortest loop over the last digit of an index", _choice("2026-11-23"),
    ),
    _row(
        "cpu.rows.short_run", 128, "elements of a run",
        "longer runs add up to one value each: combining the values of a vector takes no longer",
        _choice("2026-11-27"),
    ),
    _row(
        "cpu.rows.short", 64, "elements of a row",
        "up to here, functions of the sums of rows are computed for many rows at once", _choice("2026-11-23"),
    ),
    _row(
        "cpu.rows.short_rounded", 512, "elements of a row", "the same if results are rounded to 16 or 8 bits",
        _CPU_SHORT_ROWS,
    ),
    _row("cpu.rows.together", 64, "rows", "rows whose functions of sums are computed at once", _choice("2026-11-23")),
    _row(
        "cpu.scans.parts", 8, "parts of a section", "scanned together, to hide the latency of dependent additions",
        _choice("2026-11-23"),
    ),
    _row(
        "cpu.scans.short", 8, "elements of a row", "up to here, a row is scanned without loops", _choice("2026-11-23"),
    ),
    _row(
        "cpu.long_loops.from", 1000, "instructions",
        "longer bodies are split, so that LLVM compiles them in linear time", _choice("2026-11-26"),
    ),
    _row("cpu.long_loops.part", 400, "instructions", "largest average part of a long body", _choice("2026-11-26")),
    _row(
        "cpu.long_loops.parts", 8, "parts",
        "with more, parts are functions: with 7 parts these save a tenth of the time of compiling, with 22 two "
        "thirds", _COMPILING,
    ),
    _row(
        "cpu.long_loops.rounds", 256, "iterations",
        "iterations per block of a long loop: 1 KiB of each value of Float between its parts", _choice("2026-11-26"),
    ),
    _row(
        "cpu.named_constants", 100, "constants of a phase",
        "with more, constants have names, and LLVM compiles faster", _choice("2026-11-26"),
    ),
    _row(
        "sizes.far", 64, "elements",
        "from here, a distance may depend on the outermost extent, as where inputs are joined", _choice("2026-11-27"),
    ),
    _row(
        "sizes.parts", 8, "parts of a tensor",
        "most equal parts whose elements at the same place are processed together", _choice("2026-11-27"),
    ),
    _row(
        "sizes.short", 64, "iterations",
        "up to here, the extent of an inner loop stays constant, for LLVM to write it out or vectorize it",
        _choice("2026-11-23"),
    ),
    _row("tiles.together", 4, "tiles", "most tiles that a block or core has at once", _choice("2026-11-21")),
    _row(
        "tiles.repeated_exprs", 8, "expressions before a permutation",
        "most expressions that a transposed read computes again", _choice("2026-11-23"),
    ),
    _row(
        "branches.values", 8, "values",
        "most values that are computed and possibly discarded, so that loads are in no branch", _choice("2026-11-23"),
    ),
    _row(
        "vectors.small", 16, "times smaller than the largest buffer",
        "smaller buffers do not decide the width of accesses", _choice("2026-11-21"),
    ),
    _row("vectors.lines", 2, "lines per cycle", "a multiprocessor looks up so many lines of its cache", _RATES),
    _row("vectors.starting", 23, "cycles per warp", "a multiprocessor starts warps at this interval", _RATES),
    _row(
        "windows.sparsest", 3, "elements of a window per element that is read",
        "sparser windows are not loaded as vectors", _choice("2026-11-27"),
    ),
    _row(
        "open.more_bytes", 8, "1 / share of the bytes",
        "an open scheduler accepts a kernel that moves up to 1 / this more bytes than its inputs and outputs",
        _choice("2026-11-23"),
    ),
    _row(
        "gpu.streamed", 384 << 20, "bytes of inputs",
        "up to here, inputs that are read once are evicted first: the cache, an eighth of this on an H200, keeps what "
        "other kernels wrote",
        _choice("2026-11-21"),
    ),
)

_VALUES: Final[Mapping[str, float]] = MappingProxyType({row.name: row.value for row in ROWS})


def crossover(name: str) -> int:
    """Return the whole number of a row."""
    value = crossover_ratio(name)
    if not isinstance(value, int):
        msg = f"crossover: the row {name!r} holds {value}, which is not a whole number; call crossover_ratio."
        raise TypeError(msg)
    return value


def crossover_ratio(name: str) -> float:
    """Return the number of a row that may be a fraction."""
    if name not in _VALUES:
        similar = get_close_matches(name, _VALUES, n=3) or ["ROWS in fuser_lab/cost/crossovers.py"]
        raise LookupError(f"crossover: unknown row {name!r}; choose from {', '.join(similar)}, or add a row.")
    return _VALUES[name]

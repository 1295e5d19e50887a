"""The loops of a segment: the data that a scheduler's choice passes to the lowering.

`eviction` chooses the data that the L2 cache of a GPU evicts first while a kernel runs. On an H200, kernels that read
and write much more than the cache holds are up to 4 % faster if their inputs have the higher priority
(docs/benchmarks.md): outputs are then written back to memory soon, in the order in which they were stored. Inputs that
are read once and reduced to a few numbers have the lower priority: the cache keeps what other kernels wrote.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod

from fuser_lab.cost.crossovers import crossover
from fuser_lab.cost.device import DEFAULT, Device
from fuser_lab.targets import Form


class Style(enum.Enum):
    """Which loop is the innermost, and which elements a thread computes."""

    ELEMENTS = "elements"  # no reduction: every element separately
    ROWS = "rows"  # the threads of a block (or the vector lanes of a core) share one reduction
    TILES = "tiles"  # no reduction: square tiles of two axes, transposed in shared memory
    COLUMNS = "columns"  # each thread (or lane) computes one result; adjacent lanes access adjacent elements


class NestKind(enum.Enum):
    """The kinds of nests, which differ in parameters and writers; those of blocks are on a GPU, of cores on a CPU."""

    BLOCK_ELEMENTS = Form.BLOCKS, Style.ELEMENTS, "elements"
    BLOCK_TILES = Form.BLOCKS, Style.TILES, "tiles"
    BLOCK_TILE_SUMS = Form.BLOCKS, Style.TILES, "sums of tiles"
    BLOCK_ROWS = Form.BLOCKS, Style.ROWS, "rows"
    BLOCK_ROWS_WITH_COLUMN_SUMS = Form.BLOCKS, Style.ROWS, "rows that add to column sums"
    BLOCK_ROWS_WITH_SCANS = Form.BLOCKS, Style.ROWS, "rows that are scanned between passes"
    BLOCK_SCANNED_ROWS = Form.BLOCKS, Style.ROWS, "scanned rows"
    BLOCK_COLUMNS = Form.BLOCKS, Style.COLUMNS, "columns"
    BLOCK_KEPT_COLUMNS = Form.BLOCKS, Style.COLUMNS, "columns that stay on chip between passes"
    BLOCK_SCANNED_COLUMNS = Form.BLOCKS, Style.COLUMNS, "scanned columns"
    CORE_ELEMENTS = Form.CORES, Style.ELEMENTS, "elements"
    CORE_TILES = Form.CORES, Style.TILES, "tiles"
    CORE_ROWS = Form.CORES, Style.ROWS, "rows"
    CORE_ROWS_WITH_COLUMN_SUMS = Form.CORES, Style.ROWS, "rows that add to column sums"
    CORE_ROWS_WITH_SCANS = Form.CORES, Style.ROWS, "rows that are scanned between passes"
    CORE_SCANNED_ROWS = Form.CORES, Style.ROWS, "scanned rows"
    CORE_COLUMNS = Form.CORES, Style.COLUMNS, "columns"
    CORE_SCANNED_COLUMNS = Form.CORES, Style.COLUMNS, "scanned columns"

    @property
    def form(self) -> Form:
        """How loops are distributed on the targets that have such nests."""
        return self.value[0]

    @property
    def style(self) -> Style:
        """Which loop is the innermost."""
        return self.value[1]


class Evict(enum.Enum):
    """What the L2 cache of a GPU evicts first: the kernel's inputs or other data."""

    NORMAL = "normal"
    FIRST = "first"  # inputs are evicted before data of other kernels
    LAST = "last"  # inputs stay; outputs are written back first


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Extents of one loop nest, slowest axis first.

    ``kept_run`` and ``reduced_run`` are the lengths of the innermost ranges that every access traverses with one
    stride, so that each can be one loop. ``reduces_outermost`` says whether the outermost axis in memory is
    reduced, so that the elements per result grow with it. ``reduces`` is False for a nest without reductions
    (``reduced`` may be empty even with reductions: sums over axes of size 1). ``vector`` is how many adjacent
    elements a GPU thread may access at a time along the fastest axis of the longest loop.

    GPU: ``shifted`` says that rows may begin anywhere in an access of ``vector`` elements: threads access aligned
    vectors, and only part of the first and of the last access of a row belongs to it.

    GPU: ``stored_bytes`` is the total size in bytes of the outputs that have one element per point of the nest.

    GPU, without reductions: ``repeats`` is how many chunks of a thread may share a large input that repeats;
    ``halves`` is 2 if elements at one place of both halves of the fastest axis need the same elements; ``looked_up``
    says that inputs are read at data-dependent positions, ``slow_shared`` that chunks of a thread need the same value
    of a function that takes long.

    ``transposed`` contains the extents of two axes such that some tensors are contiguous along the first and the others
    along the second; (0, 0) if all agree. With reductions, the first is a reduced axis. ``itemsize`` is that of the
    widest tensor to be transposed, ``transposed_bytes`` the bytes per element of all of them. ``mirrored`` says whether
    both axes have the same extent and a tensor that does not fit in the L2 cache is read along both.

    With reductions: ``read_bytes`` is the bytes per element of all inputs that are read element by element (on a CPU,
    only if columns are read several times; on a GPU, without what adjacent columns share).

    GPU, with reductions: ``streams`` is the number of these inputs. ``input_bytes`` is the bytes per element of a row
    that stay on chip between passes if inputs are kept, ``value_bytes`` the same if values that are expensive to
    recompute are kept as well, ``computed_bytes`` the same in shared memory, where a value takes the place of one that
    is no longer read, or 0 if no value is kept there, ``constant_bytes`` the bytes that only later passes read,
    ``varying_bytes`` those of them that differ along the fastest axis, ``sum_bytes`` the running values of one result,
    ``met_bytes`` the same if passes use the same memory for those of a dtype, ``widest_sum`` the widest of them.
    ``online`` says whether the first two passes compute only a maximum and the sum of exponentials relative to it,
    ``moments`` whether they compute only a sum and the squared deviations from the mean. ``column_sums`` has the bytes
    of one column's running value for each column sum that rows add to; empty if there are none. ``window`` is how many
    elements of a result are adjacent in memory, followed by those of the next result, if a thread reduces whole
    windows.

    ``apart`` says that no access depends on both a row and a place in it, so that lanes read nothing together: the
    elements of a row are computed from what all rows read, and from values of the row. None of them is stored.

    ``crossed`` is the number of rows whose elements fill sectors of tensors in which the same element of consecutive
    rows is adjacent, 0 if there are none; ``crossed_bytes`` is the bytes of an element of a row in all of these.

    ``packed`` is the smallest number of rows whose bytes are whole accesses of 16 bytes in each tensor of rows, if
    single rows have narrower accesses and rows follow one another without gaps; 0 otherwise. ``packed_bytes`` is the
    bytes of such a row in all tensors.

    CPU, with reductions: ``scalar`` says that the compiler computes the elements of a row one after another, because
    some are results of called functions or at data-dependent positions, so a row's sum has one running value.

    ``scans`` is how many scans run along ``reduced``, an axis whose elements are all results; 0 if there are none. With
    several passes, they are between these.

    ``device`` is the GPU for whose multiprocessors, registers and shared memory the loops are chosen.
    """

    kept: tuple[int, ...]
    reduced: tuple[int, ...]
    kept_run: int
    reduced_run: int
    inner_reduced: bool
    passes: int
    reduces_outermost: bool = False
    reduces: bool = False
    vector: int = 1
    shifted: bool = False
    packed: int = 0
    packed_bytes: int = 0
    apart: bool = False
    crossed: int = 0
    crossed_bytes: int = 0
    streams: int = 1
    stored_bytes: int = 0
    read_bytes: int = 0
    input_bytes: int = 0
    constant_bytes: int = 0
    varying_bytes: int = 0
    online: bool = False
    moments: bool = False
    value_bytes: int = 0
    computed_bytes: int = 0
    sum_bytes: int = 0
    met_bytes: int = 0
    widest_sum: int = 0
    repeats: int = 1
    halves: int = 1
    looked_up: bool = False
    slow_shared: bool = False
    transposed: tuple[int, int] = (0, 0)
    itemsize: int = 1
    transposed_bytes: int = 1
    mirrored: bool = False
    column_sums: tuple[int, ...] = ()
    window: int = 1
    scalar: bool = False
    scans: int = 0
    device: Device = DEFAULT

    def __str__(self) -> str:
        """Return the properties that are not those of a nest without loops, as one line."""
        plain = Space(kept=(), reduced=(), kept_run=1, reduced_run=1, inner_reduced=False, passes=1)
        values = ((entry.name, getattr(self, entry.name)) for entry in fields(self) if entry.name != "device")
        return ", ".join(
            [f"{name} = {value}" for name, value in values if value != getattr(plain, name)]
            + [f"device = {self.device.name}"],
        )

    @property
    def rows(self) -> int:
        """Number of results of a reduction, or of elements if there is no reduction."""
        return prod(self.kept)

    @property
    def keeps_values(self) -> bool:
        """Whether values that are expensive to recompute take no more room on chip than the inputs they replace."""
        return 0 < self.computed_bytes <= self.input_bytes

    @property
    def is_walked_again(self) -> bool:
        """Whether columns are read again after one of their results is known."""
        return bool(self.reduced) and not self.inner_reduced and not self.is_one_pass

    @property
    def is_one_pass(self) -> bool:
        """Whether no element is read again; a column's maximum and sum of exponentials are computed together."""
        return self.passes == 1 or (self.online and self.passes == 2 and not self.inner_reduced)

    @property
    def depth(self) -> int:
        """Number of elements reduced per result."""
        return prod(self.reduced)

    def groups(self, vector: int) -> int:
        """Return how many groups of ``vector`` elements hold a row, wherever it begins."""
        return -(-(self.depth + (vector - 1 if self.shifted else 0)) // vector)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSchedule:
    """Chosen loops of one nest.

    Attributes
    ----------
    kind
        What the loops compute, and which of them is the innermost.
    parallel
        CPU: whether the outer loop is distributed over cores (small kernels are faster on one).
    grain
        CPU: rows per parallel iteration.
    tile
        Columns per parallel iteration; 1 unless the style is COLUMNS.
    threads
        GPU: threads of a block in x and y; y counts rows.
    blocks
        GPU: maximum number of blocks in flight of a grid-stride loop or of blocks that iterate over rows; 0 for one
        block per row.
    partial
        Elements that are added up before their sum is added to the total, which bounds the rounding error.
    split
        Parts of each reduction, combined by a second phase; 1 for one phase.
    cluster
        GPU: blocks of a cluster that share each row and reduce it through each other's shared memory; 1 for one block.
    persistent
        Whether values needed by several passes over a row are kept in a buffer.
    online
        GPU: whether a maximum and the sum of exponentials relative to it, or a sum and the squared deviations from the
        mean, are computed in one pass.
    registers, shared
        GPU: steps over a row that are kept in registers and in shared memory; each pass reads the rest again.
    staged
        GPU: whether the rows of a block are copied to shared memory: with their results in whole accesses if rows begin
        anywhere in one, or in whole sectors those tensors in which elements of several rows are adjacent.
    values
        GPU: whether values that are expensive to recompute are kept as well as inputs.
    constants
        GPU: whether inputs that only later passes read are loaded with the row or, by blocks that iterate over rows,
        once.
    resident
        GPU: blocks per multiprocessor for which registers are limited; 0 for no limit.
    unroll
        Elements of a thread before the next index is computed; steps whose loads are in flight together (for rows with
        column sums, 2 means that the next row is loaded before the values of this one are computed).
    vector
        Elements of one memory access.
    evict
        GPU: the eviction priority of inputs in the L2 cache.
    specialized
        Whether all sizes are constants of the kernel; otherwise those of its outermost loops are arguments.
    reasons
        One sentence per choice that gives the reason.
    """

    kind: NestKind
    parallel: bool = False
    grain: int = 1
    tile: int = 1
    threads: tuple[int, int] = (1, 1)
    blocks: int = 0
    partial: int = 4096
    split: int = 1
    cluster: int = 1
    persistent: bool = False
    online: bool = False
    registers: int = 0
    shared: int = 0
    staged: bool = False
    values: bool = True
    constants: bool = False
    resident: int = 0
    unroll: int = 1
    vector: int = 1
    evict: Evict = Evict.NORMAL
    specialized: bool = False
    reasons: tuple[str, ...] = ()

    @property
    def style(self) -> Style:
        """Which loop is the innermost."""
        return self.kind.style


# Parameters that can be set by hand

Value = int | bool | tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A field of `LoopSchedule` that can be set by hand.

    Attributes
    ----------
    name
        The name of the field.
    meaning
        What the value counts or says.
    nests
        The kinds of nests that have the parameter.
    is_flag
        Whether the value is a bool; otherwise it is a whole number.
    hint
        The transform, and its argument, that shows a value which no loop expresses; by default ``set_params``.
    tried
        Values that `fl.tune` tries, beside the combinations in `suggestions`.
    """

    name: str
    meaning: str
    nests: frozenset[NestKind]
    is_flag: bool = False
    hint: tuple[str, str] | None = None
    tried: tuple[Value, ...] = ()


def _row(
    name: str, meaning: str, *nests: NestKind, is_flag: bool = False, hint: tuple[str, str] | None = None,
    tried: tuple[Value, ...] = (),
) -> Parameter:
    return Parameter(name=name, meaning=meaning, nests=frozenset(nests), is_flag=is_flag, hint=hint, tried=tried)


_K = NestKind
_BLOCKS = frozenset(kind for kind in _K if kind.form is Form.BLOCKS)

# Every parameter of kernels, in the order in which they are shown; the unit of each is in its meaning.
PARAMETERS = (
    _row("threads", "threads of a block, in x and y", *_BLOCKS),
    _row(
        "blocks", "blocks of the grid", _K.BLOCK_ELEMENTS, _K.BLOCK_ROWS_WITH_COLUMN_SUMS, hint=("grid", "blocks"),
    ),
    _row("unroll", "steps in flight together", *_BLOCKS - {_K.BLOCK_TILES, _K.BLOCK_TILE_SUMS, _K.BLOCK_KEPT_COLUMNS}),
    _row(
        "tile", "columns, or sides of a tile",
        _K.BLOCK_TILES, _K.BLOCK_TILE_SUMS, _K.CORE_TILES, _K.CORE_COLUMNS, _K.CORE_SCANNED_COLUMNS,
    ),
    _row("vector", "elements of one access", *_BLOCKS - {_K.BLOCK_TILE_SUMS}),
    _row(
        "grain", "rows of one parallel iteration",
        _K.CORE_ROWS, _K.CORE_ROWS_WITH_COLUMN_SUMS, _K.CORE_ROWS_WITH_SCANS,
    ),
    _row(
        "split", "parts of each reduction",
        _K.BLOCK_ROWS, _K.BLOCK_COLUMNS, _K.BLOCK_TILE_SUMS, _K.CORE_ROWS, _K.CORE_COLUMNS,
    ),
    _row("partial", "additions before a subtotal", _K.CORE_ROWS, _K.CORE_COLUMNS),
    _row(
        "cluster", "blocks that share each row through each other's shared memory", _K.BLOCK_ROWS,
        _K.BLOCK_KEPT_COLUMNS, hint=("cluster", "blocks"),
    ),
    _row("persistent", "rows stay on chip between passes", _K.BLOCK_ROWS, is_flag=True),
    _row("shared", "column sums in shared memory, the others in registers", _K.BLOCK_ROWS_WITH_COLUMN_SUMS),
    _row("constants", "values that all rows share are loaded once", _K.BLOCK_ROWS_WITH_COLUMN_SUMS, is_flag=True),
    _row(
        "resident", "blocks per multiprocessor for which registers are limited", _K.BLOCK_ROWS, _K.BLOCK_COLUMNS,
        _K.BLOCK_ROWS_WITH_COLUMN_SUMS, _K.BLOCK_ROWS_WITH_SCANS, _K.BLOCK_TILE_SUMS, hint=("launch_bounds", "blocks"),
    ),
    _row("parallel", "distributed over cores", *frozenset(_K) - _BLOCKS, is_flag=True),
    _row("specialized", "all sizes are constants of the kernel, not arguments", *_K, is_flag=True),
)
"""All parameters, in the order in which they are shown."""

MEANINGS: Mapping[str, str] = {parameter.name: parameter.meaning for parameter in PARAMETERS}
FLAGS = frozenset(parameter.name for parameter in PARAMETERS if parameter.is_flag)


_NAMES = {kind: tuple(parameter.name for parameter in PARAMETERS if kind in parameter.nests) for kind in NestKind}


def parameters_of(kind: NestKind) -> tuple[str, ...]:
    """Return the names of the parameters of a kind of nest."""
    return _NAMES[kind]


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer of a step without a result: the reason, with which the next form of a kernel is tried."""

    reason: str


STREAMED_BYTES = crossover("gpu.streamed")
HINTS_FROM = (8, 0)  # compute capability from which loads have a cache hint (PTX ISA, ld)


def eviction(space: Space) -> Evict:
    """Return the eviction priority of loads of a nest's inputs in the L2 cache."""
    if space.device.cc < HINTS_FROM:
        return Evict.NORMAL
    if space.reduces and space.is_one_pass and space.rows * space.depth * space.read_bytes <= STREAMED_BYTES:
        return Evict.FIRST
    # A smaller output might still be in the cache when the next kernel reads it.
    return Evict.LAST if space.stored_bytes > 2 * space.device.l2 > 0 else Evict.NORMAL


def why(evict: Evict) -> tuple[str, ...]:
    """Return the reason of a choice; nothing for the normal priority."""
    if evict is Evict.LAST:
        return ("the outputs exceed the L2 cache, so it keeps inputs and evicts outputs first",)
    return ()

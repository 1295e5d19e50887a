"""The loops of a segment: the data between a scheduler's choice and the lowering."""

import enum
from dataclasses import dataclass
from math import prod

from fuser_lab.cost.device import DEFAULT, Device


class Style(enum.Enum):
    """Which loop is the innermost, and which elements a thread computes."""

    ELEMENTS = "elements"  # no reduction: every element separately
    ROWS = "rows"  # the threads of a block (or the vector lanes of a core) share one reduction
    TILES = "tiles"  # no reduction: square tiles of two axes, transposed in shared memory
    COLUMNS = "columns"  # each thread (or lane) computes one result; adjacent lanes access adjacent elements


class Evict(enum.Enum):
    """What the L2 cache of a GPU evicts first: the kernel's inputs, or other data."""

    NORMAL = "normal"
    FIRST = "first"  # inputs are evicted before data of other kernels
    LAST = "last"  # inputs stay; outputs are written back first


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Extents of one loop nest, slowest axis first.

    ``kept_run`` and ``reduced_run`` are the lengths of the innermost ranges that every access traverses with one
    stride, so that they can be one loop. ``reduces`` is False for a nest without reductions (``reduced`` may be empty
    even where there are some: sums over axes of size 1). ``vector`` is how many neighbours a thread of a GPU may take
    at a time along the fastest axis of the longest walk.

    GPU: ``shifted`` says that rows begin anywhere in an access of ``vector`` elements: a thread takes what lies in one,
    and of the first and the last access of a row only a part belongs to it.

    GPU: ``stored_bytes`` is the total size in bytes of the outputs that have one element per point of the nest.

    GPU, without reductions: ``repeats`` is how many chunks of a thread may share a large input that repeats;
    ``looked_up`` says that inputs are read at positions that are data.

    ``transposed`` are the extents of two axes of which some tensors are fast along the first, the others along the
    second, (0, 0) if all agree; with reductions, the first is a reduced axis. ``itemsize`` is that of the widest to be
    transposed, ``transposed_bytes`` what an element of all of them takes. ``mirrored`` says whether both axes are as
    long, and one tensor is read along both that the L2 cache does not hold.

    GPU, with reductions: ``streams`` is how many inputs are read element by element, ``read_bytes`` what an element
    of all of them takes; ``input_bytes`` what an element of
    a row takes that stays on chip between passes as inputs, ``value_bytes`` the same with what is expensive to compute
    again, ``constant_bytes`` what only later passes read, ``sum_bytes`` the running values of one result,
    ``widest_sum`` the widest of them; ``online``
    says whether a maximum and the sum of exponentials relative to it are all that the first two passes compute.
    ``column_sums`` are the bytes of one column's running value, for each sum of columns that rows add to on the way;
    empty where rows do not. ``window`` is how many elements of a result lie side by side in memory, those of the next
    result beside them, where a thread reduces windows by itself.

    ``scans`` is how many scans run along ``reduced``, an axis whose elements are all results; 0 where there are none.

    ``device`` is the GPU whose multiprocessors, registers and shared memory loops are chosen for.
    """

    kept: tuple[int, ...]
    reduced: tuple[int, ...]
    kept_run: int
    reduced_run: int
    inner_reduced: bool
    passes: int
    reduces: bool = False
    vector: int = 1
    shifted: bool = False
    streams: int = 1
    stored_bytes: int = 0
    read_bytes: int = 0
    input_bytes: int = 0
    constant_bytes: int = 0
    online: bool = False
    value_bytes: int = 0
    sum_bytes: int = 0
    widest_sum: int = 0
    repeats: int = 1
    looked_up: bool = False
    transposed: tuple[int, int] = (0, 0)
    itemsize: int = 1
    transposed_bytes: int = 1
    mirrored: bool = False
    column_sums: tuple[int, ...] = ()
    window: int = 1
    scans: int = 0
    device: Device = DEFAULT

    @property
    def rows(self) -> int:
        """Number of results of a reduction, or of elements where there is none."""
        return prod(self.kept)

    @property
    def is_walked_again(self) -> bool:
        """Whether columns are needed again after a result of them is known."""
        return bool(self.reduced) and not self.inner_reduced and not self.is_one_pass

    @property
    def reduces_outermost(self) -> bool:
        """Whether the outermost axis in memory is a reduced one, so that a result's elements grow with it."""
        if not self.reduced:
            return False
        return self.rows == 1 or (self.depth > self.reduced_run if self.inner_reduced else self.rows == self.kept_run)

    @property
    def is_one_pass(self) -> bool:
        """Whether no element is needed again; a column's maximum and sum of exponentials are found together."""
        return self.passes == 1 or (self.online and self.passes == 2 and not self.inner_reduced)

    @property
    def depth(self) -> int:
        """Number of elements behind each result."""
        return prod(self.reduced)

    def groups(self, vector: int) -> int:
        """Return how many groups of ``vector`` elements hold a row, wherever it begins."""
        return -(-(self.depth + (vector - 1 if self.shifted else 0)) // vector)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSchedule:
    """Chosen loops of one nest.

    Attributes
    ----------
    style
        Which loop is the innermost.
    parallel
        CPU: whether the outer loop is shared among cores (small kernels are faster alone).
    grain
        CPU: rows that one parallel iteration works through.
    tile
        Columns that one parallel iteration owns; 1 where style is not COLUMNS.
    threads
        GPU: threads of a block in x and y; y counts rows.
    blocks
        GPU: most blocks in flight of a grid-stride loop, or of blocks that walk rows; 0 for as many as there are rows.
    partial
        Elements that are added up before their sum is added to the total: bounds the rounding error.
    split
        Parts that each reduction is cut into, added up by a second phase; 1 for one phase.
    cluster
        GPU: blocks of a cluster that share each row and reduce it through each other's shared memory; 1 for one block.
    persistent
        Whether values needed by several passes over a row are kept in a buffer.
    online
        GPU: whether a maximum and the sum of exponentials relative to it are found in one pass.
    registers, shared
        GPU: steps over a row that are kept in registers and in shared memory; each pass reads the rest again.
    values
        GPU: whether values that are expensive to recompute are kept as well as inputs.
    constants
        GPU: whether inputs that only later passes read are loaded with the row or, by blocks that iterate over rows,
        once.
    resident
        GPU: blocks per multiprocessor for which registers are limited; 0 for no limit.
    unroll
        Elements of a thread before the next index is computed; steps whose loads are in flight together (of rows with
        column sums: 2 for loads of the next row ahead of the values of this one).
    vector
        Elements of one memory access.
    evict
        GPU: the eviction priority of inputs in the L2 cache.
    specialized
        Whether all sizes are constants of the kernel; otherwise those of its outermost loops are arguments.
    reasons
        One sentence per choice that gives the reason.
    """

    style: Style
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
    values: bool = True
    constants: bool = False
    resident: int = 0
    unroll: int = 1
    vector: int = 1
    evict: Evict = Evict.NORMAL
    specialized: bool = False
    reasons: tuple[str, ...] = ()

    @property
    def keeps_columns(self) -> bool:
        """Whether blocks of a GPU keep columns on chip between passes."""
        return self.style is Style.COLUMNS and self.persistent

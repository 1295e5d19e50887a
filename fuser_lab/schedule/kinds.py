"""Which values of parameters are legal for each kind of nest, and what they imply."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from fuser_lab.cost.device import MEETING_BYTES, MOST_BLOCKS, WARP
from fuser_lab.schedule.gpu_column_loops import MEETING_BUFFER, columns_in_cluster, steps_of_columns
from fuser_lab.schedule.gpu_limits import shared_room
from fuser_lab.schedule.gpu_row_loops import fits_staged, in_cluster, row_room
from fuser_lab.schedule.gpu_scan_loops import scans_refused
from fuser_lab.schedule.gpu_tile_sum_loops import tile_sums_meet
from fuser_lab.schedule.state import LoopSchedule, NestKind, Space, Style, Value
from fuser_lab.targets import Form

_REGISTER_WORDS = 160  # registers per thread, for the part of a row that it keeps
_UNROLLED = 64  # iterations of a loop that are written out at most, which limits the length of the code
_ROWS_AHEAD = 2  # rows per block and step: the present row, and the next row, which is loaded in advance
_MOST_PARTS = 1 << 16  # parts of a reduction at most, about the limit of CUDA for blocks in y
_MOST_PARTIAL = 1 << 20  # additions before a subtotal at most, a limit of what is offered
_SPLIT_FROM = 2  # elements reduced per result


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Values set by hand for a nest: ``loops`` are those that the heuristics choose, ``chosen``, with the values."""

    space: Space
    chosen: LoopSchedule
    loops: LoopSchedule
    settings: Mapping[str, Value]

    @classmethod
    def of(cls, space: Space, chosen: LoopSchedule, settings: Mapping[str, Value]) -> "Change":
        """Return the loops of a nest with some values; clusters are applied before other values."""
        chosen = _in_given_cluster(space, chosen, settings)
        # mypy cannot know the types of fields by name; `check_values` checks them.
        loops = replace(chosen, **settings)  # type: ignore[arg-type]
        return cls(space=space, chosen=chosen, loops=loops, settings=settings)


def _in_given_cluster(space: Space, chosen: LoopSchedule, settings: Mapping[str, Value]) -> LoopSchedule:
    """Return the loops to which the other values set by hand are applied if the blocks that share a row are given."""
    cluster = settings.get("cluster", chosen.cluster)
    if not isinstance(cluster, int) or cluster == chosen.cluster or _illegal_cluster(space, cluster):
        return chosen
    if chosen.kind is NestKind.BLOCK_KEPT_COLUMNS:
        return columns_in_cluster(space, cluster) or chosen
    if chosen.persistent or (chosen.split > 1 and space.passes > 1 and settings.get("split", 1) == 1):
        return in_cluster(space, cluster)
    return replace(chosen, split=1)


# Why values are illegal; empty if they are legal


def _legal(_: Change) -> str:
    return ""


def _illegal_split(space: Space, loops: LoopSchedule) -> str:
    most = min(_MOST_PARTS, max(space.depth, 1))
    return "" if 1 <= loops.split <= most else f"split = {loops.split} must be between 1 and {most}"


def _illegal_on_blocks(change: Change) -> str:
    """Return why values are illegal on a GPU for any kind of nest."""
    space, loops, settings = change.space, change.loops, change.settings
    x, y = loops.threads
    most, vector = space.device.max_threads_per_block, loops.vector
    if x < 1 or y < 1 or x * y > most:
        return f"threads = {loops.threads} must be positive, at most {most} together"
    if vector < 1 or space.vector % vector or vector & (vector - 1):
        return f"vector = {vector} must be a power of two that divides {space.vector}, which extents and strides allow"
    if not 1 <= loops.unroll <= _UNROLLED:
        return f"unroll = {loops.unroll} must be between 1 and {_UNROLLED}"
    if "blocks" in settings and not 1 <= loops.blocks <= MOST_BLOCKS:
        return f"blocks = {loops.blocks} must be between 1 and {MOST_BLOCKS}"
    if "resident" in settings and not 0 <= loops.resident * x * y <= space.device.threads_per_sm:
        return f"resident = {loops.resident} blocks of {x * y} threads exceed the capacity of a multiprocessor"
    if loops.split != 1 and space.shifted and vector > 1:
        return f"split = {loops.split} requires vector = 1: rows of {space.depth} begin anywhere in a wider access"
    again = loops.kind is NestKind.BLOCK_ROWS and not loops.persistent  # each pass may be a launch
    if loops.split != 1 and (not (space.is_one_pass or again) or space.depth < _SPLIT_FROM):
        return f"split = {loops.split} requires a reduction whose result the kernel does not use"
    return _illegal_split(space, loops)


def _illegal_on_cores(change: Change) -> str:
    """Return why values are illegal on a CPU for any kind of nest."""
    space, loops = change.space, change.loops
    rows = max(space.rows, 1)
    if not 1 <= loops.grain <= rows:
        return f"grain = {loops.grain} must be between 1 and {rows}, the number of rows"
    if loops.split != 1 and (space.passes > 1 or space.depth < _SPLIT_FROM):
        return f"split = {loops.split} requires a reduction whose result the kernel does not use"
    if loops.split != 1 and not loops.parallel:
        return f"split = {loops.split} requires several cores, but parallel is False"
    if problem := _illegal_split(space, loops):
        return problem
    most = max(space.kept_run, 1) if loops.style is Style.COLUMNS else 512
    if loops.style in {Style.COLUMNS, Style.TILES} and not 1 <= loops.tile <= most:
        return f"tile = {loops.tile} must be between 1 and {most}"
    if not 1 <= loops.partial <= _MOST_PARTIAL:
        return f"partial = {loops.partial} must be between 1 and {_MOST_PARTIAL}"
    return ""


def _illegal_elements(change: Change) -> str:
    x, y = threads = change.loops.threads
    return f"threads = {threads} must be a multiple of {WARP}, in x only" if x % WARP or y != 1 else ""


def _illegal_tiles(change: Change) -> str:
    loops, most = change.loops, change.chosen.tile
    if problem := _illegal_elements(change):
        return problem
    if loops.tile < loops.vector or loops.tile & (loops.tile - 1) or loops.tile > most:
        return f"tile = {loops.tile} must be a power of two from {loops.vector} to {most}"
    return ""


def _illegal_tile_sums(change: Change) -> str:
    space, loops = change.space, change.loops
    x = loops.threads[0]
    if problem := _illegal_tiles(change):
        return problem
    if x & (x - 1) or x < loops.tile:
        return f"threads = {loops.threads} must be a power of two from {loops.tile}, a side of the tiles, in x only"
    if not tile_sums_meet(space, x):
        nbytes = x * loops.vector * space.sum_bytes
        return f"{x} threads combine results in {nbytes} bytes of shared memory, more than the tiles leave"
    return ""


def _illegal_columns(change: Change) -> str:
    space, loops = change.space, change.loops
    x, y = loops.threads
    if x & (x - 1) or y & (y - 1):
        return f"threads = {loops.threads} must be powers of two"
    if problem := _illegal_cluster(space, loops.cluster):
        return problem
    nbytes = x * y * loops.vector * max(space.met_bytes if loops.persistent else space.sum_bytes, 1)
    if loops.cluster > 1:
        nbytes += x * loops.cluster * loops.vector * space.sum_bytes
    if y > 1 and nbytes > MEETING_BYTES:
        return f"{x * y} threads combine results in {nbytes} bytes of shared memory, more than {MEETING_BYTES}"
    return ""


def _illegal_kept_columns(change: Change) -> str:
    space, loops = change.space, change.loops
    x, y = loops.threads
    if problem := _illegal_columns(change):
        return problem
    if y > 1 and x * y * loops.vector * space.widest_sum > MEETING_BUFFER:
        return f"{x * y} threads combine one reduction in more than {MEETING_BUFFER} bytes of shared memory"
    words = _steps_of_columns(change) * loops.vector * space.input_bytes // 4
    if words > _REGISTER_WORDS:
        return f"{x * y} threads would each keep {words} registers of columns, more than {_REGISTER_WORDS}"
    return ""


def _illegal_rows(change: Change) -> str:
    space, chosen, loops = change.space, change.chosen, change.loops
    x, y = loops.threads
    if (x > WARP and x % WARP) or (x < WARP and x & (x - 1)):
        return f"threads = {loops.threads} must be a multiple of {WARP}, or a power of two below it"
    if problem := _illegal_cluster(space, loops.cluster):
        return problem
    if loops.cluster > 1 and (x < WARP or y > 1 or loops.split > 1):
        return f"cluster = {loops.cluster}: blocks share only rows that are not split, each with at least one warp"
    if y > 1 and (x > WARP or loops.split > 1):
        return f"threads = {loops.threads}: rows can share a block only if each has one warp and is not split"
    if loops.persistent and not chosen.persistent:
        return "persistent = True: there is only one pass over the row, so there is nothing to keep"
    if loops.persistent and not chosen.shared:
        words = _steps(space, loops) * loops.vector * max(space.input_bytes, 1) // 4
        if words > _REGISTER_WORDS:
            return f"{x} threads would each keep {words} registers of a row, more than {_REGISTER_WORDS}"
    return ""


def _illegal_rows_with_scans(change: Change) -> str:
    loops = _with_steps_of_rows(change)
    return _illegal_rows(change) or scans_refused(change.space, loops)


def _illegal_cluster(space: Space, cluster: int) -> str:
    """Return why blocks cannot share rows in clusters of a size."""
    most = space.device.largest_cluster
    if cluster > 1 and most == 1:
        cc = ".".join(map(str, space.device.cc))
        return f"cluster = {cluster}: the {space.device.name} has compute capability {cc} and no clusters"
    if not 1 <= cluster <= most or cluster & (cluster - 1):
        return f"cluster = {cluster} must be a power of two, at most {most}"
    return ""


def _illegal_column_sums(change: Change) -> str:
    space, chosen, loops = change.space, change.chosen, change.loops
    (x, y), sums, shared = loops.threads, space.column_sums, loops.shared
    if (x % WARP or y != 1) and (x & (x - 1) or x * y != WARP):
        return f"threads = {loops.threads} must be a multiple of {WARP}, in x only, or {WARP} with a power of two in x"
    # For few rows the heuristics start more blocks than there are rows.
    if loops.blocks > max(space.rows, 1) and loops.blocks != chosen.blocks:
        return f"blocks = {loops.blocks} must be between 1 and {max(space.rows, 1)}, the number of rows"
    if loops.unroll > _ROWS_AHEAD:
        return f"unroll = {loops.unroll} must be 1, or {_ROWS_AHEAD} to load the next row in advance"
    if not 0 <= shared <= len(sums):
        return f"shared = {shared} must be between 0 and {len(sums)}, the number of column sums"
    each = -(-max(space.groups(loops.vector), 1) // x) * loops.vector
    constant = space.constant_bytes if loops.constants else 0
    rows = 2 if loops.unroll > 1 else 1
    words = each * (sum(sums[shared:]) + rows * space.input_bytes + constant) // 4
    if words > _REGISTER_WORDS:
        return f"{x} threads would each keep {words} registers of rows and sums, more than {_REGISTER_WORDS}"
    nbytes, room = sum(sums[:shared]) * each * x * y, shared_room(space.device, max(loops.resident, 1))
    if nbytes > room:
        where = f"a block of the {space.device.name}"
        return f"shared = {shared} takes {nbytes} bytes, more than the {room} that {where} has"
    return ""


def _illegal_scanned_columns(change: Change) -> str:
    x, y = change.loops.threads
    if x < WARP and x & (x - 1):
        return f"threads = {change.loops.threads} must be a multiple of {WARP}, or a power of two below it"
    nbytes = x * y * change.loops.vector * max(change.space.sum_bytes, 1)
    if y > 1 and nbytes > MEETING_BYTES:
        return f"{x * y} threads exchange {nbytes} bytes in shared memory, more than {MEETING_BYTES}"
    return ""


def _illegal_scanned_rows(change: Change) -> str:
    loops = change.loops
    x, y = loops.threads
    if (x > WARP and x % WARP) or (x < WARP and x & (x - 1)):
        return f"threads = {loops.threads} must be a multiple of {WARP}, or a power of two below it"
    if y > 1 and x > WARP:
        return f"threads = {loops.threads}: rows can share a block only if each has one warp"
    if x > WARP and x // WARP * loops.unroll > WARP:
        return f"{x // WARP} warps of {loops.unroll} parts have more than the {WARP} totals that a warp can combine"
    return ""


# Loops with what follows from the values


def _with_nothing(change: Change) -> LoopSchedule:
    return change.loops


def _with_blocks(change: Change) -> LoopSchedule:
    loops = change.loops
    if "blocks" in change.settings:
        return loops
    chunks = -(-change.space.rows // (loops.vector * change.space.halves))
    return replace(loops, blocks=max(min(-(-chunks // (loops.threads[0] * loops.unroll)), MOST_BLOCKS), 1))


def _with_steps_of_columns(change: Change) -> LoopSchedule:
    return replace(change.loops, registers=_steps_of_columns(change))


def _with_steps_of_column_sums(change: Change) -> LoopSchedule:
    loops = _without_limit(change)
    # The rows that a block copies, and the column sums of its lines, fit in shared memory for the chosen threads.
    staged = loops.staged and loops.threads == change.chosen.threads
    return replace(
        loops, registers=-(-max(change.space.groups(loops.vector), 1) // loops.threads[0]), staged=staged,
    )


def _with_steps_of_rows(change: Change) -> LoopSchedule:
    space, chosen, loops = change.space, change.chosen, _without_limit(change)
    if loops.staged:
        is_whole = loops.split == 1 and loops.cluster == 1
        loops = replace(loops, staged=is_whole and fits_staged(space, loops.threads[1]))
    if not loops.persistent:
        return replace(loops, registers=0, shared=0, constants=False, blocks=0)
    steps = _steps(space, loops)
    if not chosen.shared:
        return replace(loops, registers=steps)
    # As many bytes as before, in steps of another size.
    step, before = loops.threads[0] * loops.vector, chosen.threads[0] * chosen.vector
    held = min(chosen.registers * before // step, steps)
    room = row_room(space.device, max(loops.resident, 1)) // (step * max(space.input_bytes, 1))
    shared = min(chosen.shared * before // step, steps - held, room)
    # Blocks that iterate over rows need registers for the next one.
    return replace(loops, registers=held, shared=shared, blocks=loops.blocks if held else 0)


def _without_limit(change: Change) -> LoopSchedule:
    """Return the loops; other threads have no limit of registers unless one is set."""
    is_plain = "resident" in change.settings or change.loops.threads == change.chosen.threads
    return change.loops if is_plain else replace(change.loops, resident=0)


def _steps(space: Space, loops: LoopSchedule) -> int:
    """Return the number of steps that the threads of a row take over it."""
    return -(-max(space.groups(loops.vector), 1) // (loops.threads[0] * loops.cluster))


def _steps_of_columns(change: Change) -> int:
    loops = change.loops
    return steps_of_columns(change.space, loops.threads[1] * loops.cluster, specialized=loops.specialized)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules for the parameters of a kind of nest.

    Attributes
    ----------
    illegal
        Returns why values are illegal, besides the reasons for any kind.
    implied
        Returns the loops with what follows from the values.
    following
        Names of the parameters that follow from others if they are not set.
    """

    illegal: Callable[[Change], str] = _legal
    implied: Callable[[Change], LoopSchedule] = _with_nothing
    following: tuple[str, ...] = ()


_RULES: Mapping[NestKind, Rules] = {
    NestKind.BLOCK_ELEMENTS: Rules(illegal=_illegal_elements, implied=_with_blocks, following=("blocks",)),
    NestKind.BLOCK_TILES: Rules(illegal=_illegal_tiles),
    NestKind.BLOCK_TILE_SUMS: Rules(illegal=_illegal_tile_sums),
    NestKind.BLOCK_ROWS: Rules(illegal=_illegal_rows, implied=_with_steps_of_rows, following=("resident",)),
    NestKind.BLOCK_ROWS_WITH_COLUMN_SUMS: Rules(
        illegal=_illegal_column_sums, implied=_with_steps_of_column_sums, following=("resident",),
    ),
    NestKind.BLOCK_ROWS_WITH_SCANS: Rules(
        illegal=_illegal_rows_with_scans, implied=_with_steps_of_rows, following=("resident",),
    ),
    NestKind.BLOCK_SCANNED_ROWS: Rules(illegal=_illegal_scanned_rows),
    NestKind.BLOCK_COLUMNS: Rules(illegal=_illegal_columns),
    NestKind.BLOCK_KEPT_COLUMNS: Rules(illegal=_illegal_kept_columns, implied=_with_steps_of_columns),
    NestKind.BLOCK_SCANNED_COLUMNS: Rules(illegal=_illegal_scanned_columns),
    **{kind: Rules() for kind in NestKind if kind.form is Form.CORES},
}


def rules_of(kind: NestKind) -> Rules:
    """Return the rules for the parameters of a kind of nest."""
    return _RULES[kind]


def why_illegal(change: Change) -> str:
    """Return why values are illegal; empty if they are legal."""
    kind = change.chosen.kind
    common = _illegal_on_blocks if kind.form is Form.BLOCKS else _illegal_on_cores
    return common(change) or rules_of(kind).illegal(change)

"""The values of kernel parameters that are legal for a nest of loops, and what follows from them.

No legal value can make a result wrong. Parameters that are not set keep the heuristics' choice unless they depend on
one that is set: with a different number of threads, a row takes a different number of steps.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fuser_lab.arguments import short_text
from fuser_lab.cost.device import MEETING_BYTES, MOST_BLOCKS, WARP
from fuser_lab.errors import ArgumentTypeError, ScheduleError
from fuser_lab.schedule.gpu_loops import (
    MEETING_BUFFER,
    columns_in_cluster,
    fits_staged,
    in_cluster,
    row_room,
    shared_room,
    steps_of_columns,
)
from fuser_lab.schedule.gpu_scan_loops import illegal_scan
from fuser_lab.schedule.gpu_tile_sum_loops import tile_sums_meet
from fuser_lab.schedule.state import FLAGS, MEANINGS, LoopSchedule, Space, Style, Value
from fuser_lab.targets import target_of

Values = tuple[tuple[str, Value], ...]

_REGISTER_WORDS = 160  # registers per thread, for the part of a row that it keeps
_UNROLLED = 64  # iterations of a loop that are written out at most, which limits the length of the code
_ROWS_AHEAD = 2  # rows per block and step: the present row, and the next row, which is loaded in advance
_MOST_PARTS = 1 << 16  # parts of a reduction at most, about the limit of CUDA for blocks in y
_MOST_PARTIAL = 1 << 20  # additions before a subtotal at most, a limit of what is offered
_SPLIT_FROM = 2  # elements reduced per result

_BITS = 63  # bits of an integer, without its sign


def with_values(
    space: Space, target: str, chosen: LoopSchedule, values: Values, names: Sequence[str],
) -> tuple[LoopSchedule, str]:
    """Return loops with some values set and an empty text, or the loops unchanged and the reason as a sentence."""
    where = f"a nest of {chosen.style.value} on {target}"
    for name, _ in values:
        if name not in names:
            has = ", ".join(names) or "none that can be set"
            return chosen, f"{name} is not a parameter of {where}; it has {has}"
    settings = {name: (value, 1) if name == "threads" and isinstance(value, int) else value for name, value in values}
    has_blocks = target_of(target).has_blocks
    chosen = _in_given_cluster(space, chosen, settings)
    problem = _illegal(space, chosen, settings) if has_blocks else _illegal_on_cpu(space, chosen, settings)
    if problem:
        return chosen, f"{problem}, for {where}"
    # mypy cannot know the types of fields by name; they were checked above.
    reasons = (*chosen.reasons, f"set by hand: {settings_text(settings)}")
    schedule = replace(chosen, **settings, reasons=reasons)  # type: ignore[arg-type]
    return (_with_implied(space, chosen, schedule, settings), "") if has_blocks else (schedule, "")


def check_values(values: Mapping[str, object]) -> Values:
    """Return values set by hand, sorted by name.

    Raises
    ------
    ArgumentTypeError
        If a name is not that of a parameter, or a value has the wrong type.
    """
    pairs: list[tuple[str, Value]] = []
    for name, value in sorted(values.items()):
        if name not in MEANINGS:
            msg = f"with_params: unknown parameter {name!r}; choose from {', '.join(MEANINGS)}."
            raise ArgumentTypeError(msg)
        if name == "threads" and isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_int, value)):
            pairs.append((name, (operator.index(value[0]), operator.index(value[1]))))
        elif (isinstance(value, bool) if name in FLAGS else _is_int(value)):
            pairs.append((name, value if isinstance(value, bool) else operator.index(value)))  # type: ignore[arg-type]
        else:
            if isinstance(value, int) and value.bit_length() > _BITS:
                msg = f"with_params: {name} must fit in {_BITS} bits, given {short_text(value)}."
                raise ScheduleError(msg)
            kinds = {"threads": "an int or a pair of ints", **dict.fromkeys(FLAGS, "a bool")}
            msg = f"with_params: {name} must be {kinds.get(name, 'an int')}, given {short_text(value)}."
            raise ArgumentTypeError(msg)
    return tuple(pairs)


def _is_int(value: object) -> bool:
    """Whether a value is an integer that fits: Python's, or one of NumPy or another library."""
    try:
        return not isinstance(value, bool) and operator.index(value).bit_length() <= _BITS  # type: ignore[arg-type]
    except TypeError:
        return False


def settings_text(settings: Mapping[str, Value]) -> str:
    """Return values as text, as in ``split = 8, unroll = 2``."""
    return ", ".join(f"{name} = {value}" for name, value in settings.items())


def _illegal(space: Space, chosen: LoopSchedule, settings: Mapping[str, Value]) -> str:
    """Return why values are illegal on a GPU; empty if they are legal."""
    schedule = replace(chosen, **settings)  # type: ignore[arg-type]
    x, y = schedule.threads
    vector, style = schedule.vector, chosen.style
    most = space.device.max_threads_per_block
    if x < 1 or y < 1 or x * y > most:
        return f"threads = {schedule.threads} must be positive, at most {most} together"
    if vector < 1 or space.vector % vector or vector & (vector - 1):
        return f"vector = {vector} must be a power of two that divides {space.vector}, which extents and strides allow"
    if not 1 <= schedule.unroll <= _UNROLLED:
        return f"unroll = {schedule.unroll} must be between 1 and {_UNROLLED}"
    if "blocks" in settings and not 1 <= schedule.blocks <= MOST_BLOCKS:
        return f"blocks = {schedule.blocks} must be between 1 and {MOST_BLOCKS}"
    if "resident" in settings and not 0 <= schedule.resident * x * y <= space.device.threads_per_sm:
        return f"resident = {schedule.resident} blocks of {x * y} threads exceed the capacity of a multiprocessor"
    if space.column_sums:
        return _illegal_backward(space, chosen, schedule)
    if space.scans:
        return illegal_scan(space, schedule)
    if schedule.split != 1 and space.shifted and vector > 1:
        return f"split = {schedule.split} requires vector = 1: rows of {space.depth} begin anywhere in a wider access"
    again = style is Style.ROWS and not schedule.persistent  # each pass may be a launch
    if schedule.split != 1 and (not (space.is_one_pass or again) or space.depth < _SPLIT_FROM):
        return f"split = {schedule.split} requires a reduction whose result the kernel does not use"
    if not 1 <= schedule.split <= min(_MOST_PARTS, max(space.depth, 1)):
        return f"split = {schedule.split} must be between 1 and {min(_MOST_PARTS, max(space.depth, 1))}"
    if style in {Style.ELEMENTS, Style.TILES} and (x % WARP or y != 1):
        return f"threads = {schedule.threads} must be a multiple of {WARP}, in x only"
    if style is Style.TILES:
        return _illegal_tile(schedule, chosen) or (_illegal_tile_sum(space, schedule) if space.reduces else "")
    if style is Style.COLUMNS:
        if x & (x - 1) or y & (y - 1):
            return f"threads = {schedule.threads} must be powers of two"
        problem = _illegal_cluster(space, schedule.cluster)
        if problem:
            return problem
        nbytes = x * y * vector * max(space.met_bytes if schedule.persistent else space.sum_bytes, 1)
        if schedule.cluster > 1:
            nbytes += x * schedule.cluster * vector * space.sum_bytes
        if y > 1 and nbytes > MEETING_BYTES:
            return f"{x * y} threads combine results in {nbytes} bytes of shared memory, more than {MEETING_BYTES}"
        if schedule.persistent and y > 1 and x * y * vector * space.widest_sum > MEETING_BUFFER:
            return f"{x * y} threads combine one reduction in more than {MEETING_BUFFER} bytes of shared memory"
        words = _kept_steps(space, schedule) * vector * space.input_bytes // 4
        if schedule.persistent and words > _REGISTER_WORDS:
            return f"{x * y} threads would each keep {words} registers of columns, more than {_REGISTER_WORDS}"
    return _illegal_row(space, chosen, schedule) if style is Style.ROWS else ""


def _kept_steps(space: Space, schedule: LoopSchedule) -> int:
    lines = schedule.threads[1] * schedule.cluster
    return steps_of_columns(space, lines, specialized=schedule.specialized)


def _illegal_tile_sum(space: Space, schedule: LoopSchedule) -> str:
    """Return why the threads of a block cannot add up tiles; empty if they can."""
    x, vector = schedule.threads[0], schedule.vector
    if x & (x - 1) or x < schedule.tile:
        least = f"{schedule.tile}, a side of the tiles"
        return f"threads = {schedule.threads} must be a power of two from {least}, in x only"
    if not tile_sums_meet(space, x):
        nbytes = x * vector * space.sum_bytes
        return f"{x} threads combine results in {nbytes} bytes of shared memory, more than the tiles leave"
    return ""


def _illegal_tile(schedule: LoopSchedule, chosen: LoopSchedule) -> str:
    tile = schedule.tile
    if tile < schedule.vector or tile & (tile - 1) or tile > chosen.tile:
        return f"tile = {tile} must be a power of two from {schedule.vector} to {chosen.tile}"
    return ""


def _illegal_row(space: Space, chosen: LoopSchedule, schedule: LoopSchedule) -> str:
    x, y = schedule.threads
    if (x > WARP and x % WARP) or (x < WARP and x & (x - 1)):
        return f"threads = {schedule.threads} must be a multiple of {WARP}, or a power of two below it"
    problem = _illegal_cluster(space, schedule.cluster)
    if problem:
        return problem
    if schedule.cluster > 1 and (x < WARP or y > 1 or schedule.split > 1):
        return f"cluster = {schedule.cluster}: blocks share only rows that are not split, each with at least one warp"
    if y > 1 and (x > WARP or schedule.split > 1):
        return f"threads = {schedule.threads}: rows can share a block only if each has one warp and is not split"
    if schedule.persistent and not chosen.persistent:
        return "persistent = True: there is only one pass over the row, so there is nothing to keep"
    if schedule.persistent and not chosen.shared:
        steps = _steps(space, schedule)
        words = steps * schedule.vector * max(space.input_bytes, 1) // 4
        if words > _REGISTER_WORDS:
            return f"{x} threads would each keep {words} registers of a row, more than {_REGISTER_WORDS}"
    return ""


def _in_given_cluster(space: Space, chosen: LoopSchedule, settings: Mapping[str, Value]) -> LoopSchedule:
    """Return the loops to which the other values set by hand are applied if the blocks that share a row are given."""
    cluster = settings.get("cluster", chosen.cluster)
    if not isinstance(cluster, int) or cluster == chosen.cluster or _illegal_cluster(space, cluster):
        return chosen
    if chosen.keeps_columns:
        return columns_in_cluster(space, cluster) or chosen
    if chosen.persistent or (chosen.split > 1 and space.passes > 1 and settings.get("split", 1) == 1):
        return in_cluster(space, cluster)
    return replace(chosen, split=1)


def _illegal_cluster(space: Space, cluster: int) -> str:
    """Return why blocks cannot share rows in clusters of a size; empty if they can."""
    most = space.device.largest_cluster
    if cluster > 1 and most == 1:
        cc = ".".join(map(str, space.device.cc))
        return f"cluster = {cluster}: the {space.device.name} has compute capability {cc} and no clusters"
    if not 1 <= cluster <= most or cluster & (cluster - 1):
        return f"cluster = {cluster} must be a power of two, at most {most}"
    return ""


def _steps(space: Space, schedule: LoopSchedule) -> int:
    """Return the number of steps that the threads of a row take over it."""
    return -(-max(space.groups(schedule.vector), 1) // (schedule.threads[0] * schedule.cluster))


def _illegal_backward(space: Space, chosen: LoopSchedule, schedule: LoopSchedule) -> str:
    """Return why values are illegal for rows that also accumulate column sums; empty if they are legal."""
    (x, y), sums, shared = schedule.threads, space.column_sums, schedule.shared
    if x % WARP or y != 1:
        return f"threads = {schedule.threads} must be a multiple of {WARP}, in x only"
    # For few rows the heuristics start more blocks than there are rows.
    if schedule.blocks > max(space.rows, 1) and schedule.blocks != chosen.blocks:
        return f"blocks = {schedule.blocks} must be between 1 and {max(space.rows, 1)}, the number of rows"
    if schedule.unroll > _ROWS_AHEAD:
        return f"unroll = {schedule.unroll} must be 1, or {_ROWS_AHEAD} to load the next row in advance"
    if not 0 <= shared <= len(sums):
        return f"shared = {shared} must be between 0 and {len(sums)}, the number of column sums"
    each = -(-max(space.groups(schedule.vector), 1) // x) * schedule.vector
    constant = space.constant_bytes if schedule.constants else 0
    rows = 2 if schedule.unroll > 1 else 1
    words = each * (sum(sums[shared:]) + rows * space.input_bytes + constant) // 4
    if words > _REGISTER_WORDS:
        return f"{x} threads would each keep {words} registers of rows and sums, more than {_REGISTER_WORDS}"
    nbytes, room = sum(sums[:shared]) * each * x, shared_room(space.device, max(schedule.resident, 1))
    if nbytes > room:
        where = f"a block of the {space.device.name}"
        return f"shared = {shared} takes {nbytes} bytes, more than the {room} that {where} has"
    return ""


def _with_implied(
    space: Space, chosen: LoopSchedule, schedule: LoopSchedule, settings: Mapping[str, Value],
) -> LoopSchedule:
    """Return loops with the parameters that follow from the given values."""
    x, _ = schedule.threads
    if schedule.style is Style.ELEMENTS and "blocks" not in settings:
        chunks = -(-space.rows // schedule.vector)
        return replace(schedule, blocks=max(min(-(-chunks // (x * schedule.unroll)), MOST_BLOCKS), 1))
    if schedule.keeps_columns:
        return replace(schedule, registers=_kept_steps(space, schedule))
    if schedule.style is not Style.ROWS:
        return schedule
    if "resident" not in settings and schedule.threads != chosen.threads:
        schedule = replace(schedule, resident=0)
    if space.column_sums:
        return replace(schedule, registers=-(-max(space.groups(schedule.vector), 1) // x))
    if schedule.staged:
        is_whole = schedule.split == 1 and schedule.cluster == 1
        schedule = replace(schedule, staged=is_whole and fits_staged(space, schedule.threads[1]))
    if not schedule.persistent:
        return replace(schedule, registers=0, shared=0, constants=False, blocks=0)
    steps = _steps(space, schedule)
    if not chosen.shared:
        return replace(schedule, registers=steps)
    # As many bytes as before, in steps of another size.
    step, before = x * schedule.vector, chosen.threads[0] * chosen.vector
    held = min(chosen.registers * before // step, steps)
    room = row_room(space.device, max(schedule.resident, 1)) // (step * max(space.input_bytes, 1))
    shared = min(chosen.shared * before // step, steps - held, room)
    # Blocks that iterate over rows need registers for the next one.
    return replace(schedule, registers=held, shared=shared, blocks=schedule.blocks if held else 0)


def _illegal_on_cpu(space: Space, chosen: LoopSchedule, settings: Mapping[str, Value]) -> str:
    """Return why values are illegal on a CPU; empty if they are legal."""
    schedule = replace(chosen, **settings)  # type: ignore[arg-type]
    rows = max(space.rows, 1)
    if not 1 <= schedule.grain <= rows:
        return f"grain = {schedule.grain} must be between 1 and {rows}, the number of rows"
    if schedule.split != 1 and (space.passes > 1 or space.depth < _SPLIT_FROM):
        return f"split = {schedule.split} requires a reduction whose result the kernel does not use"
    if schedule.split != 1 and not schedule.parallel:
        return f"split = {schedule.split} requires several cores, but parallel is False"
    if not 1 <= schedule.split <= min(_MOST_PARTS, max(space.depth, 1)):
        return f"split = {schedule.split} must be between 1 and {min(_MOST_PARTS, max(space.depth, 1))}"
    most = max(space.kept_run, 1) if chosen.style is Style.COLUMNS else 512
    if chosen.style in {Style.COLUMNS, Style.TILES} and not 1 <= schedule.tile <= most:
        return f"tile = {schedule.tile} must be between 1 and {most}"
    if not 1 <= schedule.partial <= _MOST_PARTIAL:
        return f"partial = {schedule.partial} must be between 1 and {_MOST_PARTIAL}"
    return ""

"""Choice of the loops of reductions on a GPU whose kept axis is the fastest in memory."""

from dataclasses import replace

from fuser_lab.cost.crossovers import crossover
from fuser_lab.cost.device import LINE_BYTES, MEETING_BYTES, SECTOR_BYTES, STATIC_BUFFER, WARP, WORD_BYTES
from fuser_lab.schedule import gpu_limits as limits
from fuser_lab.schedule.state import Evict, LoopSchedule, NestKind, Space, eviction

KEPT_THREADS = crossover("gpu.kept_columns.threads")
KEPT_WIDTH = crossover("gpu.kept_columns.width")
COLUMN_WORDS = crossover("gpu.columns.words")
MEETING_BUFFER = STATIC_BUFFER  # bytes of shared memory for one reduction, which is sized statically
SHORT = crossover("gpu.columns.short")
MANY = crossover("gpu.columns.many_threads")
SMALL = crossover("gpu.columns.small")


def column_loops(space: Space) -> LoopSchedule:
    """Return the loops of a nest whose kept axis is the fastest in memory: adjacent threads that loop over rows."""
    width, depth = space.vector, max(space.depth, 1)
    small = space.rows * depth <= SMALL and space.rows >= limits.ALL_THREADS
    while small and width > 1 and space.rows // width < WARP * limits.FEW_ROWS * space.device.sms:
        width //= 2
    online = space.online and space.passes > 1
    if online and width > 1:
        width //= 2  # maximum, sum and the maximum that they are relative to: twice the registers
    groups = -(-space.rows // width)
    alone = space.passes == 1 and depth <= SHORT and groups >= MANY * space.device.sms
    lanes = limits.power_of_two(min(WARP * (4 if alone else 2 if online else 1), groups))
    item = max(space.read_bytes // space.streams, 1)
    if not alone and space.kept_run * item < SECTOR_BYTES:
        # Fewer results are adjacent than a sector has elements; what follows them is in the next rows of a warp.
        lanes = min(lanes, max(SECTOR_BYTES // (WORD_BYTES * width), 1))
    most = 1 if alone else (limits.ALL_THREADS if small else 256) // lanes
    # More lines of threads divide the rows, until the meeting of their sums would need too much shared memory.
    height = 1
    while height < most and height * 2 <= depth and height * 2 * lanes * width * space.sum_bytes <= MEETING_BYTES:
        height *= 2
    blocks = max(-(-groups // lanes), 1)
    # A power of two if few rows are all loaded at once, so that fewer kernels cover all numbers of rows.
    unroll = min(_rows_in_flight(space, width), limits.power_of_two(-(-depth // height)))
    if space.window > 1:  # one load reads a line of a window
        unroll = space.window * max(min(limits.IN_FLIGHT // space.streams, depth // space.window), 1)
    words = -(-width * space.read_bytes // 4)
    room = COLUMN_WORDS - width * space.sum_bytes // 4 * (2 if online else 1)
    # A stored formula needs registers for its values for each element of a round.
    most_elements = limits.ELEMENTS if space.stored_bytes else limits.ELEMENTS * 2
    while space.window == 1 and unroll > 1 and (unroll * words > room or unroll * width > most_elements):
        unroll //= 2
    split = 1 if small else max(1, min(limits.WAVE * space.device.sms // blocks, depth // (height * unroll * 2)))
    reasons = [f"{lanes} adjacent threads read {lanes * width} adjacent elements, {height} rows at a time"]
    if alone:
        reasons = [f"each thread reduces the {depth} elements of {width} neighbouring results by itself"]
    # Blocks that divide rows run concurrently: with more registers, some would wait for others to end.
    resident = limits.WAVE * 256 // (lanes * height) if split > 1 and unroll * words <= room else 0
    if split > 1:
        reasons.append(f"{blocks} blocks of columns are too few: {split} blocks divide the rows of each")
    if online:
        reasons.append("maximum and sum of exponentials are computed in one pass")
    return LoopSchedule(
        kind=NestKind.BLOCK_COLUMNS, threads=(lanes, height), vector=width, unroll=unroll, split=split, online=online,
        evict=eviction(space) if not small else Evict.NORMAL, resident=resident,
        reasons=tuple(reasons),
    )


def _rows_in_flight(space: Space, width: int) -> int:
    """Return the rows whose loads a thread has in flight: several loads, and not fewer bytes than as many words."""
    nbytes = width * space.read_bytes or WORD_BYTES
    return max(limits.IN_FLIGHT // space.streams, -(-limits.IN_FLIGHT * WORD_BYTES // nbytes))


def columns_in_cluster(space: Space, cluster: int) -> LoopSchedule | None:
    """Return the loops of columns that the blocks of a cluster keep together; None if they do not fit."""
    loops = _kept_columns(space, cluster, limits.MOST_THREADS, limits.ELEMENTS)
    if cluster > 1 or loops is None or _blocks_of(space, loops) < space.device.sms:
        return loops
    if loops.threads[0] * loops.threads[1] > KEPT_THREADS:
        # Several small blocks load and store while others wait at their barriers. Narrow accesses leave registers for
        # more rows, as a thread has a sum for each of its columns.
        narrow = replace(space, vector=min(space.vector, KEPT_WIDTH))
        return _kept_columns(narrow, cluster, KEPT_THREADS, 2 * limits.ELEMENTS) or loops
    return loops


def _blocks_of(space: Space, loops: LoopSchedule) -> int:
    """Return the blocks of kept columns, without those that share columns in a cluster."""
    return -(-space.rows // (loops.vector * loops.threads[0]))


def _kept_columns(space: Space, cluster: int, threads: int, elements: int) -> LoopSchedule | None:
    """Return the loops of columns that at most so many threads keep, each in about ``elements`` registers, or None."""
    width, depth = space.vector, -(-max(space.depth, 1) // cluster)
    # Columns that are computed from what adjacent ones share, such as windows, have no inputs of their own.
    kept_bytes = space.input_bytes or space.computed_bytes
    # Registers of a row that a thread keeps: an element of Double takes two.
    each = width * space.streams * -(-max(space.read_bytes // space.streams, 1) // WORD_BYTES)
    if not space.input_bytes:
        each = width * -(-kept_bytes // WORD_BYTES)
    groups = -(-space.rows // width)
    if not kept_bytes or not space.rows:
        return None
    lanes, height = limits.power_of_two(min(WARP * 4, groups)), 1
    if depth * each > limits.ELEMENTS or cluster > 1:
        height = limits.power_of_two(-(-depth * each // elements))
        # Whole lines of memory, or two of the four sectors of each if a block then has the threads it needs.
        lanes = min(limits.power_of_two(max(LINE_BYTES * space.streams // (width * kept_bytes), 1)), WARP, lanes)
        if lanes * height > threads and lanes > 1:
            lanes //= 2
        height = min(max(height, limits.LEAST_THREADS // lanes), threads // lanes)
        if cluster == 1 and -(-groups // lanes) < space.device.sms:
            # Each block has a multiprocessor for itself: with more threads, each waits for fewer loads.
            most = min(MEETING_BYTES // space.met_bytes, MEETING_BUFFER // space.widest_sum, threads * width)
            while 2 * height <= min(most // (lanes * width), depth):
                height *= 2
    steps = steps_of_columns(space, height * cluster)
    words_kept = steps * each
    meeting = lanes * height * width * space.met_bytes if height > 1 else 0
    if cluster > 1:
        meeting += cluster * lanes * width * space.sum_bytes
    blocks = -(-groups // lanes) * cluster
    most_words = 2 * limits.ELEMENTS
    if blocks < space.device.sms:
        # Short columns of few blocks take less time than one more launch. Longer ones are divided among blocks, and so
        # are those of a softmax, whose maximum and sum need one launch. The limits are those of predicted times.
        most_words = 0 if cluster > 1 else limits.ELEMENTS // (2 if space.online else 1)
    if words_kept > most_words or meeting > MEETING_BYTES:
        return None
    if height > 1 and lanes * height * width * space.widest_sum > MEETING_BUFFER:
        return None
    # Those of the kept elements, which are not converted again, and others for sums and addresses.
    registers = 64 if words_kept <= limits.ELEMENTS else 80 if width <= KEPT_WIDTH else 128
    reason = f"columns stay in registers: {steps} rows of {width} columns for each of {lanes} x {height} threads"
    if cluster > 1:
        reason += f" of a cluster of {cluster} blocks"
    return LoopSchedule(
        kind=NestKind.BLOCK_KEPT_COLUMNS, threads=(lanes, height),
        vector=width, registers=steps, persistent=True, values=space.keeps_values or not space.input_bytes,
        cluster=cluster, resident=max(space.device.registers // (registers * lanes * height), 1), reasons=(reason,),
    )


def steps_of_columns(space: Space, lines: int, *, specialized: bool = False) -> int:
    """Return how many rows of its columns each thread keeps if this many lines of threads share them.

    If the depth is an argument of the kernel, they are a power of two, so that few kernels serve all depths.
    """
    rows = -(-max(space.depth, 1) // lines)
    return limits.power_of_two(rows) if space.reduces_outermost and not specialized else rows

"""Choice of the loops of rows on a GPU: threads, values kept on chip between passes, loads in flight.

The numbers of multiprocessors, threads, registers and bytes of shared memory are those of the device. Thresholds that
no model derives are rows of `fuser_lab.cost.crossovers`. Every choice gives a correct kernel, as long as a block fits
the device.
"""

from dataclasses import replace

from fuser_lab.cost.crossovers import crossover, crossover_ratio
from fuser_lab.cost.device import ACCESS_BYTES, THREAD_REGISTERS, THREAD_WORDS, WARP, WORD_BYTES, Device
from fuser_lab.schedule.gpu_limits import (
    ALL_THREADS,
    ELEMENTS,
    FEW_ROWS,
    IN_FLIGHT,
    LEAST_THREADS,
    MOST_THREADS,
    WAVE,
    power_of_two,
    shared_room,
)
from fuser_lab.schedule.state import Evict, LoopSchedule, NestKind, Space, eviction

SHORT_THREADS = crossover("gpu.short_rows.threads")
FEW_PARTS = crossover("gpu.rows.least_parts")
LONG_ROW = crossover("gpu.rows.long")
# Fewest steps of a lane over a short row, by bytes of an access, if lanes are idle: a lane then has several loads in
# flight. The second constant is for narrower accesses.
SHORT_STEPS = {
    16: crossover_ratio("gpu.short_rows.steps_of_16_bytes"), 8: crossover_ratio("gpu.short_rows.steps_of_8_bytes"),
}
SHORT_STEPS_OF_NARROW = crossover("gpu.short_rows.steps_of_narrow")
SHIFTED_STEPS = crossover("gpu.shifted_rows.steps")
LEAST_ACCESS = WORD_BYTES  # bytes up to which accesses of shifted rows are not made narrower
NEAR_BYTES = ACCESS_BYTES // 2  # bytes of an access of one lane that reads a whole row
# Numbers of steps over a row in registers whose length grows with the batch: few kernels serve all lengths.
COMMON_STEPS = (1, 2, 4, 8, 16, 24, 32)
LATER_BYTES = ACCESS_BYTES  # bytes per access of inputs of later passes, from the third pass on; twice as many before
LATER_ELEMENTS = crossover("gpu.rows.later_elements")
CONSTANT_WORDS = THREAD_WORDS // 2  # registers per thread up to which inputs of later passes are loaded with the row
SOFTMAX_PASSES = 3  # maximum, sum, results
CLUSTER_RESIDENT = crossover("gpu.clusters.resident")
PART_BYTES = crossover("gpu.clusters.part_bytes")
PART_THREADS = crossover("gpu.clusters.part_threads")
PART_RESIDENT = crossover("gpu.clusters.part_resident")
SMALL_PARTS = crossover("gpu.clusters.small_parts")
BUSY = crossover_ratio("gpu.clusters.busy")
CACHED = crossover("gpu.rows.l1_bytes")
BLOCK_BYTES = crossover("gpu.short_rows.block_bytes")
STAGED_BYTES = crossover("gpu.copied_rows.bytes")
DIVIDED_FROM = crossover("gpu.shifted_rows.divided_from")
COPIED_LANES = crossover("gpu.copied_rows.lanes")
COPIED_STEPS = crossover("gpu.copied_rows.steps")


def row_loops(space: Space) -> LoopSchedule:
    """Return the loops of a nest whose reduced axis is the fastest in memory; correct for any extents."""
    if space.shifted:
        loops = _shifted_rows(space)
        if loops.split == 1:
            reason = f"rows of {space.depth} begin anywhere in an access: their first and last accesses are partial"
            return replace(loops, reasons=(*loops.reasons, reason))
        # Blocks that share a row access single elements.
        space = replace(space, vector=1, shifted=False)
    return _row_loops(space)


def _shifted_rows(space: Space) -> LoopSchedule:
    """Return the loops of rows that begin anywhere in an access.

    The last two steps of a row have conditions for each element: accesses are so narrow that they are a small part.
    """
    width, item = space.vector, _item_bytes(space)
    while True:
        loops = _row_loops(replace(space, vector=width))
        steps = -(-space.groups(width) // min(loops.threads[0] * loops.cluster, MOST_THREADS))
        if space.passes == 1 or loops.split > 1 or steps >= SHIFTED_STEPS or width == 2 or width * item <= LEAST_ACCESS:
            return loops
        width //= 2


def _row_loops(space: Space) -> LoopSchedule:
    """Return the loops of rows that are read in accesses of ``space.vector`` elements.

    The first case that holds decides: rows so few that blocks must share them, rows that a warp processes, rows that
    are read once, long rows of an online softmax, of which nothing is kept, and rows that stay on chip.
    """
    width, depth = space.vector, max(space.depth, 1)
    groups = max(space.groups(width), 1)
    if space.passes == 1 and space.rows < FEW_ROWS * space.device.sms and groups >= MOST_THREADS:
        loops = _parts(space, groups)
        if loops.split >= FEW_PARTS:
            return loops
    if space.passes > 1 and FEW_ROWS * space.rows <= space.device.sms and depth * space.read_bytes >= LONG_ROW:
        loops = _long_rows(space)
        busy = space.rows * loops.cluster >= BUSY * space.device.sms
        return loops if loops.cluster > 1 and busy else _parts(space, groups)
    if depth <= WARP * _elements_of_lane(space) and space.rows > 1:
        return _short_rows(space)
    if space.passes == 1:
        few = max(2 // space.streams, 1)
        # A single block is as fast with some lanes idle, and many lengths of its row then share a kernel.
        least = min(max(-(-groups // few), WARP), MOST_THREADS)
        lanes = _lanes(groups, few) if space.rows > 1 else power_of_two(least)
        steps = -(-groups // lanes)
        unroll = min(steps, max(IN_FLIGHT // 2 // space.streams, 1))
        reason = f"{lanes} threads per row, with {unroll} steps of loads in flight: nothing is read again"
        return LoopSchedule(
            kind=NestKind.BLOCK_ROWS, threads=(lanes, 1), vector=width, unroll=unroll, evict=eviction(space),
            reasons=(reason,),
        )
    if space.online and space.passes == 2 and not space.stored_bytes and not _fits_registers(space, groups):
        return _streamed_rows(space, groups)
    space = _with_later_inputs(space)
    groups = max(space.groups(space.vector), 1)
    return _in_registers(space, groups) if _fits_registers(space, groups) else _long_rows(space)


def _elements_of_lane(space: Space) -> int:
    """Return how many elements of a row one lane can have in registers, with what passes read and keep of each."""
    nbytes = max(space.read_bytes + space.value_bytes, 1)
    return min(_elements_in_registers(space), (THREAD_REGISTERS - THREAD_WORDS) * WORD_BYTES // nbytes)


def _elements_in_registers(space: Space) -> int:
    """Return how many elements of a row stay in the registers of a thread: an element of Double takes two words."""
    item = space.read_bytes // space.streams or space.widest_sum  # a row may be made of elements at other positions
    return ELEMENTS * WORD_BYTES // max(item, WORD_BYTES)


def _short_rows(space: Space) -> LoopSchedule:
    """Return the loops of rows that a warp or part of one processes."""
    depth, item = max(space.depth, 1), _item_bytes(space)
    groups = max(space.groups(space.vector), 1)
    lanes = _lanes_of_short_row(space, groups, space.vector * item)
    if lanes == 1 < min(groups, space.vector) and space.vector * item > NEAR_BYTES:
        # Each lane would read a whole row, far from the accesses of the next lane.
        space, lanes = replace(space, vector=space.vector // 2), 2
    elif depth >= 4 * WARP and (later := _with_later_inputs(space)) is not space:
        # With one group per lane, half of the lanes have several loads in flight.
        space, lanes = later, lanes // 2 if lanes == groups else lanes
    groups = max(space.groups(space.vector), 1)
    steps = -(-groups // lanes)
    if space.reduces_outermost:
        steps = _common_steps(steps)
    together = _rows_of_block(lanes, depth * space.read_bytes + space.stored_bytes // space.rows)
    reasons = [f"{depth} elements fit {lanes} lanes, which need no barrier"]
    copied = rows_copied(space, lanes, together)
    staged = copied > 0
    if staged:
        together = copied
        reasons.append(
            f"sectors of some tensors have elements of {space.crossed} rows, so they are copied to shared memory"
            if space.crossed else
            "rows begin anywhere in an access, so they are copied to shared memory in whole accesses",
        )
    if together * lanes > LEAST_THREADS:
        reasons.append(f"{together} rows per block: with fewer, blocks would end faster than others start")
    return LoopSchedule(
        kind=NestKind.BLOCK_ROWS, threads=(lanes, together), vector=space.vector,
        unroll=_steps_together(space, steps, IN_FLIGHT), persistent=space.passes > 1, registers=steps,
        evict=eviction(space), reasons=tuple(reasons), staged=staged,
        # A lane with one access in flight waits for it: more threads hide its latency, so registers are limited.
        resident=(
            SHORT_THREADS // (lanes * together) if steps == 1 < space.passes
            else ALL_THREADS // (lanes * together) if space.shifted
            else MOST_THREADS // (lanes * together) if staged and space.crossed else 0
        ),
    )


def gains_from_copies(depth: int) -> bool:
    """Whether rows of a length that begin anywhere in an access are faster if they are copied through shared memory.

    Without copies, a short row is read element by element: the fewer lanes share it, the more rows does an access of a
    warp touch. A longer row is read in accesses of at least two elements, of which a lane's first and last have a
    condition for each element: the fewer steps a lane takes, the larger is their part.
    """
    if depth < DIVIDED_FROM:
        return depth < COPIED_LANES * SHORT_STEPS_OF_NARROW
    return -(-depth // (2 * WARP)) <= COPIED_STEPS


def fits_staged(space: Space, together: int) -> bool:
    """Whether a block can copy this many rows to shared memory, in whole accesses or whole sectors."""
    least, nbytes = space.crossed or space.packed, space.depth * space.crossed_bytes or space.packed_bytes
    return 0 < least <= together and together % least == 0 and together * nbytes <= STAGED_BYTES


def rows_copied(space: Space, lanes: int, together: int) -> int:
    """Return how many rows a block copies to shared memory, about as many as given; 0 if they are read in place.

    A warp that reads half of each sector, or more, is followed by a warp that finds the other half in the L1 cache.
    """
    least = space.crossed or space.packed
    if space.crossed and 2 * (WARP // lanes) >= space.crossed:
        return 0
    most = -(-together // max(least, 1)) * least
    choices = (most, least) if space.crossed else (most,)
    return next((rows for rows in choices if fits_staged(space, rows)), 0)


def _with_later_inputs(space: Space) -> Space:
    """Return a space with narrower accesses if later passes load much beside a row that stays in registers."""
    item = _item_bytes(space)
    most = LATER_BYTES if space.passes > 2 else 2 * LATER_BYTES
    wide = space.vector > 1 and space.vector * item > NEAR_BYTES
    if not _registers_are_scarce(space) or space.vector * space.varying_bytes <= most or not wide:
        return space
    return replace(space, vector=space.vector // 2)


def _item_bytes(space: Space) -> int:
    """Return the mean size of an element that the first pass reads."""
    return max(space.read_bytes // space.streams, 1)


def _registers_are_scarce(space: Space) -> bool:
    """Whether rows of several passes are so many that registers decide how many of them are processed at a time.

    Few rows wait for their loads instead, so all of these are in flight together.
    """
    return space.passes > 1 and space.rows * WARP > ALL_THREADS * space.device.sms


def _lanes_of_short_row(space: Space, groups: int, nbytes: int) -> int:
    """Return how many lanes share a row of some groups of ``nbytes``.

    One group per lane if none is idle; otherwise so few lanes that idle ones in the last step are a small part, and
    that each has several loads in flight. Lanes that read nothing together are as few as registers and the number of
    rows allow: each of them repeats what is computed once per row, and combines its results with the others.
    """
    if space.apart:
        lanes = power_of_two(-(-max(space.depth, 1) // max(_elements_of_lane(space), 1)))
        while lanes < min(groups, WARP) and space.rows * lanes < ALL_THREADS * space.device.sms:
            lanes *= 2
        return lanes
    if groups & (groups - 1) == 0 or (space.shifted and space.passes > 1):
        return power_of_two(min(WARP, groups))
    steps = SHORT_STEPS.get(min(nbytes, max(SHORT_STEPS)), SHORT_STEPS_OF_NARROW * (2 if space.passes == 1 else 1))
    lanes = WARP
    while lanes > 1 and lanes * steps > groups:
        lanes //= 2
    return lanes


def _steps_together(space: Space, steps: int, most: int) -> int:
    """Return how many steps of a row that stays in registers load inputs of later passes at the same time, if any."""
    elements = space.vector * space.varying_bytes // _item_bytes(space)
    if _registers_are_scarce(space) and elements and space.value_bytes <= space.input_bytes:
        most = min(max(LATER_ELEMENTS // elements, 1), most)
        return next(count for count in range(min(most, steps), 0, -1) if steps % count == 0)
    return min(steps, most)


def _steps_in_registers(space: Space) -> int:
    """Return the steps over a row that the registers of a thread keep."""
    # A second input doubles the loads in flight; values that are expensive to recompute are kept with the row.
    elements = _elements_in_registers(space)
    if space.streams > 1 or space.value_bytes > space.input_bytes:
        elements //= 2
    return max(elements // space.vector, 1)


def _common_steps(steps: int) -> int:
    """Return the least of the common numbers of steps that is enough; lanes are idle in the last ones."""
    return next((count for count in COMMON_STEPS if count >= steps), steps)


def common_plain_steps(steps: int) -> int:
    """Return the most of the common numbers of steps that is not more."""
    return max((count for count in COMMON_STEPS if count <= steps), default=0)


def _fits_registers(space: Space, groups: int) -> bool:
    fits = groups <= MOST_THREADS * _steps_in_registers(space)
    return fits and groups * space.vector <= MOST_THREADS * ELEMENTS // 2


def _long_rows(space: Space) -> LoopSchedule:
    """Return the loops of rows too long for the registers of one block; several blocks fit on a multiprocessor."""
    parts = power_of_two(-(-space.depth * max(space.input_bytes, 1) // PART_BYTES))
    # The blocks of a cluster meet after each pass: the more passes, the larger are the parts that are worth it.
    meets_rarely = space.online and space.passes <= SOFTMAX_PASSES
    if meets_rarely and not space.shifted and SMALL_PARTS <= parts <= space.device.largest_cluster:
        return _small_parts(space, parts)
    cluster = 1
    while cluster < space.device.max_cluster:
        loops = in_cluster(space, cluster)
        if not loops.shared or loops.resident >= CLUSTER_RESIDENT:
            break
        cluster *= 2
    return in_cluster(space, cluster)


def _small_parts(space: Space, cluster: int) -> LoopSchedule:
    """Return the loops of rows that a cluster shares, each block keeping a few KiB on chip.

    The blocks of a softmax wait for each other's results; with several small blocks, a multiprocessor loads in the
    meantime. Half of a part stays in registers, so that all of its loads are in flight at once: a softmax of 262,144
    elements runs at 0.98 of a copy, beside 0.94 with all steps in shared memory, and 0.72 with all in the registers of
    blocks of 512 threads.
    """
    part = replace(space, reduced=(-(-space.depth // cluster),))
    steps = -(-part.groups(space.vector) // PART_THREADS)
    registers = steps // 2
    keeps, nbytes = _shared_bytes(space)
    kib = steps * PART_THREADS * space.vector * nbytes >> 10
    reason = (
        f"{cluster} blocks of a cluster share each row, and each keeps {kib} KiB of it on chip: {registers} of "
        f"{steps} steps in registers, the others in shared memory"
    )
    return LoopSchedule(
        kind=NestKind.BLOCK_ROWS, threads=(PART_THREADS, 1), vector=space.vector, unroll=max(4 // space.streams, 1),
        persistent=True, registers=registers, shared=steps - registers, values=keeps, resident=PART_RESIDENT,
        cluster=cluster, evict=eviction(space), reasons=(reason,),
    )


def in_cluster(space: Space, cluster: int) -> LoopSchedule:
    """Return the loops of rows that a cluster shares: each of its blocks keeps a part of a row between passes."""
    part = replace(space, reduced=(-(-max(space.depth, 1) // cluster),))
    groups = max(part.groups(space.vector), 1)
    loops = _in_registers(part, groups) if _fits_registers(part, groups) else _in_shared(part, groups)
    if cluster == 1:
        return loops
    nbytes = space.depth * max(space.input_bytes, 1)
    reason = f"{cluster} blocks of a cluster share each row of {nbytes >> 10} KiB: while some load, others store"
    return replace(loops, cluster=cluster, blocks=0, reasons=(reason, *loops.reasons))


def _streamed_rows(space: Space, groups: int) -> LoopSchedule:
    """Return the loops of long rows that are reduced to a maximum and a sum of exponentials only: nothing is kept."""
    few = max(2 // space.streams, 1)
    lanes = _lanes(groups, few)
    unroll = min(-(-groups // lanes), max(IN_FLIGHT // 2 // space.streams, 1))
    reasons = (
        f"{lanes} threads per row, with {unroll} steps of loads in flight: nothing is read again",
        "maximum and sum of exponentials are computed in one pass",
    )
    return LoopSchedule(
        kind=NestKind.BLOCK_ROWS, threads=(lanes, 1),
        vector=space.vector, unroll=unroll, online=True, evict=eviction(space),
        reasons=reasons,
    )


def _rows_of_block(lanes: int, nbytes: int) -> int:
    """Return how many rows of ``nbytes`` a block processes: as few as keep the multiprocessors busy.

    Small blocks that end early make room for others, but every block takes time to start, however little it reads.
    """
    threads, nbytes = LEAST_THREADS, max(nbytes, 1)
    while threads < MOST_THREADS // 2 and threads // lanes * nbytes < BLOCK_BYTES:
        threads *= 2
    return max(threads // lanes, 1)


def _parts(space: Space, groups: int) -> LoopSchedule:
    threads, unroll = 256, max(IN_FLIGHT // space.streams, 1)
    while threads > WARP and threads * unroll * 2 > groups:
        threads //= 2
    most, split = WAVE * space.device.sms // max(space.rows, 1), groups // (threads * unroll)
    if space.reduces_outermost:
        # A power of two, or one and a half: one kernel for many lengths of rows.
        half = 1 << max(split.bit_length() - 2, 0)
        split = split // half * half
    split = max(1, min(most, split))
    launches = space.passes - space.moments
    adds = "a second phase adds up" if launches == 1 else f"each of {launches} passes is a launch that adds up"
    reasons = [f"{space.rows} rows give too few blocks: {split} blocks read each row, and {adds} their results"]
    if space.moments:
        reasons.append("sum and squared deviations from the mean are computed in one pass")
    return LoopSchedule(
        kind=NestKind.BLOCK_ROWS, threads=(threads, 1),
        vector=space.vector, unroll=unroll, split=split, online=space.moments,
        reasons=tuple(reasons),
    )


def _in_registers(space: Space, groups: int) -> LoopSchedule:
    if space.reduces_outermost:
        lanes = power_of_two(min(max(-(-groups // _steps_in_registers(space)), WARP), MOST_THREADS))
        steps = _common_steps(-(-groups // lanes))
    else:
        lanes = _lanes(groups, _steps_in_registers(space))
        steps = -(-groups // lanes)
    inputs = steps * space.vector * space.input_bytes // 4
    constants = steps * space.vector * space.constant_bytes // 4
    evict = eviction(space)
    # Values kept until the end of a row occupy registers and reduce the number of blocks, which matters if loads carry
    # a cache hint.
    early = constants > 0 and inputs + constants <= CONSTANT_WORDS and evict is not Evict.LAST
    reason = f"the row stays in registers: {steps * space.vector} elements for each of {lanes} threads"
    return LoopSchedule(
        kind=NestKind.BLOCK_ROWS, threads=(lanes, 1), vector=space.vector, unroll=_steps_together(space, steps, steps),
        persistent=True, registers=steps, constants=early, evict=evict,
        resident=0 if early else max(space.device.registers // (64 * lanes), 1),
        reasons=(reason, *(("values that all rows share are loaded with the row",) if early else ())),
    )


def _shared_bytes(space: Space) -> tuple[bool, int]:
    """Return whether values are kept beside inputs, and the bytes per element that are kept in shared memory.

    Values that take no more room than the inputs that they replace are not computed again by each pass.
    """
    return space.keeps_values, max(space.computed_bytes if space.keeps_values else space.input_bytes, 1)


def _in_shared(space: Space, groups: int) -> LoopSchedule:
    """Return the loops of rows too long for registers: as much of them as fits is kept in shared memory."""
    width, (keeps, size) = space.vector, _shared_bytes(space)
    # Three blocks share a multiprocessor if their rows fit; longer rows leave room for two, then for one.
    lanes, resident, registers = MOST_THREADS, 3, 0
    steps = -(-groups // lanes)
    device = space.device
    if steps * lanes * width * size > shared_room(device, 3):
        # The rest of the row stays in registers, four steps of 16 bytes per thread, beside what later passes load.
        later = space.varying_bytes if keeps else 0
        resident, registers = 2, max(64 // (width * (size + later)), 1)
        if (steps - registers) * lanes * width * size > shared_room(device, 2):
            lanes, resident = ALL_THREADS, 1
            steps = -(-groups // lanes)
    nbytes = row_room(device, resident)
    room = nbytes // (lanes * width * size)
    online = space.online and resident < 3  # with few blocks, each pass counts
    # Twice as many loads of single words are in flight: they bring few bytes each.
    unroll = max((IN_FLIGHT if width * _item_bytes(space) <= WORD_BYTES else IN_FLIGHT // 2) // space.streams, 1)
    registers = min(registers, steps)
    if space.reduces_outermost:
        steps = registers + -(-(steps - registers) // unroll) * unroll
    shared = min(steps - registers, room)
    again = steps - registers - shared
    # The rest is read again in rounds of several loads, which may read slightly past it.
    extra = min(-again % unroll, shared)
    shared, again = shared - extra, again + extra
    reasons = [
        f"{shared} of {steps} steps of {lanes} threads over a row stay in shared memory, {registers} in registers",
    ]
    if again:
        reasons.append(
            f"a block of the {device.name} has {nbytes >> 10} KiB for a row of {space.depth * size >> 10} KiB: {again} "
            "steps are read again, latest first, while they are in the L2 cache",
        )
    # For 8.0, ptxas runs out of registers for both the next row and the loads of this one, and spills.
    walks = resident == 1 and registers and space.rows > device.sms and device.cc >= (9, 0) and not space.shifted
    blocks = device.sms if walks else 0
    if blocks:
        reasons.append(f"{blocks} blocks iterate over the rows: the next row is loaded into registers while the last "
                       "is stored")
    if online:
        reasons.append("maximum and sum of exponentials are computed in one pass")
    return LoopSchedule(
        kind=NestKind.BLOCK_ROWS, threads=(lanes, 1), vector=width, unroll=unroll, persistent=True, registers=registers,
        shared=shared, values=keeps, resident=resident, online=online, blocks=blocks, evict=eviction(space),
        reasons=tuple(reasons),
    )


def row_room(device: Device, resident: int) -> int:
    """Return the bytes of shared memory that a block may use for rows if this many are to fit on a multiprocessor."""
    return max(min(shared_room(device, resident), shared_room(device, 1) - CACHED), 0)


def _lanes(groups: int, steps: int) -> int:
    """Return the threads for a row: enough for ``steps`` steps over it, as few as possible idle in the last."""
    first = min(max(-(-groups // steps), WARP), MOST_THREADS)
    first = -(-first // WARP) * WARP
    choices = range(first, min(2 * first, MOST_THREADS) + 1, WARP)
    return min(choices, key=lambda lanes: (-(-groups // lanes) * lanes - groups, lanes))

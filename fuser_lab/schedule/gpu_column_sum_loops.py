"""Choice of the loops of rows on a GPU that also accumulate column sums."""

from fuser_lab.cost.device import STATIC_SHARED, THREAD_WORDS, WARP
from fuser_lab.schedule.gpu_limits import ELEMENTS, MOST_THREADS, RESERVED, power_of_two, shared_room
from fuser_lab.schedule.gpu_row_loops import rows_copied
from fuser_lab.schedule.state import LoopSchedule, NestKind, Refused, Space, eviction

BACKWARD_WORDS = THREAD_WORDS  # registers per thread for column sums and the row that adds to them


def backward_loops(space: Space) -> LoopSchedule | Refused:
    """Return the loops of rows that also accumulate column sums."""
    if not space.inner_reduced:
        return Refused("rows are not contiguous in memory, so column sums read them again")
    sums, constant = space.column_sums, space.constant_bytes
    width = space.vector
    groups = -(-max(space.depth, 1) // width)
    elements = ELEMENTS if ELEMENTS * space.input_bytes // 4 <= BACKWARD_WORDS else ELEMENTS // 2
    # Lanes that a short row leaves idle process other rows.
    lanes = power_of_two(max(-(-groups // max(elements // width, 1)), min(groups, WARP)))
    # Values that are expensive to compute are kept with the row, by more threads if none of these are idle.
    value_bytes = sum(sums) + space.computed_bytes + constant
    wider = lanes
    while wider < MOST_THREADS and -(-groups // wider) * width * value_bytes // 4 > BACKWARD_WORDS:
        wider *= 2
    if space.computed_bytes and -(-groups // wider) * wider <= -(-groups // lanes) * lanes:
        lanes = wider
    together = max(WARP // lanes, 1)
    steps = -(-groups // lanes)
    per_thread = steps * width
    copied = _rows_copied(space, lanes, together, per_thread)
    together = copied or together
    shared = 0
    while shared < len(sums) and per_thread * (sum(sums[shared:]) + space.input_bytes) // 4 > BACKWARD_WORDS:
        shared += 1
    halved = per_thread * (sum(sums) + space.input_bytes + constant) // 8
    doubled = ahead = shared > 0 and not copied and halved <= BACKWARD_WORDS and 2 * lanes <= min(groups, MOST_THREADS)
    if doubled:
        lanes, steps, shared = 2 * lanes, -(-groups // (2 * lanes)), 0
        per_thread = steps * width
    threads = lanes * together
    resident, nbytes = max(MOST_THREADS // threads, 1), sum(sums[:shared]) * per_thread * threads
    while resident > 1 and nbytes > shared_room(space.device, resident):
        resident -= 1
    fits = per_thread * (sum(sums[shared:]) + space.input_bytes) // 4 <= BACKWARD_WORDS
    if lanes > MOST_THREADS or not fits or nbytes > shared_room(space.device, resident):
        return Refused(
            f"no block of the {space.device.name} has registers and shared memory for a row of {space.depth} "
            f"elements and {len(sums)} column sums, so the sums read the rows again",
        )
    keeps = per_thread * (sum(sums[shared:]) + space.input_bytes + constant) // 4 <= BACKWARD_WORDS
    computed = per_thread * (sum(sums[shared:]) + space.computed_bytes + constant * keeps) // 4
    saves = space.computed_bytes > 0 and computed <= BACKWARD_WORDS
    # Only loads of the next row hide the latency of this one in a single pass, or while few threads compute functions.
    row = space.computed_bytes if saves else space.input_bytes
    next_row = per_thread * (sum(sums[shared:]) + row + space.input_bytes + constant * keeps) // 4
    ahead = ahead or ((space.passes == 1 or saves) and next_row <= BACKWARD_WORDS)
    blocks = space.device.sms * resident
    reasons = [f"{blocks} blocks iterate over the rows, {per_thread} columns for each of {lanes} threads"]
    if copied:
        reasons.append(f"sectors of some tensors have elements of {copied} rows, so they are copied to shared memory")
    elif together > 1:
        reasons.append(f"{together} rows at a time share a warp")
    if shared:
        reasons.append(f"{shared} of {len(sums)} column sums are in shared memory: registers hold the row")
    elif doubled:
        reasons.append("twice the threads, so that registers hold all column sums and the next row")
    elif ahead:
        reasons.append("registers hold all column sums and the next row")
    if saves:
        reasons.append("values that are expensive to compute stay in registers")
    return LoopSchedule(
        kind=NestKind.BLOCK_ROWS_WITH_COLUMN_SUMS, threads=(lanes, together),
        blocks=blocks, vector=width, persistent=True, registers=steps,
        unroll=2 if ahead else 1, shared=shared, staged=copied > 0, values=saves, constants=keeps,
        resident=min(resident, 16), evict=eviction(space), reasons=tuple(reasons),
    )


def _rows_copied(space: Space, lanes: int, together: int, per_thread: int) -> int:
    """Return how many rows a block copies to shared memory at a time; 0 if it reads them in place.

    The lines of the block also combine their column sums there.
    """
    rows = rows_copied(space, lanes, together) if space.crossed and lanes <= WARP else 0
    elements = per_thread * lanes * rows
    room = STATIC_SHARED - rows * space.depth * space.crossed_bytes - elements * sum(space.column_sums)
    return rows if lanes * rows <= MOST_THREADS and room >= RESERVED else 0

"""Schedules of nvFuser's schedulers as transforms, as a starting point for manual schedules.

They follow csrc/scheduler/{pointwise,reduction,normalization_inner,transpose}.cpp in their simplest forms. Plans do not
use them: they generate kernels for all fusions (`fuser_lab.schedule.loops`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.definition.scheduling import RULES, HandSchedule
from fuser_lab.errors import ScheduleError, UnsupportedError
from fuser_lab.ir import Expr, Fusion, OpKind, TensorView
from fuser_lab.ir.alike_transforms import mapped_positions
from fuser_lab.ir.transform import GLOBAL, MemoryType, ParallelType

THREADS = 128
TILE, ROWS = 32, 8  # elements of a tile's side, and rows of it that threads move at a time
ACCESS_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HandParams:
    """Parameters of these schedules: elements per memory access, and threads per block."""

    vector: int = 1
    threads: int = THREADS


def params_for(fusion: Fusion) -> HandParams:
    """Return the widest access that fits the dtypes of inputs and outputs, and 128 threads."""
    outside = [tv for tv in (*fusion.tensor_inputs, *fusion.outputs) if tv.ndim]
    widest = max((tv.dtype.itemsize for tv in outside), default=ACCESS_BYTES)
    return HandParams(vector=max(ACCESS_BYTES // widest, 1))


def apply_schedule(hand: HandSchedule, scheduler: SchedulerType, params: HandParams | None = None) -> None:
    """Add the transforms of a scheduler to an empty schedule.

    Raises
    ------
    UnsupportedError
        If there are no transforms for this scheduler or fusion; the schedule is then unchanged.
    ScheduleError
        If the fusion already has transforms.
    """
    if hand.transforms:
        msg = f"schedule: the fusion already has {len(hand.transforms)} transforms; undo them first."
        raise ScheduleError(msg)
    if scheduler not in _SCHEDULES:
        known = ", ".join(s.value for s in _SCHEDULES)
        msg = f"schedule: {scheduler.value} is not supported as transforms; {known} are."
        raise UnsupportedError(msg)
    fusion = hand.scheduled.fusion
    try:
        _SCHEDULES[scheduler](hand, fusion, params or params_for(fusion))
    except ScheduleError as error:
        hand.undo(len(hand.transforms))
        msg = f"schedule: the transforms of {scheduler.value} do not fit this fusion: {error}"
        raise UnsupportedError(msg) from None


def _cached(hand: HandSchedule, fusion: Fusion) -> list[str]:
    """Copy inputs to registers, and outputs from there; return the copies of inputs."""
    copies = [
        hand.add_made("cache_after", tensor.name, cached_uses=()).name
        for tensor in fusion.tensor_inputs if tensor.ndim and hand.scheduled.consumers(tensor.name)
    ]
    for tensor in dict.fromkeys(fusion.outputs):
        if tensor in fusion.inputs:
            continue
        forked = bool(hand.scheduled.consumers(tensor.name))
        hand.add_made("cache_fork" if forked else "cache_before", tensor.name)
    return copies


def _merged(hand: HandSchedule, name: str, first: int, count: int) -> None:
    for _ in range(count - 1):
        hand.add("merge", name, axis_o=first, axis_i=first + 1)


def _split(hand: HandSchedule, name: str, axis: int, factor: int) -> None:
    hand.add("split", name, axis=axis, factor=factor, inner_split=True)


def _parallel(hand: HandSchedule, name: str, types: Mapping[int, ParallelType]) -> None:
    for axis, kind in types.items():
        hand.add("parallelize", name, axis=axis, ptype=kind)
    hand.add("parallelize_like", name, pos=-1, selected_tensors=(), selected_parallel_types=())


def _vectorized(hand: HandSchedule, names: list[str]) -> None:
    """Make the innermost loops of copies memory accesses, where that is legal."""
    for name in names:
        try:
            hand.add("parallelize", name, axis=-1, ptype=ParallelType.vectorize)
        except ScheduleError:
            continue


def _pointwise(hand: HandSchedule, fusion: Fusion, params: HandParams) -> None:
    """``[i, j, ...] -> [BIDx, TIDx, V]``, all tensors alike."""
    copies = _cached(hand, fusion)
    reference = _largest(hand)
    count = len(hand.scheduled.tensors[reference].loop)
    if not count:
        return
    _merged(hand, reference, 0, count)
    _split(hand, reference, 0, params.vector)
    _split(hand, reference, 0, params.threads)
    hand.add("transform_like", reference, selected_tensors=())
    _parallel(hand, reference, {0: ParallelType.grid_x, 1: ParallelType.block_x})
    _vectorized(hand, [*copies, *_written(hand)])
    hand.add("inline_most", "", selected_tensors=())


def _largest(hand: HandSchedule) -> str:
    """Return the output with the most axes, broadcast axes excluded."""
    return max(
        _written(hand), key=lambda n: sum(not a.is_broadcast for a in hand.scheduled.tensors[n].tensor.domain.axes),
    )


def _written(hand: HandSchedule) -> list[str]:
    scheduled = hand.scheduled
    return [n for n, t in scheduled.tensors.items() if t.memory is GLOBAL and not scheduled.is_input(n)]


def _reductions(fusion: Fusion) -> list[Expr]:
    found = [e for e in fusion.exprs if e.kind is OpKind.REDUCTION]
    if any(len(e.outputs) > 1 for e in found):
        msg = "Welford has three results."
        raise ScheduleError(msg)
    return found


def _grouped(hand: HandSchedule, name: str, reduced: tuple[int, ...]) -> bool:
    """Make ``[kept, reduced]`` of a tensor's loops; return whether there are kept ones."""
    count = len(hand.scheduled.tensors[name].loop)
    kept = [i for i in range(count) if i not in reduced]
    order = [*kept, *reduced]
    if order != list(range(count)):
        hand.add("reorder", name, order=tuple((old, new) for new, old in enumerate(order)))
    _merged(hand, name, len(kept), len(reduced))
    _merged(hand, name, 0, len(kept))
    return bool(kept)


def _reduced(tensor: TensorView) -> tuple[int, ...]:
    return tuple(i for i, axis in enumerate(tensor.domain.logical) if axis.is_reduction)


def _reduction(hand: HandSchedule, fusion: Fusion, params: HandParams) -> None:
    """``[i, r] -> [BIDx, r, TIDx]`` along the fastest axis, ``[BIDx, TIDx, r]`` along others."""
    _cached(hand, fusion)
    name = _reductions(hand.scheduled.fusion)[0].out.name
    logical = hand.scheduled.tensors[name].tensor.domain.logical
    inner = logical[-1].is_reduction
    kept = _grouped(hand, name, _reduced(hand.scheduled.tensors[name].tensor))
    if inner or not kept:
        _split(hand, name, int(kept), params.threads)
        reference = hand.add_made("rfactor", name, axes=(int(kept),)).name
        blocks = {0: ParallelType.grid_x} if kept else {}
        types = {**blocks, int(kept) + 1: ParallelType.block_x}
    else:
        _split(hand, name, 0, params.threads)
        reference, types = name, {0: ParallelType.grid_x, 1: ParallelType.block_x}
    hand.add("transform_like", reference, selected_tensors=())
    _parallel(hand, reference, types)
    hand.add("inline_most", "", selected_tensors=())


def _inner_persistent(hand: HandSchedule, fusion: Fusion, params: HandParams) -> None:
    """``[i, r] -> [BIDx, r, TIDx]``, rows kept by their threads between the passes."""
    reduced = _reduced(_reductions(fusion)[0].out)
    _cached(hand, fusion)
    reference = _largest(hand)
    kept = _grouped(hand, reference, reduced)
    _split(hand, reference, int(kept), params.threads)
    hand.add("transform_like", reference, selected_tensors=())
    blocks = {0: ParallelType.grid_x} if kept else {}
    _parallel(hand, reference, {**blocks, int(kept) + 1: ParallelType.block_x})
    hand.add("inline_most", "", selected_tensors=())


def _transpose(hand: HandSchedule, fusion: Fusion, params: HandParams) -> None:
    """``[i, j] -> [BIDx, BIDy, tile, TIDy, TIDx]``: tensors in the other memory order go through shared memory."""
    if _reductions(fusion):
        msg = "it has a reduction."
        raise ScheduleError(msg)
    copies = _cached(hand, fusion)
    reference = _largest(hand)
    count = len(hand.scheduled.tensors[reference].loop)
    fastest = {name: axis for name in copies if (axis := _fastest(hand, name, reference)) is not None}
    other = next((axis for axis in fastest.values() if axis != count - 1), None)
    if other is None:
        msg = "all inputs have the same fastest axis as the output."
        raise ScheduleError(msg)
    turned = [name for name, axis in fastest.items() if axis == other]
    for name in turned:
        hand.add("set_memory_type", name, memory_type=MemoryType.shared)
    # [rest, other / tile, last / tile, tile, tile], the rest merged.
    order = [axis for axis in range(count) if axis not in {other, count - 1}]
    hand.add("reorder", reference, order=tuple((old, new) for new, old in enumerate([*order, other, count - 1])))
    _merged(hand, reference, 0, len(order))
    first = int(bool(order))
    _split(hand, reference, first + 1, TILE)
    _split(hand, reference, first, TILE)
    hand.add("reorder", reference, order=((first + 1, first + 2), (first + 2, first + 1)))
    hand.add("transform_like", reference, selected_tensors=())
    rest = {0: ParallelType.grid_z} if order else {}
    _parallel(hand, reference, {**rest, first: ParallelType.grid_x, first + 1: ParallelType.grid_y})
    # Threads walk along the fastest axis of what each tensor is read from or written to.
    for name in turned:
        hand.add("reorder", name, order=((first + 2, first + 3), (first + 3, first + 2)))
        _tile(hand, name, first + 2)
    _tile(hand, reference, first + 2)
    others = tuple(n for n in hand.scheduled.tensors if n not in turned and not hand.scheduled.is_input(n))
    like = tuple(name for name in others if name != reference)
    hand.add("transform_like", reference, selected_tensors=like)
    hand.add("parallelize_like", reference, pos=-1, selected_tensors=like, selected_parallel_types=())
    hand.add("inline_most", "", selected_tensors=())


def _tile(hand: HandSchedule, name: str, axis: int) -> None:
    _split(hand, name, axis, ROWS)
    hand.add("parallelize", name, axis=axis + 1, ptype=ParallelType.block_y)
    hand.add("parallelize", name, axis=axis + 2, ptype=ParallelType.block_x)


def _fastest(hand: HandSchedule, name: str, reference: str) -> int | None:
    """Return the loop of a reference that runs along the fastest axis of a tensor in memory, before any split."""
    scheduled = hand.scheduled
    domain = scheduled.tensors[name].tensor.domain
    own = domain.allocation_order[-1]
    return mapped_positions(scheduled, reference, RULES).get(name, {}).get(own)


_SCHEDULES: Mapping[SchedulerType, Callable[[HandSchedule, Fusion, HandParams], None]] = {
    SchedulerType.POINTWISE: _pointwise,
    SchedulerType.REDUCTION: _reduction,
    SchedulerType.INNER_PERSISTENT: _inner_persistent,
    SchedulerType.TRANSPOSE: _transpose,
}

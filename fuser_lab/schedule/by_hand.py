"""Forms of loops as transforms: what a user would write by hand for a fusion, with some parameters.

They follow csrc/scheduler/{pointwise,reduction,normalization_inner,normalization_outer,transpose}.cpp in their simplest
forms. `fuser_lab.schedule.templates` writes the kernels of plans in these forms.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fuser_lab.cost.device import ACCESS_BYTES
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.definition.scheduling import RULES, HandSchedule
from fuser_lab.errors import ScheduleError, UnsupportedError
from fuser_lab.ir import Expr, Fusion, OpKind, TensorView
from fuser_lab.ir.alike_transforms import mapped_positions
from fuser_lab.ir.transform import GLOBAL, MemoryType, ParallelType
from fuser_lab.schedule.state import NestKind

THREADS = 128  # threads per block of a schedule by hand, as of the automatic kernels of elements
TILE, ROWS = 32, 8  # elements per side of a tile, and rows of it that the threads move at a time
_GRID = (ParallelType.grid_x, ParallelType.grid_y, ParallelType.grid_z)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandParams:
    """Parameters of these schedules.

    ``vector`` is the number of elements of a memory access; ``threads`` and ``rows`` are the threads of a block in x
    and y; ``unroll`` is the number of accesses of a thread before the next index is computed; ``parts`` is the number
    of blocks that share a reduction. ``full`` writes splits by 1 as well, so that every number can be changed.
    """

    vector: int = 1
    threads: int = THREADS
    rows: int = 1
    unroll: int = 1
    parts: int = 1
    full: bool = False


class NumberedSchedule(HandSchedule):
    """A schedule that records which parameter each split factor is, by the index of the transform."""

    def __init__(self, fusion: Fusion, taken: Callable[[], Sequence[str]] = tuple) -> None:
        super().__init__(lambda: fusion, taken=taken)
        self.parameters: dict[int, str] = {}


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
        raise ScheduleError(f"schedule: the fusion already has {len(hand.transforms)} transforms; undo them first.")
    fusion = hand.scheduled.fusion
    refused = ""
    for form in forms_of(scheduler):
        try:
            form(hand, fusion, params or params_for(fusion))
        except ScheduleError as error:
            hand.undo(len(hand.transforms))
            refused = refused or str(error)
        else:
            return
    raise UnsupportedError(f"schedule: the transforms of {scheduler.value} do not fit this fusion: {refused}")


def forms_of(scheduler: SchedulerType) -> "tuple[LoopForm, ...]":
    """Return the forms of a scheduler's schedules, the preferred one first.

    Raises
    ------
    UnsupportedError
        If there are none; the message says what transforms cannot express.
    """
    if scheduler not in _FORMS:
        supported = ", ".join(s.value for s in _FORMS)
        why = _LACKING.get(scheduler, "no transforms express its kernels")
        msg = f"schedule: {scheduler.value} cannot be written as transforms: {why}. Supported schedulers: {supported}."
        raise UnsupportedError(msg)
    return _FORMS[scheduler]


def _cache(hand: HandSchedule, fusion: Fusion) -> list[str]:
    """Cache inputs and outputs in registers; return the copies of inputs."""
    copies = [
        hand.add_made("cache_after", tensor.name, cached_uses=()).name
        for tensor in fusion.tensor_inputs if tensor.ndim and _is_read_in_place(hand, tensor)
    ]
    for tensor in dict.fromkeys(fusion.outputs):
        if tensor in fusion.inputs:
            continue
        forked = bool(hand.scheduled.consumers(tensor.name))
        hand.add_made("cache_fork" if forked else "cache_before", tensor.name)
    return copies


def _is_read_in_place(hand: HandSchedule, tensor: TensorView) -> bool:
    """Whether every reader of a tensor reads it at the position it computes, so that a copy has the reader's loops."""
    readers = hand.scheduled.consumers(tensor.name)
    return bool(readers) and all(expr.kind not in _ELSEWHERE for expr in readers)


def _merge(hand: HandSchedule, name: str, first: int, count: int) -> None:
    for _ in range(count - 1):
        hand.add("merge", name, axis_o=first, axis_i=first + 1)


def _split(
    hand: HandSchedule, name: str, axis: int, factor: int, parameter: str = "", *, inner_split: bool = True,
) -> None:
    if isinstance(hand, NumberedSchedule) and parameter:
        hand.parameters[len(hand.transforms)] = parameter
    hand.add("split", name, axis=axis, factor=factor, inner_split=inner_split)


def _parallel(hand: HandSchedule, name: str, types: Mapping[int, ParallelType]) -> None:
    for axis in sorted(types):
        hand.add("parallelize", name, axis=axis, ptype=types[axis])
    hand.add("parallelize_like", name, pos=-1, selected_tensors=(), selected_parallel_types=())


def _vectorize(hand: HandSchedule, reference: str, names: Sequence[str]) -> None:
    """Vectorize the innermost loops of copies that are mapped to the reference's innermost loop, if legal.

    Results of whole rows have a broadcast axis in its place, which has nothing to vectorize.
    """
    matched = mapped_positions(hand.scheduled, reference, RULES)
    innermost = len(hand.scheduled.tensors[reference].loop) - 1
    for name in names:
        if any(axis.is_broadcast for axis in hand.scheduled.tensors[name].tensor.domain.axes[-1:]):
            continue
        if matched.get(name, {}).get(len(hand.scheduled.tensors[name].loop) - 1) != innermost:
            continue
        try:
            hand.add("parallelize", name, axis=-1, ptype=ParallelType.vectorize)
        except ScheduleError:
            continue


def _finish(hand: HandSchedule) -> None:
    hand.add("inline_most", "", selected_tensors=())


def _arrange(hand: HandSchedule, name: str, positions: Sequence[Sequence[int]]) -> list[int]:
    """Reorder a tensor's loops into sections and merge each section; return the number of loops left in each."""
    order = [position for section in positions for position in section]
    if order != list(range(len(order))):
        hand.add("reorder", name, order=tuple((old, new) for new, old in enumerate(order)))
    counts: list[int] = []
    for section in positions:
        _merge(hand, name, sum(counts), len(section))
        counts.append(int(bool(section)))
    return counts


def _blocks(count: int) -> dict[int, ParallelType]:
    """Return the grid dimensions of the outermost loops, innermost first from x; further loops are serial."""
    return {count - 1 - number: kind for number, kind in enumerate(_GRID[:count])}


def _pointwise(hand: HandSchedule, fusion: Fusion, params: HandParams) -> None:
    """``[i, j, ...] -> [unroll, BIDx, TIDx, V]``, all tensors alike."""
    _without_reductions(fusion)
    copies = _cache(hand, fusion)
    reference = _largest(hand)
    count = len(hand.scheduled.tensors[reference].loop)
    if not count:
        return
    (last,) = (n - 1 for n in _arrange(hand, reference, [range(count)]))
    _split(hand, reference, last, params.vector, "vector")
    _split(hand, reference, last, params.threads * params.rows, "threads")
    types = {**_blocks(last + 1), last + 1: ParallelType.block_x}
    if params.unroll > 1 or params.full:
        # Successive accesses of a thread are a whole grid separate.
        _split(hand, reference, last, params.unroll, "unroll", inner_split=False)
        outer = {place: kind for place, kind in types.items() if place < last}
        types = {
            **outer, last: ParallelType.unroll, last + 1: ParallelType.grid_x, last + 2: ParallelType.block_x,
        }
    hand.add("transform_like", reference, selected_tensors=())
    _parallel(hand, reference, types)
    _vectorize(hand, reference, [*copies, *_output_names(hand)])
    _finish(hand)


def _largest(hand: HandSchedule) -> str:
    """Return the output with the most axes, broadcast axes excluded."""
    return max(
        _output_names(hand),
        key=lambda n: sum(not a.is_broadcast for a in hand.scheduled.tensors[n].tensor.domain.axes),
    )


def _output_names(hand: HandSchedule) -> list[str]:
    scheduled = hand.scheduled
    return [n for n, t in scheduled.tensors.items() if t.memory is GLOBAL and not scheduled.is_input(n)]


def _reductions(fusion: Fusion) -> list[Expr]:
    reductions = [e for e in fusion.exprs if e.kind is OpKind.REDUCTION]
    if not reductions:
        raise ScheduleError("it has no reduction.")
    if any(len(e.outputs) > 1 for e in reductions):
        raise ScheduleError("Welford has three results.")
    return reductions


def _without_reductions(fusion: Fusion) -> None:
    if any(expr.kind is OpKind.REDUCTION for expr in fusion.exprs):
        raise ScheduleError("it has a reduction.")


def _reduced_axes(tensor: TensorView) -> tuple[int, ...]:
    return tuple(i for i, axis in enumerate(tensor.domain.logical) if axis.is_reduction)


def _sections(hand: HandSchedule) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Return a reference that has the axes of the reductions, with its kept and its reduced loops.

    The reference is an output that has all axes if there is one, otherwise the first reduction.
    """
    reductions = _reductions(hand.scheduled.fusion)
    name = reductions[0].out.name
    logical = hand.scheduled.tensors[name].tensor.domain.logical
    largest = _largest(hand)
    matched = mapped_positions(hand.scheduled, largest, RULES).get(name, {})
    reduced_axes = [i for i, axis in enumerate(logical) if axis.is_reduction]
    if largest != name and set(reduced_axes) <= matched.keys():
        # A reshape may split or merge kept axes on the way; the loops of its result then also serve the other tensors.
        reduced = tuple(sorted(matched[i] for i in reduced_axes))
        count = len(hand.scheduled.tensors[largest].loop)
        return largest, tuple(i for i in range(count) if i not in reduced), reduced
    reduced = _reduced_axes(hand.scheduled.tensors[name].tensor)
    return name, tuple(i for i in range(len(logical)) if i not in reduced), reduced


def _is_inner(fusion: Fusion) -> bool:
    """Whether the fastest axis of the operand is reduced."""
    logical = [axis for axis in _reductions(fusion)[0].out.domain.logical if not axis.is_broadcast]
    return bool(logical) and logical[-1].is_reduction


def _rows(hand: HandSchedule, fusion: Fusion, params: HandParams) -> None:
    """``[i, r] -> [BIDx, TIDy, r, unroll, TIDx, V]``: the threads of a row share its reductions and keep the row.

    If several blocks share a row, ``r`` is divided among them, ``[r, BIDy]``, and a second phase combines their
    results.
    """
    copies = _cache(hand, fusion)
    reference, kept_loops, reduced = _sections(hand)
    # A single reduction whose result is not needed along with its operand: each thread first reduces its own elements.
    alone = len(_reductions(fusion)) == 1 and bool(_reduced_axes(hand.scheduled.tensors[reference].tensor))
    outer, inner = _arrange(hand, reference, [kept_loops, reduced])
    last = outer + inner - 1
    _split(hand, reference, last, params.vector, "vector")
    _split(hand, reference, last, params.threads, "threads")
    types = {last + 1: ParallelType.block_x}
    if params.unroll > 1 or params.full:
        _split(hand, reference, last, params.unroll, "unroll")
        types = {last + 1: ParallelType.unroll, last + 2: ParallelType.block_x}
    if params.parts > 1:
        _split(hand, reference, last, params.parts, "split")
        types = {last + 1: ParallelType.grid_y, **_later(types, last + 1)}
    shift = int(bool(outer) and (params.rows > 1 or params.full))
    if shift:
        _split(hand, reference, outer - 1, params.rows, "rows")
        types = {outer: ParallelType.block_y, **_later(types, outer)}
    types |= _blocks(outer)
    if alone:
        reduced_loops = range(outer + shift, len(hand.scheduled.tensors[reference].loop))
        kept_for_others = {ParallelType.block_x, ParallelType.grid_y}
        thread_loops = tuple(place for place in reduced_loops if types.get(place) not in kept_for_others)
        reference = hand.add_made("rfactor", reference, axes=thread_loops).name
    hand.add("transform_like", reference, selected_tensors=())
    _parallel(hand, reference, types)
    _vectorize(hand, reference, [*copies, *_output_names(hand)])
    _finish(hand)


def _later(types: Mapping[int, ParallelType], first: int) -> dict[int, ParallelType]:
    """Return parallel types after a loop was inserted in front of the loop at position ``first``."""
    return {place + 1 if place >= first else place: kind for place, kind in types.items()}


def _columns(hand: HandSchedule, fusion: Fusion, params: HandParams) -> None:
    """``[i, r] -> [BIDx, TIDx, r, unroll, TIDy, V]``: threads in y share a column."""
    copies = _cache(hand, fusion)
    reference, kept_loops, reduced = _sections(hand)
    outer, inner = _arrange(hand, reference, [kept_loops, reduced])
    if not outer:
        raise ScheduleError("all axes are reduced.")
    last = outer + inner - 1
    types: dict[int, ParallelType] = {}
    if params.rows > 1 or params.full:
        _split(hand, reference, last, params.rows, "rows")
        types = {last + 1: ParallelType.block_y}
    if params.full:
        _split(hand, reference, last, params.unroll, "unroll")
        types = {last + 1: ParallelType.unroll, **_later(types, last + 1)}
    if params.parts > 1:
        _split(hand, reference, last, params.parts, "split")
        types = {last + 1: ParallelType.grid_y, **_later(types, last + 1)}
    if params.full:
        _split(hand, reference, outer - 1, params.vector, "vector")
        types = _later(types, outer)
    _split(hand, reference, outer - 1, params.threads, "threads")
    types = {outer: ParallelType.block_x, **_later(types, outer), **_blocks(outer)}
    if params.full:
        # The elements of a vector form the innermost loop.
        count = len(hand.scheduled.tensors[reference].loop)
        order = [place for place in range(count) if place != outer + 1] + [outer + 1]
        hand.add("reorder", reference, order=tuple((old, new) for new, old in enumerate(order) if old != new))
        types = {place - 1 if place > outer + 1 else place: kind for place, kind in types.items()}
    if params.parts > 1:
        loops = hand.scheduled.tensors[reference].loop
        shared = {ParallelType.block_y, ParallelType.grid_y}
        thread_loops = tuple(n for n, axis in enumerate(loops) if axis.is_reduction and types.get(n) not in shared)
        reference = hand.add_made("rfactor", reference, axes=thread_loops).name
    hand.add("transform_like", reference, selected_tensors=())
    _parallel(hand, reference, types)
    if params.full:
        _vectorize(hand, reference, [*copies, *_output_names(hand)])
    _finish(hand)


def _reduction(hand: HandSchedule, fusion: Fusion, params: HandParams) -> None:
    """Rows if the fastest axis is reduced, columns if it is kept."""
    whole = all(axis.is_reduction or axis.is_broadcast for axis in _reductions(fusion)[0].out.domain.logical)
    (_rows if whole or _is_inner(fusion) else _columns)(hand, fusion, params)
def _transpose(hand: HandSchedule, fusion: Fusion, params: HandParams) -> None:
    """``[i, j] -> [BIDx, BIDy, tile, TIDy, TIDx]``: tensors in the other memory order go through shared memory."""
    _without_reductions(fusion)
    copies = _cache(hand, fusion)
    reference = _largest(hand)
    count = len(hand.scheduled.tensors[reference].loop)
    fastest = {name: axis for name in copies if (axis := _fastest(hand, name, reference)) is not None}
    other = next((axis for axis in fastest.values() if axis != count - 1), None)
    if other is None:
        raise ScheduleError("all inputs have the same fastest axis as the output.")
    transposed = [name for name, axis in fastest.items() if axis == other]
    for name in transposed:
        hand.add("set_memory_type", name, memory_type=MemoryType.shared)
    # [rest, other / tile, last / tile, tile, tile], the rest merged.
    order = [axis for axis in range(count) if axis not in {other, count - 1}]
    hand.add("reorder", reference, order=tuple((old, new) for new, old in enumerate([*order, other, count - 1])))
    _merge(hand, reference, 0, len(order))
    first = int(bool(order))
    _split(hand, reference, first + 1, TILE)
    _split(hand, reference, first, TILE)
    hand.add("reorder", reference, order=((first + 1, first + 2), (first + 2, first + 1)))
    hand.add("transform_like", reference, selected_tensors=())
    rest = {0: ParallelType.grid_z} if order else {}
    _parallel(hand, reference, {**rest, first: ParallelType.grid_x, first + 1: ParallelType.grid_y})
    # Threads walk along the fastest axis of the memory that each tensor is read from or written to.
    for name in transposed:
        hand.add("reorder", name, order=((first + 2, first + 3), (first + 3, first + 2)))
        _tile(hand, name, first + 2)
    _tile(hand, reference, first + 2)
    others = tuple(n for n in hand.scheduled.tensors if n not in transposed and not hand.scheduled.is_input(n))
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
    fastest = domain.allocation_order[-1]
    return mapped_positions(scheduled, reference, RULES).get(name, {}).get(fastest)


LoopForm = Callable[[HandSchedule, Fusion, HandParams], None]

# Ops that read their operand at other positions than the position of their result.
_ELSEWHERE = frozenset({OpKind.RESIZE, OpKind.INDEXING})
_FORMS: Mapping[SchedulerType, tuple[LoopForm, ...]] = {
    SchedulerType.POINTWISE: (_pointwise,),
    SchedulerType.REDUCTION: (_reduction,),
    SchedulerType.INNER_PERSISTENT: (_rows,),
    SchedulerType.OUTER_PERSISTENT: (_columns,),
    SchedulerType.TRANSPOSE: (_transpose, _pointwise),
    SchedulerType.RESIZE: (_pointwise,),
}
FORMS_OF_KINDS: Mapping[NestKind, LoopForm] = {
    NestKind.BLOCK_ELEMENTS: _pointwise, NestKind.BLOCK_ROWS: _rows, NestKind.BLOCK_COLUMNS: _columns,
    NestKind.BLOCK_KEPT_COLUMNS: _columns,
}
"""The forms in which the kernels of plans are written as loops, by kind of nest."""
_LACKING: Mapping[SchedulerType, str] = {
    SchedulerType.INNER_OUTER_PERSISTENT: "column sums are combined across blocks, and no transform expresses that",
    SchedulerType.MATMUL: "tensor cores are not used; the array library evaluates it",
    SchedulerType.EXPR_EVAL: "the array library evaluates it",
    SchedulerType.NO_OP: "nothing is computed",
    SchedulerType.GREEDY: "no transform carries values along an axis, and sorts have no rule for a single element",
}

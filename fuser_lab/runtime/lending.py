"""Tensors that are other shapes of an intermediate: they lie in its memory, or it lies in theirs, and nothing runs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fuser_lab.codegen.layout import layout_of
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.ir import Fusion, TensorView

_SAME_ORDER = frozenset({"set", "segment_set", "broadcast", "squeeze", "reshape"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """A result that lends its memory to the intermediate that it is a view of, and the segment that need not run."""

    segment: int
    result: TensorView
    intermediate: TensorView


def loans_of(
    segments: Sequence[tuple[Fusion, SchedulerType | None]], results: Collection[TensorView], taken: Collection[str],
) -> tuple[Loan, ...]:
    """Return the loans of a plan; nvFuser allocates no memory for such results either (MarkAliasesPrepare).

    Parameters
    ----------
    segments
        Segment fusions with their schedulers, in run order.
    results
        Outputs that have memory of their own.
    taken
        Names of inputs and outputs of the plan: none of them is an intermediate.
    """
    found: list[Loan] = []
    lent: set[str] = set()
    own = {tv.name: tv for tv in results}
    for number, (segment, scheduler) in enumerate(segments):
        if scheduler is not SchedulerType.EXPR_EVAL or len(segment.outputs) != 1 or len(segment.tensor_inputs) != 1:
            continue
        (source,), (result,) = segment.tensor_inputs, segment.outputs
        if source.name in taken or source.name in lent or result.name not in own or not _same_order(segment):
            continue
        lent.add(source.name)
        found.append(Loan(segment=number, result=own[result.name], intermediate=source))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """An intermediate that lies in the memory of another one, and the segment that need not run."""

    segment: int
    name: str
    owner: str


def shares_of(
    segments: Sequence[tuple[Fusion, SchedulerType | None]], taken: Collection[str],
) -> tuple[Share, ...]:
    """Return the intermediates that are other shapes of an intermediate; owners are owned by none.

    Parameters
    ----------
    segments
        Segment fusions with their schedulers, in run order.
    taken
        Names of tensors that lie in the memory of inputs and results.
    """
    found: dict[str, Share] = {}
    for number, (segment, scheduler) in enumerate(segments):
        if scheduler is not SchedulerType.EXPR_EVAL or len(segment.outputs) != 1 or len(segment.tensor_inputs) != 1:
            continue
        (source,), (result,) = segment.tensor_inputs, segment.outputs
        if source.name in taken or result.name in taken or not _same_order(segment):
            continue
        owner = found[source.name].owner if source.name in found else source.name
        found[result.name] = Share(segment=number, name=result.name, owner=owner)
    return tuple(found.values())


def _same_order(segment: Fusion) -> bool:
    """Whether each tensor of a segment has the same elements in the same order of memory."""
    results = [v for expr in segment.exprs for v in expr.outputs if isinstance(v, TensorView)]
    tensors = [*segment.tensor_inputs, *results]
    return (
        all(expr.op.name in _SAME_ORDER for expr in segment.exprs)
        and len({tv.dtype for tv in tensors}) == 1
        and all(_is_plain(tv) for tv in tensors)
    )


def _is_plain(tensor: TensorView) -> bool:
    """Whether a tensor is dense in row-major order, without elements that are stored once for several places."""
    order = tensor.domain.allocation_order
    dense = tuple(order) == tuple(range(len(order)))
    return dense and layout_of(tensor).size == tensor.numel

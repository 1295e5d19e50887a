"""Tensors that share the memory of another one, as reshapes or views of it: no kernel runs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from fuser_lab.analysis.aliasing import Strides, seen_at
from fuser_lab.codegen.kernel_ir import Layout, dense_strides, layout_of
from fuser_lab.codegen.pipeline import evaluated_because
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.ir import Expr, Fusion, TensorView, Val


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultAlias:
    """A result that is a view of an intermediate, which is stored in the result's memory; its segment need not run."""

    segment: int
    result: TensorView
    intermediate: TensorView


def result_aliases(
    segments: Sequence[tuple[Fusion, SchedulerType | None]], results: Collection[TensorView], taken: Collection[str],
) -> tuple[ResultAlias, ...]:
    """Return the results of a plan that are views of intermediates; nvFuser does the same (MarkAliasesPrepare).

    Parameters
    ----------
    segments
        Segment fusions with their schedulers, in run order.
    results
        Outputs with separate memory.
    taken
        Names of inputs and outputs of the plan, which are not intermediates.
    """
    aliases: list[ResultAlias] = []
    borrowed: set[str] = set()
    result_of = {tv.name: tv for tv in results}
    for number, (segment, scheduler) in enumerate(segments):
        pairs = _same_memory(segment) if scheduler is SchedulerType.EXPR_EVAL else ()
        sources = {source.name for _, source in pairs}
        if len(sources) < len(pairs) or sources & (borrowed | set(taken)):
            continue
        if all(result.name in result_of for result, _ in pairs):
            borrowed |= sources
            aliases += [
                ResultAlias(segment=number, result=result_of[r.name], intermediate=source) for r, source in pairs
            ]
    return tuple(aliases)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntermediateAlias:
    """An intermediate that is stored in the memory of another one, and the segment that need not run."""

    segment: int
    name: str
    owner: str


def intermediate_aliases(
    segments: Sequence[tuple[Fusion, SchedulerType | None]], taken: Collection[str],
) -> tuple[IntermediateAlias, ...]:
    """Return the intermediates that only reshape another one; owners have storage.

    Parameters
    ----------
    segments
        Segment fusions with their schedulers, in run order.
    taken
        Names of tensors that are stored in the memory of inputs and results.
    """
    aliases: dict[str, IntermediateAlias] = {}
    for number, (segment, scheduler) in enumerate(segments):
        pairs = _same_memory(segment) if scheduler is SchedulerType.EXPR_EVAL else ()
        if any(tv.name in taken for pair in pairs for tv in pair):
            continue
        for result, source in pairs:
            owner = aliases[source.name].owner if source.name in aliases else source.name
            aliases[result.name] = IntermediateAlias(segment=number, name=result.name, owner=owner)
    return tuple(aliases.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredView:
    """An intermediate that kernels read in the memory of another tensor, with its own layout."""

    segment: int
    name: str
    base: str
    exprs: tuple[Expr, ...]
    layout: Layout


def stored_views(
    segments: Sequence[tuple[Fusion, SchedulerType | None]], layouts: Mapping[str, Layout], taken: Collection[str],
) -> tuple[StoredView, ...]:
    """Return the intermediates that are views of stored tensors and are computed by segments that need not run.

    Segments whose tensors are not only read by kernels are excluded, because the array library does not take layouts.

    Parameters
    ----------
    segments
        Segment fusions with their schedulers, in run order.
    layouts
        Layouts of the tensors that have memory, by name.
    taken
        Names of tensors with separate memory: inputs and results, and tensors in the memory of another one.
    """
    evaluated = {
        tv.name for segment, scheduler in segments if evaluated_because(segment, scheduler)
        for tv in segment.tensor_inputs
    }
    views: dict[str, StoredView] = {}
    for number, (segment, scheduler) in enumerate(segments):
        if scheduler is not SchedulerType.EXPR_EVAL or any(len(expr.inputs) != 1 for expr in segment.exprs):
            continue
        segment_views: dict[str, StoredView | None] = {}
        for expr in segment.exprs:
            source = expr.tensor_inputs[0].name
            before = segment_views[source] if source in segment_views else views.get(source)
            base = before.base if before else source if source in layouts else None
            layout = before.layout if before else layouts.get(source)
            place = None if layout is None else seen_at(expr, layout.strides, layout.offset)
            segment_views[expr.name] = None if base is None or layout is None or place is None else StoredView(
                segment=number, name=expr.name, base=base, exprs=(*(before.exprs if before else ()), expr),
                layout=replace(layout, strides=place[0], offset=place[1]),
            )
        names = {tv.name for tv in segment.outputs}
        made = [view for name in names if (view := segment_views.get(name)) is not None]
        if len(made) == len(names) and names.isdisjoint(evaluated) and names.isdisjoint(taken):
            views.update((view.name, view) for view in made)
    return tuple(views.values())


def _same_memory(segment: Fusion) -> tuple[tuple[TensorView, TensorView], ...]:
    """Return each result of a segment with the operand that has the same elements in the same memory order.

    Empty unless that holds for every result, because the segment then has to run.
    """
    seen: dict[Val, tuple[TensorView, Strides]] = {tv: (tv, dense_strides(tv)) for tv in segment.tensor_inputs}
    for expr in segment.exprs:
        if len(expr.inputs) != 1 or len(expr.outputs) != 1 or expr.inputs[0] not in seen:
            return ()
        source, strides = seen[expr.inputs[0]]
        # A requested layout moves nothing if elements already have it: the strides of the result decide.
        place = (strides, 0) if expr.op.name == "stride_order" else seen_at(expr, strides, 0)
        if place is None or place[1] or expr.out.numel != source.numel:
            return ()
        seen[expr.out] = source, place[0]
    pairs = [(result, *seen[result]) for result in segment.outputs]
    if not all(_lies_as(result, source, strides) for result, source, strides in pairs):
        return ()
    return tuple((result, source) for result, source, _ in pairs)


def _lies_as(result: TensorView, source: TensorView, strides: Strides) -> bool:
    axes = zip(result.shape, strides, dense_strides(result), strict=True)
    stored = all(layout_of(tv).size == tv.numel for tv in (source, result))
    return stored and source.dtype is result.dtype and all(n == 1 or a == b for n, a, b in axes)

"""The lowering of a segment with its chosen loops to Kernel IR, for every target."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fuser_lab.codegen.accurate import accurate
from fuser_lab.codegen.cpu_backward import CpuBackward
from fuser_lab.codegen.cpu_loops import CpuNest
from fuser_lab.codegen.cpu_scans import CpuScans
from fuser_lab.codegen.decompose import decompose
from fuser_lab.codegen.gpu_backward import BackwardNest, backward_of, rows_nest, totals
from fuser_lab.codegen.gpu_loops import GpuNest
from fuser_lab.codegen.gpu_scans import GpuScans
from fuser_lab.codegen.kernel_ir import ALIGNED, Buffer, Kernel, Phase, Role
from fuser_lab.codegen.layout import Layout, layout_of
from fuser_lab.codegen.nest_lowering import NestLowering
from fuser_lab.codegen.nests import Nest, fastest_is_reduced, nests_of
from fuser_lab.codegen.online import online_pair
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.codegen.sums_of_rows import with_sums_of_rows
from fuser_lab.codegen.transposed_reads import with_transposed_reads
from fuser_lab.codegen.values import call_text, level_of
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.dtypes import DataType
from fuser_lab.errors import CodegenError
from fuser_lab.ir import Expr, Fusion, OpKind, Scalar, TensorView, Val
from fuser_lab.ir.term import Var
from fuser_lab.schedule.parameters import Chooser
from fuser_lab.schedule.state import Style
from fuser_lab.targets import target_of


class MovesMore(Exception):  # noqa: N818 - no error: the answer to a question
    """The kernel moves at least ``moved`` bytes, which is more than the limit."""

    def __init__(self, moved: int) -> None:
        super().__init__(moved)
        self.moved = moved


def write(fusion: Fusion, request: KernelRequest, chooser: Chooser) -> Kernel:
    """Return the Kernel IR of a segment; each loop nest is one phase, or two if reductions are cut into parts.

    ``fusion`` has the segment's ops as kernels compute them, and the chooser has the parameters set by hand, proposed
    and kept.

    Raises
    ------
    MovesMore
        If the phases move more than the request allows.
    ScheduleError
        If parameters set by hand are illegal.
    CodegenError
        If no scheduler accepted the segment, or no nest of loops can compute it.
    """
    scheduler = request.scheduler
    if scheduler is None:
        msg = "a segment that no scheduler accepts has no kernel."
        raise CodegenError(msg)
    inputs = fusion.tensor_inputs
    computed = tuple(tv for tv in dict.fromkeys(fusion.outputs) if tv not in inputs)
    layouts = {tv: layout_of(tv, request.strides.get(tv.name)) for tv in (*inputs, *computed)}
    buffers = {
        tv.name: Buffer(
            name=tv.name, dtype=tv.dtype, size=layout.size, role=Role.INPUT if tv in inputs else Role.OUTPUT,
            alignment=min(request.alignment.get(tv.name, ALIGNED), ALIGNED) if tv in inputs else ALIGNED,
        )
        for tv, layout in layouts.items()
    }
    segment = Fusion(inputs=fusion.inputs, exprs=fusion.exprs, outputs=computed)
    lowering = _Lowering(buffers, layouts, request, chooser)
    segment = lowering.with_transposed_reads(segment, scheduler)
    # GPU lanes that each iterate over a column read adjacent elements; lanes that share a column do not. Therefore
    # columns that do not fit on chip are read once per result that others need, and the rest is a separate nest.
    keeps_columns = target_of(request.target).has_blocks and scheduler is SchedulerType.OUTER_PERSISTENT
    written, nothing = None, _Written()
    if keeps_columns:
        written = lowering.columns_kept(segment) or lowering.separate_passes(segment, nothing)
    elif scheduler is SchedulerType.INNER_OUTER_PERSISTENT:
        written = lowering.rows_and_columns(segment)
    if written is None:
        written = lowering.phases(segment, nothing)
    workspace = dict.fromkeys(b for phase in written.phases for b in phase.buffers if b.role is Role.WORKSPACE)
    ops = {expr.name: expr for expr in (*segment.exprs, *fusion.exprs, *request.fusion.exprs)}
    return Kernel(
        name=request.function,
        target=request.target,
        scheduler=scheduler,
        inputs=tuple(buffers[tv.name] for tv in inputs),
        scalars=tuple(_parameter(v) for v in fusion.inputs if isinstance(v, Scalar)),
        outputs=tuple(buffers[tv.name] for tv in computed),
        workspace=tuple(workspace),
        phases=written.phases,
        # For other than dense inputs, parameters set by hand that are illegal are ignored.
        nests=chooser.choices(written.nests, strict=not request.strides and not request.alignment),
        ops=tuple((name, call_text(expr)) for name, expr in ops.items()),
    )


def may_join_rows_and_columns(fusion: Fusion) -> bool:
    """Whether the lowering of a segment for InnerOuterPersistent may be different from that for Reduction."""
    segment = with_sums_of_rows(accurate(decompose(fusion)))
    return backward_of(segment) is not None or bool(with_transposed_reads(segment)[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """The phases written so far, how many nests they are, and the minimum bytes of the parts that follow."""

    phases: tuple[Phase, ...] = ()
    nests: int = 0
    waiting: int = 0


class _Lowering:
    def __init__(
        self, buffers: dict[str, Buffer], layouts: dict[TensorView, Layout], request: KernelRequest, chooser: Chooser,
    ) -> None:
        self._buffers, self._layouts, self._request, self._chooser = buffers, layouts, request, chooser
        self._has_blocks = target_of(request.target).has_blocks

    def with_transposed_reads(self, segment: Fusion, scheduler: SchedulerType) -> Fusion:
        """Return a segment in which inputs that are also read transposed have a second name for these reads.

        Only nests over tiles benefit: if the segment has reductions, at least one of them must be over tiles, which
        only GPUs have.
        """
        reduces = any(expr.kind is OpKind.REDUCTION for expr in segment.exprs)
        if reduces and (not self._has_blocks or scheduler in _WALKS_OTHERWISE):
            return segment
        turned, twins = with_transposed_reads(segment)
        self._buffers.update((twin.name, self._buffers[source.name]) for twin, source in twins.items())
        self._layouts.update((twin, self._layouts[source]) for twin, source in twins.items())
        if not twins or (self._has_blocks and not reduces):
            return turned
        return turned if self._has_tiles(turned, reduces=reduces) else segment

    def _has_tiles(self, segment: Fusion, *, reduces: bool) -> bool:
        """Whether a nest of a segment, with reductions or without, is over tiles of two axes."""
        try:
            nests = nests_of(segment, self._buffers, self._layouts)
        except (CodegenError, ValueError):
            return False
        writers = (self._writer(segment, nest, 0) for nest in nests if bool(nest.reductions) is reduces)
        return any(writer.schedule.style is Style.TILES for writer in writers)

    def phases(self, segment: Fusion, before: _Written) -> _Written:
        """Return also the phases of a segment, or of its parts if no nest of loops covers all of it."""
        try:
            return self._direct(segment, before)
        except CodegenError:
            totals = _first_reductions(segment)
            if not totals or set(totals) >= set(segment.outputs):
                raise
        # Totals that are needed at positions other than where they are computed go through memory.
        together = (*totals, *_computed_with(segment, totals))
        first, rest = self._through_memory(segment, totals if set(together) >= set(segment.outputs) else together)
        return self.phases(rest, self._before(first, rest, before))

    def _before(self, first: Fusion, rest: Fusion, before: _Written) -> _Written:
        """Return also the phases of a part that precedes another one."""
        written = self.phases(first, replace(before, waiting=before.waiting + self._least(rest)))
        return replace(written, waiting=before.waiting)

    def _with(self, phases: Iterable[Phase], before: _Written) -> _Written:
        """Return also these phases of nests that are counted."""
        written = replace(before, phases=(*before.phases, *phases))
        self._allow(0, written)
        return written

    def _allow(self, least: int, written: _Written) -> None:
        """Raise if the written phases, the remaining parts and a part of this size exceed the limit."""
        most = self._request.most_bytes
        if most is not None:
            moved = sum(phase.nbytes for phase in written.phases) + written.waiting + least
            if moved > most:
                raise MovesMore(moved)

    def _least(self, segment: Fusion, outputs: Sequence[TensorView] | None = None) -> int:
        """Return the minimum bytes of outputs of a segment, reading each of their inputs once.

        Operands of pads and cats do not count, because a slice may discard them.
        """
        if self._request.most_bytes is None:
            return 0
        waiting = [tv for tv in (segment.outputs if outputs is None else outputs) if tv.numel]
        touched = {self._buffers[tv.name] for tv in waiting}
        seen = set(waiting)
        while waiting:
            tensor = waiting.pop()
            maker = segment.producers.get(tensor)
            if maker is None:
                touched.add(self._buffers[tensor.name])
            elif maker.kind is not OpKind.RESIZE:
                new = set(maker.tensor_inputs) - seen
                seen |= new
                waiting += new
        return sum(buffer.nbytes for buffer in touched)

    def columns_kept(self, segment: Fusion) -> _Written | None:
        """Return the phase of the only nest if a block keeps its columns on chip between passes; otherwise None."""
        try:
            (nest,) = nests_of(segment, self._buffers, self._layouts)
        except (CodegenError, ValueError):
            return None
        writer = self._writer(segment, nest, 0)
        return self._with(writer.phases(), _Written(nests=1)) if writer.schedule.keeps_columns else None

    def separate_passes(self, segment: Fusion, before: _Written) -> _Written:
        """Return also phases that first store results of independent reductions in memory, then compute the rest."""
        totals = self._found_together(segment) or _first_reductions(segment)
        if not totals or set(totals) >= set(segment.outputs):
            return self.phases(segment, before)
        first, rest = self._through_memory(segment, totals)
        return self.separate_passes(rest, self._before(first, rest, before))

    def _found_together(self, segment: Fusion) -> tuple[TensorView, ...]:
        """Return a maximum and a sum of exponentials of the same columns, if they can be computed in one pass."""
        try:
            (nest,) = nests_of(segment, self._buffers, self._layouts)
        except (CodegenError, ValueError):
            return ()
        pair = online_pair(segment, nest, level_of(segment))
        if pair is None or fastest_is_reduced(segment, nest, self._buffers, self._layouts):
            return ()
        whole = not nest.full and nest.reductions in {pair, pair[::-1]}
        return segment.outputs if whole else tuple(expr.out for expr in pair)

    def rows_and_columns(self, segment: Fusion) -> _Written | None:
        """Return phases that read rows once for row results and column sums; None if impossible."""
        cut = backward_of(segment)
        found = rows_nest(cut, self._buffers, self._layouts) if cut is not None else None
        if cut is None or found is None:
            return None
        backward = BackwardNest if self._has_blocks else CpuBackward
        writer = backward(cut, *found, self._request.target, self._request.function, self._request.device)
        if not writer.fits:
            self._chooser.note(writer.refusal)
            return None
        writer.apply_given(partial(self._chooser.with_given, 0, self._request.target))
        rest, parts = totals(segment, cut, writer.blocks)
        for expr, tensor in parts.items():
            layout = self._layouts[tensor] = layout_of(tensor)
            self._buffers[tensor.name] = Buffer(
                name=tensor.name, dtype=tensor.dtype, size=layout.size, role=Role.WORKSPACE,
            )
            old = expr.out
            new = next(e.out for e in rest.exprs if e.inputs == (tensor,))
            if old in self._layouts:
                self._layouts[new] = self._layouts[old]
        buffers = {e: self._buffers[tv.name] for e, tv in parts.items()}
        phase = writer.write(buffers, {e: self._layouts[tv] for e, tv in parts.items()})
        return self.phases(rest, self._with([phase], _Written(nests=1)))

    def _through_memory(self, segment: Fusion, totals: tuple[TensorView, ...]) -> tuple[Fusion, Fusion]:
        """Return the fusion that computes some values, and the fusion that computes the rest from them."""
        for tensor in totals:
            layout = self._layouts.setdefault(tensor, layout_of(tensor))
            place = Buffer(
                name=f"{tensor.name}_whole", dtype=tensor.dtype, size=layout.size, role=Role.WORKSPACE,
            )
            self._buffers.setdefault(tensor.name, place)
        first = _part(segment, segment.inputs, totals)
        rest = _part(segment, (*segment.inputs, *totals), tuple(tv for tv in segment.outputs if tv not in totals))
        return first, rest

    def _direct(self, segment: Fusion, before: _Written) -> _Written:
        self._allow(self._least(segment), before)
        nests = nests_of(segment, self._buffers, self._layouts)
        writers = []
        for number, nest in enumerate(nests, before.nests):
            writer = self._writer(segment, nest, number)
            if self._has_blocks and writer.space.is_walked_again and not writer.schedule.keeps_columns:
                return self.separate_passes(segment, before)
            writers.append(writer)
        written = replace(before, nests=before.nests + len(nests))
        self._allow(sum(self._least(segment, nest.outputs) for nest in nests), written)
        for writer in writers:
            written = self._with(writer.phases(), written)
        return written

    def _writer(self, segment: Fusion, nest: Nest, number: int) -> NestLowering:
        """Return the writer of a nest."""
        writer: type[NestLowering] = GpuNest if self._has_blocks else CpuNest
        if nest.scans:
            writer = GpuScans if self._has_blocks else CpuScans
        request = self._request
        base = request.function if number == 0 else f"{request.function}_{number}"
        with_given = partial(self._chooser.with_given, number, request.target)
        return writer(segment, nest, self._buffers, self._layouts, request.target, base, with_given, request.device)


_WALKS_OTHERWISE = frozenset({SchedulerType.OUTER_PERSISTENT, SchedulerType.INNER_OUTER_PERSISTENT})


def _first_reductions(fusion: Fusion) -> tuple[TensorView, ...]:
    """Return the results of the reductions that depend on no other reduction."""
    behind: set[Val] = set()
    found: list[TensorView] = []
    for expr in fusion.exprs:
        depends = not behind.isdisjoint(expr.inputs)
        if expr.kind is OpKind.REDUCTION and not depends:
            found.append(expr.out)
        if depends or expr.kind is OpKind.REDUCTION:
            behind.update(expr.outputs)
    return tuple(found)


def _computed_with(fusion: Fusion, totals: tuple[TensorView, ...]) -> tuple[TensorView, ...]:
    """Return the outputs without totals that have the shape of the totals' operands, so that one nest computes both."""
    shapes = {fusion.producers[tv].tensor_inputs[0].shape for tv in totals}
    after: set[Val] = set(totals)
    for expr in fusion.exprs:
        if not after.isdisjoint(expr.inputs):
            after.update(expr.outputs)
    return tuple(tv for tv in fusion.outputs if tv not in after and tv.shape in shapes)


def _part(fusion: Fusion, inputs: tuple[Val, ...], outputs: tuple[TensorView, ...]) -> Fusion:
    """Return the part of a fusion that computes some of its values from others."""
    wanted: set[Val] = set(outputs)
    kept: list[Expr] = []
    for expr in reversed(fusion.exprs):
        if not wanted.isdisjoint(expr.outputs) and set(expr.outputs).isdisjoint(inputs):
            kept.append(expr)
            wanted.update(expr.inputs)
    return Fusion(inputs=inputs, exprs=tuple(reversed(kept)), outputs=outputs)


def _parameter(value: Scalar) -> Var:
    return Var(DataType.Int if value.dtype is DataType.Index else value.dtype, value.name)

"""The lowering of a segment with its chosen loops to Kernel IR, for every target."""

from collections.abc import Iterable, Mapping, Sequence
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
from fuser_lab.codegen.sizes import with_sizes
from fuser_lab.codegen.sums_of_rows import with_sums_of_rows
from fuser_lab.codegen.transposed_reads import with_transposed_reads
from fuser_lab.codegen.values import call_text, level_of
from fuser_lab.codegen.varying import SharedKernels
from fuser_lab.cost.device import DEFAULT, Device
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.dtypes import DataType
from fuser_lab.errors import CodegenError
from fuser_lab.ir import Expr, Fusion, OpKind, Scalar, TensorView, Val
from fuser_lab.ir.term import Var
from fuser_lab.schedule.base import Propose
from fuser_lab.schedule.parameters import Chooser, KeptChoice, LoopChange, NestChoice
from fuser_lab.schedule.state import Style
from fuser_lab.targets import target_of


class MovesMore(Exception):  # noqa: N818 - no error: the answer to a question
    """The kernel moves at least ``moved`` bytes, which is more than the limit."""

    def __init__(self, moved: int) -> None:
        super().__init__(moved)
        self.moved = moved


def lower(
    fusion: Fusion, scheduler: SchedulerType, target: str, name: str, strides: Mapping[str, Sequence[int] | Layout],
    alignment: Mapping[str, int] | None = None, changes: Sequence[LoopChange] = (), *, strict: bool = True,
    device: Device = DEFAULT, shared: SharedKernels | None = None, most_bytes: int | None = None,
    propose: Propose | None = None, kept: KeptChoice | None = None,
) -> Kernel:
    """Return the Kernel IR of a segment; each loop nest is one phase, or two if reductions are cut into parts.

    The kernel takes sizes as arguments; see `fuser_lab.codegen.sizes`.

    Parameters
    ----------
    fusion
        A segment with known extents.
    scheduler
        The scheduler that accepted it.
    target
        Name of a target, such as ``"cuda"``.
    name
        Name of the kernel's functions.
    strides
        Strides in elements of inputs and outputs that are not dense in their allocation order.
    alignment
        Alignment in bytes of the memory of inputs, if it is less than 16.
    changes, strict
        Parameters set by hand, and whether illegal ones raise an error or are ignored.
    device
        The GPU whose limits the loops of a CUDA kernel respect.
    shared
        The kernels of the same segment at other sizes, with which it shares compiled code.
    most_bytes
        Bytes that the phases may move, counting each buffer once. Lowering stops early if the kernel moves more.
    propose
        Proposes parameters of a nest instead of the default (`fuser_lab.schedule.base.Heuristics`).
    kept
        Parameters kept from `fl.tune`, which replace what is proposed.

    Raises
    ------
    MovesMore
        If the phases move more than ``most_bytes``.
    ScheduleError
        If parameters set by hand are illegal.
    CodegenError
        If no nest of loops can compute the segment.
    """
    recorded = {expr.name: expr for expr in fusion.exprs}
    fusion = with_sums_of_rows(accurate(decompose(fusion)))
    inputs = fusion.tensor_inputs
    computed = tuple(tv for tv in dict.fromkeys(fusion.outputs) if tv not in inputs)
    layouts = {tv: layout_of(tv, strides.get(tv.name)) for tv in inputs}
    layouts.update((tv, layout_of(tv, strides.get(tv.name))) for tv in computed)
    buffers = {
        tv.name: Buffer(
            name=tv.name, dtype=tv.dtype, size=layout.size, role=Role.INPUT if tv in inputs else Role.OUTPUT,
            alignment=min((alignment or {}).get(tv.name, ALIGNED), ALIGNED) if tv in inputs else ALIGNED,
        )
        for tv, layout in layouts.items()
    }
    segment = Fusion(inputs=fusion.inputs, exprs=fusion.exprs, outputs=computed)
    lowering = _Lowering(buffers, layouts, target, name, Chooser(changes, propose, kept), device, most_bytes)
    segment = lowering.with_transposed_reads(segment, scheduler)
    # GPU lanes that each iterate over a column read adjacent elements; lanes that share a column do not. Therefore
    # columns that do not fit on chip are read once per result that others need, and the rest is a separate nest.
    keeps_columns = target_of(target).has_blocks and scheduler is SchedulerType.OUTER_PERSISTENT
    phases = (lowering.columns_kept(segment) or lowering.separate_passes(segment)) if keeps_columns else None
    if scheduler is SchedulerType.INNER_OUTER_PERSISTENT:
        phases = lowering.rows_and_columns(segment)
    if phases is None:
        phases = lowering.phases(segment)
    workspace = dict.fromkeys(b for phase in phases for b in phase.buffers if b.role is Role.WORKSPACE)
    kernel = Kernel(
        name=name,
        target=target,
        scheduler=scheduler,
        inputs=tuple(buffers[tv.name] for tv in inputs),
        scalars=tuple(_parameter(v) for v in fusion.inputs if isinstance(v, Scalar)),
        outputs=tuple(buffers[tv.name] for tv in computed),
        workspace=tuple(workspace),
        phases=tuple(phases),
        nests=lowering.choices(strict=strict),
        ops=tuple(
            (name, call_text(expr))
            for name, expr in ({e.name: e for e in (*segment.exprs, *fusion.exprs)} | recorded).items()
        ),
    )
    return with_sizes(kernel) if shared is None else shared.kernel(kernel)


def may_join_rows_and_columns(fusion: Fusion) -> bool:
    """Whether the lowering of a segment for InnerOuterPersistent may be different from that for Reduction."""
    segment = with_sums_of_rows(accurate(decompose(fusion)))
    return backward_of(segment) is not None or bool(with_transposed_reads(segment)[1])


class _Lowering:
    def __init__(
        self, buffers: dict[str, Buffer], layouts: dict[TensorView, Layout], target: str, name: str, chooser: Chooser,
        device: Device, most_bytes: int | None,
    ) -> None:
        self._buffers, self._layouts, self._target, self._name = buffers, layouts, target, name
        self._nests, self._chooser, self._device = 0, chooser, device
        self._has_blocks = target_of(target).has_blocks
        self._most_bytes = most_bytes
        self._moved = 0  # bytes of the phases written so far
        self._waiting = 0  # minimum bytes of the parts that follow the current one

    def choices(self, *, strict: bool) -> tuple[NestChoice, ...]:
        """Return the loops of each nest with reasons."""
        return self._chooser.choices(self._nests, strict=strict)

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
        writers = (self._writer(segment, nest) for nest in nests if bool(nest.reductions) is reduces)
        return any(writer.schedule.style is Style.TILES for writer in writers)

    def phases(self, segment: Fusion) -> list[Phase]:
        """Return the phases of a segment, or of its parts if no nest of loops covers all of it."""
        nests, moved, waiting = self._nests, self._moved, self._waiting
        try:
            return self._direct(segment)
        except CodegenError:
            totals = _first_reductions(segment)
            if not totals or set(totals) >= set(segment.outputs):
                raise
        # Totals that are needed at positions other than where they are computed go through memory.
        self._nests, self._moved, self._waiting = nests, moved, waiting
        together = (*totals, *_computed_with(segment, totals))
        first, rest = self._through_memory(segment, totals if set(together) >= set(segment.outputs) else together)
        return [*self._before(first, rest), *self.phases(rest)]

    def _before(self, first: Fusion, rest: Fusion) -> list[Phase]:
        """Return the phases of a part that precedes another one."""
        after = self._least(rest)
        self._waiting += after
        found = self.phases(first)
        self._waiting -= after
        return found

    def _written(self, phases: Iterable[Phase]) -> list[Phase]:
        """Return phases, and record the bytes that they move."""
        found = list(phases)
        self._moved += sum(phase.nbytes for phase in found)
        self._allow(0)
        return found

    def _allow(self, least: int) -> None:
        """Raise if the written phases, the remaining parts and a part of this size exceed the limit."""
        moved = self._moved + self._waiting + least
        if self._most_bytes is not None and moved > self._most_bytes:
            raise MovesMore(moved)

    def _least(self, segment: Fusion, outputs: Sequence[TensorView] | None = None) -> int:
        """Return the minimum bytes of outputs of a segment, reading each of their inputs once.

        Operands of pads and cats do not count, because a slice may discard them.
        """
        if self._most_bytes is None:
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

    def columns_kept(self, segment: Fusion) -> list[Phase]:
        """Return the phase of the only nest if a block keeps its columns on chip between passes; otherwise none."""
        try:
            (nest,) = nests_of(segment, self._buffers, self._layouts)
        except (CodegenError, ValueError):
            return []
        writer = self._writer(segment, nest)
        if not writer.schedule.keeps_columns:
            return []
        self._nests += 1
        return self._written(writer.phases())

    def separate_passes(self, segment: Fusion) -> list[Phase]:
        """Return phases that first store the results of independent reductions in memory, then compute the rest."""
        totals = self._found_together(segment) or _first_reductions(segment)
        if not totals or set(totals) >= set(segment.outputs):
            return self.phases(segment)
        first, rest = self._through_memory(segment, totals)
        return [*self._before(first, rest), *self.separate_passes(rest)]

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

    def rows_and_columns(self, segment: Fusion) -> list[Phase] | None:
        """Return phases that read rows once for row results and column sums; None if impossible."""
        cut = backward_of(segment)
        found = rows_nest(cut, self._buffers, self._layouts) if cut is not None else None
        if cut is None or found is None:
            return None
        backward = BackwardNest if self._has_blocks else CpuBackward
        writer = backward(cut, *found, self._target, self._name, self._device)
        if not writer.fits:
            self._chooser.note(writer.refusal)
            return None
        writer.apply_given(partial(self._chooser.with_given, self._nests, self._target))
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
        self._nests += 1
        buffers = {e: self._buffers[tv.name] for e, tv in parts.items()}
        phase = writer.write(buffers, {e: self._layouts[tv] for e, tv in parts.items()})
        return [*self._written([phase]), *self.phases(rest)]

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

    def _direct(self, segment: Fusion) -> list[Phase]:
        numbered = self._nests
        self._allow(self._least(segment))
        nests = nests_of(segment, self._buffers, self._layouts)
        writers = []
        for nest in nests:
            writer = self._writer(segment, nest)
            self._nests += 1
            if self._has_blocks and writer.space.is_walked_again and not writer.schedule.keeps_columns:
                self._nests = numbered
                return self.separate_passes(segment)
            writers.append(writer)
        self._allow(sum(self._least(segment, nest.outputs) for nest in nests))
        return [phase for writer in writers for phase in self._written(writer.phases())]

    def _writer(self, segment: Fusion, nest: Nest) -> NestLowering:
        """Return the writer of the next nest."""
        writer: type[NestLowering] = GpuNest if self._has_blocks else CpuNest
        if nest.scans:
            writer = GpuScans if self._has_blocks else CpuScans
        base = self._name if self._nests == 0 else f"{self._name}_{self._nests}"
        with_given = partial(self._chooser.with_given, self._nests, self._target)
        return writer(segment, nest, self._buffers, self._layouts, self._target, base, with_given, self._device)


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

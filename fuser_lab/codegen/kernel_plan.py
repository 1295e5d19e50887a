"""The nests of a segment's kernel with their schedules, before any code is written: the writers decide nothing else.

A segment is one nest, several nests, or parts of which the first store in memory what the later ones read. Which of
these forms a kernel has depends on its ops and on the schedules of its nests, so forms are tried in order:

    rows that add to column sums, for InnerOuterPersistent
    columns that blocks keep on chip, or else one pass after another over columns, for OuterPersistent
    all nests of the segment at once
    the same, with short reductions written as ops on the parts of their operands
    results of rows, then the reductions that read these along other axes
    the first reductions, then the nests that read their results from memory
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from fuser_lab.codegen.column_sums import backward_of, rows_each, rows_nest, totals
from fuser_lab.codegen.cpu_facts import CpuFacts
from fuser_lab.codegen.decompose import accurate, decompose, with_float_values, with_sums_of_rows, with_transposed_reads
from fuser_lab.codegen.gpu_facts import GpuFacts
from fuser_lab.codegen.kernel_ir import ALIGNED, Buffer, Layout, Role, layout_of
from fuser_lab.codegen.nest_facts import NestFacts
from fuser_lab.codegen.nests import Nest, fastest_is_reduced, nests_of
from fuser_lab.codegen.persistence import online_pair
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.codegen.short_reductions import with_parts
from fuser_lab.codegen.stored_parts import with_stored_parts
from fuser_lab.codegen.values import level_of
from fuser_lab.cost.device import Device
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.errors import CodegenError
from fuser_lab.ir import Expr, Fusion, OpKind, Scalar, TensorView, Val, needed_exprs
from fuser_lab.schedule.parameters import Chooser, NestChoice
from fuser_lab.schedule.state import LoopSchedule, NestKind, Refused, Style
from fuser_lab.targets import target_of

EVALUATED = frozenset({SchedulerType.EXPR_EVAL, SchedulerType.NO_OP, SchedulerType.MATMUL})
"""The schedulers whose segments have no kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The memory of a tensor between the phases of a kernel."""

    buffer: Buffer
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class NestPlan:
    """One nest of a kernel, with everything that its writer needs.

    Attributes
    ----------
    name
        Name of the nest's function, or the prefix of its functions.
    facts
        The nest with its memory.
    choice
        Its schedule, with the reasons.
    column_parts
        Where rows that add to column sums store the parts of each sum.
    stored
        The results that such rows store; the others are only added up.
    least
        Bytes that all nests before this one, together with at least so many more, move in any case; see `waiting`.
    waiting
        Bytes that the parts after this nest move at least.
    beside
        Whether its blocks run beside those of the nest before it, in one launch.
    """

    name: str
    facts: NestFacts
    choice: NestChoice
    column_parts: Mapping[Expr, Place] = field(default_factory=dict)
    stored: frozenset[TensorView] = frozenset()
    least: tuple[int, ...] = ()
    waiting: int = 0
    beside: bool = False

    @property
    def schedule(self) -> LoopSchedule:
        """The loops of the nest."""
        return self.choice.schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelOps:
    """The fusion after each rewrite: each Welford decomposed, rounding errors corrected, sums of rows shared."""

    decomposed: Fusion
    corrected: Fusion
    fusion: Fusion

    @classmethod
    def of(cls, fusion: Fusion) -> "KernelOps":
        """Return the ops of a segment's kernels."""
        decomposed = decompose(with_float_values(fusion))
        corrected = accurate(decomposed)
        return cls(decomposed=decomposed, corrected=corrected, fusion=with_sums_of_rows(corrected))

    def in_parts(self) -> "KernelOps | None":
        """Return the ops with short reductions written as ops on parts of their operands; None if there are none."""
        fusion = with_parts(self.fusion)
        return None if fusion is None else replace(self, fusion=fusion)

    def corrections(self) -> dict[str, str]:
        """Return, for each expression that the rewrites add, the name of the expression that it serves."""
        recorded = {expr.name for expr in self.decomposed.exprs}
        served: dict[str, str] = {}
        name = ""
        for expr in reversed(self.fusion.exprs):  # additions directly precede the expression that they serve
            if expr.name in recorded:
                name = expr.name
            else:
                served[expr.name] = name
        return served


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPlan:
    """The nests of a kernel in the order in which they run, and the memory of its inputs and outputs.

    ``exprs`` are the ops of the segment, in the forms that steps before this one give them.
    """

    request: KernelRequest
    ops: KernelOps
    exprs: tuple[Expr, ...]
    scalars: tuple[Scalar, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    nests: tuple[NestPlan, ...]

    @property
    def choices(self) -> tuple[NestChoice, ...]:
        """The schedules of all nests."""
        return tuple(nest.choice for nest in self.nests)

    @property
    def goes_through_memory(self) -> bool:
        """Whether a nest reads from memory what an earlier one computes."""
        return any(buffer.role is Role.WORKSPACE for nest in self.nests for buffer in nest.facts.buffers.values())


def plan_of(ops: KernelOps, request: KernelRequest, chooser: Chooser, *, counts: bool = False) -> KernelPlan:
    """Return the nests of a segment's kernel with their schedules.

    Parameters
    ----------
    ops
        The segment's ops as kernels compute them.
    request
        The request for the kernel.
    chooser
        Chooses the loops of each nest.
    counts
        Whether the bytes that nests move at least are counted.

    Raises
    ------
    ScheduleError
        If parameters set by hand are illegal.
    CodegenError
        If no scheduler accepted the segment, or no nest of loops can compute it.
    """
    scheduler = request.scheduler
    if scheduler is None:
        raise CodegenError("a segment that no scheduler accepts has no kernel.")
    if scheduler in EVALUATED:
        raise CodegenError(f"a segment of {scheduler.value} has no kernel, because the array library evaluates it.")
    plan = _plan_of(ops, request, chooser, scheduler, counts=counts)
    if isinstance(plan, Refused) or plan.goes_through_memory:
        # Elements that are computed from short reductions along several axes are one nest of elements.
        parts = ops.in_parts()
        in_parts = None if parts is None else _plan_of(parts, request, chooser, scheduler, counts=counts)
        if isinstance(in_parts, KernelPlan) and not in_parts.goes_through_memory:
            plan = in_parts
    if isinstance(plan, Refused):
        raise CodegenError(plan.reason)
    if not request.strides and not request.alignment:
        # For other than dense inputs, parameters set by hand that are illegal are ignored.
        chooser.check(plan.choices)
    return plan


def _plan_of(
    ops: KernelOps, request: KernelRequest, chooser: Chooser, scheduler: SchedulerType, *, counts: bool,
) -> KernelPlan | Refused:
    """Return the nests of some ops with their schedules, or why no form computes them."""
    fusion = ops.fusion
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
    segment = Fusion(inputs=fusion.inputs, exprs=fusion.exprs, outputs=computed, keeps_float=fusion.keeps_float)
    planner = _Planner(request, chooser, counts=counts)
    part = _with_stored_parts(_Part(fusion=segment, buffers=buffers, layouts=layouts))
    part = planner.with_transposed_reads(part, scheduler)
    nests = planner.form(part, scheduler)
    if isinstance(nests, Refused):
        return nests
    return KernelPlan(
        request=request, ops=ops, exprs=(*part.fusion.exprs, *fusion.exprs, *request.fusion.exprs),
        scalars=tuple(value for value in fusion.inputs if isinstance(value, Scalar)),
        inputs=tuple(buffers[tv.name] for tv in inputs),
        outputs=tuple(buffers[tv.name] for tv in computed), nests=nests,
    )


def may_join_rows_and_columns(fusion: Fusion) -> bool:
    """Whether the kernel of a segment for InnerOuterPersistent may be different from that for Reduction."""
    segment = KernelOps.of(fusion).fusion
    return backward_of(segment) is not None or bool(with_transposed_reads(segment)[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Ops of a segment that are computed together, the memory of tensors, and the least bytes of later parts."""

    fusion: Fusion
    buffers: Mapping[str, Buffer]
    layouts: Mapping[TensorView, Layout]
    waiting: int = 0

    def nests(self, *, between: bool = True) -> tuple[Nest, ...] | Refused:
        """Return the nests of the ops, if ``between`` with scans between passes over rows."""
        return nests_of(self.fusion, self.buffers, self.layouts, between=between)

    def least(self, outputs: Sequence[TensorView]) -> int:
        """Return the minimum bytes of some outputs, reading each of their inputs once.

        Operands of pads and cats do not count, because a slice may discard them.
        """
        waiting = [tv for tv in outputs if tv.numel]
        touched = {self.buffers[tv.name] for tv in waiting}
        seen = set(waiting)
        while waiting:
            tensor = waiting.pop()
            maker = self.fusion.producers.get(tensor)
            if maker is None:
                touched.add(self.buffers[tensor.name])
            elif maker.kind is not OpKind.RESIZE:
                new = set(maker.tensor_inputs) - seen
                seen |= new
                waiting += new
        return sum(buffer.nbytes for buffer in touched)

    def through_memory(self, results: tuple[TensorView, ...]) -> "tuple[_Part, _Part]":
        """Return the part that computes some results and stores them, and the part that computes the rest from them."""
        layouts = {**{tv: layout_of(tv) for tv in results}, **self.layouts}
        places = {
            tv.name: Buffer(name=f"{tv.name}_whole", dtype=tv.dtype, size=layouts[tv].size, role=Role.WORKSPACE)
            for tv in results if tv.name not in self.buffers
        }
        memory = replace(self, buffers={**self.buffers, **places}, layouts=layouts)
        rest = tuple(tv for tv in self.fusion.outputs if tv not in results)
        return (
            replace(memory, fusion=_part(self.fusion, self.fusion.inputs, results)),
            replace(memory, fusion=_part(self.fusion, (*self.fusion.inputs, *results), rest)),
        )


def _with_stored_parts(part: _Part) -> _Part:
    """Return a segment that stores concatenations part by part, if one nest computes all parts of each."""
    stored = with_stored_parts(part.fusion, part.layouts)
    if stored is None:
        return part
    in_parts = replace(
        part, fusion=stored.fusion,
        buffers={**part.buffers, **{tv.name: part.buffers[whole.name] for tv, (whole, _) in stored.layouts.items()}},
        layouts={**part.layouts, **{tv: layout for tv, (_, layout) in stored.layouts.items()}},
    )
    nests = in_parts.nests()
    if isinstance(nests, Refused):
        return part
    homes = {(whole, place) for place, nest in enumerate(nests) for tv in nest.outputs if tv in stored.layouts
             for whole, _ in (stored.layouts[tv],)}
    return in_parts if len(homes) == len({whole for whole, _ in homes}) else part


_Nests = tuple[NestPlan, ...] | Refused


class _Planner:
    """Tries the forms of a kernel; each method returns the nests of a form, or why the kernel does not have it."""

    def __init__(self, request: KernelRequest, chooser: Chooser, *, counts: bool) -> None:
        self._request, self._chooser, self._counts = request, chooser, counts
        self._has_blocks = target_of(request.target).has_blocks

    def with_transposed_reads(self, part: _Part, scheduler: SchedulerType) -> _Part:
        """Return a segment in which inputs that are also read transposed have a second name for these reads.

        Only nests over tiles benefit: if the segment has reductions, at least one of them must be over tiles, which
        only GPUs have.
        """
        reduces = any(expr.kind is OpKind.REDUCTION for expr in part.fusion.exprs)
        if reduces and (not self._has_blocks or scheduler in _WALKS_OTHERWISE):
            return part
        turned, twins = with_transposed_reads(part.fusion)
        second = replace(
            part, fusion=turned,
            buffers={**part.buffers, **{twin.name: part.buffers[source.name] for twin, source in twins.items()}},
            layouts={**part.layouts, **{twin: part.layouts[source] for twin, source in twins.items()}},
        )
        if not twins or (self._has_blocks and not reduces):
            return second
        nests = second.nests()
        planned = () if isinstance(nests, Refused) else (
            self._nest(second, nest, 0) for nest in nests if bool(nest.reductions) is reduces
        )
        tiles = (isinstance(nest, NestPlan) and nest.choice.schedule.style is Style.TILES for nest in planned)
        return second if any(tiles) else part

    def form(self, part: _Part, scheduler: SchedulerType) -> _Nests:
        """Return the nests of the first form that a segment has."""
        notes: tuple[str, ...] = ()
        # GPU lanes that each iterate over a column read adjacent elements; lanes that share a column do not. Therefore
        # columns that do not fit on chip are read once per result that others need, and the rest is a separate nest.
        if self._has_blocks and scheduler is SchedulerType.OUTER_PERSISTENT:
            nests = self._columns_kept(part)
            return self._separate_passes(part, 0) if isinstance(nests, Refused) else nests
        if scheduler is SchedulerType.INNER_OUTER_PERSISTENT:
            joined = self._rows_and_columns(part)
            if not isinstance(joined, Refused):
                return joined
            notes = (joined.reason,) if joined.reason else ()
        return self._nests(part, 0, notes)

    def _nests(self, part: _Part, number: int, notes: Sequence[str] = ()) -> _Nests:
        """Return the nests of a part, or of its parts if no nest of loops covers all of it."""
        least = self._least(part)
        nests = self._direct(part, number, notes)
        if isinstance(nests, Refused) and (rows := _added_rows(part.fusion)):
            in_two = self._one_after_another(part, rows, number, notes, self._nests)
            nests = nests if isinstance(in_two, Refused) else in_two
        if isinstance(nests, Refused):
            results = _first_reductions(part.fusion)
            if not results or set(results) >= set(part.fusion.outputs):
                return nests
            # Totals that are needed at positions other than where they are computed go through memory.
            together = (*results, *_computed_with(part.fusion, results))
            among = results if set(together) >= set(part.fusion.outputs) else together
            nests = self._one_after_another(part, among, number, notes, self._nests)
        if isinstance(nests, Refused) or not nests or not self._counts:
            return nests
        return (replace(nests[0], least=(least + part.waiting, *nests[0].least)), *nests[1:])

    def _one_after_another(
        self, part: _Part, results: tuple[TensorView, ...], number: int, notes: Sequence[str],
        plan_rest: Callable[[_Part, int], _Nests],
    ) -> _Nests:
        """Return the nests that compute some results, then those that read them from memory."""
        first, rest = part.through_memory(results)
        before = self._nests(replace(first, waiting=part.waiting + self._least(rest)), number, notes)
        if isinstance(before, Refused):
            return before
        after = plan_rest(rest, number + len(before))
        return after if isinstance(after, Refused) else (*before, *after)

    def _least(self, part: _Part) -> int:
        return part.least(part.fusion.outputs) if self._counts else 0

    def _direct(self, part: _Part, number: int, notes: Sequence[str]) -> _Nests:
        """Return the nests of all outputs; scans that no row between passes can hold are nests of their own."""
        nests = part.nests()
        if isinstance(nests, Refused):
            return nests
        planned = self._of_nests(part, nests, number, notes)
        if not isinstance(planned, Refused) or not any(nest.scans_between_passes for nest in nests):
            return planned
        nests = part.nests(between=False)
        return nests if isinstance(nests, Refused) else self._of_nests(part, nests, number, notes)

    def _of_nests(self, part: _Part, nests: Sequence[Nest], number: int, notes: Sequence[str]) -> _Nests:
        """Return nests with their schedules; columns that are read again without being kept are separate passes."""
        planned: list[NestPlan] = []
        for place, nest in enumerate(nests, number):
            plan = self._nest(part, nest, place, () if planned else notes)
            if isinstance(plan, Refused):
                return plan
            is_kept = plan.schedule.kind is NestKind.BLOCK_KEPT_COLUMNS
            if self._has_blocks and plan.facts.space.is_walked_again and not is_kept:
                return self._separate_passes(part, number, notes)
            planned.append(plan)
        if self._has_blocks:
            planned = _side_by_side(planned, self._request.device)
        if planned and self._counts:
            launches: list[list[TensorView]] = []
            for plan in planned:
                launches += [] if plan.beside else [[]]
                launches[-1] += plan.facts.nest.outputs
            planned[0] = replace(planned[0], least=(sum(map(part.least, launches)) + part.waiting,))
        return tuple(planned)

    def _columns_kept(self, part: _Part) -> _Nests:
        """Return the only nest if a block keeps its columns, or rows if these are adjacent, on chip between passes."""
        nests = part.nests()
        if isinstance(nests, Refused) or len(nests) != 1:
            return Refused("several nests read the columns")
        plan = self._nest(part, nests[0], 0)
        if isinstance(plan, Refused):
            return plan
        is_kept = plan.schedule.persistent and not plan.facts.space.is_walked_again
        is_kept |= plan.schedule.kind is NestKind.BLOCK_KEPT_COLUMNS
        return (plan,) if is_kept else Refused("columns do not fit on chip")

    def _separate_passes(self, part: _Part, number: int, notes: Sequence[str] = ()) -> _Nests:
        """Return nests that first store results of independent reductions in memory, then compute the rest."""
        results = self._computed_together(part) or _first_reductions(part.fusion)
        if not results or set(results) >= set(part.fusion.outputs):
            return self._nests(part, number, notes)
        return self._one_after_another(part, results, number, notes, self._separate_passes)

    def _computed_together(self, part: _Part) -> tuple[TensorView, ...]:
        """Return a maximum and a sum of exponentials of the same columns, if they can be computed in one pass."""
        nests = part.nests()
        if isinstance(nests, Refused) or len(nests) != 1:
            return ()
        (nest,) = nests
        pair = online_pair(part.fusion, nest, level_of(part.fusion))
        if pair is None or fastest_is_reduced(part.fusion, nest, part.buffers, part.layouts):
            return ()
        whole = not nest.full and nest.reductions in {pair, pair[::-1]}
        return part.fusion.outputs if whole else tuple(expr.out for expr in pair)

    def _rows_and_columns(self, part: _Part) -> _Nests:
        """Return nests that read rows once for row results and column sums."""
        cut = backward_of(part.fusion)
        rows = None if cut is None else rows_nest(cut, part.buffers, part.layouts)
        if cut is None or rows is None:
            return Refused("")
        nest, buffers, layouts = rows
        plan = self._nest(
            _Part(fusion=cut.rows, buffers=buffers, layouts=layouts), nest, 0, column_sums=cut.columns,
        )
        if isinstance(plan, Refused):
            return plan
        count = plan.facts.space.rows
        rest, sums = totals(part.fusion, cut, -(-count // rows_each(plan.choice.schedule, count)))
        parts = {
            expr: Place(
                buffer=Buffer(name=tensor.name, dtype=tensor.dtype, size=layout.size, role=Role.WORKSPACE),
                layout=layout,
            )
            for expr, tensor in sums.items() for layout in (layout_of(tensor),)
        }
        renamed = {next(e.out for e in rest.exprs if e.inputs == (tv,)): expr.out for expr, tv in sums.items()}
        after = self._nests(
            _Part(
                fusion=rest,
                buffers={**part.buffers, **{sums[expr].name: place.buffer for expr, place in parts.items()}},
                layouts={
                    **part.layouts, **{sums[expr]: place.layout for expr, place in parts.items()},
                    **{new: part.layouts[old] for new, old in renamed.items() if old in part.layouts},
                },
            ), 1,
        )
        return after if isinstance(after, Refused) else (
            replace(plan, column_parts=parts, stored=cut.stored), *after,
        )

    def _nest(
        self, part: _Part, nest: Nest, number: int, notes: Sequence[str] = (), column_sums: tuple[Expr, ...] = (),
    ) -> NestPlan | Refused:
        """Return a nest with its facts and the schedule that is chosen by them."""
        request = self._request
        facts = (GpuFacts if self._has_blocks else CpuFacts)(
            fusion=part.fusion, nest=nest, buffers=part.buffers, layouts=part.layouts, device=request.device,
            column_sums=column_sums,
        )
        try:
            space = facts.space
        except CodegenError as error:  # along merged axes, a value may be needed where its reduction is not available
            return Refused(str(error))
        choice = self._chooser.choice(number, space, notes)
        if isinstance(choice, Refused):
            return choice
        name = request.function if number == 0 else f"{request.function}_{number}"
        return NestPlan(name=name, facts=facts, choice=choice, waiting=part.waiting)


def _side_by_side(nests: Sequence[NestPlan], device: Device) -> list[NestPlan]:
    """Return independent nests, of which those over elements share launches as long as the device holds all threads.

    That saves a launch, and a nest does not wait for the last blocks of another one. If there are more threads than the
    device holds, threads of a nest with few registers would have as many as those of another one instead.
    """
    most, running = device.sms * device.threads_per_sm, 0
    placed: list[NestPlan] = []
    for nest in nests:
        blocks, shape, threads = nest.schedule.blocks, nest.schedule.threads, 0
        if nest.schedule.kind is NestKind.BLOCK_ELEMENTS and nest.schedule.unroll == 1:
            threads = blocks * prod(shape)
        beside = bool(threads and running) and running + threads <= most and placed[-1].schedule.threads == shape
        running = running + threads if beside else threads
        placed.append(replace(nest, beside=beside))
    return placed


_WALKS_OTHERWISE = frozenset({SchedulerType.OUTER_PERSISTENT, SchedulerType.INNER_OUTER_PERSISTENT})


def _first_reductions(fusion: Fusion) -> tuple[TensorView, ...]:
    """Return the results of the reductions that depend on no other reduction."""
    behind: set[Val] = set()
    results: list[TensorView] = []
    for expr in fusion.exprs:
        depends = not behind.isdisjoint(expr.inputs)
        if expr.kind is OpKind.REDUCTION and not depends:
            results.append(expr.out)
        if depends or expr.kind is OpKind.REDUCTION:
            behind.update(expr.outputs)
    return tuple(results)


def _added_rows(fusion: Fusion) -> tuple[TensorView, ...]:
    """Return the results of rows that reductions along other axes read, and the outputs that need no such reduction.

    They are results of reductions and what is computed from them with no more elements; () if there are none.
    """
    results: dict[TensorView, None] = {}
    sizes: dict[Val, int] = {}  # elements of the smallest result of a reduction behind a tensor
    after: set[Val] = set()
    for expr in fusion.exprs:
        fewest = min((sizes[v] for v in expr.inputs if v in sizes), default=None)
        reduces = expr.kind is OpKind.REDUCTION
        if not after.isdisjoint(expr.inputs):
            after.update(expr.outputs)
            continue
        if reduces and fewest is not None and (operand := expr.tensor_inputs[0]).numel <= fewest:
            results[operand] = None
            after.update(expr.outputs)
            continue
        if reduces:
            fewest = min(expr.out.numel, fewest or expr.out.numel)
        if fewest is not None:
            sizes.update(dict.fromkeys(expr.outputs, fewest))
    return (*results, *(tv for tv in fusion.outputs if tv not in after and tv not in results)) if results else ()


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
    operands = set(inputs)
    exprs = needed_exprs([expr for expr in fusion.exprs if operands.isdisjoint(expr.outputs)], outputs)
    return Fusion(inputs=inputs, exprs=exprs, outputs=outputs, keeps_float=fusion.keeps_float)


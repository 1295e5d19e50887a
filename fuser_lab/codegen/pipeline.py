"""The way from a request to the source of its kernel, in steps that can be looked at one by one.

`generate` takes all steps, and returns the source with the origin of each line.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

from fuser_lab.analysis.numbering import number_values
from fuser_lab.codegen.decompose import decompose, welford_of, with_float_values
from fuser_lab.codegen.emitter import Place, Source
from fuser_lab.codegen.gpu_common import with_hints
from fuser_lab.codegen.kernel_ir import Kernel, Layout, Phase, Role
from fuser_lab.codegen.kernel_passes import with_passes
from fuser_lab.codegen.kernel_plan import EVALUATED, KernelOps, KernelPlan, NestPlan, plan_of
from fuser_lab.codegen.nest_writing import StylePlan
from fuser_lab.codegen.nests import Nest
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.codegen.scheduled_lowering import lower_scheduled
from fuser_lab.codegen.side_by_side import side_by_side
from fuser_lab.codegen.sizes import with_sizes
from fuser_lab.codegen.values import call_text
from fuser_lab.codegen.writers import style_plan
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.definition.scheduling import RULES
from fuser_lab.dtypes import DataType
from fuser_lab.errors import CodegenError
from fuser_lab.ir import Fusion, Scalar
from fuser_lab.ir.replay import replay
from fuser_lab.ir.term import Var
from fuser_lab.ir.transform import ScheduledFusion
from fuser_lab.schedule.parameters import Chooser, KeptChoice, NestChoice
from fuser_lab.schedule.state import Space
from fuser_lab.schedule.tuned_parameters import kept_choice
from fuser_lab.targets import names, target_of, with_blocks

_Of = TypeVar("_Of")
Made = Fusion | tuple[Nest | Space | NestChoice | StylePlan[Any], ...] | Kernel | Source
"""What a step from a request to source makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenNest:
    """The phases of a nest: one, one per pass, or two if reductions are cut into parts."""

    plan: NestPlan
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class MovesMore:
    """The answer that a kernel moves at least ``moved`` bytes, which is more than the limit."""

    moved: int


class Step(NamedTuple):
    """A step from a request to source: its name and what it makes, which ``str`` prints."""

    name: str
    made: Made

    def __str__(self) -> str:
        """Return the name, then what the step makes."""
        return f"--- {self.name}\n{text_of(self.made)}"


def steps_of(request: KernelRequest, plan: KernelPlan | None = None) -> Iterator[Step]:
    """Yield each step from a request to source, with its name and what it makes.

    A step is computed when it is asked for; ``print`` shows what it makes. ``plan`` is what `plan_kernel` returns
    for the request, if a caller has it: the writers then receive the schedules that the caller shows.

    - ``decompose``, ``accurate``, ``sums_of_rows``: the ops of the segment as kernels compute them
    - ``nests``: the loop nests that compute its outputs, one after another
    - ``space``: the properties of each nest by which loops are chosen
    - ``schedule``: the loops of each nest, with the reasons; the writers decide nothing else
    - ``plan``: how the loops' numbers divide the nest, and where its values stay, in the terms of its style
    - ``write``: Kernel IR, element by element
    - ``passes``: Kernel IR with wide accesses and cheaper values
    - ``sizes``: Kernel IR that takes sizes as arguments
    - ``print``: source

    A schedule that is lowered loop by loop (`KernelRequest.loops`) has the first and the last two steps.
    """
    if request.loops:
        fusion = decompose(with_float_values(request.fusion))
        yield Step("decompose", fusion)
        kernel = _lower_loop_by_loop(fusion, request)
    else:
        ops = KernelOps.of(request.fusion) if plan is None else plan.ops
        yield Step("decompose", ops.decomposed)
        yield Step("accurate", ops.corrected)
        yield Step("sums_of_rows", ops.fusion)
        plan = plan or plan_of(ops, request, _chooser(request))
        yield Step("nests", tuple(nest.facts.nest for nest in plan.nests))
        yield Step("space", tuple(nest.facts.space for nest in plan.nests))
        yield Step("schedule", plan.choices)
        styles = tuple(map(style_plan, plan.nests))
        yield Step("plan", styles)
        nests = tuple(map(write, styles))
        yield Step("write", kernel_of(plan, nests))
        kernel = kernel_of(plan, tuple(map(run_passes, nests)))
        yield Step("passes", kernel)
        kernel = with_sizes(kernel) if request.shared is None else request.shared.kernel(kernel)
    yield Step("sizes", kernel)
    yield Step("print", print_kernel(kernel))


def text_of(made: Made) -> str:
    """Return what a step makes as text: ops, one line per nest, or source."""
    if isinstance(made, Kernel):
        return print_kernel(made).text
    if isinstance(made, tuple):
        return "\n".join(map(str, made))
    return made.text if isinstance(made, Source) else str(made)


def write(style: StylePlan[Any]) -> WrittenNest:
    """Return the loops of a nest as the plan of its style says, element by element."""
    return WrittenNest(plan=style.nest, phases=tuple(style.phases()))


def run_passes(nest: WrittenNest) -> WrittenNest:
    """Return a nest after the passes over Kernel IR."""
    plan = nest.plan
    target, has_blocks = plan.choice.target, target_of(plan.choice.target).has_blocks
    phases = (replace(phase, body=with_passes(phase.body, target)) for phase in nest.phases)
    return replace(
        nest, phases=tuple(with_hints(phase, plan.facts, plan.schedule) if has_blocks else phase
                           for phase in phases),
    )


def written_within(plan: KernelPlan, most: int) -> tuple[WrittenNest, ...] | MovesMore:
    """Return the nests of a kernel, or, as soon as it is known, that they move more bytes than a limit."""
    moved, nests = 0, list[WrittenNest]()
    for nest in plan.nests:
        exceeding = next((moved + least for least in nest.least if moved + least > most), None)
        if exceeding is not None:
            return MovesMore(exceeding)
        nests.append(write(style_plan(nest)))
        moved = sum(phase.nbytes for phase in phases_of(nests) if not phase.prepares)
        if moved + nest.waiting > most:
            return MovesMore(moved + nest.waiting)
    return tuple(nests)


def phases_of(nests: Sequence[WrittenNest]) -> tuple[Phase, ...]:
    """Return the launches of nests as they are written; those that run side by side are one."""
    launches: list[list[Phase]] = []
    for nest in nests:
        if nest.plan.beside:
            launches[-1] += nest.phases
        else:
            launches += ([phase] for phase in nest.phases)
    return tuple(side_by_side(phases) if len(phases) > 1 else phases[0] for phases in launches)


def kernel_of(plan: KernelPlan, nests: tuple[WrittenNest, ...]) -> Kernel:
    """Return a planned kernel with its nests as they are written."""
    request = plan.request
    assert request.scheduler is not None
    phases = phases_of(nests)
    ops = {expr.name: expr for expr in plan.exprs}
    return Kernel(
        name=request.function,
        target=request.target,
        scheduler=request.scheduler,
        inputs=plan.inputs,
        scalars=tuple(map(_parameter, plan.scalars)),
        outputs=plan.outputs,
        workspace=tuple(dict.fromkeys(b for phase in phases for b in phase.buffers if b.role is Role.WORKSPACE)),
        phases=phases,
        nests=plan.choices,
        ops=tuple((name, call_text(expr)) for name, expr in ops.items()),
    )


def _parameter(value: Scalar) -> Var:
    return Var(DataType.Int if value.dtype is DataType.Index else value.dtype, value.name)


def plan_kernel(request: KernelRequest) -> KernelPlan:
    """Return the nests of a segment's kernel with their schedules, which is not written."""
    return plan_of(KernelOps.of(request.fusion), request, _chooser(request))


def _chooser(request: KernelRequest) -> Chooser:
    """Return what chooses the loops of a kernel's nests: proposed, kept or set by hand."""
    changes = [change for change in request.changes if change.target == request.target]
    return Chooser(target=request.target, changes=changes, propose=request.propose, kept=_kept_choice(request))


def _lower_loop_by_loop(fusion: Fusion, request: KernelRequest) -> Kernel:
    scheduled = replay(fusion, request.loops, RULES)
    inputs = {tensor.name for tensor in scheduled.fusion.tensor_inputs}
    # Transforms may replace outputs: ``cache_fork`` does.
    outputs = zip(dict.fromkeys(scheduled.fusion.outputs), dict.fromkeys(request.fusion.outputs), strict=True)
    return lower_scheduled(
        scheduled, RULES, request.target, request.name,
        {name: strides for name, strides in request.strides.items() if name in inputs},
        {name: nbytes for name, nbytes in request.alignment.items() if name in inputs},
        {new.name: old.name for new, old in outputs},
    )


def print_kernel(kernel: Kernel) -> Source:
    """Return a kernel as source for its target."""
    source: Source = target_of(kernel.target).emitter()(kernel).source()
    return source


def lower(request: KernelRequest, plan: KernelPlan | None = None) -> Kernel:
    """Return the Kernel IR of a segment, which takes sizes as arguments; errors are those of its steps."""
    return next(made for name, made in steps_of(request, plan) if name == "sizes" and isinstance(made, Kernel))


def lower_within(request: KernelRequest, most: int) -> Kernel | MovesMore:
    """Return the Kernel IR of a segment before its passes, or that its phases move more bytes than a limit.

    Bytes count each buffer once per phase. Lowering ends as soon as they are known to exceed the limit.
    """
    plan = plan_of(KernelOps.of(request.fusion), request, _chooser(request), counts=True)
    nests = written_within(plan, most)
    return nests if isinstance(nests, MovesMore) else kernel_of(plan, nests)


def kernel_digest(request: KernelRequest) -> str:
    """Return the digest of the kernel without parameters set by hand or kept, whatever its values are called.

    It is equal for sizes that share compiled code, which are one class of sizes.
    """
    canonical = number_values(request.fusion)
    plain = replace(
        request, fusion=canonical.fusion, name="kernel", strides=_rename(request.strides, canonical.names),
        alignment=_rename(request.alignment, canonical.names), changes=(), loops=(), kept=None, shared=None,
    )
    kernel = lower(plain)
    content = (without_comments(print_kernel(kernel).text), [phase.launch.threads for phase in kernel.phases])
    return sha256(repr(content).encode()).hexdigest()


def _kept_choice(request: KernelRequest) -> KeptChoice:
    """Return the parameters kept for the kernel, if any, or why they are not used."""
    if request.kept is None or request.scheduler is None:
        return KeptChoice()
    machine = request.kept.on(request.target, request.device)
    results = [r for r in request.kept.of(request.fusion.program, request.scheduler) if r.machine == machine]
    return kept_choice(results, kernel_digest(request), request.shapes) if results else KeptChoice()


def _rename(values: Mapping[str, _Of], names: Mapping[str, str]) -> dict[str, _Of]:
    return {names[name]: value for name, value in values.items() if name in names}


def without_comments(source: str) -> str:
    """Return generated source without the lines that are comments: equal for kernels with the same code."""
    return "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("#"))


# Per tensor input: strides in elements or a layout, and alignment in bytes.
Layouts = tuple[tuple[tuple[int, ...] | Layout, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedKernel:
    """A kernel as IR and as a Python file.

    ``line_origins[n]`` is the expression behind line n + 1, or None; ``line_statements[n]`` is the statement of Kernel
    IR that the line prints: the number of its phase, and its position there in the order of `walk`. ``repeats`` maps
    statements without a line to those whose lines compute them too. ``compiler`` is the compiler that the file is for,
    if the target has several.
    """

    kernel_ir: Kernel
    source: str
    line_origins: tuple[str | None, ...]
    line_statements: tuple[Place | None, ...]
    repeats: Mapping[Place, Place]
    compiler: str

    def lines_of(self, expr: str) -> tuple[int, ...]:
        """Return the numbers (from 1) of the lines that an expression produced."""
        return tuple(number for number, origin in enumerate(self.line_origins, 1) if origin == expr)


def evaluated_because(fusion: Fusion, scheduler: SchedulerType | None) -> str:
    """Return why the array library evaluates a segment with known extents; an empty text if it has kernels.

    Of the segments that Greedy accepts, those with only scans and pointwise ops have kernels; those with sorts or
    scatters do not.
    """
    if scheduler is None:
        return "no scheduler accepts it"
    if scheduler in EVALUATED:
        return scheduler.value
    return scheduler.value if scheduler is SchedulerType.GREEDY and not _has_kernels(fusion) else ""


@lru_cache(maxsize=1024)
def _has_kernels(fusion: Fusion) -> bool:
    """Whether each target has a kernel for a segment that Greedy accepts."""
    try:
        for target in names():
            lower(KernelRequest(fusion=fusion, scheduler=SchedulerType.GREEDY, target=target))
    except CodegenError:
        return False
    return True


def generate(request: KernelRequest, plan: KernelPlan | None = None) -> GeneratedKernel:
    """Return the kernel of a segment, scheduled by the heuristics and parameters set by hand, or by transforms.

    ``plan`` is the planned kernel of the request, if a caller has it (`fuser_lab.codegen.pipeline.plan_kernel`).

    Raises
    ------
    ScheduleError
        If parameters set by hand are illegal, or loops cannot be lowered.
    CodegenError
        If the segment has no kernel, with the reason.
    """
    _check(request)
    if request.loops:
        return generated_from(lower(request))
    plan = plan or plan_kernel(request)
    welfords = welford_of(request.fusion)
    corrections = {name: welfords.get(expr, expr) for name, expr in plan.ops.corrections().items()}
    return generated_from(lower(request, plan), welfords | corrections)


def schedules_of(request: KernelRequest) -> tuple[NestChoice, ...]:
    """Return the loops of each nest of a segment's kernel, which is not written; errors are those of `generate`."""
    _check(request)
    if request.loops or request.scheduler is SchedulerType.GREEDY:
        return lower(request).nests  # whether a Greedy segment has a kernel is known when it is written
    return plan_kernel(request).choices


def _check(request: KernelRequest) -> None:
    if request.target not in names():
        raise CodegenError(f"unknown target {request.target!r}; choose from {', '.join(map(repr, names()))}.")


def generated_from(kernel: Kernel, origins: Mapping[str, str] | None = None) -> GeneratedKernel:
    """Return a kernel with its source, whose lines come from the expressions that some expressions stand for."""
    source, recorded = print_kernel(kernel), origins or {}
    return GeneratedKernel(
        kernel_ir=kernel, source=source.text,
        line_origins=tuple(None if name is None else recorded.get(name, name) for name in source.origins),
        line_statements=source.statements, repeats=source.repeats, compiler=source.compiler,
    )


def generate_scheduled(
    scheduled: ScheduledFusion, name: str = "", layouts: Layouts | None = None, target: str | None = None,
) -> GeneratedKernel:
    """Return the kernel of a scheduled fusion with known extents, lowered loop by loop; needs no GPU.

    Parameters
    ----------
    scheduled
        A concretized fusion with its transforms.
    name
        Name of the kernel's function.
    layouts
        Strides in elements, or a layout, and alignment in bytes of each tensor input; dense and aligned to 16 by
        default.
    target
        The name of a target with blocks; by default the first one registered.

    Raises
    ------
    ScheduleError
        If the schedule cannot be lowered.
    CodegenError
        If the target has no blocks.
    """
    inputs = scheduled.fusion.tensor_inputs
    pairs = layouts or ()
    strides = {tv.name: strides for tv, (strides, _) in zip(inputs, pairs, strict=bool(pairs))}
    alignments = {tv.name: alignment for tv, (_, alignment) in zip(inputs, pairs, strict=bool(pairs))}
    return generated_from(lower_scheduled(scheduled, RULES, target or with_blocks().name, name, strides, alignments))

"""Generation of the source of a segment's kernel."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from fuser_lab.codegen.decompose import welford_of
from fuser_lab.codegen.emitter import Place
from fuser_lab.codegen.kernel_ir import Kernel
from fuser_lab.codegen.kernel_plan import EVALUATED, KernelPlan
from fuser_lab.codegen.layout import Layout
from fuser_lab.codegen.pipeline import lower, plan_kernel, print_kernel
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.codegen.scheduled_lowering import lower_scheduled
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.definition.scheduling import RULES
from fuser_lab.errors import CodegenError
from fuser_lab.ir import Fusion
from fuser_lab.ir.transform import ScheduledFusion
from fuser_lab.schedule.parameters import NestChoice
from fuser_lab.targets import names, with_blocks

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
        return _generate(lower(request))
    plan = plan or plan_kernel(request)
    served, renamed = plan.ops.corrections(), welford_of(request.fusion)
    return _generate(lower(request, plan), renamed | {name: renamed.get(expr, expr) for name, expr in served.items()})


def schedules_of(request: KernelRequest) -> tuple[NestChoice, ...]:
    """Return the loops of each nest of a segment's kernel, which is not written; errors are those of `generate`."""
    _check(request)
    if request.loops or request.scheduler is SchedulerType.GREEDY:
        return lower(request).nests  # whether a Greedy segment has a kernel is known when it is written
    return plan_kernel(request).choices


def _check(request: KernelRequest) -> None:
    if request.target not in names():
        msg = f"unknown target {request.target!r}; choose from {', '.join(map(repr, names()))}."
        raise CodegenError(msg)


def _generate(kernel: Kernel, origins: Mapping[str, str] | None = None) -> GeneratedKernel:
    """Return a kernel with its source, whose lines come from the expressions that some expressions stand for."""
    source, served = print_kernel(kernel), origins or {}
    return GeneratedKernel(
        kernel_ir=kernel, source=source.text,
        line_origins=tuple(None if name is None else served.get(name, name) for name in source.origins),
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
    return _generate(lower_scheduled(scheduled, RULES, target or with_blocks().name, name, strides, alignments))

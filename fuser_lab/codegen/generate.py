"""Generation of the source of a segment's kernel."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import TypeVar

from fuser_lab.analysis.numbering import numbered
from fuser_lab.codegen.accurate import corrections
from fuser_lab.codegen.decompose import decompose, welford_of
from fuser_lab.codegen.emitter import Place
from fuser_lab.codegen.kernel_ir import ALIGNED, Kernel
from fuser_lab.codegen.layout import Layout, layout_of
from fuser_lab.codegen.lower import lower
from fuser_lab.codegen.scheduled_lowering import lower_scheduled
from fuser_lab.codegen.varying import SharedKernels
from fuser_lab.cost.device import DEFAULT, Device
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.definition.scheduling import RULES
from fuser_lab.errors import CodegenError
from fuser_lab.ir import Fusion, TensorView
from fuser_lab.ir.replay import replay
from fuser_lab.ir.transform import ScheduledFusion, Transform
from fuser_lab.schedule.base import Propose
from fuser_lab.schedule.parameters import KeptChoice, LoopChange
from fuser_lab.schedule.tuned_parameters import Kept, Shapes, kept_choice
from fuser_lab.targets import CPU, names, target_of, with_blocks

EVALUATED = frozenset({SchedulerType.EXPR_EVAL, SchedulerType.NO_OP, SchedulerType.MATMUL})
"""The schedulers whose segments have no kernels."""

_Of = TypeVar("_Of")

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
            lower(fusion, SchedulerType.GREEDY, target, "asked", {})
    except CodegenError:
        return False
    return True


def generate(
    fusion: Fusion, scheduler: SchedulerType, target: str = CPU.name, name: str | None = None,
    strides: Mapping[str, Sequence[int] | Layout] | None = None, alignment: Mapping[str, int] | None = None,
    changes: Sequence[LoopChange] = (), device: Device = DEFAULT, shared: SharedKernels | None = None,
    loops: Sequence[Transform] = (), propose: Propose | None = None, kept: Kept | None = None,
) -> GeneratedKernel:
    """Return the kernel of a segment, scheduled by the heuristics and ``changes``, or by ``loops``.

    Parameters
    ----------
    fusion
        A segment with known extents.
    scheduler
        The scheduler that accepted it; `EVALUATED` schedulers have no kernels.
    target
        Name of a target, such as ``"cuda"``.
    name
        Name of the kernel's function, or the prefix of its functions; by default made from the scheduler and the first
        output, so that equal segments have equal source in every plan.
    strides
        Strides in elements of inputs and outputs that are not dense in their allocation order, by name; a layout for
        those that are views in a larger buffer.
    alignment
        Alignment in bytes of the memory of inputs, by name, if it is less than 16.
    changes
        Parameters set by hand. Parameters that these strides do not allow keep the heuristics' choice; for dense inputs
        they raise an error.
    device
        The GPU whose limits the loops of a CUDA kernel respect: shared memory, registers, multiprocessors.
    shared
        The kernels of the same segment at other sizes, with which it shares compiled code.
    loops
        A schedule that is lowered loop by loop (`fuser_lab.codegen.scheduled_lowering`), for targets with blocks.
    propose
        Proposes parameters of a nest instead of the default (`fuser_lab.schedule.base.Heuristics`).
    kept
        Results of `fl.tune` that were kept: those for this kernel replace what is proposed.

    Raises
    ------
    ScheduleError
        If parameters set by hand are illegal, or loops cannot be lowered.
    CodegenError
        If the segment has no kernel, with the reason.
    """
    if scheduler in EVALUATED:
        msg = f"a segment of {scheduler.value} has no kernel, because the array library evaluates it."
        raise CodegenError(msg)
    if target not in names():
        msg = f"unknown target {target!r}; choose from {', '.join(map(repr, names()))}."
        raise CodegenError(msg)
    if loops:
        scheduled = replay(decompose(fusion), loops, RULES)
        layouts = tuple(
            (layout_of(tv, (strides or {}).get(tv.name)), (alignment or {}).get(tv.name, ALIGNED))
            for tv in scheduled.fusion.tensor_inputs
        )
        return generate_scheduled(scheduled, name, layouts, fusion.outputs, target)
    chosen = name or f"{scheduler.value}_{fusion.outputs[0].name if fusion.outputs else 'nothing'}"
    here = tuple(change for change in changes if change.target == target)
    strict = not strides and not alignment
    problem = Problem(
        fusion=fusion, scheduler=scheduler, target=target, strides=strides or {}, alignment=alignment or {},
        device=device, propose=propose,
    )
    kernel = lower(
        fusion, scheduler, target, chosen, strides or {}, alignment, here, strict=strict, device=device, shared=shared,
        propose=propose, kept=problem.choice(kept),
    )
    source = target_of(target).emitter()(kernel).source()
    served, renamed = corrections(decompose(fusion)), welford_of(fusion)

    def origin(name: str) -> str:
        expr = served.get(name, name)
        return renamed.get(expr, expr)

    origins = tuple(None if name is None else origin(name) for name in source.origins)
    return GeneratedKernel(
        kernel_ir=kernel, source=source.text, line_origins=origins, line_statements=source.statements,
        repeats=source.repeats, compiler=source.compiler,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A kernel that is wanted, by which results of `fl.tune` are found again; fields are parameters of `generate`."""

    fusion: Fusion
    scheduler: SchedulerType
    target: str
    strides: Mapping[str, Sequence[int] | Layout]
    alignment: Mapping[str, int]
    device: Device
    propose: Propose | None = None

    @property
    def shapes(self) -> Shapes:
        """The shapes of the inputs."""
        return tuple(tv.shape for tv in self.fusion.tensor_inputs)

    def kernel(self) -> str:
        """Return the digest of the kernel without parameters set by hand or kept, whatever its values are called.

        It is equal for sizes that share compiled code, which are one class of sizes.
        """
        same = numbered(self.fusion)
        made = generate(
            same.fusion, self.scheduler, self.target, "kernel", _renamed(self.strides, same.names),
            _renamed(self.alignment, same.names), device=self.device, propose=self.propose,
        )
        content = (without_comments(made.source), [phase.launch.threads for phase in made.kernel_ir.phases])
        return sha256(repr(content).encode()).hexdigest()

    def lowered(self, changes: Sequence[LoopChange], kept: Kept | None) -> Kernel:
        """Return the Kernel IR with parameters set by hand for the target, and kept ones."""
        here = tuple(change for change in changes if change.target == self.target)
        return lower(
            self.fusion, self.scheduler, self.target, "kernel", self.strides, self.alignment, here,
            strict=not self.strides and not self.alignment, device=self.device, propose=self.propose,
            kept=self.choice(kept),
        )

    def choice(self, kept: Kept | None) -> KeptChoice | None:
        """Return what is kept for this kernel, or why it is not used; None if nothing is."""
        if kept is None:
            return None
        machine = kept.on(self.target, self.device)
        found = [one for one in kept.of(self.fusion.program, self.scheduler) if one.machine == machine]
        return kept_choice(found, self.kernel(), self.shapes) if found else None


def _renamed(values: Mapping[str, _Of], names: Mapping[str, str]) -> dict[str, _Of]:
    return {names[name]: value for name, value in values.items() if name in names}


def without_comments(source: str) -> str:
    """Return generated source without the lines that are comments: equal for kernels with the same code."""
    return "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("#"))


def generate_scheduled(
    scheduled: ScheduledFusion, name: str | None = None, layouts: Layouts | None = None,
    outputs: Sequence[TensorView] | None = None, target: str | None = None,
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
    outputs
        The outputs before the transforms, which name the kernel's outputs; ``cache_fork`` would otherwise rename an
        output.
    target
        The name of a target with blocks; by default the first one registered.

    Raises
    ------
    ScheduleError
        If the schedule cannot be lowered.
    CodegenError
        If the target has no blocks.
    """
    runs_on = with_blocks() if target is None else target_of(target)
    if not runs_on.has_blocks:
        msg = (
            f"loops over blocks and threads have no kernel for {target!r}: they run on GPUs, and the CPU evaluates "
            f"that kernel in lock step; see source({with_blocks().name!r})."
        )
        raise CodegenError(msg)
    inputs = scheduled.fusion.tensor_inputs
    given = layouts or ()
    strides = {tv.name: strides for tv, (strides, _) in zip(inputs, given, strict=bool(given))}
    alignments = {tv.name: alignment for tv, (_, alignment) in zip(inputs, given, strict=bool(given))}
    chosen = name or f"by_hand_{scheduled.fusion.outputs[0].name}"
    made = dict.fromkeys(scheduled.fusion.outputs)
    named = {} if outputs is None else {b.name: a.name for a, b in zip(dict.fromkeys(outputs), made, strict=True)}
    kernel = lower_scheduled(scheduled, RULES, runs_on.name, chosen, strides, alignments, named)
    source = runs_on.emitter()(kernel).source()
    return GeneratedKernel(
        kernel_ir=kernel, source=source.text, line_origins=source.origins, line_statements=source.statements,
        repeats=source.repeats, compiler=source.compiler,
    )

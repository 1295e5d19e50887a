"""The way from a request to the source of its kernel, in steps that can be looked at one by one."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import TypeVar

from fuser_lab.analysis.numbering import number_values
from fuser_lab.codegen.decompose import decompose
from fuser_lab.codegen.emitter import Source
from fuser_lab.codegen.kernel_ir import Kernel
from fuser_lab.codegen.kernel_plan import KernelOps, KernelPlan, plan_of
from fuser_lab.codegen.lower import MovesMore, kernel_of, run_passes, write, written_within
from fuser_lab.codegen.nests import Nest
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.codegen.scheduled_lowering import lower_scheduled
from fuser_lab.codegen.sizes import with_sizes
from fuser_lab.definition.scheduling import RULES
from fuser_lab.ir import Fusion
from fuser_lab.ir.replay import replay
from fuser_lab.schedule.parameters import Chooser, KeptChoice, NestChoice
from fuser_lab.schedule.state import Space
from fuser_lab.schedule.tuned_parameters import kept_choice
from fuser_lab.targets import target_of

_Of = TypeVar("_Of")
Made = Fusion | tuple[Nest, ...] | tuple[Space, ...] | tuple[NestChoice, ...] | Kernel | Source
"""What a step from a request to source makes."""


def steps_of(request: KernelRequest, plan: KernelPlan | None = None) -> Iterator[tuple[str, Made]]:
    """Yield the name of each step from a request to source, and what it makes.

    A step is computed when it is asked for; `text_of` prints what it makes. ``plan`` is what `plan_kernel` returns
    for the request, if a caller has it: the writers then receive the schedules that the caller shows.

    - ``decompose``, ``accurate``, ``sums_of_rows``: the ops of the segment as kernels compute them
    - ``nests``: the loop nests that compute its outputs, one after another
    - ``space``: the properties of each nest by which loops are chosen
    - ``schedule``: the loops of each nest, with the reasons; the writers decide nothing else
    - ``write``: Kernel IR, element by element
    - ``passes``: Kernel IR with wide accesses and cheaper values
    - ``sizes``: Kernel IR that takes sizes as arguments
    - ``print``: source

    A schedule that is lowered loop by loop (`KernelRequest.loops`) has the first and the last two steps.
    """
    if request.loops:
        fusion = decompose(request.fusion)
        yield "decompose", fusion
        kernel = _lower_loop_by_loop(fusion, request)
    else:
        ops = KernelOps.of(request.fusion) if plan is None else plan.ops
        yield "decompose", ops.decomposed
        yield "accurate", ops.corrected
        yield "sums_of_rows", ops.fusion
        plan = plan or plan_of(ops, request, _chooser(request))
        yield "nests", tuple(nest.facts.nest for nest in plan.nests)
        yield "space", tuple(nest.facts.space for nest in plan.nests)
        yield "schedule", plan.choices
        nests = tuple(map(write, plan.nests))
        yield "write", kernel_of(plan, nests)
        kernel = kernel_of(plan, tuple(map(run_passes, nests)))
        yield "passes", kernel
        kernel = with_sizes(kernel) if request.shared is None else request.shared.kernel(kernel)
    yield "sizes", kernel
    yield "print", print_kernel(kernel)


def text_of(made: Made) -> str:
    """Return what a step makes as text: ops, one line per nest, or source."""
    if isinstance(made, Kernel):
        return print_kernel(made).text
    if isinstance(made, tuple):
        return "\n".join(map(str, made))
    return made.text if isinstance(made, Source) else str(made)


def plan_kernel(request: KernelRequest) -> KernelPlan:
    """Return the nests of a segment's kernel with their schedules, which is not written."""
    return plan_of(KernelOps.of(request.fusion), request, _chooser(request))


def _chooser(request: KernelRequest) -> Chooser:
    """Return what chooses the loops of a kernel's nests: proposed, kept or set by hand."""
    changes = [change for change in request.changes if change.target == request.target]
    kept_results = _kept_choice(request) or KeptChoice()
    return Chooser(target=request.target, changes=changes, propose=request.propose, kept=kept_results)


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


def _kept_choice(request: KernelRequest) -> KeptChoice | None:
    """Return what is kept for the kernel, or why it is not used; None if nothing is."""
    kept_results = request.kept
    if kept_results is None or request.scheduler is None:
        return None
    machine = kept_results.on(request.target, request.device)
    results = [r for r in kept_results.of(request.fusion.program, request.scheduler) if r.machine == machine]
    return kept_choice(results, kernel_digest(request), request.shapes) if results else None


def _rename(values: Mapping[str, _Of], names: Mapping[str, str]) -> dict[str, _Of]:
    return {names[name]: value for name, value in values.items() if name in names}


def without_comments(source: str) -> str:
    """Return generated source without the lines that are comments: equal for kernels with the same code."""
    return "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("#"))

"""One form: its kernels generated, compiled and evaluated in lock step, with the branches that were taken."""

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np

from fuser_lab.analysis.smaller import smaller
from fuser_lab.api.functions import FusionDefinition, segment
from fuser_lab.codegen.host_features import host_features
from fuser_lab.codegen.kernel_profile import kernel_features
from fuser_lab.codegen.links import machine_lines, schedule_lines, source_lines
from fuser_lab.codegen.one_kernel import OPEN_SCHEDULERS, without_rules
from fuser_lab.codegen.pipeline import GeneratedKernel, generate, kernel_digest, steps_of, text_of
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.codegen.statement_traffic import statement_traffic
from fuser_lab.codegen.varying import SharedKernels
from fuser_lab.cost.device import Device
from fuser_lab.cost.host_time import HostCaches
from fuser_lab.cost.verdict import SchedulerType, Verdict
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import (
    ArgumentTypeError,
    CodegenError,
    EvaluationWarning,
    FuserLabError,
    InputError,
    ScheduleError,
    UnsupportedError,
)
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion, TensorView
from fuser_lab.ir.transform import MemoryType, ParallelType
from fuser_lab.plan import Plan, Segment
from fuser_lab.plan.requests import request_of
from fuser_lab.runtime.gpu.ptx import compile_phases, kernel_key, listing
from fuser_lab.schedule.base import Heuristics, Scheduler, heuristics_of
from fuser_lab.schedule.by_hand import apply_schedule
from fuser_lab.schedule.facts import CandidateFacts
from fuser_lab.schedule.open import LIFTABLE
from fuser_lab.schedule.own import schedulers_text, with_rule
from fuser_lab.schedule.parameters import Chooser, describe
from fuser_lab.schedule.registry import SCHEDULERS
from fuser_lab.schedule.state import LoopSchedule, Space
from fuser_lab.schedule.suggestions import suggestions
from fuser_lab.schedule.tuned_parameters import Kept, KeptResult, Machine
from fuser_lab.segmentation import SegmenterOptions
from fuser_lab.targets import target_of
from tests import agreement, hand_schedules
from tests.forms.form import Form, Given
from tests.forms.trace import Arc, Tracer
from tests.fuzz.program import Program, TensorInput
from tests.schedule_coverage import number_changes

MOST_ELEMENTS = 1 << 18  # of a tensor
QUESTIONS = (
    "steps", "predicted", "candidates", "schedule", "schedule_for", "traffic", "features", "host", "shared", "kept",
    "rule", "written", "lifted", "links", "suggested", "proposed", "edited", "reversed", "lowered",
)
_CACHES = HostCaches(threads=4, first=1 << 15, second=1 << 19, last=1 << 22)
_FEW = 3  # expressions that schedulers with the rule accept


_COMPILED: set[object] = set()  # kernels that were compiled by this process


class Refused(Exception):  # noqa: N818 - an outcome: the form is not legal, and the package says so
    """A form that the package refuses, with its error."""


@dataclass(slots=True)
class Made:
    """A form's plan, its inputs and kernels, and the arcs by what happened to the kernels.

    ``refusal`` is the error by which the package refuses the form or a part of it.
    """

    form: Form
    program: Program
    fd: FusionDefinition
    inputs: list[Any]
    fusion: Fusion
    plan: Plan | None = None
    kernels: dict[int, GeneratedKernel] = field(default_factory=dict)
    arcs: set[Arc] = field(default_factory=set)
    refusal: str = ""


def made(form: Form, tracer: Tracer) -> Made:
    """Return a form's kernels, generated; nothing is compiled or evaluated.

    Raises
    ------
    Refused
        If the package refuses the program.
    """
    if form.elements > MOST_ELEMENTS << 1:
        msg = "too many elements to evaluate in lock step"
        raise Refused(msg)
    program = form.program()
    inputs = program.arrays()
    try:
        fd = program.define()
        fusion = agreement.bound(fd, inputs)
    except FuserLabError as error:
        raise Refused(str(error)) from error
    if max((tv.numel for tv in fusion.tensors.values()), default=0) > MOST_ELEMENTS:
        msg = "too many elements to evaluate in lock step"
        raise Refused(msg)
    found = Made(form=form, program=program, fd=fd, inputs=inputs, fusion=fusion)
    real: tuple[LoopSchedule, ...] = ()
    if form.real:
        arcs = set[Arc]()
        with tracer.into(arcs):
            real = loops_of(form.sized(form.real))
        # No kernel of these sizes is evaluated: what counts is the choice of loops, which other kernels have.
        found.arcs |= {arc for arc in arcs if arc[0].startswith("schedule/")}
    with tracer.into(found.arcs), _forced(real):
        try:
            (_by_hand if form.actions else _planned)(found)
        except (ArgumentTypeError, ScheduleError, UnsupportedError, CodegenError) as error:
            found.refusal = f"{type(error).__name__}: {error}"
    return found


def loops_of(form: Form) -> tuple[LoopSchedule, ...]:
    """Return the loops that are chosen for the first kernel of a form; its inputs take no memory."""
    program = form.program(is_filled=False)
    given: list[Any] = [
        TensorSpec(shape=x.values.shape, dtype=x.dtype, strides=_strides(x)) if isinstance(x, TensorInput) else x.value
        for x in program.inputs
    ]
    plan = _plan(program.define(), given, form)
    part = _first_kernel(plan)
    return () if part is None else tuple(choice.schedule for choice in part.params(form.target))


def _strides(tensor: TensorInput) -> tuple[int, ...]:
    """Return the strides of a tensor input in elements, as those of its array."""
    strides, step = [0] * tensor.values.ndim, tensor.step
    for axis in reversed(tensor.order or range(tensor.values.ndim)):
        strides[axis] = step
        step *= tensor.values.shape[axis]
    return tuple(strides)


@contextlib.contextmanager
def _forced(loops: Sequence[LoopSchedule]) -> Iterator[None]:
    """Give the nests of kernels these loops instead of those that are chosen, where they are of the same kind."""
    plain = Chooser.choice_from

    def choice_from(self: Chooser, number: int, space: Space, chosen: LoopSchedule, *notes: Any) -> Any:
        if number < len(loops) and loops[number].kind is chosen.kind and space.vector % loops[number].vector == 0:
            chosen = loops[number]
        return plain(self, number, space, chosen, *notes)

    with patch.object(Chooser, "choice_from", choice_from) if loops else contextlib.nullcontext():
        yield


def _plan(fd: FusionDefinition, inputs: Sequence[Any], form: Form) -> Plan:
    return segment(
        fd, inputs, strategy=form.strategy, target=form.gpu(), schedulers=_schedulers(form),  # type: ignore[arg-type]
        options=SegmenterOptions(**dict(form.options)),
    )


def _planned(found: Made) -> None:
    form = found.form
    plan = _plan(found.fd, found.inputs, form)
    for change in form.changes:
        if change.segment < len(plan.segments) and "kept" not in form.questions:
            plan = plan.with_params(
                change.segment, target=form.target, nest=change.nest, **dict(change.values),
            )
    if "edited" in form.questions:
        plan = _edited(plan, form)
    part = _first_kernel(plan) if form.edits else None
    if part is not None:
        text = str(part.schedule_for(form.target))
        for pattern, instead in form.edits:
            text = re.sub(pattern, instead, text)
        plan = plan.with_schedule(part.index, text)
    found.plan = plan
    given = {
        v.name: agreement.element_strides(x)
        for v, x in zip(plan.fusion.inputs, found.inputs, strict=False) if isinstance(x, np.ndarray)
    }
    for part in plan.segments:
        if not agreement.evaluated_because(part.fusion, part.scheduler):
            strides = {name: s for name, s in given.items() if name in part.fusion.tensors}
            found.kernels[part.index] = _kernel(found, part, strides, form.target)
            _answers(part, found.kernels[part.index], form)


def _first_kernel(plan: Plan) -> Segment | None:
    return next((one for one in plan.segments if not agreement.evaluated_because(one.fusion, one.scheduler)), None)


def _edited(plan: Plan, form: Form) -> Plan:
    """Return the plan with one number of the schedule of its first kernel doubled or halved, in its text."""
    part = _first_kernel(plan)
    changes = () if part is None else tuple(number_changes(part, form.target))
    if part is None or not changes:
        return plan
    edited = plan.with_schedule(part.index, changes[sum(map(len, form.calls)) % len(changes)].text)
    is_lowered = any(one.loops for one in edited.segments)
    return plan if is_lowered and not target_of(form.target).has_blocks else edited


@dataclass(frozen=True, slots=True)
class _Proposing(Heuristics):
    """A scheduler that proposes what nvFuser's does, unrolled differently."""

    scheduler: Scheduler

    @property
    def type(self) -> SchedulerType:
        return self.scheduler.type

    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        return self.scheduler.can_schedule(facts, device)

    def propose(self, space: Space, target: str) -> LoopSchedule:
        found = heuristics_of(self.scheduler).propose(space, target)
        return replace(found, unroll=2) if found.unroll == 1 and found.threads[1] == 1 else found


def _kernel(found: Made, part: Any, strides: Mapping[str, tuple[int, ...]], target: str) -> GeneratedKernel:
    inputs = found.form.inputs
    alignment = {
        v.name: one.alignment for v, one in zip(part.plan.fusion.inputs, inputs, strict=False)
        if isinstance(one, Given) and one.alignment < 16 and v.name in part.fusion.tensors
    }
    request = replace(request_of(part, target), name="kernel", strides=strides, alignment=alignment, kept=None)
    questions, shared = found.form.questions, None
    if "shared" in questions:
        shared = SharedKernels()
        with contextlib.suppress(UnsupportedError):
            fusion, _ = smaller(part.fusion, max(max(tv.numel for tv in part.fusion.tensors.values()) // 2, 1))
            generate(
                KernelRequest(
                    fusion=fusion, scheduler=part.scheduler, target=target, name="kernel", shared=shared,
                    device=request.device,
                ),
            )
    return generate(
        replace(request, shared=shared, kept=_kept(request, found.form) if "kept" in questions else None),
    )


def _schedulers(form: Form) -> Any:
    """Return the schedulers that a form asks."""
    if "rule" in form.questions:
        return with_rule(lambda facts, device: None if len(facts.candidate.exprs) <= _FEW else "too many")
    if "written" in form.questions:
        found = with_rule(lambda facts, device: None, *(one.type for one in SCHEDULERS[:_FEW]))
        for several in (SCHEDULERS, OPEN_SCHEDULERS, found, found[:_FEW], [*SCHEDULERS, _Proposing(SCHEDULERS[0])]):
            schedulers_text(several)
        return found
    if "proposed" in form.questions:
        return [_Proposing(one) for one in SCHEDULERS]
    if "reversed" in form.questions:
        return OPEN_SCHEDULERS.schedulers[::-1]
    if "lifted" in form.questions:
        codes = sorted(code.value for code in LIFTABLE)
        return without_rules(*codes[len(form.calls) % 5 :: 5])
    return OPEN_SCHEDULERS if form.is_open else None


def _kept(request: KernelRequest, form: Form) -> Kept:
    """Return the parameters of a form as results that were kept, for its sizes or for twice the first of them."""
    host = Machine(target="cpu", device="some CPU", detail="4")
    machine = Machine.of_gpu(request.target, request.device) if target_of(request.target).has_blocks else host
    shapes = request.shapes
    if len(form.calls) % 2 and shapes and shapes[0]:
        shapes = ((2 * shapes[0][0], *shapes[0][1:]), *shapes[1:])
    result = KeptResult(
        machine=machine, label=str(machine), scheduler=request.scheduler.value, program=request.fusion.program,
        kernel="another" if form.is_open else kernel_digest(request), shapes=shapes, ops=(), dtypes=(), before=2.0,
        after=1.0, changes=tuple((change.nest, change.values) for change in form.changes),
        than="the heuristics' choice", date="2026-01-01", version="0",
    )
    return Kept(results=(result,), host=host)


def _answers(part: Any, generated: GeneratedKernel, form: Form) -> None:
    """Ask what a form asks about a kernel."""
    kernel = generated.kernel_ir
    asked: dict[str, Callable[[], object]] = {
        "suggested": lambda: [(describe(n.schedule, n.space), str(n), suggestions(n)) for n in kernel.nests],
        "links": lambda: (source_lines(generated), schedule_lines(generated)),
        "traffic": lambda: statement_traffic(kernel),
        "features": lambda: kernel_features(part.fusion, kernel),
        "host": lambda: None if target_of(form.target).has_blocks else host_features(kernel, _CACHES),
        "steps": lambda: str(part.steps(form.target)),
        "lowered": lambda: [text_of(made) for _, made in steps_of(request_of(part, form.target))],
        "predicted": part.predicted_time,
        "candidates": lambda: part.candidates(form.target).table(),
        "schedule": lambda: part.plan.with_schedule(part.index, str(part.schedule)),
        "schedule_for": lambda: part.plan.with_schedule(part.index, str(part.schedule_for(form.target))),
    }
    for question in form.questions:
        if question in asked:
            asked[question]()


def _by_hand(found: Made) -> None:
    """Schedule a definition by hand, as far as the statements are legal, and generate its kernel."""
    fd, form = found.fd, found.form
    names: dict[str, Any] = {"fd": fd, "MemoryType": MemoryType, "ParallelType": ParallelType}
    names |= {"apply_schedule": apply_schedule, "SchedulerType": SchedulerType, "tensors": fd.sched.tensors()}
    for action in form.actions:
        try:
            exec(action, names)
        except (ScheduleError, UnsupportedError, IndexError):
            continue  # the schedule is as before, and there may be no such tensor
    scheduled = fd.hand.replayed(hand_schedules.bound(fd, found.inputs))
    found.kernels[0] = hand_schedules.generated(scheduled, found.inputs)


def verify(found: Made, tracer: Tracer) -> None:
    """Compile and evaluate the kernels of a form, and add the arcs of the evaluation.

    Raises
    ------
    Disagreement, FuserLabError, AssertionError
        If a kernel is wrong, or a compiler refuses it.
    """
    form = found.form
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationWarning)
        with tracer.into(found.arcs):
            got = _in_lock_step(found)
        compare(found, found.fusion.outputs, got, "in lock step")
        if not target_of(form.target).has_blocks:
            if found.plan is not None:
                got = found.plan.prepare(form.target).run(agreement.seeded(found.fusion, found.inputs))
                compare(found, agreement.visible(found.fusion, found.fusion.outputs), got, "compiled")
            return
        for kernel in found.kernels.values():
            key = kernel_key(kernel), form.gpu().cc
            if key not in _COMPILED:
                compile_phases(kernel, form.gpu().cc)
                _COMPILED.add(key)
            if "links" in form.questions:
                with tracer.into(found.arcs):
                    machine_lines("".join(listing(kernel)), kernel)


def _in_lock_step(found: Made) -> Sequence[Any]:
    if found.plan is None:
        return hand_schedules.run(found.fd.hand.replayed(hand_schedules.bound(found.fd, found.inputs)), found.inputs)
    return agreement.lock_step(
        found.plan, found.inputs, found.form.target, lambda part, strides, target: found.kernels[part.index],
    )


def compare(found: Made, outputs: Sequence[TensorView], got: Sequence[Any], how: str) -> None:
    """Raise Disagreement unless results are those of the reference evaluation, up to rounding.

    Raises
    ------
    Refused
        If the reference refuses the inputs.
    """
    try:
        wanted = evaluate(found.fusion, agreement.seeded(found.fusion, found.inputs))
    except InputError as error:  # a position in an axis without elements
        raise Refused(str(error)) from error
    by_name = dict(zip((tv.name for tv in found.fusion.outputs), wanted, strict=True))
    tolerance = 4 * agreement.tolerance_of(found.fusion)
    for tv, a in zip(outputs, got, strict=True):
        agreement.close(a, by_name[tv.name], tolerance, f"{tv.name}, {how}", dtype=False)

"""Predicted times of a plan's kernels as scheduled, and which of its segments launch no kernel."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod

import numpy as np

from fuser_lab.codegen.host_features import host_features
from fuser_lab.codegen.kernel_ir import Kernel, Layout, layout_of
from fuser_lab.codegen.kernel_profile import kernel_features
from fuser_lab.codegen.pipeline import evaluated_because, lower
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.codegen.values import level_of
from fuser_lab.cost.device import Device
from fuser_lab.cost.host_plan import host_seconds
from fuser_lab.cost.host_time import HostFeatures
from fuser_lab.cost.kernel_time import DATA_SHEET, KernelFeatures, Numbers, Prediction, kernel_model
from fuser_lab.cost.plan_time import KernelInPlan, plan_seconds
from fuser_lab.cost.predicted_times import TimeModel
from fuser_lab.cost.work import product_flops
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import CodegenError
from fuser_lab.ir import Fusion, OpKind, TensorView
from fuser_lab.plan.requests import group_request
from fuser_lab.plan.segment_edit import SegmentsPlan
from fuser_lab.runtime.plan.parts import parts_of
from fuser_lab.runtime.plan.storage import Lifetime, plan_storage
from fuser_lab.segmentation import SegmentedFusion, SegmentedGroup
from fuser_lab.segmentation.previews import Amount
from fuser_lab.targets import on_this_cpu, with_blocks

# Seconds that the array library takes for an expression on the host, beyond its bytes and arithmetic: the calls in
# Python and the copies of a segment's results, measured on an AMD EPYC on 2026-11-29. With both cores busy, `python -m
# tests.benchmarks.evaluated_ops` prints 15 to 31 us of processor time there, median 23.
EVALUATED_ON_HOST = 12e-6
MOST_LOWERED = 2000  # expressions of a fusion up to which its kernels are lowered for a plan's time: about 3 s
# Expressions, counted in each pass that computes them, up to which the kernels of a plan are lowered in about a second.
_MOST_AT_ONCE = 10_000
Features = KernelFeatures | HostFeatures
Given = tuple[tuple[int, ...], ...]  # strides in elements of each tensor among the inputs, to which no pass adds one


def given_strides(inputs: Iterable[object]) -> Given:
    """Return the strides of the tensors among described inputs."""
    return tuple(value.strides for value in inputs if isinstance(value, TensorSpec))


def found_layouts(segmented: SegmentedFusion, given: Given) -> tuple[Mapping[str, Layout], frozenset[int]]:
    """Return the layouts of inputs and of intermediate tensors in memory, and which segments are idle.

    Idle segments only make views, or results that share the memory of another tensor. ``given`` are the strides of
    the tensors among the inputs.
    """
    fusion = segmented.fusion
    parts = parts_of(fusion, [(group.candidate.narrowed, group.scheduler) for group in segmented.groups])
    layouts = {tv.name: layout_of(tv, strides) for tv, strides in zip(fusion.tensor_inputs, given, strict=True)}
    views = parts.views(layouts)
    runs = parts.live - {view.segment for view in views}
    layouts.update((view.name, view.layout) for view in views)
    return layouts, frozenset(range(len(segmented.groups))) - runs


# For each segment of a plan. A search compares many plans once, for which the key would take longer than the answer.
layouts_and_idle = lru_cache(maxsize=4)(found_layouts)


def is_slow(segmented: SegmentedFusion) -> bool:
    """Return whether lowering the kernels of a plan takes more than about a second.

    A kernel in which reductions depend on one another computes its expressions again for each of them.
    """
    if len(segmented.fusion.tensor_exprs) > MOST_LOWERED:
        return False
    parts = (group.candidate.narrowed for group in segmented.groups)
    passes = ((part, 1 + max(level_of(part).values(), default=0)) for part in parts)
    return sum(count * len(part.tensor_exprs) for part, count in passes) > _MOST_AT_ONCE


def read_layouts(tensors: Iterable[TensorView], layouts: Mapping[str, Layout]) -> dict[str, Layout]:
    """Return the layouts of the tensors that are not dense in their own memory order."""
    return {tv.name: layouts[tv.name] for tv in tensors if tv.name in layouts and layouts[tv.name] != layout_of(tv)}


def target_for(device: Device) -> str:
    """Return the target whose kernels are predicted for a device."""
    return (with_blocks() if device.host is None else on_this_cpu()).name


def features_of(fusion: Fusion, kernel: Kernel, device: Device) -> Features:
    """Return the features of a kernel that a device's model of its time uses."""
    return kernel_features(fusion, kernel) if device.host is None else host_features(kernel, device.host.caches)


def prediction_of(
    features: Features, device: Device, seconds: float | None = None, *, is_first: bool = True,
) -> Prediction:
    """Return the predicted time of a kernel in isolation, or a known time in a plan, with its interval."""
    if isinstance(features, KernelFeatures):
        return kernel_model(device).predict(features, seconds, is_first=is_first)
    rates = device.host
    assert rates is not None
    if seconds is None:
        (seconds,) = host_seconds([KernelInPlan(features=features, reads=(), writes=())], rates).tolist()
    return Prediction(
        seconds=seconds, low=rates.low * seconds, high=rates.high * seconds, source=rates.source, launch=rates.call,
    )


def kernels_in_plan(
    segmented: SegmentedFusion, idle: frozenset[int], features: Sequence[Features | None],
) -> list[KernelInPlan]:
    """Return the kernels of the segments that run, with the tensors that they access; a view counts as its base.

    For a CPU, tensors that are not live at the same time may share memory, as they do when the plan runs, and have the
    name of that memory.
    """
    base: dict[str, str] = {}
    kernels = list[KernelInPlan]()
    for number, group in enumerate(segmented.groups):
        read, written = (
            tuple((base.get(tensor.name, tensor.name), nbytes) for tensor, nbytes in touched.items())
            for touched in (group.bytes_read, {tensor: tensor.nbytes for tensor in group.outputs})
        )
        if number not in idle:
            segment_features = features[number]
            placed = segment_features.over(base) if isinstance(segment_features, HostFeatures) else segment_features
            kernels.append(KernelInPlan(features=placed, reads=read, writes=written))
        elif read:
            base.update((tensor.name, read[0][0]) for tensor in group.outputs)
    if not any(isinstance(kernel.features, HostFeatures) for kernel in kernels):
        return kernels
    in_place = {tensor.name for tensor in (*segmented.fusion.tensor_inputs, *segmented.fusion.outputs)}
    block_of = _blocks(kernels, in_place)
    return [
        replace(k, features=k.features.over(block_of)) if isinstance(k.features, HostFeatures) else k for k in kernels
    ]


def _blocks(kernels: Sequence[KernelInPlan], in_place: Collection[str]) -> dict[str, str]:
    """Return the names of the memory in which tensors and workspaces are stored that are not ``in_place``."""
    lives: dict[str, Lifetime] = {}
    for number, kernel in enumerate(kernels):
        touched = dict((*kernel.reads, *kernel.writes))
        if isinstance(kernel.features, HostFeatures):
            touched = {access.name: round(access.nbytes) for access in kernel.features.moved} | touched
        for name, nbytes in touched.items():
            if name not in in_place:
                life = lives.get(name, Lifetime(name=name, nbytes=nbytes, first=number, last=number))
                lives[name] = replace(life, last=number)
    return {name: f"block {block}" for name, block in plan_storage(list(lives.values())).block_of.items()}


class ScheduledClock:
    """Answers how long the kernels of plans take as scheduled, one after another on a device.

    Everything that shows a predicted time asks it: a plan for the sum over its segments (`predict`), a segment for its
    kernel in isolation (`alone`), and a search for the segments of the plans that it compares (`seconds`). Kernels are
    lowered, not compiled, and equal ones once.

    Parameters
    ----------
    device
        The device, with the rates of its model.
    exprs
        Total number of expressions that a search may lower.
    given
        Strides of the fusion's tensor inputs.
    request
        The request for a group's kernel, for a target; by default that of the heuristics' kernel.
    """

    def __init__(
        self, device: Device, exprs: int, given: Given,
        request: Callable[[SegmentedGroup, str], KernelRequest] | None = None,
    ) -> None:
        self._device = device
        self._given = given
        self._left = exprs
        self._request = request or self._by_heuristics
        self._asked: set[tuple[object, ...]] = set()

    def _by_heuristics(self, group: SegmentedGroup, target: str) -> KernelRequest:
        return KernelRequest(
            fusion=group.candidate.narrowed, scheduler=group.scheduler, target=target, device=self._device,
        )

    def idle(self, segmented: SegmentedFusion) -> frozenset[int]:
        """Return the numbers of the segments of a plan that launch nothing."""
        return found_layouts(segmented, self._given)[1]

    def predict(self, segmented: SegmentedFusion) -> Prediction:
        """Return the predicted time of a plan: the sum over its segments, with launches and gaps."""
        parts = self.parts(segmented)
        return Prediction(
            seconds=sum(part.seconds for part in parts), low=sum(part.low for part in parts),
            high=sum(part.high for part in parts),
            source=", ".join(dict.fromkeys(part.source for part in parts if part.seconds)),
        )

    def amount(self, segmented: SegmentedFusion) -> Amount:
        """Return the segments of a plan, the bytes that they move, and their predicted time."""
        layouts, idle = found_layouts(segmented, self._given)
        moved = sum(group.moved for number, group in enumerate(segmented.groups) if number not in idle)
        parts = tuple(part.seconds for part in self._parts(segmented, layouts, idle))
        return Amount(segments=len(segmented.groups), moved=moved, seconds=sum(parts), parts=parts)

    def parts(self, segmented: SegmentedFusion) -> tuple[Prediction, ...]:
        """Return the predicted time of each segment in its plan."""
        return self._parts(segmented, *found_layouts(segmented, self._given))

    def _parts(
        self, segmented: SegmentedFusion, layouts: Mapping[str, Layout], idle: frozenset[int],
    ) -> tuple[Prediction, ...]:
        if len(segmented.fusion.tensor_exprs) > MOST_LOWERED:
            return tuple(
                _IDLE if number in idle else self._by_bytes(group) for number, group in enumerate(segmented.groups)
            )
        answers = [
            _IDLE if number in idle else self._kernel(group, layouts) for number, group in enumerate(segmented.groups)
        ]
        times = self._times(segmented, idle, answers)
        first = min(set(range(len(answers))) - idle, default=0)
        return tuple(
            part if isinstance(part, Prediction) else prediction_of(part, self._device, seconds, is_first=n == first)
            for n, (part, seconds) in enumerate(zip(answers, times, strict=True))
        )

    def alone(self, segmented: SegmentedFusion, number: int) -> Prediction:
        """Return the predicted time of a segment's kernel in isolation."""
        part = self.features(segmented, number)
        return part if isinstance(part, Prediction) else prediction_of(part, self._device)

    def features(self, segmented: SegmentedFusion, number: int) -> Features | Prediction:
        """Return the features of a segment's kernel, or the predicted time if there is no kernel."""
        layouts, idle = layouts_and_idle(segmented, self._given)
        return _IDLE if number in idle else self._kernel(segmented.groups[number], layouts)

    def seconds(self, segmented: SegmentedFusion, *, limited: bool = True) -> Sequence[float | None]:
        """Return the predicted seconds of each segment in its plan; None for segments beyond the limit."""
        idle, answers = self._answers(segmented, limited=limited)
        return self._times(segmented, idle, answers)

    def is_sure(self, faster: SegmentedFusion, slower: SegmentedFusion) -> bool:
        """Return whether one plan is predicted to be faster than another with each rate halved and doubled.

        That is so if it does the same and less of something: errors in the times of what both do cancel. On a GPU,
        where a kernel's time also depends on how many of its threads run at the same time, it has fewer kernels too.
        """
        (first, rest), (second, other_rest) = self._in_plan(faster), self._in_plan(slower)
        rates = self._device.host
        if rates is None and len(first) >= len(second):
            return False
        cases: Iterable[Callable[[Sequence[KernelInPlan]], Numbers]] = (
            (partial(plan_seconds, model=model) for model in kernel_model(self._device).with_errors())
            if rates is None else (partial(host_seconds, rates=case) for case in rates.with_errors())
        )
        return all(float(np.nansum(case(first))) + rest < float(np.nansum(case(second))) + other_rest for case in cases)

    def _in_plan(self, segmented: SegmentedFusion) -> tuple[list[KernelInPlan], float]:
        """Return the segments of a plan that are not idle, and the seconds of those without a generated kernel."""
        idle, answers = self._answers(segmented, limited=False)
        rest = sum(part.seconds for part in answers if isinstance(part, Prediction))
        of_kernels = [part if isinstance(part, Features) else None for part in answers]
        return kernels_in_plan(segmented, idle, of_kernels), rest

    def _times(
        self, segmented: SegmentedFusion, idle: frozenset[int], answers: Sequence[Features | Prediction | None],
    ) -> list[float | None]:
        """Return the seconds of each segment in its plan: of kernels from their features, of others as predicted."""
        of_kernels = [part if isinstance(part, Features) else None for part in answers]
        kernels, rates = kernels_in_plan(segmented, idle, of_kernels), self._device.host
        predicted = host_seconds(kernels, rates) if rates else plan_seconds(kernels, kernel_model(self._device))
        seconds = iter(predicted.tolist())
        times: list[float | None] = []
        for number, part in enumerate(answers):
            in_plan = 0.0 if number in idle else next(seconds)
            times.append(in_plan if isinstance(part, Features) else None if part is None else part.seconds)
        return times

    def _answers(
        self, segmented: SegmentedFusion, *, limited: bool,
    ) -> tuple[frozenset[int], list[Features | Prediction | None]]:
        """Return which segments are idle, and what is known of each kernel; None for those beyond the limit."""
        layouts, idle = found_layouts(segmented, self._given)
        answers: list[Features | Prediction | None] = []
        for number, group in enumerate(segmented.groups):
            is_asked = number not in idle and self._may_ask(group, layouts, limited)
            answers.append(_IDLE if number in idle else self._kernel(group, layouts) if is_asked else None)
        return idle, answers

    def _may_ask(self, group: SegmentedGroup, layouts: Mapping[str, Layout], limited: bool) -> bool:
        """Count the expressions of a kernel that a search has not asked for; return False beyond the limit."""
        request = self._asked_for(group, layouts)
        if request is None or request.key in self._asked:
            return True
        exprs = len(request.fusion.tensor_exprs)
        if limited and self._left < exprs:
            return False
        self._left -= exprs
        self._asked.add(request.key)
        return True

    def _asked_for(self, group: SegmentedGroup, layouts: Mapping[str, Layout]) -> KernelRequest | None:
        """Return the request for a group's kernel, None if the array library evaluates it."""
        fusion = group.candidate.narrowed
        if group.scheduler is None or evaluated_because(fusion, group.scheduler):
            return None
        request = self._request(group, target_for(self._device))
        if request.loops and self._device.host is not None:
            return None  # such a schedule is for targets with blocks
        return replace(request, strides=read_layouts(fusion.tensor_inputs, layouts))

    def _kernel(self, group: SegmentedGroup, layouts: Mapping[str, Layout]) -> Features | Prediction:
        request = self._asked_for(group, layouts)
        lowered = None if request is None else _lower(request)
        if request is None or lowered is None:
            return self._library_time(group)
        if lowered.features is None:
            return Prediction(seconds=0.0, low=0.0, high=0.0, source="tensors without elements, which need no kernel")
        if isinstance(lowered.features, KernelFeatures):
            return lowered.features
        names = zip(lowered.names, _names(request.fusion), strict=True)
        return lowered.features.over({before: name for before, name in names if before != name})

    def _library_time(self, group: SegmentedGroup) -> Prediction:
        """Return the time of a segment that the array library computes, from its bytes and arithmetic.

        Each expression is a call of its own. On a CPU, the library uses one core unless it multiplies matrices, and
        finds indexed elements one by one.
        """
        by_bytes, rates = self._by_bytes(group), self._device.host
        if product_flops(group.exprs):
            return by_bytes
        if rates is None:
            return self._in_calls(group, by_bytes)
        indexed = (expr for expr in group.exprs if expr.kind in {OpKind.INDEXING, OpKind.SCATTER})
        elements = sum(prod(tensor.shape) for expr in indexed for tensor in expr.tensor_outputs)
        seconds = max(by_bytes.seconds, rates.loaded * group.moved) + rates.jump * elements
        seconds += EVALUATED_ON_HOST * len(group.exprs)
        return replace(by_bytes, seconds=seconds, low=rates.low * seconds, high=rates.high * seconds)

    def _in_calls(self, group: SegmentedGroup, whole: Prediction) -> Prediction:
        """Return the time of a segment in which each expression is a call; views are none, calls convert operands."""
        model = TimeModel.of(self._device)
        calls = [expr for expr in group.exprs if not expr.kind.is_view and expr.op.name != "cast"]
        if len(calls) < 2:
            return whole
        seconds = sum(
            model.kernel([expr], sum(tv.nbytes for tv in (*expr.tensor_inputs, *expr.tensor_outputs))) for expr in calls
        )
        slower = seconds / whole.seconds
        return replace(whole, seconds=seconds, low=slower * whole.low, high=slower * whole.high)

    def _by_bytes(self, group: SegmentedGroup) -> Prediction:
        """Return the time of a segment from its bytes and arithmetic."""
        rates = self._device.host
        source = DATA_SHEET if rates is None else rates.source
        model = TimeModel.of(self._device)
        work = model.work(group.exprs) if model.repeats else group.work
        return model.predict(group.moved, work, group.flops, source)


_IDLE = Prediction(seconds=0.0, low=0.0, high=0.0, source="views, which need no kernel")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lowered:
    """The features of a lowered kernel, None if it has no phase, and the names of its tensors."""

    features: Features | None
    names: tuple[str, ...]


@lru_cache(maxsize=1 << 10)  # kernels of the plans that are looked at; features are small, their fusions are shared
def _lower(request: KernelRequest) -> _Lowered | None:
    """Return the features of a requested kernel, None if it cannot be lowered."""
    try:
        kernel = lower(request)
    except CodegenError:
        return None
    features = features_of(request.fusion, kernel, request.device) if kernel.phases else None
    return _Lowered(features=features, names=_names(request.fusion))


def _names(fusion: Fusion) -> tuple[str, ...]:
    return tuple(tensor.name for tensor in (*fusion.tensor_inputs, *fusion.outputs))


def clock_of(plan: SegmentsPlan) -> ScheduledClock:
    """Return the clock of a plan and of its edits, with the schedules that the plan sets."""
    return ScheduledClock(
        plan.oracle.device, 0, given_strides(plan.inputs), lambda group, target: group_request(plan, group, target),
    )

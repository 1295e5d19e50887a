"""Predicted times of a plan's kernels as scheduled, and which of its segments launch no kernel."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np

from fuser_lab.codegen.generate import evaluated_because
from fuser_lab.codegen.host_features import host_features
from fuser_lab.codegen.kernel_features import kernel_features
from fuser_lab.codegen.kernel_ir import Kernel
from fuser_lab.codegen.layout import Layout, layout_of
from fuser_lab.codegen.pipeline import lower
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.cost.device import Device
from fuser_lab.cost.host_plan import host_seconds
from fuser_lab.cost.host_time import UNSURE, HostFeatures, HostRates
from fuser_lab.cost.kernel_time import KernelFeatures, Prediction, kernel_model
from fuser_lab.cost.plan_time import KernelInPlan, plan_seconds
from fuser_lab.cost.predicted_times import TimeModel
from fuser_lab.cost.work import product_flops
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import CodegenError
from fuser_lab.ir import Fusion, OpKind, TensorView
from fuser_lab.runtime.aliased_buffers import input_views
from fuser_lab.runtime.parts import parts_of
from fuser_lab.runtime.storage import Lifetime, plan_storage
from fuser_lab.segmentation import SegmentedFusion, SegmentedGroup
from fuser_lab.targets import on_this_cpu, with_blocks

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
    views = input_views(parts.segments, layouts, parts.unstored)
    runs = parts.live - {view.segment for view in views}
    layouts.update((view.name, view.layout) for view in views)
    return layouts, frozenset(range(len(segmented.groups))) - runs


# For each segment of a plan. A search compares many plans once, for which the key would take longer than the answer.
layouts_and_idle = lru_cache(maxsize=4)(found_layouts)


def read_layouts(tensors: Iterable[TensorView], layouts: Mapping[str, Layout]) -> dict[str, Layout]:
    """Return the layouts of the tensors that are not dense in their own memory order."""
    return {tv.name: layouts[tv.name] for tv in tensors if tv.name in layouts and layouts[tv.name] != layout_of(tv)}


def target_for(device: Device) -> str:
    """Return the target whose kernels are predicted for a device."""
    return (with_blocks() if device.host is None else on_this_cpu()).name


def features_of(fusion: Fusion, kernel: Kernel, device: Device) -> Features:
    """Return the features of a kernel that a device's model of its time uses."""
    return kernel_features(fusion, kernel) if device.host is None else host_features(kernel, device.host.caches)


def prediction_of(features: Features, device: Device, seconds: float | None = None) -> Prediction:
    """Return the predicted time of a kernel in isolation, or a known time in a plan, with its interval."""
    if isinstance(features, KernelFeatures):
        return kernel_model(device).predict(features, seconds)
    rates = device.host
    assert rates is not None
    if seconds is None:
        (seconds,) = host_seconds([KernelInPlan(features=features, reads=(), writes=())], rates).tolist()
    return Prediction(
        seconds=seconds, low=rates.low * seconds, high=rates.high * seconds, source=rates.source,
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
            tuple((base.get(tensor.name, tensor.name), tensor.nbytes) for tensor in tensors)
            for tensors in (group.tensor_inputs, group.outputs)
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


def times_in_plan(
    segmented: SegmentedFusion, idle: frozenset[int], features: Sequence[Features | float | None], device: Device,
) -> list[float | None]:
    """Return the seconds of each segment in its plan: for kernels from their features, for others as given."""
    kernels = kernels_in_plan(segmented, idle, [value if isinstance(value, Features) else None for value in features])
    rates = device.host
    predictions = plan_seconds(kernels, kernel_model(device)) if rates is None else host_seconds(kernels, rates)
    seconds = iter(predictions.tolist())
    times: list[float | None] = []
    for number, value in enumerate(features):
        predicted = 0.0 if number in idle else next(seconds)
        times.append(predicted if isinstance(value, Features) else value)
    return times


class ScheduledClock:
    """Predicts the time of each segment of a plan by lowering its kernel for a device.

    Equal segments are lowered once. ``exprs`` limits the total number of expressions that are lowered; ``given`` are
    the strides of the fusion's tensor inputs.
    """

    def __init__(self, device: Device, exprs: int, given: Given) -> None:
        self._device = device
        self._given = given
        self._left = exprs
        self._known: dict[tuple[object, ...], Features | float] = {}

    def seconds(self, segmented: SegmentedFusion, *, limited: bool = True) -> Sequence[float | None]:
        """Return the predicted seconds of each segment; None for segments beyond the limit."""
        return times_in_plan(segmented, *self._found(segmented, limited), self._device)

    def is_sure(self, faster: SegmentedFusion, slower: SegmentedFusion) -> bool:
        """Return whether one plan is predicted to be faster than another with each rate halved and doubled.

        That is so if it does the same and less of something: errors in the times of what both do cancel. It is False
        for a GPU, where a kernel's time also depends on how many of its threads run at the same time.
        """
        rates = self._device.host
        if rates is None:
            return False
        plans = [self._summed(segmented) for segmented in (faster, slower)]
        wrong = (replace(rates, **{name: factor * getattr(rates, name)}) for name in UNSURE for factor in (0.5, 2.0))
        return all(plans[0](case) < plans[1](case) for case in (rates, *wrong))

    def _summed(self, segmented: SegmentedFusion) -> Callable[[HostRates], float]:
        """Return the function that predicts the seconds of a plan from rates of a CPU."""
        idle, features = self._found(segmented, limited=False)
        others = sum(value for value in features if isinstance(value, float))
        of_kernels = [value if isinstance(value, Features) else None for value in features]
        kernels = kernels_in_plan(segmented, idle, of_kernels)
        return lambda rates: others + float(np.nansum(host_seconds(kernels, rates)))

    def _found(
        self, segmented: SegmentedFusion, limited: bool,
    ) -> tuple[frozenset[int], list[Features | float | None]]:
        """Return which segments are idle, and the features of each kernel, or seconds for what the library computes."""
        layouts, idle = found_layouts(segmented, self._given)
        return idle, [
            0.0 if number in idle else self._kernel(group, layouts, limited)
            for number, group in enumerate(segmented.groups)
        ]

    def _kernel(
        self, group: SegmentedGroup, layouts: Mapping[str, Layout], limited: bool,
    ) -> Features | float | None:
        scheduler, fusion = group.scheduler, group.candidate.narrowed
        if scheduler is None or evaluated_because(fusion, scheduler):
            return self._evaluated(group)
        strides = read_layouts(fusion.tensor_inputs, layouts)
        request = KernelRequest(
            fusion=fusion, scheduler=scheduler, target=target_for(self._device), strides=strides, device=self._device,
        )
        key = request.key
        if key not in self._known:
            if limited and self._left < len(fusion.tensor_exprs):
                return None
            self._left -= len(fusion.tensor_exprs)
            try:
                kernel = lower(request)
            except CodegenError:
                self._known[key] = self._evaluated(group)
            else:
                # A kernel of tensors without elements has no phase: nothing is launched.
                self._known[key] = features_of(fusion, kernel, self._device) if kernel.phases else 0.0
        return self._known[key]

    def _evaluated(self, group: SegmentedGroup) -> float:
        """Return the time of a segment that the array library computes, from its bytes and arithmetic.

        On a CPU, the library uses one core unless it multiplies matrices, and finds indexed elements one by one.
        """
        moved = sum(tensor.nbytes for tensor in (*group.tensor_inputs, *group.outputs))
        seconds, rates = TimeModel.of(self._device).kernel(group.exprs, moved), self._device.host
        if rates is None or product_flops(group.exprs):
            return seconds
        indexed = (expr for expr in group.exprs if expr.kind in {OpKind.INDEXING, OpKind.SCATTER})
        elements = sum(prod(tensor.shape) for expr in indexed for tensor in expr.tensor_outputs)
        return max(seconds, rates.loaded * moved) + rates.jump * elements


__all__ = [
    "Features", "ScheduledClock", "features_of", "given_strides", "kernels_in_plan", "layouts_and_idle",
    "prediction_of", "read_layouts", "target_for", "times_in_plan",
]

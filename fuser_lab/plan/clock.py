"""Predicted times of a plan's kernels as they are scheduled, and which of its segments run at all."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from fuser_lab.codegen.generate import evaluated_because
from fuser_lab.codegen.kernel_features import kernel_features
from fuser_lab.codegen.layout import Layout, layout_of
from fuser_lab.codegen.lower import lower
from fuser_lab.cost.device import Device
from fuser_lab.cost.kernel_time import kernel_model
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import CodegenError
from fuser_lab.ir import TensorView
from fuser_lab.runtime.lending import views_of
from fuser_lab.runtime.parts import parts_of
from fuser_lab.segmentation import SegmentedFusion, SegmentedGroup

Given = tuple[tuple[int, ...] | None, ...]  # strides in elements of each input of a fusion, None for a scalar


def given_strides(inputs: Iterable[object]) -> Given:
    """Return the strides of described inputs."""
    return tuple(value.strides if isinstance(value, TensorSpec) else None for value in inputs)


@lru_cache(maxsize=4)  # each segment of a plan is asked about
def layouts_and_idle(segmented: SegmentedFusion, given: Given) -> tuple[Mapping[str, Layout], frozenset[int]]:
    """Return the layouts of inputs, and of intermediates that kernels read in their memory, and which segments rest.

    These only make views, or results that lie in the memory of another tensor. Inputs lie as they are ``given``.
    """
    fusion = segmented.fusion
    parts = parts_of(fusion, [(group.candidate.narrowed, group.scheduler) for group in segmented.groups])
    layouts = {
        value.name: layout_of(value, strides)
        for value, strides in zip(fusion.inputs, given, strict=True) if isinstance(value, TensorView)
    }
    views = views_of(parts.segments, layouts, parts.unstored)
    runs = parts.live - {view.segment for view in views}
    layouts.update((view.name, view.layout) for view in views)
    return layouts, frozenset(range(len(segmented.groups))) - runs


def read_layouts(tensors: Iterable[TensorView], layouts: Mapping[str, Layout]) -> dict[str, Layout]:
    """Return the layouts of those tensors that do not lie dense in their own order."""
    return {tv.name: layouts[tv.name] for tv in tensors if tv.name in layouts and layouts[tv.name] != layout_of(tv)}


class ScheduledClock:
    """Predicts the time of each segment of a plan by lowering its kernel for a device.

    Equal segments are lowered once. ``exprs`` is how many expressions are lowered in all; ``given`` are the strides of
    the fusion's inputs.
    """

    def __init__(self, device: Device, exprs: int, given: Given) -> None:
        self._device = device
        self._given = given
        self._left = exprs
        self._known: dict[tuple[object, ...], float | None] = {}

    def seconds(self, segmented: SegmentedFusion) -> Sequence[float | None]:
        """Return the predicted seconds of each segment; None for one without a kernel, or beyond the limit."""
        if len(segmented.fusion.tensor_exprs) > self._left and not self._known:
            return [None] * len(segmented.groups)
        layouts, idle = layouts_and_idle(segmented, self._given)
        return [
            0.0 if number in idle else self._kernel(group, layouts) for number, group in enumerate(segmented.groups)
        ]

    def _kernel(self, group: SegmentedGroup, layouts: Mapping[str, Layout]) -> float | None:
        scheduler, fusion = group.scheduler, group.candidate.narrowed
        if scheduler is None or evaluated_because(fusion, scheduler):
            return None
        strides = read_layouts(fusion.tensor_inputs, layouts)
        places = tuple((n, strides.get(tv.name)) for n, tv in enumerate(fusion.tensor_inputs))
        key = (fusion.digest, scheduler, places)
        if key not in self._known:
            if self._left < len(fusion.tensor_exprs):
                return None
            self._left -= len(fusion.tensor_exprs)
            try:
                kernel = lower(fusion, scheduler, "cuda", "asked", strides, device=self._device)
            except CodegenError:
                self._known[key] = None
            else:
                self._known[key] = kernel_model(self._device).seconds(kernel_features(fusion, kernel))
        return self._known[key]


__all__ = ["ScheduledClock", "given_strides", "layouts_and_idle", "read_layouts"]

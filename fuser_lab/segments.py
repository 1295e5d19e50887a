"""Segments of a definition that are definitions themselves, and how they are run together."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fuser_lab.definition.binding import Described, check_count, check_scalar, check_tensor
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.definition.state import FusionState
from fuser_lab.errors import InputError
from fuser_lab.executors import run_plan
from fuser_lab.ir import Fusion, TensorView
from fuser_lab.profiling import receiver
from fuser_lab.runtime.argument_manager import ArgumentManager, Run, SegmentArguments
from fuser_lab.runtime.arrays import describe, is_torch, kind_of

if TYPE_CHECKING:
    from fuser_lab.fusion_definition import FusionDefinition

_KEPT_WAYS = 32  # layouts of inputs, each with what runs its segments


class SegmentedDefinition:
    """The segments of one definition with their maps, ready to run in order.

    Parameters
    ----------
    fusion, state
        The definition, with its numbers.
    inputs
        Descriptions of the inputs that it was segmented for.
    segments
        Definitions in the order in which they run.
    maps
        Number in the definition of each segment's inputs and outputs, by number in the segment.
    last_used
        Place of the last segment that reads a value, by its number in the definition.
    """

    def __init__(
        self, fusion: Fusion, state: FusionState, inputs: Sequence[Described],
        segments: Sequence["FusionDefinition"], maps: Sequence[Mapping[int, int]], last_used: Mapping[int, int],
    ) -> None:
        self._fusion = fusion
        self._inputs = tuple(inputs)
        self._segments = tuple(segments)
        self._deciding = [v.name in fusion.deciding_scalars for v in fusion.inputs]
        self._ways: OrderedDict[tuple[Any, ...], tuple[Run, ...]] = OrderedDict()
        self._lock = threading.Lock()
        self._manager = _manager(fusion, state, segments, maps, last_used)

    def execute(
        self, flat: Sequence[Any], *, device: object = None, _enable_options: Iterable[str] = (),
        _disable_options: Iterable[str] = (),
    ) -> list[Any]:
        """Return the outputs.

        Raises
        ------
        InputError
            If inputs do not fit the definition, or have other sizes than those that it was segmented for.
        """
        plain = device is None and not _enable_options and not _disable_options and receiver() is None
        if not plain or any(s.ke is not None or s.segments or s.hand.transforms for s in self._segments):
            self._check(flat)
            how = {"device": device, "_enable_options": _enable_options, "_disable_options": _disable_options}
            return self._manager.run(flat, [partial(_by_definition, s, how) for s in self._segments])
        key = tuple(map(self._key, flat, self._deciding)) if len(flat) == len(self._deciding) else ()
        runs = self._ways.get(key)
        if runs is not None:
            return self._manager.run(flat, runs)
        self._check(flat)
        found: list[Run] = []
        outputs = self._manager.run(flat, [partial(_noted, s, flat, found) for s in self._segments])
        with self._lock:
            self._ways[key] = tuple(found)
            if len(self._ways) > _KEPT_WAYS:
                self._ways.popitem(last=False)
        return outputs

    @staticmethod
    def _key(value: Any, decides: bool) -> Any:
        """Return what tells inputs apart that run in different ways."""
        if type(value) is np.ndarray:
            return value.dtype, value.shape, value.strides
        if is_torch(value):
            return value.dtype, value.shape, value.stride(), value.device, value.is_conj(), value.is_neg()
        described = describe(value)
        return described if decides or isinstance(described, TensorSpec) else type(described)

    def _check(self, flat: Sequence[Any]) -> None:
        values = self._fusion.inputs
        check_count(values, list(flat))
        for place, (value, given, known) in enumerate(zip(values, flat, self._inputs, strict=True)):
            described = describe(given)
            if isinstance(value, TensorView):
                found = check_tensor(place, value, described)
                if isinstance(known, TensorSpec) and found.shape != known.shape:
                    msg = (
                        f"execute: input {place} has the shape {list(found.shape)}, but the definition was segmented "
                        f"for {list(known.shape)}; call segment again with these inputs."
                    )
                    raise InputError(msg)
            elif check_scalar(place, value, described) != known and self._deciding[place]:
                msg = (
                    f"execute: input {place} is {described}, but the definition was segmented for {known}, and sizes "
                    "depend on it; call segment again with these inputs."
                )
                raise InputError(msg)


def _manager(
    fusion: Fusion, state: FusionState, segments: Sequence["FusionDefinition"], maps: Sequence[Mapping[int, int]],
    last_used: Mapping[int, int],
) -> ArgumentManager:
    kept = {*state.outputs, *state.inputs}
    steps = []
    for index, (segment, numbers) in enumerate(zip(segments, maps, strict=True)):
        reads = tuple(numbers[fid] for fid in segment.state.inputs)
        frees = tuple(fid for fid in dict.fromkeys(reads) if last_used[fid] == index and fid not in kept and fid >= 0)
        writes = tuple(numbers[fid] for fid in segment.state.outputs)
        alone = not segment.fusion.tensor_inputs
        steps.append(SegmentArguments(alone=alone, reads=reads, writes=writes, frees=frees))
    read = {fid for step in steps for fid in step.reads}
    axes = [
        (place, axis)
        for place, value in enumerate(fusion.inputs) if isinstance(value, TensorView)
        for axis in range(value.ndim)
    ]
    places = {value.name: place for place, value in enumerate(fusion.inputs)}
    returned = [state.fid_of[tv.name] for tv in fusion.outputs if tv not in fusion.hidden]
    return ArgumentManager(
        inputs=state.inputs,
        outputs=tuple(returned),
        extents=tuple((-n, *where) for n, where in enumerate(axes, 1) if -n in read),
        updates=tuple((state.fid_of[out.name], places[over.name], over.name) for out, over in fusion.aliases),
        segments=tuple(steps),
    )


def _by_definition(segment: "FusionDefinition", how: Mapping[str, Any], values: list[Any]) -> Sequence[Any]:
    """Run a segment as the definition that it is: by its schedule by hand where it has one."""
    by_hand = segment.ke is not None or segment.hand.transforms
    return segment.manual_execute(values) if by_hand else segment.execute(values, **how)


def _noted(segment: "FusionDefinition", given: Sequence[Any], found: list[Run], values: list[Any]) -> Sequence[Any]:
    """Run a segment, and note what runs it next time without a look at its inputs."""
    specs = [d for d in map(describe, values) if isinstance(d, TensorSpec)]
    if specs:
        target = "cuda" if any(d.device.startswith("cuda") for d in specs) else "cpu"
        run: Run = segment.plan_for(values).prepared(target).run
    else:
        run = partial(_alone, segment, next((x for x in given if kind_of(x) != "number"), None))
    found.append(run)
    return run(values)


def _alone(segment: "FusionDefinition", like: Any, values: list[Any]) -> Sequence[Any]:
    """Run a segment without arrays, where an array lies that the definition was given."""
    arrays = () if like is None else (like,)
    device = next((d.device for d in map(describe, arrays) if isinstance(d, TensorSpec)), None)
    return run_plan(segment.plan_for(values), values, list(map(describe, values)), device, like=arrays)


__all__ = ["SegmentedDefinition"]

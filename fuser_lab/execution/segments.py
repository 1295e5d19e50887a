"""Segments of a definition as definitions, run in order."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fuser_lab.definition.spec import TensorSpec
from fuser_lab.definition.state import FusionState
from fuser_lab.execution.executors import run_plan
from fuser_lab.execution.profiling import receiver
from fuser_lab.ir import Fusion, TensorView
from fuser_lab.plan.definitions import Definition
from fuser_lab.process.forks import new_lock
from fuser_lab.runtime.arrays import describe, is_torch, kind_of
from fuser_lab.runtime.binding import device_of
from fuser_lab.runtime.plan.argument_manager import ArgumentManager, Run, SegmentArguments
from fuser_lab.segmentation.lifting import Lifting
from fuser_lab.targets import target_of

_KEPT_WAYS = 32  # layouts of inputs for which the compiled segments are kept


@dataclass(frozen=True, slots=True)
class _Way:
    """The compiled segments for inputs of one layout, and the sizes that ops determine for this layout."""

    runs: tuple[Run, ...]
    sizes: Mapping[int, int]


class SegmentedDefinition:
    """The segments of one definition with their maps, ready to run in order.

    Parameters
    ----------
    fusion, state
        The definition, with its numbers.
    lifting
        The derivation of its segments, which decides whether they are valid for inputs of other sizes.
    decided
        Number of each size that an op determines, by name.
    segments
        Definitions in the order in which they run.
    maps
        For each segment, the number in the definition of each of its inputs and outputs, by its number in the segment.
    last_used
        The position of the last segment that reads a value, by the value's number in the definition.
    results
        The number of each output of the definition.

    Attributes
    ----------
    manager
        The object that passes arguments to segments.
    """

    def __init__(
        self, fusion: Fusion, state: FusionState, lifting: Lifting, decided: Mapping[str, int],
        segments: Sequence[Definition], maps: Sequence[Mapping[int, int]], last_used: Mapping[int, int],
        results: Sequence[int],
    ) -> None:
        self._fusion = fusion
        self._lifting = lifting
        read = {number for numbers in maps for number in numbers.values()}
        self._decided = {name: number for name, number in decided.items() if number in read}
        self._segments = tuple(segments)
        self._deciding = [v.name in fusion.deciding_scalars for v in fusion.inputs]
        self._ways: OrderedDict[tuple[Any, ...], _Way] = OrderedDict()
        self._lock = new_lock()
        self.manager = _manager(fusion, state, segments, maps, last_used, results)

    def execute(
        self, flat: Sequence[Any], *, device: object = None, _enable_options: Iterable[str] = (),
        _disable_options: Iterable[str] = (),
    ) -> list[Any]:
        """Return the outputs.

        Raises
        ------
        InputError
            If inputs do not fit the definition, or if a pass or the segmenter made a choice for the original sizes that
            is wrong for these.
        """
        plain = device is None and not _enable_options and not _disable_options and receiver() is None
        if not plain or any(s.ke is not None or s.segments or s.hand.transforms for s in self._segments):
            sizes = self._sizes(flat)
            how = {"device": device, "_enable_options": _enable_options, "_disable_options": _disable_options}
            return self.manager.run(flat, [partial(_by_definition, s, how) for s in self._segments], sizes)
        key = tuple(map(self._key, flat, self._deciding)) if len(flat) == len(self._deciding) else ()
        way = self._ways.get(key)
        if way is not None:
            return self.manager.run(flat, way.runs, way.sizes)
        sizes = self._sizes(flat)
        runs: list[Run] = []
        outputs = self.manager.run(flat, [partial(_run_and_store, s, flat, runs) for s in self._segments], sizes)
        with self._lock:
            self._ways[key] = _Way(tuple(runs), sizes)
            if len(self._ways) > _KEPT_WAYS:
                self._ways.popitem(last=False)
        return outputs

    def reference(self, flat: Sequence[Any]) -> list[Any]:
        """Return the results of the segments' NumPy reference evaluation, one segment after another."""
        return self.manager.run(flat, [segment.reference for segment in self._segments], self._sizes(flat))

    @staticmethod
    def _key(value: Any, decides: bool) -> Any:
        """Return a key that differs between inputs that need different compiled segments."""
        if type(value) is np.ndarray:
            return value.dtype, value.shape, value.strides
        if is_torch(value):
            return value.dtype, value.shape, value.stride(), value.device, value.is_conj(), value.is_neg()
        described = describe(value)
        return described if decides or isinstance(described, TensorSpec) else type(described)

    def _sizes(self, flat: Sequence[Any]) -> dict[int, int]:
        """Return the sizes that ops determine and segments read, by number; raise for inputs that do not fit."""
        sizes = self._lifting.sizes([describe(value) for value in flat])
        return {number: sizes[name] for name, number in self._decided.items()}


def _manager(
    fusion: Fusion, state: FusionState, segments: Sequence[Definition], maps: Sequence[Mapping[int, int]],
    last_used: Mapping[int, int], results: Sequence[int],
) -> ArgumentManager:
    lasting = {*results, *state.inputs}
    steps = []
    for index, (segment, numbers) in enumerate(zip(segments, maps, strict=True)):
        reads = tuple(numbers[fid] for fid in segment.state.inputs)
        frees = tuple(
            fid for fid in dict.fromkeys(reads) if last_used[fid] == index and fid not in lasting and fid >= 0
        )
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
    number_of = dict(zip(fusion.outputs, results, strict=True))
    return ArgumentManager(
        inputs=state.inputs,
        outputs=tuple(number for tv, number in zip(fusion.outputs, results, strict=True) if tv not in fusion.hidden),
        extents=tuple((-n, *where) for n, where in enumerate(axes, 1) if -n in read),
        updates=tuple((number_of[out], places[over.name], over.name) for out, over in fusion.aliases),
        segments=tuple(steps),
    )


def _by_definition(segment: Definition, how: Mapping[str, Any], values: list[Any]) -> Sequence[Any]:
    """Run a segment as a definition, with its manual schedule if it has one."""
    by_hand = segment.ke is not None or segment.hand.transforms
    return segment.manual_execute(values) if by_hand else segment.execute(values, **how)


def _run_and_store(segment: Definition, inputs: Sequence[Any], runs: list[Run], values: list[Any]) -> Sequence[Any]:
    """Run a segment, and store its compiled form so that the next run does not examine the inputs."""
    specs = [d for d in map(describe, values) if isinstance(d, TensorSpec)]
    if specs:
        target = target_of(device_of(specs)).name
        run: Run = segment.plan_for(values).prepare(target).run
    else:
        run = partial(_alone, segment, next((x for x in inputs if kind_of(x) != "number"), None))
    runs.append(run)
    return run(values)


def _alone(segment: Definition, like: Any, values: list[Any]) -> Sequence[Any]:
    """Run a segment without array inputs on the device of one of the definition's arrays."""
    arrays = () if like is None else (like,)
    device = next((d.device for d in map(describe, arrays) if isinstance(d, TensorSpec)), None)
    return run_plan(segment.plan_for(values), values, list(map(describe, values)), device, like=arrays)

"""Segments run one after another; values that pass between them are freed after their last use.

This is nvFuser's ``execute`` of a definition that was segmented in Python. In contrast to nvFuser, results are written
over inputs only after all segments have run, so that no segment reads an overwritten input.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser_lab.runtime.arrays import from_numpy_as, is_torch, kind_of, may_overlap, to_numpy
from fuser_lab.runtime.binding import check_disjoint, check_writable, library_of

Run = Callable[[list[Any]], Sequence[Any]]
_NO_SIZES: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentArguments:
    """The values that a segment reads, writes and frees, as numbers of the original definition.

    ``alone`` says that it reads no arrays, so that other segments determine the library of its results.
    """

    alone: bool
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentManager:
    """Numbers of a definition's inputs, outputs and extents, and the arguments and results of each segment.

    ``extents`` are those that segments read: (number, position of the input, axis). ``updates`` are (number of the
    output, position of the input that it overwrites, name of that input).
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    extents: tuple[tuple[int, int, int], ...]
    updates: tuple[tuple[int, int, str], ...]
    segments: tuple[SegmentArguments, ...]

    def run(self, arguments: Sequence[Any], runs: Sequence[Run], sizes: Mapping[int, int] = _NO_SIZES) -> list[Any]:
        """Return the outputs; each value is freed after the last segment that reads it.

        Parameters
        ----------
        given
            Arrays and numbers, one per input, that match the definition.
        runs
            Functions that run the segments.
        sizes
            Sizes that ops determine and segments read, by number.

        Raises
        ------
        InputError
            If an array to be overwritten cannot be written to, or shares memory with another one.
        """
        for _, place, name in self.updates:
            check_writable(name, arguments[place])
        check_disjoint({name: arguments[place] for _, place, name in self.updates})
        values = dict(zip(self.inputs, arguments, strict=True))
        for fid, place, axis in self.extents:
            values[fid] = int(arguments[place].shape[axis])
        values.update(sizes)
        kind, like = library_of(arguments)
        for segment, run in zip(self.segments, runs, strict=True):
            results = run([values[fid] for fid in segment.reads])
            if segment.alone:
                results = [_as_kind(result, kind, like) for result in results]
            values.update(zip(segment.writes, results, strict=True))
            del results
            for fid in segment.frees:
                del values[fid]
        if self.updates:
            self._update(arguments, values)
        return [_as_kind(values[fid], kind, like) for fid in self.outputs]

    def _update(self, arguments: Sequence[Any], values: dict[int, Any]) -> None:
        """Write results over inputs, which then are the results; views of the old values are copied before."""
        targets = [arguments[place] for _, place, _ in self.updates]

        def apart(fid: int) -> Any:
            value = values[fid]
            return _copy(value) if any(may_overlap(value, target) for target in targets) else value

        sources = [apart(fid) for fid, _, _ in self.updates]
        computed = set(self.outputs).difference(self.inputs)
        values.update((fid, apart(fid)) for fid in computed)
        for target, source in zip(targets, sources, strict=True):
            overwrite(target, source)
        for (fid, _, _), target in zip(self.updates, targets, strict=True):
            if fid in computed:
                values[fid] = target


def overwrite(target: Any, source: Any) -> None:
    """Copy the elements of one array to another; arrays may be of any library, except JAX for the target."""
    if is_torch(target):
        moved = source if is_torch(source) else from_numpy_as("torch", np.array(to_numpy(source)))
        target = target.detach()
        for axis in range(target.ndim):
            if target.shape[axis] > 1 and not target.stride(axis):
                # An expanded axis is one element in memory; torch refuses to write it several times.
                target, moved = target.narrow(axis, 0, 1), moved.narrow(axis, 0, 1)
        target.copy_(moved)
    elif kind_of(target) == "numpy":
        np.copyto(np.asarray(target), to_numpy(source), casting="unsafe")
    else:
        target[...] = source if kind_of(source) == kind_of(target) else from_numpy_as("cupy", to_numpy(source))


def _copy(value: Any) -> Any:
    return value.clone() if is_torch(value) else value.copy()


def _as_kind(value: Any, kind: str, like: Any) -> Any:
    """Return a result as an array of the library that all results are made with."""
    library = kind_of(value)
    if library == kind or like is None:
        if kind == "torch" and value.device != like.device:
            return value.to(like.device)
        return value.detach() if kind == "torch" and value.requires_grad else value
    plain = from_numpy_as(kind, np.array(to_numpy(value)))
    return plain.to(like.device) if kind == "torch" else plain

"""Bytes that persistent buffers need at once, kept themselves or computed again from inputs."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import or_

from fuser_lab.analysis.bit_masks import bits
from fuser_lab.analysis.domain_map import Link
from fuser_lab.analysis.reductions import ReductionFlow
from fuser_lab.ir import OpKind


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBuffer:
    """One row of a tensor that can be kept."""

    name: str
    bytes: int
    itemsize: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSizes:
    """The most bytes per row that are alive at once, with the tensors that they belong to.

    ``kept`` is for the buffers themselves. ``projected`` is for the inputs that buffers can be computed from again and
    the buffers that cannot; ``with_exp`` and ``with_random`` say whether this repeats an exponential or random numbers.
    ``buffers`` are all buffers, ``inputs`` those inputs.
    """

    kept: int
    kept_names: tuple[str, ...]
    projected: int
    projected_names: tuple[str, ...]
    with_exp: bool
    with_random: bool
    buffers: tuple[RowBuffer, ...]
    inputs: tuple[RowBuffer, ...]

    def chosen(self, *, projected: bool) -> tuple[int, str]:
        """Return the bytes of the buffers, or of what they are computed from again, and the names as text."""
        size, names = (self.projected, self.projected_names) if projected else (self.kept, self.kept_names)
        return size, ", ".join(names)


def buffer_sizes(flow: ReductionFlow) -> BufferSizes:
    """Return the sizes of the buffers of a flow.

    A buffer is alive at the values between it and its resolution points, wherever these are in the order of expressions
    (nvFuser: scheduler/utils.cpp:797-911 getScopePersistenceFactors, 915-1140 persistentBufferSizeBit).
    """
    return _Sizes(flow).run()


class _Sizes:
    """The sizes of the buffers of a flow; sets of buffers and of inputs are bit masks."""

    def __init__(self, flow: ReductionFlow) -> None:
        self.flow = flow
        self.links = flow.links
        self.by_name: dict[str, Link] = {link.name: link for link in flow.links}
        places = {link.name: place for place, link in enumerate(flow.links)}
        self.buffers = sorted(flow.buffers(), key=lambda buffer: places.get(buffer.tensor.name, -1))
        inputs = [name for name in flow.exact.classes if name not in self.by_name and flow.has_reduced_axis(name)]
        self.names = tuple(dict.fromkeys((*inputs, *(buffer.tensor.name for buffer in self.buffers))))
        self.bit = {name: 1 << place for place, name in enumerate(self.names)}
        self.inputs = self._below({name: self.bit[name] for name in inputs})  # those above each value

    def run(self) -> BufferSizes:
        names = [buffer.tensor.name for buffer in self.buffers]
        ends = self._resolution_points()
        projectable = self._projectable()
        inputs = self._distinct(self.inputs[name] for name in projectable)
        alive = self._between({name: self.bit[name] for name in names}, ends)
        # As in nvFuser, a projectable buffer is counted to the resolution points of the buffer with its number among
        # all buffers, of which the inputs are not projectable (scheduler/utils.cpp:893-894).
        counted = dict(zip(names, projectable, strict=False))
        again = [self.inputs[counted[name]] if name in counted else 0 for name in self.names]
        reread = self._between(
            {name: self.bit[name] for name in inputs},
            {value: reduce(or_, [again[place] for place in bits(mask)], 0) for value, mask in ends.items()},
        )
        sizes = {name: self._row(name).bytes for name in (*names, *inputs)}
        every, projected = frozenset(names), frozenset(projectable)
        kept = [name for name in names if not self._is_read_again(name, every)]
        fixed = [name for name in names if name not in projected]
        kept_mask, fixed_mask = (sum(self.bit[name] for name in some) for some in (kept, fixed))
        return BufferSizes(
            kept=self._most((alive[link.name] & kept_mask for link in self.links), sizes),
            kept_names=tuple(kept),
            projected=self._most(
                (alive[link.name] & fixed_mask | reread[link.name] for link in self.links), sizes,
            ),
            projected_names=tuple(dict.fromkeys((*inputs, *fixed))),
            with_exp=self._repeats(projectable, lambda link: link.op == "exp"),
            with_random=self._repeats(projectable, lambda link: link.kind is OpKind.RANDOM),
            buffers=tuple(self._row(name) for name in names),
            inputs=tuple(self._row(name) for name in inputs),
        )

    def _resolution_points(self) -> dict[str, int]:
        """Return where values of buffers meet results of a reduction (scheduler/utils.cpp: getResolutionPointsOf).

        A reduction of values that are already resolved begins no path of its own. Reductions before a buffer do not
        count for it.
        """
        points: dict[str, int] = {}
        behind: dict[str, int] = {}  # the buffers with a point that a value depends on
        on_buffer = {name: bit for name, bit in self.bit.items() if name not in self.by_name}
        on_reduction: dict[str, int] = {}
        begun = sum(on_buffer.values())
        for link in self.links:
            name, operands = link.name, link.operands
            after_point, of_buffer, of_reduction = (
                reduce(or_, [sets.get(operand, 0) for operand in operands], 0)
                for sets in (behind, on_buffer, on_reduction)
            )
            start = self.bit.get(name, 0)
            if link.kind is OpKind.REDUCTION:
                behind[name], on_buffer[name], on_reduction[name] = after_point, start, begun & ~after_point
            else:
                points[name] = of_buffer & of_reduction
                behind[name], on_buffer[name] = after_point | points[name], of_buffer | start
                on_reduction[name] = of_reduction & ~of_buffer
            begun |= start
        resolved = reduce(or_, points.values(), 0)
        for buffer in self.buffers:
            bit = self.bit[buffer.tensor.name]
            if not bit & resolved:
                points[buffer.resolved_at] = points.get(buffer.resolved_at, 0) | bit
        return points

    def _between(self, starts: Mapping[str, int], ends: Mapping[str, int]) -> dict[str, int]:
        """Return the starts that each value is computed from if one of their ends is computed from it or is it."""
        below, above = self._below(starts), self._above(ends)
        return {
            link.name: below[link.name] & above.get(link.name, 0) & ~starts.get(link.name, 0) for link in self.links
        }

    def _below(self, sets: Mapping[str, int]) -> dict[str, int]:
        """Return the union of the sets of each value and of all that it is computed from."""
        below = dict(sets)
        for link in self.links:
            below[link.name] = reduce(or_, [below.get(name, 0) for name in link.operands], below.get(link.name, 0))
        return below

    def _above(self, sets: Mapping[str, int]) -> dict[str, int]:
        """Return the union of the sets of each value and of all that are computed from it."""
        above = dict(sets)
        for link in reversed(self.links):
            mask = above.get(link.name)
            if mask:
                for name in link.operands:
                    above[name] = above.get(name, 0) | mask
        return above

    def _distinct(self, sets: Iterable[int]) -> list[str]:
        """Return the names in some sets, each once."""
        names: list[str] = []
        listed = 0
        for mask in sets:
            names += [self.names[place] for place in bits(mask & ~listed)]
            listed |= mask
        return names

    def _projectable(self) -> list[str]:
        """Return the buffers that can be computed again from inputs (scheduler/utils.cpp:666-697).

        Any reshape forbids this for all of them, and an input that cannot be kept for those that are computed from it.
        Results of reductions are read from broadcasts of them, not computed again.
        """
        if any(link.kind is OpKind.RESHAPE and link.steps for link in self.links):
            return []
        names = [buffer.tensor.name for buffer in self.buffers if buffer.tensor.name in self.by_name]
        inputs = self._distinct(self.inputs[name] for name in names)
        partly = sum(self.bit[name] for name in inputs if self.flow.partly_reduced(name) is not None)
        spread = self._spread()
        return [name for name in names if not self.flow.after[name] & ~spread[name] and not self.inputs[name] & partly]

    def _spread(self) -> dict[str, int]:
        """Return the reductions that each value depends on through a broadcast to the reduced axes.

        nvFuser: scheduler/utils.cpp:480-548, canProjectToInputsWithoutReduction.
        """
        number = {name: place for place, name in enumerate(self.flow.names)}
        alike: dict[tuple[int, tuple[int, ...]], int] = {}  # reductions by rank and reduced axes
        spread: dict[str, int] = {}
        for link in self.links:
            spread[link.name] = reduce(or_, [spread.get(name, 0) for name in link.operands], 0)
            if link.kind is OpKind.REDUCTION:
                key = len(link.root_broadcast), link.reduced
                alike[key] = alike.get(key, 0) | 1 << number[link.name]
            elif link.kind is OpKind.BROADCAST:
                axes = link.out.domain.axes
                for (rank, reduced), mask in alike.items():
                    if len(axes) == rank and all(axes[place].is_broadcast for place in reduced):
                        spread[link.name] |= mask & self.flow.after[link.name]
        return spread

    def _is_read_again(self, buffer: str, buffers: frozenset[str]) -> bool:
        """Whether a buffer's operands are all buffers, so that it is computed again from them.

        nvFuser: scheduler/utils.cpp:915-930, canProjectToPersistentProducer.
        """
        maker = self.by_name.get(buffer)
        if maker is None or maker.kind is OpKind.REDUCTION or not maker.operands:
            return False
        return buffers.issuperset(maker.operands)

    def _repeats(self, buffers: Iterable[str], condition: Callable[[Link], bool]) -> bool:
        above = self._above(dict.fromkeys(buffers, 1))
        return any(condition(link) for link in self.links if above.get(link.name))

    def _most(self, sets: Iterable[int], sizes: Mapping[str, int]) -> int:
        """Return the most bytes of one of some sets; neighbours among these have much in common."""
        most = total = last = 0
        for mask in sets:
            total += sum(sizes[self.names[place]] for place in bits(mask & ~last))
            total -= sum(sizes[self.names[place]] for place in bits(last & ~mask))
            most, last = max(most, total), mask
        return most

    def _row(self, name: str) -> RowBuffer:
        """Return a buffer or an input; a widening cast of a computed tensor counts in the narrow dtype.

        nvFuser: scheduler/utils.cpp:548-564 getUpCastInputOf, 932-988 getPersistentBufferSizeBitOfTensor.
        """
        flow = self.flow
        maker = self.by_name.get(name)
        tensor = maker.out if maker is not None else self.flow.tensors[name]
        size = tensor.dtype.itemsize
        if maker is not None and maker.op == "cast" and maker.operands[0] in self.by_name:
            size = min(size, maker.tensors[0].dtype.itemsize)
        elements = prod(flow.exact.extent[c] for c in flow.exact.classes[name] if c in flow.reduced)
        return RowBuffer(name=name, bytes=elements * size, itemsize=tensor.dtype.itemsize)

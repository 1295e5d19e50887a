"""Bytes that persistent buffers need at once, kept themselves or computed again from inputs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod

from fuser_lab.analysis.domain_map import Link
from fuser_lab.analysis.reductions import PersistentBuffer, ReductionFlow
from fuser_lab.ir import OpKind, TensorView


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
    def __init__(self, flow: ReductionFlow) -> None:
        self.flow = flow
        self.links = flow.links
        self.by_name: dict[str, Link] = {link.name: link for link in flow.links}
        self.readers: dict[str, list[Link]] = {}
        for link in flow.links:
            for name in dict.fromkeys(link.operands):
                self.readers.setdefault(name, []).append(link)
        places = {link.name: place for place, link in enumerate(flow.links)}
        self.buffers = sorted(flow.buffers(), key=lambda buffer: places.get(buffer.tensor.name, -1))

    def run(self) -> BufferSizes:
        names = [buffer.tensor.name for buffer in self.buffers]
        ends = [self._resolution_points(buffer) for buffer in self.buffers]
        projectable = self._projectable()
        inputs = list(dict.fromkeys(name for buffer in projectable for name in self._inputs(buffer)))
        alive: dict[str, set[str]] = {}  # names of buffers at each value
        reread: dict[str, set[str]] = {}  # names of inputs at each value
        for name, points in zip(names, ends, strict=True):
            for value in self._between(name, points):
                alive.setdefault(value, set()).add(name)
        # As in nvFuser, a projectable buffer is counted to the resolution points of the buffer with its number among
        # all buffers, of which the inputs are not projectable (scheduler/utils.cpp:893-894).
        for buffer, points in zip(projectable, ends, strict=False):
            for name in self._inputs(buffer):
                for value in self._between(name, points):
                    reread.setdefault(value, set()).add(name)
        sizes = {name: self._row(name).bytes for name in (*names, *inputs)}
        again = {name for name in names if self._is_read_again(name, set(names))}
        kept = [name for name in names if name not in again]
        fixed = [name for name in names if name not in projectable]
        return BufferSizes(
            kept=_most(alive.values(), set(kept), sizes),
            kept_names=tuple(kept),
            projected=_most(
                (alive.get(v, set()) & set(fixed) | reread.get(v, set()) for v in alive.keys() | reread.keys()),
                {*fixed, *inputs}, sizes,
            ),
            projected_names=tuple(dict.fromkeys((*inputs, *fixed))),
            with_exp=self._repeats(projectable, lambda link: link.op == "exp"),
            with_random=self._repeats(projectable, lambda link: link.kind is OpKind.RANDOM),
            buffers=tuple(self._row(name) for name in names),
            inputs=tuple(self._row(name) for name in inputs),
        )

    def _resolution_points(self, buffer: PersistentBuffer) -> set[str]:
        """Return where values of a buffer meet results of a reduction (scheduler/utils.cpp: getResolutionPointsOf).

        A reduction of values that are already resolved begins no path of its own.
        """
        start = buffer.tensor.name
        points: set[str] = set()
        behind: set[str] = set()  # values that depend on a point
        on_buffer, on_reduction = {start}, set[str]()
        waiting = start in self.by_name
        for link in self.links:
            if waiting:
                waiting = link.name != start
                continue
            after_point = not behind.isdisjoint(link.operands)
            if after_point:
                behind.add(link.name)
            if link.kind is OpKind.REDUCTION:
                if not after_point:
                    on_reduction.add(link.name)
                continue
            of_buffer = not on_buffer.isdisjoint(link.operands)
            of_reduction = not on_reduction.isdisjoint(link.operands)
            if of_buffer:
                on_buffer.add(link.name)
                if of_reduction:
                    points.add(link.name)
                    behind.add(link.name)
            elif of_reduction:
                on_reduction.add(link.name)
        return points or {buffer.resolved_at}

    def _between(self, start: str, ends: set[str]) -> set[str]:
        """Return the values computed from ``start`` that ``ends`` are computed from, and those of ``ends``."""
        below = self._reached((start,), lambda name: (link.name for link in self.readers.get(name, ())))
        return (below & self._above(ends)) - {start}

    def _above(self, names: Iterable[str]) -> set[str]:
        return self._reached(names, lambda name: self.by_name[name].operands if name in self.by_name else ())

    @staticmethod
    def _reached(start: Iterable[str], following: Callable[[str], Iterable[str]]) -> set[str]:
        seen = set(start)
        stack = list(seen)
        while stack:
            for name in following(stack.pop()):
                if name not in seen:
                    seen.add(name)
                    stack.append(name)
        return seen

    def _inputs(self, buffer: str) -> list[str]:
        """Return the inputs with a reduced axis that a buffer is computed from."""
        above = self._above((buffer,))
        return [
            name for name in self.flow.exact.classes
            if name in above and name not in self.by_name and self.flow.has_reduced_axis(name)
        ]

    def _projectable(self) -> list[str]:
        """Return the buffers that can be computed again from inputs (scheduler/utils.cpp:666-697).

        Any reshape forbids this for all of them, and an input that cannot be kept for those that are computed from it.
        Results of reductions are read from broadcasts of them, not computed again.
        """
        if any(link.kind is OpKind.RESHAPE and link.steps for link in self.links):
            return []
        names = (buffer.tensor.name for buffer in self.buffers if buffer.tensor.name in self.by_name)
        return [
            name for name in names
            if self._needs_no_reduction(name)
            and all(self.flow.partly_reduced(source) is None for source in self._inputs(name))
        ]

    def _needs_no_reduction(self, buffer: str) -> bool:
        """Whether a broadcast to the reduced axes follows each reduction that a buffer depends on.

        nvFuser: scheduler/utils.cpp:480-548, canProjectToInputsWithoutReduction.
        """
        above = self._above((buffer,))
        return all(
            any(
                other.kind is OpKind.BROADCAST and other.out.ndim == len(link.root_broadcast)
                and all(other.out.domain.axes[place].is_broadcast for place in link.reduced)
                for name in self._between(link.name, {buffer}) if (other := self.by_name[name])
            )
            for link in self.links if link.kind is OpKind.REDUCTION and link.name in above
        )

    def _is_read_again(self, buffer: str, buffers: set[str]) -> bool:
        """Whether a buffer's operands are all buffers, so that it is computed again from them.

        nvFuser: scheduler/utils.cpp:915-930, canProjectToPersistentProducer.
        """
        maker = self.by_name.get(buffer)
        if maker is None or maker.kind is OpKind.REDUCTION or not maker.operands:
            return False
        return buffers.issuperset(maker.operands)

    def _repeats(self, buffers: Sequence[str], condition: Callable[[Link], bool]) -> bool:
        above = self._above(buffers)
        return any(condition(link) for link in self.links if link.name in above)

    def _row(self, name: str) -> RowBuffer:
        """Return a buffer or an input; a widening cast of a computed tensor counts in the narrow dtype.

        nvFuser: scheduler/utils.cpp:548-564 getUpCastInputOf, 932-988 getPersistentBufferSizeBitOfTensor.
        """
        flow = self.flow
        maker = self.by_name.get(name)
        tensor = maker.out if maker is not None else self._input(name)
        size = tensor.dtype.itemsize
        if maker is not None and maker.op == "cast" and maker.operands[0] in self.by_name:
            size = min(size, maker.tensors[0].dtype.itemsize)
        elements = prod(flow.exact.extent[c] for c in flow.exact.classes[name] if c in flow.reduced)
        return RowBuffer(name=name, bytes=elements * size, itemsize=tensor.dtype.itemsize)

    def _input(self, name: str) -> TensorView:
        return next(tensor for tensor in self.readers[name][0].tensors if tensor.name == name)


def _most(alive: Iterable[set[str]], counted: set[str], sizes: dict[str, int]) -> int:
    """Return the most bytes of counted tensors that are alive at one value."""
    return max((sum(sizes[name] for name in names & counted) for names in alive), default=0)

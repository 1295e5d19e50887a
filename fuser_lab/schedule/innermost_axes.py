"""The innermost axes of tensors in memory, by which tensors are grouped and tiles are transposed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fuser_lab.analysis.coverage import Coverage, Neighbourhoods
from fuser_lab.analysis.domain_map import ExactMap
from fuser_lab.ir import TensorView

Groups = tuple[tuple[TensorView, ...], ...]


class Transposed(NamedTuple):
    """Two tensors whose tiles are transposed into each other, and the innermost axes of both among the first's axes."""

    first: TensorView
    second: TensorView
    places: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InnermostAxes:
    """The innermost axes in memory of the tensors of a candidate.

    ``near`` joins classes of axes through views, and ``lookups`` names the inputs that are read at data-dependent
    positions only.
    """

    exact: ExactMap
    near: Neighbourhoods
    lookups: frozenset[str]

    def groups(self, inputs: Sequence[TensorView], outputs: Sequence[TensorView]) -> Groups:
        """Return inputs and outputs grouped by innermost axis, the largest group first; empty if there is no grouping.

        A tensor without an axis that is not a broadcast axis voids the grouping. So does the operand of a gather, which
        joins no group, unless it begins a group.
        """
        near, lookups = self.near, self.lookups
        inner: list[tuple[TensorView, int]] = []
        for tensor in (*outputs, *inputs):
            if tensor.name not in self.exact.classes:  # an input that no expression reads
                continue
            number = self.of(tensor)
            if number is None:
                return ()
            inner.append((tensor, near.of(number)))
        others = {number for tensor, number in inner if tensor.name not in lookups}
        groups: dict[int, list[TensorView]] = {}
        for tensor, number in inner:
            if tensor.name in lookups and (number in groups or number not in others):
                return ()
            groups.setdefault(number, []).append(tensor)
        return tuple(sorted(map(tuple, groups.values()), key=lambda group: -len(group)))

    def transposed(self, groups: Groups, axes: tuple[int, ...]) -> Transposed | None:
        """Return tensors with all axes from the two largest groups if tiles of both are transposed, or None."""
        first, second = (self._leading(group, axes) for group in groups[:2])
        if first is None or second is None:
            return None
        places = self._place_of_innermost(first, first), self._place_of_innermost(first, second)
        shorter, longer = sorted((self._in_memory(first), self._in_memory(second)), key=len)
        rest = iter(longer)
        if places[0] is None or places[1] is None or all(number in rest for number in shorter):
            return None
        return Transposed(first, second, (places[0], places[1]))

    def _leading(self, group: Iterable[TensorView], axes: tuple[int, ...]) -> TensorView | None:
        """Return the tensor with the most axes among the tensors of a group with all axes of the reference, or None."""
        complete = [tensor for tensor in group if self._covers(self.exact.classes[tensor.name], axes)]
        return max(complete, key=lambda tensor: len(self.exact.concrete(tensor)), default=None)

    def _place_of_innermost(self, tensor: TensorView, other: TensorView) -> int | None:
        """Return the position of an axis that is the innermost one of another tensor or mapped to it, or None."""
        number = self.of(other)
        near = self.near
        target = None if number is None else near.of(number)
        axes = enumerate(self.exact.classes[tensor.name])
        return next((place for place, c in axes if near.of(self._mapped_class(c)) == target), None)

    def of(self, tensor: TensorView) -> int | None:
        """Return the class of the innermost axis in memory that is not a broadcast axis, or None.

        nvFuser: csrc/scheduler/utils.cpp:1679-1697 (innerMostAllocDim).
        """
        numbers, broadcast = self.exact.classes[tensor.name], self.exact.broadcast
        order = reversed(tensor.domain.allocation_order)
        return next((numbers[place] for place in order if not broadcast[numbers[place]]), None)

    def _in_memory(self, tensor: TensorView) -> list[int]:
        """Return the classes of a tensor's axes in the order of its memory, without broadcast axes."""
        numbers, broadcast = self.exact.classes[tensor.name], self.exact.broadcast
        return [numbers[place] for place in tensor.domain.allocation_order if not broadcast[numbers[place]]]

    def _mapped_class(self, number: int) -> int:
        """Return the class that a broadcast axis is mapped to, or the axis itself."""
        exact = self.exact
        return next(iter(exact.concretized.get(number, ())), number) if exact.broadcast[number] else number

    def _covers(self, numbers: tuple[int, ...], required: tuple[int, ...]) -> bool:
        """Whether loops over some axes, and over the axes that broadcast axes are mapped to, reach others."""
        reached = {c for number in numbers for c in (number, *self.exact.concretized.get(number, ()))}
        return Coverage(self.exact, reached, through_resize=True).missing(required) is None

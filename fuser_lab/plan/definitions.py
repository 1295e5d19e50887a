"""The segments of a plan as definitions, with the maps between their values and the code that runs them together."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast, overload

from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.cache import FusionCache
from fuser_lab.definition.scheduling import HandSchedule
from fuser_lab.definition.state import FusionState
from fuser_lab.errors import StateError
from fuser_lab.ir import Fusion
from fuser_lab.report.index_maps import IndexMaps
from fuser_lab.runtime.plan.argument_manager import ArgumentManager


class Defined(Protocol):
    """The part of a plan's interface that gives its definition."""

    @property
    def definition(self) -> Fusion:
        """The fusion with its symbolic sizes."""


class Definition(Protocol):
    """The interface of `fuser_lab.FusionDefinition`, whose module imports this one."""

    @property
    def fusion(self) -> Fusion:
        """The recorded fusion."""

    @property
    def state(self) -> FusionState:
        """Its values by number."""

    @property
    def hand(self) -> HandSchedule:
        """The manual schedule."""

    @property
    def ke(self) -> object:
        """The kernel that last ran the manual schedule; None if none did."""

    @property
    def segments(self) -> Sequence[object]:
        """Its segments."""

    def plan_for(self, inputs: Iterable[Any]) -> Any:
        """Return the plan that `execute` runs for these inputs."""

    @property
    def execute(self) -> Callable[..., list[Any]]:
        """The function that returns the outputs."""

    def manual_execute(self, inputs: Iterable[Any]) -> list[Any]:
        """Return the outputs of the kernel scheduled by hand."""

    def reference(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the results of the NumPy reference evaluation."""


class _Whole(Definition, Protocol):
    """A definition that can be segmented."""

    segment_index_space_maps: Mapping[Definition, Mapping[int, int]]
    map_value_to_last_used_segment: Mapping[int, int]
    index_maps: IndexMaps
    argument_manager: ArgumentManager

    def defined_segments(self, plan: Any, cache: FusionCache[Any] | None = None) -> Sequence[Definition]:
        """Return the segments of a plan as definitions."""

    def segments_reference(self, inputs: Iterable[Any]) -> list[Any]:
        """Return the results of each segment's `reference` in order."""


class SegmentDefinitions(Sequence[Definition]):
    """The segments of a plan as definitions (`fuser_lab.FusionDefinition`), in the order in which they run.

    Parameters
    ----------
    plan
        The plan; its segments keep their numbers.
    cache
        Cache in which equal definitions are looked up and stored; none by default.

    Attributes
    ----------
    whole
        The plan's definition, which the segments compute together.
    """

    def __init__(self, plan: Defined, cache: FusionCache[Any] | None = None) -> None:
        if FusionBuilder.public is None:
            msg = "definitions: the plan is not made from a FusionDefinition; import fuser_lab.FusionDefinition first."
            raise StateError(msg)
        self.whole = cast("_Whole", FusionBuilder.public.of(plan.definition))
        self._segments = tuple(self.whole.defined_segments(plan, cache))

    @overload
    def __getitem__(self, index: int) -> Definition: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Definition]: ...

    def __getitem__(self, index: int | slice) -> Definition | Sequence[Definition]:
        """Return a segment's definition."""
        return self._segments[index]

    def __len__(self) -> int:
        """Return the number of segments."""
        return len(self._segments)

    @property
    def state(self) -> FusionState:
        """Numbers of the values of the whole definition, to which the maps refer."""
        return self.whole.state

    @property
    def maps(self) -> tuple[Mapping[int, int], ...]:
        """For each segment, the number in the whole definition of each input and output, by number in the segment."""
        return tuple(self.whole.segment_index_space_maps[segment] for segment in self._segments)

    @property
    def last_used(self) -> Mapping[int, int]:
        """The position of the last segment that reads a value, by the value's number in the whole definition."""
        return self.whole.map_value_to_last_used_segment

    @property
    def index_maps(self) -> IndexMaps:
        """The maps, as text or, in a notebook, as a picture."""
        return self.whole.index_maps

    @property
    def manager(self) -> ArgumentManager:
        """The object that passes arguments to segments and releases values after their last use."""
        return self.whole.argument_manager

    def execute(self, inputs: Iterable[Any], **how: Any) -> list[Any]:
        """Return the outputs of the segments run in order; see `FusionDefinition.execute`."""
        return self.whole.execute(inputs, **how)

    def reference(self, inputs: Iterable[Any]) -> list[Any]:
        """Return the results of the segments' reference evaluation as NumPy arrays, one segment after another."""
        return self.whole.segments_reference(inputs)

    def __repr__(self) -> str:
        """Return the segments as Python, each under a comment with its number."""
        return "\n".join(f"# segment {index}\n{segment!r}" for index, segment in enumerate(self._segments))

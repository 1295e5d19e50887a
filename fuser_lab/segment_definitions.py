"""The segments of a plan as definitions, with what is needed to follow values and to run them together."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from fuser_lab.definition.cache import FusionCache
from fuser_lab.definition.state import FusionState
from fuser_lab.executors import FusionExecutorCache
from fuser_lab.fusion_definition import FusionDefinition
from fuser_lab.report.index_maps import IndexMaps
from fuser_lab.runtime.argument_manager import ArgumentManager

if TYPE_CHECKING:
    from fuser_lab.plan import Plan


class SegmentDefinitions(Sequence[FusionDefinition]):
    """The segments of a plan as definitions, in the order in which they run.

    Parameters
    ----------
    plan
        Its segments have the same numbers here.
    cache
        Where equal definitions are looked up and kept; none if left out.

    Attributes
    ----------
    whole
        The plan's definition, which the segments run for.
    """

    def __init__(self, plan: "Plan", cache: FusionCache[FusionExecutorCache] | None = None) -> None:
        self.whole = FusionDefinition.of(plan.definition)
        self._segments = tuple(self.whole.defined_segments(plan, cache))

    @overload
    def __getitem__(self, index: int) -> FusionDefinition: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[FusionDefinition]: ...

    def __getitem__(self, index: int | slice) -> FusionDefinition | Sequence[FusionDefinition]:
        """Return a segment's definition."""
        return self._segments[index]

    def __len__(self) -> int:
        """Return the number of segments."""
        return len(self._segments)

    @property
    def state(self) -> FusionState:
        """Numbers of the values of the whole definition, which the maps lead to."""
        return self.whole.state

    @property
    def maps(self) -> tuple[Mapping[int, int], ...]:
        """For each segment, the number in the whole of each of its inputs and outputs, by its number there."""
        return tuple(self.whole.segment_index_space_maps[segment] for segment in self._segments)

    @property
    def last_used(self) -> Mapping[int, int]:
        """The place of the last segment that reads a value, by the value's number in the whole."""
        return self.whole.map_value_to_last_used_segment

    @property
    def index_maps(self) -> IndexMaps:
        """The maps as text, and drawn in a notebook."""
        return self.whole.index_maps

    @property
    def manager(self) -> ArgumentManager:
        """What gives each segment its arguments, and lets go of values after their last use."""
        return self.whole.argument_manager

    def execute(self, inputs: Iterable[Any], **how: Any) -> list[Any]:
        """Return the outputs of the segments run in order; see `FusionDefinition.execute`."""
        return self.whole.execute(inputs, **how)

    def reference(self, inputs: Iterable[Any]) -> list[Any]:
        """Return what the NumPy reference evaluation of the segments, one after another, gives, as NumPy arrays."""
        return self.whole.segments_reference(inputs)

    def __repr__(self) -> str:
        """Return the segments as Python, each under a comment with its number."""
        return "\n".join(f"# segment {index}\n{segment!r}" for index, segment in enumerate(self._segments))


__all__ = ["SegmentDefinitions"]

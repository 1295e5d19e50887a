"""User-scheduled segmentation: a definition cut into definitions, with maps between their numbers.

nvFuser's SegmentationState (csrc/python_frontend/segmentation.h of 2024 and 2025), for plans of any strategy as well.
As there, no pre-segmentation pass runs here: each segment goes through all of them when it is executed, and may be
segmented again. The passes of a given plan have already run.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fuser_lab.analysis.layout import lies_so
from fuser_lab.arguments import whole
from fuser_lab.definition.binding import Described, bind
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.state import FusionState
from fuser_lab.errors import ArgumentTypeError, InputError, SegmentationError, StateError
from fuser_lab.ir import Extent, Fusion, Scalar, TensorView, Val, stride_order_of
from fuser_lab.passes import AllocationDomain
from fuser_lab.segmentation.events import DecisionLog
from fuser_lab.segmentation.graph import SegmentedFusion, SegmentedGroup
from fuser_lab.segmentation.layouts import laid_out, negotiate, placed_in
from fuser_lab.segmentation.lifting import Lifting
from fuser_lab.segmentation.options import SegmenterOptions, run_passes
from fuser_lab.segmentation.oracle import SchedulerOracle
from fuser_lab.segmentation.translation import Translation

if TYPE_CHECKING:
    from fuser_lab.segmentation import Strategy

IndexMap = dict[int, int]


class SegmentationState:
    """The segmentation of one definition while its segments are built.

    `setup_segmentation` or `setup_plan`, then `build_segment` for any of the segments in any order, then
    `finalize_segmentation`.

    Parameters
    ----------
    fusion, state
        The definition, with its numbers.
    """

    def __init__(self, fusion: Fusion, state: FusionState) -> None:
        self._fusion = fusion
        self._state = state
        self._lifting: Lifting | None = None
        self._order: tuple[int, ...] = ()
        self._numbers: dict[str, int] = {}
        self._first_made = 0

    @property
    def segmented(self) -> SegmentedFusion:
        """The groups that segments are built from.

        Raises
        ------
        StateError
            Before `setup_segmentation` and after `finalize_segmentation`.
        """
        return self._ready("segmented").segmented

    @property
    def lifting(self) -> Lifting:
        """How the groups come from the definition; raises StateError as `segmented` does."""
        return self._ready("lifting")

    @property
    def decided(self) -> dict[str, int]:
        """The number of each size that an op decides, by its name; raises StateError as `segmented` does.

        Their numbers follow those of the extents of inputs.
        """
        first = len(self._state.extents) + 1
        return {name: -first - place for place, name in enumerate(self._ready("decided").decided)}

    @property
    def made(self) -> dict[str, int]:
        """The number of each tensor that passes or the segmenter created, by name; raises as `segmented` does."""
        return {name: number for name, number in self._numbers.items() if number >= self._first_made}

    @property
    def results(self) -> tuple[int, ...]:
        """The number of each output; those that a pass made one have one number. Raises as `segmented` does."""
        return tuple(self._numbers[tv.name] for tv in self._ready("results").segmented.fusion.outputs)

    def setup_segmentation(
        self, inputs: Sequence[Described], oracle: SchedulerOracle, options: SegmenterOptions | None = None,
        strategy: "Strategy" = "bottom_up",
    ) -> int:
        """Cut the definition for these inputs, and return the number of segments.

        Parameters
        ----------
        inputs
            One description per fusion input.
        oracle
            The schedulers.
        options
            Options of the segmenter; nvFuser's by default. Passes do not run; only the layouts by ``layout_mode``
            apply.
        strategy
            As for `fuser_lab.segmentation.segment`.

        Raises
        ------
        InputError
            If inputs do not fit the definition, or the strategy is unknown or does not accept an option.
        StateError
            If a segmentation is not finalized.
        SegmentationError
            If no order of the groups provides the inputs of each.
        """
        from fuser_lab.segmentation import segment

        self._free("setup_segmentation")
        chosen = options or SegmenterOptions()
        bound = bind(self._fusion, inputs).fusion
        log = DecisionLog()
        plain = segment(bound, oracle, strategy=strategy, options=chosen, log=log)
        segmented = _with_layouts(plain, bound, chosen, oracle)
        lifting = Lifting(
            definition=self._fusion, bound=bound, segmented=segmented, options=chosen, attempts=tuple(log),
        )
        return self._begin(lifting, run_order(segmented), self._state.fid_of)

    def setup_plan(self, lifting: Lifting) -> int:
        """Take over a segmented fusion of this definition, and return the number of segments, in the order they have.

        Parameters
        ----------
        lifting
            Of a definition that is equal to this one; names may differ.

        Raises
        ------
        InputError
            If it is of another definition.
        StateError
            If a segmentation is not finalized.
        """
        self._free("setup_plan")
        if lifting.definition != self._fusion:
            msg = "segment: the plan is of another definition; create it by fuser_lab.segment from this one."
            raise InputError(msg)
        named = zip(_names(lifting.definition), _names(self._fusion), strict=True)
        number_of = self._state.fid_of
        numbers = {theirs: number_of[ours] for theirs, ours in named if ours in number_of}
        return self._begin(lifting, tuple(range(len(lifting.segmented.groups))), numbers)

    def _begin(self, lifting: Lifting, order: tuple[int, ...], numbers: Mapping[str, int]) -> int:
        # A segment without expressions has no definition.
        self._lifting, self._order = lifting, tuple(place for place in order if lifting.segmented.groups[place].exprs)
        # If a pass replaced the result by a copy, the copy has the result's number.
        results = [tv.name for tv in lifting.segmented.fusion.outputs]
        recorded = [tv.name for tv in lifting.definition.outputs]
        inner = {old for old, new in zip(recorded, results, strict=True) if old != new} - {*results}
        numbers = {name: number for name, number in numbers.items() if name not in inner} | {
            new: numbers[old] for old, new in zip(recorded, results, strict=True)
        }
        # A tensor that passes or the segmenter created has no number; it gets one after all others.
        new = [tv.name for tv in lifting.segmented.crossing if tv.name not in numbers]
        self._first_made = 1 + max(numbers.values(), default=-1)
        made = {name: self._first_made + place for place, name in enumerate(new)}
        self._numbers = {**numbers, **made, **self.decided}
        return len(self._order)

    def build_segment(self, definition: FusionBuilder, index: int) -> IndexMap:
        """Define a segment in an empty definition; return the original number of each of its inputs and outputs.

        Parameters
        ----------
        definition
            One that has not been opened.
        index
            Of the segment, in the order in which segments run.

        Raises
        ------
        StateError
            Before `setup_segmentation`, or if the definition has been opened.
        InputError
            If there is no such segment.
        """
        lifting = self._ready("build_segment")
        if not isinstance(definition, FusionBuilder):
            msg = f"build_segment: definition must be a FusionDefinition, given {type(definition).__name__}."
            raise ArgumentTypeError(msg)
        index = whole(accepted="an int").of(index, "build_segment", "index")
        if not 0 <= index < len(self._order):
            msg = f"build_segment: there is no segment {index}; there are {len(self._order)}, counted from 0."
            raise InputError(msg)
        if not definition.is_new:
            msg = "build_segment: the definition must be empty, but it has been opened; give a new FusionDefinition()."
            raise StateError(msg)
        group = lifting.segmented.groups[self._order[index]]
        orders = _orders(group, lifting)
        with definition:
            pairs = Translation(lifting, definition, orders).run(group)
        return {definition.state.fid_of[new.name]: self._numbers[old.name] for new, old in pairs}

    def finalize_segmentation(self) -> None:
        """Forget the groups.

        Raises
        ------
        StateError
            If none are set up.
        """
        self._ready("finalize_segmentation")
        self._lifting, self._order, self._numbers = None, (), {}

    def _free(self, caller: str) -> None:
        if self._lifting is not None:
            msg = f"{caller}: segments are already set up; call finalize_segmentation first."
            raise StateError(msg)

    def _ready(self, caller: str) -> Lifting:
        if self._lifting is None:
            msg = f"{caller}: no segments are set up; call setup_segmentation first."
            raise StateError(msg)
        return self._lifting


def _names(fusion: Fusion) -> list[str]:
    """Return the names of all values, including sizes, in an order that is the same for equal fusions."""
    values = [*fusion.inputs, *(value for expr in fusion.exprs for value in expr.outputs)]
    return [name for value in values for name in (value.name, *_sizes(value))]


def _sizes(value: Val) -> list[str]:
    extents: tuple[Extent, ...] = value.extents if isinstance(value, TensorView) else ()
    return [extent.name for extent in extents if isinstance(extent, Scalar)]


def _with_layouts(
    segmented: SegmentedFusion, bound: Fusion, options: SegmenterOptions, oracle: SchedulerOracle,
) -> SegmentedFusion:
    """Return segments with tensors laid out by ``layout_mode``; results are laid out as if the passes had run."""
    results = zip(bound.outputs, run_passes(bound, options).outputs, strict=True)
    orders = {tv.name: after.domain.allocation_order for tv, after in results}
    if options.layout_mode == "propagate":
        everywhere = AllocationDomain(every_tensor=True).run(segmented.fusion)
        orders = {name: tv.domain.allocation_order for name, tv in everywhere.tensors.items()} | orders
    placed = laid_out(segmented, orders, oracle)
    return negotiate(placed, oracle)[0] if options.layout_mode == "negotiate" else placed


def _orders(group: SegmentedGroup, lifting: Lifting) -> dict[str, tuple[int, ...]]:
    """Return the orders that a segment's results must require to have the intended layouts.

    Nothing is required if the segment's own passes give a result this layout, or if the user requires one.
    """
    fusion = lifting.segmented.fusion
    asked = {tv.name: ranks for tv, ranks in fusion.stride_orders}
    free_outputs = {tv.name: tv for tv in group.outputs if fusion.required_order(tv) is None}
    alone = placed_in(group.candidate.narrowed, {})
    results = zip(alone.outputs, run_passes(alone, SegmenterOptions()).outputs, strict=True)
    by_itself = {tv.name: after for tv, after in results}
    required = {
        name: stride_order_of(tv.domain.allocation_order)
        for name, tv in free_outputs.items() if not lies_so(by_itself[name], tv.domain.allocation_order)
    }
    return required | {tv.name: asked[tv.name] for tv in group.outputs if tv.name in asked}


def run_order(segmented: SegmentedFusion) -> tuple[int, ...]:
    """Return the groups in an order that provides the inputs of each: repeated sweeps take every group that is ready.

    Raises
    ------
    SegmentationError
        If a sweep finds none.
    """
    available: set[TensorView] = set(segmented.fusion.tensor_inputs)
    left = list(range(len(segmented.groups)))
    order: list[int] = []
    while left:
        waiting: list[int] = []
        for number in left:
            group = segmented.groups[number]
            if available.issuperset(group.tensor_inputs):
                order.append(number)
                available.update(group.outputs)
            else:
                waiting.append(number)
        if len(waiting) == len(left):
            msg = f"segments {waiting} wait for each other."
            raise SegmentationError(msg)
        left = waiting
    return tuple(order)

"""FusionDefinition: records a fusion, and runs, checks and explains it afterwards."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fuser_lab.analysis.symbolic_axes import SymbolicAxes
from fuser_lab.api.executable import Executable
from fuser_lab.arguments import takes
from fuser_lab.cost.device import Device
from fuser_lab.definition.binding import bind
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.cache import FusionCache
from fuser_lab.definition.handles import Tensor
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import (
    ArgumentTypeError,
    InputError,
    StateError,
    UnsupportedDeviceError,
    UnsupportedDtypeError,
)
from fuser_lab.execution.executors import FusionExecutorCache
from fuser_lab.execution.segments import SegmentedDefinition
from fuser_lab.ir import Fusion
from fuser_lab.passes import Annotation, annotations_of, with_segment_set, without_segment_set
from fuser_lab.plan import Plan
from fuser_lab.plan.accepted import READERS, TENSOR
from fuser_lab.plan.planning import described_input, device_of, flatten, registry
from fuser_lab.report.index_maps import IndexMaps
from fuser_lab.runtime.arrays import describe
from fuser_lab.runtime.plan.argument_manager import ArgumentManager
from fuser_lab.segmentation import SegmenterOptions, Strategy
from fuser_lab.segmentation.user_segments import SegmentationState
from fuser_lab.targets import holders, is_on_host

if TYPE_CHECKING:
    from fuser_lab.bindings.schedule import Sched


def described_array(array: Any) -> TensorSpec:
    """Return the description of an array to define an input from.

    Raises
    ------
    ArgumentTypeError
        If it is not an array.
    UnsupportedDeviceError
        If it is neither on the CPU nor on a CUDA device.
    UnsupportedDtypeError
        If no fusion supports its dtype.
    """
    if isinstance(array, TensorSpec):
        return array
    device, dtype = getattr(array, "device", None), getattr(array, "dtype", None)
    kind = getattr(device, "type", None)
    if isinstance(kind, str) and kind not in holders():
        raise UnsupportedDeviceError(f"Found unsupported device {device}, only CPU and CUDA tensors are supported.")
    try:
        spec = describe(array)
    except InputError as error:
        if dtype is not None and "dtype" in str(error):
            raise UnsupportedDtypeError(str(error)) from None
        raise ArgumentTypeError(str(error)) from None
    if isinstance(spec, TensorSpec):
        return spec
    raise ArgumentTypeError(f"from_array: array must be a tensor, given {type(array).__name__}.")


class FusionDefinition(Executable, FusionBuilder, public=True):
    """Defines a fusion as nvFuser's Python frontend does, and runs it.

    ``with FusionDefinition() as fd:`` opens it; inside, ``fd.define_tensor``, ``fd.ops.*`` and ``fd.add_output``
    record. ``repr`` is runnable Python. `segment` cuts it into definitions, which `execute` runs from then on.

    Parameters
    ----------
    cache
        Cache in which equal definitions are looked up and stored, with their compiled kernels; none by default.

    Attributes
    ----------
    segments
        The result of the last `segment`, in run order.
    segment_index_space_maps
        For each segment, the number in this definition of each input and output, by its number there (`FusionState`).
    map_value_to_last_used_segment
        The position of the last segment that reads a value, by the value's number in this definition.
    """

    cache: FusionCache[FusionExecutorCache] | None

    def __init__(self, cache: FusionCache[FusionExecutorCache] | None = None) -> None:
        super().__init__(cache)
        self.segments: list[FusionDefinition] = []
        self.segment_index_space_maps: dict[FusionDefinition, dict[int, int]] = {}
        self.map_value_to_last_used_segment: dict[int, int] = {}
        self._segmentation: SegmentationState | None = None
        self._segmented: SegmentedDefinition | None = None
        self._is_one_segment = False
        # Names, by number, of values for which `state` has no numbers: sizes that ops determine, and tensors that
        # passes created.
        self._decided: dict[int, str] = {}
        self._made: dict[int, str] = {}

    @property
    def recorded_fusion(self) -> Fusion:
        """The recorded fusion; the same as ``fusion``."""
        return self.fusion

    definition = recorded_fusion

    @takes(tensor=TENSOR, readers=READERS)
    def with_segment_set(self, tensor: str, readers: str | Sequence[str] | None = None) -> "FusionDefinition":
        """Return a definition with an ``fd.ops.segment_set`` between a tensor and its readers.

        All other tensors keep their names; the new one is named after its operand, for example ``T2_hint``.

        Parameters
        ----------
        tensor
            Name of an input or a result, such as ``"T2"``.
        readers
            Names of the results of these readers, such as ``["T4", "T5"]``; all readers by default.

        Raises
        ------
        IllegalEdit
            If there is no such tensor, or a reader does not read it.
        """
        return type(self).of(with_segment_set(self.fusion, tensor, readers))

    @takes(tensor=TENSOR, readers=READERS)
    def without_segment_set(self, tensor: str, readers: str | Sequence[str] | None = None) -> "FusionDefinition":
        """Return a definition in which readers of a tensor's ``segment_set`` read the tensor itself.

        Parameters
        ----------
        tensor
            Name of the tensor that is copied, or of the result of ``segment_set``.
        readers
            Names of the results of these readers; all by default.

        Raises
        ------
        IllegalEdit
            If there is no such ``segment_set``.
        """
        return type(self).of(without_segment_set(self.fusion, tensor, readers))

    @property
    def annotations(self) -> tuple[Annotation, ...]:
        """Every ``segment_set`` of the definition."""
        return annotations_of(self.fusion)

    def _executor_cache(self) -> FusionExecutorCache:
        if self.fec is None and self._end is not None:
            # The kernels that an equal definition has compiled are in the cache.
            schedules = self._end.schedules
            self.fec = schedules.made(lambda fusion: FusionExecutorCache(fusion, schedules.fusion_id))
        return super()._executor_cache()

    def _run(self, flat: list[Any], **how: Any) -> list[Any]:
        return super()._run(flat, **how) if self._segmented is None else self._segmented.execute(flat, **how)

    def segment(
        self, inputs: Iterable[Any] | None = None, *, strategy: Strategy = "bottom_up",
        target: str | Device | None = None, options: SegmenterOptions | None = None, plan: Plan | None = None,
    ) -> list["FusionDefinition"]:
        """Return the definition's segments as definitions; an empty list if it is one segment.

        `execute` then runs them in order, also for inputs of other sizes: sizes that are symbolic in the definition
        are symbolic in a segment. No pre-segmentation pass runs here; each segment goes through all passes when it is
        executed, and may be segmented again. The passes of a plan have already run, and its segments are used
        unchanged, including edits.

        Parameters
        ----------
        inputs
            Arrays, abstract inputs and numbers, one per fusion input; omitted if a plan is given.
        strategy, target, options
            As for `fuser_lab.segment`.
        plan
            A plan of this definition, in place of all other arguments.

        Raises
        ------
        InputError
            If inputs do not fit the definition, strategy or target are unknown, or the plan is of another definition.
        ArgumentTypeError
            If a plan is given together with anything else, or neither inputs nor a plan.
        StateError
            Inside the ``with`` block, or between `setup_segmentation` and `finalize_segmentation`.
        """
        if plan is None:
            if inputs is None:
                raise ArgumentTypeError("segment: inputs must be given, or a plan.")
            count = self.setup_segmentation(inputs, strategy=strategy, target=target, options=options)
        else:
            if inputs is not None or strategy != "bottom_up" or target is not None or options is not None:
                msg = "segment: a plan already contains inputs, strategy and options; pass no other argument with it."
                raise ArgumentTypeError(msg)
            count = self._setup_plan(plan)
        self._segmented, self._is_one_segment = None, count <= 1
        self._define_segments(count if count > 1 else 0)
        return list(self.segments)

    def defined_segments(
        self, plan: Plan, cache: FusionCache[FusionExecutorCache] | None = None,
    ) -> list["FusionDefinition"]:
        """Return the segments of a plan of this definition as definitions of a cache, even if there is only one.

        `execute` then runs them; see `fuser_lab.Plan.definitions`.
        """
        self._segmented, self._is_one_segment = None, False
        self._define_segments(self._setup_plan(plan), lambda: FusionDefinition(cache))
        return list(self.segments)

    @property
    def argument_manager(self) -> ArgumentManager:
        """The object that passes arguments to segments; raises StateError if the definition is not segmented."""
        return self._in_segments("argument_manager").manager

    def segments_reference(self, inputs: Iterable[Any]) -> list[Any]:
        """Return the results of each segment's `reference` in order; raises StateError like `argument_manager`."""
        return self._in_segments("segments_reference").reference(flatten(inputs))

    def _in_segments(self, method: str) -> SegmentedDefinition:
        if self._segmented is None:
            raise StateError(f"{method}: the definition is not segmented; call segment first.")
        return self._segmented

    def _setup_plan(self, plan: Plan) -> int:
        if not isinstance(plan, Plan):
            raise ArgumentTypeError(f"segment: plan must be a Plan, given {type(plan).__name__}.")
        if self._segmentation is None:
            self._segmentation = SegmentationState(self.fusion, self.state)
        return self._segmentation.setup_plan(plan.lifting)

    def _define_segments(self, count: int, new: Callable[[], "FusionDefinition"] | None = None) -> None:
        """Define the segments that are set up, with their maps, and let `execute` run them."""
        new = new or self._new
        self.segments, self.segment_index_space_maps, self.map_value_to_last_used_segment = [], {}, {}
        begun = self._state_for("segment")
        try:
            for index in range(count):
                segment = new()
                numbers = self.build_segment(segment, index)
                self.segments.append(segment)
                self.segment_index_space_maps[segment] = numbers
                reads = {numbers[fid]: index for fid in segment.state.inputs}
                self.map_value_to_last_used_segment.update(reads)
            if self.segments:
                maps = [self.segment_index_space_maps[segment] for segment in self.segments]
                self._segmented = SegmentedDefinition(
                    self.fusion, self.state, begun.lifting, begun.decided, self.segments, maps,
                    self.map_value_to_last_used_segment, begun.results,
                )
                self._made = {number: name for name, number in begun.made.items()}
                self._decided = {number: name for name, number in begun.decided.items()}
        finally:
            self.finalize_segmentation()

    @property
    def index_maps(self) -> IndexMaps:
        """The maps of the last `segment`, drawn in a notebook.

        Raises
        ------
        StateError
            If the definition is not segmented, or is a single segment.
        """
        if self._is_one_segment:
            raise StateError("index_maps: the definition is one segment by itself, so there are no maps.")
        if not self.segments:
            raise StateError("index_maps: the definition is not segmented; call segment first.")
        return IndexMaps(
            original=self.state,
            segments=tuple((segment.state, self.segment_index_space_maps[segment]) for segment in self.segments),
            decided=self._decided, crossing=self._made,
        )

    def _new(self) -> "FusionDefinition":
        """Return an empty definition with this one's cache."""
        return FusionDefinition(self.cache)

    def setup_segmentation(
        self, inputs: Iterable[Any], *, strategy: Strategy = "bottom_up", target: str | Device | None = None,
        options: SegmenterOptions | None = None,
    ) -> int:
        """Cut the definition for these inputs and return the number of segments; the first step of `segment`.

        Raises
        ------
        StateError
            If the previous segmentation is not finalized.
        """
        if options is not None and not isinstance(options, SegmenterOptions):
            msg = f"setup_segmentation: options must be SegmenterOptions, given {type(options).__name__}."
            raise ArgumentTypeError(msg)
        chosen = options or SegmenterOptions()
        if self._segmentation is None:
            self._segmentation = SegmentationState(self.fusion, self.state)
        described = [described_input(value) for value in flatten(inputs)]
        symbolic = SymbolicAxes(definition=self.fusion, bound=bind(self.fusion, described).fusion)
        oracle = registry(device_of(target), chosen, symbolic=symbolic)
        return self._segmentation.setup_segmentation(described, oracle, chosen, strategy)

    def build_segment(self, definition: "FusionDefinition", index: int) -> dict[int, int]:
        """Define a segment in an empty definition; return the number here of each of its inputs and outputs.

        Raises
        ------
        StateError
            Before `setup_segmentation`, or if the definition has been opened.
        InputError
            If the segment does not exist.
        """
        return self._state_for("build_segment").build_segment(definition, index)

    def finalize_segmentation(self) -> None:
        """End the segmentation that `setup_segmentation` began.

        Raises
        ------
        StateError
            If no segmentation has begun.
        """
        self._state_for("finalize_segmentation").finalize_segmentation()
        self._segmentation = None

    def _state_for(self, method: str) -> SegmentationState:
        if self._segmentation is None:
            raise StateError(f"{method}: no segments are set up; call setup_segmentation first.")
        return self._segmentation

    @property
    def sched(self) -> "Sched":
        """The schedule by hand, and queries to schedulers such as ``can_schedule(fd.fusion, scheduler, inputs)``."""
        from fuser_lab.bindings.schedule import Sched

        return Sched(self)

    def from_array(self, array: Any, static_sizes: bool = False) -> Tensor:
        """Add a tensor input with the properties of an array of any library, or of an abstract input.

        Parameters
        ----------
        array
            Its dtype, strides and axes of size 1 determine the input.
        static_sizes
            Whether sizes are fixed; otherwise all sizes except 1 are symbolic.

        Raises
        ------
        UnsupportedDeviceError
            A ValueError, if it is neither on the CPU nor on a CUDA device.
        UnsupportedDtypeError
            A KeyError, if no fusion supports its dtype.
        """
        self.require_open("from_array")
        return defined_like(self, described_array(array), static_sizes)

    def from_pytorch(self, tensor: Any, static_sizes: bool = False) -> Tensor:
        """Add a tensor input with the properties of a torch tensor; see `from_array`."""
        return self.from_array(tensor, static_sizes)


def defined_like(builder: FusionBuilder, spec: TensorSpec, static_sizes: bool) -> Tensor:
    """Add a tensor input with these properties to a definition; a scalar tensor on the CPU may stay there."""
    return builder.define_from_spec(
        spec, static_sizes=static_sizes, is_cpu=not spec.shape and is_on_host(spec.device),
    )

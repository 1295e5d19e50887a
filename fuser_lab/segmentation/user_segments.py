"""User-scheduled segmentation: a definition cut into definitions, with maps between their numbers.

nvFuser's SegmentationState (csrc/python_frontend/segmentation.h of 2024 and 2025). No pre-segmentation pass runs here:
each segment goes through all of them when it is executed, and may be segmented again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fuser_lab.definition.binding import Described, bind
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.state import FusionState
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError, InputError, SegmentationError, StateError
from fuser_lab.ir import (
    AttrValue,
    Expr,
    Extent,
    Fusion,
    Scalar,
    TensorView,
    Val,
    scalars_in,
    stride_order_of,
)
from fuser_lab.ops import OPS
from fuser_lab.segmentation.graph import SegmentedFusion, SegmentedGroup
from fuser_lab.segmentation.options import SegmenterOptions
from fuser_lab.segmentation.oracle import SchedulerOracle

IndexMap = dict[int, int]


class SegmentationState:
    """The segmentation of one definition while its segments are built.

    `setup_segmentation`, then `build_segment` for any of the segments in any order, then `finalize_segmentation`.

    Parameters
    ----------
    fusion, state
        The definition, with its numbers.
    """

    def __init__(self, fusion: Fusion, state: FusionState) -> None:
        self._fusion = fusion
        self._state = state
        self._segmented: SegmentedFusion | None = None
        self._order: tuple[int, ...] = ()
        self._crossing: dict[str, int] = {}

    @property
    def segmented(self) -> SegmentedFusion:
        """The groups that segments are built from.

        Raises
        ------
        StateError
            Before `setup_segmentation` and after `finalize_segmentation`.
        """
        return self._ready("segmented")

    def setup_segmentation(
        self, inputs: Sequence[Described], oracle: SchedulerOracle, options: SegmenterOptions | None = None,
    ) -> int:
        """Cut the definition for these inputs, and return the number of segments.

        Parameters
        ----------
        inputs
            One description per fusion input.
        oracle
            The schedulers.
        options
            Switches of the segmenter; nvFuser's defaults if left out.

        Raises
        ------
        InputError
            If inputs do not fit the definition.
        StateError
            If a segmentation is not finalized.
        SegmentationError
            If no order of the groups has all inputs of each ready.
        """
        from fuser_lab.segmentation import segment

        if self._segmented is not None:
            msg = "setup_segmentation: segments are set up already; call finalize_segmentation first."
            raise StateError(msg)
        bound = bind(self._fusion, inputs).fusion
        segmented = segment(bound, oracle, options=options)
        self._order = run_order(segmented)
        self._segmented = segmented
        # A tensor that only the segmenter made has no number in the definition; it gets one behind all others.
        numbers = self._state.fid_of
        new = [tv.name for tv in segmented.crossing if tv.name not in numbers]
        behind = 1 + max(numbers.values(), default=-1)
        self._crossing = {name: behind + place for place, name in enumerate(new)}
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
        segmented = self._ready("build_segment")
        if not isinstance(definition, FusionBuilder):
            msg = f"build_segment: definition must be a FusionDefinition, given {type(definition).__name__}."
            raise ArgumentTypeError(msg)
        if not isinstance(index, int) or isinstance(index, bool):
            msg = f"build_segment: index must be an int, given {index!r}."
            raise ArgumentTypeError(msg)
        if not 0 <= index < len(self._order):
            msg = f"build_segment: there is no segment {index}; there are {len(self._order)}, counted from 0."
            raise InputError(msg)
        if not definition.is_new:
            msg = "build_segment: the definition must be empty, but it has been opened; give a new FusionDefinition()."
            raise StateError(msg)
        group = segmented.groups[self._order[index]]
        with definition:
            pairs = _Translation(self._fusion, segmented.fusion, definition).run(group)
        numbers = {**self._state.fid_of, **self._crossing}
        return {definition.state.fid_of[new.name]: numbers[old.name] for new, old in pairs}

    def finalize_segmentation(self) -> None:
        """Forget the groups.

        Raises
        ------
        StateError
            If none are set up.
        """
        self._ready("finalize_segmentation")
        self._segmented, self._order, self._crossing = None, (), {}

    def _ready(self, what: str) -> SegmentedFusion:
        if self._segmented is None:
            msg = f"{what}: no segments are set up; call setup_segmentation first."
            raise StateError(msg)
        return self._segmented


def run_order(segmented: SegmentedFusion) -> tuple[int, ...]:
    """Return the groups so that each has its inputs: repeated sweeps take every group that is ready.

    Raises
    ------
    SegmentationError
        If a sweep takes none.
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


class _Translation:
    """Defines a group of expressions again, with the sizes symbolic that are so in the definition."""

    def __init__(self, definition: Fusion, concrete: Fusion, target: FusionBuilder) -> None:
        self._definition = definition
        self._tensors = definition.tensors
        self._concrete = concrete
        self._target = target
        self._new: dict[str, Val] = {}
        self._sizes = _sizes(definition, concrete)
        self._scalar_inputs = {v.name: v for v in definition.inputs if isinstance(v, Scalar)}
        self._orders = {tv.name: ranks for tv, ranks in definition.stride_orders}
        tensors = definition.tensor_inputs
        self._extents = {e.name: e for tv in tensors for e in tv.extents if isinstance(e, Scalar)}

    def run(self, group: SegmentedGroup) -> list[tuple[Val, Val]]:
        """Return (new, old) of inputs and outputs."""
        exprs = [self._symbolic(expr) for expr in group.exprs if expr.tensor_outputs]
        pairs: list[tuple[Val, Val]] = [(self._input(tensor), tensor) for tensor in group.tensor_inputs]
        made: set[str] = set()
        for expr in exprs:
            given = (s for s in self._leaves(expr) if s.name not in self._new and s.name not in made)
            pairs.extend((self._scalar_input(scalar), scalar) for scalar in given)
            made.update(e.name for tv in expr.tensor_outputs for e in tv.extents if isinstance(e, Scalar))
        for expr in exprs:
            self._emit(expr)
        for tensor in group.outputs:
            new = self._tensor(tensor)
            self._target.add_output(self._target.wrap(new))
            if tensor.name in self._orders:
                self._target.set_output_stride_order(self._target.wrap(new), self._orders[tensor.name])
            pairs.append((new, tensor))
        return pairs

    def _symbolic(self, expr: Expr) -> Expr:
        """Return an expression of a group with the definition's own sizes and scalars.

        What only the segmenter made, such as a replica, is taken as it is.
        """
        names = [tv.name for tv in expr.tensor_outputs]
        old = self._definition.producers.get(self._tensors[names[0]]) if names[0] in self._tensors else None
        if old is None or old.op.name != expr.op.name or len(old.inputs) != len(expr.inputs):
            return expr
        pairs = zip(expr.inputs, old.inputs, strict=True)
        inputs = tuple(new if isinstance(new, TensorView) else symbolic for new, symbolic in pairs)
        return Expr(op=expr.op, inputs=inputs, outputs=old.outputs, attrs=old.attrs)

    def _leaves(self, expr: Expr) -> Iterator[Scalar]:
        """Yield the scalars that must be given to the segment for an expression."""
        operands = (v for v in expr.inputs if isinstance(v, Scalar) and v.value is None)
        waiting = [*operands, *(s for s in scalars_in(value for _, value in expr.attrs) if s.value is None)]
        for scalar in waiting:
            maker = self._definition.producers.get(scalar)
            if maker is not None:
                waiting += [v for v in maker.inputs if isinstance(v, Scalar) and v.value is None]
            elif scalar.name in self._scalar_inputs or scalar.name in self._extents:
                yield scalar

    def _input(self, tensor: TensorView) -> Val:
        """Define an input for a tensor that the segment reads."""
        old = self._tensors.get(tensor.name, tensor)
        domain = tensor.domain
        shape: list[int] = []
        for axis, extent in zip(domain.axes, old.extents, strict=True):
            plain_broadcast = axis.is_broadcast and axis.expanded is None
            shape.append(1 if plain_broadcast else -1 if isinstance(extent, Scalar) or tensor is old else extent)
        order = domain.allocation_order
        if domain.contiguity is not None:
            contiguity = list(domain.contiguity)
        else:
            contiguity = [None if domain.axes[axis].is_broadcast else True for axis in order]
        handle = self._target.define_tensor(
            shape=shape, contiguity=contiguity, dtype=tensor.dtype, is_cpu=tensor.is_cpu,
            stride_order=() if domain.allocation is None else stride_order_of(domain.allocation),
        )
        self._learn(old, handle.val)
        return handle.val

    def _scalar_input(self, scalar: Scalar) -> Val:
        new = self._target.define_scalar(None, dtype=scalar.dtype).val
        self._new[scalar.name] = new
        return new

    def _learn(self, old: TensorView, new: TensorView) -> None:
        """Note what a tensor has become, and its sizes."""
        self._new[old.name] = new
        for before, after in zip(old.extents, new.extents, strict=True):
            if isinstance(before, Scalar):
                self._new.setdefault(before.name, _as_scalar(after))

    def _emit(self, expr: Expr) -> None:
        attrs = {name: self._attribute(value) for name, value in expr.attrs}
        results = self._target.emit(OPS[expr.op.name], [self._value(v) for v in expr.inputs], **attrs)
        for old, new in zip(expr.outputs, results, strict=True):
            if isinstance(old, TensorView) and isinstance(new, TensorView):
                self._learn(old, new)
            else:
                self._new[old.name] = new

    def _tensor(self, tensor: TensorView) -> TensorView:
        new = self._new[tensor.name]
        if not isinstance(new, TensorView):
            raise TypeError(new)
        return new

    def _value(self, value: Val) -> Val:
        return self._new[value.name] if isinstance(value, TensorView) else self._scalar(value)

    def _scalar(self, scalar: Scalar) -> Scalar:
        if scalar.value is not None:
            return scalar
        maker = self._definition.producers.get(scalar)
        if scalar.name not in self._new and maker is not None:
            for part in _makers(maker, self._definition.producers):
                if part.name not in self._new:
                    self._emit(part)
        if scalar.name not in self._new:
            # A size that some op of another segment decides: segments are for these sizes only.
            return Scalar(name="", dtype=scalar.dtype, value=self._sizes[scalar.name])
        new = self._new[scalar.name]
        if not isinstance(new, Scalar):
            raise TypeError(new)
        return new

    def _attribute(self, value: AttrValue) -> AttrValue:
        if isinstance(value, tuple):
            return tuple(self._attribute(part) for part in value)
        if not isinstance(value, Scalar):
            return value
        new = self._scalar(value)
        return new if new.value is None else int(new.value.real) if new.dtype.is_integral else new.value


def _makers(expr: Expr, producers: Mapping[Val, Expr]) -> list[Expr]:
    """Return the scalar arithmetic that leads to an expression and the expression, in order."""
    found: dict[Expr, None] = {}
    waiting = [expr]
    while waiting:
        here = waiting.pop()
        found.pop(here, None)
        found[here] = None
        waiting += [producers[v] for v in here.inputs if isinstance(v, Scalar) and v in producers]
    return list(found)[::-1]


def _sizes(definition: Fusion, concrete: Fusion) -> dict[str, int]:
    """Return the size that each symbol of a definition stands for."""
    found: dict[str, int] = {}
    for name, tensor in definition.tensors.items():
        if name in concrete.tensors:
            sizes: Iterable[tuple[Extent, int]] = zip(tensor.extents, concrete.tensors[name].shape, strict=True)
            found.update((extent.name, size) for extent, size in sizes if isinstance(extent, Scalar))
    return found


def _as_scalar(extent: Extent) -> Scalar:
    return extent if isinstance(extent, Scalar) else Scalar(name="", dtype=DataType.Int, value=extent)


__all__ = ["IndexMap", "SegmentationState", "run_order"]

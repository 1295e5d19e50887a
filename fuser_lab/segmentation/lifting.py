"""Which expressions of a segmented fusion come from its definition, and for which other sizes this remains true.

A fusion is segmented with all sizes known. Its segments become definitions with the sizes symbolic that are symbolic in
the definition: an expression is taken from the definition again, unless a pass or the segmenter has made it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fuser_lab.definition.binding import Described, bind
from fuser_lab.errors import FuserLabError, InputError
from fuser_lab.ir import Expr, Extent, Fusion, Scalar, TensorView, Val
from fuser_lab.ops.registry import MADE_BY_PASSES
from fuser_lab.passes import Pass
from fuser_lab.segmentation.events import Attempt
from fuser_lab.segmentation.graph import SegmentedFusion
from fuser_lab.segmentation.options import SegmenterOptions, run_passes
from fuser_lab.segmentation.replay import Fold


@dataclass(frozen=True, kw_only=True, eq=False)
class Lifting:
    """A segmented fusion beside the definition that it comes from.

    Attributes
    ----------
    definition
        As recorded, possibly with symbolic sizes.
    bound
        The definition with all sizes known, before any pass.
    segmented
        The segments.
    passes
        The passes that rewrote ``bound`` before it was cut; empty for segmentation as in nvFuser's Python frontend.
    options
        Under which it was rewritten.
    attempts
        The decisions of the segmenter; those that rewrite the fusion are repeated for other sizes.
    """

    definition: Fusion
    bound: Fusion
    segmented: SegmentedFusion
    passes: tuple[Pass, ...] = ()
    options: SegmenterOptions = field(default_factory=SegmenterOptions)
    attempts: tuple[Attempt, ...] = ()

    def original(self, expr: Expr) -> Expr | None:
        """Return the expression of the definition that this one is or repeats; None if passes or segmenter made it."""
        return _original(expr, self.definition, self.bound, self.segmented.replicas)

    def extents(self, tensor: TensorView) -> tuple[Extent, ...] | None:
        """Return the extents of a tensor as the definition has them; None for a tensor that it does not have."""
        name = self.segmented.replicas.get(tensor.name, tensor.name)
        old, now = self.definition.tensors.get(name), self.bound.tensors.get(name)
        return None if old is None or now is None or now.shape != tensor.shape else old.extents

    @cached_property
    def decided(self) -> tuple[str, ...]:
        """Names of the sizes that an op determines, such as a pad: they come from neither inputs nor arithmetic."""
        from_inputs = {v.name for v in self.definition.inputs}
        from_inputs |= {e.name for tv in self.definition.tensor_inputs for e in tv.extents if isinstance(e, Scalar)}
        extents = (e for tv in self.definition.tensors.values() for e in tv.extents if isinstance(e, Scalar))
        return tuple(dict.fromkeys(
            e.name for e in extents if e.name not in from_inputs and e not in self.definition.producers
        ))

    def sizes(self, inputs: Sequence[Described]) -> dict[str, int]:
        """Return the sizes in `decided` for other inputs than the segmentation's.

        Raises
        ------
        InputError
            If the inputs do not fit the definition, or passes and segmenter would make other expressions for them.
        """
        bound = bind(self.definition, inputs).fusion
        if bound.digest != self.bound.digest:
            self._check(bound)
        sizes = sizes_of(self.definition, bound)
        return {name: sizes[name] for name in self.decided if name in sizes}

    def _check(self, bound: Fusion) -> None:
        fold = Fold(run_passes(bound, self.options, self.passes))
        try:
            for attempt in self.attempts:
                fold.apply(attempt)
            now = _ops_by_result(fold.fusion, self.definition, bound, fold.replicas)
        except (FuserLabError, KeyError):
            # The log does not apply to the passes' result for these sizes.
            now = {}
        if now != self._ops:
            differing = sorted(name for name in {*now, *self._ops} if now.get(name) != self._ops.get(name))
            msg = (
                f"execute: for inputs of these sizes, the passes or the segmenter compute {', '.join(differing[:3])} "
                "differently than for the sizes that the definition was segmented for; call segment again with these "
                "inputs."
            )
            raise InputError(msg)

    @cached_property
    def _ops(self) -> dict[str, object]:
        return _ops_by_result(self.segmented.fusion, self.definition, self.bound, self.segmented.replicas)


def seeds_in(definition: Fusion, fusion: Fusion) -> frozenset[str]:
    """Return the names of the scalars that passes have turned into inputs."""
    input_names = {v.name for v in definition.inputs}
    return frozenset(v.name for v in fusion.inputs if v.name not in input_names)


def sizes_of(definition: Fusion, bound: Fusion) -> dict[str, int]:
    """Return the size that each symbol of a definition stands for."""
    size_of: dict[str, int] = {}
    for name, tensor in definition.tensors.items():
        if name in bound.tensors:
            sizes = zip(tensor.extents, bound.tensors[name].shape, strict=True)
            size_of.update((extent.name, size) for extent, size in sizes if isinstance(extent, Scalar))
    return size_of


def _original(expr: Expr, definition: Fusion, bound: Fusion, replicas: Mapping[str, str]) -> Expr | None:
    name = replicas.get(expr.name, expr.name)
    place = bound.positions.get(name)
    if place is None or name not in definition.tensors:
        return None
    was, old = bound.exprs[place], definition.producers[definition.tensors[name]]
    # An op that only passes create computes the same as the recorded one in another way.
    same = was.op.name == expr.op.name or expr.op.name in MADE_BY_PASSES
    if not same or was.attrs != expr.attrs or len(old.outputs) != len(expr.outputs):
        return None
    # A pass gives random numbers a seed behind all other operands.
    inputs = expr.inputs[: len(was.inputs)]
    if len(inputs) != len(was.inputs) or any(not isinstance(v, Scalar) for v in expr.inputs[len(inputs) :]):
        return None
    if any(_invariant_part(a) != _invariant_part(b) for a, b in zip(inputs, was.inputs, strict=True)):
        return None
    # A pad by nothing is a copy, which has no value to pad with.
    if len(old.inputs) > len(inputs):
        return None
    # A reshape without elements becomes zeros, which read no tensor.
    kinds = zip(inputs, old.inputs, strict=False)
    if any(isinstance(a, TensorView) is not isinstance(b, TensorView) for a, b in kinds):
        return None
    return old if was.out.shape == expr.out.shape else None


def _invariant_part(value: Val) -> object:
    """Return the properties of an operand that a pass must not change: whether it is a tensor, and which scalar."""
    return value.ndim if isinstance(value, TensorView) else (value.name, value.dtype, value.value)


def _ops_by_result(
    fusion: Fusion, definition: Fusion, bound: Fusion, replicas: Mapping[str, str],
) -> dict[str, object]:
    """Return the ops of a rewritten fusion and their operands, by result, without sizes of the definition."""
    computed: dict[str, object] = {}
    for expr in fusion.tensor_exprs:
        reads = tuple(replicas.get(v.name, v.name) for v in expr.tensor_inputs)
        lifted = _original(expr, definition, bound, replicas) is not None
        scalars = tuple((v.name, repr(v.value)) for v in expr.inputs if isinstance(v, Scalar))
        more = () if lifted else (scalars, expr.attrs)
        computed[replicas.get(expr.name, expr.name)] = (expr.op.name, reads, *more)
    return computed

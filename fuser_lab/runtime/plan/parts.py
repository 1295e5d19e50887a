"""The parts of a prepared plan that do not depend on the layouts of its inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fuser_lab.codegen.kernel_ir import Layout, layout_of
from fuser_lab.ir import Fusion, Scalar, TensorView
from fuser_lab.passes import offsets_of
from fuser_lab.runtime.binding import Places, Slot, places_of, slot_of
from fuser_lab.runtime.evaluate import Origin, origins_of
from fuser_lab.runtime.plan.aliased_buffers import (
    ResultAlias,
    StoredView,
    intermediate_aliases,
    result_aliases,
    stored_views,
)
from fuser_lab.runtime.plan.steps import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanParts:
    """A concretized fusion cut into segments, and where its tensors are stored.

    Inputs are in the caller's arrays. An output is computed into a separate array, or is a view of an input. An
    intermediate has separate storage unless it shares the memory of an output or of another intermediate.
    """

    fusion: Fusion
    segments: tuple[Segment, ...]
    inputs: tuple[Slot | Scalar, ...]
    tensors: tuple[Slot, ...]  # the inputs that are tensors
    outputs: Mapping[str, Slot]  # by name
    returned: tuple[Slot, ...]  # the outputs returned to the caller
    origins: Mapping[TensorView, Origin]  # of outputs that are views of inputs
    returned_from: tuple[Origin | None, ...]  # the origin of each returned output
    computed: tuple[Slot, ...]  # outputs that segments write
    needed: frozenset[str]  # tensors that some segment has to compute
    live: frozenset[int]  # segments that run
    result_aliases: tuple[ResultAlias, ...]
    owners: Mapping[str, str]  # of intermediates that share the memory of another one
    unstored: frozenset[str]  # tensors that are not in the plan's storage
    indices: tuple[Places, ...]  # inputs that are positions on an axis
    draws: bool  # random numbers

    def is_seen(self, tensor: TensorView) -> bool:
        """Whether a result is a view of another tensor, so that it need not be computed."""
        return _is_seen(self.origins, tensor)

    def views(self, layouts: Mapping[str, Layout]) -> tuple[StoredView, ...]:
        """Return the intermediates that kernels read in the memory of an input, a result or an intermediate.

        ``layouts`` are those of inputs, and of results that are not written as in new arrays.
        """
        joined = {name for alias in self.result_aliases for name in (alias.result.name, alias.intermediate.name)}
        apart = joined | {name for name in self.outputs if name not in {slot.name for slot in self.computed}}
        written = {
            tv.name: layout_of(tv) for number in self.live for tv in self.segments[number][0].outputs
            if tv.name not in apart
        }
        return stored_views(self.segments, {**written, **layouts}, self.unstored | set(self.owners))


def parts_of(fusion: Fusion, segments: Sequence[Segment]) -> PlanParts:
    """Return the parts of a plan.

    Parameters
    ----------
    fusion
        The whole fusion, concretized.
    segments
        Segment fusions with their schedulers, in run order; values keep the fusion's names.
    """
    inputs = tuple(slot_of(v) if isinstance(v, TensorView) else v for v in fusion.inputs)
    tensors = tuple(slot for slot in inputs if isinstance(slot, Slot))
    outputs = tuple(slot_of(tv) for tv in fusion.outputs)
    returned = tuple(slot for slot in outputs if slot.tensor not in fusion.hidden)
    origins = origins_of(fusion)
    needed, live = _needs(fusion, segments, origins)
    written = needed | {tv.name for number in live for tv in segments[number][0].outputs}
    computed = tuple(slot for slot in outputs if slot.name in written and slot.tensor not in fusion.inputs)
    unstored = {slot.name for slot in (*tensors, *outputs)}
    aliases = result_aliases(segments, [slot.tensor for slot in computed if slot.tensor not in origins], unstored)
    unstored |= {alias.intermediate.name for alias in aliases}
    shares = intermediate_aliases(segments, unstored)
    return PlanParts(
        fusion=fusion,
        segments=tuple(segments),
        inputs=inputs,
        tensors=tensors,
        outputs={slot.name: slot for slot in outputs},
        returned=returned,
        origins=origins,
        returned_from=tuple(origins.get(slot.tensor) for slot in returned),
        computed=computed,
        needed=needed,
        live=live - {alias.segment for alias in aliases} - {share.segment for share in shares},
        result_aliases=aliases,
        owners={share.name: share.owner for share in shares},
        unstored=frozenset(unstored),
        indices=places_of(fusion),
        draws=offsets_of(fusion) > 0,
    )


def _is_seen(origins: Mapping[TensorView, Origin], tensor: TensorView) -> bool:
    origin = origins.get(tensor)
    return origin is not None and (bool(origin.exprs) or origin.base is not tensor)


def _needs(
    fusion: Fusion, segments: Sequence[Segment], origins: Mapping[TensorView, Origin],
) -> tuple[frozenset[str], frozenset[int]]:
    """Return the names of tensors that have to be computed, and the numbers of the segments that compute them.

    Results that are views of inputs need not be computed, and neither does anything that leads only to them.
    """
    needed = {tv.name for tv in fusion.outputs if not _is_seen(origins, tv)}
    needed.update(tv.name for tv, _ in fusion.aliases)
    live: set[int] = set()
    for number, (segment, _) in reversed(list(enumerate(segments))):
        if not needed.isdisjoint(tv.name for tv in segment.outputs):
            live.add(number)
            needed.update(tv.name for tv in segment.tensor_inputs)
    return frozenset(needed), frozenset(live)

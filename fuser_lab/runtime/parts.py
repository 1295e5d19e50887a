"""What a prepared plan consists of, apart from what depends on the layouts of its inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fuser_lab.ir import Fusion, Scalar, TensorView
from fuser_lab.passes import offsets_of
from fuser_lab.runtime.binding import Places, Slot, places_of, slot_of
from fuser_lab.runtime.evaluate import Origin, origins_of
from fuser_lab.runtime.lending import Loan, loans_of, shares_of
from fuser_lab.runtime.steps import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanParts:
    """A concretized fusion cut into segments, and where its tensors lie.

    Inputs lie in the caller's arrays. An output is computed into an array of its own, or it is a view of an input. An
    intermediate has storage of its own unless it lies in the memory of an output (a loan) or of another intermediate.
    """

    fusion: Fusion
    segments: tuple[Segment, ...]
    inputs: tuple[Slot | Scalar, ...]
    tensors: tuple[Slot, ...]  # the inputs that are tensors
    outputs: Mapping[str, Slot]  # by name
    returned: tuple[Slot, ...]  # the outputs that a caller gets
    origins: Mapping[TensorView, Origin]  # of outputs that are views of inputs
    returned_from: tuple[Origin | None, ...]  # the origin of each returned output
    computed: tuple[Slot, ...]  # outputs that segments write
    needed: frozenset[str]  # tensors that some segment has to compute
    live: frozenset[int]  # segments that run
    loans: tuple[Loan, ...]
    owners: Mapping[str, str]  # of intermediates that lie in the memory of another one
    unstored: frozenset[str]  # tensors that are not in storage of the plan
    indices: tuple[Places, ...]  # inputs that are positions on an axis
    draws: bool  # random numbers

    def is_seen(self, tensor: TensorView) -> bool:
        """Whether a result is seen in the memory of another tensor, so that nothing has to compute it."""
        return _is_seen(self.origins, tensor)


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
    needed, live = _wanted(fusion, segments, origins)
    written = needed | {tv.name for number in live for tv in segments[number][0].outputs}
    computed = tuple(slot for slot in outputs if slot.name in written and slot.tensor not in fusion.inputs)
    unstored = {slot.name for slot in (*tensors, *outputs)}
    loans = loans_of(segments, [slot.tensor for slot in computed if slot.tensor not in origins], unstored)
    unstored |= {loan.intermediate.name for loan in loans}
    shares = shares_of(segments, unstored)
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
        live=live - {loan.segment for loan in loans} - {share.segment for share in shares},
        loans=loans,
        owners={share.name: share.owner for share in shares},
        unstored=frozenset(unstored),
        indices=places_of(fusion),
        draws=offsets_of(fusion) > 0,
    )


def _is_seen(origins: Mapping[TensorView, Origin], tensor: TensorView) -> bool:
    origin = origins.get(tensor)
    return origin is not None and (bool(origin.exprs) or origin.base is not tensor)


def _wanted(
    fusion: Fusion, segments: Sequence[Segment], origins: Mapping[TensorView, Origin],
) -> tuple[frozenset[str], frozenset[int]]:
    """Return the names of tensors that have to be computed, and the numbers of the segments that run for them.

    Results that are views of inputs are none of them: what leads only to such results needs no segment.
    """
    needed = {tv.name for tv in fusion.outputs if not _is_seen(origins, tv)}
    needed.update(tv.name for tv, _ in fusion.aliases)
    live: set[int] = set()
    for number, (segment, _) in reversed(list(enumerate(segments))):
        if not needed.isdisjoint(tv.name for tv in segment.outputs):
            live.add(number)
            needed.update(tv.name for tv in segment.tensor_inputs)
    return frozenset(needed), frozenset(live)

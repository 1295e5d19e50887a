"""Narrowing: a tensor that passes between segments is stored in fewer bytes, with a cast before the store and after it.

Unlike the option ``io_to_lower_precision``, which narrows everything that leads to a 16-bit output, this is an edit of
one tensor that states its error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from fuser_lab.arguments import listing
from fuser_lab.cost.amounts import bytes_label
from fuser_lab.definition.binding import Described
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.dtypes import DataType
from fuser_lab.errors import IllegalEdit
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion, TensorView
from fuser_lab.passes import offsets_of
from fuser_lab.segmentation.boundary_casts import NO_KERNEL, Cast, is_computed, takes_a_cast, with_casts
from fuser_lab.segmentation.casts import is_widening
from fuser_lab.segmentation.events import Attempt, Kind, Outcome
from fuser_lab.segmentation.graph import SegmentedFusion, assemble
from fuser_lab.segmentation.oracle import SchedulerOracle
from fuser_lab.segmentation.rewritings import Rewritten, check_accepted, crossing_tensor, moved_bytes

PHASE = "edit: narrow"
MEASURED_ELEMENTS = 1 << 22  # total size of all tensors: about a second of the reference evaluation
# The largest relative error of rounding to nearest: half a unit in the last place of the significand.
ROUNDING = {DataType.BFloat16: 2.0**-8, DataType.Half: 2.0**-11, DataType.Float: 2.0**-24}


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowingError:
    """The error of storing a tensor in fewer bits.

    ``bound`` is the largest relative error of an element of the tensor, 0 if its values fit the dtype exactly.
    ``measured`` is the largest difference of an output on random inputs, relative to the largest element of that
    output; NaN if it was not measured.
    """

    bound: float
    measured: float

    @property
    def text(self) -> str:
        """The error as the end of a sentence."""
        if not self.bound:
            return "exactly, because its values have that dtype"
        error = f"each element is rounded by at most {100 * self.bound:.2g} % of itself"
        if np.isnan(self.measured):
            return f"{error}; the outputs' error is not measured"
        if self.measured == inf:
            return f"{error}; on random inputs an output becomes infinite or undefined"
        return f"{error}; on random inputs the outputs differ by at most {100 * self.measured:.2g} % of their largest"


def narrow(
    segmented: SegmentedFusion, tensor: str, dtype: DataType | None, oracle: SchedulerOracle,
    inputs: Sequence[Described] = (),
) -> Rewritten:
    """Return the fusion in which a tensor passes between segments in fewer bytes.

    Parameters
    ----------
    segmented
        The plan.
    tensor
        Name of a tensor of Float or Double that passes between segments.
    dtype
        Half, BFloat16 or, for a Double, Float; None for the type of 16 bits from which its operands were widened.
    oracle
        The schedulers.
    inputs
        The plan's inputs as described, for the random inputs on which the error is measured.

    Raises
    ------
    IllegalEdit
        If the tensor does not pass between segments, has no wider dtype, or must be stored as it is; or if no scheduler
        accepts a segment with the casts.
    """
    value = crossing_tensor(segmented, tensor, "narrowed")
    fusion = segmented.fusion
    chosen = dtype or widened_from(fusion, value)
    _check_dtype(fusion, value, chosen)
    assert chosen is not None
    places = [index for index, group in enumerate(segmented.groups) if value in group.tensor_inputs]
    (writer,) = (index for index, group in enumerate(segmented.groups) if value in group.outputs)
    for index in (writer, *places):
        if segmented.groups[index].scheduler in NO_KERNEL:
            msg = f"{tensor} cannot be narrowed: segment {index} has no kernel that could hold the cast."
            raise IllegalEdit(msg)
    readers = tuple(
        tuple(e.name for e in segmented.groups[i].exprs if value in e.tensor_inputs and e.tensor_outputs)
        for i in places
    )
    cast = Cast(tensor=tensor, dtype=chosen, readers=readers)
    after = with_casts(fusion, [cast])
    added = {writer: cast.lower} | {index: cast.back(place) for place, index in enumerate(places)}
    by_name = {expr.name: expr for expr in after.exprs}
    groups = [
        [by_name[name] for name in (*group.names, *((added[index],) if index in added else ()))]
        for index, group in enumerate(segmented.groups)
    ]
    now = assemble(after, groups, segmented.recomputed, oracle, segmented.replicas)
    for index, name in added.items():
        check_accepted(now, (name,), f"with {tensor} as {chosen.name}, no scheduler accepts segment {index}")
    error = error_of(fusion, after, value, chosen, inputs)
    less = value.nbytes * chosen.itemsize // value.dtype.itemsize
    text = f"{tensor} passes as {chosen.name}, {bytes_label(less)} instead of {bytes_label(value.nbytes)}: {error.text}"
    subjects = ((tensor,), *(segmented.groups[index].names for index in places))
    attempt = Attempt(
        phase=PHASE, kind=Kind.CAST, subjects=subjects, outcome=Outcome.ACCEPTED, code=chosen.name, text=text,
    )
    saved = moved_bytes(segmented) - moved_bytes(now)
    return Rewritten(segmented=now, attempts=(attempt,), saved=saved, operations=0)


def widened_from(fusion: Fusion, tensor: TensorView) -> DataType | None:
    """Return the nearest 16-bit type from which a value that the tensor depends on was widened."""
    waiting, seen = [tensor], {tensor}
    while waiting:
        value = waiting.pop(0)
        expr = fusion.producers.get(value)
        if expr is None:
            continue
        if is_widening(expr) and expr.inputs[0].dtype in {DataType.Half, DataType.BFloat16}:
            return expr.inputs[0].dtype
        for source in expr.tensor_inputs:
            if source not in seen:
                seen.add(source)
                waiting.append(source)
    return None


def _check_dtype(fusion: Fusion, tensor: TensorView, dtype: DataType | None) -> None:
    """Raise if a tensor must not be stored in a dtype."""
    name, stored = tensor.name, tensor.dtype
    legal = [choice for choice in ROUNDING if choice.itemsize < stored.itemsize] if stored.is_float else []
    if not legal:
        msg = f"{name} is {stored.name}; only a tensor of Float or Double can be narrowed."
        raise IllegalEdit(msg)
    if dtype is None:
        msg = (
            f"{name} does not depend on a tensor that was widened from 16 bits; "
            f"name a dtype to round it nevertheless: {listing(choice.name for choice in legal)}."
        )
        raise IllegalEdit(msg)
    if dtype not in legal:
        choices = listing(choice.name for choice in legal)
        msg = f"{name} is {stored.name} and cannot be narrowed to {dtype.name}; choose from {choices}."
        raise IllegalEdit(msg)
    if tensor in fusion.outputs:
        msg = f"{name} is an output of the fusion, which is stored as {stored.name} in any case."
        raise IllegalEdit(msg)
    if not is_computed(tensor, fusion):
        msg = f"{name} cannot be narrowed: it is a view of an input, or the result of a segment_set or of a library."
        raise IllegalEdit(msg)
    user = next((user for user in fusion.users.get(tensor, ()) if not takes_a_cast(user, tensor)), None)
    if user is not None:
        msg = f"{name} cannot be narrowed: {user.op.name} ({user.name}) reads it as it is in memory."
        raise IllegalEdit(msg)


def error_of(
    before: Fusion, after: Fusion, tensor: TensorView, dtype: DataType, inputs: Sequence[Described] = (),
) -> NarrowingError:
    """Return the error of a narrowing, measured on random inputs as described unless that takes too long."""
    if _has_values_of(before, tensor, dtype):
        return NarrowingError(bound=0.0, measured=0.0)
    bound = ROUNDING[dtype]
    elements = sum(tv.numel for tv in before.tensors.values())
    if len(inputs) != len(before.inputs) or elements > MEASURED_ELEMENTS or offsets_of(before):
        return NarrowingError(bound=bound, measured=float("nan"))
    arrays = [
        entry.materialize(place) if isinstance(entry, TensorSpec) else entry for place, entry in enumerate(inputs)
    ]
    worst = 0.0
    with np.errstate(all="ignore"):
        for old, new in zip(evaluate(before, arrays), evaluate(after, arrays), strict=True):
            worst = max(worst, _difference(old, new))
    return NarrowingError(bound=bound, measured=worst)


def _has_values_of(fusion: Fusion, tensor: TensorView, dtype: DataType) -> bool:
    """Whether each element of a tensor is an element of one of a narrower dtype."""
    maker = fusion.producers.get(tensor)
    if maker is None:
        return tensor.dtype is dtype
    if maker.kind.is_view or (maker.op.name == "cast" and is_widening(maker)):
        return all(_has_values_of(fusion, source, dtype) or source.dtype is dtype for source in maker.tensor_inputs)
    return False


def _difference(old: np.ndarray, new: np.ndarray) -> float:
    """Return the largest difference relative to the largest element; infinite if only one of the two is finite."""
    if not old.size:
        return 0.0
    wide = np.complex128 if np.iscomplexobj(old) else np.float64
    a, b = old.astype(wide), new.astype(wide)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)):
        return inf
    largest = float(np.abs(a[finite]).max(initial=0.0))
    difference = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    return difference / largest if difference else 0.0

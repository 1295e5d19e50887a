"""Validation of results: tolerances by dtype and length of sums, and a reference evaluation without kernels.

The reference is computed expression by expression with each op's NumPy definition, each result rounded to its dtype. It
shares no code with kernel generation: no terms, lowering, schedules or segments.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser_lab.arguments import ANYTHING, list_of, short_text
from fuser_lab.definition.binding import bind
from fuser_lab.errors import ArgumentTypeError, ValidationError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Expr, Fusion, OpKind, TensorView
from fuser_lab.ops.rules import Array
from fuser_lab.plan.planning import definition_of, flatten
from fuser_lab.runtime.arrays import describe, to_numpy
from fuser_lab.runtime.plan.generator import reference_form

# Absolute error of a sum by its number of elements, as measured by nvFuser.
_FLOAT_SUMS = (
    (4, 1.68e-6), (32, 4.5e-6), (256, 1.3e-5), (1024, 3.3e-5), (4096, 1.1e-4), (32768, 2.5e-4), (1 << 20, 2.2e-3),
)
# Elements and absolute error of a sum of Half, as measured by nvFuser.
_HALF_SUMS = ((4, 3.9e-3), (16, 7.8e-3), (64, 1.6e-2), (256, 3.1e-2), (1024, 6.3e-2))
_RELATIVE = 0.01  # of the absolute tolerance

# Bits of the significand of each dtype, finest first.
_BITS = {
    "Double": 53, "ComplexDouble": 53, "Float": 24, "ComplexFloat": 24, "Half": 11, "BFloat16": 8,
    "Float8_e4m3fn": 4, "Float8_e5m2": 3, "Float8_e8m0fnu": 1, "Float4_e2m1fn": 2,
}
# The Box-Muller angle is rounded before its cosine, whose error is then that of a sum of this many elements.
_NORMAL = 8
_ROUNDINGS = 16  # of the result's dtype, by which two correct answers may differ even without sums
_RESULTS = list_of(ANYTHING, "a list of arrays")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far a result may be from the reference: ``absolute + relative * |expected|``; both 0 for exact dtypes."""

    absolute: float
    relative: float
    reduction_size: int
    bits: int

    @property
    def rounding(self) -> float:
        """Relative difference that rounding alone can explain."""
        return 0.0 if not self.bits else (_ROUNDINGS if self.bits > 11 else 4) * 2.0**-self.bits


def _sum_error(size: int, bits: int) -> float:
    if bits >= 24:
        return _entry(_FLOAT_SUMS, size) * 2.0 ** (24 - bits)
    return _entry(_HALF_SUMS, size) * 2.0 ** (11 - bits)


def _entry(table: tuple[tuple[int, float], ...], size: int) -> float:
    """Return the entry of the next larger size; beyond the table, errors grow with the size."""
    for longest, error in table:
        if size <= longest:
            return error
    longest, error = table[-1]
    return error * size / longest


def tolerances(fusion: Fusion) -> tuple[Tolerance, ...]:
    """Return the tolerance of each returned output of a concretized fusion.

    The sizes of reductions on the path to an output are multiplied; the coarsest dtype on the path decides.
    """
    sizes: dict[str, int] = {}
    bits: dict[str, int] = {}
    for expr in fusion.exprs:
        size = max((sizes.get(tv.name, 1) for tv in expr.tensor_inputs), default=1) * _reduced_count(expr)
        inherited = min((bits.get(tv.name, 53) for tv in expr.tensor_inputs), default=53)
        for tv in expr.tensor_outputs:
            sizes[tv.name] = size
            bits[tv.name] = min(inherited, _BITS.get(tv.dtype.name, 53))
    return tuple(
        _tolerance(tv, sizes.get(tv.name, 1), bits.get(tv.name, 53))
        for tv in fusion.outputs if tv not in fusion.hidden
    )


def _tolerance(tensor: TensorView, size: int, bits: int) -> Tolerance:
    mantissa = _BITS.get(tensor.dtype.name)
    if mantissa is None:
        return Tolerance(absolute=0.0, relative=0.0, reduction_size=size, bits=0)
    least = min(mantissa, bits)
    error = _sum_error(size, least)
    return Tolerance(absolute=error, relative=_RELATIVE * error, reduction_size=size, bits=least)


def _reduced_count(expr: Expr) -> int:
    """Return the number of elements that are reduced to one element of a result."""
    if expr.kind is OpKind.REDUCTION:
        return math.prod(_size(a.visible_extent) for a in expr.tensor_outputs[0].domain.logical if a.is_reduction)
    if expr.kind is OpKind.MATMUL:
        return expr.tensor_inputs[0].shape[-1]
    if expr.kind is OpKind.SCAN:
        dim = dict(expr.attrs).get("dim")
        shape = expr.tensor_inputs[0].shape
        return shape[dim] if isinstance(dim, int) and shape else 1
    if expr.kind is OpKind.ATTENTION:
        return math.prod(expr.tensor_inputs[0].shape[-2:])
    return _NORMAL if expr.op.name == "normal" else 1


def _size(extent: object) -> int:
    return extent if isinstance(extent, int) else 1


def get_val_tolerances(fusion: object, inputs: Sequence[Any]) -> list[tuple[float, float]]:
    """Return (absolute, relative) tolerance of each returned output for these inputs.

    Parameters
    ----------
    fusion
        A definition or a fusion.
    inputs
        Arrays and numbers, one per fusion input.
    """
    described = [describe(value) for value in flatten(inputs)]
    return [(t.absolute, t.relative) for t in tolerances(bind(definition_of(fusion), described).fusion)]


def expected_outputs(fusion: Fusion, inputs: Sequence[Any], like: Sequence[Any] = ()) -> list[Array]:
    """Return the reference evaluation's results for the returned outputs; the inputs are not modified.

    Parameters
    ----------
    fusion
        A fusion, possibly with symbolic sizes.
    inputs
        Arrays and numbers, flat.
    like
        Arrays whose library creates outputs and random numbers if there are no arrays among the inputs.
    """
    bound = bind(fusion, [describe(value) for value in inputs]).fusion
    # Random numbers without a seed are those of the next run.
    bound, arguments = reference_form(bound, inputs, ahead=True, like=like)
    results = evaluate(bound, arguments)
    return [np.array(x) for tv, x in zip(bound.outputs, results, strict=True) if tv not in bound.hidden]


def check_outputs(
    fusion: Fusion, inputs: Sequence[Any], outputs: Sequence[Any], expected: Sequence[Any] | None = None,
) -> None:
    """Raise ValidationError unless outputs equal the expected results up to rounding.

    Parameters
    ----------
    fusion
        A fusion, possibly with symbolic sizes.
    inputs
        Arrays and numbers, flat; only their shapes are read if ``expected`` is given.
    outputs
        The results of the run.
    expected
        The expected results; by default those of the reference evaluation.

    Raises
    ------
    ValidationError
        If the number of outputs, or a shape, dtype or value, is wrong; the message names the worst element.
    """
    references = expected_outputs(fusion, inputs) if expected is None else expected
    outputs = _RESULTS.of(outputs, "validate", "outputs")
    references = _RESULTS.of(references, "validate", "reference outputs")
    bound = bind(fusion, [describe(value) for value in inputs]).fusion
    returned = [tv for tv in bound.outputs if tv not in bound.hidden]
    both = (("outputs", outputs), ("reference outputs", references))
    for side, arrays in both:
        if len(arrays) != len(returned):
            raise ValidationError(f"validate: the fusion returns {len(returned)} outputs, given {len(arrays)} {side}.")
    for number, (tensor, tolerance) in enumerate(zip(returned, tolerances(bound), strict=True)):
        got, right = (_array(values[number], f"{role}[{number}]") for role, values in both)
        _check(f"output {number}, {tensor},", got, right, tolerance)


def _array(value: Any, label: str) -> Array:
    try:
        return to_numpy(value)
    except Exception:  # noqa: BLE001 - whatever NumPy cannot make an array of
        raise ArgumentTypeError(f"validate: {label} must be an array, given {short_text(value)}.") from None


def _check(name: str, got: Array, reference: Array, tolerance: Tolerance) -> None:
    if got.shape != reference.shape:
        raise ValidationError(f"validate: {name} has shape {list(got.shape)}, but {list(reference.shape)} is expected.")
    if got.dtype != reference.dtype:
        raise ValidationError(f"validate: {name} has dtype {got.dtype}, but {reference.dtype} is expected.")
    if not got.size or np.array_equal(got, reference):
        return
    if not tolerance.bits:
        wrong = got != reference
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        _fail(name, place, got, reference, f"{got.dtype} is exact", int(wrong.sum()))
    wide = np.complex128 if np.iscomplexobj(got) else np.float64
    a, b = got.astype(wide), reference.astype(wide)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.where(same, 0.0, np.abs(a - b))
        allowed = tolerance.absolute + max(tolerance.relative, tolerance.rounding) * np.abs(b)
        excess = np.where(same, 0.0, off / allowed)
    # If only one side is NaN, or infinities differ, there are no numbers to compare.
    excess = np.where(~same & ~(np.isfinite(a) & np.isfinite(b)), np.inf, excess)
    wrong = excess > 1
    if wrong.any():
        place = tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), excess.shape))
        difference = f"they differ by {off[place]:.3g} where {allowed[place]:.3g} is allowed"
        reduced = f" (sums of {tolerance.reduction_size} elements)" if tolerance.reduction_size > 1 else ""
        _fail(name, place, got, reference, difference + reduced, int(wrong.sum()))


def _fail(name: str, place: tuple[int, ...], got: Array, reference: Array, why: str, count: int) -> None:
    raise ValidationError(
        f"validate: {name} is wrong in {count} of {got.size} elements; the worst is at {list(place)}: "
        f"expected {reference[place]}, got {got[place]}; {why}."
    )

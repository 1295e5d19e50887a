"""Losses of classifiers."""

import math

from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError
from fuser_lab.ir import TensorView
from fuser_lab.ops.arguments import whole
from fuser_lab.ops.composites.parts import (
    along,
    cast,
    composite,
    floating,
    one_of,
    operand_of_shape,
    plain_number,
    record,
    shape_text,
    widen,
)
from fuser_lab.ops.operands import same_declared, tensor_at
from fuser_lab.ops.reduction import SUM, count_of
from fuser_lab.ops.registry import COMPOSITES, Arg, Recorder, Sample
from fuser_lab.ops.rules import Operand

_REDUCTIONS = ("mean", "sum", "none")


def _cross_entropy(
    rec: Recorder, arg: Operand, target: Operand, weight: Operand = None, ignore_index: int = -100,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> TensorView:
    op = "cross_entropy"
    tensor, labels = floating(rec, arg, op), rec.tensor(target, op, "target")
    how, ignored = one_of(reduction, _REDUCTIONS, op, "reduction"), whole(ignore_index, op, "ignore_index")
    smoothing = plain_number(label_smoothing, op, "label_smoothing", 0, 1)
    if not tensor.ndim:
        msg = f"{op}: arg has no axes; it needs one for the classes: axis 1, or axis 0 if it is the only one."
        raise DefinitionError(msg)
    dim = min(1, tensor.ndim - 1)
    classes = operand_of_shape(rec, weight, [tensor.extents[dim]], op, "weight")
    scores = COMPOSITES["log_softmax"].frontend(rec, widen(rec, tensor), dim)
    if labels.dtype.is_integral:
        result = _of_classes(rec, scores, labels, classes, dim, ignored, how, smoothing)
    else:
        result = _of_shares(rec, scores, labels, classes, dim, how, smoothing)
    return cast(rec, result, tensor.dtype)


def _of_classes(
    rec: Recorder, scores: TensorView, labels: TensorView, classes: TensorView | None, dim: int, ignored: int,
    how: str, smoothing: float,
) -> TensorView:
    """Return the loss for targets that are class indices."""
    shape = tuple(extent for place, extent in enumerate(scores.extents) if place != dim)
    if labels.ndim != len(shape) or not all(map(same_declared, labels.extents, shape)):
        raise DefinitionError(
            f"cross_entropy: target has shape {shape_text(labels.extents)}; for arg of shape "
            f"{shape_text(scores.extents)}, classes have shape {shape_text(shape)}."
        )
    counted = record(rec, "ne", labels, ignored)
    places = record(rec, "where", counted, labels, 0)
    # A lookup outside its axis gives 0 in kernels, which would be a valid loss.
    count = rec.value(scores.extents[dim], "cross_entropy", "arg")
    inside = record(rec, "logical_and", record(rec, "ge", places, 0), record(rec, "lt", places, count))
    scores_of_labels = record(rec, "where", inside, _element_of_label(rec, scores, places, dim), math.nan)
    share = cast(rec, counted, scores.dtype)
    if classes is not None:
        share = record(rec, "mul", share, _element_of_label(rec, along(rec, classes, dim, scores.ndim), places, dim))
    loss = record(rec, "where", counted, record(rec, "neg", record(rec, "mul", scores_of_labels, share)), 0.0)
    if smoothing:
        weighted = scores if classes is None else record(rec, "mul", scores, along(rec, classes, dim, scores.ndim))
        total = record(rec, "mul", tensor_at([SUM.frontend(rec, weighted, [dim])]), smoothing)
        each = record(rec, "truediv", total, rec.value(scores.extents[dim], "cross_entropy", "arg"))
        spread = record(rec, "where", counted, record(rec, "neg", each), 0.0)
        loss = record(rec, "add", record(rec, "mul", loss, 1 - smoothing), spread)
    if how == "none":
        return loss
    total = SUM.frontend(rec, loss)
    return tensor_at([total]) if how == "sum" else record(rec, "truediv", total, SUM.frontend(rec, share))


def _of_shares(
    rec: Recorder, scores: TensorView, shares: TensorView, classes: TensorView | None, dim: int, how: str,
    smoothing: float,
) -> TensorView:
    """Return the loss for targets that are class probabilities."""
    if not shares.dtype.is_float or shares.ndim != scores.ndim or not all(
        map(same_declared, shares.extents, scores.extents),
    ):
        raise DefinitionError(
            f"cross_entropy: target has dtype {shares.dtype!r} and shape {shape_text(shares.extents)}; it must be "
            f"integers (class indices), or floating point of arg's shape {shape_text(scores.extents)} (class "
            "probabilities)."
        )
    targets = widen(rec, shares)
    if smoothing:
        count = rec.value(scores.extents[dim], "cross_entropy", "arg")
        rest = record(rec, "truediv", record(rec, "full", [], smoothing, scores.dtype), count)
        targets = record(rec, "add", record(rec, "mul", targets, 1 - smoothing), rest)
    product = record(rec, "mul", scores, targets)
    if classes is not None:
        product = record(rec, "mul", product, along(rec, classes, dim, scores.ndim))
    loss = record(rec, "neg", SUM.frontend(rec, product, [dim]))
    if how == "none":
        return loss
    total = tensor_at([SUM.frontend(rec, loss)])
    return total if how == "sum" else record(rec, "truediv", total, count_of(rec, loss.extents))


def _element_of_label(rec: Recorder, values: TensorView, places: TensorView, dim: int) -> TensorView:
    """Return the element of each row at a class index."""
    at = [place == dim for place in range(values.ndim)]
    index = record(rec, "broadcast", places, at)
    return record(rec, "squeeze", record(rec, "take_along_axis", values, index, dim), [dim])


F, N = DataType.Float, DataType.Int
_CLASSES = Arg((5,), N, 0, 4)
_WEIGHT = Arg((4,), F, 0.5, 2)
composite(
    "cross_entropy", _cross_entropy,
    "Cross entropy of arg's softmax over the classes (axis 1, or the only one) and target: class indices or "
    "class probabilities. A target that is neither a class nor ignore_index gives NaN; the reference refuses it, as "
    "torch does.",
    (
        Sample("fd.ops.cross_entropy(a, b)", (Arg((5, 4)), _CLASSES)),
        Sample("fd.ops.cross_entropy(a, b, reduction='none')", (Arg((5, 4)), _CLASSES)),
        Sample("fd.ops.cross_entropy(a, b, c, reduction='sum')", (Arg((5, 4)), _CLASSES, _WEIGHT)),
        Sample("fd.ops.cross_entropy(a, b, c, 2, label_smoothing=0.1)", (Arg((5, 4)), _CLASSES, _WEIGHT)),
        Sample("fd.ops.cross_entropy(a, b, ignore_index=1)", (Arg((5, 4), DataType.Half), _CLASSES)),
        Sample("fd.ops.cross_entropy(a, b)", (Arg((2, 4, 3), DataType.BFloat16), Arg((2, 3), DataType.Int32, 0, 4))),
        Sample("fd.ops.cross_entropy(a, b)", (Arg((4,), DataType.Double), Arg((), N, 0, 4))),
        Sample("fd.ops.cross_entropy(a, b)", (Arg((5, 4)), Arg((5, 4), F, 0, 1))),
        Sample(
            "fd.ops.cross_entropy(a, b, weight=c, reduction='none', label_smoothing=0.2)",
            (Arg((2, 4, 3)), Arg((2, 4, 3), F, 0, 1), _WEIGHT),
        ),
    ),
)

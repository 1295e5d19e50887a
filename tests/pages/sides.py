"""Both sides of every rule: for each, a definition that is just refused and one that is just accepted.

A source is written as in ``tests/pages/reasons.py``; the two definitions differ in the text at ``___``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import fuser_lab as fl
from fuser_lab.cost.device import A100, DEFAULT
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import SchedulerType, Verdict
from fuser_lab.definition.binding import bind
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.spec import spec
from fuser_lab.dtypes import DataType
from fuser_lab.schedule.registry import SchedulerRegistry
from fuser_lab.segmentation import candidate
from tests.pages.reasons import V100, codes, tensor
from tests.pages.rules import schedulers

R, T = ReasonCode, SchedulerType
SLOT = "___"
TURING = fl.Device(
    name="T4", cc=(7, 5), sms=40, shared_per_sm=65536, shared_per_block=65536, l2=4 * 10**6, bandwidth=320, fp32=8.1,
    bf16=0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """A definition that a scheduler refuses for a reason, and its twin, which the scheduler accepts.

    ``refused`` and ``accepted`` are the texts at the slot of ``source``. The options are those of `SchedulerRegistry`;
    ``refused_with`` are more of them for the refused definition. If a later rule refuses the twin, ``later`` is its
    reason. Without a scheduler, the segmenter's log has the reason, or an accepted attempt of the phase ``phase``, for
    the first definition only, or ``cut`` are the schedulers of both plans; options are those of the segmenter.
    """

    source: str
    refused: str
    accepted: str
    scheduler: SchedulerType | None = None
    code: ReasonCode | None = None
    phase: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    refused_with: Mapping[str, Any] = field(default_factory=dict)
    later: ReasonCode | None = None
    cut: tuple[str, str] = ("", "")


def verdict_of(sides: Sides, *, refused: bool) -> Verdict:
    """Return the scheduler's verdict on one of the two definitions as a whole, without passes."""
    assert sides.scheduler is not None
    fusion = _recorded(sides, FusionBuilder(), refused=refused).fusion
    fusion = bind(fusion, [spec(tv.shape, tv.dtype) for tv in fusion.tensor_inputs]).fusion
    options = {**sides.options, **(sides.refused_with if refused else {})}
    registry = SchedulerRegistry(options.pop("device", DEFAULT), **options)
    scheduler = next(s for s in registry.schedulers if s.type is sides.scheduler)
    return scheduler.can_schedule(registry.facts(candidate(fusion, fusion.tensor_exprs)), registry.device)


def is_in_log(sides: Sides, *, refused: bool) -> bool:
    """Return whether the log of one of the two definitions has the reason, or an accepted attempt of the phase."""
    options = dict(sides.options)
    inputs = options.pop("inputs", None)
    fd = _recorded(sides, fl.FusionDefinition(), refused=refused)
    plan = fl.segment(fd, inputs=inputs, options=fl.SegmenterOptions(**options))
    if any(sides.cut):
        return {sides.cut[0]: True, sides.cut[1]: False}[schedulers(plan)]
    if sides.code is not None:
        return sides.code.value in codes(plan)
    return any(a.accepted and a.phase == sides.phase for a in plan.decisions)


def _recorded(sides: Sides, recorder: Any, *, refused: bool) -> Any:
    source = sides.source.replace(SLOT, sides.refused if refused else sides.accepted)
    with recorder as fd:
        exec(source, {"fd": fd, "ops": fd.ops, "DataType": DataType, "tensor": partial(tensor, fd)})
    return fd


def _by(scheduler: SchedulerType, code: ReasonCode, source: str, refused: str, accepted: str, **more: Any) -> Sides:
    return Sides(scheduler=scheduler, code=code, source=source, refused=refused, accepted=accepted, **more)


def _log(
    what: ReasonCode | str, source: str, refused: str, accepted: str, cut: tuple[str, str] = ("", ""), **options: Any,
) -> Sides:
    code, phase = (what, "") if isinstance(what, ReasonCode) else (None, what)
    return Sides(source=source, refused=refused, accepted=accepted, code=code, phase=phase, cut=cut, options=options)


def _norm(axis: int, shape: str = "64, 32") -> str:
    return f"x = tensor({shape})\nn = ops.truediv(x, ops.sum(x, [{axis}], keepdim=True))\n"


INT, HALF = "dtype=DataType.Int", "dtype=DataType.Half"
PRODUCT = f"p = ops.matmul(tensor(16, 8, {HALF}), tensor(8, 32, {HALF}))\n"
FUSED = {"fuse_matmul": True}
ELSEWHERE = (
    _norm(1, "8, 16") + "fd.add_output(n)\nother = ops.broadcast(ops.sum(x, [1]), [False, True])\n"
    "fd.add_output(ops.mul(ops.neg(other), ___))"
)
STATISTICS = "x = tensor(___)\nfd.add_output(ops.sub(x, ops.var_mean(x, [0], correction=0, keepdim=True)[1]))"
PERMUTED = "x = ops.add(tensor(512, 512), ops.permute(tensor(512, 512), [1, 0]))\n"
LOOKED_UP = f"one = ops.take_along_axis(tensor(8, 16), tensor(8, 1, {INT}), 1)\n"
PREFIX = "fuser_lab."

# By the dotted name of the function that decides the rule, without the name of the package.
SIDES: Mapping[str, tuple[Sides, ...]] = {
    "schedule.facts.CandidateFacts.gate": (
        _by(T.POINTWISE, R.MATMUL_INSIDE, "fd.add_output(ops.neg(ops.___(tensor(4, 4), tensor(4, 4))))",
            "matmul", "mul"),
        _by(T.POINTWISE, R.EVALUATED_ONLY,
            f"fd.add_output(ops.neg(ops.___(tensor(8, 16), tensor(8, 4, {INT}), 1)))", "gather", "take_along_axis"),
    ),
    "schedule.facts.CandidateFacts.greedy_gate": (
        _by(T.GREEDY, R.EVALUATED_ONLY, "fd.add_output(ops.cumsum(ops.neg(___), 1))",
            f"ops.gather(tensor(4, 64), tensor(4, 64, {INT}), 1)", "tensor(4, 64)"),
    ),
    "schedule.facts.CandidateFacts._shape_gates": (
        _by(T.POINTWISE, R.NOT_CONNECTED, "x = tensor(8)\nfd.add_output(ops.neg(x))\nfd.add_output(ops.exp(___))",
            "tensor(8)", "x"),
        _by(T.POINTWISE, R.SELF_MAPPED, "x = tensor(8, 8)\nfd.add_output(ops.add(x, ops.permute(___, [1, 0])))",
            "x", "tensor(8, 8)"),
        _by(T.POINTWISE, R.RESIZE_AND_INDEXING, "fd.add_output(ops.neg(ops.index_select(tensor(8, 16), ___, 0)))",
            f"ops.slice(tensor(9, {INT}), [1], [7])", f"tensor(6, {INT})"),
    ),
    "schedule.facts.CandidateFacts.reshapes": (
        _by(T.POINTWISE, R.CYCLIC_RESHAPE,
            "x = ops.neg(tensor(12))\ny = ops.neg(ops.reshape(x, [3, 4]))\n"
            "fd.add_output(ops.add(___, ops.reshape(y, [12])))", "x", "tensor(12)"),
        _by(T.POINTWISE, R.CONFLICTING_RESHAPES,
            "x = ops.neg(tensor(12))\nfd.add_output(ops.neg(ops.reshape(x, [3, 4])))\n"
            "fd.add_output(ops.exp(ops.reshape(x, ___)))", "[4, 3]", "[3, 4]"),
    ),
    "schedule.facts.CandidateFacts.index_input": (
        _by(T.POINTWISE, R.INDEX_INPUT, f"fd.add_output(ops.neg(ops.index_select(___, tensor(5, {INT}), 0)))",
            "ops.neg(tensor(8, 16))", "tensor(8, 16)"),
    ),
    "schedule.facts.CandidateFacts.indexed_before_reduction": (
        _by(T.REDUCTION, R.INDEXED_BEFORE_REDUCTION,
            f"one = ops.take_along_axis(___, tensor(8, 1, {INT}), 1)\n"
            "fd.add_output(ops.sum(ops.squeeze(one, [1]), [0]))",
            "ops.neg(tensor(8, 16))", "tensor(8, 16)", options={"memory_promotion": True}),
    ),
    "schedule.facts.CandidateFacts.indexed_innermost": (
        _by(T.TRANSPOSE, R.INDEXED_INNERMOST,
            f"x = ops.index_select(tensor(512, 512), tensor(512, {INT}), ___)\n"
            "fd.add_output(ops.add(x, ops.permute(tensor(512, 512), [1, 0])))", "1", "0"),
    ),
    "schedule.facts.CandidateFacts.unique_broadcasts": (
        _by(T.POINTWISE, R.BROADCAST_NOT_UNIQUE,
            "bias, y = ops.neg(tensor(1, 16)), tensor(8, 16)\nfd.add_output(ops.add(y, bias))\n"
            "fd.add_output(ops.mul(___, bias))", "tensor(9, 16)", "y"),
    ),
    "schedule.facts.CandidateFacts._only_looked_up": (
        _by(T.POINTWISE, R.INPUT_NOT_COVERED,
            f"one = ops.index_select(tensor(8, 16), tensor(1, {INT}), 1)\nfd.add_output(ops.add(one, tensor(8, ___)))",
            "2", "1"),
    ),
    "schedule.facts.CandidateFacts._cannot_lead": (
        _by(T.POINTWISE, R.OUTPUT_NOT_COVERED,
            "factor = tensor(1, 1)\nfd.add_output(ops.mul(tensor(8, 1), factor))\n"
            "fd.add_output(ops.mul(tensor(1, ___), factor))", "2", "1"),
        _by(T.POINTWISE, R.INPUT_NOT_COVERED, f"{LOOKED_UP}fd.add_output(ops.add(one, tensor(8, ___)))", "2", "1"),
    ),
    "schedule.facts.CandidateFacts.lost_axis": (
        _by(T.POINTWISE, R.AXIS_LOST,
            "a, b, x = tensor(8), tensor(16), tensor(8, 16)\nfor op in (ops.mul, ops.add):\n"
            "    fd.add_output(op(ops.broadcast(a, [False, True]), ___))", "ops.broadcast(b, [True, False])", "x"),
    ),
    "schedule.facts.CandidateFacts.resize_between_outputs": (
        _by(T.RESIZE, R.RESIZE_BETWEEN_OUTPUTS,
            "x = ops.sin(tensor(16))\ns = ops.slice(x, [1], [9])\nfd.add_output(ops.neg(s))\n"
            "fd.add_output(ops.exp(___))", "x", "s"),
    ),
    "schedule.facts.CandidateFacts.covered_by_reduction": (
        _by(T.REDUCTION, R.OUTPUT_NOT_COVERED,
            "x = ops.neg(tensor(8, 1))\nfd.add_output(ops.sum(ops.squeeze(x, [1]), [0]))\n"
            "fd.add_output(ops.mul(x, tensor(8, ___)))", "2", "1"),
        _by(T.REDUCTION, R.INPUT_NOT_COVERED,
            f"{LOOKED_UP}fd.add_output(ops.sum(ops.add(one, tensor(8, ___)), [0]))", "2", "1"),
    ),
    "schedule.facts.CandidateFacts.pattern_mismatch": (
        _by(T.REDUCTION, R.PATTERN_MISMATCH,
            "x = tensor(8, 16)\nfd.add_output(ops.sum(x, [1]))\nfd.add_output(ops.sum(ops.neg(x), [___]))", "0", "1"),
    ),
    "schedule.facts.CandidateFacts.inner_groups": (
        _by(T.RESIZE, R.TRANSPOSE_LIKE,
            "x = ops.mul(tensor(16, 8), tensor(___))\nfd.add_output(ops.neg(ops.slice(x, [2, 0], [9, 8])))",
            "16, 1", "16, 8"),
    ),
    "schedule.facts.CandidateFacts.transposed": (
        _by(T.TRANSPOSE, R.ONE_INNERMOST_AXIS, "fd.add_output(ops.neg(ops.permute(tensor(512, 512), [___])))",
            "0, 1", "1, 0"),
    ),
    "schedule.reduction.Reduction.can_schedule": (
        _by(T.REDUCTION, R.NO_REDUCTION, "x = tensor(8, 16)\nfd.add_output(___)", "ops.neg(x)", "ops.sum(x, [1])"),
        _by(T.REDUCTION, R.NO_TENSOR_INPUT, "fd.add_output(ops.sum(___, [1]))",
            "ops.full([8, 4], 1.0, DataType.Float)", "tensor(8, 4)"),
    ),
    "schedule.reduction.reshape_mixes": (
        _by(T.REDUCTION, R.RESHAPE_MIXES,
            "x = ops.reshape(ops.neg(tensor(6, 4)), [___])\nfd.add_output(ops.sum(x, [1]))", "8, 3", "2, 3, 4"),
        _by(T.REDUCTION, R.RESHAPE_MIXES,
            "x = ops.reshape(ops.neg(tensor(___)), [4, 6, 8, 5])\n"
            "fd.add_output(ops.neg(ops.reshape(ops.sum(x, [1]), [4, 40])))", "24, 8, 5", "4, 6, 8, 5"),
    ),
    "schedule.reduction._kept_axes_refusal": (
        _by(T.REDUCTION, R.PERSISTENT_BUFFER,
            "x = tensor(64, 32)\ns = ops.sum(x, [0], keepdim=True)\nfd.add_output(ops.mul(s, ___))",
            "x", "tensor(1, 32)"),
    ),
    "schedule.reduction._widened_again": (
        _by(T.REDUCTION, R.BROADCAST_AFTER_REDUCTION,
            "s = ops.sum(tensor(64, 32), [0], keepdim=True)\nfd.add_output(ops.add(s, tensor(___, 32)))", "2", "1"),
    ),
    "schedule.reduction._new_input": (
        _by(T.REDUCTION, R.NEW_INPUT_AFTER_REDUCTION,
            "x, r = tensor(8, 16), tensor(8)\nfd.add_output(ops.mul(ops.sum(x, [1]), ___))", "r", "2.0"),
    ),
    "schedule.persistent.refusal_of_any_size": (
        _by(T.INNER_PERSISTENT, R.NO_REDUCTION, f"{_norm(1)}fd.add_output(___)", "ops.neg(x)", "n"),
        _by(T.INNER_PERSISTENT, R.NO_TENSOR_INPUT,
            "x = ___\nfd.add_output(ops.truediv(x, ops.sum(x, [1], keepdim=True)))",
            "ops.full([8, 4], 1.0, DataType.Float)", "tensor(8, 4)"),
    ),
    "schedule.persistent.is_projected": (
        _by(T.INNER_PERSISTENT, R.BUFFER_TOO_LARGE,
            f"x = tensor(64, ___, {HALF})\ne = ops.exp(ops.cast(x, DataType.Float))\n"
            "fd.add_output(ops.truediv(e, ops.sum(e, [1], keepdim=True)))", "(1 << 20) + 1", "1 << 20"),
    ),
    "schedule.persistent.needs_buffer": (
        _by(T.INNER_PERSISTENT, R.NO_PERSISTENT_BUFFER,
            "x = tensor(8, 16)\nfd.add_output(ops.mul(ops.sum(x, [1], keepdim=True), ___))", "2.0", "x"),
        _by(T.INNER_PERSISTENT, R.PARTLY_REDUCED,
            "v, m = tensor(64), tensor(64, 16)\ns = ops.sum(ops.add(ops.broadcast(v, [False, True]), m), [0, 1])\n"
            "fd.add_output(ops.truediv(___))", "v, ops.broadcast(s, [True])", "m, ops.broadcast(s, [True, True])"),
    ),
    "schedule.persistent.broadcast_elsewhere": (
        _by(T.INNER_PERSISTENT, R.BROADCAST_ELSEWHERE, ELSEWHERE, "tensor(8, 5)", "x"),
        _by(T.INNER_PERSISTENT, R.BROADCAST_ELSEWHERE, f"y = tensor(8, 16)\n{ELSEWHERE}\nfd.add_output(ops.add(x, y))",
            "y", "ops.add(x, y)"),
    ),
    "schedule.outer_persistent.OuterPersistent._fits": (
        _by(T.OUTER_PERSISTENT, R.COLUMNS_TOO_LARGE, STATISTICS, "135169, 4096", "135168, 4096",
            later=R.COLUMNS_NO_GRID),
        _by(T.OUTER_PERSISTENT, R.NOT_ENOUGH_COLUMNS,
            "x = tensor(___, 31)\nfd.add_output(ops.truediv(x, ops.sum(x, [0], keepdim=True)))", "8192", "8191"),
    ),
    "schedule.outer_persistent.OuterPersistent._across": (
        _by(T.OUTER_PERSISTENT, R.COLUMNS_NOT_VECTORIZED, STATISTICS, "8192, 514", "8192, 512"),
        _by(T.OUTER_PERSISTENT, R.COLUMNS_NO_GRID, STATISTICS, "92929, 64", "92928, 64"),
        _by(T.OUTER_PERSISTENT, R.COLUMNS_NOT_WELFORD, "x = tensor(8192, 512)\nfd.add_output(ops.sub(x, ops.___))",
            "sum(x, [0], keepdim=True)", "var_mean(x, [0], correction=0, keepdim=True)[1]"),
        _by(T.OUTER_PERSISTENT, R.COLUMNS_UNEVEN, STATISTICS, "8192, 1004", "8192, 1024", options={"device": V100}),
    ),
    "schedule.outer_persistent.outer_launch": (
        _by(T.OUTER_PERSISTENT, R.COLUMNS_TOO_FEW, STATISTICS, "65536, 28", "65536, 32",
            later=R.COLUMNS_NO_GRID),
    ),
    "schedule.outer_persistent._outer_only": (
        _by(T.OUTER_PERSISTENT, R.REDUCTION_IS_INNER,
            "x = tensor(64, 32)\nfd.add_output(ops.truediv(x, ops.sum(x, [___], keepdim=True)))", "1", "0"),
        _by(T.OUTER_PERSISTENT, R.REDUCTIONS_OF_BOTH_KINDS,
            f"{_norm(0)}fd.add_output(n)\nfd.add_output(ops.sum(x, [___]))", "1", "0"),
    ),
    "schedule.inner_persistent.InnerPersistent._fits": (
        _by(T.INNER_PERSISTENT, R.BUFFER_TOO_LARGE, f"{_norm(1, '64, ___')}fd.add_output(n)",
            "(1 << 19) + 1", "1 << 19"),
        _by(T.INNER_PERSISTENT, R.NOT_ENOUGH_BLOCKS, f"{_norm(1, '___, 8192')}fd.add_output(n)", "15", "16"),
    ),
    "schedule.inner_persistent._room": (
        _by(T.INNER_PERSISTENT, R.BUFFER_TOO_LARGE, f"{_norm(1, '512, ___')}fd.add_output(n)", "38912", "38911",
            options={"device": A100}),
    ),
    "schedule.inner_persistent.inner_only": (
        _by(T.INNER_PERSISTENT, R.REDUCTION_IS_OUTER,
            "x = tensor(64, 32)\nfd.add_output(ops.truediv(x, ops.sum(x, [___], keepdim=True)))", "0", "1"),
        _by(T.INNER_PERSISTENT, R.REDUCTIONS_OF_BOTH_KINDS,
            f"{_norm(1)}fd.add_output(n)\nfd.add_output(ops.sum(x, [___]))", "0", "1"),
    ),
    "schedule.inner_outer_persistent.InnerOuterPersistent.can_schedule": (
        _by(T.INNER_OUTER_PERSISTENT, R.NO_REDUCTION, f"{_norm(1)}fd.add_output(___)",
            "ops.neg(x)", "n)\nfd.add_output(ops.sum(x, [0])"),
        _by(T.INNER_OUTER_PERSISTENT, R.NO_TENSOR_INPUT,
            "x = ___\nfd.add_output(ops.truediv(x, ops.sum(x, [1], keepdim=True)))\nfd.add_output(ops.sum(x, [0]))",
            "ops.full([8, 4], 1.0, DataType.Float)", "tensor(8, 4)"),
        _by(T.INNER_OUTER_PERSISTENT, R.ONE_KIND_OF_REDUCTION,
            f"{_norm(1)}fd.add_output(n)\nfd.add_output(ops.sum(x, [___]))", "1", "0"),
    ),
    "schedule.inner_outer_persistent.InnerOuterPersistent._fits": (
        _by(T.INNER_OUTER_PERSISTENT, R.ROWS_AND_SUMS_TOO_LARGE,
            f"{_norm(1, '2048, ___')}fd.add_output(n)\nfd.add_output(ops.sum(x, [0]))", "4 * 13921",
            "4 * 13920"),
        _by(T.INNER_OUTER_PERSISTENT, R.NOT_ENOUGH_BLOCKS,
            f"{_norm(1, '___, 8192')}fd.add_output(n)\nfd.add_output(ops.sum(x, [0]))", "15", "16"),
    ),
    "schedule.inner_outer_persistent._interleaved_axes": (
        _by(T.INNER_OUTER_PERSISTENT, R.AXES_INTERLEAVED,
            "x = tensor(4, ___, 16, 32)\nfd.add_output(ops.truediv(x, ops.sum(x, [2, 3], keepdim=True)))\n"
            "fd.add_output(ops.sum(x, [0, 1]))", "1", "2"),
        _by(T.INNER_OUTER_PERSISTENT, R.AXES_INTERLEAVED,
            "x = tensor(4, 8, 16, 32)\nfd.add_output(ops.truediv(x, ops.sum(x, [___], keepdim=True)))\n"
            "rest = [axis for axis in range(4) if axis not in [___]]\nfd.add_output(ops.sum(x, rest))", "1, 3", "2, 3"),
    ),
    "schedule.inner_outer_persistent._not_complementary": (
        _by(T.INNER_OUTER_PERSISTENT, R.PATTERN_MISMATCH,
            f"{_norm(2, '8, 16, 32')}fd.add_output(n)\nfd.add_output(ops.sum(x, [0, 1]))\n"
            "fd.add_output(ops.sum(x, [___]))", "1, 2", "2"),
        _by(T.INNER_OUTER_PERSISTENT, R.NOT_COMPLEMENTARY,
            f"{_norm(2, '8, 16, 32')}fd.add_output(n)\nfd.add_output(ops.sum(x, [___]))", "0", "0, 1"),
    ),
    "schedule.inner_outer_persistent._no_shared_input": (
        _by(T.INNER_OUTER_PERSISTENT, R.NO_SHARED_INPUT,
            f"{_norm(1)}y, scale = tensor(64, 32), tensor(1, 32)\nfd.add_output(ops.mul(ops.add(n, y), scale))\n"
            "fd.add_output(ops.sum(___, [0]))", "y", "x"),
    ),
    "schedule.inner_outer_persistent._tied_elsewhere": (
        _by(T.INNER_OUTER_PERSISTENT, R.OUTER_BEFORE_INNER,
            "x = tensor(64, 32)\ns = ops.sum(x, [0], keepdim=True)\nfd.add_output(s)\ny = ops.sub(x, ___)\n"
            "fd.add_output(ops.truediv(y, ops.sum(y, [1], keepdim=True)))", "s", "1.0"),
        _by(T.INNER_OUTER_PERSISTENT, R.SHARED_CONSUMER,
            f"{_norm(1)}fd.add_output(n)\ns = ops.sum(x, [0])\nfd.add_output(___)",
            "ops.add(n, ops.broadcast(s, [True, False]))", "ops.neg(s)"),
    ),
    "schedule.inner_outer_persistent._connected_besides": (
        _by(T.INNER_OUTER_PERSISTENT, R.CONNECTED_BESIDES,
            f"{_norm(1)}scale = tensor(32)\nfd.add_output(ops.mul(n, ops.broadcast(scale, [True, False])))\n"
            "fd.add_output(ops.mul(ops.sum(x, [0]), ___))", "scale", "2.0"),
    ),
    "schedule.inner_outer_persistent._widening_after": (
        _by(T.INNER_OUTER_PERSISTENT, R.BROADCAST_AFTER_REDUCTION,
            f"{_norm(1)}fd.add_output(n)\ns = ops.sum(x, [0], keepdim=True)\n"
            "fd.add_output(ops.add(s, tensor(___, 32)))", "2", "1"),
        _by(T.INNER_OUTER_PERSISTENT, R.BROADCAST_ELSEWHERE, f"{ELSEWHERE}\nfd.add_output(ops.sum(x, [0]))",
            "tensor(8, 5)", "x"),
    ),
    "schedule.resize.Resize.can_schedule": (
        _by(T.RESIZE, R.NO_RESIZE, "x = tensor(16)\nfd.add_output(ops.neg(___))", "x", "ops.slice(x, [2], [9])"),
        _by(T.RESIZE, R.HAS_REDUCTION, "s = ops.slice(tensor(16, 8), [2, 0], [9, 8])\nfd.add_output(___)",
            "ops.sum(s, [1])", "ops.neg(s)"),
        _by(T.RESIZE, R.TRANSPOSE_LIKE, "s = ops.slice(tensor(16, 8), [2, 0], [9, 8])\nfd.add_output(ops.add(s, ___))",
            "ops.permute(tensor(8, 7), [1, 0])", "tensor(7, 8)"),
    ),
    "schedule.resize._resized_broadcast": (
        _by(T.RESIZE, R.RESIZED_BROADCAST, "fd.add_output(ops.neg(ops.pad(ops.neg(tensor(1, 16)), [___])))",
            "0, 0, 0, 1", "0, 1, 0, 0"),
    ),
    "schedule.resize._resized_with_broadcast": (
        _by(T.RESIZE, R.RESIZED_WITH_BROADCAST,
            "x = ops.add(tensor(16, 8), tensor(1, 8))\nfd.add_output(ops.neg(ops.slice(x, ___)))",
            "[1, 0], [16, 8]", "[0, 1], [16, 8]"),
    ),
    "schedule.transpose.Transpose.can_schedule": (
        _by(T.TRANSPOSE, R.HAS_REDUCTION, f"{PERMUTED}fd.add_output(___)", "ops.sum(x, [1])", "ops.neg(x)"),
    ),
    "schedule.transpose.Transpose._large_enough": (
        _by(T.TRANSPOSE, R.TRANSPOSE_SMALL, "fd.add_output(ops.neg(ops.permute(tensor(132, ___), [1, 0])))",
            "1023", "1024"),
        _by(T.TRANSPOSE, R.TRANSPOSE_SMALL_INNER,
            "fd.add_output(ops.neg(ops.permute(tensor(4096, 8, ___), [0, 2, 1])))", "127", "128"),
        _by(T.TRANSPOSE, R.TRANSPOSE_NARROW, "fd.add_output(ops.neg(ops.permute(tensor(___, 1 << 20), [1, 0])))",
            "31", "32"),
        _by(T.TRANSPOSE, R.TRANSPOSE_SMALL_RESHAPED,
            "x = ops.reshape(tensor(64 * 512, ___), [64, 512, ___])\nfd.add_output(ops.neg(ops.permute(x, [2, 1, 0])))",
            "31", "32"),
    ),
    "schedule.transpose._reshape_behind": (
        _by(T.TRANSPOSE, R.TRANSPOSE_RESHAPED_BEHIND,
            "x = ops.___\nfd.add_output(ops.neg(ops.permute(ops.reshape(x, [64, 64, 64]), [1, 2, 0])))",
            "add(tensor(64, 4096), tensor(64, 4096))", "neg(tensor(64, 4096))"),
    ),
    "schedule.pointwise.PointWise.can_schedule": (
        _by(T.POINTWISE, R.HAS_REDUCTION, "x = tensor(8, 16)\nfd.add_output(___)", "ops.sum(x, [1])", "ops.neg(x)"),
    ),
    "schedule.no_op.NoOp.can_schedule": (
        _by(T.NO_OP, R.REDUCES_ELEMENTS,
            "y = tensor()\nfd.add_output(ops.neg(y))\nfd.add_output(ops.mul(ops.sum(tensor(___, 5), [1]), y))",
            "1", "0"),
        _by(T.NO_OP, R.CONCRETE_OUTPUT, "fd.add_output(ops.neg(tensor(___)))", "2", "1"),
    ),
    "schedule.expr_eval.ExprEval.can_schedule": (
        _by(T.EXPR_EVAL, R.NOT_VIEWS, "x = tensor(8, 16)\nfd.add_output(___)", "ops.neg(x)", "ops.reshape(x, [4, 32])"),
    ),
    "schedule.matmul.Matmul.can_schedule": (
        _by(T.MATMUL, R.MATMUL_OLD_DEVICE, f"{PRODUCT}fd.add_output(ops.neg(___))", "p", "p",
            options={**FUSED, "device": TURING}, refused_with={"device": V100}),
        _by(T.MATMUL, R.NO_MATMUL, f"fd.add_output(ops.neg(ops.___(tensor(4, 4, {HALF}), tensor(4, 4, {HALF}))))",
            "mul", "matmul", options=FUSED),
        _by(T.MATMUL, R.MATMUL_OFF, f"{PRODUCT}fd.add_output(ops.neg(___))", "p", "p", options=FUSED,
            refused_with={"fuse_matmul": False}),
    ),
    "schedule.matmul._product": (
        _by(T.MATMUL, R.OTHER_MATMUL,
            f"x, w = tensor(12, 8, {HALF}), tensor(2, 8, 4, {HALF})\nfd.add_output(ops.neg(___))",
            "ops.grouped_mm(x, w, tensor(2, dtype=DataType.Int32))", f"ops.matmul(x, tensor(8, 4, {HALF}))",
            options=FUSED),
        _by(T.MATMUL, R.MATMUL_BATCH,
            f"fd.add_output(ops.neg(ops.matmul(tensor(___16, 8, {HALF}), tensor(2, 8, 4, {HALF}))))", "", "2, ",
            options=FUSED),
        _by(T.MATMUL, R.MATMUL_VECTOR,
            f"fd.add_output(ops.neg(ops.matmul(tensor(16, 8, {HALF}), tensor(8___, {HALF}))))",
            "", ", 2", options=FUSED),
        _by(T.MATMUL, R.MATMUL_DTYPE, "a, b = (tensor(8, 8, dtype=DataType.___) for _ in range(2))\n"
            "fd.add_output(ops.neg(ops.matmul(a, b)))", "Float", "Half", options=FUSED),
        _by(T.MATMUL, R.SEVERAL_MATMULS, f"{PRODUCT}fd.add_output(___)", f"ops.matmul(p, tensor(32, 4, {HALF}))",
            "ops.neg(p)", options=FUSED),
    ),
    "schedule.matmul._too_long": (
        _by(T.MATMUL, R.MATMUL_TOO_LARGE,
            f"fd.add_output(ops.neg(ops.matmul(tensor(4, ___, {HALF}), tensor(___, 2, {HALF}))))", "1 << 31",
            "(1 << 31) - 1", options=FUSED),
    ),
    "schedule.matmul._ends": (
        _by(T.MATMUL, R.MATMUL_ONE_INPUT, f"a = tensor(8, 8, {HALF})\nfd.add_output(ops.neg(ops.matmul(a, ___)))",
            "a", f"tensor(8, 8, {HALF})", options=FUSED),
        _by(T.MATMUL, R.MATMUL_LAYOUT, f"{PRODUCT}fd.add_output(ops.neg(p), stride_order=[___])", "0, 1", "1, 0",
            options=FUSED),
    ),
    "schedule.matmul._alone": (
        _by(T.MATMUL, R.EVALUATED_ONLY, f"{PRODUCT}fd.add_output(ops.___)", "cumsum(p, 1)", "neg(p)", options=FUSED),
    ),
    "schedule.matmul._around": (
        _by(T.MATMUL, R.MATMUL_PROLOGUE,
            f"x = ___\nfd.add_output(ops.neg(ops.matmul(x, tensor(8, 32, {HALF}))))",
            "ops.cast(tensor(16, 8), DataType.Half)", f"tensor(16, 8, {HALF})", options=FUSED),
        _by(T.MATMUL, R.MATMUL_EPILOGUE, f"{PRODUCT}fd.add_output(ops.___)", "sum(p, [1])", "neg(p)", options=FUSED),
    ),
    "schedule.greedy.Greedy.can_schedule": (
        _by(T.GREEDY, R.NO_GREEDY_OP, "x = tensor(4, 64)\nfd.add_output(ops.neg(___))", "x", "ops.cumsum(x, 1)"),
        _by(T.GREEDY, R.GREEDY_FOREIGN_OP, "x = ops.cumsum(tensor(4, 64), 1)\nfd.add_output(ops.___)",
            "sum(x, [0])", "neg(x)"),
    ),
    "schedule.greedy._symbolic": (
        _log(R.GREEDY_SYMBOLIC, "x = fd.define_tensor(shape=[4, ___], contiguity=True)\n"
             "fd.add_output(ops.add(ops.cumsum(ops.add(x, 1.0), 1), 1.0))", "-1", "64", inputs=[fl.spec((4, 64))]),
    ),
    "schedule.greedy._too_long": (
        _by(T.GREEDY, R.GREEDY_LONG_PAD, "fd.add_output(ops.cumsum(ops.pad(tensor(4, ___), [0, 3]), 1))",
            "1022", "1021"),
        _by(T.GREEDY, R.GREEDY_REGISTERS, "fd.add_output(ops.neg(ops.cumsum(tensor(4, ___), 1)))", "45057", "45056"),
    ),
    "schedule.greedy._too_much_storage": (
        _by(T.GREEDY, R.GREEDY_SHARED_MEMORY, "fd.add_output(ops.add(ops.argsort(tensor(4, ___), 1), 1))",
            "6145", "6144"),
        _by(T.GREEDY, R.GREEDY_SHARED_MEMORY,
            f"fd.add_output(ops.add(ops.argsort(tensor(4, ___, {HALF}), 1), 1))", "6145", "6144"),
    ),
    "schedule.greedy._scatter_refusal": (
        _by(T.GREEDY, R.SCATTER_INEXACT,
            f"out = ops.scatter(ops.neg(tensor(4, 64)), tensor(___, 8, {INT}), tensor(___, 8), 1)\n"
            "fd.add_output(ops.neg(out))", "3", "4"),
        _by(T.GREEDY, R.SCATTER_SHARED,
            f"x = ops.neg(tensor(4, 64))\nout = ops.scatter(x, tensor(4, 8, {INT}), tensor(4, 8), 1)\n"
            "fd.add_output(ops.add(out, ___))", "x", "1.0"),
    ),
    "schedule.greedy._to_one_element": (
        _by(T.GREEDY, R.RESIZED_BROADCAST, "fd.add_output(ops.neg(ops.pad(ops.cumsum(tensor(4, 64), 1), [0, ___])))",
            "-63", "-62"),
    ),
    "schedule.greedy._order_refusal": (
        _by(T.GREEDY, R.SCATTER_PERMUTED,
            "x = fd.define_tensor(shape=[4, 64], contiguity=True, stride_order=[___])\n"
            f"out = ops.scatter(x, tensor(4, 8, {INT}), tensor(4, 8), 1)\nfd.add_output(ops.neg(out))",
            "0, 1", "1, 0"),
    ),
    "schedule.greedy._other_axes": (
        _by(T.GREEDY, R.GREEDY_OTHER_AXES, "fd.add_output(ops.cumsum(ops.cumsum(tensor(4, 64), 1), ___))", "0", "1"),
    ),
    "schedule.greedy._merge_refusal": (
        _by(T.GREEDY, R.GREEDY_MERGED,
            "x = ops.cumsum(tensor(4, 64), 1)\nfd.add_output(ops.neg(ops.reshape(x, [___])))",
            "256", "2, 2, 64"),
    ),
    "segmentation.hints.refused_by_hint": (
        _log(R.SEGMENT_SET_INSIDE, "x = ops.exp(tensor(8))\nfd.add_output(___)", "ops.neg(ops.segment_set(x))",
             "ops.segment_set(x)"),
    ),
    "segmentation.bottom_up.bottom_up": (
        _log("whole fusion", "x = ops.exp(tensor(8))\nfd.add_output(ops.___(x))", "neg", "segment_set"),
    ),
    "segmentation.bottom_up.lone_welfords": (
        _log("welford", "v = ops.var_mean(tensor(64, ___), [1], correction=0)[0]\nfd.add_output(ops.sum(v, [0]))",
             "1 << 19", "(1 << 19) + 1"),
    ),
    "segmentation.welford.rewrite_answer": (
        _log("welford",
             "v = ops.var_mean(tensor(64, ___, dtype=DataType.Double), [1], correction=0)[0]\n"
             "fd.add_output(ops.sum(v, [0]))", "1 << 18", "(1 << 18) + 1"),
    ),
    "segmentation.welford.keeps_rows": (
        _log("welford", "v = ops.var_mean(tensor(___, 512), [0], correction=0)[0]\nfd.add_output(ops.sum(v, [0]))",
             "2048", "8192"),
    ),
    "segmentation.privatization.replicas_of": (
        _log("privatize", "s = ops.squeeze(tensor(64, 1), [1])\nfor n in range(___):\n"
             "    fd.add_output(ops.segment_set(ops.add(s, float(n))))", "2", "3"),
    ),
    "segmentation.forwarding.forwarded_chains": (
        _log("forward", "x = tensor(64, 32)\na = ops.___\nfd.add_output(ops.sum(a, [0]))\n"
             "fd.add_output(ops.sum(a, [1]))", "exp(x)", "mul(x, 2.0)"),
    ),
    "segmentation.bottom_up._Finder._cat_with_pads": (
        _log("cat with pads", "x = ops.sin(tensor(4, 10))\nfd.add_output(ops.sum(ops.___, [1]))",
             "cat([x, tensor(4, 6)], 1)", "pad(x, [0, 6])"),
    ),
    "segmentation.bottom_up._Finder._cast_groups": (
        _log("cast group", f"{PRODUCT}u = ops.cast(p, DataType.Float)\n"
             "fd.add_output(ops.cast(ops.mul(u, ___), DataType.Half))", "2.0", "u"),
    ),
    "segmentation.reduction_sets.ReductionSets.masks": (
        _log("combine reductions", "x = tensor(64, 32)\na = ops.sum(x, [1], keepdim=True)\ny = ops.mul(x, a)\n"
             "b = ops.sum(y, [___], keepdim=True)\nfd.add_output(ops.mul(x, b))\nfd.add_output(ops.sum(y, [0, 1]))",
             "1", "0"),
    ),
    "segmentation.level_rounds.LevelRound._candidates": (
        _log("level round 1", "a = ops.mul(tensor(64, 32), 2.0)\n___\n"
             "fd.add_output(ops.sum(ops.sum(a, [0]), [0]))", "", "fd.add_output(a)"),
    ),
    "segmentation.level_rounds.LevelRound._preferred_pairs": (
        _log("", "x = ops.mul(tensor(4, 10), 2.0)\nfd.add_output(ops.sum(ops.___, [1]))", "pad(x, [0, 6])",
             "slice(x, [0, 1], [4, 10])", cut=("pointwise, reduction", "reduction, resize")),
    ),
    "segmentation.bottom_up._Finder._resolve_forwarded": (
        _log("resolve forwarded", "x = ops.___\nfd.add_output(ops.sum(x, [0]))\n"
             "fd.add_output(ops.sum(ops.mul(x, 2.0), [1]))", "exp(tensor(64, 32))", "add(tensor(64, 32), 1.0)"),
    ),
    "segmentation.bottom_up._Finder._revert_privatization": (
        _log("revert privatization", f"c = ops.cast(tensor(64, 32, {HALF}), DataType.Float)\n"
             "fd.add_output(ops.segment_set(ops.sum(c, [0])))\nfd.add_output(ops.sum(ops.neg(c), [___]))", "0", "1"),
    ),
    "segmentation.boundary_casts.lower_types": (
        _log("boundary casts", f"x = ops.cast(tensor(64, 32, {HALF}), DataType.Float)\ns = ops.exp(ops.sum(x, [1]))\n"
             "fd.add_output(ops.cast(ops.sum(s, [0]), DataType.___))", "Half", "Float",
             io_to_lower_precision=True),
    ),
    "segmentation.boundary_casts.boundary_casts": (
        _log("boundary casts", f"x = ops.cast(tensor(64, 32, {HALF}), DataType.Float)\ns = ops.exp(ops.sum(x, [1]))\n"
             "fd.add_output(ops.cast(ops.sum(ops.___, [0]), DataType.Half))", "mul(s, 2.0)", "slice(s, [1], [64])",
             io_to_lower_precision=True),
    ),
    "segmentation.bottom_up._Finder._final_pairs": (
        _log(R.CYCLE, "x = tensor(64, 32)\na = ops.add(x, 1.0)\ns = ops.sum(ops.sum(a, [0]), [0])\n"
             "fd.add_output(a)\nfd.add_output(ops.add(___, s))", "a", "x"),
    ),
}

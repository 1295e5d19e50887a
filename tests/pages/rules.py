"""Rules of nvFuser's schedulers, segmenter and presegmentation passes, with definitions that demonstrate them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import fuser_lab as fl
from fuser_lab.dtypes import DataType
from tests.pages.reasons import tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of nvFuser, its place in nvFuser and in fuser_lab, and its demonstrations.

    ``shows`` maps definitions, written as in ``tests/pages/reasons.py``, to the schedulers of their segments, in
    alphabetical order. ``asserted`` names the test of nvFuser that asserts the rule; it is empty if the rule is taken
    from nvFuser's source. ``nvfuser`` is the place in nvFuser unless the function named ``ours`` declares it.
    ``options`` are those of ``SegmenterOptions.from_nvfuser``.
    """

    of: str
    text: str
    ours: str
    shows: Mapping[str, str]
    nvfuser: str = ""
    asserted: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    values: bool = True  # whether it is small enough to evaluate its kernels in lock step


def definition(source: str) -> fl.FusionDefinition:
    """Return the definition that a source records."""
    with fl.FusionDefinition() as fd:
        exec(source, {"fd": fd, "ops": fd.ops, "DataType": DataType, "tensor": partial(tensor, fd)})
    return fd


def plan_of(rule: Rule, source: str) -> fl.Plan:
    """Return the plan of one of a rule's definitions, cut bottom-up with nvFuser's passes."""
    options = fl.SegmenterOptions.from_nvfuser(**rule.options)
    return fl.segment(definition(source), strategy="bottom_up", options=options)


def schedulers(plan: fl.Plan) -> str:
    """Return the schedulers of a plan's segments in alphabetical order."""
    return ", ".join(sorted(segment.scheduler.value if segment.scheduler else "none" for segment in plan.segments))


EXPR_EVAL = "csrc/scheduler/expr_eval_sched.cpp: canScheduleCompileTime"
FACTS = "fuser_lab.schedule.facts.CandidateFacts"

BATCH_NORM = """
x = ops.cast(tensor({0}, {1}, {1}, {2}, dtype=DataType.Half), DataType.Float)
var, mean = ops.var_mean(x, [0, 1, 2], correction=0, keepdim=True)
y = ops.mul(ops.sub(x, mean), ops.rsqrt(ops.add(var, 1e-5)))
fd.add_output(ops.cast(y, DataType.Half))"""
BACKWARD = """
dy, n, w = tensor(64, 32), tensor(64, 32), tensor(32)
g = ops.mul(dy, ops.broadcast(w, [True, False]))
c = ops.sum(ops.mul(g, n), [1], keepdim=True)
fd.add_output(ops.sub(g, ops.mul(n, c)))"""
UNMARKED = {"disable_preseg": ["MarkAliasesPreparePass", "AllocationDomainPass"]}

RULES = (
    Rule(
        of="expr_eval", nvfuser=f"{EXPR_EVAL}, csrc/alias_analysis.cpp: okToRelayout",
        ours="fuser_lab.analysis.aliasing.resolved_strides", options=UNMARKED,
        text=(
            "A result without a layout of its own is row-major and dense: a permutation or slice is a view only if "
            "MarkAliasesPrepare makes it one."
        ),
        asserted="test_transpose.cpp: TransposeTest.TransposeSplitAggregatedVectorizationWidth",
        shows={
            "fd.add_output(ops.permute(tensor(8, 16), [1, 0]))": "pointwise",
            "fd.add_output(ops.slice(tensor(8, 16), [0, 2], [8, 9]))": "resize",
            "fd.add_output(ops.slice(tensor(8, 16), [2, 0], [5, 16]))": "expr_eval",
            "fd.add_output(ops.reshape(tensor(8, 16), [4, 32]))": "expr_eval",
        },
    ),
    Rule(
        of="expr_eval", nvfuser="csrc/preseg_passes/mark_aliases_prepare.cpp",
        ours="fuser_lab.passes.mark_aliases.MarkAliases",
        text="MarkAliasesPrepare gives each view the layout that makes it a view.",
        asserted="test_alias.cpp: AliasTest.PerfDebugVerboseWhenSomeKernelsNotLaunched",
        shows={
            "fd.add_output(ops.permute(tensor(8, 16), [1, 0]))": "expr_eval",
            "fd.add_output(ops.slice(tensor(8, 16), [0, 2], [8, 9]))": "expr_eval",
            "fd.add_output(ops.permute(ops.neg(tensor(8, 16)), [1, 0]))": "expr_eval, pointwise",
        },
    ),
    Rule(
        of="expr_eval", ours="fuser_lab.schedule.expr_eval.ExprEval.can_schedule",
        text="A gather or take_along_axis that stands alone is a library call.",
        shows={
            "fd.add_output(ops.take_along_axis(tensor(4, 8), tensor(4, 2, dtype=DataType.Int), 1))": "expr_eval",
            "fd.add_output(ops.gather(tensor(4, 8), tensor(2, 3, dtype=DataType.Int), 1))": "expr_eval",
        },
    ),
    Rule(
        of="fusion", nvfuser="csrc/fusion.cpp: Fusion::addOutput",
        ours="fuser_lab.definition.builder.FusionBuilder.add_output",
        text="An output that is added twice is one value.", asserted="test_alias.cpp: AliasTest.DuplicateOutputs",
        shows={
            """
x = ops.add(tensor(4, 8), 3.0)
fd.add_output(x)
fd.add_output(x)""": "pointwise",
            """
x = ops.matmul(tensor(4, 8), tensor(8, 5))
fd.add_output(x)
fd.add_output(x)""": "expr_eval",
        },
    ),
    Rule(
        of="pointwise", ours=f"{FACTS}._cannot_lead",
        text="Outputs may be slices, pads and cats of the reference's operands.",
        shows={
            """
x = tensor(4, 24)
for i in range(3):
    fd.add_output(ops.neg(ops.slice(x, [0, 8 * i], [4, 8 * i + 8])))""": "pointwise",
            """
x = tensor(16)
fd.add_output(ops.relu(x))
fd.add_output(ops.neg(ops.slice(x, [2], [9])))""": "pointwise",
            """
x = tensor(16)
fd.add_output(ops.relu(x))
fd.add_output(ops.neg(ops.pad(x, [2, 3])))""": "pointwise",
            """
x, y = tensor(16, 8), tensor(16, 8)
fd.add_output(ops.relu(x))
fd.add_output(ops.neg(ops.cat([x, y], 1)))""": "pointwise",
        },
    ),
    Rule(
        of="resize", ours=f"{FACTS}.resize_between_outputs",
        text="No slice, pad or cat lies between the reference and another output.",
        asserted="test_resize.cpp: ResizeSchedulerTest.PropagateMultipleSlicesToInputs2",
        shows={
            """
x = ops.sin(tensor(16, 100))
fd.add_output(ops.sin(ops.slice(x, [0, 1], [16, 100])))
fd.add_output(ops.sin(ops.slice(ops.sin(x), [0, 2], [16, 100])))""": "resize, resize",
        },
    ),
    Rule(
        of="resize", ours="fuser_lab.schedule.resize._resized_with_broadcast",
        text="No broadcast axis meets a resized axis.",
        shows={
            """
x = ops.add(tensor(16, 8), tensor(8))
fd.add_output(ops.neg(ops.slice(x, [2, 0], [9, 8])))""": "pointwise, resize",
            """
x = ops.mul(tensor(16, 8), tensor(16, 1))
fd.add_output(ops.neg(ops.pad(x, [1, 0])))""": "pointwise, resize",
            """
x = ops.mul(tensor(16, 8), tensor(8))
fd.add_output(ops.neg(ops.slice(x, [0, 2], [16, 7])))""": "resize",
        },
    ),
    Rule(
        of="resize", ours=f"{FACTS}.inner_groups",
        text=(
            "All inputs and outputs, including incomplete ones, have the same innermost axis. A broadcast axis is not "
            "an innermost axis, whatever it meets (it was taken for the axis that it meets here, so that the second of "
            "these definitions was one segment); a tensor without any other axis voids the rule."
        ),
        shows={
            """
x = ops.mul(tensor(16, 8), tensor(8))
fd.add_output(ops.neg(ops.slice(x, [0, 2], [16, 7])))""": "resize",
            """
x = ops.mul(tensor(16, 8), tensor(16, 1))
fd.add_output(ops.neg(ops.slice(x, [2, 0], [9, 8])))""": "pointwise, resize",
            """
x = ops.mul(tensor(16, 8), tensor(16, 1))
fd.add_output(ops.mul(ops.slice(x, [2, 0], [9, 8]), tensor()))""": "resize",
            """
x = ops.mul(tensor(16, 8), ops.broadcast(tensor(16), [False, True]))
fd.add_output(ops.neg(ops.slice(x, [2, 0], [9, 8])))""": "pointwise, resize",
        },
    ),
    Rule(
        of="all kernels except resize", ours=f"{FACTS}.index_input",
        text="With memory_promotion, the operand of a slice or pad may be computed in the same segment.",
        options={"enable": ["memory_promotion"]},
        shows={
            """
x = ops.sum(tensor(16, 8), [1])
fd.add_output(ops.neg(ops.slice(x, [2], [9])))""": "reduction",
            """
x = ops.relu(tensor(16, 8))
fd.add_output(ops.neg(ops.slice(x, [2, 0], [9, 8])))
fd.add_output(ops.neg(ops.slice(x, [0, 0], [2, 8])))
fd.add_output(x)""": "pointwise",
        },
    ),
    Rule(
        of="reduction", ours=f"{FACTS}.covered_by_reduction",
        text="An output may be a slice of a reduced tensor.",
        shows={
            """
x = tensor(16, 8)
fd.add_output(ops.sum(ops.relu(x), [1]))
fd.add_output(ops.neg(ops.slice(x, [2, 0], [9, 8])))""": "reduction",
        },
    ),
    Rule(
        of="reduction", ours="fuser_lab.schedule.reduction._new_input",
        text="What comes after an inner reduction is computed from inputs that reductions read, whatever their shape.",
        shows={
            """
x, r = tensor(16, 8), tensor(16)
s = ops.sum(ops.mul(x, ops.broadcast(r, [False, True])), [1])
fd.add_output(ops.mul(s, r))""": "reduction",
            """
x, r = tensor(16, 8), tensor(16)
s = ops.sum(ops.mul(x, ops.broadcast(ops.relu(r), [False, True])), [1])
fd.add_output(ops.mul(s, ops.exp(r)))""": "reduction",
            """
fd.add_output(ops.mul(ops.sum(tensor(16, 8), [1]), tensor(16)))""": "pointwise, reduction",
            """
fd.add_output(ops.mul(ops.sum(tensor(16, 8), [1]), tensor()))""": "pointwise, reduction",
            """
fd.add_output(ops.mul(ops.sum(tensor(16, 8), [0]), tensor()))""": "reduction",
        },
    ),
    Rule(
        of="inner_persistent", ours=f"{FACTS}.covered_by_reduction",
        text="An output may be a slice of a normalized tensor.",
        shows={
            """
x = tensor(16, 8)
e = ops.exp(x)
fd.add_output(ops.div(e, ops.sum(e, [1], keepdim=True)))
fd.add_output(ops.neg(ops.slice(x, [2, 0], [9, 8])))""": "inner_persistent",
        },
    ),
    Rule(
        of="inner_persistent", values=False,
        ours="fuser_lab.schedule.inner_persistent.InnerPersistent._fits",
        text="A cluster of at most 16 blocks keeps a row; each block keeps 128 KiB of it.",
        asserted="test_cluster.cpp: ClusterReductionTestAutoScheduler",
        shows={
            """
x = ops.cast(tensor(16, 1 << 20, dtype=DataType.BFloat16), DataType.Float)
fd.add_output(ops.cast(ops.softmax(x, 1), DataType.BFloat16))""": "inner_persistent",
            """
x = tensor(64, 1 << 19)
fd.add_output(ops.truediv(x, ops.sum(x, [1], keepdim=True)))""": "inner_persistent",
            """
x = tensor(64, (1 << 19) + 1)
fd.add_output(ops.truediv(x, ops.sum(x, [1], keepdim=True)))""": "pointwise, reduction",
        },
    ),
    Rule(
        of="expr_eval", ours="fuser_lab.schedule.expr_eval.ExprEval.can_schedule",
        text=(
            "A fusion whose outputs are inputs is one segment, which is evaluated: ExprEval is asked before NoOp (such "
            "a fusion had no segment here)."
        ),
        shows={
            """
fd.add_output(tensor(8, 16))""": "expr_eval",
        },
    ),
    Rule(
        of="outer_persistent", values=False, ours="fuser_lab.schedule.outer_persistent.outer_launch",
        text=(
            "Blocks keep columns together if a search finds a launch configuration: wide blocks before narrow ones, "
            "few blocks along the reduced axes before many, with columns divided evenly, few registers, no idle "
            "threads and little work for the last block (a formula for the number of blocks stood here instead, which "
            "cut the first of these batch norms and fused the second)."
        ),
        shows={
            BATCH_NORM.format(64, 28, 512): "outer_persistent",
            BATCH_NORM.format(32, 56, 64): "pointwise, reduction",
        },
    ),
    Rule(
        of="persistent", ours="fuser_lab.schedule.persistent.needs_buffer",
        text="A tensor with some but not all of the axes that a reduction of it reduces cannot be kept.",
        shows={
            """
v, m = tensor(64), tensor(64, 16)
s = ops.sum(ops.add(ops.broadcast(v, [False, True]), m), [0, 1])
fd.add_output(ops.truediv(v, ops.broadcast(s, [True])))""": "pointwise, reduction",
            """
v, m = tensor(64), tensor(64, 16)
s = ops.sum(ops.add(ops.broadcast(v, [False, True]), m), [0, 1])
fd.add_output(ops.truediv(m, ops.broadcast(s, [True, True])))""": "inner_persistent",
            """
v, m = tensor(64), tensor(64, 16)
s = ops.sum(ops.add(ops.broadcast(v, [False, True]), m), [0])
t = ops.add(ops.broadcast(v, [False, True]), ops.broadcast(s, [True, False]))
fd.add_output(t)""": "outer_persistent",
        },
    ),
    Rule(
        of="all kernels except resize", ours=f"{FACTS}.reshapes",
        text="Slices of one axis may be split if their outer extents are equal; otherwise the reshapes conflict.",
        shows={
            """
x = tensor(4, 24)
for i in range(3):
    fd.add_output(ops.neg(ops.reshape(ops.slice(x, [0, 8 * i], [4, 8 * i + 8]), [4, 2, 4])))""": "pointwise",
            """
x = tensor(4, 24)
fd.add_output(ops.neg(ops.reshape(ops.slice(x, [0, 0], [4, 8]), [4, 2, 4])))
fd.add_output(ops.neg(ops.reshape(ops.slice(x, [0, 8], [4, 24]), [4, 2, 8])))""": "pointwise",
            """
x = tensor(4, 24)
fd.add_output(ops.neg(ops.reshape(ops.slice(x, [0, 0], [4, 8]), [4, 2, 4])))
fd.add_output(ops.neg(ops.reshape(ops.slice(x, [0, 8], [4, 24]), [4, 4, 4])))""": "resize, resize",
        },
    ),
    Rule(
        of="inner_outer_persistent", ours="fuser_lab.schedule.inner_outer_persistent._connected_besides",
        text=(
            "Inner and outer reductions, and outer ones among themselves, are connected only by operands of the outer "
            "ones, whatever these are computed from (only values that both kinds are computed from were accepted here, "
            "so that the third of these definitions was two segments)."
        ),
        asserted="test_combined_inner_outer_reduction.cpp: TmaWarpSpecializedTest.RMSNormBwd",
        shows={
            f"""{BACKWARD}
fd.add_output(ops.sum(ops.mul(dy, n), [0]))
fd.add_output(ops.sum(dy, [0]))""": "inner_outer_persistent",
            f"""{BACKWARD}
s = ops.sum(ops.mul(dy, n), [0])
fd.add_output(s)
fd.add_output(ops.sum(ops.sub(dy, ops.broadcast(s, [True, False])), [0]))""": "inner_persistent, outer_persistent",
            f"""{BACKWARD}
fd.add_output(ops.sum(ops.mul(dy, c), [0]))""": "inner_outer_persistent",
            f"""{BACKWARD}
fd.add_output(ops.mul(ops.sum(ops.mul(g, n), [0]), w))""": "inner_persistent, reduction",
            f"""{BACKWARD}
fd.add_output(ops.mul(ops.sum(dy, [0]), w))""": "inner_persistent, reduction",
            """
x = tensor(64, 32)
fd.add_output(ops.truediv(x, ops.sum(x, [1], keepdim=True)))
fd.add_output(ops.sum(x, [0]))
fd.add_output(ops.sum(ops.exp(x), [0]))""": "inner_outer_persistent",
        },
    ),
    Rule(
        of="inner_outer_persistent", ours="fuser_lab.schedule.inner_outer_persistent.InnerOuterPersistent.can_schedule",
        text="Outputs may have axes that occur in no reduction.",
        shows={
            """
x = tensor(64, 32)
fd.add_output(ops.truediv(x, ops.sum(x, [1], keepdim=True)))
fd.add_output(ops.sum(x, [0]))
fd.add_output(ops.add(ops.broadcast(x, [True, False, False]), tensor(3, 1, 1)))""": "inner_outer_persistent",
        },
    ),
    Rule(
        of="reductions", ours=f"{FACTS}.indexed_before_reduction",
        text=(
            "One element of an input may be looked up along an axis before a reduction (without memory_promotion, only "
            "inputs are looked up; the third of these definitions was two segments, as if the rule held for inputs)."
        ),
        shows={
            """
one = ops.take_along_axis(tensor(8, 16), tensor(1, 16, dtype=DataType.Int), 0)
e = ops.exp(one)
fd.add_output(ops.truediv(e, ops.sum(e, [1], keepdim=True)))""": "inner_persistent",
            """
x = tensor(8, 16)
one = ops.take_along_axis(x, tensor(8, 1, dtype=DataType.Int), 1)
fd.add_output(ops.sum(ops.mul(one, x), [1]))""": "reduction",
            """
one = ops.take_along_axis(tensor(8, 16), tensor(8, 1, dtype=DataType.Int), 1)
fd.add_output(ops.neg(ops.sum(ops.squeeze(one, [1]), [0])))""": "reduction",
        },
    ),
    Rule(
        of="transpose", ours="fuser_lab.schedule.transpose.Transpose._large_enough", options=UNMARKED,
        values=False, text="All axes except one transposed axis have at least 32 elements together.",
        shows={
            "fd.add_output(ops.neg(ops.permute(tensor(16, 1 << 20), [1, 0])))": "pointwise",
            "fd.add_output(ops.neg(ops.permute(tensor(32, 1 << 20), [1, 0])))": "transpose",
        },
    ),
    Rule(
        of="transpose", ours=f"{FACTS}.transposed", options=UNMARKED, values=False,
        text=(
            "Axes are traced across reshapes: permutes that cancel across a reshape leave a PointWise kernel, and so "
            "does an innermost axis that is the outer part of a merged axis of the tensor that leads."
        ),
        asserted="test_transpose.cpp: TransposeTest.ViewTransposeReshape",
        shows={
            """
x = ops.neg(ops.permute(tensor(4096, 64, 64), [0, 2, 1]))
fd.add_output(ops.neg(ops.permute(ops.reshape(x, [4096, 64, 8, 8]), [0, 2, 3, 1])))""": "pointwise",
            """
x = ops.neg(ops.permute(tensor(4096, 64, 64), [2, 1, 0]))
fd.add_output(ops.neg(ops.permute(ops.reshape(x, [4096, 4096]), [1, 0])))""": "pointwise",
            """
x = ops.neg(ops.reshape(tensor(4096, 4096), [64, 64, 4096]))
fd.add_output(ops.neg(ops.permute(x, [2, 0, 1])))""": "transpose",
        },
    ),
    Rule(
        of="greedy", ours="fuser_lab.schedule.greedy._merge_refusal",
        text="No reshape downstream merges the axis along which an op runs with another one.",
        shows={
            "fd.add_output(ops.neg(ops.cumsum(ops.neg(tensor(4, 64)), 1)))": "greedy",
            "fd.add_output(ops.neg(ops.reshape(ops.cumsum(ops.neg(tensor(4, 64)), 1), [2, 2, 64])))": "greedy",
            "fd.add_output(ops.neg(ops.reshape(ops.cumsum(ops.neg(tensor(4, 64)), 1), [256])))": "greedy, pointwise",
        },
    ),
    Rule(
        of="greedy", ours="fuser_lab.schedule.greedy._too_long",
        text="A block also holds the padded axes whole.",
        shows={
            "fd.add_output(ops.cumsum(ops.pad(tensor(4, 64), [0, 3]), 1))": "greedy",
            "fd.add_output(ops.cumsum(ops.pad(tensor(4, 64), [0, 0, 0, 3]), 1))": "expr_eval, resize",
        },
    ),
    Rule(
        of="all kernels", ours=f"{FACTS}._shape_gates",
        text="A scatter counts as indexing: no slice, pad or cat shares its kernel.",
        shows={
            """
x = ops.pad(tensor(4, 64), [0, 3])
fd.add_output(ops.scatter(x, tensor(4, 8, dtype=DataType.Int), tensor(4, 8), 1))""": "expr_eval, resize",
        },
    ),
    Rule(
        of="greedy", nvfuser="csrc/logical_domain_map.cpp", ours="fuser_lab.ops.scatter",
        text="Index and source of a scatter have the operand's extents except along the scattered axis.",
        shows={
            """
places = ops.argsort(ops.neg(tensor(4, 8)), 1)
fd.add_output(ops.neg(ops.scatter(ops.neg(tensor(4, 64)), places, tensor(4, 8), 1)))""": "greedy",
        },
    ),
    Rule(
        of="presegmentation", nvfuser="csrc/preseg_passes/move_pad.cpp: replaceCat, replaceCatOpWithBinaryOp",
        ours="fuser_lab.passes.move_pad.MovePad", options={"disable": ["resize_scheduler"]},
        text="Without the Resize scheduler, a cat becomes a sum if one of its pads moves, and the pads move on.",
        shows={
            """
x, y = tensor(4, 10), tensor(6, 10)
fd.add_output(ops.cat([ops.relu(x), y], 0))""": "pointwise",
            """
x, y, z = tensor(4, 10), tensor(6, 10), tensor(3, 10)
fd.add_output(ops.neg(ops.cat([ops.relu(x), y, ops.tanh(z)], 0)))""": "pointwise",
            """
x, y = tensor(4, 10), tensor(6, 10, dtype=DataType.Bool)
fd.add_output(ops.cat([ops.cast(x, DataType.Bool), y], 0))""": "pointwise",
            """
x = ops.relu(tensor(4, 10))
fd.add_output(x)
fd.add_output(ops.cat([x, tensor(6, 10)], 0))""": "pointwise, pointwise",
        },
    ),
    Rule(
        of="resize", ours="fuser_lab.schedule.resize.Resize.can_schedule",
        text="Slices of one tensor that meet again are one segment.",
        asserted="test_resize.cpp: ResizeSchedulerTest.PropagateMultipleSlicesToInputs1",
        shows={
            """
x = ops.sin(tensor(16, 100))
fd.add_output(ops.add(ops.slice(x, [0, 1], [16, 100]), ops.slice(x, [0, 0], [16, 99])))""": "resize",
        },
    ),
    Rule(
        of="pointwise", ours=f"{FACTS}._cannot_lead",
        text="The parts of a fused query, key and value matrix are one segment, together with their scaling.",
        shows={
            """
x = tensor(4, 8, 24)
for i in range(3):
    part = ops.reshape(ops.slice(x, [0, 0, 8 * i], [4, 8, 8 * i + 8]), [4, 8, 2, 4])
    fd.add_output(ops.mul(ops.permute(part, [0, 2, 1, 3]), 2.0))""": "pointwise",
            """
x = tensor(4, 8, 16)
for begin, end, heads in ((0, 8, 2), (8, 12, 1), (12, 16, 1)):
    part = ops.reshape(ops.slice(x, [0, 0, begin], [4, 8, end]), [4, 8, heads, 4])
    fd.add_output(ops.mul(ops.permute(part, [0, 2, 1, 3]), 2.0))""": "pointwise",
        },
    ),
    Rule(
        of="pointwise", ours=f"{FACTS}._cannot_lead",
        text="An axis that is made of a broadcast axis by padding counts as the axis that the broadcast axis meets.",
        asserted="test_pointwise.cpp: PointwiseTest.DomainMapPad1",
        shows={
            """
x, y = tensor(1, 5), tensor(2, 3, 4, 1)
fd.add_output(ops.add(ops.broadcast(x, [True, True, False, False]), y))
fd.add_output(ops.neg(ops.pad(x, [0, 0, 4, 4])))""": "pointwise",
            """
x, y = tensor(1, 5), tensor(7, 1, 5)
fd.add_output(ops.add(ops.broadcast(x, [True, False, False]), y))
fd.add_output(ops.neg(ops.reshape(ops.pad(x, [0, 0, 4, 4]), [45])))""": "pointwise",
            """
x, y = tensor(5, 1), tensor(5, 7)
fd.add_output(ops.neg(y))
fd.add_output(ops.mul(ops.pad(x, [2, 4]), tensor(5, 1)))""": "pointwise, pointwise",
        },
    ),
    Rule(
        of="presegmentation", nvfuser="csrc/preseg_passes/move_split_cat.cpp: findPairingSplit",
        ours="fuser_lab.passes.move_split_cat.MoveSplitCat",
        text="Slices that are joined again after equal reshapes are not cut, unless the joined axis is split.",
        asserted="test_move_split_cat.cpp: MoveSplitCatTest.Cancellable_ReshapeInBetween, OuterSplit",
        shows={
            """
x = tensor(4, 10)
parts = [ops.reshape(ops.slice(x, [0, a], [4, b]), [2, 2, b - a]) for a, b in ((0, 2), (2, 5), (5, 10))]
fd.add_output(ops.cat(parts, 2))""": "expr_eval",
            """
x = tensor(4, 6)
parts = [ops.reshape(ops.slice(x, [a, 0], [a + 2, 6]), [4, 3]) for a in (0, 2)]
fd.add_output(ops.cat(parts, 0))""": "resize",
        },
    ),
    Rule(
        of="pointwise", ours=f"{FACTS}.lost_axis",
        text="No axis is lost and added again on the way of the loops to the other tensors.",
        shows={
            """
a, b = tensor(8), tensor(16)
for op in (ops.mul, ops.add):
    rows, columns = ops.broadcast(a, [False, True]), ops.broadcast(b, [True, False])
    fd.add_output(op(rows, columns))""": "pointwise, pointwise",
            """
a, b = tensor(8), tensor(16)
rows, columns = ops.broadcast(a, [False, True]), ops.broadcast(b, [True, False])
fd.add_output(ops.mul(rows, columns))
fd.add_output(ops.add(rows, columns))""": "pointwise",
            """
a, x = tensor(8), tensor(8, 16)
for op in (ops.mul, ops.add):
    fd.add_output(op(ops.broadcast(a, [False, True]), x))""": "pointwise",
        },
    ),
    Rule(
        of="transpose", ours="fuser_lab.schedule.transpose._reshape_behind", options=UNMARKED, values=False,
        text="No reshape is downstream of the reference, the first tensor of the larger group.",
        shows={
            """
x = ops.add(tensor(64, 4096), tensor(64, 4096))
fd.add_output(ops.neg(ops.permute(ops.reshape(x, [64, 64, 64]), [1, 2, 0])))""": "pointwise",
            """
x = ops.neg(tensor(64, 4096))
fd.add_output(ops.neg(ops.permute(ops.reshape(x, [64, 64, 64]), [1, 2, 0])))""": "transpose",
        },
    ),
)

# Intended differences, listed in docs/design.md: definitions, their schedulers in fuser_lab, and options.
DIFFERENT: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    (
        "x = tensor(16)\nfd.add_output(ops.slice(ops.neg(x), [0], [5]))",
        "expr_eval, pointwise",
        {},
    ),
    (
        "s = ops.sum(tensor(8, 16), [1], keepdim=True)\nfd.add_output(ops.expand(s, [8, 5]))",
        "expr_eval, reduction",
        {"disable_preseg": ["MarkAliasesPreparePass"]},
    ),
    (
        (
            "x = ops.neg(tensor(8, 8))\nplaces = ops.argsort(ops.neg(tensor(8, 8)), 1)\n"
            "fd.add_output(ops.neg(ops.scatter(x, places, tensor(8, 8), 0)))"
        ),
        "greedy, greedy",
        {},
    ),
    (
        "x = ops.sum(tensor(16, 8), [1])\nfd.add_output(ops.neg(ops.slice(x, [2], [9])))",
        "reduction",
        {"enable": ["memory_promotion"]},
    ),
    (
        (
            "a = ops.broadcast(tensor(16, 8, dtype=DataType.Half), [False, True, False])\n"
            "b = ops.broadcast(tensor(32, 8, dtype=DataType.Half), [True, False, False])\n"
            "fd.add_output(ops.sum(ops.mul(a, b), [2]))"
        ),
        "reduction",
        {},
    ),
)

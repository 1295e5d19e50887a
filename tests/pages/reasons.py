"""The page of all reasons, each with a fusion refused for that reason: ``python -m tests.pages.reasons``."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import fuser_lab as fl
from fuser_lab.codegen.one_kernel import OneKernel
from fuser_lab.cost.device import DEFAULT
from fuser_lab.cost.reasons import ACCEPTING, MONOTONE, OTHER_KIND, ReasonCode
from fuser_lab.cost.verdict import Answer, SchedulerType, refuse
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.dtypes import DataType
from fuser_lab.schedule.registry import SchedulerRegistry
from fuser_lab.segmentation import Candidate, SegmenterOptions, SegmentSetMeaning, candidate
from fuser_lab.segmentation.hints import refused_by_hint

COMMAND = "python -m tests.pages.reasons > docs/reasons.md"
HALF = "dtype=DataType.Half"

@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A definition that is refused for a reason, how it is cut, and the remedy."""

    source: str
    remedy: str
    cut: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The origin of a reason, and its text."""

    who: str
    text: str


def tensor(fd: Any, *shape: int, dtype: DataType = DataType.Float) -> Any:
    """Return a contiguous tensor."""
    return fd.define_tensor(list(shape), contiguity=[None if n == 1 else True for n in shape], dtype=dtype)


def plan_of(example: Example) -> fl.Plan:
    """Return the plan of an example with its options."""
    with fl.FusionDefinition() as fd:
        names = {"fd": fd, "ops": fd.ops, "DataType": DataType, "tensor": partial(tensor, fd)}
        exec(example.source, names)
    return fl.segment(fd, options=fl.SegmenterOptions(**example.options), **example.cut)


def found(code: ReasonCode) -> Found:
    """Return how a reason occurs in its example.

    Raises
    ------
    LookupError
        If it does not occur there.
    """
    if code in DIRECT:
        answer = DIRECT[code]()
        said = next(v for v in answer.verdicts if v.code == code.value)
        alike = len({v.text for v in answer.verdicts}) == 1
        return Found(who="the segmenter" if alike else said.scheduler.value, text=said.text)
    plan = plan_of(EXAMPLES[code])
    for attempt in plan.decisions:
        if attempt.code == code.value and not attempt.verdicts:
            return Found(who="the segmenter", text=attempt.text)
        for verdict in attempt.verdicts:
            if verdict.code == code.value:
                alike = {v.text for v in attempt.verdicts} == {verdict.text}
                return Found(who="the segmenter" if alike else verdict.scheduler, text=verdict.text)
    for segment in plan.segments:
        for answer in segment.verdicts:
            if answer.code == code.value:
                return Found(who=answer.scheduler.value, text=answer.text)
    msg = f"{code.value} does not occur in its example; found {sorted(codes(plan))}"
    raise LookupError(msg)


def codes(plan: fl.Plan) -> set[str]:
    """Return all codes of the refusals during planning."""
    said = {v.code for attempt in plan.decisions for v in attempt.verdicts}
    return said | {a.code for a in plan.decisions} | {v.code for s in plan.segments for v in s.verdicts}


def kind(code: ReasonCode) -> str:
    """Return the kind of a reason."""
    if code in ACCEPTING:
        return "given with an acceptance"
    if code in MONOTONE:
        return "a refusal, which also holds for every larger set if the scheduler promises it"
    return "a refusal: this scheduler is for another kind of fusion" if code in OTHER_KIND else "a refusal"


def page() -> str:
    """Return the page."""
    lines = [
        f"<!-- Made by `{COMMAND}`; a test fails when it is stale. -->",
        "",
        "# Reasons",
        "",
        "This page lists every reason that a scheduler or the segmenter gives, in nvFuser's order of schedulers: its",
        "text, a small fusion that triggers it, and what to do about it. The texts come from the run that generated",
        "this page. In the examples `tensor(8, 16)` is a contiguous float32 input of that shape, `ops` is `fd.ops`,",
        "and the target is an H200 unless stated otherwise. `plan.decisions.filter(code=...)` finds the attempts with",
        "a reason.",
        "",
    ]
    for code in ReasonCode:
        example, said = EXAMPLES[code], found(code)
        call = [f"{key}={_shown(value)}" for key, value in example.cut.items()]
        if example.options:
            inside = ", ".join(f"{key}={_shown(value)}" for key, value in example.options.items())
            call.append(f"options=fl.SegmenterOptions({inside})")
        lines += [f"## {code.value}", "", f"> {said.who}: {said.text}", "", f"{kind(code).capitalize()}.", ""]
        if code in DIRECT:
            lines += [f"No segment of a plan has this reason: {example.source}", ""]
            lines += [f"**What to do:** {example.remedy}", ""]
            continue
        lines += ["```python", example.source.strip()]
        if call:
            lines.append(f"fl.segment(fd, {', '.join(call)})")
        lines += ["```", "", f"**What to do:** {example.remedy}", ""]
    return "\n".join(lines)


def _shown(value: object) -> str:
    if isinstance(value, fl.Device):
        limits = f"cc={value.cc}, sms={value.sms}, shared_per_block={value.shared_per_block}"
        return f"fl.Device(name={value.name!r}, {limits}, ...)"
    if value is RULED:
        return 'fl.with_rule(one_op, "pointwise")'
    if isinstance(value, list):
        return f"[{', '.join(f'fl.spec({spec.shape})' for spec in value)}]"
    return f"{{{', '.join(map(repr, sorted(value)))}}}" if isinstance(value, frozenset) else repr(value)


V100 = fl.Device(
    name="V100", cc=(7, 0), sms=80, shared_per_sm=98304, shared_per_block=98304, l2=6 * 10**6, bandwidth=900, fp32=15.7,
    bf16=0,
)
SMALL = fl.Device(
    name="small", cc=(9, 0), sms=8, shared_per_sm=32768, shared_per_block=16384, l2=10**6, bandwidth=100, fp32=1,
    bf16=2,
)


def one_op(facts: Any, device: fl.Device) -> str | None:
    """Refuse candidates with more than one expression."""
    count = len(facts.candidate.exprs)
    return None if count == 1 else f"{count} ops are more than one"


RULED = fl.with_rule(one_op, "pointwise")
FUSED = {"fuse_matmul": True}
OTHER = "nothing: this fusion is for another scheduler; read that scheduler's reason."
TAKEN = "nothing: this describes how the segment runs."


def _product(rest: str, left: str = "16, 8", right: str = "8, 32", dtype: str = "Half") -> str:
    return (
        f"p = ops.matmul(tensor({left}, dtype=DataType.{dtype}), tensor({right}, dtype=DataType.{dtype}))\n{rest}"
    )


def _norm(rows: int, columns: int, more: str = "", op: str = "sum(x, dims=[1], keepdim=True)") -> str:
    return f"x = tensor({rows}, {columns})\nn = ops.truediv(x, ops.{op})\nfd.add_output(n)\n{more}"


def _statistics(rows: int, columns: int) -> str:
    return (
        f"x = tensor({rows}, {columns})\nvar, mean = ops.var_mean(x, dims=[0], correction=0, keepdim=True)\n"
        "fd.add_output(ops.sub(x, mean))"
    )


COLUMNS = "sum(x, dims=[0], keepdim=True)"
R = ReasonCode
EXAMPLES: dict[ReasonCode, Example] = {
    R.SEGMENT_SET_INSIDE: Example(
        source="x = ops.exp(tensor(8))\nfd.add_output(ops.neg(ops.segment_set(x)))",
        remedy=(
            'remove the `segment_set`, or read it as a copy with `segment_set="ignore"`; `plan.cut` cuts elsewhere.'
        ),
    ),
    R.ACROSS_CUT: Example(
        source=(
            'with `segment_set="cut"` it applies to expressions before and after a `segment_set` without those '
            "between them, which would also close a cycle."
        ),
        remedy="move the `segment_set`, or read it as a hint.",
    ),
    R.CYCLE: Example(
        source=(
            "x = tensor(64, 32)\na = ops.add(x, 1.0)\ns = ops.sum(ops.sum(a, dims=[0]), dims=[0])\n"
            "fd.add_output(ops.add(a, s))"
        ),
        remedy="include the expressions on the path between, or cut before the first one; `plan.why` names the path.",
    ),
    R.DISABLED: Example(
        source="fd.add_output(ops.neg(tensor(8)))", remedy="remove the scheduler from `disabled_schedulers`.",
        options={"disabled_schedulers": frozenset({"resize"})},
    ),
    R.OWN_RULE: Example(
        source="fd.add_output(ops.neg(ops.exp(tensor(8))))", remedy="change the rule passed with `schedulers=`.",
        cut={"schedulers": RULED},
    ),
    R.BEYOND: Example(
        source=(
            "x, i = tensor(64, 32), tensor(16, dtype=DataType.Int)\n"
            "fd.add_output(ops.neg(ops.index_select(ops.exp(x), i, 0)))"
        ),
        remedy="nothing: leave out `schedulers=` to see what nvFuser would do.", cut={"schedulers": fl.OPEN_SCHEDULERS},
    ),
    R.NOT_LOWERED: Example(
        source=(
            "open schedulers ask the lowering last, after the rules that no kernel can break; it refuses what these "
            "overlook."
        ),
        remedy="leave the expressions in separate segments.",
    ),
    R.READ_AGAIN: Example(
        source=(
            "e = ops.exp(tensor(4096, 1024))\n"
            "fd.add_output(ops.div(e, ops.sum(e, dims=[0], keepdim=True)))"
        ),
        remedy="leave the two in separate segments, which move as many bytes.", cut={"schedulers": fl.OPEN_SCHEDULERS},
    ),
    R.MATMUL_INSIDE: Example(
        source=_product("fd.add_output(ops.neg(p))"),
        remedy="set `fuse_matmul=True` to fuse the product with its neighbours; otherwise it runs by itself.",
    ),
    R.EVALUATED_ONLY: Example(
        source="i = tensor(8, 4, dtype=DataType.Int)\nfd.add_output(ops.neg(ops.gather(tensor(8, 16), i, 1)))",
        remedy="leave the op to the array library; `take_along_axis` can be fused where `gather` cannot.",
    ),
    R.NOT_CONNECTED: Example(
        source="fd.add_output(ops.add(tensor(8), 1.0))\nfd.add_output(ops.add(tensor(9), 1.0))",
        remedy="define two fusions, or let both read a common input.",
    ),
    R.SELF_MAPPED: Example(
        source="x = tensor(8, 8)\nfd.add_output(ops.add(x, ops.permute(x, dims=[1, 0])))",
        remedy="pass the transposed tensor as a second input, or cut after the permute.",
    ),
    R.CYCLIC_RESHAPE: Example(
        source=(
            "x = ops.add(tensor(12), 1.0)\ny = ops.neg(ops.reshape(x, new_shape=[3, 4]))\n"
            "fd.add_output(ops.add(x, ops.reshape(y, new_shape=[12])))"
        ),
        remedy="apply the op in the tensor's own shape; a reshape and its inverse only rename axes.",
    ),
    R.CONFLICTING_RESHAPES: Example(
        source=(
            "x = ops.add(tensor(12), 1.0)\nfd.add_output(ops.neg(ops.reshape(x, new_shape=[3, 4])))\n"
            "fd.add_output(ops.neg(ops.reshape(x, new_shape=[4, 3])))"
        ),
        remedy="use one shape for both, or reshape the outputs after the fusion, where views cost nothing.",
    ),
    R.RESIZE_AND_INDEXING: Example(
        source=(
            "rows = ops.slice(tensor(9, dtype=DataType.Int), start_indices=[1], end_indices=[7])\n"
            "fd.add_output(ops.index_select(tensor(8, 16), rows, 0))"
        ),
        remedy="slice or pad before the fusion so that the indexing op reads an input.",
    ),
    R.NO_REDUCTION: Example(source="fd.add_output(ops.neg(tensor(8)))", remedy=OTHER),
    R.HAS_REDUCTION: Example(source=_norm(64, 32), remedy=OTHER),
    R.NO_TENSOR_INPUT: Example(
        source=(
            "ones = ops.full(shape=[8, 4], fill_value=1.0, dtype=DataType.Float)\n"
            "fd.add_output(ops.neg(ops.sum(ones, dims=[1])))"
        ),
        remedy="a reduction of constants is a constant: define it as one.",
    ),
    R.NO_OUTPUT: Example(
        source="the expressions have no result that is read by others or returned.",
        remedy="return the results with `fd.add_output`, or remove the expressions.",
    ),
    R.INDEX_INPUT: Example(
        source="x = ops.add(tensor(8, 16), 1.0)\nfd.add_output(ops.index_select(x, tensor(5, dtype=DataType.Int), 0))",
        remedy=(
            "apply pointwise ops after the lookup, not before it; for take_along_axis, set `memory_promotion=True`."
        ),
    ),
    R.BROADCAST_NOT_UNIQUE: Example(
        source=(
            "bias = ops.add(tensor(1, 16), 1.0)\nfd.add_output(ops.add(tensor(8, 16), bias))\n"
            "fd.add_output(ops.add(tensor(9, 16), bias))"
        ),
        remedy="compute the small tensor once per reader, or accept two kernels: the loops differ in size.",
    ),
    R.OUTPUT_NOT_COVERED: Example(
        source=(
            "factor = tensor(1, 1)\nfd.add_output(ops.mul(tensor(8, 1), factor))\n"
            "fd.add_output(ops.mul(tensor(1, 7), factor))"
        ),
        remedy="put outputs with different axes into separate fusions, or add an output that has all the axes.",
    ),
    R.INPUT_NOT_COVERED: Example(
        source="each axis that a kernel reads is one of its leading output, or one along which elements are looked up.",
        remedy="compute the part that reads the other axes in a separate fusion.",
    ),
    R.AXIS_LOST: Example(
        source=(
            "a, b = tensor(8), tensor(16)\n"
            "for op in (ops.mul, ops.add):\n"
            "    rows = ops.broadcast(a, is_broadcast_dim=[False, True])\n"
            "    fd.add_output(op(rows, ops.broadcast(b, is_broadcast_dim=[True, False])))"
        ),
        remedy="broadcast once, and use the result for both.",
    ),
    R.RESHAPE_MIXES: Example(
        source=(
            "x = ops.reshape(ops.add(tensor(6, 4), 1.0), new_shape=[8, 3])\nfd.add_output(ops.sum(x, dims=[1]))"
        ),
        remedy="reduce before the reshape, or reshape only axes that are either all reduced or all kept.",
    ),
    R.PATTERN_MISMATCH: Example(
        source="x = tensor(8, 16, 4)\nfd.add_output(ops.sum(x, dims=[2]))\nfd.add_output(ops.sum(x, dims=[1, 2]))",
        remedy="reduce the same axes in one fusion; reduce the result of the first reduction further in the next.",
    ),
    R.PERSISTENT_BUFFER: Example(
        source=_norm(64, 32),
        remedy="nothing if a persistent scheduler accepts it; otherwise read its reason: usually a row is too long.",
    ),
    R.NO_PERSISTENT_BUFFER: Example(
        source=(
            "total = ops.sum(tensor(64, 16), dims=[0])\n"
            "fd.add_output(ops.add(ops.broadcast(total, [True, False]), tensor(8, 16)))"
        ),
        remedy="nothing: no buffer persists, so the reduction and the ops after it are two kernels.",
    ),
    R.PARTLY_REDUCED: Example(
        source=(
            "v = tensor(64)\n"
            "total = ops.sum(ops.add(ops.broadcast(v, [False, True]), tensor(64, 16)), dims=[0, 1])\n"
            "fd.add_output(ops.truediv(v, ops.broadcast(total, [True])))"
        ),
        remedy="nothing: the vector is small, and a second kernel reads it again.",
    ),
    R.NOT_VIEWS: Example(source="fd.add_output(ops.neg(tensor(8)))", remedy=OTHER),
    R.VIEWS_OF_INPUTS: Example(source="fd.add_output(ops.permute(tensor(8, 4), dims=[1, 0]))", remedy=TAKEN),
    R.LIBRARY_CALL: Example(source=_product("fd.add_output(p)"), remedy=TAKEN),
    R.EVALUATED_ALONE: Example(
        source="x = tensor(64, 64)\nfd.add_output(ops.add(x, ops.permute(x, dims=[1, 0])))",
        remedy="leave the pointwise scheduler enabled; every expression has to run somewhere.",
        options={"disabled_schedulers": frozenset({"pointwise"})},
    ),
    R.CONCRETE_OUTPUT: Example(source="fd.add_output(ops.neg(tensor(8)))", remedy=OTHER),
    R.REDUCES_ELEMENTS: Example(source="fd.add_output(ops.sum(tensor(8, 16)))", remedy=OTHER),
    R.NOTHING_TO_COMPUTE: Example(source="fd.add_output(ops.neg(tensor()))", remedy=TAKEN),
    R.NO_MATMUL: Example(source="fd.add_output(ops.neg(tensor(8)))", remedy=OTHER),
    R.MATMUL_OFF: Example(
        source=_product("fd.add_output(ops.neg(p))"),
        remedy="set `fuse_matmul=True`, which is nvFuser's `fuse_matmul` option.",
    ),
    R.SEVERAL_MATMULS: Example(
        source=_product(f"fd.add_output(ops.matmul(p, tensor(32, 4, {HALF})))"), options=FUSED,
        remedy="keep one product per fusion; `plan.cut` separates them.",
    ),
    R.OTHER_MATMUL: Example(
        source=(
            "bf16 = DataType.BFloat16\n"
            "x, w = tensor(12, 8, dtype=bf16), tensor(2, 8, 4, dtype=bf16)\n"
            "out = ops.grouped_mm(x, w, tensor(2, dtype=DataType.Int32))\n"
            "fd.add_output(ops.neg(out[0] if isinstance(out, tuple) else out))"
        ),
        remedy="use `matmul` or `linear` if they compute the same product; other products run alone.", options=FUSED,
    ),
    R.MATMUL_VECTOR: Example(
        source=_product("fd.add_output(ops.neg(p))", right="8"), options=FUSED,
        remedy="give the vector a second axis: `broadcast(v, [False, True])`.",
    ),
    R.MATMUL_BATCH: Example(
        source=_product("fd.add_output(ops.neg(p))", right="3, 8, 32"), options=FUSED,
        remedy="give the first operand the batch axes as well: `broadcast(x, [True, False, False])`.",
    ),
    R.MATMUL_ONE_INPUT: Example(
        source="x = tensor(16, 16, dtype=DataType.Half)\nfd.add_output(ops.neg(ops.matmul(x, x)))", options=FUSED,
        remedy="nothing: the library computes such a product.",
    ),
    R.MATMUL_LAYOUT: Example(
        source=_product("fd.add_output(ops.neg(p), stride_order=[0, 1])"), options=FUSED,
        remedy="leave out the stride order of the output.",
    ),
    R.MATMUL_DTYPE: Example(
        source=_product("fd.add_output(ops.neg(p))", dtype="Float"), options=FUSED,
        remedy="multiply half or bfloat16 operands; sums are accumulated in float32 anyway.",
    ),
    R.MATMUL_OLD_DEVICE: Example(
        source=_product("fd.add_output(ops.neg(p))"), options=FUSED, cut={"target": V100},
        remedy="products run in the library on such devices; choose a target that fuses them.",
    ),
    R.MATMUL_PROLOGUE: Example(
        source=(
            f"x = ops.cast(tensor(16, 8), dtype=DataType.Half)\nfd.add_output(ops.matmul(x, tensor(8, 32, {HALF})))"
        ),
        options=FUSED, remedy="compute operands in an earlier fusion; Ampere kernels fuse them, Hopper's do not.",
    ),
    R.MATMUL_EPILOGUE: Example(
        source=_product("fd.add_output(ops.sum(p, dims=[1]))"), options=FUSED,
        remedy="only pointwise ops can be an epilogue; for other ops, cut after the product with `plan.cut`.",
    ),
    R.MATMUL_TOO_LARGE: Example(
        source=_product("fd.add_output(ops.neg(p))", "4, 2147483648", "2147483648, 2"), options=FUSED,
        remedy="split the long axis into several products.",
    ),
    R.MATMUL_FUSED: Example(source=_product("fd.add_output(ops.neg(p))"), options=FUSED, remedy=TAKEN),
    R.BROADCAST_AFTER_REDUCTION: Example(
        source=(
            "total = ops.broadcast(ops.sum(tensor(64, 32), dims=[1]), [False, True])\n"
            "fd.add_output(ops.add(total, tensor(64, 32)))"
        ),
        remedy="nothing within one kernel, unless the reduced tensor itself is used again: then its rows persist.",
    ),
    R.NEW_INPUT_AFTER_REDUCTION: Example(
        source="fd.add_output(ops.add(ops.sum(tensor(8, 16), dims=[1]), tensor(8)))",
        remedy="read the tensor before the reduction if the arithmetic allows it, or accept a second, small kernel.",
    ),
    R.EXPANDED_AFTER_REDUCTION: Example(
        source="fd.add_output(ops.expand(ops.sum(tensor(8, 16), dims=[1], keepdim=True), [8, 5]))",
        options={"disabled_passes": frozenset({"mark_aliases_prepare"})},
        remedy="return the column and expand it after the fusion: an expanded view costs nothing.",
    ),
    R.INDEXED_BEFORE_REDUCTION: Example(
        source=(
            "x = ops.add(tensor(8, 16), 1.0)\n"
            "one = ops.squeeze(ops.take_along_axis(x, tensor(8, 1, dtype=DataType.Int), 1), dims=[1])\n"
            "fd.add_output(ops.neg(ops.sum(one, dims=[0])))"
        ),
        options={"memory_promotion": True},
        remedy="look up the elements in a separate fusion; the tensor that is then reduced is small.",
    ),
    R.NO_RESIZE: Example(source="fd.add_output(ops.neg(tensor(8)))", remedy=OTHER),
    R.RESIZED_BROADCAST: Example(
        source="x = ops.pad(ops.add(tensor(1, 16), 1.0), [0, 0, 0, 3])\nfd.add_output(ops.add(x, tensor(4, 16)))",
        remedy="expand instead of padding an axis of size 1, or pad a tensor that has the axis.",
    ),
    R.RESIZED_WITH_BROADCAST: Example(
        source=(
            "x = ops.add(tensor(16, 8), tensor(1, 8))\n"
            "fd.add_output(ops.neg(ops.slice(x, start_indices=[2, 0], end_indices=[9, 8])))"
        ),
        remedy="slice or pad before the broadcast: add the bias only to the part that is needed.",
    ),
    R.RESIZE_BETWEEN_OUTPUTS: Example(
        source=(
            "x = ops.add(tensor(16), 1.0)\nfd.add_output(x)\n"
            "fd.add_output(ops.neg(ops.slice(x, start_indices=[2], end_indices=[9])))"
        ),
        remedy="return only the whole tensor and slice it outside: a slice is a view.",
    ),
    R.TRANSPOSE_LIKE: Example(
        source=(
            "x = ops.slice(tensor(16, 8), start_indices=[2, 0], end_indices=[9, 8])\n"
            "fd.add_output(ops.add(ops.permute(x, dims=[1, 0]), tensor(8, 7)))"
        ),
        remedy="permute before or after the fusion, or cut between the slice and the permute.",
    ),
    R.ONE_INNERMOST_AXIS: Example(source="fd.add_output(ops.neg(tensor(16, 8)))", remedy=OTHER),
    R.INDEXED_INNERMOST: Example(
        source=(
            "x = ops.take_along_axis(tensor(8, 16), tensor(8, 4, dtype=DataType.Int), 1)\n"
            "fd.add_output(ops.neg(ops.permute(x, dims=[1, 0])))"
        ),
        remedy="index along an outer axis, or permute outside; the pointwise scheduler accepts it with strided writes.",
    ),
    R.TRANSPOSE_SMALL: Example(
        source="fd.add_output(ops.add(ops.permute(tensor(16, 8), dims=[1, 0]), tensor(8, 16)))",
        remedy="nothing: for so few elements the pointwise scheduler is as fast.",
    ),
    R.TRANSPOSE_NARROW: Example(
        source="fd.add_output(ops.add(ops.permute(tensor(16, 1 << 20), dims=[1, 0]), tensor(1 << 20, 16)))",
        remedy="nothing: a pointwise kernel also reads and writes rows this short in whole sectors.",
    ),
    R.TRANSPOSE_SMALL_INNER: Example(
        source="fd.add_output(ops.add(ops.permute(tensor(4096, 8, 8), dims=[0, 2, 1]), tensor(4096, 8, 8)))",
        remedy="nothing: tiles of 32 x 32 would be mostly empty.",
    ),
    R.TRANSPOSE_SMALL_RESHAPED: Example(
        source=(
            "x = ops.add(ops.permute(tensor(16, 512, 64), dims=[2, 1, 0]), tensor(64, 512, 16))\n"
            "fd.add_output(ops.neg(ops.reshape(x, new_shape=[64 * 512, 16])))"
        ),
        remedy="reshape outside the fusion so that small axes can be merged with others into a tile.",
    ),
    R.TRANSPOSE_RESHAPED_BEHIND: Example(
        source=(
            "x = ops.add(tensor(64, 4096), tensor(64, 4096))\n"
            "fd.add_output(ops.neg(ops.permute(ops.reshape(x, new_shape=[64, 64, 64]), dims=[1, 2, 0])))"
        ),
        options={"disabled_passes": frozenset({"mark_aliases_prepare", "allocation_domain"})},
        remedy="reshape the inputs instead, or outside the fusion.",
    ),
    R.TRANSPOSED_IN_TILES: Example(
        source="fd.add_output(ops.add(ops.permute(tensor(512, 512), dims=[1, 0]), tensor(512, 512)))", remedy=TAKEN,
    ),
    R.REDUCTION_IS_INNER: Example(
        source="fd.add_output(ops.add(ops.sum(tensor(8, 16), dims=[1]), ops.neg(tensor(8))))", remedy=OTHER,
    ),
    R.REDUCTION_IS_OUTER: Example(source=_norm(64, 32, op=COLUMNS), remedy=OTHER),
    R.REDUCTIONS_OF_BOTH_KINDS: Example(
        source="x = tensor(8, 16)\nfd.add_output(ops.sum(x, dims=[0]))\nfd.add_output(ops.sum(x, dims=[1]))",
        remedy="a single kernel for both exists only for a row norm with column sums beside it.",
    ),
    R.ONE_KIND_OF_REDUCTION: Example(
        source=(
            "total = ops.sum(tensor(64, 16), dims=[0])\n"
            "fd.add_output(ops.add(ops.broadcast(total, [True, False]), tensor(8, 16)))"
        ),
        remedy=OTHER,
    ),
    R.BROADCAST_ELSEWHERE: Example(
        source=(
            "x = tensor(8, 16)\ntotal = ops.broadcast(ops.sum(x, dims=[1]), is_broadcast_dim=[False, True])\n"
            "fd.add_output(ops.truediv(x, total))\n"
            "other = ops.broadcast(ops.sum(x, dims=[1]), is_broadcast_dim=[False, True])\n"
            "fd.add_output(ops.mul(ops.neg(other), tensor(8, 5)))"
        ),
        remedy="broadcast the reduced value only to the axes that were reduced; do the rest in another fusion.",
    ),
    R.BUFFER_TOO_LARGE: Example(
        source=_norm(512, 65536), cut={"target": "A100"},
        remedy="use shorter rows, a narrower dtype for what persists, or a target with clusters (Hopper or later).",
    ),
    R.NOT_ENOUGH_BLOCKS: Example(
        source=_norm(15, 8192, "fd.add_output(ops.sum(x, dims=[0]))"),
        remedy="use more rows at once; for few long rows two kernels use the device better.",
    ),
    R.BUFFER_FITS: Example(source=_norm(64, 32), remedy=TAKEN),
    R.BUFFER_NEEDS_CLUSTER: Example(source=_norm(512, 65536), remedy=TAKEN),
    R.COLUMNS_TOO_LARGE: Example(
        source=_norm(135169, 4096, op=COLUMNS),
        remedy="use fewer rows, or compute the sums first and apply them in a second pass.",
    ),
    R.COLUMNS_NOT_WELFORD: Example(
        source=_norm(8192, 4096, op=COLUMNS),
        remedy="use `var_mean` for statistics: its partial results can be combined across blocks.",
    ),
    R.COLUMNS_NOT_VECTORIZED: Example(
        source=_statistics(16384, 1026), remedy="make the inner size a multiple of four elements.",
    ),
    R.COLUMNS_TOO_FEW: Example(
        source=_statistics(65536, 28), remedy="use more columns at once, or compute the statistics in a first pass.",
    ),
    R.COLUMNS_NO_GRID: Example(source=_statistics(92929, 64), remedy="use fewer rows at once."),
    R.COLUMNS_UNEVEN: Example(
        source=_statistics(8192, 1004), cut={"target": V100},
        remedy="use a number of columns that is a multiple of those kept at once.",
    ),
    R.NOT_ENOUGH_COLUMNS: Example(
        source=_norm(8192, 31, op=COLUMNS),
        remedy="use more columns at once; for few tall columns two kernels are faster.",
    ),
    R.COLUMNS_FIT: Example(source=_norm(64, 32, op=COLUMNS), remedy=TAKEN),
    R.COLUMNS_ACROSS_BLOCKS: Example(source=_statistics(8192, 512), remedy=TAKEN),
    R.AXES_INTERLEAVED: Example(
        source=(
            "x = tensor(4, 8, 16, 32)\nfd.add_output(ops.truediv(x, ops.sum(x, dims=[1, 3], keepdim=True)))\n"
            "fd.add_output(ops.sum(x, dims=[0, 2]))"
        ),
        remedy="permute the tensor before the fusion so that kept axes come first, and squeeze axes of size 1.",
    ),
    R.NOT_COMPLEMENTARY: Example(
        source=(
            "x = tensor(8, 16, 32)\nfd.add_output(ops.truediv(x, ops.sum(x, dims=[2], keepdim=True)))\n"
            "fd.add_output(ops.sum(x, dims=[0]))"
        ),
        remedy="merge outer axes by a reshape before the fusion so that one reduction keeps what the other reduces.",
    ),
    R.NO_SHARED_INPUT: Example(
        source=(
            "x, y, scale = tensor(64, 32), tensor(64, 32), tensor(1, 32)\n"
            "n = ops.truediv(x, ops.sum(x, dims=[1], keepdim=True))\nfd.add_output(ops.mul(ops.add(n, y), scale))\n"
            "fd.add_output(ops.sum(y, dims=[0]))"
        ),
        remedy="one kernel saves nothing if the two sums read different tensors; keep them separate.",
    ),
    R.SHARED_CONSUMER: Example(
        source=(
            "x = tensor(64, 32)\nn = ops.truediv(x, ops.sum(x, dims=[1], keepdim=True))\n"
            "fd.add_output(ops.add(n, ops.broadcast(ops.sum(x, dims=[0]), [True, False])))"
        ),
        remedy="return the column sums and combine them in a second fusion: they are complete only after all rows.",
    ),
    R.CONNECTED_BESIDES: Example(
        source=(
            "x, scale = tensor(64, 32), tensor(32)\nn = ops.truediv(x, ops.sum(x, dims=[1], keepdim=True))\n"
            "fd.add_output(ops.mul(n, ops.broadcast(scale, [True, False])))\n"
            "fd.add_output(ops.mul(ops.sum(x, dims=[0]), scale))"
        ),
        remedy="apply the shared tensor to the column sums in a second fusion.",
    ),
    R.OUTER_BEFORE_INNER: Example(
        source=(
            "x = tensor(64, 32)\ny = ops.sub(x, ops.sum(x, dims=[0], keepdim=True))\n"
            "fd.add_output(ops.truediv(y, ops.sum(y, dims=[1], keepdim=True)))"
        ),
        remedy="use two kernels: rows can start only after all of them are summed.",
    ),
    R.ROWS_AND_SUMS_TOO_LARGE: Example(
        source=_norm(2048, 65536, "fd.add_output(ops.sum(x, dims=[0]))"),
        remedy="use shorter rows or a narrower dtype; otherwise the column sums run in a separate kernel.",
    ),
    R.ROWS_AND_SUMS_FIT: Example(source=_norm(64, 32, "fd.add_output(ops.sum(x, dims=[0]))"), remedy=TAKEN),
    R.NO_GREEDY_OP: Example(
        source="x = tensor(8, 16)\nfd.add_output(ops.sum(x, dims=[0]))\nfd.add_output(ops.sum(x, dims=[1]))",
        remedy=OTHER,
    ),
    R.GREEDY_FOREIGN_OP: Example(
        source="fd.add_output(ops.sum(ops.cumsum(tensor(4, 64), 1), dims=[0]))",
        remedy="only pointwise ops and pads share a kernel with a sort, scan or scatter; `plan.cut` before other ops.",
    ),
    R.GREEDY_MERGED: Example(
        source="fd.add_output(ops.neg(ops.reshape(ops.cumsum(ops.neg(tensor(4, 64)), 1), [256])))",
        remedy="keep the rows separate, and reshape the result of the fusion.",
    ),
    R.GREEDY_OTHER_AXES: Example(
        source="fd.add_output(ops.cumsum(ops.cumsum(tensor(4, 64), 1), 0))",
        remedy="sort or scan along one axis per fusion.",
    ),
    R.SCATTER_INEXACT: Example(
        source=(
            "i = tensor(2, 8, dtype=DataType.Int)\n"
            "out = ops.scatter(ops.add(tensor(4, 64), 1.0), i, tensor(2, 8), 1)\nfd.add_output(ops.neg(out))"
        ),
        remedy="give index and source the full size on the other axes, or leave the scatter by itself.",
    ),
    R.SCATTER_SHARED: Example(
        source=(
            "x, i = ops.add(tensor(4, 64), 1.0), tensor(4, 8, dtype=DataType.Int)\n"
            "fd.add_output(ops.add(ops.scatter(x, i, tensor(4, 8), 1), x))"
        ),
        remedy="scatter into a copy: an overwritten tensor cannot be read as well.",
    ),
    R.SCATTER_PERMUTED: Example(
        source=(
            "x = fd.define_tensor(shape=[4, 64], contiguity=True, stride_order=[0, 1])\n"
            "out = ops.scatter(x, tensor(4, 8, dtype=DataType.Int), tensor(4, 8), 1)\nfd.add_output(ops.neg(out))"
        ),
        remedy="copy the tensor to row-major order before the fusion.",
    ),
    R.GREEDY_SYMBOLIC: Example(
        source=(
            "x = fd.define_tensor(shape=[4, -1], contiguity=True)\n"
            "fd.add_output(ops.add(ops.cumsum(ops.add(x, 1.0), 1), 1.0))"
        ),
        cut={"inputs": [fl.spec((4, 64))]}, remedy="define the tensor with the size of this axis.",
    ),
    R.GREEDY_LONG_PAD: Example(
        source="fd.add_output(ops.cumsum(ops.pad(tensor(4, 1022), [0, 3]), 1))",
        remedy="pad in another segment: `plan.cut` behind the pad.",
    ),
    R.GREEDY_REGISTERS: Example(
        source="fd.add_output(ops.add(ops.cumsum(ops.add(tensor(4, 45057), 1.0), 1), 1.0))",
        remedy="use shorter rows or a narrower dtype, or leave the scan by itself.",
    ),
    R.GREEDY_SHARED_MEMORY: Example(
        source="fd.add_output(ops.add(ops.argsort(ops.add(tensor(4, 6145), 1.0), 1), 1))",
        remedy="use shorter rows, or keys of one dtype for all sorts.",
    ),
    R.GREEDY_BLOCK: Example(
        source="fd.add_output(ops.add(ops.argsort(ops.add(tensor(4, 64), 1.0), 1), 1))", remedy=TAKEN,
    ),
}


def _across_cut() -> Answer:
    """Return the reason for the first and the last expression around a hint."""
    with FusionBuilder() as fd:
        x = fd.ops.add(tensor(fd, 8), 1.0)
        fd.add_output(fd.ops.exp(fd.ops.segment_set(x)))
    fusion = fd.fusion
    ends = candidate(fusion, [fusion.tensor_exprs[0], fusion.tensor_exprs[-1]])
    refusal = refused_by_hint(ends, SegmenterOptions(segment_set=SegmentSetMeaning.CUT))
    assert refusal is not None
    return refusal


def _no_output() -> Answer:
    """Return the reason for expressions whose results are not used."""
    with FusionBuilder() as fd:
        fd.add_output(fd.ops.neg(tensor(fd, 8)))
    unread = Candidate(fd.fusion, fd.fusion.exprs, fd.fusion.inputs, ())
    others = (SchedulerType.EXPR_EVAL, SchedulerType.NO_OP)
    return SchedulerRegistry(disabled=frozenset(others)).ask(unread)


def _input_not_covered() -> Answer:
    """Return the reason for a reshape of no elements, which a plan has as `full`."""
    with FusionBuilder() as fd:
        fd.add_output(fd.ops.neg(fd.ops.reshape(tensor(fd, 0, 6), [2, 0, 3])))
    others = SchedulerRegistry(disabled=frozenset({SchedulerType.EXPR_EVAL, SchedulerType.NO_OP}))
    return others.ask(candidate(fd.fusion, fd.fusion.exprs))


def _not_lowered() -> Answer:
    """Return the reason of the lowering for a matrix product."""
    with FusionBuilder() as fd:
        fd.add_output(fd.ops.matmul(tensor(fd, 8, 8), tensor(fd, 8, 8)))
    product, kind = candidate(fd.fusion, fd.fusion.exprs), SchedulerType.POINTWISE
    why = OneKernel().refusal(product, kind, DEFAULT)
    assert why is not None
    others = SchedulerRegistry(disabled=frozenset({SchedulerType.EXPR_EVAL})).ask(product).verdicts
    return Answer((*others[:1], refuse(kind, why)))


# Reasons that no plan produces, requested directly.
DIRECT: dict[ReasonCode, Callable[[], Answer]] = {
    R.ACROSS_CUT: _across_cut, R.NO_OUTPUT: _no_output, R.NOT_LOWERED: _not_lowered,
    R.INPUT_NOT_COVERED: _input_not_covered,
}

if __name__ == "__main__":
    sys.stdout.write(page())

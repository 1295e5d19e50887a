"""The table of nvFuser's rules: ``python -m tests.pages.agreement > docs/agreement.md``."""

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from fuser_lab.cost.reasons import ReasonCode
from tests.pages.builders import table
from tests.pages.rules import RULES, Rule
from tests.unit.segmentation.test_known_answers import CASES, holds, segmented

COMMAND = "python -m tests.pages.agreement > docs/agreement.md"
NOT_ASSERTED = "no test; from nvFuser's source"
GATE = "csrc/scheduler/registry.cpp: checkCanSchedule"
REGISTRY = "csrc/scheduler/registry_utils.cpp"
FINDER = "csrc/fusion_segmenter.cpp"
PRESEG = "csrc/preseg_passes"
FACTS = "fuser_lab.schedule.facts.CandidateFacts"
BOTTOM_UP = "fuser_lab.segmentation.bottom_up"
PERSISTENT = "fuser_lab.schedule.persistent"
INNER_OUTER = "fuser_lab.schedule.inner_outer_persistent"
R = ReasonCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A rule that a known answer demonstrates, a reason for a refusal, or both."""

    of: str
    text: str
    nvfuser: str
    ours: str
    case: str = ""
    code: ReasonCode | None = None


KNOWN = (
    Known(
        of="every kernel", nvfuser=GATE, ours=f"{FACTS}.gate",
        text="No matrix product, unless the scheduler is Matmul.",
        case="matmul_sin_cast", code=R.MATMUL_INSIDE,
    ),
    Known(
        of="every kernel", nvfuser=GATE, ours=f"{FACTS}.gate",
        text=(
            "No op that only a library evaluates: attention, embedding, gather with other sizes, and, except for "
            "Greedy, sorts, scans and scatters."
        ),
        code=R.EVALUATED_ONLY,
    ),
    Known(
        of="every kernel", nvfuser=GATE, ours=f"{FACTS}.shape_gate",
        text="All expressions are connected, possibly through shared tensor inputs.",
        case="disconnected_pair", code=R.NOT_CONNECTED,
    ),
    Known(
        of="every kernel", nvfuser=GATE, ours=f"{FACTS}.shape_gate",
        text="No tensor has two axes that map to one loop.",
        code=R.SELF_MAPPED,
    ),
    Known(
        of="every kernel", nvfuser=REGISTRY, ours=f"{FACTS}.shape_gate",
        text="Slices, pads and cats do not share a kernel with indexing.",
        case="slice_and_gather", code=R.RESIZE_AND_INDEXING,
    ),
    Known(
        of="every kernel", nvfuser=REGISTRY, ours="fuser_lab.analysis.coverage.cyclic_reshape",
        text="No reshape leads from an axis back to itself.",
        code=R.CYCLIC_RESHAPE,
    ),
    Known(
        of="every kernel except resize", nvfuser=REGISTRY, ours="fuser_lab.analysis.coverage.conflicting_reshapes",
        text="No two reshapes split or merge one axis differently.",
        case="reshape_conflict_same_source", code=R.CONFLICTING_RESHAPES,
    ),
    Known(
        of="every kernel except resize", nvfuser=REGISTRY, ours=f"{FACTS}.index_input",
        text="Slices, pads and indexing ops read inputs of the segment.",
        case="dynamic_reshape_slice", code=R.INDEX_INPUT,
    ),
    Known(
        of="expr_eval", nvfuser="csrc/scheduler/expr_eval_sched.cpp", ours="fuser_lab.schedule.expr_eval.ExprEval",
        text="A fusion of views is evaluated without a kernel.",
        case="reshape_only", code=R.NOT_VIEWS,
    ),
    Known(
        of="no_op", nvfuser="csrc/scheduler/no_op.cpp", ours="fuser_lab.schedule.no_op.NoOp",
        text="A fusion without elements, or with outputs of single elements and no reduction, needs no kernel.",
        case="zero_dim_add", code=R.CONCRETE_OUTPUT,
    ),
    Known(
        of="matmul", nvfuser="csrc/scheduler/matmul_utils.cpp", ours="fuser_lab.schedule.matmul.Matmul",
        text="Products are fused with their epilogues only if fuse_matmul is enabled.",
        case="matmul_sin_cast_fused", code=R.MATMUL_OFF,
    ),
    Known(
        of="reduction", nvfuser="csrc/scheduler/tools/domain_map.cpp", ours=f"{FACTS}.covered_by_reduction",
        text="Every input has axes that the first reduction reads.",
        code=R.INPUT_NOT_COVERED,
    ),
    Known(
        of="reduction", nvfuser="csrc/scheduler/reduction.cpp", ours="fuser_lab.schedule.reduction.Reduction",
        text="No tensor is needed both before and after a reduction.",
        case="split_reshape_reduce_1_3", code=R.PERSISTENT_BUFFER,
    ),
    Known(
        of="reduction", nvfuser="csrc/scheduler/reduction.cpp", ours=f"{FACTS}.pattern_mismatch",
        text="All reductions reduce the same axes.",
        case="three_sums_mixed_axes", code=R.PATTERN_MISMATCH,
    ),
    Known(
        of="reduction", nvfuser=REGISTRY, ours="fuser_lab.schedule.reduction.Reduction",
        text="No result of a reduction is broadcast again.",
        case="sum_keepdim_add", code=R.BROADCAST_AFTER_REDUCTION,
    ),
    Known(
        of="reduction", nvfuser=REGISTRY, ours="fuser_lab.schedule.reduction.Reduction",
        text="No new tensor is read after an inner reduction.",
        case="back_to_back_inner_sums", code=R.NEW_INPUT_AFTER_REDUCTION,
    ),
    Known(
        of="reductions", nvfuser=REGISTRY, ours=f"{FACTS}.unique_broadcasts",
        text="No broadcast axis meets axes of two different extents.",
        case="multi_concretization_reduce", code=R.BROADCAST_NOT_UNIQUE,
    ),
    Known(
        of="reductions", nvfuser=REGISTRY, ours="fuser_lab.analysis.reductions.mixing_reshape",
        text="No reshape mixes kept and reduced axes.",
        case="split_reshape_reduce_m1_m2_m3", code=R.RESHAPE_MIXES,
    ),
    Known(
        of="resize", nvfuser="csrc/scheduler/resize.cpp", ours="fuser_lab.schedule.resize.Resize",
        text="The scheduler accepts slices, pads and cats, and recomputes each element where it is needed.",
        case="rotate_halves", code=R.NO_RESIZE,
    ),
    Known(
        of="resize", nvfuser="csrc/scheduler/resize.cpp", ours="fuser_lab.schedule.resize.Resize",
        text="No axis is resized from or to a broadcast axis.",
        code=R.RESIZED_BROADCAST,
    ),
    Known(
        of="transpose", nvfuser="csrc/scheduler/transpose.cpp", ours=f"{FACTS}.transposed",
        text="Two groups of inputs and outputs differ in their innermost axis.",
        case="permute_3d_ends", code=R.ONE_INNERMOST_AXIS,
    ),
    Known(
        of="transpose", nvfuser="csrc/scheduler/transpose.cpp", ours="fuser_lab.schedule.transpose.Transpose",
        text="Tiles of 32 x 32 fill all multiprocessors once.",
        code=R.TRANSPOSE_SMALL,
    ),
    Known(
        of="transpose", nvfuser="csrc/scheduler/transpose.cpp", ours="fuser_lab.schedule.transpose.Transpose",
        text="The transposed axes and those between them have at least the elements of a tile.",
        code=R.TRANSPOSE_SMALL_INNER,
    ),
    Known(
        of="transpose", nvfuser="csrc/scheduler/transpose.cpp", ours="fuser_lab.schedule.transpose.Transpose",
        text="Short sides are not merged with others across a reshape.",
        case="small_transpose_after_merge", code=R.TRANSPOSE_SMALL_RESHAPED,
    ),
    Known(
        of="transpose", nvfuser="csrc/scheduler/transpose.cpp", ours=f"{FACTS}.indexed_innermost",
        text="No indexing op reads along the innermost axis.",
        code=R.INDEXED_INNERMOST,
    ),
    Known(
        of="pointwise", nvfuser="csrc/scheduler/tools/domain_map.cpp", ours=f"{FACTS}.reference",
        text="One output has the axes of all inputs and outputs.",
        case="factory_blocks_reference", code=R.OUTPUT_NOT_COVERED,
    ),
    Known(
        of="pointwise", nvfuser="csrc/scheduler/pointwise.cpp", ours="fuser_lab.schedule.pointwise.PointWise",
        text="The segment contains no reduction.",
        code=R.HAS_REDUCTION,
    ),
    Known(
        of="persistent", nvfuser="csrc/scheduler/normalization_utils.cpp", ours=f"{PERSISTENT}.needs_buffer",
        text="Some tensor is needed both before and after a reduction.",
        case="welford_var_and_sum", code=R.NO_PERSISTENT_BUFFER,
    ),
    Known(
        of="persistent", nvfuser=REGISTRY, ours=f"{PERSISTENT}.broadcast_elsewhere",
        text="A result is broadcast only to the reduced axes.",
        case="norm_with_new_input_first", code=R.BROADCAST_ELSEWHERE,
    ),
    Known(
        of="all persistent", nvfuser="csrc/scheduler/utils.cpp: getScopePersistenceFactors, persistentBufferSizeBit",
        ours="fuser_lab.analysis.buffer_sizes.buffer_sizes",
        text=(
            "Buffers are alive from where they are computed to where they meet the reduction's result, whatever stands "
            "between; the Float of a computed Half counts as Half."
        ),
        code=R.BUFFER_TOO_LARGE,
    ),
    Known(
        of="all persistent", nvfuser="csrc/scheduler/normalization_utils.cpp: isProjectBufferToInputs (853-928)",
        ours="fuser_lab.schedule.persistent.is_projected",
        text=(
            "Buffers are computed again from inputs that are smaller, unless there is a reshape; random numbers only "
            "if the buffers do not fit."
        ),
        code=R.BUFFER_FITS,
    ),
    Known(
        of="inner_persistent", nvfuser="csrc/scheduler/normalization_inner.cpp: canScheduleRunTime (92-160)",
        ours="fuser_lab.schedule.inner_persistent.InnerPersistent",
        text=(
            "The persistent rows fit into registers, or into clusters of blocks; before compute capability 9.0, into "
            "shared memory, rounded up to whole rounds of a block (only registers counted here)."
        ),
        case="norm_too_big_3d", code=R.BUFFER_TOO_LARGE,
    ),
    Known(
        of="inner_persistent", nvfuser="csrc/scheduler/normalization_inner.cpp",
        ours="fuser_lab.schedule.inner_persistent.InnerPersistent",
        text="There are enough long rows to fill the GPU.",
        code=R.NOT_ENOUGH_BLOCKS,
    ),
    Known(
        of="outer_persistent", nvfuser="csrc/scheduler/normalization_outer.cpp",
        ours="fuser_lab.schedule.outer_persistent.OuterPersistent",
        text="The persistent columns fit into the registers of all multiprocessors.",
        case="combine_vertical", code=R.COLUMNS_TOO_LARGE,
    ),
    Known(
        of="outer_persistent", nvfuser="csrc/scheduler/normalization_outer.cpp",
        ours="fuser_lab.schedule.outer_persistent.OuterPersistent",
        text="Only Welford statistics persist across blocks, with wide accesses.",
        code=R.COLUMNS_NOT_WELFORD,
    ),
    Known(
        of="outer_persistent", nvfuser="csrc/scheduler/normalization_outer.cpp: canScheduleRunTime (591-655)",
        ours="fuser_lab.schedule.outer_persistent.OuterPersistent",
        text="Tall columns keep enough multiprocessors busy.",
        code=R.NOT_ENOUGH_COLUMNS,
    ),
    Known(
        of="outer_persistent", nvfuser="csrc/scheduler/normalization_outer.cpp: canScheduleRunTime (640-655)",
        ours="fuser_lab.schedule.outer_persistent.OuterPersistent",
        text="Before compute capability 8.0, blocks that keep columns together divide them evenly.",
        code=R.COLUMNS_UNEVEN,
    ),
    Known(
        of="inner_outer_persistent", nvfuser="csrc/scheduler/normalization_inner_outer.cpp",
        ours=f"{INNER_OUTER}.InnerOuterPersistent",
        text="Inner and outer reductions reduce complementary axes.",
        case="inner_outer_match", code=R.NOT_COMPLEMENTARY,
    ),
    Known(
        of="inner_outer_persistent", nvfuser="csrc/scheduler/normalization_inner_outer.cpp",
        ours=f"{INNER_OUTER}.InnerOuterPersistent",
        text="Inner and outer reductions share an input.",
        code=R.NO_SHARED_INPUT,
    ),
    Known(
        of="inner_outer_persistent",
        nvfuser="csrc/scheduler/normalization_inner_outer_utils.cpp: getPersistentBufferStorageParams",
        ours=f"{INNER_OUTER}.InnerOuterPersistent",
        text=(
            "Column sums fit into registers, and each row that is kept, whole, into shared memory or beside them; what "
            "is broadcast to all rows moves to registers last (bytes of rows were divided between both here)."
        ),
        case="rms_norm_backward", code=R.ROWS_AND_SUMS_TOO_LARGE,
    ),
    Known(
        of="greedy", nvfuser="csrc/scheduler/greedy.cpp", ours="fuser_lab.schedule.greedy.Greedy",
        text="The segment has a sort, scan, top-k or scatter, and only certain ops around it.",
        case="topk_with_adds", code=R.GREEDY_FOREIGN_OP,
    ),
    Known(
        of="greedy", nvfuser="csrc/scheduler/greedy.cpp", ours="fuser_lab.schedule.greedy.Greedy",
        text="All such ops distribute the same axes over blocks.",
        code=R.GREEDY_OTHER_AXES,
    ),
    Known(
        of="greedy", nvfuser="csrc/scheduler/greedy.cpp", ours="fuser_lab.schedule.greedy.Greedy",
        text="A scatter has exact sizes and is the only reader of the tensor it overwrites.",
        code=R.SCATTER_SHARED,
    ),
    Known(
        of="greedy", nvfuser="csrc/scheduler/greedy.cpp: CompileTimeChecker::handle (362-386, 493-499)",
        ours="fuser_lab.schedule.greedy.Greedy",
        text="The axis of a sort or scan has a constant size, or is mapped to one that has.",
        code=R.GREEDY_SYMBOLIC,
    ),
    Known(
        of="greedy", nvfuser="csrc/scheduler/greedy.cpp: RunTimeChecker::checkDomainConstraints (718-779)",
        ours="fuser_lab.schedule.greedy.Greedy",
        text="The elements of a row fit into the registers of 1,024 threads: 45,056 of a scan of Float.",
        code=R.GREEDY_REGISTERS,
    ),
    Known(
        of="greedy", nvfuser="csrc/scheduler/greedy.cpp: RunTimeChecker::checkDomainConstraints (744-755)",
        ours="fuser_lab.schedule.greedy.Greedy",
        text="The padded axes have at most 1,024 elements, one per thread.", code=R.GREEDY_LONG_PAD,
    ),
    Known(
        of="greedy",
        nvfuser=(
            "csrc/scheduler/greedy.cpp: RunTimeChecker::checkSharedMemoryBufferUsage (781-805), "
            "csrc/scheduler/tools/cub_utils.cpp"
        ),
        ours="fuser_lab.schedule.radix_sort.sort_bytes",
        text="The storage of all instances of sorts together fits into 48 KiB.", code=R.GREEDY_SHARED_MEMORY,
    ),
    Known(
        of="segmenter", nvfuser=FINDER, ours="fuser_lab.segmentation.hints.refused_by_hint",
        text="A segment_set is a hint: its result is not used in its own segment.",
        case="segment_set_chain", code=R.SEGMENT_SET_INSIDE,
    ),
    Known(
        of="segmenter", nvfuser=FINDER, ours="fuser_lab.segmentation.hints.refused_by_hint",
        text="Several hints may share a segment.",
        case="two_hints_one_segment",
    ),
    Known(
        of="segmenter", nvfuser=FINDER, ours="fuser_lab.segmentation.privatization.replicas_of",
        text="Widening casts and squeezes are replicated for each reader.",
        case="privatize_upcast_and_squeeze",
    ),
    Known(
        of="segmenter", nvfuser=FINDER, ours="fuser_lab.segmentation.privatization.repeated",
        text="Replicas in the same segment are merged again.",
        case="revert_privatized_upcast_and_squeeze",
    ),
    Known(
        of="segmenter", nvfuser=FINDER, ours="fuser_lab.segmentation.forwarding.forwarded_chains",
        text="Unary ops after an input are forwarded up to the first other op.",
        case="forward_until_binary",
    ),
    Known(
        of="segmenter", nvfuser=FINDER, ours="fuser_lab.segmentation.forwarding.forwarded_chains",
        text="Nothing is forwarded into a hint.",
        case="forwarded_into_hint",
    ),
    Known(
        of="segmenter", nvfuser=FINDER, ours="fuser_lab.segmentation.forwarding.forwarded_chains",
        text="A full is forwarded like an input.",
        case="forward_full",
    ),
    Known(
        of="segmenter", nvfuser=FINDER, ours=f"{BOTTOM_UP}.bottom_up",
        text="A cat and its pads are tried together first.",
        case="rotate_halves_residual",
    ),
    Known(
        of="segmenter", nvfuser=FINDER, ours=f"{BOTTOM_UP}.bottom_up",
        text="Consecutive reductions with one signature are combined.",
        case="combine_vertical",
    ),
    Known(
        of="segmenter", nvfuser=FINDER, ours=f"{BOTTOM_UP}.bottom_up",
        text="Parallel reductions with one signature are combined.",
        case="combine_horizontal",
    ),
    Known(
        of="segmenter", nvfuser=FINDER, ours=f"{BOTTOM_UP}.bottom_up",
        text="Neighbours on adjacent levels are merged in rounds.",
        case="reduce_then_softmax",
    ),
    Known(
        of="segmenter", nvfuser=FINDER, ours=f"{BOTTOM_UP}.bottom_up",
        text="The remaining groups are merged if no other path connects them.",
        case="reduction_chain_and_late_join", code=R.CYCLE,
    ),
    Known(
        of="segmenter", nvfuser=FINDER, ours="fuser_lab.definition.binding.bind",
        text="Extents cross segments; in fuser_lab all sizes are known before segmentation.",
        case="reshape_cross_segment_extent",
    ),
    Known(
        of="segmenter", nvfuser=FINDER, ours="fuser_lab.segmentation.welford.rewrite_answer",
        text="A Welford is rewritten as two sums if its rows persist.",
        case="welford_twice",
    ),
    Known(
        of="presegmentation", nvfuser=PRESEG, ours="fuser_lab.passes.translate_matmul.TranslateNoReductionMatmul",
        text="A matrix product over one element becomes a multiplication.",
        case="matmul_k1",
    ),
    Known(
        of="presegmentation", nvfuser=PRESEG, ours="fuser_lab.passes.translate_repeat.TranslateRepeat",
        text="A cat of a tensor with itself becomes an expand.",
        case="repeat_two_axes",
    ),
    Known(
        of="presegmentation", nvfuser=PRESEG, ours="fuser_lab.passes.segment_inplace_update.SegmentInplaceUpdate",
        text="An in-place update beside a broadcast is a separate segment.",
        case="inplace_across_segments",
    ),
    Known(
        of="presegmentation", nvfuser=PRESEG, ours="fuser_lab.passes.mark_aliases.MarkAliases",
        text="Views at the end of a fusion are split off.",
        case="bookend_output_side",
    ),
    Known(
        of="presegmentation", nvfuser=PRESEG, ours="fuser_lab.passes.mark_aliases.MarkAliases",
        text="Views of inputs that also feed arithmetic are split off.",
        case="bookend_input_side",
    ),
    Known(
        of="presegmentation", nvfuser=PRESEG, ours="fuser_lab.passes.mark_aliases.MarkAliases",
        text="A view that feeds arithmetic stays.",
        case="reshape_between_computes",
    ),
    Known(
        of="presegmentation", nvfuser=PRESEG, ours="fuser_lab.passes.allocation_domain.AllocationDomain",
        text="Outputs have the layout of the input with the most axes.",
        case="permute_and_add_strided",
    ),
)

BY_ID = {case["id"]: case for case in CASES}


def resolved(name: str) -> object:
    """Return the object of a dotted name: a module or a member of one.

    Raises
    ------
    ImportError, AttributeError
        If the name does not exist.
    """
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[end:]:
            found = getattr(found, attribute)
        return found
    msg = f"{name} is not importable."
    raise ImportError(msg)


def asserted_by(case: str) -> str:
    """Return the test of nvFuser that asserts a known answer, or a note that none does."""
    known = BY_ID.get(case)
    if known is None or known["segments_status"] != "asserted":
        return NOT_ASSERTED
    source: str = known["source"]
    return source.removeprefix("tests/cpp/").replace(":", ": ", 1).partition(" (")[0]


def shown_by(rule: Known) -> str:
    """Return where a rule can be seen."""
    places = []
    if rule.case:
        places.append(f"[`{rule.case}`](known_answers.md)")
    if rule.code is not None:
        places.append(f"[`{rule.code.value}`](reasons.md#{rule.code.value})")
    return ", ".join(places)


def rows() -> Iterator[str]:
    """Yield a line of the table for each rule, and each definition that demonstrates one."""
    for known in KNOWN:
        cells = known.of, known.text, known.nvfuser, f"`{known.ours}`", shown_by(known), asserted_by(known.case)
        yield f"| {' | '.join(cells)} |"
    for number, rule in enumerate(RULES, 1):
        asserted = rule.asserted or NOT_ASSERTED
        cells = rule.of, rule.text, rule.nvfuser, f"`{rule.ours}`", f"[example {number}](#example-{number})", asserted
        yield f"| {' | '.join(cells)} |"


def example(number: int, rule: Rule) -> Iterator[str]:
    """Yield the definitions that demonstrate a rule."""
    yield f"### Example {number}"
    yield ""
    yield rule.text
    for name, given in rule.options.items():
        listed = ", ".join(f"`{item}`" for item in given)
        yield f"With `{name}`: {listed}."
    yield ""
    for source, schedulers in rule.shows.items():
        yield f"{schedulers}:"
        yield ""
        yield "```python"
        yield source.strip()
        yield "```"
        yield ""


def compared() -> tuple[int, int]:
    """Return the number of compared segmentations that nvFuser's tests assert, and the number that agree."""
    asserted = [case for case in CASES if case["segments_status"] == "asserted"]
    return len(asserted), sum(holds(case, segmented(case)) for case in asserted)


def page() -> str:
    """Return the page."""
    count, good = compared()
    tested = sum(bool(rule.asserted) for rule in RULES) + sum(asserted_by(k.case) != NOT_ASSERTED for k in KNOWN)
    lines = [
        f"<!-- Made by `{COMMAND}`; a test fails when it is stale. -->",
        "",
        "# Agreement with nvFuser",
        "",
        f"Of {count} segmentations that nvFuser's own tests assert, {good} agree, in the number of segments and, where",
        f"it is asserted, in the schedulers. The table lists {len(KNOWN) + len(RULES)} rules of nvFuser's schedulers,",
        "segmenter and presegmentation passes, with the code that implements each rule and an example of it; nvFuser's",
        f"tests assert {tested} of them. A rule is shown by a [known answer](known_answers.md), by the example of a",
        "[reason](reasons.md) or by the definitions below, which tests segment and, if they are small, compute.",
        "[The design](design.md#deliberate-differences-from-nvfuser) lists the intended differences from nvFuser.",
        "",
        "| applies to | rule | nvFuser | fuser_lab | shown by | asserted by |",
        "|---|---|---|---|---|---|",
        *rows(),
        "",
        "## What op builders return",
        "",
        "A definition keeps the calls as they were written. When sizes are known, a call that does less than its name",
        "says becomes what nvFuser's builder returns. Each call below reads `x`, the result of an op; the second",
        "column says what is special about the call or the tensor. The last one is what the fusion has, with the",
        "reason if this differs.",
        "",
        *table(),
        "",
        "## Definitions",
        "",
        "`tensor(8, 16)` is a contiguous float32 input of that shape, `ops` is `fd.ops`, and the target is an H200.",
        "Each definition follows the schedulers of its segments.",
        "",
    ]
    for number, rule in enumerate(RULES, 1):
        lines += example(number, rule)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page())

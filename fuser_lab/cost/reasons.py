"""Every reason a scheduler or the segmenter gives, with its sentence, in one place."""

import enum


class ReasonCode(enum.Enum):
    """Closed list of reasons."""

    SEGMENT_SET_INSIDE = "segment_set_inside"
    ACROSS_CUT = "across_cut"
    CYCLE = "cycle"
    NOT_IMPLEMENTED = "not_implemented"
    DISABLED = "disabled"

    # The common gate
    MATMUL_INSIDE = "matmul_inside"
    EVALUATED_ONLY = "evaluated_only"
    NOT_CONNECTED = "not_connected"
    SELF_MAPPED = "self_mapped"
    CYCLIC_RESHAPE = "cyclic_reshape"
    CONFLICTING_RESHAPES = "conflicting_reshapes"
    RESIZE_AND_INDEXING = "resize_and_indexing"

    # Shared by several schedulers
    NO_REDUCTION = "no_reduction"
    HAS_REDUCTION = "has_reduction"
    NO_TENSOR_INPUT = "no_tensor_input"
    NO_OUTPUT = "no_output"
    INDEX_INPUT = "index_input"
    BROADCAST_NOT_UNIQUE = "broadcast_not_unique"
    OUTPUT_NOT_COVERED = "output_not_covered"
    INPUT_NOT_COVERED = "input_not_covered"
    RESHAPE_MIXES = "reshape_mixes"
    PATTERN_MISMATCH = "pattern_mismatch"
    PERSISTENT_BUFFER = "persistent_buffer"
    NO_PERSISTENT_BUFFER = "no_persistent_buffer"

    # Evaluation by the array library
    NOT_VIEWS = "not_views"
    VIEWS_OF_INPUTS = "views_of_inputs"
    LIBRARY_CALL = "library_call"
    EVALUATED_ALONE = "evaluated_alone"

    # No-op
    CONCRETE_OUTPUT = "concrete_output"
    REDUCES_ELEMENTS = "reduces_elements"
    NOTHING_TO_COMPUTE = "nothing_to_compute"

    # Matmul
    NO_MATMUL = "no_matmul"
    MATMUL_OFF = "matmul_off"

    # Reduction
    BROADCAST_AFTER_REDUCTION = "broadcast_after_reduction"
    NEW_INPUT_AFTER_REDUCTION = "new_input_after_reduction"
    EXPANDED_AFTER_REDUCTION = "expanded_after_reduction"
    INDEXED_BEFORE_REDUCTION = "indexed_before_reduction"

    # Resize
    NO_RESIZE = "no_resize"
    RESIZED_BROADCAST = "resized_broadcast"
    RESIZE_BETWEEN_OUTPUTS = "resize_between_outputs"
    TRANSPOSE_LIKE = "transpose_like"

    # Transpose
    ONE_INNERMOST_AXIS = "one_innermost_axis"
    INDEXED_INNERMOST = "indexed_innermost"

    # Persistent
    REDUCTION_IS_INNER = "reduction_is_inner"
    REDUCTION_IS_OUTER = "reduction_is_outer"
    REDUCTIONS_OF_BOTH_KINDS = "reductions_of_both_kinds"
    ONE_KIND_OF_REDUCTION = "one_kind_of_reduction"
    BROADCAST_ELSEWHERE = "broadcast_elsewhere"
    BUFFER_TOO_LARGE = "buffer_too_large"
    NOT_ENOUGH_BLOCKS = "not_enough_blocks"
    BUFFER_FITS = "buffer_fits"
    BUFFER_NEEDS_CLUSTER = "buffer_needs_cluster"

    # Greedy
    NO_GREEDY_OP = "no_greedy_op"


# What says only that a scheduler is for another kind of fusion; where others have more to say, these are left out.
OTHER_KIND = frozenset(
    {
        *(ReasonCode.NOT_VIEWS, ReasonCode.CONCRETE_OUTPUT, ReasonCode.REDUCES_ELEMENTS, ReasonCode.NO_MATMUL),
        *(ReasonCode.NO_REDUCTION, ReasonCode.HAS_REDUCTION, ReasonCode.NO_RESIZE, ReasonCode.ONE_INNERMOST_AXIS),
        *(ReasonCode.REDUCTION_IS_INNER, ReasonCode.REDUCTION_IS_OUTER, ReasonCode.ONE_KIND_OF_REDUCTION),
        *(ReasonCode.NO_PERSISTENT_BUFFER, ReasonCode.NO_GREEDY_OP, ReasonCode.NOT_IMPLEMENTED, ReasonCode.DISABLED),
    },
)

TEXTS: dict[ReasonCode, str] = {
    ReasonCode.ACROSS_CUT: "{before} comes before the cut at {tensor} and {after} after it",
    ReasonCode.CYCLE: "one kernel for both would close a cycle through {through}",
    ReasonCode.SEGMENT_SET_INSIDE: "{tensor} is made by segment_set and used inside the candidate",
    ReasonCode.NOT_IMPLEMENTED: "this scheduler is not implemented here yet",
    ReasonCode.DISABLED: "this scheduler is switched off",
    ReasonCode.MATMUL_INSIDE: "{tensor} is made by {op}, which only the matmul scheduler may fuse",
    ReasonCode.EVALUATED_ONLY: "{tensor} is made by {op}, which no kernel holds: it is evaluated alone",
    ReasonCode.NOT_CONNECTED: (
        "the expressions fall into {parts} groups that share no tensor: {first} has no path to {second}"
    ),
    ReasonCode.SELF_MAPPED: "axes {a} and {b} of {tensor} would have to be one loop, as in x + x.T",
    ReasonCode.CYCLIC_RESHAPE: "the reshape {tensor} leads from an axis back to itself, so no loops fit all tensors",
    ReasonCode.CONFLICTING_RESHAPES: "the reshapes {first} and {second} take one axis apart in different ways",
    ReasonCode.RESIZE_AND_INDEXING: (
        "{resize} = {resize_op} is a resize and {indexed} = {indexed_op} reads at positions that are data: "
        "no kernel holds both"
    ),
    ReasonCode.NO_REDUCTION: "nothing is reduced",
    ReasonCode.HAS_REDUCTION: "{tensor} is a reduction ({op})",
    ReasonCode.NO_TENSOR_INPUT: "no tensor is read",
    ReasonCode.NO_OUTPUT: "no tensor leaves the candidate",
    ReasonCode.INDEX_INPUT: (
        "{tensor} = {op}({operand}) needs its operand in memory, but {operand} is computed inside the candidate"
    ),
    ReasonCode.BROADCAST_NOT_UNIQUE: (
        "broadcast axis {axis} of {tensor} meets two different axes, of size {first} in {a} and of size {second} in {b}"
    ),
    ReasonCode.OUTPUT_NOT_COVERED: (
        "axis {axis} of output {tensor} (size {extent}) is no axis of {reference}, whose loops outputs have to follow"
    ),
    ReasonCode.INPUT_NOT_COVERED: (
        "axis {axis} of input {tensor} (size {extent}) is no axis of {reference}, whose loops reads have to follow"
    ),
    ReasonCode.RESHAPE_MIXES: "the reshape {tensor} mixes axes that {reduction} keeps with axes that it reduces",
    ReasonCode.PATTERN_MISMATCH: (
        "{first} reduces {first_numel} elements for each of {first_rows} results and {second} reduces {second_numel} "
        "for each of {second_rows}: not the same axes"
    ),
    ReasonCode.PERSISTENT_BUFFER: (
        "{tensor} is needed before the reduction {reduction} and again after it, by {user}, so it would have to be kept"
    ),
    ReasonCode.NO_PERSISTENT_BUFFER: (
        "no tensor is needed both before and after the reduction {tensor}, so nothing has to be kept"
    ),
    ReasonCode.NOT_VIEWS: (
        "{tensor} is made by {op}, which computes or moves elements; only views of inputs need no kernel"
    ),
    ReasonCode.VIEWS_OF_INPUTS: "all outputs are views of inputs: no kernel is needed",
    ReasonCode.LIBRARY_CALL: "{tensor} = {op} stands alone: the array library computes it",
    ReasonCode.EVALUATED_ALONE: "no kernel takes {tensor} = {op}, so the array library evaluates it alone",
    ReasonCode.CONCRETE_OUTPUT: "output {tensor} has {elements} elements to compute",
    ReasonCode.REDUCES_ELEMENTS: "{tensor} reduces {elements} elements",
    ReasonCode.NOTHING_TO_COMPUTE: "no output has more than one element to compute",
    ReasonCode.NO_MATMUL: "there is no matrix product",
    ReasonCode.MATMUL_OFF: "matmul fusion is off by default",
    ReasonCode.BROADCAST_AFTER_REDUCTION: (
        "{tensor} broadcasts a result of the reduction, and {user} widens it to {extent} elements again"
    ),
    ReasonCode.NEW_INPUT_AFTER_REDUCTION: (
        "{user} comes after the inner reduction {reduction} and reads {tensor}, which the reduction does not read"
    ),
    ReasonCode.EXPANDED_AFTER_REDUCTION: (
        "output {tensor} repeats a result of the reduction along axis {axis} ({extent} times), which no loop runs over"
    ),
    ReasonCode.INDEXED_BEFORE_REDUCTION: (
        "{tensor} = {op} leaves one element of axis {axis} before the reduction {reduction}, so that the loops of the "
        "reduction miss that axis of {operand}"
    ),
    ReasonCode.NO_RESIZE: "there is no slice, pad or cat",
    ReasonCode.RESIZED_BROADCAST: (
        "{tensor} resizes an axis from size {before} to {after}, one of which is a broadcast axis"
    ),
    ReasonCode.RESIZE_BETWEEN_OUTPUTS: (
        "outputs {tensor} and {reference} differ by a slice, pad or cat: no loop fits both"
    ),
    ReasonCode.TRANSPOSE_LIKE: "{first} and {second} have different innermost axes: this is a transpose",
    ReasonCode.ONE_INNERMOST_AXIS: "the inputs and outputs that have all axes share their innermost one",
    ReasonCode.INDEXED_INNERMOST: (
        "{tensor} = {op} reads at positions that are data along axis {axis} of {operand}, its innermost: no tile of it "
        "can be transposed"
    ),
    ReasonCode.REDUCTION_IS_INNER: "{tensor} reduces the innermost axis",
    ReasonCode.REDUCTION_IS_OUTER: "{tensor} keeps the innermost axis",
    ReasonCode.REDUCTIONS_OF_BOTH_KINDS: "{inner} reduces the innermost axis and {outer} keeps it",
    ReasonCode.ONE_KIND_OF_REDUCTION: "both inner and outer reductions are needed, and there are only {kind} ones",
    ReasonCode.BROADCAST_ELSEWHERE: (
        "{tensor} broadcasts a result of the reduction to {extent} elements of an axis that was not reduced, in {user}"
    ),
    ReasonCode.BUFFER_TOO_LARGE: (
        "{bytes} bytes of each row have to be kept ({tensors}); at most {limit} fit "
        "({sm} in the registers of one SM, times a cluster of {cluster})"
    ),
    ReasonCode.NOT_ENOUGH_BLOCKS: (
        "{tensor} reduces {numel} elements for each of only {rows} rows; fewer than {needed} rows leave most SMs idle"
    ),
    ReasonCode.BUFFER_FITS: "{bytes} bytes of each row are kept in registers ({tensors}), of at most {limit}",
    ReasonCode.BUFFER_NEEDS_CLUSTER: (
        "{bytes} bytes of each row are kept ({tensors}), more than the {limit} of one SM: a cluster of {cluster} blocks"
    ),
    ReasonCode.NO_GREEDY_OP: "nothing is sorted, scanned or scattered",
}

# Reasons that hold for every larger set of expressions too: axes that are one stay one, a reduction stays inside.
MONOTONE: frozenset[ReasonCode] = frozenset(
    {
        ReasonCode.SELF_MAPPED,
        ReasonCode.MATMUL_INSIDE,
        ReasonCode.EVALUATED_ONLY,
        ReasonCode.HAS_REDUCTION,
        ReasonCode.CONFLICTING_RESHAPES,
        ReasonCode.CYCLIC_RESHAPE,
        ReasonCode.RESIZE_AND_INDEXING,
    },
)

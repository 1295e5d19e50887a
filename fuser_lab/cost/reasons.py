"""Every reason a scheduler or the segmenter gives, with its sentence, in one place."""

import enum


class ReasonCode(enum.Enum):
    """Closed list of reasons."""

    SEGMENT_SET_INSIDE = "segment_set_inside"
    ACROSS_CUT = "across_cut"
    CYCLE = "cycle"
    DISABLED = "disabled"
    OWN_RULE = "own_rule"

    # Open schedulers
    BEYOND = "beyond"
    NOT_LOWERED = "not_lowered"
    READ_AGAIN = "read_again"

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
    AXIS_LOST = "axis_lost"
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
    SEVERAL_MATMULS = "several_matmuls"
    OTHER_MATMUL = "other_matmul"
    MATMUL_VECTOR = "matmul_vector"
    MATMUL_BATCH = "matmul_batch"
    MATMUL_ONE_INPUT = "matmul_one_input"
    MATMUL_LAYOUT = "matmul_layout"
    MATMUL_DTYPE = "matmul_dtype"
    MATMUL_OLD_DEVICE = "matmul_old_device"
    MATMUL_PROLOGUE = "matmul_prologue"
    MATMUL_EPILOGUE = "matmul_epilogue"
    MATMUL_TOO_LARGE = "matmul_too_large"
    MATMUL_FUSED = "matmul_fused"

    # Reduction
    BROADCAST_AFTER_REDUCTION = "broadcast_after_reduction"
    NEW_INPUT_AFTER_REDUCTION = "new_input_after_reduction"
    EXPANDED_AFTER_REDUCTION = "expanded_after_reduction"
    INDEXED_BEFORE_REDUCTION = "indexed_before_reduction"

    # Resize
    NO_RESIZE = "no_resize"
    RESIZED_BROADCAST = "resized_broadcast"
    RESIZED_WITH_BROADCAST = "resized_with_broadcast"
    RESIZE_BETWEEN_OUTPUTS = "resize_between_outputs"
    TRANSPOSE_LIKE = "transpose_like"

    # Transpose
    ONE_INNERMOST_AXIS = "one_innermost_axis"
    INDEXED_INNERMOST = "indexed_innermost"
    TRANSPOSE_SMALL = "transpose_small"
    TRANSPOSE_NARROW = "transpose_narrow"
    TRANSPOSE_SMALL_INNER = "transpose_small_inner"
    TRANSPOSE_SMALL_RESHAPED = "transpose_small_reshaped"
    TRANSPOSE_RESHAPED_BEHIND = "transpose_reshaped_behind"
    TRANSPOSED_IN_TILES = "transposed_in_tiles"

    # Persistent
    REDUCTION_IS_INNER = "reduction_is_inner"
    REDUCTION_IS_OUTER = "reduction_is_outer"
    REDUCTIONS_OF_BOTH_KINDS = "reductions_of_both_kinds"
    ONE_KIND_OF_REDUCTION = "one_kind_of_reduction"
    PARTLY_REDUCED = "partly_reduced"
    BROADCAST_ELSEWHERE = "broadcast_elsewhere"
    BUFFER_TOO_LARGE = "buffer_too_large"
    NOT_ENOUGH_BLOCKS = "not_enough_blocks"
    BUFFER_FITS = "buffer_fits"
    BUFFER_NEEDS_CLUSTER = "buffer_needs_cluster"

    # Persistent along columns
    COLUMNS_TOO_LARGE = "columns_too_large"
    COLUMNS_NOT_WELFORD = "columns_not_welford"
    COLUMNS_NOT_VECTORIZED = "columns_not_vectorized"
    COLUMNS_TOO_FEW = "columns_too_few"
    COLUMNS_NO_GRID = "columns_no_grid"
    COLUMNS_UNEVEN = "columns_uneven"
    NOT_ENOUGH_COLUMNS = "not_enough_columns"
    COLUMNS_FIT = "columns_fit"
    COLUMNS_ACROSS_BLOCKS = "columns_across_blocks"

    # Persistent along rows, with sums along columns
    AXES_INTERLEAVED = "axes_interleaved"
    NOT_COMPLEMENTARY = "not_complementary"
    NO_SHARED_INPUT = "no_shared_input"
    SHARED_CONSUMER = "shared_consumer"
    CONNECTED_BESIDES = "connected_besides"
    OUTER_BEFORE_INNER = "outer_before_inner"
    ROWS_AND_SUMS_TOO_LARGE = "rows_and_sums_too_large"
    ROWS_AND_SUMS_FIT = "rows_and_sums_fit"

    # Greedy
    NO_GREEDY_OP = "no_greedy_op"
    GREEDY_FOREIGN_OP = "greedy_foreign_op"
    GREEDY_OTHER_AXES = "greedy_other_axes"
    GREEDY_MERGED = "greedy_merged"
    SCATTER_INEXACT = "scatter_inexact"
    SCATTER_SHARED = "scatter_shared"
    SCATTER_PERMUTED = "scatter_permuted"
    GREEDY_SYMBOLIC = "greedy_symbolic"
    GREEDY_LONG_PAD = "greedy_long_pad"
    GREEDY_REGISTERS = "greedy_registers"
    GREEDY_SHARED_MEMORY = "greedy_shared_memory"
    GREEDY_BLOCK = "greedy_block"


# Reasons that say only that a scheduler is for another kind of fusion; texts omit them if there are other reasons.
OTHER_KIND = frozenset(
    {
        *(ReasonCode.NOT_VIEWS, ReasonCode.CONCRETE_OUTPUT, ReasonCode.REDUCES_ELEMENTS, ReasonCode.NO_MATMUL),
        *(ReasonCode.NO_REDUCTION, ReasonCode.HAS_REDUCTION, ReasonCode.NO_RESIZE, ReasonCode.ONE_INNERMOST_AXIS),
        *(ReasonCode.REDUCTION_IS_INNER, ReasonCode.REDUCTION_IS_OUTER, ReasonCode.ONE_KIND_OF_REDUCTION),
        *(ReasonCode.NO_PERSISTENT_BUFFER, ReasonCode.NO_GREEDY_OP, ReasonCode.DISABLED),
        *(ReasonCode.TRANSPOSE_SMALL, ReasonCode.TRANSPOSE_SMALL_INNER, ReasonCode.TRANSPOSE_SMALL_RESHAPED),
        ReasonCode.TRANSPOSE_RESHAPED_BEHIND,
    },
)

# Reasons that point to a scheduler made for more of the fusion; texts omit them if that scheduler has another reason.
REFERRALS = frozenset({ReasonCode.PERSISTENT_BUFFER, ReasonCode.REDUCTIONS_OF_BOTH_KINDS})

TEXTS: dict[ReasonCode, str] = {
    ReasonCode.ACROSS_CUT: "{before} is before the cut at {tensor} and {after} is after it",
    ReasonCode.CYCLE: "one kernel for both would close a cycle: it would have to run before and after {through}",
    ReasonCode.SEGMENT_SET_INSIDE: (
        "{tensor} is made by segment_set, which separates it from the expressions that read it; the candidate contains "
        "both"
    ),
    ReasonCode.DISABLED: "this scheduler is disabled",
    ReasonCode.OWN_RULE: "{text}",
    ReasonCode.BEYOND: "fuser_lab computes this in one kernel, which nvFuser's rules {rules} refuse",
    ReasonCode.NOT_LOWERED: "fuser_lab has no kernel for this either: {why}",
    ReasonCode.READ_AGAIN: (
        "fuser_lab's kernel for this would read tensors more than once: it would move at least {moved} bytes, and its "
        "inputs and outputs have {least}"
    ),
    ReasonCode.MATMUL_INSIDE: "{tensor} is computed by {op}, which only the matmul scheduler fuses",
    ReasonCode.EVALUATED_ONLY: "{tensor} is computed by {op}, for which this scheduler generates no code",
    ReasonCode.NOT_CONNECTED: (
        "the expressions form {parts} groups that share no tensor: no path connects {first} and {second}"
    ),
    ReasonCode.SELF_MAPPED: (
        "axes {a} and {b} of {tensor} would be one loop, as in x + x.T, and one loop reads only the diagonal"
    ),
    ReasonCode.CYCLIC_RESHAPE: (
        "through the reshape {tensor}, an axis leads back to itself, so no loops fit all tensors"
    ),
    ReasonCode.CONFLICTING_RESHAPES: (
        "the reshapes {first} and {second} split one axis in different ways, and loops follow only one of them"
    ),
    ReasonCode.RESIZE_AND_INDEXING: (
        "{resize} = {resize_op} resizes an axis and {indexed} = {indexed_op} reads at positions that are data; a "
        "kernel contains only one of the two"
    ),
    ReasonCode.NO_REDUCTION: "the candidate has no reduction",
    ReasonCode.HAS_REDUCTION: (
        "{tensor} is a reduction ({op}), and threads of this scheduler do not combine their elements"
    ),
    ReasonCode.NO_TENSOR_INPUT: "the candidate reads no tensor",
    ReasonCode.NO_OUTPUT: "no tensor leaves the candidate",
    ReasonCode.INDEX_INPUT: (
        "{tensor} = {op}({operand}) needs its operand in memory, but the candidate computes {operand}"
    ),
    ReasonCode.BROADCAST_NOT_UNIQUE: (
        "broadcast axis {axis} of {tensor} corresponds to two different axes, of size {first} in {a} and of size "
        "{second} in {b}, and one loop cannot run along both"
    ),
    ReasonCode.OUTPUT_NOT_COVERED: (
        "axis {axis} of output {tensor} (size {extent}) is not an axis of {reference}, and the kernel's loops follow "
        "{reference}"
    ),
    ReasonCode.INPUT_NOT_COVERED: (
        "axis {axis} of input {tensor} (size {extent}) is not an axis of {reference}, and the kernel's loops follow "
        "{reference}"
    ),
    ReasonCode.AXIS_LOST: (
        "the loops of {reference} reach {tensor} only through {through}, which adds an axis, of size {extent} in "
        "{tensor}, that the path to {through} has dropped"
    ),
    ReasonCode.RESHAPE_MIXES: (
        "the reshape {tensor} mixes axes that {reduction} keeps with axes that it reduces, so loops cannot separate "
        "the two"
    ),
    ReasonCode.PATTERN_MISMATCH: (
        "{first} reduces {first_numel} elements for each of {first_rows} results and {second} reduces {second_numel} "
        "for each of {second_rows}; all reductions of a kernel reduce the same axes{contrast}"
    ),
    ReasonCode.PERSISTENT_BUFFER: (
        "{user} needs {tensor} again after the reduction {reduction}, and this scheduler keeps no tensor on chip "
        "during a reduction"
    ),
    ReasonCode.NO_PERSISTENT_BUFFER: (
        "made for fusions that need a tensor again after the reduction; after {tensor}, this one needs none again"
    ),
    ReasonCode.PARTLY_REDUCED: (
        "{user} needs {tensor} again after the reduction {reduction}, but {tensor} has only {present} of the {axes} "
        "reduced axes, so a block cannot keep it"
    ),
    ReasonCode.NOT_VIEWS: "accepts only views of inputs; {tensor} is computed by {op}",
    ReasonCode.VIEWS_OF_INPUTS: "all outputs are views of inputs: no kernel is needed",
    ReasonCode.LIBRARY_CALL: "{tensor} = {op} stands alone: the array library computes it",
    ReasonCode.EVALUATED_ALONE: "no scheduler accepts {tensor} = {op}, so the array library evaluates it alone",
    ReasonCode.CONCRETE_OUTPUT: (
        "accepts only fusions that compute nothing; output {tensor} has {elements} elements to compute"
    ),
    ReasonCode.REDUCES_ELEMENTS: "accepts only fusions that compute nothing; {tensor} reduces {elements} elements",
    ReasonCode.NOTHING_TO_COMPUTE: "no output has more than one element to compute",
    ReasonCode.NO_MATMUL: "the candidate has no matrix product",
    ReasonCode.MATMUL_OFF: "matmul fusion is off by default",
    ReasonCode.SEVERAL_MATMULS: "{first} and {second} are both matrix products; a kernel can contain only one",
    ReasonCode.OTHER_MATMUL: "{tensor} is computed by {op}; only matmul and linear are fused",
    ReasonCode.MATMUL_VECTOR: (
        "{operand}, which {tensor} multiplies, is a vector: this is not a product of two matrices"
    ),
    ReasonCode.MATMUL_BATCH: (
        "{tensor} multiplies {first} of {axes} axes with {second} of {more}; the second operand may not have more axes"
    ),
    ReasonCode.MATMUL_ONE_INPUT: "{operand} is the only input, and {tensor} multiplies it with itself",
    ReasonCode.MATMUL_LAYOUT: "{output} is stored in the order {order} of its axes; products write row-major results",
    ReasonCode.MATMUL_DTYPE: "{operand}, which {tensor} multiplies, is {dtype}; only Half and BFloat16 are fused",
    ReasonCode.MATMUL_OLD_DEVICE: (
        "{device} has compute capability {cc}; matrix products are fused only from {least} on"
    ),
    ReasonCode.MATMUL_PROLOGUE: (
        "{operand} = {op} computes an operand of {tensor}; on {device}, operands can only be {ways} on their way from "
        "memory"
    ),
    ReasonCode.MATMUL_EPILOGUE: "{tensor} = {op} comes after the product {product} and cannot be fused as its epilogue",
    ReasonCode.MATMUL_TOO_LARGE: "{operand} has an axis of {extent} elements; at most {limit} are addressed in tiles",
    ReasonCode.MATMUL_FUSED: "one kernel for the product {tensor} and {others} expressions around it",
    ReasonCode.BROADCAST_AFTER_REDUCTION: (
        "{user} expands {tensor}, a result of the reduction, back to {extent} elements: that needs a second walk along "
        "the reduced axis, and a reduction kernel makes one"
    ),
    ReasonCode.NEW_INPUT_AFTER_REDUCTION: (
        "{user} comes after the inner reduction {reduction} and reads {tensor}, which the loops of the reduction do "
        "not read"
    ),
    ReasonCode.EXPANDED_AFTER_REDUCTION: (
        "output {tensor} repeats a result of the reduction {extent} times along axis {axis}, and no loop of the kernel "
        "runs along that axis"
    ),
    ReasonCode.INDEXED_BEFORE_REDUCTION: (
        "{tensor} = {op} leaves one element of axis {axis} before the reduction {reduction}, so the loops of the "
        "reduction lack that axis of {operand}"
    ),
    ReasonCode.NO_RESIZE: "the candidate has no slice, pad or cat",
    ReasonCode.RESIZED_BROADCAST: (
        "{tensor} resizes an axis from size {before} to {after}, one of which is a broadcast axis"
    ),
    ReasonCode.RESIZED_WITH_BROADCAST: (
        "{tensor} resizes an axis that meets a broadcast axis in {user}: axis {axis} of {broadcast} cannot be resized "
        "along with it"
    ),
    ReasonCode.RESIZE_BETWEEN_OUTPUTS: (
        "outputs {tensor} and {reference} differ by a slice, pad or cat, so no loop fits both"
    ),
    ReasonCode.TRANSPOSE_LIKE: "{first} and {second} have different innermost axes, so this is a transpose",
    ReasonCode.ONE_INNERMOST_AXIS: (
        "made for transposes; the inputs and outputs that have all axes share the innermost one"
    ),
    ReasonCode.INDEXED_INNERMOST: (
        "{tensor} = {op} reads at positions that are data along axis {axis} of {operand}, its innermost axis, so "
        "{operand} cannot be transposed in tiles"
    ),
    ReasonCode.TRANSPOSE_SMALL: (
        "{tensor} has {elements} elements, too few for a tile of 32 x 32 on each SM, which takes {wave}"
    ),
    ReasonCode.TRANSPOSE_NARROW: (
        "a transposed axis of {tensor} has {size} elements and all other axes together have only {rest}, fewer than "
        "the {side} on a side of a tile"
    ),
    ReasonCode.TRANSPOSE_SMALL_INNER: (
        "the two transposed axes of {tensor} and the axes between them have {elements} elements together, fewer than "
        "the {tile} of a tile"
    ),
    ReasonCode.TRANSPOSE_SMALL_RESHAPED: (
        "the transposed axes have {first} and {second} elements; below {side} they would be merged with others, which "
        "the reshape {tensor} does not allow"
    ),
    ReasonCode.TRANSPOSE_RESHAPED_BEHIND: (
        "the loops of {reference} would have to follow the reshape of {operand} to {tensor}, and a transpose follows "
        "no reshape towards the outputs"
    ),
    ReasonCode.TRANSPOSED_IN_TILES: (
        "{first} and {second} have different innermost axes, so tiles of 32 x 32 are transposed in shared memory"
    ),
    ReasonCode.REDUCTION_IS_INNER: "made for reductions of outer axes; {tensor} reduces the innermost axis",
    ReasonCode.REDUCTION_IS_OUTER: "made for reductions of the innermost axis, which {tensor} keeps",
    ReasonCode.REDUCTIONS_OF_BOTH_KINDS: (
        "made for reductions of one kind; {inner} reduces the innermost axis and {outer} keeps it"
    ),
    ReasonCode.ONE_KIND_OF_REDUCTION: "requires inner and outer reductions; this fusion has only {kind} ones",
    ReasonCode.BROADCAST_ELSEWHERE: (
        "{tensor} broadcasts a result of the reduction to {extent} elements in {user}, along an axis that no operand "
        "of a reduction has"
    ),
    ReasonCode.BUFFER_TOO_LARGE: (
        "{bytes} bytes of each row have to stay on chip ({tensors}); at most {limit} fit ({sm} in one SM, times a "
        "cluster of {cluster})"
    ),
    ReasonCode.NOT_ENOUGH_BLOCKS: (
        "{tensor} reduces {numel} elements for each of only {rows} rows; with fewer than {needed} rows, most SMs are "
        "idle"
    ),
    ReasonCode.BUFFER_FITS: "{bytes} bytes of each row stay in {where} ({tensors}), of at most {limit}",
    ReasonCode.BUFFER_NEEDS_CLUSTER: (
        "{bytes} bytes of each row stay on chip ({tensors}), more than the {limit} of one SM: a cluster of {cluster} "
        "blocks shares them"
    ),
    ReasonCode.COLUMNS_TOO_LARGE: (
        "{bytes} bytes of each column have to stay on chip ({tensors}), for {columns} columns at once: this needs the "
        "registers of {needed} SMs, and at most {most}, half of all SMs, reduce together"
    ),
    ReasonCode.COLUMNS_NOT_WELFORD: (
        "a grid of {wide} x {across} blocks would keep the columns in registers, which nvFuser does only for Welford "
        "reductions; {tensor} is a {op}"
    ),
    ReasonCode.COLUMNS_NOT_VECTORIZED: (
        "{columns} columns would be kept in the registers of {needed} SMs, which needs accesses of {least} elements; "
        "only {vector} are possible"
    ),
    ReasonCode.COLUMNS_TOO_FEW: (
        "{rows} columns are too few to keep them across blocks: threads that read {vector} columns each would be fewer "
        "than {least}"
    ),
    ReasonCode.COLUMNS_NO_GRID: (
        "no launch configuration for {sms} SMs keeps {rows} columns of {bytes} bytes, {vector} per thread; of {tried}, "
        "{spilled} need too many registers, {uneven} divide the columns unevenly, and {idle} have idle threads"
    ),
    ReasonCode.COLUMNS_UNEVEN: (
        "{wide} blocks keep {columns} columns at once, which do not divide {rows} columns evenly, as they must before "
        "compute capability 8.0"
    ),
    ReasonCode.NOT_ENOUGH_COLUMNS: (
        "{tensor} reduces {numel} elements for each of only {rows} columns, which keep {used} SMs busy; with fewer "
        "than {needed}, most SMs are idle"
    ),
    ReasonCode.COLUMNS_FIT: "{bytes} bytes of each column stay in registers ({tensors}), {columns} columns per block",
    ReasonCode.COLUMNS_ACROSS_BLOCKS: (
        "{bytes} bytes of each column stay in registers ({tensors}) of {wide} x {across} blocks of {x} x {y} threads; "
        "a thread keeps {buffer} elements of each of {vector} columns"
    ),
    ReasonCode.AXES_INTERLEAVED: (
        "{tensor} reduces a tensor whose axes are {axes}; all reduced axes have to lie together, and so do all others"
    ),
    ReasonCode.NOT_COMPLEMENTARY: (
        "{inner} reduces {inner_axes} and {outer} reduces {outer_axes}; each has to keep the axes that the other "
        "reduces"
    ),
    ReasonCode.NO_SHARED_INPUT: "the inner reduction {inner} and the outer reduction {outer} read no input in common",
    ReasonCode.SHARED_CONSUMER: (
        "{user} combines values that depend on the inner reduction {inner} with values that depend on the outer "
        "reduction {outer}"
    ),
    ReasonCode.CONNECTED_BESIDES: (
        "{tensor} connects the reductions {first} and {second}; only the operands of {second} may do so"
    ),
    ReasonCode.OUTER_BEFORE_INNER: (
        "the reduction {second} needs the outer reduction {first}, which ends only after all rows are processed"
    ),
    ReasonCode.ROWS_AND_SUMS_TOO_LARGE: (
        "{bytes} bytes of each row ({tensors}) and {sums} bytes of column sums have to stay on chip; registers hold "
        "{registers} bytes and shared memory {shared}"
    ),
    ReasonCode.ROWS_AND_SUMS_FIT: (
        "{bytes} bytes of each row ({tensors}) and {sums} bytes of column sums stay on chip, {moved} of them in shared "
        "memory"
    ),
    ReasonCode.NO_GREEDY_OP: "the candidate has no sort, scan or scatter",
    ReasonCode.GREEDY_FOREIGN_OP: "{tensor} is computed by {op}, which no kernel with a sort, scan or scatter contains",
    ReasonCode.GREEDY_OTHER_AXES: (
        "{first} and {second} each run along one axis, and their other axes, which are distributed over blocks, differ"
    ),
    ReasonCode.GREEDY_MERGED: (
        "the reshape {tensor} merges an axis that stays in one block for {first} with an axis that is distributed over "
        "blocks"
    ),
    ReasonCode.SCATTER_INEXACT: (
        "axis {axis} of {tensor} has {extent} elements and the same axis of its index has {given}; only the scattered "
        "axis may differ"
    ),
    ReasonCode.SCATTER_SHARED: "{operand}, into which {tensor} scatters, is also used by {user}",
    ReasonCode.SCATTER_PERMUTED: "{tensor} scatters and {operand} is not row-major in memory",
    ReasonCode.GREEDY_SYMBOLIC: (
        "{tensor} = {op} runs along axis {axis}, which has {extent} elements here, but the definition leaves its size "
        "open: sorts and scans need a constant size"
    ),
    ReasonCode.GREEDY_LONG_PAD: (
        "{tensor} = pad has {extent} elements along its padded axes, and each needs one of at most {limit} threads"
    ),
    ReasonCode.GREEDY_REGISTERS: (
        "{tensor} = {op} along {extent} elements needs {registers} registers in each of {threads} threads; at most "
        "{limit} are available"
    ),
    ReasonCode.GREEDY_SHARED_MEMORY: (
        "sorts ({instances} different in elements per thread or dtype; the longest is {tensor} = {op} along {extent} "
        "elements) need {bytes} bytes of shared memory for {threads} threads; a block has {limit}"
    ),
    ReasonCode.GREEDY_BLOCK: (
        "{tensor} = {op} along {extent} elements: {threads} threads per block, {items} elements for each; {how}"
    ),
}

# Reasons that also hold for every larger set of expressions, which contains the same expressions and shared loops. Each
# is a guarantee by the scheduler that gives it; every larger set is refused too once all schedulers give such a reason.
MONOTONE: frozenset[ReasonCode] = frozenset(
    {
        ReasonCode.SELF_MAPPED,
        ReasonCode.MATMUL_INSIDE,
        ReasonCode.EVALUATED_ONLY,
        ReasonCode.HAS_REDUCTION,
        ReasonCode.CONFLICTING_RESHAPES,
        ReasonCode.CYCLIC_RESHAPE,
        ReasonCode.RESIZE_AND_INDEXING,
        ReasonCode.GREEDY_FOREIGN_OP,
        ReasonCode.SEVERAL_MATMULS,
        ReasonCode.OTHER_MATMUL,
        ReasonCode.MATMUL_VECTOR,
        ReasonCode.MATMUL_BATCH,
        ReasonCode.MATMUL_DTYPE,
        ReasonCode.MATMUL_OLD_DEVICE,
        ReasonCode.MATMUL_OFF,
        ReasonCode.SCATTER_INEXACT,
        ReasonCode.SCATTER_SHARED,
        ReasonCode.GREEDY_SYMBOLIC,
        ReasonCode.GREEDY_LONG_PAD,
        ReasonCode.GREEDY_REGISTERS,
        ReasonCode.DISABLED,
    },
)

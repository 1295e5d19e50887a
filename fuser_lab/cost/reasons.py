"""Every reason a scheduler or the segmenter gives, with its sentence and what follows from it, in one place."""

import enum
from typing import Self


class Mark(enum.Enum):
    """What follows from a reason, besides its sentence."""

    ACCEPTANCE = enum.auto()
    """The reason is a note about an acceptance; all others refuse."""
    OURS = enum.auto()
    """The reason is not one of nvFuser's: of options, edits, kernels of fuser_lab, candidates without a result."""
    OTHER_KIND = enum.auto()
    """The scheduler is for another kind of fusion, and texts omit the reason if there are other reasons."""
    REFERRAL = enum.auto()
    """Another scheduler is made for more of the fusion, and texts omit the reason if that one has another reason."""
    MONOTONE = enum.auto()
    """The reason holds for every larger set of expressions, which contains the same expressions and shared loops.

    Each is a guarantee by the scheduler that gives it; every larger set is refused too once all schedulers give such
    a reason.
    """


def _reason(code: str, text: str, *marks: Mark) -> tuple[str, str, frozenset[Mark]]:
    """Return what defines a reason: its code, its sentence, and its marks."""
    return code, text, frozenset(marks)


class ReasonCode(enum.Enum):
    """Closed list of reasons: the code of each, its sentence with names of parameters, and marks.

    The value of a member is its code, with which logs and pages name it.
    """

    text: str
    marks: frozenset[Mark]

    def __new__(cls, code: str, text: str, marks: frozenset[Mark]) -> Self:
        """Return the member of a code."""
        member = object.__new__(cls)
        member._value_ = code
        member.text, member.marks = text, marks
        return member

    SEGMENT_SET_INSIDE = _reason(
        "segment_set_inside",
        "{tensor} is made by segment_set, which separates it from the expressions that read it; the candidate "
        "contains both",
    )
    ACROSS_CUT = _reason("across_cut", "{before} is before the cut at {tensor} and {after} is after it", Mark.OURS)
    CYCLE = _reason("cycle", "one kernel for both would close a cycle: it would have to run before and after {through}")
    DISABLED = _reason("disabled", "this scheduler is disabled", Mark.OURS, Mark.OTHER_KIND, Mark.MONOTONE)
    OWN_RULE = _reason("own_rule", "{text}", Mark.OURS)

    # Open schedulers
    BEYOND = _reason(
        "beyond", "fuser_lab computes this in one kernel, which nvFuser's rules {rules} refuse", Mark.ACCEPTANCE,
    )
    NOT_LOWERED = _reason("not_lowered", "fuser_lab has no kernel for this either: {why}", Mark.OURS)
    READ_AGAIN = _reason(
        "read_again",
        "fuser_lab's kernel for this would read tensors more than once: it would move at least {moved} bytes, and "
        "its inputs and outputs have {least}", Mark.OURS,
    )

    # The common gate
    MATMUL_INSIDE = _reason(
        "matmul_inside", "{tensor} is computed by {op}, which only the matmul scheduler fuses", Mark.MONOTONE,
    )
    EVALUATED_ONLY = _reason(
        "evaluated_only", "{tensor} is computed by {op}, for which this scheduler generates no code", Mark.MONOTONE,
    )
    NOT_CONNECTED = _reason(
        "not_connected",
        "the expressions form {parts} groups that share no tensor: no path connects {first} and {second}",
    )
    SELF_MAPPED = _reason(
        "self_mapped",
        "axes {a} and {b} of {tensor} would be one loop, as in x + x.T, and one loop reads only the diagonal",
        Mark.MONOTONE,
    )
    CYCLIC_RESHAPE = _reason(
        "cyclic_reshape",
        "through the reshape {tensor}, an axis leads back to itself, so no loops fit all tensors", Mark.MONOTONE,
    )
    CONFLICTING_RESHAPES = _reason(
        "conflicting_reshapes",
        "the reshapes {first} and {second} split one axis in different ways, and loops follow only one of them",
        Mark.MONOTONE,
    )
    RESIZE_AND_INDEXING = _reason(
        "resize_and_indexing",
        "{resize} = {resize_op} resizes an axis and {indexed} = {indexed_op} reads at positions that are data; a "
        "kernel contains only one of the two", Mark.MONOTONE,
    )

    # Shared by several schedulers
    NO_REDUCTION = _reason("no_reduction", "the candidate has no reduction", Mark.OTHER_KIND)
    HAS_REDUCTION = _reason(
        "has_reduction",
        "{tensor} is a reduction ({op}), and threads of this scheduler do not combine their elements",
        Mark.OTHER_KIND, Mark.MONOTONE,
    )
    NO_TENSOR_INPUT = _reason("no_tensor_input", "the candidate reads no tensor")
    NO_OUTPUT = _reason("no_output", "no tensor leaves the candidate", Mark.OURS)
    INDEX_INPUT = _reason(
        "index_input", "{tensor} = {op}({operand}) needs its operand in memory, but the candidate computes {operand}",
    )
    BROADCAST_NOT_UNIQUE = _reason(
        "broadcast_not_unique",
        "broadcast axis {axis} of {tensor} corresponds to two different axes, of size {first} in {a} and of size "
        "{second} in {b}, and one loop cannot run along both",
    )
    OUTPUT_NOT_COVERED = _reason(
        "output_not_covered",
        "axis {axis} of output {tensor} (size {extent}) is not an axis of {reference}, and the kernel's loops "
        "follow {reference}",
    )
    INPUT_NOT_COVERED = _reason(
        "input_not_covered",
        "axis {axis} of input {tensor} (size {extent}) is not an axis of {reference}, and the kernel's loops follow "
        "{reference}",
    )
    AXIS_LOST = _reason(
        "axis_lost",
        "the loops of {reference} reach {tensor} only through {through}, which adds an axis, of size {extent} in "
        "{tensor}, that the path to {through} has dropped",
    )
    RESHAPE_MIXES = _reason(
        "reshape_mixes",
        "the reshape {tensor} mixes axes that {reduction} keeps with axes that it reduces, so loops cannot separate "
        "the two",
    )
    PATTERN_MISMATCH = _reason(
        "pattern_mismatch",
        "{first} reduces {first_numel} elements for each of {first_rows} results and {second} reduces "
        "{second_numel} for each of {second_rows}; all reductions of a kernel reduce the same axes{contrast}",
    )
    PERSISTENT_BUFFER = _reason(
        "persistent_buffer",
        "{user} needs {tensor} again after the reduction {reduction}, and this scheduler keeps no tensor on chip "
        "during a reduction", Mark.REFERRAL,
    )
    NO_PERSISTENT_BUFFER = _reason(
        "no_persistent_buffer",
        "made for fusions that need a tensor again after the reduction; after {tensor}, this one needs none again",
        Mark.OTHER_KIND,
    )

    # Evaluation by the array library
    NOT_VIEWS = _reason("not_views", "accepts only views of inputs; {tensor} is computed by {op}", Mark.OTHER_KIND)
    VIEWS_OF_INPUTS = _reason(
        "views_of_inputs", "all outputs are views of inputs: no kernel is needed", Mark.ACCEPTANCE,
    )
    LIBRARY_CALL = _reason(
        "library_call", "{tensor} = {op} stands alone: the array library computes it", Mark.ACCEPTANCE,
    )
    EVALUATED_ALONE = _reason(
        "evaluated_alone",
        "no scheduler accepts {tensor} = {op}, so the array library evaluates it alone", Mark.ACCEPTANCE,
    )

    # No-op
    CONCRETE_OUTPUT = _reason(
        "concrete_output",
        "accepts only fusions that compute nothing; output {tensor} has {elements} elements to compute",
        Mark.OTHER_KIND,
    )
    REDUCES_ELEMENTS = _reason(
        "reduces_elements",
        "accepts only fusions that compute nothing; {tensor} reduces {elements} elements", Mark.OTHER_KIND,
    )
    NOTHING_TO_COMPUTE = _reason(
        "nothing_to_compute", "no output has more than one element to compute", Mark.ACCEPTANCE,
    )

    # Matmul
    NO_MATMUL = _reason("no_matmul", "the candidate has no matrix product", Mark.OTHER_KIND)
    MATMUL_OFF = _reason("matmul_off", "matmul fusion is off by default", Mark.MONOTONE)
    SEVERAL_MATMULS = _reason(
        "several_matmuls",
        "{first} and {second} are both matrix products; a kernel can contain only one", Mark.MONOTONE,
    )
    OTHER_MATMUL = _reason(
        "other_matmul", "{tensor} is computed by {op}; only matmul and linear are fused", Mark.MONOTONE,
    )
    MATMUL_VECTOR = _reason(
        "matmul_vector",
        "{operand}, which {tensor} multiplies, is a vector: this is not a product of two matrices", Mark.MONOTONE,
    )
    MATMUL_BATCH = _reason(
        "matmul_batch",
        "{tensor} multiplies {first} of {axes} axes with {second} of {more}; the second operand may not have more "
        "axes", Mark.MONOTONE,
    )
    MATMUL_ONE_INPUT = _reason(
        "matmul_one_input", "{operand} is the only input, and {tensor} multiplies it with itself",
    )
    MATMUL_LAYOUT = _reason(
        "matmul_layout", "{output} is stored in the order {order} of its axes; products write row-major results",
    )
    MATMUL_DTYPE = _reason(
        "matmul_dtype",
        "{operand}, which {tensor} multiplies, is {dtype}; only Half and BFloat16 are fused", Mark.MONOTONE,
    )
    MATMUL_OLD_DEVICE = _reason(
        "matmul_old_device",
        "{device} has compute capability {cc}; matrix products are fused only from {least} on", Mark.MONOTONE,
    )
    MATMUL_PROLOGUE = _reason(
        "matmul_prologue",
        "{operand} = {op} computes an operand of {tensor}; on {device}, operands can only be {ways} on their way "
        "from memory",
    )
    MATMUL_EPILOGUE = _reason(
        "matmul_epilogue", "{tensor} = {op} comes after the product {product} and cannot be fused as its epilogue",
    )
    MATMUL_TOO_LARGE = _reason(
        "matmul_too_large", "{operand} has an axis of {extent} elements; at most {limit} are addressed in tiles",
    )
    MATMUL_FUSED = _reason(
        "matmul_fused", "one kernel for the product {tensor} and {others} expressions around it", Mark.ACCEPTANCE,
    )

    # Reduction
    BROADCAST_AFTER_REDUCTION = _reason(
        "broadcast_after_reduction",
        "{user} expands {tensor}, a result of the reduction, back to {extent} elements: that needs a second walk "
        "along the reduced axis, and a reduction kernel makes one",
    )
    NEW_INPUT_AFTER_REDUCTION = _reason(
        "new_input_after_reduction",
        "{user} comes after the inner reduction {reduction} and reads {tensor}, which the loops of the reduction do "
        "not read",
    )
    EXPANDED_AFTER_REDUCTION = _reason(
        "expanded_after_reduction",
        "output {tensor} repeats a result of the reduction {extent} times along axis {axis}, and no loop of the "
        "kernel runs along that axis", Mark.OURS,
    )
    INDEXED_BEFORE_REDUCTION = _reason(
        "indexed_before_reduction",
        "{tensor} = {op} leaves one element of axis {axis} before the reduction {reduction}, so the loops of the "
        "reduction lack that axis of {operand}",
    )

    # Resize
    NO_RESIZE = _reason("no_resize", "the candidate has no slice, pad or cat", Mark.OTHER_KIND)
    RESIZED_BROADCAST = _reason(
        "resized_broadcast", "{tensor} resizes an axis from size {before} to {after}, one of which is a broadcast axis",
    )
    RESIZED_WITH_BROADCAST = _reason(
        "resized_with_broadcast",
        "{tensor} resizes an axis that meets a broadcast axis in {user}: axis {axis} of {broadcast} cannot be "
        "resized along with it",
    )
    RESIZE_BETWEEN_OUTPUTS = _reason(
        "resize_between_outputs",
        "outputs {tensor} and {reference} differ by a slice, pad or cat, so no loop fits both",
    )
    TRANSPOSE_LIKE = _reason(
        "transpose_like", "{first} and {second} have different innermost axes, so this is a transpose",
    )

    # Transpose
    ONE_INNERMOST_AXIS = _reason(
        "one_innermost_axis",
        "made for transposes; the inputs and outputs that have all axes share the innermost one", Mark.OTHER_KIND,
    )
    INDEXED_INNERMOST = _reason(
        "indexed_innermost",
        "{tensor} = {op} reads at positions that are data along axis {axis} of {operand}, its innermost axis, so "
        "{operand} cannot be transposed in tiles",
    )
    TRANSPOSE_SMALL = _reason(
        "transpose_small",
        "{tensor} has {elements} elements, too few for a tile of 32 x 32 on each SM, which takes {wave}",
        Mark.OTHER_KIND,
    )
    TRANSPOSE_NARROW = _reason(
        "transpose_narrow",
        "a transposed axis of {tensor} has {size} elements and all other axes together have only {rest}, fewer than "
        "the {side} on a side of a tile",
    )
    TRANSPOSE_SMALL_INNER = _reason(
        "transpose_small_inner",
        "the two transposed axes of {tensor} and the axes between them have {elements} elements together, fewer "
        "than the {tile} of a tile", Mark.OTHER_KIND,
    )
    TRANSPOSE_SMALL_RESHAPED = _reason(
        "transpose_small_reshaped",
        "the transposed axes have {first} and {second} elements; below {side} they would be merged with others, "
        "which the reshape {tensor} does not allow", Mark.OTHER_KIND,
    )
    TRANSPOSE_RESHAPED_BEHIND = _reason(
        "transpose_reshaped_behind",
        "the loops of {reference} would have to follow the reshape of {operand} to {tensor}, and a transpose "
        "follows no reshape towards the outputs", Mark.OTHER_KIND,
    )
    TRANSPOSED_IN_TILES = _reason(
        "transposed_in_tiles",
        "{first} and {second} have different innermost axes, so tiles of 32 x 32 are transposed in shared memory",
        Mark.ACCEPTANCE,
    )

    # Persistent
    REDUCTION_IS_INNER = _reason(
        "reduction_is_inner", "made for reductions of outer axes; {tensor} reduces the innermost axis", Mark.OTHER_KIND,
    )
    REDUCTION_IS_OUTER = _reason(
        "reduction_is_outer", "made for reductions of the innermost axis, which {tensor} keeps", Mark.OTHER_KIND,
    )
    REDUCTIONS_OF_BOTH_KINDS = _reason(
        "reductions_of_both_kinds",
        "made for reductions of one kind; {inner} reduces the innermost axis and {outer} keeps it", Mark.REFERRAL,
    )
    ONE_KIND_OF_REDUCTION = _reason(
        "one_kind_of_reduction",
        "requires inner and outer reductions; this fusion has only {kind} ones", Mark.OTHER_KIND,
    )
    PARTLY_REDUCED = _reason(
        "partly_reduced",
        "{user} needs {tensor} again after the reduction {reduction}, but {tensor} has only {present} of the {axes} "
        "reduced axes, so a block cannot keep it",
    )
    BROADCAST_ELSEWHERE = _reason(
        "broadcast_elsewhere",
        "{tensor} broadcasts a result of the reduction to {extent} elements in {user}, along an axis that no "
        "operand of a reduction has",
    )
    BUFFER_TOO_LARGE = _reason(
        "buffer_too_large",
        "{bytes} bytes of each row have to stay on chip ({tensors}); at most {limit} fit ({sm} in one SM, times a "
        "cluster of {cluster})",
    )
    NOT_ENOUGH_BLOCKS = _reason(
        "not_enough_blocks",
        "{tensor} reduces {numel} elements for each of only {rows} rows; with fewer than {needed} rows, most SMs "
        "are idle",
    )
    BUFFER_FITS = _reason(
        "buffer_fits", "{bytes} bytes of each row stay in {where} ({tensors}), of at most {limit}", Mark.ACCEPTANCE,
    )
    BUFFER_NEEDS_CLUSTER = _reason(
        "buffer_needs_cluster",
        "{bytes} bytes of each row stay on chip ({tensors}), more than the {limit} of one SM: a cluster of "
        "{cluster} blocks shares them", Mark.ACCEPTANCE,
    )

    # Persistent along columns
    COLUMNS_TOO_LARGE = _reason(
        "columns_too_large",
        "{bytes} bytes of each column have to stay on chip ({tensors}), for {columns} columns at once: this needs "
        "the registers of {needed} SMs, and at most {most}, half of all SMs, reduce together",
    )
    COLUMNS_NOT_WELFORD = _reason(
        "columns_not_welford",
        "a grid of {wide} x {across} blocks would keep the columns in registers, which nvFuser does only for "
        "Welford reductions; {tensor} is a {op}",
    )
    COLUMNS_NOT_VECTORIZED = _reason(
        "columns_not_vectorized",
        "{columns} columns would be kept in the registers of {needed} SMs, which needs accesses of {least} "
        "elements; only {vector} are possible",
    )
    COLUMNS_TOO_FEW = _reason(
        "columns_too_few",
        "{rows} columns are too few to keep them across blocks: threads that read {vector} columns each would be "
        "fewer than {least}",
    )
    COLUMNS_NO_GRID = _reason(
        "columns_no_grid",
        "no launch configuration for {sms} SMs keeps {rows} columns of {bytes} bytes, {vector} per thread; of "
        "{tried}, {spilled} need too many registers, {uneven} divide the columns unevenly, and {idle} have idle "
        "threads",
    )
    COLUMNS_UNEVEN = _reason(
        "columns_uneven",
        "{wide} blocks keep {columns} columns at once, which do not divide {rows} columns evenly, as they must "
        "before compute capability 8.0",
    )
    NOT_ENOUGH_COLUMNS = _reason(
        "not_enough_columns",
        "{tensor} reduces {numel} elements for each of only {rows} columns, which keep {used} SMs busy; with fewer "
        "than {needed}, most SMs are idle",
    )
    COLUMNS_FIT = _reason(
        "columns_fit",
        "{bytes} bytes of each column stay in registers ({tensors}), {columns} columns per block", Mark.ACCEPTANCE,
    )
    COLUMNS_ACROSS_BLOCKS = _reason(
        "columns_across_blocks",
        "{bytes} bytes of each column stay in registers ({tensors}) of {wide} x {across} blocks of {x} x {y} "
        "threads; a thread keeps {buffer} elements of each of {vector} columns", Mark.ACCEPTANCE,
    )

    # Persistent along rows, with sums along columns
    AXES_INTERLEAVED = _reason(
        "axes_interleaved",
        "{tensor} reduces a tensor whose axes are {axes}; all reduced axes have to lie together, and so do all "
        "others",
    )
    NOT_COMPLEMENTARY = _reason(
        "not_complementary",
        "{inner} reduces {inner_axes} and {outer} reduces {outer_axes}; each has to keep the axes that the other "
        "reduces",
    )
    NO_SHARED_INPUT = _reason(
        "no_shared_input", "the inner reduction {inner} and the outer reduction {outer} read no input in common",
    )
    SHARED_CONSUMER = _reason(
        "shared_consumer",
        "{user} combines values that depend on the inner reduction {inner} with values that depend on the outer "
        "reduction {outer}",
    )
    CONNECTED_BESIDES = _reason(
        "connected_besides",
        "{tensor} connects the reductions {first} and {second}; only the operands of {second} may do so",
    )
    OUTER_BEFORE_INNER = _reason(
        "outer_before_inner",
        "the reduction {second} needs the outer reduction {first}, which ends only after all rows are processed",
    )
    ROWS_AND_SUMS_TOO_LARGE = _reason(
        "rows_and_sums_too_large",
        "{bytes} bytes of each row ({tensors}) and {sums} bytes of column sums have to stay on chip; registers hold "
        "{registers} bytes and shared memory {shared}",
    )
    ROWS_AND_SUMS_FIT = _reason(
        "rows_and_sums_fit",
        "{bytes} bytes of each row ({tensors}) and {sums} bytes of column sums stay on chip, {moved} of them in "
        "shared memory", Mark.ACCEPTANCE,
    )

    # Greedy
    NO_GREEDY_OP = _reason("no_greedy_op", "the candidate has no sort, scan or scatter", Mark.OTHER_KIND)
    GREEDY_FOREIGN_OP = _reason(
        "greedy_foreign_op",
        "{tensor} is computed by {op}, which no kernel with a sort, scan or scatter contains", Mark.MONOTONE,
    )
    GREEDY_OTHER_AXES = _reason(
        "greedy_other_axes",
        "{first} and {second} each run along one axis, and their other axes, which are distributed over blocks, "
        "differ",
    )
    GREEDY_MERGED = _reason(
        "greedy_merged",
        "the reshape {tensor} merges an axis that stays in one block for {first} with an axis that is distributed "
        "over blocks",
    )
    SCATTER_INEXACT = _reason(
        "scatter_inexact",
        "axis {axis} of {tensor} has {extent} elements and the same axis of its index has {given}; only the "
        "scattered axis may differ", Mark.MONOTONE,
    )
    SCATTER_SHARED = _reason(
        "scatter_shared", "{operand}, into which {tensor} scatters, is also used by {user}", Mark.MONOTONE,
    )
    SCATTER_PERMUTED = _reason("scatter_permuted", "{tensor} scatters and {operand} is not row-major in memory")
    GREEDY_SYMBOLIC = _reason(
        "greedy_symbolic",
        "{tensor} = {op} runs along axis {axis}, which has {extent} elements here, but the definition leaves its "
        "size open: sorts and scans need a constant size", Mark.MONOTONE,
    )
    GREEDY_LONG_PAD = _reason(
        "greedy_long_pad",
        "{tensor} = pad has {extent} elements along its padded axes, and each needs one of at most {limit} threads",
        Mark.MONOTONE,
    )
    GREEDY_REGISTERS = _reason(
        "greedy_registers",
        "{tensor} = {op} along {extent} elements needs {registers} registers in each of {threads} threads; at most "
        "{limit} are available", Mark.MONOTONE,
    )
    GREEDY_SHARED_MEMORY = _reason(
        "greedy_shared_memory",
        "sorts ({instances} different in elements per thread or dtype; the longest is {tensor} = {op} along "
        "{extent} elements) need {bytes} bytes of shared memory for {threads} threads; a block has {limit}",
    )
    GREEDY_BLOCK = _reason(
        "greedy_block",
        "{tensor} = {op} along {extent} elements: {threads} threads per block, {items} elements for each; {how}",
        Mark.ACCEPTANCE,
    )


def _with_mark(*marks: Mark) -> frozenset[ReasonCode]:
    return frozenset(code for code in ReasonCode if not code.marks.isdisjoint(marks))


ACCEPTING, OURS = _with_mark(Mark.ACCEPTANCE), _with_mark(Mark.ACCEPTANCE, Mark.OURS)
OTHER_KIND, REFERRALS, MONOTONE = map(_with_mark, (Mark.OTHER_KIND, Mark.REFERRAL, Mark.MONOTONE))

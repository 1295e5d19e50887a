# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Why fusions split: a reason for each cut
#
# After this lesson, you can name the reason why nvFuser splits a fusion, and rewrite the fusion so that it does not. The lesson takes about 25 minutes.
#
# Sum each row of x, turn the sums into a column, and add the column to every column of y. A single program could do this: for each
# row, it would walk along the row of x to get the sum, then along the row of y to add it. But nvFuser makes two kernels. What
# prevents a single one?
#
# The next cell defines this fusion and draws nvFuser's plan. In the picture, T0 is x, T1 is y, and T3 is the column of sums. The
# functions `plan_of` and `column` save typing: the rest of the lesson uses them for other fusions.

# %%
from textwrap import fill

from IPython.display import display

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/02_why_fusions_split.toml").predict


def plan_of(define, *specs, **options):
    """Return the plan of a fusion that a function of ops and tensors defines, for inputs of these sizes."""
    with FusionDefinition() as fd:
        tensors = [fd.define_tensor(shape=list(s.shape), contiguity=True, dtype=s.dtype) for s in specs]
        fd.add_output(define(fd.ops, *tensors))
    return fl.segment(fd, list(specs), **options)


def column(ops, x):
    """Return the row sums as a column."""
    return ops.broadcast(ops.sum(x, dims=[1]), is_broadcast_dim=[False, True])


def print_lines(text):
    """Print a text, with long lines broken between words."""
    for line in str(text).splitlines():
        print(fill(line, 92, subsequent_indent="    "))


square = fl.spec((4096, 4096))
two = plan_of(lambda ops, x, y: ops.add(y, column(ops, x)), square, square)
two

# %% [markdown]
# ## Schedulers
#
# nvFuser does not invent a kernel for each fusion. It has eleven **schedulers**, and each scheduler writes kernels of one kind:
# **pointwise** kernels, which compute each element separately; **reductions**, which combine elements, as a sum does; transposes,
# and others. The **segmenter** is the part of nvFuser that cuts a fusion into **segments**, one for each kernel. It asks the
# schedulers, one after the other, whether a set of ops can be one kernel. The first scheduler that accepts the set writes its
# kernel. If all schedulers refuse, the set has to be cut.
#
# The place of a cut is called a **boundary**. Here only one boundary exists, between S0 and S1. The next cell prints what each
# scheduler answered when the segmenter asked about all ops together, and then the boundary itself. In the sentences, the
# *candidate* is the set of ops in question, an *expression* is an op with its operands, and the *innermost* axis is the axis
# whose elements are neighbours in memory: here axis 1, which runs along a row. A *thread* is one of many instances of a kernel
# that run at the same time. Attempts and phases, such as the final merge, are the subject of lesson 03.

# %%
(between,) = two.boundaries()
for verdict in between.verdicts:
    print(fill(f"{verdict.scheduler.value:24}{verdict.text}", 92, subsequent_indent=" " * 24))

print()
print_lines(between)

# %% [markdown]
# Most schedulers refuse because they are made for fusions of another kind, so their sentences explain nothing about this cut.
# Only the *reduction* scheduler is made for a fusion like this one, and the boundary repeats only its sentence.
#
# A kernel of the reduction scheduler walks along each row once, and ends with one number per row. To add this number to the 4096
# elements of a row of y, the kernel would have to walk along a row a second time. The reduction scheduler writes no kernel with a second
# walk.
#
# ## 1. The same row again
#
# Now add the column to **x** instead of y. Each element of x is needed twice: first for the sum, and again when the sum is known.
#
# **Predict:** does nvFuser make one kernel or two?

# %%
question = predict("How many kernels does x + (sums of x as a column) need?", None)
question

# %%
kept = plan_of(lambda ops, x: ops.add(x, column(ops, x)), square)
outcome_1 = question.reveal(len(kept.segments), facts={"scheduler": kept.segments[0].scheduler.value})
outcome_1

# %% [markdown]
# A tensor that stays on chip, in the registers or the shared memory of the processor, while a reduction is computed is called a
# **persistent buffer**. Persistent buffers are the reason why softmax and layer norm can be one kernel each.
#
# During its second walk along the row of x, such a kernel can also read a row of y. So the next fusion, x + y + column, has one
# op more than the first fusion of this lesson, and needs one kernel fewer:

# %%
plan_of(lambda ops, x, y: ops.add(ops.add(x, column(ops, x)), y), square, square)

# %% [markdown]
# ## 2. A row that is too long
#
# Softmax needs each row three times: for the maximum, for the sum, and for the result. So the row has to stay on chip. A row of a
# million float32 numbers is too long for that, and the fusion is cut:

# %%
def softmax(ops, x):
    highest = ops.broadcast(ops.max(x, dims=[1]), is_broadcast_dim=[False, True])
    e = ops.exp(ops.sub(x, highest))
    return ops.truediv(e, column(ops, e))


long = plan_of(softmax, fl.spec((1024, 1 << 20)))
print(len(long.segments), "kernels,", f"{sum(s.bytes for s in long.segments) / 2**30:.0f} GiB moved")
print_lines(long.boundaries()[0])

# %% [markdown]
# The numbers in the refusal say how much fits. An **SM** (streaming multiprocessor) is one of the GPU's processors; an H200 has 132
# of them. Up to 16 SMs of an H200 can work on one row together, which is called a **cluster**. The plan was made for an H200, the
# default.
#
# **Predict:** how many elements has the longest row that one kernel can handle: of float32 numbers on an H200, of bfloat16 numbers
# on an H200, and of float32 numbers on an A100? An A100 has no clusters, and an SM of an A100 holds about as much of a row as an SM
# of an H200. (Answers within 15 % count as right.)

# %%
question = predict("Elements of the longest row", {"H200 float32": None, "H200 bfloat16": None, "A100 float32": None})
question

# %% jupyter={"source_hidden": true}
# Searches for the longest row that one kernel can handle, in three cases, and compares.
def longest(target, dtype):
    """Return the length of the longest row that one kernel can handle, in steps of 1024 elements."""
    low, high = 1, 4096  # low is one kernel, high is not
    while high - low > 1:
        middle = (low + high) // 2
        one = len(plan_of(softmax, fl.spec((1024, middle * 1024), dtype), target=target).segments) == 1
        low, high = (middle, high) if one else (low, middle)
    return low * 1024


cases = [("H200", "float32"), ("H200", "bfloat16"), ("A100", "float32")]
outcome_2 = question.reveal({" ".join(case): longest(*case) for case in cases}, within=0.15)
outcome_2

# %% [markdown]
# So the number of kernels of a fusion can depend on the sizes of its inputs, and on the GPU. If a row is too long, you can use a
# narrower type, a GPU with clusters, or another algorithm. nvFuser never changes the algorithm.
#
# ## 3. Five more reasons, and their remedies
#
# nvFuser cuts each of these five fusions in two:
#
# | fusion | what it computes |
# |---|---|
# | sum of row sums | the sums of the rows of x, then the sum of these sums |
# | look up computed rows | exp(x), then 128 rows of it, whose numbers are in an index tensor |
# | rows of another shape | exp(x), reshaped from [4096, 4096] to [32768, 512], then the sums of its rows |
# | x + x transposed | x + xᵀ |
# | relu of a product | relu(a @ b) |
#
# For each fusion, write down what could cause the cut. Then run the next cell. Its table has a refusal for each fusion, the number of
# segments after a small change of the fusion, and the share of the bytes that the change saves. The list below the table says what
# was changed.

# %% jupyter={"source_hidden": true}
# Cuts five fusions as written and as changed, and lists the refusal of each.
from IPython.display import Markdown

rows = fl.spec((128,), "int64")
half = fl.spec((1024, 1024), "bfloat16")
CASES = {  # name: (as written, changed, input sizes of both)
    "sum of row sums": (
        lambda ops, x: ops.sum(ops.sum(x, dims=[1]), dims=[0]),
        lambda ops, x: ops.sum(x, dims=[0, 1]),
        [square], [square],
    ),
    "look up computed rows": (
        lambda ops, x, i: ops.index_select(ops.exp(x), i, 0),
        lambda ops, x, i: ops.exp(ops.index_select(x, i, 0)),
        [square, rows], [square, rows],
    ),
    "rows of another shape": (
        lambda ops, x: ops.sum(ops.reshape(ops.exp(x), new_shape=[8 * 4096, 512]), dims=[1]),
        lambda ops, x: ops.sum(ops.reshape(ops.exp(x), new_shape=[4096, 8, 512]), dims=[2]),
        [square], [square],
    ),
    "x + x transposed": (
        lambda ops, x: ops.add(x, ops.permute(x, dims=[1, 0])),
        lambda ops, x, again: ops.add(x, ops.permute(again, dims=[1, 0])),
        [square], [square, square],
    ),
    "relu of a product": (
        lambda ops, a, b: ops.relu(ops.matmul(a, b)),
        None,
        [half, half], [half, half],
    ),
}


def moved(plan):
    return sum(segment.bytes for segment in plan.segments)


table = []
for name, (written, changed, before_sizes, after_sizes) in CASES.items():
    before = plan_of(written, *before_sizes)
    options = None if changed else fl.SegmenterOptions(fuse_matmul=True)
    after = plan_of(changed or written, *after_sizes, options=options)
    refusal = str(before.boundaries()[0]).splitlines()[1].strip(" -")
    saved = f"{1 - moved(after) / moved(before):.0%}"
    table.append((name, str(len(before.segments)), refusal, str(len(after.segments)), saved))

heads = ("fusion", "segments", "refusal", "segments after the change", "bytes saved")
rule = (":--", "--:", ":--", "--:", "--:")
Markdown("\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *table)))

# %% [markdown]
# These are the changes, in the order of the table:
#
# - **Reduce once.** A kernel of the reduction scheduler reduces one set of axes. A sum over both axes at once has the same result.
#   It saves a launch, but few bytes, because the row sums are small. (One scheduler, `inner_outer_persistent`, reduces two sets of
#   axes: while it keeps each row on chip for a reduction along the row, it also adds the rows up.)
# - **Look up first, compute later.** A kernel can read from any place in memory, but a thread cannot read the registers of other
#   threads. In this order, the kernel also computes only the rows that are needed.
# - **Split an axis instead of merging two.** In [32768, 512], eight rows come from one row of exp(x), so the two tensors have
#   different loops. In [4096, 8, 512], each row of exp(x) is only split into eight parts, and one set of loops serves both.
# - **Pass the tensor twice.** In x + xᵀ, axis 0 of x meets axis 1 of the same x, so one loop would have to run over both. If x is
#   also passed as a second input, the kernel has two tensors, each with its own axes. No bytes are saved: the segment for xᵀ was
#   only a view of x, which moves nothing.
# - **Set an option.** nvFuser leaves matrix products to a library unless the option `fuse_matmul` is set, and so does fuser_lab.
#
# ## 4. Cuts that you make yourself
#
# The op `segment_set` computes nothing. It is a hint to the segmenter to end a segment there (lesson 04). If such a hint is left in
# by mistake, its tensor goes through memory for no reason. The boundary then names the hint, and says that the *pointwise*
# scheduler would accept all ops. (`glue`, which it mentions, merges two segments; lesson 03 uses it.)

# %%
hinted = plan_of(lambda ops, x: ops.exp(ops.segment_set(ops.sin(x))), square)
print_lines(hinted.boundaries()[0])

# %% [markdown]
# ## 5. Cuts that follow from other cuts
#
# In the next fusion, the last op needs *a*, and it also needs the result of two reductions of *a*. As you know from the table
# above, the two reductions cannot share a kernel. Could one kernel, A, compute *a*, the first reduction and the last op, with the
# second reduction in another kernel, B? Then A would have to run before B, because B needs the result of the first reduction, and
# also after B, because the last op needs the result of B. This is called a **cycle**, and no order of the kernels can satisfy it.
# So the cut between the two reductions causes another cut, between S0 and S2:

# %%
def around(ops, x):
    a = ops.mul(x, 2.0)
    return ops.add(a, ops.sum(ops.sum(a, dims=[0]), dims=[0]))


waiting = plan_of(around, square)
display(waiting)
for boundary in waiting.boundaries():
    print_lines(boundary.text)

# %% [markdown]
# ## Your turn
#
# **Predict** the number of kernels of each fusion. All inputs have the size [4096, 4096], except where the name of the fusion says
# otherwise. A sum over rows or columns is expanded again where the next op needs it.

# %%
QUIZ = {
    "log of the row sums of exp(x)": (lambda ops, x: ops.log(ops.sum(ops.exp(x), dims=[1])), [square]),
    "y times the row sums of x": (lambda ops, x, y: ops.mul(y, column(ops, x)), [square, square]),
    "row sums of x * y": (lambda ops, x, y: ops.sum(ops.mul(x, y), dims=[1]), [square, square]),
    "x divided by its column sums, [512, 4096]": (
        lambda ops, x: ops.truediv(x, ops.sum(x, dims=[0], keepdim=True)), [fl.spec((512, 4096))],
    ),
    "column sums of (x divided by its row sums)": (
        lambda ops, x: ops.sum(ops.truediv(x, ops.sum(x, dims=[1], keepdim=True)), dims=[0]), [square],
    ),
    "softmax of softmax": (lambda ops, x: softmax(ops, softmax(ops, x)), [square]),
}
question = predict("How many kernels, in this order? Write a list such as [1, 1, 1, 1, 1, 1].", None)
question

# %%
plans = {name: plan_of(define, *sizes) for name, (define, sizes) in QUIZ.items()}
for name, plan in plans.items():
    question.show(f"{name:42}", *(segment.scheduler.value for segment in plan.segments))
outcome_3 = question.reveal([len(plan.segments) for plan in plans.values()])
outcome_3

# %%
score(outcome_1, outcome_2, outcome_3)

# %% [markdown]
# ## Where to go next
#
# - [docs/reasons.md](../docs/reasons.md) lists every reason, with a fusion that causes it and its remedies.
# - The segmenter does not try every set of ops. Which sets does it try, and in which order?
#   [03_how_the_segmenter_thinks](03_how_the_segmenter_thinks.ipynb).
# - `fl.explore(waiting)` opens the last plan in the explorer. Select an arrow between two segments there (Shift+click) to read
#   the reason for the boundary.
#
# **Words:** [Boundary](../docs/glossary.md#boundary "A place between two segments, with the tensors that cross it and the reason for it.") · [Decision log](../docs/glossary.md#decision-log "The record of each attempt of the segmenter: the ops, the scheduler's answer and its reason.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Launch](../docs/glossary.md#launch "The start of a kernel; it takes a few microseconds, whatever the kernel does.") · [Persistent buffer](../docs/glossary.md#persistent-buffer "A tensor that a kernel keeps on chip across a reduction, so that it is read from memory once and used twice.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Pointwise](../docs/glossary.md#pointwise "Computed element by element, without a reduction.") · [Reduction](../docs/glossary.md#reduction "An op that combines the elements along an axis, such as a sum or a maximum.") · [Register](../docs/glossary.md#register "Storage of a single thread inside the processor, the fastest there is.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.") · [segment_set](../docs/glossary.md#segment_set "An op that computes nothing and tells the segmenter to end a segment there.") · [Shared memory](../docs/glossary.md#shared-memory "Fast storage that the threads of one block share.")

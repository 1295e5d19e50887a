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
# After this lesson, you can name the reason why nvFuser splits a fusion, and rewrite the fusion so that it does not. The lesson takes about 20 minutes.
#
# Sum each row of x, turn the sums into a column, and add the column to y. One program could do that: walk along a row of x, then
# along the same row of y. nvFuser makes two kernels. What prevents one?

# %%
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


square = fl.spec((4096, 4096))
two = plan_of(lambda ops, x, y: ops.add(y, column(ops, x)), square, square)
two

# %% [markdown]
# ## Schedulers
#
# nvFuser does not invent a kernel for each fusion. It has a dozen **schedulers**, and each can write kernels of one kind:
# pointwise ones, reductions, transposes. The segmenter asks each scheduler in turn whether a set of ops can be one kernel; the
# first scheduler that accepts gets the set. If all refuse, the set has to be cut.

# %%
(between,) = two.boundaries()
for verdict in between.verdicts:
    print(f"{verdict.scheduler.value:24} {verdict.text}")

between

# %% [markdown]
# The cell above prints the answer of each. Most of these schedulers are made for other fusions. The sentence that matters comes from the scheduler that is meant for this
# one, and it is all that the boundary itself shows.
#
# The **reduction** scheduler walks along each row once and ends with one number per row. Expanding that number to a row of 4096
# elements again takes a second walk, which its kernels do not have.
#
# ## 1. A row that stays on chip
#
# Now add the column to **x** instead of y. Each element of x is needed twice: before the sum is known, and after.
#
# **Predict:** does this need one kernel or two?

# %%
question = predict("How many kernels does x + (sums of x as a column) need?", None)
question

# %%
kept = plan_of(lambda ops, x: ops.add(x, column(ops, x)), square)
outcome_1 = question.reveal(len(kept.segments), facts={"scheduler": kept.segments[0].scheduler.value})
outcome_1

# %% [markdown]
# A tensor that stays on chip across a reduction is a **persistent buffer**. It is what makes softmax and layer norm one kernel.
# And while such a kernel walks over its row a second time, it can read y as well. More ops, fewer kernels:

# %%
plan_of(lambda ops, x, y: ops.add(ops.add(x, column(ops, x)), y), square, square)

# %% [markdown]
# ## 2. A row that is too long
#
# Softmax needs its row three times: for the maximum, for the sum, and for the result. A row of a million numbers is too long
# for one kernel:

# %%
def softmax(ops, x):
    highest = ops.broadcast(ops.max(x, dims=[1]), is_broadcast_dim=[False, True])
    e = ops.exp(ops.sub(x, highest))
    return ops.truediv(e, column(ops, e))


long = plan_of(softmax, fl.spec((1024, 1 << 20)))
print(len(long.segments), "kernels,", f"{sum(s.bytes for s in long.segments) / 2**30:.0f} GiB moved")
long.boundaries()[0]

# %% [markdown]
# The numbers in the refusal show where the limit lies.
#
# **Predict:** what is the longest row of float32 numbers that one kernel can handle on an H200? On an A100, whose blocks cannot
# cooperate on a row because it has no clusters? And on the H200, if the row is bfloat16?

# %%
question = predict("The longest row for one kernel", {"H200": None, "A100": None, "H200, bfloat16": None})
question

# %% jupyter={"source_hidden": true}
# Searches the longest row that one kernel can handle, for three cases, and compares.
def longest(dtype, target):
    """Return the length of the longest row that one kernel can handle, in steps of 1024 elements."""
    low, high = 1, 4096  # low is one kernel, high is not
    while high - low > 1:
        middle = (low + high) // 2
        one = len(plan_of(softmax, fl.spec((1024, middle * 1024), dtype), target=target).segments) == 1
        low, high = (middle, high) if one else (low, middle)
    return low * 1024


found = {"H200": longest("float32", "H200"), "A100": longest("float32", "A100"), "H200, bfloat16": longest("bfloat16", "H200")}
outcome_2 = question.reveal(found)
outcome_2

# %% [markdown]
# So a fusion can be one kernel at one size and three at another, or one on this device and three on that one. The remedies are a
# narrower type, a device with clusters, or another algorithm; nvFuser never changes the algorithm.
#
# ## 3. Five more reasons, and their remedies
#
# Each of these fusions is cut in two, and each has a variant with the same or nearly the same result that is not. Before you run
# the cell, read the left column and say what causes the cut.

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

heads = ("fusion", "kernels", "refusal", "kernels, changed", "bytes saved")
rule = (":--", "--:", ":--", "--:", "--:")
Markdown("\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *table)))

# %% [markdown]
# These are the changes, in the order of the table:
#
# - **Reduce once**, over both axes, because a kernel reduces one set of axes.
# - **Look up first, compute later.** A kernel can read from arbitrary places in memory, but not from another thread's registers.
#   This order also computes only the rows that are needed.
# - **Split an axis instead of merging it** with one that is kept: loops over [4096, 8, 512] are also loops over [4096, 4096].
# - **Pass the tensor twice.** In x + xᵀ, both axes would have to share one loop. To a kernel, a second input is another tensor.
# - **Ask for it.** nvFuser sends matrix products to a library unless `fuse_matmul` is set, and so does fuser_lab.
#
# ## 4. Cuts that you make yourself
#
# `segment_set` computes nothing. It is a hint that a kernel should end there (lesson 04). A hint that was left in by mistake costs
# a trip through memory, and `why` says so:

# %%
hinted = plan_of(lambda ops, x: ops.exp(ops.segment_set(ops.sin(x))), square)
hinted.boundaries()[0]

# %% [markdown]
# ## 5. Cuts that follow from other cuts
#
# Here *a* reaches the last op both directly and through two reductions. The two reductions cannot share a kernel, so the last op
# has to wait for both. Can *a* and the last op be one kernel while the reductions stay outside? That kernel would have to run
# before the reductions *and* after them: a **cycle**.

# %%
def around(ops, x):
    a = ops.mul(x, 2.0)
    return ops.add(a, ops.sum(ops.sum(a, dims=[0]), dims=[0]))


waiting = plan_of(around, square)
display(waiting)
for boundary in waiting.boundaries():
    print(boundary.text)

# %% [markdown]
# ## Your turn
#
# **Predict** the number of kernels of each fusion. Sizes are [4096, 4096] unless stated otherwise.

# %%
QUIZ = {
    "log of the row sums of exp(x)": (lambda ops, x: ops.log(ops.sum(ops.exp(x), dims=[1])), [square]),
    "y times the row sums of x": (lambda ops, x, y: ops.mul(y, column(ops, x)), [square, square]),
    "row sums of x * y": (lambda ops, x, y: ops.sum(ops.mul(x, y), dims=[1]), [square, square]),
    "x over its column sums, [512, 4096]": (
        lambda ops, x: ops.truediv(x, ops.sum(x, dims=[0], keepdim=True)), [fl.spec((512, 4096))],
    ),
    "column sums of (x over its row sums)": (
        lambda ops, x: ops.sum(ops.truediv(x, ops.sum(x, dims=[1], keepdim=True)), dims=[0]), [square],
    ),
    "softmax of softmax": (lambda ops, x: softmax(ops, softmax(ops, x)), [square]),
}
question = predict("How many kernels, in this order?", None)  # as [1, 1, 1, 1, 1, 1]
question

# %%
plans = {name: plan_of(define, *sizes) for name, (define, sizes) in QUIZ.items()}
for name, plan in plans.items():
    question.show(f"{name:40}", *(segment.scheduler.value for segment in plan.segments))
outcome_3 = question.reveal([len(plan.segments) for plan in plans.values()])
outcome_3

# %%
score(outcome_1, outcome_2, outcome_3)

# %% [markdown]
# ## Where to go next
#
# - [docs/reasons.md](../docs/reasons.md) lists every reason, with a fusion that causes it and its remedies.
# - Who decides what is tried at all, and in which order? [03_how_the_segmenter_thinks](03_how_the_segmenter_thinks.ipynb).
# - `fl.explore(waiting)` shows the same sentences when you click an arrow.
#
# **Words:** [Boundary](../docs/glossary.md#boundary "A place between two segments, with the tensors that cross it and the reason for it.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Persistent buffer](../docs/glossary.md#persistent-buffer "A tensor that a kernel keeps on chip across a reduction, so that it is read from memory once and used twice.") · [Pointwise](../docs/glossary.md#pointwise "Computed element by element, without a reduction.") · [Reduction](../docs/glossary.md#reduction "An op that combines the elements along an axis, such as a sum or a maximum.") · [Register](../docs/glossary.md#register "Storage of a single thread inside the processor, the fastest there is.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [segment_set](../docs/glossary.md#segment_set "An op that computes nothing and tells the segmenter to end a segment there.")

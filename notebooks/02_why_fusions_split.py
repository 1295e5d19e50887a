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
# # Why not one kernel?
#
# Sum each row of x, put the sums back as a column, add the column to y. One program could do that: walk along a row of x,
# then along the same row of y. nvFuser makes two of it. Who says no?

# %%
import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.teaching import predict, score


def plan_of(define, *specs, **options):
    """Return the plan of a function of ops and tensors, for inputs of these sizes."""
    with FusionDefinition() as fd:
        tensors = [fd.define_tensor(shape=list(s.shape), contiguity=True, dtype=s.dtype) for s in specs]
        fd.add_output(define(fd.ops, *tensors))
    return fl.segment(fd, list(specs), **options)


def column(ops, x):
    """Return the sums of rows as a column."""
    return ops.broadcast(ops.sum(x, dims=[1]), is_broadcast_dim=[False, True])


square = fl.spec((4096, 4096))
two = plan_of(lambda ops, x, y: ops.add(y, column(ops, x)), square, square)
two

# %% [markdown]
# ## Schedulers
#
# nvFuser does not invent a kernel for each fusion. It has a dozen **schedulers**, and each knows how to write kernels of one
# kind: pointwise ones, reductions, transposes. Whether a set of ops may be one kernel is asked of each in turn; the first
# that accepts gets it. If all refuse, there is a cut somewhere.

# %%
(between,) = two.boundaries()
for verdict in between.verdicts:
    print(f"{verdict.scheduler.value:24} {verdict.text}")

# %% [markdown]
# Most of them are made for something else. The sentence to read is the one of the scheduler that is meant for the fusion;
# printing the answer shows just that:

# %%
between

# %% [markdown]
# The **reduction** scheduler walks along each row once. At its end there is one number per row; to make a row of 4096 elements
# of it again would take a second walk, and its kernels have none.
#
# ## 1. A row that is kept
#
# Now the column is added to **x** instead of y. Each element of x is needed twice, before the sum is known and after.
#
# **Predict:** one kernel or two?

# %%
question = predict("How many kernels does x + (sums of x as a column) need?", None)
question

# %%
kept = plan_of(lambda ops, x: ops.add(x, column(ops, x)), square)
outcomes = [
    question.reveal(
        len(kept.segments), hints={2: "As above, you think. But here the second walk is along the row that was just read."},
        because=f"The {kept.segments[0].scheduler.value} scheduler keeps the row in registers and walks over it a second time.",
    ),
]
outcomes[0]

# %% [markdown]
# A tensor that is kept across a reduction is a **persistent buffer**. That is how softmax and layer norm become one kernel.
# And while such a kernel walks over its row again, it can just as well read y. More ops, fewer kernels:

# %%
plan_of(lambda ops, x, y: ops.add(ops.add(x, column(ops, x)), y), square, square)

# %% [markdown]
# ## 2. A row that is too long
#
# Softmax needs its row three times: for the maximum, for the sum, for the result. A row of half a million numbers is cut:

# %%


def softmax(ops, x):
    highest = ops.broadcast(ops.max(x, dims=[1]), is_broadcast_dim=[False, True])
    e = ops.exp(ops.sub(x, highest))
    return ops.truediv(e, column(ops, e))


long = plan_of(softmax, fl.spec((1024, 1 << 19)))
print(len(long.segments), "kernels,", f"{sum(s.bytes for s in long.segments) / 2**30:.0f} GiB moved")
long.boundaries()[0]

# %% [markdown]
# The numbers in the refusal tell where the limit is.
#
# **Predict:** how many float32 numbers may a row have at most, for one kernel on an H200? And on an A100, whose blocks cannot
# work together on a row (no clusters)? And if the row is bfloat16 on the H200?

# %%
question = predict("The longest row for one kernel", {"H200": None, "A100": None, "H200, bfloat16": None})
question

# %%


def longest(dtype, target):
    """Return the longest row, in steps of 1024 elements, that is one kernel."""
    low, high = 1, 1024  # low is one kernel, high is not
    while high - low > 1:
        middle = (low + high) // 2
        one = len(plan_of(softmax, fl.spec((1024, middle * 1024), dtype), target=target).segments) == 1
        low, high = (middle, high) if one else (low, middle)
    return low * 1024


found = {"H200": longest("float32", "H200"), "A100": longest("float32", "A100"), "H200, bfloat16": longest("bfloat16", "H200")}
outcomes.append(
    question.reveal(
        found,
        because="Half the registers of a multiprocessor, times the blocks of a cluster, divided by the bytes of an element.",
    )
)
outcomes[1]

# %% [markdown]
# So a fusion may be one kernel for one size and three for another, one on this device and three on that. Remedies are a
# narrower type, a device with clusters, or another algorithm; nvFuser changes no algorithms.
#
# ## 3. Five more, and what heals them
#
# Each of these is cut in two, and each has a neighbour with the same result, or nearly, that is not. Before you run the cell,
# read the left column and say why.

# %%
import pandas as pd

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
    table.append((name, len(before.segments), refusal, len(after.segments), 1 - moved(after) / moved(before)))

columns = ["fusion", "kernels", "refusal", "kernels, changed", "bytes saved"]
pd.DataFrame(table, columns=columns).style.format({"bytes saved": "{:.0%}"}).set_properties(**{"text-align": "left"}).hide()

# %% [markdown]
# What was changed, in this order:
#
# - **Reduce once**, over both axes: a kernel reduces one set of axes.
# - **Look up first, compute later.** A kernel reads at arbitrary places from memory, not from another thread's registers. It
#   also computes only the rows that are wanted.
# - **Split an axis, do not merge it** with one that is kept: loops over [4096, 8, 512] are loops over [4096, 4096] too.
# - **Pass it twice.** In x + xᵀ the two axes would have to be one loop. To a kernel, a second input is another tensor.
# - **Ask for it.** Products go to a library unless `fuse_matmul` is set, in nvFuser too.
#
# ## 4. Cuts that you make yourself
#
# `segment_set` computes nothing. It is a hint that a kernel should end there (lesson 04). Forgotten, it costs a trip through
# memory, and `why` says so:

# %%
hinted = plan_of(lambda ops, x: ops.exp(ops.segment_set(ops.sin(x))), square)
hinted.boundaries()[0]

# %% [markdown]
# ## 5. Cuts that follow from cuts
#
# Here *a* goes to the last op directly, and also through two reductions. These cannot share a kernel, so the last op has to wait
# for both. Could *a* and the last op be one kernel, with the reductions outside? It would have to run before them *and* after
# them: a **cycle**.

# %%


def around(ops, x):
    a = ops.mul(x, 2.0)
    return ops.add(a, ops.sum(ops.sum(a, dims=[0]), dims=[0]))


waiting = plan_of(around, square)
waiting

# %%
for boundary in waiting.boundaries():
    print(boundary.text)

# %% [markdown]
# ## Your turn
#
# **Predict** the number of kernels of each. Sizes are [4096, 4096] unless something else stands there.

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
    print(f"{name:40}", *(segment.scheduler.value for segment in plan.segments))
outcomes.append(
    question.reveal(
        [len(plan.segments) for plan in plans.values()],
        hints={(1, 2, 1, 2, 2, 2): "A row, or a column that is short enough, can be kept: then what comes after the sum is no new walk."},
        because="Only the second one needs a long row after a reduction that no reduction has read: y. All others keep what they need "
        "again, or need nothing again.",
    )
)
outcomes[2]

# %%
score(*outcomes)

# %% [markdown]
# ## Where to go on
#
# - [docs/reasons.md](../docs/reasons.md) has every reason, with a fusion that gets it and what can be done.
# - Who decides what is tried at all, and in which order? [03_how_the_segmenter_thinks](03_how_the_segmenter_thinks.ipynb).
# - `fl.explore(waiting)` shows the same sentences when you click an arrow.

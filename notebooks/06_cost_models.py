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
# # Proved the cheapest. Is it the fastest?
#
# Sums of rows and of columns of sin(x). In the plan below each of two kernels computes the sines for itself. Nothing passes
# between them, and a search has **proved** that no plan costs less. The plan further down stores the sines and reads them
# again, which is half as many bytes again. Which of the two is faster, and by how much?

# %%
from itertools import combinations
from numbers import Real

import numpy as np

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition, SegmenterOptions
from fuser_lab.teaching import on_gpu, predict, score

rng = np.random.default_rng(0)


def defined(body, *shapes):
    """Return a definition of a function of ops and tensors that returns its outputs, and arrays for it."""
    with FusionDefinition() as fd:
        tensors = [fd.define_tensor(shape=list(s), contiguity=True, dtype=DataType.Float) for s in shapes]
        for output in body(fd.ops, *tensors):
            fd.add_output(output)
    return fd, [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


SHAPE = (1024, 2048)


def two_plans(op):
    """Return two plans of the sums of columns and of rows of op(x), and inputs: computed twice, and stored."""

    def body(ops, x):
        c = getattr(ops, op)(x)
        return ops.sum(c, dims=[0]), ops.sum(c, dims=[1])

    fd, inputs = defined(body, SHAPE)
    store = SegmenterOptions(forward_inputs=False)
    return fl.segment(fd, inputs, name="recomputed"), fl.segment(fd, inputs, options=store, name="stored"), inputs


recomputed, stored, sine_inputs = two_plans("sin")
recomputed

# %%
print(str(recomputed.certificate()).split("every plan pays")[0])

# %%
stored

# %% [markdown]
# ## 1. Ask the clock
#
# **Predict:** how many times as long does *recomputed* take as *stored*, on this machine's processor? Below 1 it is the faster
# one. (Within 30 %.)

# %%
question = predict("Time recomputed / time stored", None)
question

# %%
measured = {}  # of each fusion that we time: its plans with their seconds, and whether the difference is noise


def moved(plan):
    return sum(segment.bytes for segment in plan.segments)


def seconds_of(fusion, plans, inputs):
    """Return the median times of plans, in seconds; they are kept for the end of the lesson."""
    times = fl.time(plans, inputs, seconds=0.05, progress=False)
    totals = [row.median for row in times.rows if row.segment is None]
    frame = times.to_pandas(verbose=True)
    measured[fusion] = list(zip(plans, totals, strict=True)), bool(frame[frame["segment"] == "total"]["tie"].any())
    return totals


first, second = seconds_of("sin", [recomputed, stored], sine_inputs)
print(f"recomputed {moved(recomputed) / 1e6:5.1f} MB {1e3 * first:6.1f} ms\nstored     {moved(stored) / 1e6:5.1f} MB {1e3 * second:6.1f} ms")
outcomes = [
    question.reveal(
        first / second, within=0.3, hints={2 / 3: "That is the ratio of the bytes. Are bytes what this kernel waits for?"},
        because="A sine is many instructions. The processor waits for them, not for memory, and one plan has twice "
        "as many. A count of bytes knows nothing of that.",
    ),
]
outcomes[0]

# %% [markdown]
# The proof was right: it spoke of a **cost model**, a guess that is cheap to make. This one counts bytes and launches and
# nothing else, for an H200. It is right where memory is what everybody waits for. This lesson looks for the places where it is
# not. Numbers are measured while you read, on your machine; so yours differ from your neighbour's.
#
# **Predict:** the same two plans with `neg` in place of `sin`: same graph, same sizes, same bytes, same proof. Which is faster
# now?

# %%
question = predict("Faster with neg", None, choices=["recomputed", "stored", "a tie"])
question

# %%
*plans, neg_inputs = two_plans("neg")
times = seconds_of("neg", plans, neg_inputs)
for plan, time in zip(plans, times, strict=True):
    print(f"{plan.name:10} {moved(plan) / 1e6:5.1f} MB {1e3 * time:6.2f} ms")
faster = "a tie" if measured["neg"][1] else "recomputed" if times[0] < times[1] else "stored"
outcomes.append(
    question.reveal(
        faster, hints={"stored": "A sign is flipped on the way from memory to the sum, at no cost that one could measure."},
        because="To negate twice costs nothing; to write and read again does. One graph, one count of bytes, and the op decides.",
    )
)
outcomes[1]

# %% [markdown]
# ## 2. A model of this machine
#
# The model has two numbers, a bandwidth and the time of a launch. Which are they here? Two kernels, an add and a mul, or one for
# both, for small and for large matrices:

# %%


def add_mul(ops, x, y):
    return (ops.mul(ops.add(x, y), y),)


SIZES = (64, 2048)
for n in SIZES:
    fd, inputs = defined(add_mul, (n, n), (n, n))
    fused = fl.segment(fd, inputs, name="fused")
    times = seconds_of(n, [fused, fused.cut("T2").renamed("cut")], inputs)
    print(f"{n:4} x {n:4}: fused {1e6 * times[0]:7.0f} µs, cut {1e6 * times[1]:7.0f} µs")

# %% [markdown]
# The large ones tell how many bytes a second go through memory. The small ones move next to nothing, so they tell what it costs
# to start at all:
#
# > time = start × segments + bytes / bandwidth

# %%
(_, _), (largest, largest_time) = measured[SIZES[-1]][0]
(_, smallest_time), _ = measured[SIZES[0]][0]
start, bandwidth = smallest_time, moved(largest) / largest_time
print(f"start {1e6 * start:.0f} µs, bandwidth {bandwidth / 1e9:.1f} GB/s")


def model(plan):
    return start * len(plan.segments) + moved(plan) / bandwidth


# %% [markdown]
# ## 3. Caches
#
# **Predict:** matrices of 512 × 512, one kernel. Is the measured time *more* than the model says, *less*, or *about* the same
# (within 20 %)?

# %%
question = predict("Measured, compared with the model", None, choices=["more", "less", "about"])
question

# %%
fd, inputs = defined(add_mul, (512, 512), (512, 512))
plan = fl.segment(fd, inputs)
(time,) = seconds_of(512, [plan], inputs)
ratio = time / model(plan)
print(f"{moved(plan) / 1e6:.1f} MB, model {1e6 * model(plan):.0f} µs, measured {1e6 * time:.0f} µs, ratio {ratio:.2f}")
outcomes.append(
    question.reveal(
        "less" if ratio < 0.8 else "more" if ratio > 1.2 else "about",
        because="What fits into a cache need not go to memory, and a byte costs less there than the model says.",
    )
)
outcomes[2]

# %% [markdown]
# A GPU is similar: an H200 has a second-level cache of 50 MB, so what one kernel has just written is often still there when the
# next one reads it. `fl.time` on a GPU therefore empties the cache between measurements, and shows the warm time beside it.
#
# ## 4. Small tensors: a cut for nothing
#
# The cut in section 2 doubles the bytes at both sizes: 3 n² numbers fused, 6 n² cut.
#
# **Predict:** how many times as long as the fused one does the cut plan take for the small size and for the large one? (Within
# 50 %.)

# %%
question = predict("Time cut / time fused", {64: None, 2048: None})
question

# %%
ratios = {n: measured[n][0][1][1] / measured[n][0][0][1] for n in SIZES}
outcomes.append(
    question.reveal(
        ratios, within=0.5, hints={64: {2: "Twice the bytes, yes. But are bytes what so small a kernel waits for?"}},
        because="Small tensors cost their start and little else, whatever the plan. The ratio of bytes shows where memory decides.",
    )
)
outcomes[3]

# %% [markdown]
# ## 5. The order of access
#
# x + y, and x + yᵀ: as many bytes, and as many additions.
#
# **Predict:** how many times as long does the second one take? (Within 50 %.)

# %%
question = predict("Time of x + y transposed / time of x + y", None)
question

# %%
times = {}
for name, body in (
    ("x + y", lambda ops, x, y: (ops.add(x, y),)),
    ("x + y transposed", lambda ops, x, y: (ops.add(x, ops.permute(y, dims=[1, 0])),)),
):
    fd, inputs = defined(body, (1024, 1024), (1024, 1024))
    plan = fl.segment(fd, inputs)
    (times[name],) = seconds_of(name, [plan], inputs)
    print(f"{name:17} {plan.segments[0].scheduler.value:10} {moved(plan) / 1e6:.1f} MB, measured {1e6 * times[name]:6.0f} µs")
outcomes.append(
    question.reveal(
        times["x + y transposed"] / times["x + y"], within=0.5,
        because="Memory is read in lines of neighbours. Whoever walks across them has to turn tiles around, which takes time even "
        "where it takes no bytes. Lesson 15 is about that.",
    )
)
outcomes[4]

# %% [markdown]
# ## What a model is good for
#
# It need not tell the time. It has to tell **which plan is faster**, before anything runs. So ask it just that, of all pairs of
# plans of one fusion that were measured above.

# %%


def judged(cost):
    """Return how many of the measured pairs a cost function puts in the right order, and how many there are."""
    right = []
    for fusion, (plans, tie) in measured.items():
        for (a, time_a), (b, time_b) in combinations(plans, 2):
            if not all(isinstance(cost(plan), Real) and cost(plan) > 0 for plan in (a, b)):
                print(f"a cost is a positive number; for {a.name!r} of {fusion} it is {cost(a)!r}")
                return 0, len(measured)
            right.append(tie or (cost(a) < cost(b)) == (time_a < time_b))
            verdict = "a tie, either is right" if tie else "right" if right[-1] else "WRONG"
            print(f"{fusion!s:5} {a.name:10} {1e6 * time_a:7.0f} µs  {b.name:6} {1e6 * time_b:7.0f} µs  {verdict}")
    return sum(right), len(right)


print("{} of {} right".format(*judged(moved)))

# %% [markdown]
# ## Your turn: a better model
#
# Write a cost function that gets **all** pairs right: seconds for launches, for bytes, and for arithmetic. `elements` counts how
# often the kernels of a plan compute an op of some name; `per_sine` is what one of them cost in section 1.

# %%


def elements(plan, op):
    return sum(e.out.numel for segment in plan.segments for e in segment.exprs if e.op.name == op)


per_sine = (first - second) / (elements(recomputed, "sin") - elements(stored, "sin"))
print(f"{1e9 * per_sine:.1f} ns for a sine, {1e9 * 8 / bandwidth:.1f} ns to read an element and write it")


def my_cost(plan):
    return model(plan)  # + ...


right, pairs = judged(my_cost)
print(f"{right} of {pairs} right:", "well done" if right == pairs else "what do the kernels of the wrong pair do that no byte shows?")

# %% [markdown]
# ## On a GPU
#
# Is the plan that is slower here slower there? Lesson 01 asked how many operations an H200 does in the time of one byte. If a
# sine takes some twenty of them, which is a guess, a model with arithmetic says for the H200:

# %%
gpu, OPERATIONS_OF_A_SINE = recomputed.oracle.device, 20
for plan in (recomputed, stored):
    memory = moved(plan) / (gpu.bandwidth * 1e9)
    arithmetic = OPERATIONS_OF_A_SINE * elements(plan, "sin") / (gpu.fp32 * 1e12)
    print(f"{plan.name:10} memory {1e6 * memory:5.1f} µs, sines {1e6 * arithmetic:5.1f} µs")

# %% [markdown]
# A kernel loads the next elements while it computes, so the larger one of two such numbers counts, not their sum. Look at it: by
# how much would a sine have to be dearer before *stored* wins? With a GPU here, the clock has the last word; the ratio is in the
# last column.

# %%
on_device = on_gpu(sine_inputs)
if on_device:
    print(fl.time([recomputed, stored], on_device, seconds=0.1, progress=False))
else:
    print("There is no GPU here. On one, this cell prints the table of times of both plans, with the ratio.")

# %%
score(*outcomes)

# %% [markdown]
# ## Where to go on
#
# - A model ranks candidates; a measurement decides. `fl.time([a, b], inputs)` checks results first, gives medians with their
#   spread, and calls a tie a tie ([08_profile_and_compare](08_profile_and_compare.ipynb)).
# - [docs/benchmarks.md](../docs/benchmarks.md) has kernels on an H200 as a share of what a plain copy reaches. Wherever that is far below 1, bytes
#   alone mislead.
# - [docs/optimal.md](../docs/optimal.md) says what certificates count and what they do not. [15_layouts](15_layouts.ipynb) has a cost model for the order of axes.

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
# # The same bytes, another time
#
# One fusion, two plans, three results of sin(x). In the first picture each kernel computes the sines for itself; in the second
# they are computed once, stored, and read again. Look at the headers: **both move the same bytes.** Lesson 05 would
# call the second one better by one launch, 4 µs. Is that all?

# %%
from itertools import combinations

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


def shared_sines(ops, x, y, z):
    c = ops.sin(x)
    return ops.sum(c, dims=[0]), ops.sum(ops.mul(c, y), dims=[1]), ops.mul(c, z)


shape = (256, 1024)
sines, sine_inputs = defined(shared_sines, shape, shape, shape)
recomputed = fl.segment(sines, sine_inputs, name="recomputed")
recomputed

# %%
stored = fl.segment(sines, sine_inputs, options=SegmenterOptions(forward_inputs=False), name="stored")
stored

# %% [markdown]
# **Predict:** how many times as long does the first plan take as the second, on this machine's processor? (Within 30 %.)

# %%
question = predict("Time recomputed / time stored", None)
question

# %%
measured = {}  # (plan, seconds) of each fusion that we time


def seconds_of(fusion, plans, inputs):
    """Return the median times of plans, in seconds; they are kept for the end of the lesson."""
    rows = fl.time(plans, inputs, seconds=0.05, progress=False).rows
    times = [row.median for row in rows if row.segment is None]
    measured[fusion] = list(zip(plans, times, strict=True))
    return times


first, second = seconds_of("sines", [recomputed, stored], sine_inputs)
print(f"recomputed {1e3 * first:.1f} ms, stored {1e3 * second:.1f} ms")
outcomes = [
    question.reveal(
        first / second, within=0.3,
        because="A sine is many instructions, and three kernels compute one for every element instead of one kernel. How well the "
        "loops around it use the processor's vectors differs too; a count of bytes knows nothing of that either.",
    ),
]
outcomes[0]

# %% [markdown]
# A **cost model** is a guess that is cheap to make. This one counts bytes and launches, and nothing else. It is right where
# memory is what everybody waits for. This lesson looks for the places where it is not. Numbers are measured while you read, on
# your machine; so yours differ from your neighbour's.
#
# ## 1. A model of this machine
#
# Two kernels, an add and a mul, or one for both, for small and for large matrices:

# %%


def add_mul(ops, x, y):
    return (ops.mul(ops.add(x, y), y),)


def moved(plan):
    return sum(segment.bytes for segment in plan.segments)


SIZES = (64, 2048)
for n in SIZES:
    fd, inputs = defined(add_mul, (n, n), (n, n))
    fused = fl.segment(fd, inputs, name="fused")
    times = seconds_of(n, [fused, fused.cut("T2").renamed("cut")], inputs)
    print(f"{n:4} x {n:4}: fused {1e6 * times[0]:7.0f} µs, cut {1e6 * times[1]:7.0f} µs")

# %% [markdown]
# The large ones tell how many bytes a second go through memory. The small ones move next to nothing, so they tell what it costs
# to start at all. Two numbers, and there is a model:
#
# > time = start + bytes / bandwidth

# %%
largest, largest_time = measured[SIZES[-1]][1]
smallest, smallest_time = measured[SIZES[0]][0]
start, bandwidth = smallest_time, moved(largest) / largest_time
print(f"start {1e6 * start:.0f} µs, bandwidth {bandwidth / 1e9:.1f} GB/s")


def model(plan):
    return start + moved(plan) / bandwidth


# %% [markdown]
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
outcomes[1]

# %% [markdown]
# ## 2. Small tensors: a cut for nothing
#
# The cut above doubles the bytes at both sizes: 3 n² numbers fused, 6 n² cut.
#
# **Predict:** how many times as long as the fused one does the cut plan take for the small size and for the large one? (Within 50 %.)

# %%
question = predict("Time cut / time fused", {64: None, 2048: None})
question

# %%
outcomes.append(
    question.reveal(
        {n: measured[n][1][1] / measured[n][0][1] for n in (64, 2048)}, within=0.5,
        because="Small tensors cost their start and little else, whatever the plan. The ratio of bytes shows where memory decides.",
    )
)
outcomes[2]

# %% [markdown]
# A GPU is similar: an H200 has a cache of 50 MB, so what one kernel has just written is often still there when the next
# one reads it. `fl.time` on a GPU therefore empties the cache between measurements, and shows the warm time beside it.
#
# ## 3. Arithmetic
#
# Back to the sines. The first plan computes three for each element, the second one. If all else were the same, the difference
# would be what two sines cost:

# %%
per_sine = (first - second) / (2 * shape[0] * shape[1])
print(f"{1e9 * per_sine:.2f} ns for a sine, {1e9 * 8 / bandwidth:.2f} ns to read an element and write it")

# %% [markdown]
# Lesson 01 counted how much arithmetic an H200 does for each byte. There the ratio is another, and so may be the faster plan.
#
# ## 4. The order of access
#
# x + y, and x + yᵀ. Same bytes. Which is slower, and why? Lesson 15 is about that.

# %%
for name, body in (
    ("x + y", lambda ops, x, y: (ops.add(x, y),)),
    ("x + y transposed", lambda ops, x, y: (ops.add(x, ops.permute(y, dims=[1, 0])),)),
):
    fd, inputs = defined(body, (1024, 1024), (1024, 1024))
    plan = fl.segment(fd, inputs)
    (time,) = seconds_of(name, [plan], inputs)
    print(f"{name:17} {plan.segments[0].scheduler.value:10} {moved(plan) / 1e6:.1f} MB, measured {1e6 * time:6.0f} µs")

# %% [markdown]
# ## What a model is good for
#
# It need not tell the time. It has to tell **which plan is faster**, before anything runs. So ask it just that, of all pairs of
# plans of one fusion that were measured above. Where two costs differ by less than 1 %, it does not tell.

# %%


def judged(cost):
    """Return how many of the measured pairs a cost function puts in the right order, and how many there are."""
    right = []
    for fusion, plans in measured.items():
        for (a, time_a), (b, time_b) in combinations(plans, 2):
            tells = abs(cost(a) - cost(b)) > 0.01 * cost(a)
            right.append(tells and (cost(a) < cost(b)) == (time_a < time_b))
            verdict = "right" if right[-1] else "WRONG" if tells else "does not tell"
            print(f"{fusion!s:5} {a.name:10} {1e6 * time_a:7.0f} µs  {b.name:6} {1e6 * time_b:7.0f} µs  {verdict}")
    return sum(right), len(right)


print("{} of {} right".format(*judged(moved)))

# %% [markdown]
# ## Your turn: a better model
#
# Write a cost function that gets more pairs right: seconds for bytes, and for arithmetic. `elements` counts how often the
# kernels of a plan compute an op of some name; `per_sine`, `bandwidth` and `start` are from above.

# %%


def elements(plan, op):
    return sum(e.out.nbytes // 4 for segment in plan.segments for e in segment.exprs if e.op.name == op)


def my_cost(plan):
    return moved(plan) / bandwidth  # + ...


print("{} of {} right".format(*judged(my_cost)))
print(f"recomputed: {elements(recomputed, 'sin'):,} sines, stored: {elements(stored, 'sin'):,}")

# %% [markdown]
# ## On a GPU
#
# Is the first plan of this lesson as bad there? The ratio is in the last column.

# %%
on_device = on_gpu(sine_inputs)
if on_device:
    print(fl.time([stored, recomputed], on_device, seconds=0.1, progress=False))
else:
    print("There is no GPU here.")

# %%
score(*outcomes)

# %% [markdown]
# ## Where to go on
#
# - A model ranks candidates; a measurement decides. `fl.time([a, b], inputs)` checks results first, gives medians with their
#   spread, and calls a tie a tie.
# - `docs/optimal.md` says what certificates count and what they do not.
# - `15_layouts` has a cost model for the order of axes.

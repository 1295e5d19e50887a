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
# # Cost models: what a count of bytes misses
#
# After this lesson, you can build a cost model for your machine, and say where such a model stops being true. The lesson takes about 25 minutes.
#
# The fusion below computes the row sums and the column sums of sin(x). In the plan *recomputed*, each of two kernels computes the sines for
# itself, so no tensor passes between the kernels, and a search has **proved** that no plan costs less. In the plan *stored*, one
# kernel stores the sines and the other one reads them, so this plan moves more bytes. Which plan is faster, and by how much?

# %%
from itertools import combinations
from numbers import Real

import numpy as np

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition, SegmenterOptions
from fuser_lab.teaching import on_gpu, read_questions, score

predict = read_questions("questions/06_cost_models.toml").predict

rng = np.random.default_rng(0)


def defined(body, *shapes):
    """Return the definition that a function of ops and tensors makes, and input arrays; the function returns the outputs."""
    with FusionDefinition() as fd:
        tensors = [fd.define_tensor(shape=list(s), contiguity=True, dtype=DataType.Float) for s in shapes]
        for output in body(fd.ops, *tensors):
            fd.add_output(output)
    return fd, [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


SHAPE = (1024, 2048)


def two_plans(op):
    """Return two plans for the column sums and row sums of op(x), which is computed twice or stored, and inputs."""

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
stored

# %% [markdown]
# ## 1. Measure it
#
# **Predict:** on this machine's processor, divide the time of *recomputed* by the time of *stored*. What is the ratio? A ratio below 1
# means that *recomputed* is faster. (An answer within 30 % counts as right.)

# %%
question = predict("Time recomputed / time stored", None)
question

# %%
measured = {}  # for each fusion: its plans with their times in seconds, and whether the difference is within the noise


def moved(plan):
    return sum(segment.bytes for segment in plan.segments)


def seconds_of(fusion, plans, inputs):
    """Return the median times of plans, in seconds, and keep them for the end of the lesson."""
    times = fl.time(plans, inputs, seconds=0.05, progress=False)
    totals = [row.median for row in times.rows if row.segment is None]
    frame = times.to_pandas(verbose=True)
    measured[fusion] = list(zip(plans, totals, strict=True)), bool(frame[frame["segment"] == "total"]["tie"].any())
    return totals


first, second = seconds_of("sin", [recomputed, stored], sine_inputs)
question.show(f"recomputed {moved(recomputed) / 1e6:5.1f} MB {1e3 * first:6.1f} ms\nstored     {moved(stored) / 1e6:5.1f} MB {1e3 * second:6.1f} ms")
outcome_1 = question.reveal(first / second, within=0.3)
outcome_1

# %% [markdown]
# The proof is right, but it is about the costs of a **cost model**, which is an estimate of the time that is cheap to compute. This model
# counts only the bytes and the launches, for an H200. It is accurate if every kernel waits for memory. This lesson shows when it is
# not accurate. All times are measured on your machine, so they differ from the times on another machine.
#
# **Predict:** now replace `sin` by `neg`. The graph, the sizes, the bytes and the proof stay the same. Which plan is faster now?

# %%
question = predict("Faster with neg", None, choices=["recomputed", "stored", "a tie"])
question

# %%
*plans, neg_inputs = two_plans("neg")
times = seconds_of("neg", plans, neg_inputs)
for plan, time in zip(plans, times, strict=True):
    question.show(f"{plan.name:10} {moved(plan) / 1e6:5.1f} MB {1e3 * time:6.2f} ms")
faster = "a tie" if measured["neg"][1] else "recomputed" if times[0] < times[1] else "stored"
outcome_2 = question.reveal(faster)
outcome_2

# %% [markdown]
# ## 2. A model of this machine
#
# The model has two numbers: the bandwidth of the memory, and the time to start a kernel. To find these numbers for this machine, the next
# cell times an add and a mul, as two kernels and as one kernel, for small and large matrices.
#
# With large matrices, the time of one kernel shows how many bytes per second pass through memory. Small matrices have few bytes, so their
# time is the time to start a kernel:
#
# > time = start × segments + bytes / bandwidth

# %%
def add_mul(ops, x, y):
    return (ops.mul(ops.add(x, y), y),)


SIZES = (64, 2048)
for n in SIZES:
    fd, inputs = defined(add_mul, (n, n), (n, n))
    fused = fl.segment(fd, inputs, name="fused")
    times = seconds_of(n, [fused, fused.cut("T2").renamed("cut")], inputs)
    print(f"{n:4} x {n:4}, fused: {1e6 * times[0]:7.0f} µs")
(_, _), (largest, largest_time) = measured[SIZES[-1]][0]
(_, smallest_time), _ = measured[SIZES[0]][0]
start, bandwidth = smallest_time, moved(largest) / largest_time
print(f"start {1e6 * start:.0f} µs, bandwidth {bandwidth / 1e9:.1f} GB/s")


def model(plan):
    return start * len(plan.segments) + moved(plan) / bandwidth

# %% [markdown]
# ## 3. Caches
#
# **Predict:** for one kernel and matrices of 512 × 512, is the measured time *more* than the time of the model, *less*, or *about* the same
# (within 20 %)?

# %%
question = predict("Measured, compared with the model", None, choices=["more", "less", "about"])
question

# %%
fd, inputs = defined(add_mul, (512, 512), (512, 512))
plan = fl.segment(fd, inputs)
(time,) = seconds_of(512, [plan], inputs)
ratio = time / model(plan)
question.show(f"{moved(plan) / 1e6:.1f} MB, model {1e6 * model(plan):.0f} µs, measured {1e6 * time:.0f} µs, ratio {ratio:.2f}")
outcome_3 = question.reveal("less" if ratio < 0.8 else "more" if ratio > 1.2 else "about")
outcome_3

# %% [markdown]
# A GPU also has caches. An H200 has an L2 cache of 50 MB, which often still contains what one kernel has written when the next kernel reads it.
# On a GPU, `fl.time` therefore clears this cache before each measurement. It shows the time with a warm cache in a separate column.
#
# ## 4. Small tensors: a cut saves nothing
#
# The cut in section 2 doubles the bytes at both sizes, from 3 n² numbers when fused to 6 n² when cut.
#
# **Predict:** divide the time of the cut plan by the time of the fused plan. What is the ratio for the small matrices, and for the large
# matrices? (Answers within 50 % count as right.)

# %%
question = predict("Time cut / time fused", {64: None, 2048: None})
question

# %%
ratios = {n: measured[n][0][1][1] / measured[n][0][0][1] for n in SIZES}
for n in SIZES:
    question.show(f"{n:4} x {n:4}:", *(f"{plan.name} {1e6 * time:.0f} µs" for plan, time in measured[n][0]))
outcome_4 = question.reveal(ratios, within=0.5)
outcome_4

# %% [markdown]
# ## What a model is good for
#
# To choose a plan, a model does not need to predict exact times. It only has to predict **which plan is faster**. The next cell asks the model
# about all pairs of plans of the same fusion that were measured above, and compares its answers with the measured times.

# %% jupyter={"source_hidden": true}
# Asks a cost function about each pair of measured plans, and prints which pairs it orders as the times do.
def judged(cost):
    """Return how many of the measured pairs a cost function orders correctly, and the number of pairs."""
    right = []
    for fusion, (plans, tie) in measured.items():
        for (a, time_a), (b, time_b) in combinations(plans, 2):
            if not all(isinstance(cost(plan), Real) and cost(plan) > 0 for plan in (a, b)):
                print(f"a cost is a positive number; for {a.name!r} of {fusion} it is {cost(a)!r}")
                return 0, len(measured)
            right.append(tie or (cost(a) < cost(b)) == (time_a < time_b))
            verdict = "a tie, either order is right" if tie else "right" if right[-1] else "WRONG"
            print(f"{fusion!s:5} {a.name:10} {1e6 * time_a:7.0f} µs  {b.name:6} {1e6 * time_b:7.0f} µs  {verdict}")
    return sum(right), len(right)


print("{} of {} right".format(*judged(moved)))

# %% [markdown]
# ## Your turn: a better model
#
# Write a cost function that gets **all** pairs right, with terms in seconds for launches, for bytes, and for arithmetic. `elements`
# counts how many times the kernels of a plan compute a given op; `per_sine` is the time of one sine in section 1.

# %%
def elements(plan, op):
    return sum(e.out.numel for segment in plan.segments for e in segment.exprs if e.op.name == op)


per_sine = (first - second) / (elements(recomputed, "sin") - elements(stored, "sin"))
print(f"{1e9 * per_sine:.1f} ns for a sine, {1e9 * 8 / bandwidth:.1f} ns to read an element and write it")


def my_cost(plan):
    return model(plan)  # + ...


right, pairs = judged(my_cost)
print(f"{right} of {pairs} right:", "well done" if right == pairs else "what do the kernels of the wrong pair do that bytes do not show?")

# %% [markdown]
# ## On a GPU
#
# Is the plan that is slower here also slower on a GPU? Lesson 01 calculated how many operations an H200 can perform for each byte that it
# reads. Assume that a sine takes twenty operations. Then a model with arithmetic gives these times for the H200:
#
# A kernel loads the next elements while it computes, so its time is the larger of the two numbers, not their sum. How many operations would a
# sine have to take before *stored* is faster? If this machine has a GPU, the next cell measures both plans; the ratio is in the last
# column.

# %%
gpu, OPERATIONS_OF_A_SINE = recomputed.oracle.device, 20
for plan in (recomputed, stored):
    memory = moved(plan) / (gpu.bandwidth * 1e9)
    arithmetic = OPERATIONS_OF_A_SINE * elements(plan, "sin") / (gpu.fp32 * 1e12)
    print(f"{plan.name:10} memory {1e6 * memory:5.1f} µs, sines {1e6 * arithmetic:5.1f} µs")
on_device = on_gpu(sine_inputs)
if on_device:
    print(fl.time([recomputed, stored], on_device, seconds=0.1, progress=False))
else:
    print("There is no GPU here. With a GPU, this cell prints the times of both plans and their ratio.")

# %%
score(outcome_1, outcome_2, outcome_3, outcome_4)

# %% [markdown]
# ## Where to go next
#
# - To decide between two plans, measure them. `fl.time([a, b], inputs)` checks the results first, prints medians with their spread, and
#   marks ties ([08_profile_and_compare](08_profile_and_compare.ipynb)).
# - [docs/benchmarks.md](../docs/benchmarks.md) compares kernels on an H200 with a plain copy of the same bytes. If a kernel is much slower than
#   the copy, its bytes do not predict its time.
# - [docs/optimal.md](../docs/optimal.md) describes what certificates count, and what they omit. [15_layouts](15_layouts.ipynb) has a
#   cost model for the order of axes.
#
# **Words:** [Certificate](../docs/glossary.md#certificate "A proof of how far a plan is at most from the cheapest one, as a list of reasons that add up to a bound.") · [Cost model](../docs/glossary.md#cost-model "An estimate of the time of a plan that is cheap to compute, such as a count of bytes and launches.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Launch](../docs/glossary.md#launch "The start of a kernel; it takes a few microseconds, whatever the kernel does.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.") · [Tie](../docs/glossary.md#tie "Two measured times whose difference is not larger than the noise.")

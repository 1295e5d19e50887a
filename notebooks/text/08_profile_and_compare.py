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
# # Two plans. Which one is faster?
#
# After this lesson, you can time plans, kernels and alternatives, and tell a difference from noise.
#
# The fusion below scales each row of x to a mean square of one, then uses it to gate y. The first plan is one kernel. The other plan,
# further down, is cut once. You predict how much slower the cut plan is, and then learn how to measure it without fooling yourself.

# %%
import time
from itertools import count

import numpy as np
from IPython.display import SVG

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.teaching import on_gpu, predict, score

with FusionDefinition() as fd:
    x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float) for _ in range(2))
    square = fd.ops.sum(fd.ops.mul(x, x), dims=[1], keepdim=True)
    scaled = fd.ops.mul(x, fd.ops.rsqrt(fd.ops.add(fd.ops.mul(square, 1 / 1024), 1e-6)))
    fd.add_output(fd.ops.mul(fd.ops.silu(scaled), y))


def arrays(rows, columns=1024):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((rows, columns), dtype=np.float32) for _ in range(2)]


inputs = arrays(2048)
whole = fl.segment(fd, inputs, name="whole")
whole

# %%
(silu,) = (expr for expr in whole.fusion.exprs if expr.op.name == "silu")
scaled_name = silu.inputs[0].name
cut = whole.cut(scaled_name).renamed("cut")
cut

# %% [markdown]
# ## 1. What does the cut change?
#
# `fl.diff` compares two plans of one fusion: which ops move to another segment, which tensors now cross between segments, and how many
# bytes they have.

# %%
fl.diff(whole, cut)

# %% [markdown]
# **Predict:** how many times as many bytes does the cut plan move? Reads and writes both count; x and y have the same size.

# %%
question = predict("How many times as many bytes?", None)
question


# %%
def moved(plan):
    return sum(segment.bytes for segment in plan.segments)


first = question.reveal(
    moved(cut) / moved(whole), within=0.01,
    hints={
        2: "Two kernels do not mean twice the bytes. Count what each one reads and writes.",
        4 / 3: "The tensor that is written at the cut is also read again after it.",
    },
    because="One kernel reads two tensors and writes one; the cut adds a write and a read of the scaled x, so 5 instead of 3.",
)
first

# %% [markdown]
# ## 2. Measure
#
# `fl.time` first compares both results with a reference, then runs each segment and each plan many times. *Median* is the middle of all
# runs, and *IQR* is the spread of the middle half. If the IQR is as large as the difference that you want to see, the measurement
# shows nothing, and the ratio is marked as a tie.

# %%
times = fl.time([whole, cut], inputs, seconds=0.2, progress=False)
times

# %% [markdown]
# Here is the same as a data frame, with units in the column names; `verbose=True` adds what you need in order to trust a number: the
# number of samples, the timer, and the device.

# %%
frame = times.to_pandas(verbose=True)
totals = frame[frame["segment"] == "total"].set_index("plan")
totals.T

# %% [markdown]
# Is the ratio of the times the ratio of the bytes? On a GPU, whose caches are small relative to these tensors, it nearly is. On a
# processor, a tensor that crosses may still be in a cache when it is read again, which costs less than a trip to memory.
#
# **Predict:** with 128 rows, a tensor has half a megabyte and fits in a cache. On *this* machine, does the cut cost relatively more
# than with 2048 rows, or less?

# %%
question = predict("With few rows, the cut costs relatively", None, choices=("more", "less", "too close to tell"))
question

# %%
few = arrays(128)
small = fl.segment(fd, few, name="whole")
again = fl.time([small, small.cut(scaled_name).renamed("cut")], few, seconds=0.1, progress=False)
again

# %%


def ratio_of(times):
    """Return the ratio of the cut plan, and whether its difference is within the noise."""
    frame = times.to_pandas(verbose=True)
    (row,) = frame[(frame["segment"] == "total") & (frame["plan"] == "cut")].itertuples(index=False)
    return row.ratio, row.tie


(many_ratio, many_tie), (few_ratio, few_tie) = ratio_of(times), ratio_of(again)
second = question.reveal(
    "too close to tell" if many_tie or few_tie else "more" if few_ratio > many_ratio else "less",
    because=f"Measured here and now: {few_ratio:.2f} times as slow with 128 rows, {many_ratio:.2f} times with 2048.",
)
second

# %% [markdown]
# The result is a fact about this machine, at this moment; *tie* marks a difference that is within the noise. That is why plans are
# compared by bytes first, which are the same everywhere, and then by time on the device that matters.
#
# ## 3. How good is a kernel?
#
# Being faster than another kernel is relative. An absolute yardstick is the **copy**: no kernel moves bytes faster than a plain copy of
# the same number of bytes.

# %%
source, target = inputs[0], np.empty_like(inputs[0])
samples = []
for _ in range(20):
    start = time.perf_counter()
    np.copyto(target, source)
    samples.append(time.perf_counter() - start)
copy_rate = 2 * source.nbytes / np.median(samples) * 1e-9
print(f"copy of one array, by one thread: {copy_rate:.1f} GB/s")
totals[["GB/s"]]

# %% [markdown]
# Another yardstick is what you would use otherwise. `peers` takes functions of the same inputs: NumPy here, `torch.compile(f)` if torch
# is installed. Like the results of plans, theirs are checked before anything is timed.
#
# **Predict:** how many times as long does NumPy take as the plan *whole*? (Within a factor of two.)

# %%
question = predict("Time of NumPy / time of the plan", None)
question


# %%
def by_numpy(x, y):
    z = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6)
    return z / (1 + np.exp(-z)) * y


raced = fl.time([whole], inputs, peers={"NumPy": by_numpy}, seconds=0.1, progress=False)
by_name = {row.plan: row.median for row in raced.rows if row.segment is None}
slower = by_name["NumPy"] / by_name["whole"]
peer = question.reveal(
    round(slower, 1), within=1.0, hints={1: "NumPy computes the same. But how often does it go through memory, and on how many cores?"},
    because="NumPy makes a tensor for each op and uses one core. The bytes of *unfused* show how much of the time is memory.",
)
peer

# %%
raced

# %% [markdown]
# The third yardstick is arithmetic. A **roofline** draws both limits of a device: the slope is memory, and the flat part is arithmetic.
# Each mark is a segment of the cut plan, placed by its operations per byte. Nothing is measured here; the plot shows what an H200
# could reach at best.

# %%
from fuser_lab.report import plots

SVG(plots.roofline_svg(plots.loads(cut), cut.oracle.device))

# %% [markdown]
# **Predict:** which limit do the segments reach first?

# %%
question = predict("Which limit?", None, choices=("memory", "arithmetic"))
question

# %%
gpu = cut.oracle.device
ridge = gpu.fp32 * 1e12 / (gpu.bandwidth * 1e9)
most = max(load.intensity for load in plots.loads(cut))
third = question.reveal(
    "memory" if most < ridge else "arithmetic",
    because=f"The segments do at most {most:.1f} operations per byte; an {gpu.name} does {ridge:.0f} in the time of one byte.",
)
third

# %% [markdown]
# ## 4. The same plan, other parameters
#
# A plan says what a kernel computes. How many rows one task handles, or how many threads work on a row, are **parameters**, which
# heuristics choose (lesson 07). `fl.tune` measures values near these, and takes another value only if it is faster beyond the
# noise. It stores its results on disk. Most of the time goes into compiling, so this cell ends the search early, which you can also do
# with Ctrl-C.
#
# **Predict:** does it find something faster?

# %%
question = predict("Faster beyond the noise?", None, choices=("yes", "no"))
question

# %%
asked = count()
found = fl.tune(whole, inputs, seconds=0.02, progress=False, cancelled=lambda: next(asked) >= 6)
tuned = question.reveal(
    "yes" if found.best(0).values else "no",
    because="Bytes, ops and results are the same for all parameters. `found.plan` is the plan with the parameters that were chosen.",
)
tuned

# %%
found

# %% [markdown]
# ## 5. Where does the time of a call go?
#
# `fd.profile` runs a definition once and reports the time of each segment, under nvFuser's names. The first call also compiles.
#
# **Predict:** how many times as long does the first call take as the second? (Give the nearest power of ten.)

# %%
question = predict("First call over second call, as a power of ten: 1, 2, 3, ...", None)
question

# %%
with FusionDefinition() as fresh:
    a, b = (fresh.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
    fresh.add_output(fresh.ops.mul(fresh.ops.tanh(fresh.ops.add(a, b)), 1.0 + time.time() % 1))  # a number that no cached kernel has

spent = []
for _ in range(2):
    start = time.perf_counter()
    fresh.execute(inputs)
    spent.append(time.perf_counter() - start)
print(f"first {spent[0]:.3f} s, second {spent[1]:.6f} s")
power = round(np.log10(spent[0] / spent[1]))
fourth = question.reveal(power, hints={1: "Ten times? Numba first generates machine code with LLVM, which takes a good part of a second."}, because="The first call segments, generates and compiles. Measure the second call, or say that you measured the first.")
fourth

# %%
print(fresh.profile(inputs))

# %% [markdown]
# ## 6. Magics
#
# In a notebook, a definition can have its own cell. `%%fusion` reads the cell without executing it, and leaves the definition, its
# inputs and its plan in variables.

# %%
# %load_ext fuser_lab

# %%
# %%fusion gated
def gated(fd: FusionDefinition):
    x = fd.define_tensor(shape=[64, 256], contiguity=[True, True], dtype=DataType.Float)
    y = fd.define_tensor(shape=[64, 256], contiguity=[True, True], dtype=DataType.Float)
    z = fd.ops.segment_set(fd.ops.mul(x, fd.ops.sigmoid(x)))
    fd.add_output(fd.ops.mul(z, y))

# %%
without_hint = fl.segment(gated, gated_inputs, options=fl.SegmenterOptions(segment_set="ignore"), name="no hint")  # noqa: F821

# %%
# %fusion_diff gated_plan without_hint

# %%
# %fusion_time without_hint gated_plan --seconds 0.05

# %% [markdown]
# ## 7. On a GPU
#
# The same lines work with arrays on the device. The device's own clock takes the times, the L2 cache is cleared before each
# run, and the warm time is shown next to the cold one.

# %%
there = on_gpu(inputs)
if there:
    print(fl.time([whole, cut], there, seconds=0.2, progress=False))
else:
    print("There is no GPU here. With a GPU, expect the ratio of the times to be near the ratio of the bytes.")

# %% [markdown]
# ## Your turn
#
# `unfused` runs every op alone. Its bytes are the upper end, and those of the plan `whole` the lower one. Cut somewhere else, and find a
# plan of exactly **two** segments that moves as few bytes as possible.

# %%
candidates = {}
for tensor in [t.name for e in whole.fusion.tensor_exprs for t in e.tensor_outputs][:-1]:
    try:
        attempt = whole.cut(tensor)
    except fl.errors.IllegalEdit:
        continue
    if len(attempt.segments) == 2:
        candidates[tensor] = moved(attempt)

question = predict("After which tensor is the cheapest cut?", None)  # a name from the first picture, as "T8"
question

# %%
best = min(candidates.values())
cheapest = [name for name, nbytes in candidates.items() if nbytes == best]
print({name: f"{nbytes / moved(whole):.2f}" for name, nbytes in candidates.items()})
fifth = question.reveal(
    question.predicted if question.predicted in cheapest else cheapest[0],
    hints={scaled_name: "That is the plan above, where a whole matrix crosses."},
    because=f"After any of {', '.join(cheapest)}, one number per row crosses, which is hardly anything; but x is read twice: "
    f"{best / moved(whole):.2f} times the bytes instead of {moved(cut) / moved(whole):.2f}.",
)
fifth

# %%
score(first, second, peer, third, tuned, fourth, fifth)

# %% [markdown]
# ## Where to go next
#
# - `fl.explore(fd, inputs)` shows the same numbers in tabs; **Run** measures.
# - `plan.with_params(0, ...)` sets parameters by hand; they are part of `plan.to_python()` and of the plan's hash.
# - [docs/running.md](../docs/running.md): runs without allocation, CUDA graphs, and what is measured how.
# - `python -m fuser_lab diff` compares plans on the command line.
# - Has somebody sent you a slow fusion? [09_replay_an_issue](09_replay_an_issue.ipynb).

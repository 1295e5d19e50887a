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
# Each row of x is scaled so that its mean square is one, then gates y. Below it is one kernel. The other plan, further down,
# is cut once. You will predict how much slower that is, and then learn how one finds out without fooling oneself.

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
# `fl.diff` compares two plans of one fusion: which ops moved, which tensors now cross from one segment to another, and how
# many bytes that is.

# %%
fl.diff(whole, cut)

# %% [markdown]
# **Predict:** how many times as many bytes does the cut plan move? Reads and writes both count; x and y are of one size.

# %%
question = predict("How many times as many bytes?", None)
question


# %%
def moved(plan):
    return sum(segment.bytes for segment in plan.segments)


first = question.reveal(
    moved(cut) / moved(whole), within=0.01,
    hints={
        2: "Two kernels are not twice the bytes. Count what each reads and writes.",
        4 / 3: "What is written at the cut is read again behind it.",
    },
    because="Two tensors are read and one is written; the cut adds one write and one read of the scaled x: 5 instead of 3.",
)
first

# %% [markdown]
# ## 2. Measure
#
# `fl.time` first compares both results with a reference, then runs each segment and each plan again and again. *Median*
# is the middle of all runs, *IQR* how far the middle half is spread. If the IQR is as large as the difference that you
# want to see, you have seen nothing, and the ratio is marked as a tie.

# %%
times = fl.time([whole, cut], inputs, seconds=0.2, progress=False)
times

# %% [markdown]
# The same as a data frame, with units in the columns' names; `verbose=True` adds what one needs to trust a number: how many
# samples, which timer, which device.

# %%
frame = times.to_pandas(verbose=True)
totals = frame[frame["segment"] == "total"].set_index("plan")
totals.T

# %% [markdown]
# Is the time ratio the byte ratio? On a GPU, whose caches are small beside such tensors, nearly. On a processor
# what crosses may still be in a cache when it is read again, and then costs less than a trip to memory.
#
# **Predict:** with 128 rows a tensor has half a megabyte, which fits in a cache. Is cutting relatively more expensive there
# than with 2048 rows, or less, on *this* machine?

# %%
question = predict("With few rows, the cut costs relatively", None, choices=("more", "less", "cannot be told"))
question

# %%
few = arrays(128)
small = fl.segment(fd, few, name="whole")
again = fl.time([small, small.cut(scaled_name).renamed("cut")], few, seconds=0.1, progress=False)
again

# %%


def ratio_of(times):
    """Return the ratio of the plan that is cut, and whether its difference is within the noise."""
    frame = times.to_pandas(verbose=True)
    (row,) = frame[(frame["segment"] == "total") & (frame["plan"] == "cut")].itertuples(index=False)
    return row.ratio, row.tie


(many_ratio, many_tie), (few_ratio, few_tie) = ratio_of(times), ratio_of(again)
second = question.reveal(
    "cannot be told" if many_tie or few_tie else "more" if few_ratio > many_ratio else "less",
    because=f"Measured here and now: {few_ratio:.2f} times as slow with 128 rows, {many_ratio:.2f} times with 2048.",
)
second

# %% [markdown]
# Whatever came out is a fact about this machine, in this minute; *tie* marks a difference that is within the noise. That is why
# plans are compared by bytes first (the same everywhere) and by time on the device that matters.
#
# ## 3. How good is a kernel?
#
# Faster than another one is relative. An absolute yardstick is the **copy**: no kernel moves bytes faster than a plain copy
# of the same number of bytes.

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
# And there is what you would use otherwise. `peers` takes functions of the same inputs: NumPy here, `torch.compile(f)` if torch
# is installed. Their results are checked like those of plans before anybody is timed.
#
# **Predict:** how many times as long does NumPy take as the plan *whole*? (A factor of two off is fine.)

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
    round(slower, 1), within=1.0, hints={1: "It computes the same. But how often does it go through memory, and with how many cores?"},
    because="NumPy makes a tensor for each op and uses one core. The bytes of *unfused* say how much of it is memory.",
)
peer

# %%
raced

# %% [markdown]
# The other yardstick is arithmetic. A **roofline** draws both limits of a device: the slope is memory, the flat part
# arithmetic. Each mark is a segment of the cut plan, placed by its operations for each byte; nothing is measured here, it
# says what an H200 could reach at best.

# %%
from fuser_lab.report import plots

SVG(plots.roofline_svg(plots.loads(cut), cut.oracle.device))

# %% [markdown]
# **Predict:** which limit do the segments meet first?

# %%
question = predict("Which limit?", None, choices=("memory", "arithmetic"))
question

# %%
gpu = cut.oracle.device
ridge = gpu.fp32 * 1e12 / (gpu.bandwidth * 1e9)
most = max(load.intensity for load in plots.loads(cut))
third = question.reveal(
    "memory" if most < ridge else "arithmetic",
    because=f"At most {most:.1f} operations for each byte; an {gpu.name} does {ridge:.0f} in the time of one byte.",
)
third

# %% [markdown]
# ## 4. The same plan, other parameters
#
# A plan says what a kernel computes. How many rows one task takes, or how many threads a row gets, are **parameters**, chosen by
# heuristics (lesson 07). `fl.tune` measures the values around these and takes another one only if it is faster beyond the noise.
# What it finds is kept on disk. Compiling takes most of the time, so this cell ends the search early, which Ctrl-C does as well.
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
    because="Bytes, ops and the result are the same in all of them. `found.plan` is the plan with what was taken.",
)
tuned

# %%
found

# %% [markdown]
# ## 5. Where does the time of a call go?
#
# `fd.profile` runs a definition once and says what it took, segment by segment, with nvFuser's names. The first call also
# compiles.
#
# **Predict:** how many times as long does the first call take as the second? (A factor of ten off is fine.)

# %%
question = predict("First call over second call, as a power of ten: 1, 2, 3, ...", None)
question

# %%
with FusionDefinition() as fresh:
    a, b = (fresh.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
    fresh.add_output(fresh.ops.mul(fresh.ops.tanh(fresh.ops.add(a, b)), 1.0 + time.time() % 1))  # in no cache of kernels

spent = []
for _ in range(2):
    start = time.perf_counter()
    fresh.execute(inputs)
    spent.append(time.perf_counter() - start)
print(f"first {spent[0]:.3f} s, second {spent[1]:.6f} s")
power = round(np.log10(spent[0] / spent[1]))
fourth = question.reveal(power, hints={1: "Ten times? Numba writes machine code first, with LLVM, which takes a good part of a second."}, because="The first call segments, generates and compiles. Measure second calls, or say so.")
fourth

# %%
print(fresh.profile(inputs))

# %% [markdown]
# ## 6. Magics
#
# In a notebook a definition can stand in a cell of its own. `%%fusion` reads it (nothing of it is executed), and leaves the
# definition, its inputs and its plan in variables.

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
# The same lines, with arrays of the device. The clock is the device's own, the second-level cache is emptied before each run, and
# the warm time stands beside it.

# %%
there = on_gpu(inputs)
if there:
    print(fl.time([whole, cut], there, seconds=0.2, progress=False))
else:
    print("There is no GPU here. On one, expect the ratio of the times to be near the ratio of the bytes.")

# %% [markdown]
# ## Your turn
#
# `unfused` runs every op alone. Its bytes are the upper end, the plan `whole` the lower one. Find a plan of exactly **two**
# segments that moves as few bytes as possible: cut somewhere else.

# %%
candidates = {}
for tensor in [t.name for e in whole.fusion.tensor_exprs for t in e.tensor_outputs][:-1]:
    try:
        attempt = whole.cut(tensor)
    except fl.errors.IllegalEdit:
        continue
    if len(attempt.segments) == 2:
        candidates[tensor] = moved(attempt)

question = predict("Behind which tensor is the cheapest cut?", None)  # a name from the first picture, as "T8"
question

# %%
best = min(candidates.values())
cheapest = [name for name, nbytes in candidates.items() if nbytes == best]
print({name: f"{nbytes / moved(whole):.2f}" for name, nbytes in candidates.items()})
fifth = question.reveal(
    question.predicted if question.predicted in cheapest else cheapest[0],
    hints={scaled_name: "That is the plan from above: a whole matrix crosses."},
    because=f"Behind any of {', '.join(cheapest)} one number per row crosses, which is hardly anything; but x is read twice: "
    f"{best / moved(whole):.2f} times the bytes, not {moved(cut) / moved(whole):.2f}.",
)
fifth

# %%
score(first, second, peer, third, tuned, fourth, fifth)

# %% [markdown]
# ## Where to go on
#
# - `fl.explore(fd, inputs)` has the same numbers in tabs; **Run** measures.
# - `plan.with_params(0, ...)` sets parameters by hand; they are part of `plan.to_python()` and of the plan's hash.
# - [docs/running.md](../docs/running.md): runs without allocation, CUDA graphs, what is measured and how.
# - `python -m fuser_lab diff` compares plans on the command line.
# - Somebody sent you a slow fusion? [09_replay_an_issue](09_replay_an_issue.ipynb).

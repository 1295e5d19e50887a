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
# # Timing plans: tell a difference from noise
#
# After this lesson, you can time plans and alternatives, and tell a difference from noise. The lesson takes about 20 minutes.
#
# The fusion below scales each row of x to a mean square of one, applies SiLU, and multiplies the result by y. The plan *whole* is one kernel,
# and the plan *cut* is cut once. Which plan is faster, by how much, and how can you measure the difference reliably?

# %%
import time

import numpy as np
from IPython.display import display

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.teaching import on_gpu, read_questions, score

predict = read_questions("questions/08_profile_and_compare.toml").predict

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
display(whole)
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
# **Predict:** divide the bytes that the cut plan moves by the bytes that the whole plan moves. What is the ratio? Reads and writes both count;
# x and y have the same size.

# %%
question = predict("Bytes of the cut plan / bytes of the whole plan", None)
question

# %%
def moved(plan):
    return sum(segment.bytes for segment in plan.segments)


first = question.reveal(moved(cut) / moved(whole), within=0.01)
first

# %% [markdown]
# ## 2. Measure
#
# `fl.time` first compares both results with a reference, then runs each segment and each plan many times. *Median* is the middle of all
# runs, and *IQR* is the interquartile range: the range of the middle half of the runs. If the IQR is as large as the difference between two
# plans, the measurement does not show which plan is faster, and the ratio is marked as a tie.
#
# The next cell shows the times as a data frame, with units in the column names. `verbose=True` adds the number of samples, the timer and the
# device.

# %%
times = fl.time([whole, cut], inputs, seconds=0.2, progress=False)
display(times)
frame = times.to_pandas(verbose=True)
totals = frame[frame["segment"] == "total"].set_index("plan")
totals.T

# %% [markdown]
# Is the ratio of the times equal to the ratio of the bytes? On a GPU, the two are nearly equal, because the GPU's caches are small compared
# with these tensors. On a processor, a tensor that crosses may still be in a cache when the next kernel reads it, and a cache is
# faster than memory.
#
# **Predict:** with 128 rows, a tensor has half a megabyte and fits into a cache. On *this* machine, is the ratio of the times larger than
# with 2048 rows (the cut costs more), or smaller?

# %%
question = predict("With few rows, the cut costs relatively", None, choices=("more", "less", "too close to tell"))
question

# %% jupyter={"source_hidden": true}
# Times both plans with 128 rows, and compares the ratio with the one above.
few = arrays(128)
small = fl.segment(fd, few, name="whole")
again = fl.time([small, small.cut(scaled_name).renamed("cut")], few, seconds=0.1, progress=False)
question.show(again)


def ratio_of(times):
    """Return the ratio of the cut plan, and whether its difference is within the noise."""
    frame = times.to_pandas(verbose=True)
    (row,) = frame[(frame["segment"] == "total") & (frame["plan"] == "cut")].itertuples(index=False)
    return row.ratio, row.tie


(many_ratio, many_tie), (few_ratio, few_tie) = ratio_of(times), ratio_of(again)
second = question.reveal(
    "too close to tell" if many_tie or few_tie else "more" if few_ratio > many_ratio else "less",
    facts={"few_ratio": few_ratio, "many_ratio": many_ratio},
)
second

# %% [markdown]
# Times depend on the machine and on what else it does at the moment. Bytes are the same everywhere. So compare plans by bytes first, and
# then by time on the device on which the program will run.
#
# ## 3. How good is a kernel?
#
# How fast can a kernel be at best? No kernel moves bytes faster than a plain **copy** of the same number of bytes. So the time of a copy is an
# absolute reference.

# %% jupyter={"source_hidden": true}
# Measures a copy, and shows the rate of both plans beside it.
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
# You can also compare a plan with other libraries. The argument `peers` accepts functions of the same inputs: here NumPy, and
# `torch.compile(f)` if torch is installed. The results of these functions are checked, too, before anything is timed.
#
# **Predict:** divide the time of NumPy by the time of the plan *whole*. What is the ratio? (An answer within a factor of two counts as right.)

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
question.show(raced)
peer = question.reveal(round(slower, 1), within=1.0)
peer

# %% [markdown]
# ## 4. On a GPU
#
# The same calls work with arrays on a GPU. The GPU's own clock measures the times, and the L2 cache is cleared before each run. The time with a
# warm cache is in a separate column.

# %%
there = on_gpu(inputs)
if there:
    print(fl.time([whole, cut], there, seconds=0.2, progress=False))
else:
    print("There is no GPU here. With a GPU, expect the ratio of the times to be near the ratio of the bytes.")

# %% [markdown]
# ## Your turn
#
# The plan *whole* moves the fewest bytes, and the plan *unfused*, with one kernel per op, the most. Find a plan with exactly **two** segments
# that moves as few bytes as possible: cut after another tensor.

# %%
question = predict("After which tensor is the cheapest cut? Write a name from the first picture, such as T8.", None)
question

# %% jupyter={"source_hidden": true}
# Cuts the plan after each tensor, and compares the bytes of the plans that have two segments.
candidates = {}
for tensor in [t.name for e in whole.fusion.tensor_exprs for t in e.tensor_outputs][:-1]:
    try:
        attempt = whole.cut(tensor)
    except fl.errors.IllegalEdit:
        continue
    if len(attempt.segments) == 2:
        candidates[tensor] = moved(attempt)

best = min(candidates.values())
cheapest = [name for name, nbytes in candidates.items() if nbytes == best]
question.show({name: f"{nbytes / moved(whole):.2f}" for name, nbytes in candidates.items()})
third = question.reveal(
    question.predicted if question.predicted in cheapest else cheapest[0],
    facts={"names": ", ".join(cheapest), "cheap": best / moved(whole), "above": moved(cut) / moved(whole)},
)
third

# %%
score(first, second, peer, third)

# %% [markdown]
# ## Where to go next
#
# - `fl.explore(fd, inputs)` shows the same numbers in its tabs; **Run** measures them.
# - How near is a kernel to the limits of the device, and would other parameters be faster? [23_roofline_and_tuning](23_roofline_and_tuning.ipynb).
# - [docs/running.md](../docs/running.md) describes runs without allocation, CUDA graphs, and how times are measured.
# - `python -m fuser_lab diff` compares plans on the command line.
# - Has somebody sent you a slow fusion? [09_replay_an_issue](09_replay_an_issue.ipynb).
#
# **Words:** [Crossing tensor](../docs/glossary.md#crossing-tensor "A tensor that one segment writes to memory and another one reads.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.") · [Tie](../docs/glossary.md#tie "Two measured times whose difference is not larger than the noise.")

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
# # The roofline, tuning, and where the time of a call goes
#
# After this lesson, you can say what limits a kernel, let a search change its parameters, and find out where the time of a call goes. The lesson takes about 20 minutes.
#
# The picture shows the fusion of [lesson 08](08_profile_and_compare.ipynb), cut once. Lesson 08 compared plans with each other
# and with a copy. How fast could a kernel be on a device at best, and what slows it down?

# %%
import time
from itertools import count

import numpy as np
from IPython.display import SVG

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/23_roofline_and_tuning.toml").predict

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
(silu,) = (expr for expr in whole.fusion.exprs if expr.op.name == "silu")
cut = whole.cut(silu.inputs[0].name).renamed("cut")
cut

# %% [markdown]
# ## 1. The roofline
#
# A kernel waits for memory or for arithmetic. A **roofline** draws both limits of a device: the slope is memory, and the flat part is arithmetic.
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
first = question.reveal(
    "memory" if most < ridge else "arithmetic",
    facts={"most": most, "name": gpu.name, "ridge": ridge},
)
first

# %% [markdown]
# ## 2. The same plan, other parameters
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
question.show(found)
second = question.reveal("yes" if found.best(0).values else "no")
second

# %% [markdown]
# ## 3. Where does the time of a call go?
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
question.show(f"first {spent[0]:.3f} s, second {spent[1]:.6f} s")
power = round(np.log10(spent[0] / spent[1]))
question.show(fresh.profile(inputs))
third = question.reveal(power)
third

# %% [markdown]
# ## 4. Magics
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

# %%
score(first, second, third)

# %% [markdown]
# ## Where to go next
#
# - `plan.with_params(0, ...)` sets parameters by hand; they are part of `plan.to_python()` and of the plan's hash.
# - [docs/running.md](../docs/running.md): runs without allocation, CUDA graphs, and what is measured how.
# - `python -m fuser_lab diff` compares plans on the command line.
# - Has somebody sent you a slow fusion? [09_replay_an_issue](09_replay_an_issue.ipynb).
#
# **Words:** [Definition](../docs/glossary.md#definition "The record of the ops of a fusion, made by calls in a `with FusionDefinition()` block.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Heuristics](../docs/glossary.md#heuristics "The rules that choose the parameters of a kernel from the sizes and the device.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Roofline](../docs/glossary.md#roofline "A plot of two limits of a device: operations per second against operations per byte of memory traffic.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.")

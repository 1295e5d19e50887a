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
# # Quickstart: see where a fusion is cut, ask why, cut it elsewhere
#
# After this notebook, you can see where nvFuser cuts a fusion, ask why, cut it elsewhere, and time the result. The notebook takes about 10 minutes.
#
# The fusion below sums each row of a matrix, broadcasts the sums back, and adds them to another tensor. One loop could do all
# of it, but **nvFuser cuts it in two.** This notebook shows where it cuts, why, what the cut costs, and what happens when you
# cut somewhere else. It runs on a laptop; nothing here needs a GPU.

# %%
import numpy as np

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition

with FusionDefinition() as fd:
    x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
    y = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
    total = fd.ops.sum(x, dims=[1])
    column = fd.ops.broadcast(total, is_broadcast_dim=[False, True])
    fd.add_output(fd.ops.add(y, column))

rng = np.random.default_rng(0)
inputs = [rng.standard_normal((2048, 1024), dtype=np.float32) for _ in range(2)]

plan = fl.segment(fd, inputs)
fl.explore(plan, inputs, view="decisions")

# %% [markdown]
# The explorer shows the first decision of nvFuser's segmenter: it tries the whole fusion as one kernel, the ops with the dashed
# red outline, and no scheduler accepts it. The reason is beside the decision. Click an empty place of the picture, then press `j`
# for the next decision, `k` for the one before it, or `p` to play all of them: ops that now share a group get one colour. Keys
# reach the explorer only while it has the focus; outside it they are JupyterLab's. `Esc` ends the player and shows the plan: each
# box is a segment, which becomes one kernel, and the arrow between the boxes is a tensor that passes through memory.
#
# ## Why two?
#
# Ask about any two tensors. The answer names the scheduler that refused to put them in one kernel, and its reason.

# %%
plan.why("T2", "T4")

# %% [markdown]
# ## Cut and glue
#
# Click the arrow between `sum` and `broadcast`: two segments become three. Click the arrow again to glue them back together.
# Click an arrow that goes into `add` to read why that glue is refused. **Run** times both plans; `?` lists the keyboard
# shortcuts.

# %%
explorer = fl.explore(fd, inputs)
explorer

# %% [markdown]
# Everything the explorer does is also one line of Python:

# %%
cut = plan.cut("T2")
print(len(plan.segments), "segments ->", len(cut.segments), "segments ->", len(cut.glue(0, 1).segments), "segments")

# %% [markdown]
# ## Run it
#
# `execute` returns the kind of array that it receives: NumPy for NumPy, torch for torch. Each segment runs as a generated
# kernel; on a machine with a GPU, the same plan runs as CUDA kernels.

# %%
(result,) = fd.execute(inputs)
np.testing.assert_allclose(result, inputs[1] + inputs[0].sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-3)

fl.time([plan, cut], inputs)

# %% [markdown]
# The generated source of a segment is a readable Python file:

# %%
print(plan.segments[0].source("cpu"))

# %% [markdown]
# ## A real fusion
#
# This is the backward pass of Llama-3's rotary embedding at its real sizes. Nothing of that size is allocated here, because
# `specs` returns abstract inputs. Two gradients are rotated back and added to zeros. Which segment holds the tensor of zeros
# (`full`)?

# %%
rope = fl.examples.get("llama3_rope_backward")
with FusionDefinition() as rope_fd:
    rope.define(rope_fd, "full")

bottom_up = fl.segment(rope_fd, rope.specs("full"))
bottom_up

# %% [markdown]
# No single segment holds it: each of the two segments that need zeros makes its own (the boxes marked ×2), so 67 MB are neither
# written nor read. This is called *forwarding*. Every attempt of the segmenter is on record:

# %%
bottom_up.decisions.to_pandas().tail(8)

# %% [markdown]
# ## Bottom-up or top-down?
#
# A single `segment_set` anywhere makes nvFuser build segments upwards from single ops. Ops that share only an input then never
# meet: `sin` and `cos` of one tensor become two kernels, each of which reads that tensor. Top-down presegmentation
# (NVIDIA/Fuser issue #2224) cuts at the hint and keeps each piece that can be scheduled as a whole. How many segments does each
# strategy give?

# %%
with FusionDefinition() as siblings:
    x = siblings.define_tensor(shape=[-1], contiguity=True, dtype=DataType.Float)
    for op in ("sin", "cos", "segment_set"):
        siblings.add_output(getattr(siblings.ops, op)(x))

for strategy in ("bottom_up", "top_down"):
    print(fl.segment(siblings, [fl.spec((1 << 24,))], strategy=strategy), end="\n\n")

# %% [markdown]
# ## Where to go next
#
# - `fl.examples.names()` lists more fusions; `fl.explore(rope_fd, rope.specs("full"))` opens this one.
# - `plan.save("plan.svg")` writes the picture, and `plan.save("plan.html")` writes a single file that includes the decisions.
# - `print(plan.segments[0].source("cuda"))` shows the CUDA kernel, even on a machine without a GPU.
# - `print(plan.to_python())` prints code that builds the same plan again.
#
# **Words:** [Bottom-up](../docs/glossary.md#bottom-up "nvFuser's way to segment: it starts from single ops and merges neighbours, step by step.") · [Broadcast](../docs/glossary.md#broadcast "An op that gives a tensor one more axis, along which it repeats its elements; it moves no data.") · [Decision log](../docs/glossary.md#decision-log "The record of each attempt of the segmenter: the ops, the scheduler's answer and its reason.") · [Forwarding](../docs/glossary.md#forwarding "The segmenter's choice to let each segment compute a cheap tensor again, so that it is neither written nor read.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Presegmentation](../docs/glossary.md#presegmentation "Rewriting or cutting a fusion before the segmenter merges ops: passes, and top-down cuts.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.") · [segment_set](../docs/glossary.md#segment_set "An op that computes nothing and tells the segmenter to end a segment there.") · [Strategy](../docs/glossary.md#strategy "The method that cuts a fusion, such as bottom-up, top-down or optimal.") · [Top-down](../docs/glossary.md#top-down "A strategy that cuts the fusion at its hints first, and asks the schedulers about each whole piece.")

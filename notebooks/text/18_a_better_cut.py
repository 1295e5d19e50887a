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
# # From a PyTorch function to a better cut
#
# After this lesson, you can find a better cut of a PyTorch function, express it as a hint, and measure the gain.
#
# A function in PyTorch becomes two kernels. Is it cut at the best place, and if not, how do you tell the segmenter? The function is the
# beginning of attention in today's language models: RMS norm, then rotary embedding.
#
# This lesson needs torch: `pip install torch`.

# %%
import torch

import fuser_lab as fl
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/18_a_better_cut.toml").predict


def query(x, weight, cosine, sine):
    deviation = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    first, second = (x * deviation * weight).view(*x.shape[:2], 16, 64).chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


inputs = [torch.randn(2, 512, 1024), torch.ones(1024), torch.randn(512, 1, 32), torch.randn(512, 1, 32)]
captured = fl.from_torch(query, *inputs)
plan = captured.plan
plan

# %% [markdown]
# There are two segments. Each tensor is labelled with the line of `query` that it comes from.
#
# ## 1. Why two?

# %%
boundary = captured.costs().boundaries[0]
print(boundary.line)
print(boundary.why)

# %% [markdown]
# `chunk` is two slices, and the kernels that compute a norm cannot slice their own results, so the normalized tensor has to be written to
# memory first.
#
# ## 2. Is this the best place to cut?
#
# The segmenter merges what it can, starting from the inputs. Once the norm is one segment, the whole normalized tensor crosses. Another
# place to cut is after `torch.rsqrt`: then one number per row crosses, and the second kernel reads `x` again.
#
# **Predict:** one row of `x` has 1,024 elements. The plan moves about four times the bytes of `x`: read, write, read, write. How many times
# the bytes of `x` does the other plan move?

# %%
question = predict("Times the bytes of x", None)
question

# %%
best = plan.resegmented("optimal")
times_x = sum(s.bytes_in + s.bytes_out for s in best.segments) / inputs[0].nbytes
question.show(best)
first = question.reveal(times_x, within=0.1)
first

# %% [markdown]
# A search finds the optimum under the same rules, with a proof:

# %%
best.certificate()

# %% [markdown]
# ## 3. How do you get it from nvFuser?
#
# nvFuser's segmenter does not look for the fewest bytes, but it takes hints: a `segment_set` after a tensor. fuser_lab can find which hints
# are needed, and the smallest number of them:

# %%
best.to_annotations(strategy="bottom_up", segment_set="hint")

# %% [markdown]
# In terms of PyTorch, the result of `torch.rsqrt` is a boundary. `annotate` takes functions and paths of modules, and so does
# `torch.compile(query, backend="fuser_lab", options={"annotate": [torch.rsqrt]})`.
#
# **Predict:** how many segments does the plan with that hint have?

# %%
question = predict("Segments", None)
question

# %%
hinted = fl.from_torch(query, *inputs, annotate=[torch.rsqrt]).plan
question.show(hinted)
second = question.reveal(len(hinted.segments))
second

# %% [markdown]
# ## 4. Measure
#
# Check the results first: each region is compared with torch's own. Then measure the times on this machine. On a GPU, memory traffic alone
# decides; on a CPU, a tensor of this size may stay in a cache.

# %%
captured.check(*inputs)
fl.time([plan, best], inputs, seconds=1)

# %%
score(first, second)

# %% [markdown]
# ## Where to go next
#
# * [Where does my model spend its bytes?](17_bytes_of_a_model.ipynb) finds such places in a whole model.
# * [segment_set and top-down presegmentation](04_segment_set_and_top_down.ipynb): hints, cuts, and the difference between them.
# * [The optimum and its certificate](../docs/optimal.md): what is searched, and what the proof says.
#
# **Words:** [Boundary](../docs/glossary.md#boundary "A place between two segments, with the tensors that cross it and the reason for it.") · [Certificate](../docs/glossary.md#certificate "A proof of how far a plan is at most from the cheapest one, as a list of reasons that add up to a bound.") · [Crossing tensor](../docs/glossary.md#crossing-tensor "A tensor that one segment writes to memory and another one reads.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Presegmentation](../docs/glossary.md#presegmentation "Rewriting or cutting a fusion before the segmenter merges ops: passes, and top-down cuts.") · [Region](../docs/glossary.md#region "The ops of a PyTorch model between two matrix products or other calls that are left to torch: one fusion.") · [Rule](../docs/glossary.md#rule "A condition of a scheduler; a candidate that breaks it is refused.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.") · [segment_set](../docs/glossary.md#segment_set "An op that computes nothing and tells the segmenter to end a segment there.") · [Top-down](../docs/glossary.md#top-down "A strategy that cuts the fusion at its hints first, and asks the schedulers about each whole piece.")

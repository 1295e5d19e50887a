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
# After this lesson, you can find a better cut of a PyTorch function, express it as a hint, and measure the gain. The lesson takes about 15 minutes.
#
# A function in PyTorch becomes three kernels. Is it cut at the best place, and if not, how do you tell the segmenter? The function
# turns scores into shares of each row, scales each column by its largest share, and adds a bias: a step of routing tokens to experts.
#
# This lesson needs torch: `pip install torch`.

# %%
import torch

import fuser_lab as fl
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/18_a_better_cut.toml").predict


def balance(scores, bias):
    weights = scores.exp()
    shares = weights / weights.sum(1, keepdim=True)
    largest = shares.amax(0, keepdim=True)
    return shares / largest + bias, (bias * largest).sum(1)


inputs = [torch.randn(2048, 2048), torch.randn(2048, 2048)]
captured = fl.from_torch(balance, *inputs)
plan = captured.plan
plan

# %% [markdown]
# There are three segments. Each tensor is labelled with the line of `balance` that it comes from.
#
# ## 1. Why three?

# %%
for boundary in captured.costs().boundaries:
    print(boundary.line)
    print(boundary.why)

# %% [markdown]
# A column's largest share is complete only after all rows are processed, so another kernel processes the rows that need it again. That
# explains two kernels. The third one is separate because the first kernel cannot compute its sum either.
#
# ## 2. Is this the best place to cut?
#
# The segmenter merges what it can, starting from the inputs. The copies of `largest` for all rows joined the first segment, and each of the
# two kernels that read them stayed alone. Another place to cut is before these copies: then one kernel computes both results.
#
# **Predict:** the plan moves about six times the bytes of `scores`. Its first kernel reads `scores` and writes `shares`, the
# second kernel reads `shares` and `bias` and writes the first result, and the third kernel reads `bias` again for the sum. How
# many times the bytes of `scores` does the other plan move?

# %%
question = predict("Times the bytes of scores", None)
question

# %%
best = plan.resegmented("optimal")
times_scores = sum(s.bytes_in + s.bytes_out for s in best.segments) / inputs[0].nbytes
question.show(best)
first = question.reveal(times_scores, within=0.1)
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
hints = best.to_annotations(strategy="bottom_up", segment_set="hint")
hints

# %% [markdown]
# `hints.plan.to_python("nvfuser_direct")` is the definition with this hint, for nvFuser itself. In terms of PyTorch, `annotate` takes
# functions and paths of modules, and so does `torch.compile(balance, backend="fuser_lab", options={"annotate": [torch.amax]})`. It puts a
# hint at each boundary of a call: before `amax` and after it.
#
# **Predict:** how many segments does the plan with hints on both sides of `amax` have?

# %%
question = predict("Segments", None)
question

# %%
hinted = fl.from_torch(balance, *inputs, annotate=[torch.amax]).plan
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
# **Words:** [Boundary](../docs/glossary.md#boundary "A place between two segments, with the tensors that cross it and the reason for it.") · [Certificate](../docs/glossary.md#certificate "A proof of how far a plan is at most from the cheapest one, as a list of reasons that add up to a bound.") · [Definition](../docs/glossary.md#definition "The record of the ops of a fusion, made by calls in a `with FusionDefinition()` block.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Presegmentation](../docs/glossary.md#presegmentation "Rewriting or cutting a fusion before the segmenter merges ops: passes, and top-down cuts.") · [Region](../docs/glossary.md#region "The ops of a PyTorch model between two matrix products or other calls that are left to torch: one fusion.") · [Rule](../docs/glossary.md#rule "A condition of a scheduler; a candidate that breaks it is refused.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.") · [segment_set](../docs/glossary.md#segment_set "An op that computes nothing and tells the segmenter to end a segment there.") · [Top-down](../docs/glossary.md#top-down "A strategy that cuts the fusion at its hints first, and asks the schedulers about each whole piece.")

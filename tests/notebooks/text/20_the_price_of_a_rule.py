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
# # The price of a rule: cuts without it, recomputation, and the fastest plan
#
# After this lesson, you can say what a rule of nvFuser costs a fusion, cut without it, and find the plan that is predicted to be fastest. The lesson takes about 20 minutes.
#
# nvFuser refuses some merges that one kernel could compute. Which rule stands in the way, and what would you gain without it?

# %%
import numpy as np

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/20_the_price_of_a_rule.toml").predict

fd, inputs = fl.example("reshape_decides", "full")
plan = fl.segment(fd, inputs)
plan

# %% [markdown]
# ## 1. What does each rule cost?
#
# `fl.price` segments the fusion with all rules, then again without each rule that refused a merge. The gains are predictions: bytes at the
# bandwidth of the H200, and a launch for each kernel.

# %%
prices = fl.price(fd, inputs)
prices

# %% [markdown]
# Lifting one rule is enough to gain here, and the text of an issue for nvFuser's developers is `prices.issue("reshape_mixes")`.
#
# ## 2. Cut without the rules
#
# `fl.OPEN_SCHEDULERS` are nvFuser's schedulers, followed by open ones: these accept what fuser_lab's lowering can put into one kernel.
#
# **Predict:** how many segments does the fusion have without the rules?

# %%
question = predict("Segments without the rules", None)
question

# %%
opened = fl.segment(fd, inputs, schedulers=fl.OPEN_SCHEDULERS)
question.show(opened.segments[0].beyond)
first = question.reveal(len(opened.segments))
first

# %% [markdown]
# The segment names the rules of nvFuser that it breaks. fuser_lab has a kernel for it; nvFuser does not.
#
# ## 3. Compute it again instead of storing it
#
# Rules are not the only reason for traffic. Here, a sum of rows and a sum of columns use the same exponential. nvFuser has no kernel for
# both sums, so one segment stores the exponential for the other one.

# %%
def two_sums(size):
    with FusionDefinition() as sums:
        x = sums.define_tensor([size, size], contiguity=True)
        shared = sums.ops.exp(sums.ops.mul(x, 2.0))
        sums.add_output(sums.ops.sum(shared, [1]))
        sums.add_output(sums.ops.sum(shared, [0]))
    return sums


stored = fl.segment(two_sums(4096))
stored

# %% [markdown]
# `x` has 16,777,216 elements of 4 bytes. The plan reads `x`, writes the exponential and reads it again: three times the bytes of `x`.
#
# **Predict:** if the second segment computes the exponential again, how many times the bytes of `x` does the plan move?

# %%
question = predict("Times the bytes of x", None)
question

# %%
(crossing,) = stored.segmented.crossing_names
repeated = stored.recompute(crossing)
moved = sum(segment.bytes for segment in repeated.segments) / (4096 * 4096 * 4)
second = question.reveal(moved, within=0.1)
second

# %% [markdown]
# The edit is an attempt in the log, with its price in operations. The original plan is unchanged, and so are the
# values:

# %%
print(repeated.decisions.filter(kind="recompute")[0].text)
small = fl.segment(two_sums(64))
array = np.random.default_rng(0).standard_normal((64, 64), np.float32)
before, after = small.run([array]), small.recompute(crossing).run([array])
all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))

# %% [markdown]
# nvFuser does the same if the definition contains the copies. `to_annotations` writes them into it:

# %%
print(repeated.to_annotations().plan.to_python("nvfuser_direct"))

# %% [markdown]
# ## 4. Let a search decide
#
# `strategy="fastest"` searches cuts, recomputation and open schedulers by predicted time. `time_bound` compares the
# result with a lower bound on the predicted time of any plan, and says what that bound assumes.
#
# **Predict:** how many rules of nvFuser does the fastest plan of the two sums break?

# %%
question = predict("Rules that are broken", None)
question

# %%
best = fl.segment(two_sums(4096), strategy="fastest")
rules = {rule for segment in best.segments for rule in segment.beyond}
question.show(best.time_bound())
third = question.reveal(len(rules))
third

# %% [markdown]
# ## 5. Measure
#
# Predictions are for the H200. `fl.fastest(..., measure=3)` measures the three best plans on this machine and keeps the winner. On a CPU, a
# tensor may stay in a cache and an exponential is expensive, so another plan may win.

# %%
fd_small, arrays = fl.example("reshape_decides", "small")
fl.fastest(fd_small, arrays, measure=3, seconds=0.05)

# %%
score(first, second, third)

# %% [markdown]
# ## Where to go next
#
# * [What each rule costs](../docs/prices.md): the ranking over the corpus.
# * [Rewriting a plan, and the fastest plan](../docs/fastest.md): recomputation, narrowing, the search and its bound.
# * [Greedy and optimal](05_greedy_and_optimal.ipynb): the search within nvFuser's rules.
# * [Write your own scheduler rule](12_write_your_own_scheduler_rule.ipynb): a rule that refuses more.
#
# **Words:** [Bound](../docs/glossary.md#bound "A cost that every plan of a fusion has to pay, however it is cut.") · [Decision log](../docs/glossary.md#decision-log "The record of each attempt of the segmenter: the ops, the scheduler's answer and its reason.") · [Definition](../docs/glossary.md#definition "The record of the ops of a fusion, made by calls in a `with FusionDefinition()` block.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Greedy](../docs/glossary.md#greedy "A method that takes the next best step and does not take back earlier ones.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Launch](../docs/glossary.md#launch "The start of a kernel; it takes a few microseconds, whatever the kernel does.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Rule](../docs/glossary.md#rule "A condition of a scheduler; a candidate that breaks it is refused.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.") · [Strategy](../docs/glossary.md#strategy "The method that cuts a fusion, such as bottom-up, top-down or optimal.")

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
# # The decision log: which attempt decided a cut
#
# After this lesson, you can read the log of a plan: find the attempt that decided a cut, name the scheduler that came closest, and tell a
# refused pair from a pair that was never tried. The lesson takes about 15 minutes.
#
# The fusion below divides each row of x by its sum, and also returns the column sums of the result. The next cell draws nvFuser's plan
# for rows of 65,536 elements: two kernels. Which attempt to make one kernel failed, and which scheduler came closest?

# %%
from IPython.display import SVG

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/26_the_decision_log.toml").predict


def shares(length):
    """Return a definition over 2,048 rows of a length."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[2048, length], contiguity=True, dtype=DataType.Float)
        share = fd.ops.div(x, fd.ops.sum(x, dims=[1], keepdim=True))
        fd.add_output(share)
        fd.add_output(fd.ops.sum(share, dims=[0]))
    return fd


plan = fl.segment(shares(65536))
SVG(plan._repr_mimebundle_()["image/svg+xml"])

# %% [markdown]
# ## 1. Attempts
#
# The segmenter asks the schedulers one kind of question: *can these ops be one kernel?* Each question with its answer is an **attempt**, and
# the log of a plan contains all attempts in order. The first attempt is about the whole fusion. If it is refused, the segmenter
# starts with single ops, and each further attempt is about merging two neighbours.
#
# **Predict:** the fusion has four ops: sum, broadcast, div, sum. How many attempts are in its log?

# %%
question = predict("Attempts in the log", None)
question

# %%
log = plan.decisions
question.show("\n".join(f"{attempt.seq}  {attempt.phase:14} {'accepted' if attempt.accepted else 'refused'}" for attempt in log))
first = question.reveal(len(log))
first

# %% [markdown]
# ## 2. Verdicts
#
# In each attempt, the schedulers answer one after the other, in a fixed order, until one accepts. The answer of a scheduler is a
# **verdict**. So a refused attempt has a verdict of every scheduler. Most verdicts only say that the scheduler is made for another
# kind of fusion. The next cell prints all verdicts of the first attempt:

# %%
for verdict in log[0].verdicts:
    print(f"{verdict.scheduler:23} {verdict.text}")

# %% [markdown]
# The scheduler `inner_outer_persistent` is made for fusions like this one, which reduce rows and columns, and its verdict gives numbers. A
# row of 65,536 Float numbers takes 262,144 bytes. The number of bytes is proportional to the length of the row.
#
# **Predict:** is the fusion one kernel if the rows have half the length, 32,768?

# %%
question = predict("Is it one kernel with rows of half the length?", None, choices=("yes", "no"))
question

# %%
half = fl.segment(shares(32768))
question.show(half.decisions[0].text, half.decisions[0].verdicts[-1].text, sep="\n")
second = question.reveal("yes" if len(half.segments) == 1 else "no")
second

# %% [markdown]
# ## 3. Refused, or never tried
#
# `plan.why` finds the attempt about two ops, and says why the ops are in different kernels. Two ops can be separate for two reasons:
# every scheduler **refused** the pair, or the segmenter **never tried** the pair. A refusal means that no kernel for both exists. If a
# pair was never tried, you can try it by hand with `plan.glue`.
#
# The next fusion is the fusion of lesson 03.

# %%
with FusionDefinition() as fd:
    x, y = (fd.define_tensor(shape=[4096, 4096], contiguity=True, dtype=DataType.Float) for _ in range(2))
    a = fd.ops.exp(x)
    rows = fd.ops.broadcast(fd.ops.sum(a, dims=[1]), is_broadcast_dim=[False, True])
    columns = fd.ops.broadcast(fd.ops.sum(a, dims=[0]), is_broadcast_dim=[True, False])
    fd.add_output(fd.ops.add(fd.ops.mul(fd.ops.mul(a, rows), columns), y))
    fd.add_output(fd.ops.sum(fd.ops.mul(y, columns), dims=[1]))
other = fl.segment(fd)
other

# %% [markdown]
# **Predict:** the op `T9` adds y, and the op `T10` multiplies by y. Why are they in different kernels, although both read y?

# %%
question = predict("T9 and T10 are in different kernels. Why?", None, choices=("refused", "never tried"))
question

# %%
why = other.why("T9", "T10")
question.show(why)
third = question.reveal(why.relation.value)
third

# %% [markdown]
# ## 4. The player
#
# The explorer replays the attempts on the picture. Each step colours the ops of one attempt and shows the answer with its reason. Click
# an empty place of the picture, then press `j` for the next attempt, `k` for the one before it, and `p` to play all attempts. `Esc`
# ends the replay.

# %%
fl.explore(plan, view="decisions")

# %%
score(first, second, third)

# %% [markdown]
# ## Where to go next
#
# * [The segmenter, attempt by attempt](03_how_the_segmenter_thinks.ipynb) explains the order of the attempts.
# * [Reasons](../docs/reasons.md) lists every reason with a fusion that causes it, and what you can do about it.
# * `log.filter(code="rows_and_sums_too_large")` selects attempts, `log.to_pandas()` is a table, and `log.save("log.json")` writes a file.
#
# **Words:** [Broadcast](../docs/glossary.md#broadcast "An op that gives a tensor one more axis, along which it repeats its elements; it moves no data.") · [Decision log](../docs/glossary.md#decision-log "The record of each attempt of the segmenter: the ops, the scheduler's answer and its reason.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Verdict](../docs/glossary.md#verdict "A scheduler's answer to a candidate: accepted, or refused with a reason.")

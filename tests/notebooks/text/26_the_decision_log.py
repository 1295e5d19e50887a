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
# The fusion below divides each row of x by its sum, and then sums the columns of the result. The picture shows the plan for rows of
# 65,536 elements: two kernels. Which question did the segmenter ask, and who said no?

# %%
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
plan

# %% [markdown]
# ## 1. Attempts
#
# The segmenter asks one kind of question: *may these ops be one kernel?* Each question is an **attempt**, and the log keeps all of them
# in order. It first asks about the whole fusion. After a refusal, it begins with single ops and merges neighbours.
#
# **Predict:** the fusion has four ops: sum, broadcast, div, sum. How many attempts are in the log?

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
# Schedulers answer one after another, in a fixed order, until one accepts. A refused attempt therefore has a **verdict** from each of
# them. Most verdicts say only that a scheduler is made for another kind of fusion. The text of the attempt omits these:

# %%
for verdict in log[0].verdicts:
    print(f"{verdict.scheduler:23} {verdict.text}")

# %% [markdown]
# The verdict of `inner_outer_persistent` has numbers, so this scheduler came closest: it is made for exactly this fusion, and a row of
# 65,536 Float takes 262,144 bytes. The bytes grow with the length of a row.
#
# **Predict:** is a fusion with rows of half the length, 32,768, one kernel?

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
# `plan.why` finds the attempt about two ops and says what it decided. There are two kinds of no: the segmenter asked and every scheduler
# **refused**, or the segmenter **never tried** the pair. A refusal is a limit of the kernels. A pair that was never tried is a limit
# of the search, and gluing it by hand may work.
#
# The next fusion has an input that two separate parts read, and a column sum that only one of them needs.

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
# **Predict:** `T9` is the addition of y, and `T10` the product with y. Both read y, and they are in different kernels. Why?

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
# The explorer plays the log on the picture: each step colours the ops that an attempt is about and shows its reason. The keys are `N` for
# the next step, `P` for the previous one, and space to play. `Esc` gives the keyboard back to the notebook.

# %%
fl.explore(plan)

# %%
score(first, second, third)

# %% [markdown]
# ## Where to go next
#
# * [The segmenter, attempt by attempt](03_how_the_segmenter_thinks.ipynb): in which order the segmenter asks, and why.
# * [Reasons](../docs/reasons.md): every reason with a fusion that triggers it, and what to do about it.
# * `log.filter(code="rows_and_sums_too_large")`, `log.to_pandas()` and `log.save("log.json")` are the log as data.
#
# **Words:** [Broadcast](../docs/glossary.md#broadcast "An op that gives a tensor one more axis, along which it repeats its elements; it moves no data.") · [Decision log](../docs/glossary.md#decision-log "The record of each attempt of the segmenter: the ops, the scheduler's answer and its reason.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Verdict](../docs/glossary.md#verdict "A scheduler's answer to a candidate: accepted, or refused with a reason.")

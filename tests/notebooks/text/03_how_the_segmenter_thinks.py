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
# # The segmenter, attempt by attempt
#
# After this lesson, you can follow the segmenter attempt by attempt, and find the moment at which it missed a better plan. The lesson takes about 25 minutes.
#
# The fusion below has two outputs. With a = exp(x), the first output is a · (row sums of a) · (column sums of a) + y. The second
# output is the row sums of y · (column sums of a). nvFuser cuts this fusion into the three kernels in the picture; exp is in two of
# them, because both compute it again from x.
#
# There is a plan with **two** kernels that moves fewer bytes, and nvFuser's schedulers accept both kernels. So why does nvFuser
# make three?

# %%
from collections import Counter
from textwrap import fill

import numpy as np
from IPython.display import SVG

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/03_how_the_segmenter_thinks.toml").predict

with FusionDefinition() as fd:
    x, y = (fd.define_tensor(shape=[4096, 4096], contiguity=True, dtype=DataType.Float) for _ in range(2))
    a = fd.ops.exp(x)
    rows = fd.ops.broadcast(fd.ops.sum(a, dims=[1]), is_broadcast_dim=[False, True])
    b = fd.ops.mul(a, rows)
    columns = fd.ops.broadcast(fd.ops.sum(a, dims=[0]), is_broadcast_dim=[True, False])
    fd.add_output(fd.ops.add(fd.ops.mul(b, columns), y))
    fd.add_output(fd.ops.sum(fd.ops.mul(y, columns), dims=[1]))

plan = fl.segment(fd)
SVG(plan._repr_mimebundle_()["image/svg+xml"])

# %% [markdown]
# The segmenter builds its plan by asking the schedulers one kind of question: *can these ops be one kernel?* A question and its
# answer are an **attempt**. If a scheduler accepts the ops, they become one group, and no later step separates them again. The
# segmenter asks its questions in **phases**, which always have the same order.
#
# A plan records all attempts in `plan.decisions`. The next cell prints their number, the phases, and the answer to the first
# question:

# %%
phases = dict.fromkeys(attempt.phase for attempt in plan.decisions)
print(fill(f"{len(plan.decisions)} attempts, in these phases: {', '.join(phases)}", 92), end="\n\n")
print(fill(plan.decisions[0].text, 92))

# %% [markdown]
# The first question is whether the whole fusion can be one kernel. If a scheduler had accepted, the segmenter would have stopped
# there. The sentence above is the refusal of the scheduler that came closest.
#
# Before the first question, nvFuser may rewrite a fusion by **pre-segmentation passes** ([docs/passes.md](../docs/passes.md)), which
# for example remove ops that have no effect. They change nothing in this fusion. For other fusions, `plan.pass_diffs()` shows the
# changes.
#
# The next sections explain the phases, one by one.
#
# ## 1. Single ops, and what is recomputed
#
# After the refusal, the segmenter starts again with the smallest groups: each op is a group. The only exception is a chain of unary
# ops (ops with one operand) that begins at an input of the fusion. Such a chain is not a group: each group that needs its result
# computes the chain for itself, from the input. This is called *forwarding*. It saves time, because computing an exp twice takes
# less time than writing a tensor to memory and reading it back.
#
# **Predict:** with how many groups does the segmenter start? Count the ops of the picture. T2 is in two boxes, but it is one op.

# %%
question = predict("Groups at the start", None)
question

# %%
forwarded = plan.decisions.filter(phase="forward")
question.show(forwarded)
outcome_1 = question.reveal(len(plan.fusion.exprs) - len(forwarded))
outcome_1

# %% [markdown]
# ## 2. Rounds by level
#
# Now groups are merged in rounds. Two groups are **neighbours** if one reads a tensor that the other one makes. The **level** of a group
# is the number of groups on the longest path from an input to the group, as the next cell prints.
#
# In each round, the segmenter goes through the groups in the order of their tensors: first T3, then T4, and so on. For each group that
# has no partner yet, it looks for a neighbour whose level is one lower or one higher, in this order, and asks the schedulers about
# the pair. If a scheduler accepts, the two groups are partners in this round. At the end of the round, all partners are merged.

# %% jupyter={"source_hidden": true}
# Prints the level of each group: one more than the highest level among the groups that it reads.
fusion, level = plan.fusion, {}
for expr in fusion.exprs:
    makers = [fusion.producers[tv] for tv in expr.tensor_inputs if tv in fusion.producers]
    above = [level[maker.name] for maker in makers if maker.name != "T2"]  # T2 is recomputed: as good as an input
    level[expr.name] = 1 + max(above, default=0)
    if expr.name != "T2":
        print(f"level {level[expr.name]}: {expr.name} = {expr.op.name}({', '.join(tv.name for tv in expr.tensor_inputs)})")

# %% [markdown]
# Why only neighbours whose levels differ by one? Suppose that b reads a, and that c reads both a and b. The levels of a, b and c are
# then 1, 2 and 3. If a and c were merged, the merged group would have to run before b and also after b: a cycle. Between two groups
# whose levels differ by one, no third group can lie on a path, so merging them never closes a cycle.
#
# Two merges of one round could still close a cycle together. Therefore the segmenter has a second rule. A group gets no partner
# in this round if one of its neighbours already has a partner, and the level of the neighbour or of the neighbour's partner
# differs from the group's level by at most one. Both groups of a new pair have to satisfy this rule. For example, in a chain a →
# b → c → d → e, first a and b become partners. Then c gets no partner, because its neighbour b has one and is one level away. At
# last d and e become partners.
#
# **Predict:** which pairs are merged in round 1? The schedulers accept every pair here, so only the two rules decide.

# %%
question = predict("Which pairs are merged in round 1? Write them as T5+T8, T10+T11.", None)
question

# %% jupyter={"source_hidden": true}
# Lists the pairs that were accepted in round 1, the groups after the first rounds, and the plan that stops after the second.
def merged(phase):
    return {"+".join(sum(attempt.subjects, ())) for attempt in plan.decisions.filter(phase=phase, accepted=True)}


def groups_after(phase):
    """Return the groups at the end of a phase."""
    groups = {expr.name: {expr.name} for expr in fusion.exprs}
    for attempt in plan.decisions.filter(accepted=True):
        if attempt.kind.value == "merge":
            whole = set().union(*(groups[name] for name in sum(attempt.subjects, ())))
            groups.update(dict.fromkeys(whole, whole))
        if attempt.phase == phase:
            last = {id(group): sorted(group, key=fusion.positions.get) for group in groups.values()}
    return list(last.values())


for number in (1, 2, 3):
    question.show(f"round {number}:", *("+".join(group) for group in groups_after(f"level round {number}")))
question.show(fl.segment(fd, strategy=lambda *_: groups_after("level round 2"), name="after round 2"))
outcome_2 = question.reveal(merged("level round 1"))
outcome_2

# %% [markdown]
# Below the answer, the cell prints the groups after each of the first three rounds, and draws them after the second round. T2 is the
# exp. It stays separate until the last phase, so it looks like a kernel there, and the bytes of this picture are not yet final.

# %% [markdown]
# ## 3. Where the better plan was lost
#
# The better plan has T9 and T10 in one kernel. T9 adds y at the end of the first output, and T10 multiplies y at the start of the
# second output, so this kernel reads y once for both.
#
# The segmenter never asked about T9 and T10 alone. They are not neighbours, because neither reads the other; they only share the
# input y, and no phase asks about two groups only because they share an input. So this pair was **not refused, but never tried**.
#
# `plan.why` answers for any two tensors, also for pairs that were never tried. `plan.glue` merges two segments of a plan if a
# scheduler accepts them. The next cell glues the segments of T9 and T10:

# %%
print(fill(str(plan.why("T9", "T10").text), 92))
s9, s10 = plan.segmented.home["T9"][0], plan.segmented.home["T10"][0]
better = plan.glue(s9, s10)
better

# %% [markdown]
# The result of the rounds also depends on small things elsewhere in the fusion. For example, forwarding can be switched off. Then T2
# is a group, the levels of all groups that depend on it are one higher, and other pairs are merged in round 1:

# %%
unforwarded = fl.segment(fd, options=fl.SegmenterOptions(forward_inputs=False))
for attempt in unforwarded.decisions.filter(phase="level", accepted=True):
    print(f"{attempt.phase}:", " with ".join("+".join(names) for names in attempt.subjects))
print(len(unforwarded.segments), "segments,", f"{sum(s.bytes for s in unforwarded.segments) / 1e6:.0f} MB moved")

# %% [markdown]
# The result again has three segments, but other ones, which move more bytes than the 336 MB of the plan with forwarding. A method that always takes the next merge that is possible, and never takes one
# back, is called **greedy**. It is fast, but which plan it reaches depends on the order of its questions.
#
# ## 4. The last two phases
#
# When no round finds a pair, two phases are left. The **final merge** asks about the neighbours that remain, one pair at a time,
# whatever their levels. **Resolve forwarded** gives each group its own copy of the forwarded ops that it needs, here exp. If
# the schedulers refuse a group with its copy, the tensor is stored in memory instead, and the group reads it.
#
# Other fusions have further phases: one groups casts, one merges each `cat` with the pads of its operands, and one combines
# reductions of the same shape. `SegmenterOptions` has a switch for each phase.
#
# ## 5. Step by step
#
# The explorer can replay the attempts. It opens at the first attempt, with the list of all attempts below the picture (tab
# *Why*). Click an empty place of the picture, then press `j` for the next attempt, `k` for the one before it, or `p` to play all
# attempts, and watch the groups grow. `Esc` ends the replay.

# %%
explorer = fl.explore(plan, view="decisions")
explorer

# %% [markdown]
# ## Your turn: a segmenter of your own
#
# `glue` asks the question of the segmenter: can these two segments be one kernel? If no scheduler accepts them, or if the merge
# would close a cycle, it raises `IllegalEdit`. So you can write a segmenter in a few lines. The function `merge_all` below starts from
# one segment per op, and merges neighbours until no pair can be merged. Its argument `order` sorts the pairs: the first pair is
# tried first.

# %%
def neighbours(plan):
    """Return pairs of segments between which a tensor passes."""
    return [(a, b) for a, after in enumerate(plan.segmented.successors) for b in sorted(after)]


def merge_all(plan, order):
    while True:
        for a, b in order(neighbours(plan)):
            try:
                plan = plan.glue(a, b)
            except fl.errors.IllegalEdit:
                continue
            break  # a merge renumbers the segments
        else:
            return plan


single = fl.segment(fd, strategy="unfused")
print("from the front:", len(merge_all(single, list).segments), "segments")

# %% [markdown]
# **Predict:** how many segments are left if `merge_all` tries the last pair first? And suppose that it tries the pairs in random
# order, 50 times: how many of the 50 runs end with two segments? (A number within 10 of the answer counts as right.)

# %%
question = predict("The last pair first, and at random", {"segments from the back": None, "runs of 50 with two": None})
question

# %% jupyter={"source_hidden": true}
# Merges with the last pair first, then 50 times in random order, and counts the segments.
back = merge_all(single, lambda pairs: pairs[::-1])
rng = np.random.default_rng(0)


def shuffled(pairs):
    return [pairs[index] for index in rng.permutation(len(pairs))]


runs = Counter(len(merge_all(single, shuffled).segments) for _ in range(50))
question.show("segments: runs", dict(runs))
for name, each in {"nvFuser": plan, "glued": better, "from the back": back}.items():
    question.show(f"{name:14}{len(each.segments)} segments, {sum(s.bytes for s in each.segments) / 1e6:.0f} MB moved")
answer = {"segments from the back": len(back.segments), "runs of 50 with two": runs[2]}
outcome_3 = question.reveal(answer, within=10 / max(runs[2], 1), exact=["segments from the back"])
outcome_3

# %%
score(outcome_1, outcome_2, outcome_3)

# %% [markdown]
# ## Where to go next
#
# - The author of a program can give the segmenter hints: [04_segment_set_and_top_down](04_segment_set_and_top_down.ipynb).
# - Is a plan with two segments the best one, and how can you know? [05_greedy_and_optimal](05_greedy_and_optimal.ipynb).
# - `plan.decisions.filter(phase=..., op=..., code=..., accepted=...)` selects attempts, and `print(plan.decisions)` lists all of them.
#
# **Words:** [Decision log](../docs/glossary.md#decision-log "The record of each attempt of the segmenter: the ops, the scheduler's answer and its reason.") · [Forwarding](../docs/glossary.md#forwarding "The segmenter's choice to let each segment compute a cheap tensor again, so that it is neither written nor read.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Greedy](../docs/glossary.md#greedy "A method that takes the next best step and does not take back earlier ones.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Presegmentation](../docs/glossary.md#presegmentation "Rewriting or cutting a fusion before the segmenter merges ops: passes, and top-down cuts.") · [Reduction](../docs/glossary.md#reduction "An op that combines the elements along an axis, such as a sum or a maximum.") · [Rule](../docs/glossary.md#rule "A condition of a scheduler; a candidate that breaks it is refused.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.")

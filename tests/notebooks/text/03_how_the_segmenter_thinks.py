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
# After this lesson, you can follow the segmenter attempt by attempt, and find the moment at which it missed a better plan. The lesson takes about 20 minutes.
#
# The fusion below multiplies exp(x) by its row sums and column sums, and a tensor y joins in at the end. nvFuser cuts it into the
# three kernels in the picture. There is a plan with **two** kernels that moves fewer bytes, and nvFuser's schedulers accept both of
# them. So why does nvFuser make three kernels where two would do?

# %%
from collections import Counter

import numpy as np
from IPython.display import display

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
plan

# %% [markdown]
# The segmenter asks only one kind of question: *may these ops be one kernel?* It asks its questions in a fixed order, and never
# takes back an accepted answer. All of this is on record:

# %%
phases = dict.fromkeys(attempt.phase for attempt in plan.decisions)
print(f"{len(plan.decisions)} attempts, in these phases: {', '.join(phases)}\n")
print(plan.decisions[0].text)

# %% [markdown]
# The sentence is the answer to the first question, which is about the whole fusion. If a scheduler had accepted it, the segmenter would
# have stopped there.
#
# The fusion on record may differ from the one that you defined: **pre-segmentation passes** rewrite it first
# ([docs/passes.md](../docs/passes.md)). They find nothing to do here; in general, `plan.pass_diffs()` shows what they did.
#
# The next sections go through the record, phase by phase.
#
# ## 1. Single ops, and what is recomputed
#
# Now the segmenter starts from the other end: each op is a separate group. The exception is a chain of unary ops that begins at an
# input. Instead of forming a group, it is computed **again**, from the input, by each group that needs it. This is called
# *forwarding*: an exp costs less than a trip to memory.
#
# **Predict:** how many groups are there before the first round?

# %%
question = predict("Groups before the first round", None)
question

# %%
forwarded = plan.decisions.filter(phase="forward")
question.show(forwarded)
outcome_1 = question.reveal(len(plan.fusion.exprs) - len(forwarded))
outcome_1

# %% [markdown]
# ## 2. Rounds by level
#
# The **level** of a group is the length of the longest path that leads to it. In each round the groups propose, in order, to a
# neighbour one level up or down. The pair is merged if a scheduler accepts both as one kernel. All pairs of a round are merged at
# the same time.

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
# Why only one level up or down? Take a → b → c and a → c. Merging a with c would put them before *and* after b, which is a cycle;
# they are two levels apart. If two groups are one level apart, no other path can lead from one to the other.
#
# Merging several pairs at the same time is safe if the pairs keep their distance. A group stays out of the round if one of its
# neighbours already has a partner, and that neighbour or its partner is within one level. The same holds for the group that it would
# merge with.
#
# **Predict:** which pairs are merged in round 1? T3 proposes first, then T4, and so on; the schedulers accept every pair here.

# %%
question = predict("Which pairs are joined in round 1?", None)  # as {"T2+T3", "T8+T10"}
question

# %% jupyter={"source_hidden": true}
# Lists the pairs that were accepted in round 1.
def joined(phase):
    return {"+".join(sum(attempt.subjects, ())) for attempt in plan.decisions.filter(phase=phase, accepted=True)}


outcome_2 = question.reveal(joined("level round 1"))
outcome_2

# %% [markdown]
# This is the plan after each round, as groups of ops (T2 stands alone until its readers are known):

# %% jupyter={"source_hidden": true}
# Prints the groups after each of the first rounds, and draws the plan that stops after the second.
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
    print(f"round {number}:", *("+".join(group) for group in groups_after(f"level round {number}")))
fl.segment(fd, strategy=lambda *_: groups_after("level round 2"), name="after round 2")

# %% [markdown]
# ## 3. Where the better plan was lost
#
# The better plan has T9 and T10 in one kernel: the op that ends the first output and the op that begins the second. Both read y.
# In the rounds above, T9 merged with T8 and T10 merged with T11, and those merges are final. No phase asks about two groups that
# merely share an input, so this pair was never considered:
#
# **Never tried** is a different answer from *refused*. One more question gives a better plan:

# %%
display(plan.why("T9", "T10"))
s9, s10 = plan.segmented.home["T9"][0], plan.segmented.home["T10"][0]
better = plan.glue(s9, s10)
better

# %% [markdown]
# Which groups are merged also depends on things that have nothing to do with T9 and T10. Without forwarding, T2 is a group, the
# levels after it rise by one, and other pairs are merged in round 1:

# %%
unforwarded = fl.segment(fd, options=fl.SegmenterOptions(forward_inputs=False))
for attempt in unforwarded.decisions.filter(phase="level", accepted=True):
    print(attempt.phase, *("+".join(names) for names in attempt.subjects))
print(len(unforwarded.segments), "segments")

# %% [markdown]
# This is not an argument for or against forwarding. It shows what a **greedy** method is like: good and less good plans
# lie close together, and the method takes the first one that it reaches.
#
# ## 4. The last two phases
#
# The **final merge** asks about all remaining neighbours, whatever their levels, one pair at a time. **Resolve forwarded** gives each
# group its own copy of what it recomputes, if a scheduler still accepts the group with that copy.
#
# There are more phases than this fusion needs: casts are grouped, pads are merged with their cat, and reductions of one shape are
# combined. Each has its switch in `SegmenterOptions`.
#
# ## 5. Step by step
#
# The explorer replays the log: step through its list of decisions, and watch the groups form.

# %%
explorer = fl.explore(plan)
explorer

# %% [markdown]
# ## Your turn: a segmenter of your own
#
# `glue` asks the same question, and raises `IllegalEdit` if the answer is no, because a scheduler refuses or because there would be
# a cycle. So a segmenter takes only a few lines. This one merges neighbours until no two can be merged; `order` decides which pair
# is tried first.

# %%
def neighbours(plan):
    """Return pairs of segments between which a tensor passes."""
    return [(a, b) for a, after in enumerate(plan.segmented.successors) for b in sorted(after)]


def join_all(plan, order):
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
print("from the front:", len(join_all(single, list).segments), "segments")

# %% [markdown]
# **Predict:** how many segments result if it starts from the back and tries the last pair first? And if it tries pairs in random
# order, in how many of 50 runs does it find two segments (within 10 runs)?

# %%
question = predict("From the back, and at random", {"segments from the back": None, "runs of 50 with two": None})
question

# %% jupyter={"source_hidden": true}
# Merges from the back, then 50 times in random order, and counts the segments.
back = join_all(single, lambda pairs: pairs[::-1])
rng = np.random.default_rng(0)


def shuffled(pairs):
    return [pairs[index] for index in rng.permutation(len(pairs))]


runs = Counter(len(join_all(single, shuffled).segments) for _ in range(50))
question.show("segments: runs", dict(runs))
answer = {"segments from the back": len(back.segments), "runs of 50 with two": runs[2]}
outcome_3 = question.reveal(answer, within=10 / max(runs[2], 1), exact=["segments from the back"])
outcome_3

# %%
score(outcome_1, outcome_2, outcome_3)

# %% [markdown]
# ## Where to go next
#
# - The author of a program can help the segmenter: [04_segment_set_and_top_down](04_segment_set_and_top_down.ipynb).
# - Is two the best possible number, and how could one know? [05_greedy_and_optimal](05_greedy_and_optimal.ipynb).
# - `plan.decisions.filter(phase=..., op=..., code=..., accepted=...)` finds attempts; `str(plan.decisions)` lists all of them.
#
# **Words:** [Decision log](../docs/glossary.md#decision-log "The record of each attempt of the segmenter: the ops, the scheduler's answer and its reason.") · [Forwarding](../docs/glossary.md#forwarding "The segmenter's choice to let each segment compute a cheap tensor again, so that it is neither written nor read.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Greedy](../docs/glossary.md#greedy "A method that takes the next best step and does not take back earlier ones.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Presegmentation](../docs/glossary.md#presegmentation "Rewriting or cutting a fusion before the segmenter merges ops: passes, and top-down cuts.") · [Reduction](../docs/glossary.md#reduction "An op that combines the elements along an axis, such as a sum or a maximum.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.")

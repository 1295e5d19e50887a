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
# # Three kernels where two would do
#
# Powers times sums of rows and of columns, and a tensor y that joins in at the end. nvFuser cuts it into three kernels, the picture below.
# There is a plan with **two** that moves fewer bytes, and every kernel of it is one that nvFuser's schedulers accept. So why
# was it not found?

# %%
from collections import Counter

import numpy as np

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.teaching import predict, score

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
# The segmenter asks questions of one kind only: *may these ops be one kernel?* It asks them in a fixed order, and what was
# accepted once is never taken back. All of it is on record:

# %%
log = plan.decisions.to_pandas()
log[["phase", "of", "outcome", "code"]]

# %% [markdown]
# We go through it phase by phase.
#
# ## 1. All at once
#
# The first question is about everything. Had a scheduler accepted, that would have been the end.

# %%
print(plan.decisions[0].text)

# %% [markdown]
# ## 2. Single ops, and what is recomputed
#
# Now it starts from the other end: each op is a group of its own. A chain of unary ops that begins at an input is no group,
# though. Each group that needs it computes it **again**, from the input. That is *forwarding*: an exp costs less than a trip
# to memory.
#
# **Predict:** which tensor is recomputed here? (Inputs are T0 and T1; results are numbered in order of definition.)

# %%
question = predict("Which tensor is recomputed by its readers?", None)  # as "T7"
question

# %%
(forwarded,) = plan.decisions.filter(phase="forward")
outcomes = [
    question.reveal(
        forwarded.subjects[0][0], hints={"T0": "That is an input; nothing computes it.", "T7": "A broadcast of sums is no unary op on an input."},
        because="It is the only unary op on an input that nobody else reads.",
    ),
]
outcomes[0]

# %% [markdown]
# ## 3. Rounds by level
#
# The **level** of a group is the length of the longest path to it. In each round groups propose, in order, to a neighbour
# one level up or down. A pair is joined if a scheduler accepts both as one kernel. All pairs of a round are joined at once.

# %%
fusion, level = plan.fusion, {}
for expr in fusion.exprs:
    makers = [fusion.producers[tv] for tv in expr.tensor_inputs if tv in fusion.producers]
    above = [level[maker.name] for maker in makers if maker.name != "T2"]  # T2 is recomputed: as good as an input
    level[expr.name] = 1 + max(above, default=0)
    if expr.name != "T2":
        print(f"level {level[expr.name]}: {expr.name} = {expr.op.name}({', '.join(tv.name for tv in expr.tensor_inputs)})")

# %% [markdown]
# Why only one level up or down? Take a → b → c and a → c. Joining a with c would put them before *and* after b: a cycle. They
# are two levels apart. If two groups are one level apart, no other path can lead from one to the other.
#
# And joining several pairs at once is safe if they keep a distance: a group stays out of the round if one of its neighbours
# has a partner already, and that neighbour or its partner is within one level. The same holds for the one that it would join.
#
# **Predict:** which pairs are joined in round 1? T3 proposes first, then T4, and so on; schedulers accept everything here.

# %%
question = predict("Which pairs are joined in round 1?", None)  # as {"T3+T4", "T5+T6"}
question

# %%


def joined(phase):
    return {"+".join(sum(attempt.subjects, ())) for attempt in plan.decisions.filter(phase=phase, accepted=True)}


outcomes.append(
    question.reveal(
        joined("level round 1"),
        because="T5 keeps out, since its neighbour T4 has a partner within one level; so does T10, because of T7.",
    )
)
outcomes[1]

# %% [markdown]
# The plan after each round, as groups of ops (T2 stands by itself until its readers are known):

# %%


def groups_after(phase):
    """Return the groups when a phase has ended."""
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

# %%
fl.segment(fd, strategy=lambda *_: groups_after("level round 2"), name="after round 2")

# %% [markdown]
# ## 4. The moment at which it was lost
#
# The cheaper plan has T9 and T10 in one kernel: the op that ends the first output and the one that begins the second. Both
# read y. Look at the rounds above: T9 went to T8 and T10 to T11, and that was final. No phase asks about two groups that merely
# share an input. So nobody ever asked:

# %%
plan.why("T9", "T10")

# %% [markdown]
# **Never tried** is another answer than *refused*. One question more, and the plan is better:

# %%
s9, s10 = plan.segmented.home["T9"][0], plan.segmented.home["T10"][0]
better = plan.glue(s9, s10)
better

# %% [markdown]
# Who finds whom also depends on what has nothing to do with T9 and T10. Without forwarding T2 is a group, levels behind it
# are one higher, and other pairs are joined in round 1:

# %%
unforwarded = fl.segment(fd, options=fl.SegmenterOptions(forward_inputs=False))
for attempt in unforwarded.decisions.filter(phase="level", accepted=True):
    print(attempt.phase, *("+".join(names) for names in attempt.subjects))
print(len(unforwarded.segments), "segments")

# %% [markdown]
# That is no argument for or against forwarding. It is what a **greedy** method is like: good plans and less good ones lie close
# together, and it takes the first that it runs into.
#
# ## 5. The last two phases
#
# The **final merge** asks about all neighbours that are left, whatever their levels, one pair at a time. **Resolve forwarded**
# gives each group its own copy of what it recomputes, if a scheduler still accepts it then.
#
# There are more phases than this fusion needs: casts are grouped, pads join their cat, reductions of one shape are
# combined. Each is a switch of `SegmenterOptions`.
#
# ## 6. Step by step
#
# The explorer plays the log: go through its list of decisions, and watch groups form.

# %%
explorer = fl.explore(plan)
explorer

# %% [markdown]
# ## Your turn: a segmenter of your own
#
# `glue` asks the question, and raises `IllegalEdit` if the answer is no: a scheduler refused, or there would be a cycle. So
# a segmenter is a few lines. This one joins neighbours until nothing can be joined; `order` says which pair is tried first.

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
            break  # the numbers of segments have changed
        else:
            return plan


single = fl.segment(fd, strategy="unfused")
print("from the front:", len(join_all(single, list).segments), "segments")

# %% [markdown]
# **Predict:** how many segments if it goes from the back, trying the last pair first? And if it tries pairs in random order,
# in how many of 50 runs does it find two (within 10 runs)?

# %%
question = predict("From the back, and at random", {"segments from the back": None, "runs of 50 with two": None})
question

# %%
back = join_all(single, lambda pairs: pairs[::-1])
rng = np.random.default_rng(0)


def shuffled(pairs):
    return [pairs[index] for index in rng.permutation(len(pairs))]


runs = Counter(len(join_all(single, shuffled).segments) for _ in range(50))
print("segments: runs", dict(runs))
answer = {"segments from the back": len(back.segments), "runs of 50 with two": runs[2]}
outcomes.append(
    question.reveal(
        answer, within=10 / max(runs[2], 1),
        because="What is accepted first shuts out other things. From the back, T8 to T11 gather before T6 is asked.",
    )
)
outcomes[2]

# %%
score(*outcomes)

# %% [markdown]
# ## Where to go on
#
# - Who writes the program can help: [04_segment_set_and_top_down](04_segment_set_and_top_down.ipynb).
# - Is two the best there is, and how could one know? [05_greedy_and_optimal](05_greedy_and_optimal.ipynb).
# - `plan.decisions.filter(phase=..., op=..., code=..., accepted=...)` finds attempts; `str(plan.decisions)` has all of it.

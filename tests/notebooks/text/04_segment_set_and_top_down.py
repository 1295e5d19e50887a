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
# # segment_set: what a hint does, bottom-up and top-down
#
# After this lesson, you can predict what a `segment_set` does to a plan, and decide whether it helps. The lesson takes about 20 minutes.
#
# A column x is added to a matrix, and the same column is negated. All of this fits in one kernel. Then somebody adds one line,
# `segment_set`, because the negated column should be finished separately. One would expect two kernels; the picture shows what
# nvFuser makes of it (NVIDIA/Fuser issue #3096). Where does the third kernel come from?

# %%
from ipywidgets import interact

import fuser_lab as fl
from fuser_lab import FusionDefinition, SegmenterOptions
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/04_segment_set_and_top_down.toml").predict


def defined(body, *specs):
    """Return the definition that a function of ops and tensors makes; the function returns the outputs."""
    with FusionDefinition() as fd:
        tensors = [fd.define_tensor(shape=list(s.shape), contiguity=True, dtype=s.dtype) for s in specs]
        for output in body(fd.ops, *tensors):
            fd.add_output(output)
    return fd


def hinted(ops, x, y):
    negated = ops.segment_set(ops.neg(x))
    return ops.add(y, x), ops.set(negated)


fd = defined(hinted, fl.spec((1024, 1)), fl.spec((1024, 1024)))
plan = fl.segment(fd)
plan

# %% [markdown]
# ## What `segment_set` says
#
# It computes nothing; its result is its operand. It tells the segmenter: *let a segment end here*. Nothing else in a segment may
# read the result.
#
# But it has a second effect. nvFuser normally asks about the whole fusion first. A fusion with a hint in it cannot be one kernel, so
# **nvFuser skips that question**, and builds everything up from single ops instead. That way, groups are merged only when a tensor
# passes from one to the other; `add` and `neg` merely share an input:
#
# Compare the records with that line and without it:

# %%
print(plan.why("T2", "T4"), end="\n\n")
ignored = fl.segment(fd, options=SegmenterOptions(segment_set="ignore"))
print(f"without: {ignored.decisions}\n\nwith:    {plan.decisions}")

# %% [markdown]
# ## Top-down
#
# NVIDIA/Fuser issue #2224 proposes to replace the question about the whole fusion. nvFuser never implemented the proposal; fuser_lab
# has it as a strategy.
#
# 1. **Contract**: merge groups across all edges except those that leave a hint. Each connected part is a *piece*. All readers of one
#    input are connected.
# 2. **Check**: pieces must not depend on each other in a cycle.
# 3. **Attempt**: ask the schedulers about each piece. An accepted piece is not tried again, neither alone nor together with another
#    accepted piece. A refused piece is **shattered** into single ops.
# 4. **Continue** bottom-up with the single ops of the shattered pieces, which may also join an accepted piece.
#
# **Predict:** how many segments does the fusion above have top-down?

# %%
question = predict("How many segments top-down?", None)
question

# %%
top_down = fl.segment(fd, strategy="top_down")
question.show(fl.diff(plan, top_down))
outcome_1 = question.reveal(len(top_down.segments))
outcome_1

# %% [markdown]
# ## The four steps, on a fusion that needs them all
#
# The rows of x are divided by their sums; after a hint, the columns of the result are divided by their sums, and w is added.
#
# Step 1 takes a few lines. Every op starts with its own label. Two ops get the same label if a tensor passes between them,
# unless a `segment_set` produced that tensor, and also if both read the same input.

# %% jupyter={"source_hidden": true}
# Defines the fusion and `pieces(fusion)`, which is step 1 in a few lines; prints the ops and their pieces.
def row_and_column_norm(ops, x, w):
    rows = ops.truediv(x, ops.sum(x, dims=[1], keepdim=True))
    cut = ops.segment_set(rows)
    columns = ops.truediv(cut, ops.sum(cut, dims=[0], keepdim=True))
    return (ops.add(columns, w),)


square = fl.spec((4096, 4096))
norms = defined(row_and_column_norm, square, square)
for expr in norms.fusion.exprs:
    print(f"{expr.name} = {expr.op.name}({', '.join(tv.name for tv in expr.tensor_inputs)})")


def pieces(fusion):
    """Return the connected parts that remain when the edges leaving hints are removed."""
    label = {expr.name: expr.name for expr in fusion.exprs}

    def join(a, b):
        label.update({name: label[a] for name in label if label[name] == label[b]})

    for tensor, readers in fusion.users.items():
        maker = fusion.producers.get(tensor)
        if maker is None:  # an input; a hint on an input is a piece of its own
            ends = [reader for reader in readers if reader.op.name != "segment_set"]
        else:
            ends = [] if maker.op.name == "segment_set" else [maker, *readers]
        for end in ends[1:]:
            join(ends[0].name, end.name)
    return [sorted(name for name in label if label[name] == one) for one in dict.fromkeys(label.values())]


for piece in pieces(norms.fusion):
    print(piece)

# %% [markdown]
# **Predict:** how many of these two pieces are accepted, and how many segments are there in the end?

# %%
question = predict("Top-down on two norms", {"accepted": None, "segments": None})
question

# %%
cut = fl.segment(norms, strategy="top_down")
attempts = cut.decisions.filter(phase="top-down")
for attempt in attempts:
    question.show("accepted" if attempt.accepted else "shattered", "+".join(sum(attempt.subjects, ())), "\n   ", attempt.text, "\n")
outcome_2 = question.reveal(
    {"accepted": sum(attempt.accepted for attempt in attempts), "segments": len(cut.segments)},
)
outcome_2

# %% [markdown]
# ## A size moves the cut
#
# How long may the columns be? Move the slider for the number of rows, and watch the segments after the hint. The explorer is a widget
# and its plan is a trait: assign a plan, and the explorer shows it. Its buttons for other strategies and for the
# meaning of the hint still work.

# %%
explorer = fl.explore(cut, title="two norms")


def of_rows(rows):
    """Return the top-down plan for this number of rows."""
    tall = fl.spec((rows, 4096))
    return fl.segment(defined(row_and_column_norm, tall, tall), strategy="top_down")


@interact(rows=(512, 8192, 512))
def slide(rows=4096):
    explorer.plan = of_rows(rows)


explorer

# %% [markdown]
# ## When a hint does not cut
#
# Step 2 exists for fusions like this one. A hint lies on one of two paths from the first op to the last. Contract everything that the
# hint does not separate, and the other path connects both sides again:
#
# The result is a single piece, although there is a hint inside it. The proposal accepts this: hints that do not form a cut-set leave
# the complete fusion as one piece, which the hint then causes to be shattered, and the rest proceeds as in nvFuser today.

# %%
def way_around(ops, x, y):
    a = ops.mul(x, y)
    through = ops.exp(ops.segment_set(a))
    return (ops.add(through, ops.sin(a)),)


around = defined(way_around, square, square)
print(*pieces(around.fusion), sep="\n")
proposed = fl.segment(around, strategy="top_down")
print(*(attempt.text for attempt in proposed.decisions.filter(phase="top-down")), sep="\n")
print(proposed)

# %% [markdown]
# `SegmenterOptions(pieces_by_depth=True)` and `segment_set="cut"` are interpretations of fuser_lab's own. They use
# **depth**, the number of hints on the way to an op. Connected ops of the same depth form a piece. Depth never
# decreases along a path, so these pieces cannot form a cycle.
#
# **Predict:** on which side of the hint does `sin` land, before or after?

# %%
question = predict("Where is sin?", None, choices=["before", "after"])
question

# %%
split = fl.segment(around, strategy="top_down", options=SegmenterOptions(pieces_by_depth=True))
side = "before" if split.segmented.home["T5"] == split.segmented.home["T2"] else "after"
question.show(str(split))
outcome_3 = question.reveal(side)
outcome_3

# %% [markdown]
# ## Hint, cut, or nothing
#
# One switch sets the meaning of `segment_set`, and another sets the strategy. Here are four fusions under each combination:

# %%
def siblings(ops, x):
    return ops.sin(x), ops.cos(x), ops.segment_set(x)


FUSIONS = {"issue #3096": fd, "two norms": norms, "way around": around, "siblings": defined(siblings, square)}
WAYS = {
    "hint": {},
    "hint, top-down": {"strategy": "top_down"},
    "by depth": {"strategy": "top_down", "options": SegmenterOptions(pieces_by_depth=True)},
    "cut": {"options": SegmenterOptions(segment_set="cut")},
    "ignored": {"options": SegmenterOptions(segment_set="ignore")},
}
print(f"{'':14}", *(f"{way:>16}" for way in WAYS))
for name, fusion in FUSIONS.items():
    counts = [len(fl.segment(fusion, **options).segments) for options in WAYS.values()]
    print(f"{name:14}", *(f"{count:16}" for count in counts))

# %% [markdown]
# Read the last column first. Where ignoring the hints gives the fewest segments, the hint is pure cost. So why write one? [Lesson 21](21_cuts_without_hints.ipynb) has a
# hint that helps.

# %%
score(outcome_1, outcome_2, outcome_3)

# %% [markdown]
# ## Where to go next
#
# - `plan.annotate("T2")` puts a `segment_set` into the definition and segments it again, with any strategy and any
#   meaning of `segment_set`; `plan.without_annotation("T2")` removes it, and `plan.to_python("nvfuser_direct")` is the
#   script for nvFuser.
# - `plan.cut("T2")` is different: it overrides the segmenter. `plan.to_annotations()` finds the hints that give the same plan.
# - In the explorer, a click on an edge does either; the switch below the graph selects which.
# - A hint that helps, and cuts without hints: [21_cuts_without_hints](21_cuts_without_hints.ipynb).
# - How far from the best plan is all this? [05_greedy_and_optimal](05_greedy_and_optimal.ipynb).
#
# **Words:** [Bottom-up](../docs/glossary.md#bottom-up "nvFuser's way to segment: it starts from single ops and merges neighbours, step by step.") · [Decision log](../docs/glossary.md#decision-log "The record of each attempt of the segmenter: the ops, the scheduler's answer and its reason.") · [Definition](../docs/glossary.md#definition "The record of the ops of a fusion, made by calls in a `with FusionDefinition()` block.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.") · [segment_set](../docs/glossary.md#segment_set "An op that computes nothing and tells the segmenter to end a segment there.") · [Strategy](../docs/glossary.md#strategy "The method that cuts a fusion, such as bottom-up, top-down or optimal.") · [Top-down](../docs/glossary.md#top-down "A strategy that cuts the fusion at its hints first, and asks the schedulers about each whole piece.")

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
# A fusion adds a column x to a matrix y, and also returns the negated column. nvFuser makes one kernel of it. Then somebody wants the
# negated column in a separate kernel, and adds a line: the op `segment_set`, which tells the segmenter to end a segment. You might
# expect two kernels. The picture below the next cell shows that nvFuser makes three (NVIDIA/Fuser issue #3096). Where does the third
# kernel come from?

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
# The op `segment_set` computes nothing: its result equals its operand. It is a hint to the segmenter, which says: *end a segment
# here*. No other op of the same segment may read the result of a `segment_set`.
#
# But the hint has a second effect. Normally, nvFuser first asks the schedulers about the whole fusion. A fusion that contains a hint
# cannot be one kernel, so **nvFuser skips this question** and merges single ops, as lesson 03 describes. Then two groups are merged
# only if a tensor passes from one to the other. No tensor passes from `add` to `neg`: they only share the input x.
#
# The next cell asks about the two ops, and then compares the decision logs without the hint and with it:

# %%
print(plan.why("T2", "T4"), end="\n\n")
ignored = fl.segment(fd, options=SegmenterOptions(segment_set="ignore"))
print(f"without: {ignored.decisions}\n\nwith:    {plan.decisions}")

# %% [markdown]
# ## Top-down
#
# The method of lesson 03 is called **bottom-up**, because it starts with single ops. NVIDIA/Fuser issue #2224 proposes another method
# for fusions with hints, which starts with large pieces: **top-down**. nvFuser has not implemented this proposal, but fuser_lab
# has it as a strategy. It has four steps:
#
# 1. **Contract.** Remove the edges that leave a hint. The ops that are still connected form a *piece*. Ops that read the same input
#    count as connected.
# 2. **Check.** If pieces depend on each other in a cycle, merge them into one piece.
# 3. **Attempt.** Ask the schedulers about each piece. A piece that is accepted becomes a segment. A piece that is refused is
#    **shattered** into single ops.
# 4. **Continue** bottom-up with the single ops. They can be merged with each other and with accepted pieces, but two accepted
#    pieces are never merged.
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
# The next fusion divides each row of x by its sum. A hint follows. Then the fusion divides each column of the result by its sum,
# and adds w.
#
# The next cell computes the pieces of step 1. At the start, every op has its own label. Two ops get the same label if a tensor passes
# between them, unless this tensor is the result of a `segment_set`, and also if both read the same input. The cell prints the ops,
# and then the two pieces.

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
# **Predict:** how many of the two pieces do the schedulers accept, and how many segments does the plan have at the end?

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
# How many rows can x have before the second piece is refused? Move the slider, and watch the segments after the hint. The code
# assigns a new plan to `explorer.plan` for each number of rows, and the explorer shows it.

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
# In the next fusion, two paths lead from the first op to the last op, and a hint lies on only one of them. The ops before and after the
# hint are connected by the other path. So step 1 finds a single piece, with the hint inside. No scheduler accepts a hint inside a
# kernel, so the piece is shattered, and the segmenter continues bottom-up, as nvFuser does:

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
# fuser_lab has two other meanings of a hint, which nvFuser does not have: the options `pieces_by_depth=True` and
# `segment_set="cut"`. Both use the **depth** of an op, which is the largest number of hints on a path to the op. Connected ops of the same
# depth form a piece. The depth never decreases along a path, so pieces cannot depend on each other in a cycle.
#
# **Predict:** in which piece is `sin`? Is this piece before or after the hint?

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
# `SegmenterOptions` sets the meaning of a hint, and `strategy` the method. The next cell prints the number of segments of four fusions,
# a row for each, under five combinations:

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
# In the last column, hints are ignored. Where this column has the fewest segments, the hint only costs time. So why would you write a
# hint? [Lesson 21](21_cuts_without_hints.ipynb) shows a hint that saves time.

# %%
score(outcome_1, outcome_2, outcome_3)

# %% [markdown]
# ## Where to go next
#
# - `plan.annotate("T2")` inserts a `segment_set` after T2 and segments the fusion again; `plan.without_annotation("T2")` removes it.
#   `plan.to_python("nvfuser_direct")` is the script for nvFuser.
# - `plan.cut("T2")` is different: it cuts the plan there without asking the segmenter. `plan.to_annotations()` searches for hints that
#   give the same plan.
# - In the explorer, a click on an edge cuts there or inserts a hint; the switch *A click on an edge* selects which.
# - A hint that helps, and cuts without hints: [21_cuts_without_hints](21_cuts_without_hints.ipynb).
# - How far are these plans from the best plan? [05_greedy_and_optimal](05_greedy_and_optimal.ipynb).
#
# **Words:** [Bottom-up](../docs/glossary.md#bottom-up "nvFuser's way to segment: it starts from single ops and merges neighbours, step by step.") · [Decision log](../docs/glossary.md#decision-log "The record of each attempt of the segmenter: the ops, the scheduler's answer and its reason.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.") · [segment_set](../docs/glossary.md#segment_set "An op that computes nothing and tells the segmenter to end a segment there.") · [Strategy](../docs/glossary.md#strategy "The method that cuts a fusion, such as bottom-up, top-down or optimal.") · [Top-down](../docs/glossary.md#top-down "A strategy that cuts the fusion at its hints first, and asks the schedulers about each whole piece.")

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
# # One hint too many
#
# After this lesson, you can predict what a `segment_set` does to a plan, and decide whether it helps.
#
# A column x is added to a matrix, and the same column is negated. All of this fits in one kernel. Then somebody adds one line,
# `segment_set`, because the negated column should be finished separately. One would expect two kernels; the picture shows what
# nvFuser makes of it (NVIDIA/Fuser issue #3096). Where does the third kernel come from?

# %%
from ipywidgets import interact

import fuser_lab as fl
from fuser_lab import FusionDefinition, SegmenterOptions
from fuser_lab.teaching import predict, score


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

# %%
plan.why("T2", "T4")

# %% [markdown]
# Compare the records with that line and without it:

# %%
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
outcomes = [
    question.reveal(
        len(top_down.segments), hints={1: "The hint still holds: a segment ends there.", 3: "That is bottom-up, where readers of one input are never merged."},
        because="add and neg read the same input, so they are one piece. The copy after the hint is the other.",
    ),
]
outcomes[0]

# %%
fl.diff(plan, top_down)

# %% [markdown]
# ## The four steps, on a fusion that needs them all
#
# The rows of x are divided by their sums; after a hint, the columns of the result are divided by their sums, and w is added.


# %%
def row_and_column_norm(ops, x, w):
    rows = ops.truediv(x, ops.sum(x, dims=[1], keepdim=True))
    cut = ops.segment_set(rows)
    columns = ops.truediv(cut, ops.sum(cut, dims=[0], keepdim=True))
    return (ops.add(columns, w),)


square = fl.spec((4096, 4096))
norms = defined(row_and_column_norm, square, square)
for expr in norms.fusion.exprs:
    print(f"{expr.name} = {expr.op.name}({', '.join(tv.name for tv in expr.tensor_inputs)})")

# %% [markdown]
# Step 1 takes a few lines. Every op starts with its own label. Two ops get the same label if a tensor passes between them,
# unless a `segment_set` produced that tensor, and also if both read the same input.

# %%


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
    print("accepted" if attempt.accepted else "shattered", "+".join(sum(attempt.subjects, ())), "\n   ", attempt.text, "\n")
outcomes.append(
    question.reveal(
        {"accepted": sum(attempt.accepted for attempt in attempts), "segments": len(cut.segments)},
        because="Columns of 4096 numbers are too long to stay on chip, so the second piece ends up as two kernels.",
    )
)
outcomes[1]

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
# Here is the same without the slider:

# %%
for rows in (512, 1024, 2048, 4096, 8192):
    print(f"{rows:5} rows:", *(f"{s.scheduler.value} {'+'.join(e.name for e in s.exprs)}" for s in of_rows(rows).segments), sep="  ")

# %% [markdown]
# ## When a hint does not cut
#
# Step 2 exists for fusions like this one. A hint lies on one of two paths from the first op to the last. Contract everything that the
# hint does not separate, and the other path connects both sides again:

# %%


def way_around(ops, x, y):
    a = ops.mul(x, y)
    through = ops.exp(ops.segment_set(a))
    return (ops.add(through, ops.sin(a)),)


around = defined(way_around, square, square)
print(*pieces(around.fusion), sep="\n")

# %% [markdown]
# The result is a single piece, although there is a hint inside it. The proposal accepts this: hints that do not form a cut-set leave
# the complete fusion as one piece, which the hint then causes to be shattered, and the rest proceeds as in nvFuser today.

# %%
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
outcomes.append(question.reveal(side, because="No hint lies on the way to sin, so its depth is 0. Its reader has depth 1."))
print(split)
outcomes[2]

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
# Read the last column first. Where ignoring the hints gives the fewest segments, the hint is pure cost. So why write one?
#
# ## Your turn: a hint that helps
#
# This fusion is like the one in lesson 03: nvFuser cuts it into more segments than necessary. Put **one** hint after one of the
# named tensors, so that nvFuser, bottom-up, finds a plan with one segment fewer.

# %%


def two_norms(ops, x, y, *, behind=None):
    def named(name, tensor):
        return ops.segment_set(tensor) if name == behind else tensor

    a = named("a", ops.exp(x))
    b = ops.mul(a, ops.broadcast(ops.sum(a, dims=[1]), is_broadcast_dim=[False, True]))
    total = named("total", ops.sum(b, dims=[0]))
    b = named("b", b)
    columns = named("columns", ops.broadcast(total, is_broadcast_dim=[True, False]))
    product = named("product", ops.mul(b, columns))
    return ops.add(product, y), ops.sum(ops.mul(y, columns), dims=[1])


NAMES = ("a", "b", "total", "columns", "product")
question = predict("After which tensor?", None, choices=NAMES)
question

# %%


def segments(behind, **options):
    fd = defined(lambda ops, x, y: two_norms(ops, x, y, behind=behind), square, square)
    return len(fl.segment(fd, **options).segments)


print("hint after    bottom-up  top-down")
for name in (None, *NAMES):
    print(f"{name or '(none)':12}  {segments(name):9}  {segments(name, strategy='top_down'):8}")

(best,) = (name for name in NAMES if segments(name) < segments(None))
outcomes.append(
    question.reveal(best, because="The broadcast of the sums then starts the last kernel, and all readers of the broadcast join it."),
)
outcomes[3]

# %% [markdown]
# ## Cuts without hints
#
# The proposal has a second kind of cut: at edges into reshapes, and into slices and pads, without a hint from the author. Is that
# ever better? The issue has left this open since 2024. Here is a fusion in which a reshape decides the outcome: e = exp(x) is added
# to y, passes through another exp, and, after a reshape, is divided by its row sums.

# %%
decided, specs = fl.example("reshape_decides", "full")
usual = fl.segment(decided, specs)
usual

# %% [markdown]
# **Predict:** how many segments does the plan have with cuts at the inputs of reshapes, and what fraction of the bytes does it move?

# %%
question = predict("Top-down, cut before the reshape", {"segments": None, "part of the bytes": None})
question

# %%
forced = usual.resegmented("top_down", cut_reshape_inputs=True)
part = sum(s.bytes for s in forced.segments) / sum(s.bytes for s in usual.segments)
outcomes.append(
    question.reveal(
        {"segments": len(forced.segments), "part of the bytes": part}, within=0.05,
        because="The three readers of exp(x) share a kernel, which writes it once, reshaped; the rest is a separate normalization.",
    ),
)
outcomes[4]

# %%
print(forced)
print(forced.certificate().status)

# %% [markdown]
# A single `segment_set` gives the same plan if it is read as a cut. nvFuser today goes bottom-up and reads it as a hint;
# the second answer says why no hint leads to this plan:

# %%
optimum = fl.segment(decided, specs, strategy="optimal")
print(optimum.to_annotations())
print(optimum.to_annotations(strategy="bottom_up", segment_set="hint"))

# %% [markdown]
# So should nvFuser always cut there? A study compares top-down with such cuts to bottom-up. It covers the gallery of lesson 11 and
# 2,000 random fusions (pointwise ops, row sums, reshapes, slices and pads), wherever there is something to cut. *fewer* and *more*
# count fusions by the bytes that they move; *best* and *worst* are fractions of bottom-up's bytes.
# `python -m tests.presegmentation_study` prints this table:
#
# ```
# gallery
# top-down with            fusions  fewer  equal   more    best   worst
# reshape cuts                   8      0      3      5    1.00    2.00
# resize cuts                    4      1      2      1    0.94    1.06
# reshape and resize cuts        4      0      0      4    1.22    1.72
#
# random fusions
# top-down with            fusions  fewer  equal   more    best   worst
# reshape cuts                1689    273    996    420    0.58    3.00
# resize cuts                  997     72    365    560    0.73    3.00
# reshape and resize cuts      839     51    206    582    0.78    3.50
# ```
#
# No: a forced cut that is not needed puts one more tensor in memory. Cuts at reshapes help in one fusion out of six, and cost in one
# out of four. They pay where some readers want a tensor as it is and others want it reshaped, and bottom-up has spent its merges on
# the wrong readers. So they are worth a try, which costs one more segmentation; `fuser_lab.presegmentation` does that:

# %%
from fuser_lab.presegmentation import alternatives

for one in alternatives(usual):
    print(one)

# %%
score(*outcomes)

# %% [markdown]
# ## Where to go next
#
# - `plan.annotate("T2")` puts a `segment_set` into the definition and segments it again, with any strategy and any
#   meaning of `segment_set`; `plan.without_annotation("T2")` removes it, and `plan.to_python("nvfuser_direct")` is the
#   script for nvFuser.
# - `plan.cut("T2")` is different: it overrides the segmenter. `plan.to_annotations()` finds the hints that give the same plan.
# - In the explorer, a click on an edge does either; the switch below the graph selects which.
# - How far from the best plan is all this? [05_greedy_and_optimal](05_greedy_and_optimal.ipynb).

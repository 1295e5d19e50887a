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
# # Cuts without hints: reshapes, and one hint that helps
#
# After this lesson, you can find a hint that makes a plan better, and say when a cut without a hint pays. The lesson takes about 15 minutes.
#
# Lesson 04 shows hints that cost a segment. The fusion below is like the one in lesson 03: nvFuser cuts it into the three segments of
# the picture, and two are possible. Which single `segment_set` leads nvFuser to the better plan?

# %%
import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/21_cuts_without_hints.toml").predict


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


def hinted(behind):
    """Return the definition with a hint after the tensor of this name, or without a hint."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[4096, 4096], contiguity=True, dtype=DataType.Float) for _ in range(2))
        for output in two_norms(fd.ops, x, y, behind=behind):
            fd.add_output(output)
    return fd


fl.segment(hinted(None))

# %% [markdown]
# ## A hint that helps
#
# `two_norms` names five tensors: *a*, *b*, *total*, *columns* and *product*.
#
# **Predict:** if you put a **single** hint after one of these tensors, nvFuser (bottom-up) finds a plan with one segment fewer.
# Which tensor is this?

# %%
NAMES = ("a", "b", "total", "columns", "product")
question = predict("After which tensor?", None, choices=NAMES)
question

# %% jupyter={"source_hidden": true}
# Counts the segments with a hint after each tensor, bottom-up and top-down.
def segments(behind, **options):
    return len(fl.segment(hinted(behind), **options).segments)


question.show("hint after    bottom-up  top-down")
for name in (None, *NAMES):
    question.show(f"{name or '(none)':12}  {segments(name):9}  {segments(name, strategy='top_down'):8}")

(best,) = (name for name in NAMES if segments(name) < segments(None))
outcome_1 = question.reveal(best)
outcome_1

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
question.show(f"{forced}\n{forced.certificate().status}")
outcome_2 = question.reveal({"segments": len(forced.segments), "part of the bytes": part}, within=0.05)
outcome_2

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
# No: a forced cut that is not needed puts one more tensor in memory. Cuts at reshapes help in one fusion out of six, and cost in
# one out of four. Such cuts save time if some ops read a tensor as it is and other ops read it reshaped, and if bottom-up has
# merged it with the wrong readers. So they are worth a try, which costs one more segmentation; `fuser_lab.search.presegmentation`
# does that:

# %%
from fuser_lab.search.presegmentation import alternatives

for one in alternatives(usual):
    print(one)

# %%
score(outcome_1, outcome_2)

# %% [markdown]
# ## Where to go next
#
# - `plan.to_annotations()` finds the hints that lead to a plan; [docs/optimal.md](../docs/optimal.md) says how a plan is proved.
# - How much does nvFuser lose in general? [05_greedy_and_optimal](05_greedy_and_optimal.ipynb).
# - Rules and passes of your own: [12_write_your_own_scheduler_rule](12_write_your_own_scheduler_rule.ipynb).
#
# **Words:** [Bottom-up](../docs/glossary.md#bottom-up "nvFuser's way to segment: it starts from single ops and merges neighbours, step by step.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Pointwise](../docs/glossary.md#pointwise "Computed element by element, without a reduction.") · [Presegmentation](../docs/glossary.md#presegmentation "Rewriting or cutting a fusion before the segmenter merges ops: passes, and top-down cuts.") · [Rule](../docs/glossary.md#rule "A condition of a scheduler; a candidate that breaks it is refused.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.") · [segment_set](../docs/glossary.md#segment_set "An op that computes nothing and tells the segmenter to end a segment there.") · [Top-down](../docs/glossary.md#top-down "A strategy that cuts the fusion at its hints first, and asks the schedulers about each whole piece.")

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
# # Twenty-seven fusions that somebody had trouble with
#
# Each was rebuilt from a public issue or a real model: Llama, Phi-3, Mistral, nanoGPT, diffusion transformers, batch norm,
# cross entropy. For nearly all of them somebody wrote down how many segments nvFuser made. Below is one; the issue says at
# least **six** kernels, three for the queries and three for the keys of Llama-2. How many are these?

# %%
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition, SegmenterOptions
from fuser_lab.teaching import predict, score

CASES = {case["id"]: case for case in json.loads(Path("../tests/data/gallery.json").read_text(encoding="utf-8"))}


def defined(case, code="python"):
    """Return a case's definition."""
    with FusionDefinition() as fd:
        exec(case[code], {"fd": fd, "DataType": DataType})  # noqa: S102 - the text is our own
    return fd


def switches(case):
    """Return the switches of nvFuser that the issue names; what stands in brackets is said about them."""
    named = {key: [n.partition(" (")[0] for n in v] for key, v in case["options"].items() if isinstance(v, list)}
    return SegmenterOptions.from_nvfuser(**named)


def sizes(case):
    """Return abstract inputs of the real sizes."""
    return [fl.spec(x["shape"], x["dtype"], x.get("strides")) for x in case["inputs"]]


def plan_of(name, *, code="python", **options):
    """Return the plan of a case, as nvFuser makes it unless something else is said."""
    case = CASES[name]
    return fl.segment(defined(case, code), sizes(case), options=options.pop("options", switches(case)), name=name, **options)


def moved(plan):
    return sum(segment.bytes for segment in plan.segments)


plan_of("rope_llama2_fwd")

# %% [markdown]
# Fewer than six. nvFuser has got a scheduler for slices and concatenations since. **A count without a date and a version is a
# rumour**, so each case says how its number is known:
#
# - *asserted*: a test of nvFuser checks it;
# - *stated*: somebody wrote it in the issue;
# - *derived*: it follows from what is said there.
#
# And it says whether the number is for exactly this definition, or for a graph that was only partly shown.
#
# ## 1. All of them
#
# **Predict:** for nearly all of them a number is known. In how many of these does this tool's plan have as many segments?

# %%
known = sum(case.get("segments") is not None for case in CASES.values())
question = predict(f"Of {known} known counts, how many agree?", None)
question

# %%
PLANS = {name: plan_of(name) for name in CASES}
rows = []
for name, case in CASES.items():
    plan, said = PLANS[name], case.get("segments")
    count = len(plan.segments)
    agrees = said is not None and {"==": count == said, ">=": count >= said, "<=": count <= said}[case["relation"]]
    exact = case["count_is_for"] == "this definition"
    binding = bool(case.get("holds_at_head")) and exact and said is not None
    rows.append(
        {
            "case": name,
            "issue": case["source"],
            "said": "none" if said is None else f"{case['relation'].replace('==', '')}{said}",
            "here": count,
            "kernels here": sum(s.scheduler.value not in {"expr_eval", "no_op"} for s in plan.segments),
            "agrees": agrees,
            "how known": case["segments_status"],
            "this definition": exact,
            "today": {True: "yes", False: "no"}.get(case.get("holds_at_head"), "unknown"),
            "must agree": binding,
            "schedulers": ", ".join(sorted({s.scheduler.value for s in plan.segments})),
        },
    )
table = pd.DataFrame(rows).set_index("case")
outcomes = [question.reveal(int(table["agrees"].sum()), within=0.15, hints={known: "Some were counted years ago, and nvFuser has learned since."}, because="Most others are counts of an older nvFuser, or of a larger graph.")]
outcomes[0]

# %%
table

# %% [markdown]
# Where a number is known for exactly this definition and said to hold today, it has to agree:

# %%
must = table[table["must agree"]]
assert must["agrees"].all(), must[~must["agrees"]]
print(f"{len(must)} counts must agree, and do")

# %% [markdown]
# And the rest? Read the last columns before you call a row wrong. Some people count kernels, some segments; a segment that
# only makes a view launches none.

# %%
rest = table[~table["agrees"] & (table["said"] != "none")]
rest[["issue", "said", "here", "kernels here", "how known", "this definition", "today"]]

# %% [markdown]
# ## 2. What they teach
#
# One sentence each.

# %%
lessons = pd.DataFrame([(case["title"], case["lesson"]) for case in CASES.values()], columns=["case", "lesson"])
lessons.style.set_properties(**{"text-align": "left"}).hide()

# %% [markdown]
# Five of them closer.
#
# ### Siblings (#3829)
#
# `sin` and `cos` of one vector, and a copy with a hint. **Predict:** how many segments bottom-up, top-down, and if the hint is
# ignored?

# %%
question = predict("Segments", {"bottom-up": None, "top-down": None, "hint ignored": None})
question

# %%
ignoring = SegmenterOptions(segment_set="ignore")
outcomes.append(
    question.reveal(
        {
            "bottom-up": len(plan_of("siblings_not_merged").segments),
            "top-down": len(plan_of("siblings_not_merged", strategy="top_down").segments),
            "hint ignored": len(plan_of("siblings_not_merged", options=ignoring).segments),
        },
        hints={"bottom-up": {2: "sin and cos share an input, but no tensor passes between them."}},
        because="No arrow leads from sin to cos, and bottom-up merges along arrows. One hint forbids the try with everything.",
    ),
)
outcomes[1]

# %% [markdown]
# ### A matrix or a vector (#250)
#
# Cross entropy: a softmax, an entry of each row by its label, the mean. **Predict:** what crosses, if nvFuser's option
# `memory_promotion` is off, and if it is on: a matrix of 128 x 371, or vectors of 128?

# %%
question = predict("What crosses?", {"off": None, "on": None})  # "matrix" or "vector"
question

# %%
found = {}
for word, options in (("off", SegmenterOptions()), ("on", SegmenterOptions(memory_promotion=True))):
    plan = plan_of("cross_entropy_softmax", options=options)
    largest = max(plan.segmented.crossing, key=lambda t: t.nbytes)
    print(f"{word}: {len(plan.segments)} segments; the largest that crosses is {largest.name}, {largest.nbytes:,} bytes")
    found[word] = "matrix" if largest.numel > 371 else "vector"
outcomes.append(question.reveal(found, because=CASES["cross_entropy_softmax"]["lesson"]))
outcomes[2]

# %% [markdown]
# ### The hint that costs a segment (#3096)
#
# Somebody added a `segment_set` before an output that is written in place, expecting one cut. There are two. Ask why:

# %%
extra = plan_of("segment_set_extra")
print(extra.why(1, 2).text, end="\n\n")
print(extra.why(0, 1).text)
extra

# %% [markdown]
# ### A layout decides (#2168)
#
# A bias and a relu of an image stored channels-last. **Predict:** which scheduler takes it, if the result is laid out like the
# image, as nvFuser does since that change, and if it is row-major?

# %%
question = predict("Scheduler", {"like the input": None, "row-major": None})
question

# %%
image = plan_of("layout_order")
fusion = image.definition
rank = len(fusion.outputs[0].domain.axes)
row_major = fl.segment(fusion.set_output_stride_order(fusion.outputs[0], list(reversed(range(rank)))), list(image.inputs))
outcomes.append(
    question.reveal(
        {"like the input": image.segments[0].scheduler.value, "row-major": row_major.segments[0].scheduler.value},
        because="The same ops: reading along one axis and writing along another is a transpose.",
    ),
)
outcomes[3]

# %% [markdown]
# ### Fewer bytes, not fewer kernels (#2473)
#
# The backward pass of a diffusion transformer's LayerNorm. Two plans; what differs most is not the number of kernels.

# %%
busy = plan_of("dit_layernorm_bwd_io")
best = plan_of("dit_layernorm_bwd_io", strategy="optimal", options=SegmenterOptions(search_states=5_000))
fl.diff(busy, best.renamed("optimal"))

# %% [markdown]
# ## 3. Where is something to be gained?
#
# For cases of up to 45 ops, and the one above: the bytes of nvFuser's plan beside the best that a short search finds.
#
# **Predict:** in which case is the *share* of bytes that can be saved largest? (A name from the table above.)

# %%
question = predict("Most to gain", None)
question

# %%
optima = {"dit_layernorm_bwd_io": best}
for name, plan in PLANS.items():
    if len(plan.segments) > 1 and len(plan.fusion.tensor_exprs) <= 45:
        optima[name] = plan_of(name, strategy="optimal", options=replace(plan.options, search_states=2_000))
gains = {
    name: (len(PLANS[name].segments), len(found.segments), moved(PLANS[name]) / 1e6, moved(found) / 1e6)
    for name, found in optima.items()
}
columns = ["segments", "optimal", "MB", "MB, optimal"]
gained = pd.DataFrame.from_dict(gains, orient="index", columns=columns)
gained["saved"] = 1 - gained["MB, optimal"] / gained["MB"]
outcomes.append(question.reveal(gained["saved"].idxmax(), because=f"{gained['saved'].max():.0%} of its bytes."))
outcomes[4]

# %%
gained.sort_values("saved", ascending=False).head(8).style.format({"saved": "{:.0%}", "MB": "{:.2f}", "MB, optimal": "{:.2f}"})

# %% [markdown]
# ## One segment for both, or a table made twice
#
# The backward of Llama-3's rotary embedding turns two gradients with the same two tables. nvFuser's dump of it (PR #4269)
# has a Resize segment for each gradient, which makes the zeros, and broadcasts and expands both tables, for itself. By
# today's rules of forwarding, unary ops and `full`, both gradients are one segment here. With `forward_broadcasts`
# broadcasts and expands of inputs are made anew by each reader as well, and the plan is the dump's. Which moves less?

# %%
rope, specs = fl.example("llama3_rope_backward", "full")
one = fl.segment(rope, specs, name="one segment")
dump = fl.segment(rope, specs, options=fl.SegmenterOptions(forward_broadcasts=True), name="as in the dump")
fl.diff(one, dump)

# %% [markdown]
# The tables are small beside the gradients, so that reading them twice costs little; and each kernel keeps half as many
# values.
#
# The zeros are in no table above: each segment that adds them makes its own. Suppose that they were also a result of the
# fusion. Today they are then stored once, and the last segment reads them; the alternative that was discussed is
# `forward_factory_outputs`: nobody reads what everybody can make, and a segment of its own writes the result.

# %%
zeros = replace(rope.fusion, outputs=(*rope.fusion.outputs, rope.fusion.tensors["T10"]))
once = fl.segment(zeros, specs, name="stored once")
anew = fl.segment(zeros, specs, options=fl.SegmenterOptions(forward_factory_outputs=True), name="made anew")
fl.diff(once, anew)

# %% [markdown]
# One launch more, and fewer bytes by the one read that is left out.
#
# ## Your turn
#
# Pick a case, look at it, and try to do better than nvFuser by `cut`, `glue` and `move`, or with the mouse.

# %%
mine = "relu_bookend_permute"
print(CASES[mine]["description"], "\n\nWhat was argued to be better:", CASES[mine]["better"])
fl.explore(PLANS[mine])

# %% [markdown]
# **Predict:** in that case a view-only segment was turned into a kernel, since the relu in front of it was computed again there.
# How many *kernels* does today's plan launch? (`expr_eval` of a view launches none.)

# %%
question = predict("Kernels", None)
question

# %%
launched = [s.scheduler.value for s in PLANS["relu_bookend_permute"].segments if s.scheduler.value not in {"expr_eval", "no_op"}]
outcomes.append(
    question.reveal(
        len(launched), hints={2: "Two segments. But does each of them compute something?"},
        because=f"Kernels: {', '.join(launched)}. A view is an address and strides, and nothing is launched for it.",
    ),
)
outcomes[5]

# %%
score(*outcomes)

# %% [markdown]
# ## Where to go on
#
# - [docs/known_answers.md](../docs/known_answers.md) has these and the fusions of nvFuser's own tests.
# - A case of your own? [09_replay_an_issue](09_replay_an_issue.ipynb) reads it from the text of an issue.
# - A rule that would have helped? [12_write_your_own_scheduler_rule](12_write_your_own_scheduler_rule.ipynb).

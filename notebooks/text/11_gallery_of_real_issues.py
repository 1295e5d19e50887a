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
# After this lesson, you can compare a published segment count with a plan, and judge when such a count still holds.
#
# Each fusion was rebuilt from a public issue or a real model: Llama, Phi-3, Mistral, nanoGPT, diffusion transformers, batch norm, cross
# entropy. For nearly all of them, somebody published how many segments nvFuser made. The picture shows one of them; the issue says at
# least **six** kernels, three for the queries and three for the keys of Llama-2. How many are there here?

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
    """Return the definition of a case."""
    with FusionDefinition() as fd:
        exec(case[code], {"fd": fd, "DataType": DataType})  # noqa: S102 - a file of this repository
    return fd


def switches(case):
    """Return the nvFuser switches that the issue names, without the remarks in brackets."""
    named = {key: [n.partition(" (")[0] for n in v] for key, v in case["options"].items() if isinstance(v, list)}
    return SegmenterOptions.from_nvfuser(**named)


def sizes(case):
    """Return abstract inputs with the real sizes."""
    return [fl.spec(x["shape"], x["dtype"], x.get("strides")) for x in case["inputs"]]


def plan_of(name, *, code="python", **options):
    """Return the plan of a case, as nvFuser makes it unless options say otherwise."""
    case = CASES[name]
    return fl.segment(defined(case, code), sizes(case), options=options.pop("options", switches(case)), name=name, **options)


def moved(plan):
    return sum(segment.bytes for segment in plan.segments)


plan_of("rope_llama2_fwd")

# %% [markdown]
# There are fewer than six, because nvFuser has since gained a scheduler for slices and concatenations. **A count without a date and a
# version is a rumour**, so each case says how its number is known:
#
# - *asserted*: a test of nvFuser checks it;
# - *stated*: somebody wrote it in the issue;
# - *derived*: it follows from what the issue says.
#
# Each case also says whether the number is for exactly this definition, or for a graph that was shown only in part.
#
# ## 1. All of them
#
# **Predict:** a number is known for nearly all of them. For how many of these does this tool's plan have as many segments?

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
outcomes = [question.reveal(int(table["agrees"].sum()), within=0.15, hints={known: "Some were counted years ago, and nvFuser has improved since."}, because="Most of the others are counts for an older nvFuser, or for a larger graph.")]
outcomes[0]

# %%
table

# %% [markdown]
# Where a number is known for exactly this definition and is said to hold today, it has to agree:

# %%
must = table[table["must agree"]]
assert must["agrees"].all(), must[~must["agrees"]]
print(f"{len(must)} counts must agree, and do")

# %% [markdown]
# What about the rest? Read the last columns before you call a row wrong. Some people count kernels, others segments, and a segment that
# only makes a view launches no kernel.

# %%
rest = table[~table["agrees"] & (table["said"] != "none")]
rest[["issue", "said", "here", "kernels here", "how known", "this definition", "today"]]

# %% [markdown]
# ## 2. What they teach
#
# Each case teaches one lesson, given here in one sentence.

# %%
lessons = pd.DataFrame([(case["title"], case["lesson"]) for case in CASES.values()], columns=["case", "lesson"])
lessons.style.set_properties(**{"text-align": "left"}).hide()

# %% [markdown]
# The next sections look more closely at five of them.
#
# ### Siblings (#3829)
#
# This fusion has `sin` and `cos` of one vector, and a copy with a hint. **Predict:** how many segments does it have bottom-up, top-down,
# and if the hint is ignored?

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
        because="No arrow leads from sin to cos, and bottom-up merges along arrows. A hint rules out the attempt on the whole fusion.",
    ),
)
outcomes[1]

# %% [markdown]
# ### A matrix or a vector (#250)
#
# Cross entropy takes a softmax, looks up one entry of each row by its label, and computes the mean. **Predict:** what crosses between
# segments if nvFuser's option `memory_promotion` is off, and if it is on: a matrix of 128 x 371, or vectors of 128?

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
# A bias and a relu are applied to an image that is stored channels-last. **Predict:** which scheduler accepts the fusion if the result has
# the layout of the image, as in nvFuser since that change, and which one if the result is row-major?

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
        because="The ops are the same, but reading along one axis and writing along another is a transpose.",
    ),
)
outcomes[3]

# %% [markdown]
# ### Fewer bytes, not fewer kernels (#2473)
#
# This is the backward pass of a diffusion transformer's LayerNorm. The largest difference between the two plans is not the number of
# kernels.

# %%
busy = plan_of("dit_layernorm_bwd_io")
best = plan_of("dit_layernorm_bwd_io", strategy="optimal", options=SegmenterOptions(search_states=5_000))
fl.diff(busy, best.renamed("optimal"))

# %% [markdown]
# ## 3. Where is there something to gain?
#
# For cases of up to 45 ops, and the previous one, the next cell compares the bytes of nvFuser's plan with the best plan that a short
# search finds.
#
# **Predict:** in which case can the largest *share* of the bytes be saved? (A name from the table above.)

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
# The backward pass of Llama-3's rotary embedding rotates two gradients with the same two tables. nvFuser's dump of it (PR #4269) has a
# Resize segment for each gradient, and each segment makes its own zeros and broadcasts and expands both tables. Under today's rules of
# forwarding, which cover unary ops and `full`, both gradients are one segment here. With `forward_broadcasts`, each reader also makes its
# own broadcasts and expands of inputs, and the plan is that of the dump. Which plan moves less?

# %%
rope, specs = fl.example("llama3_rope_backward", "full")
one = fl.segment(rope, specs, name="one segment")
dump = fl.segment(rope, specs, options=fl.SegmenterOptions(forward_broadcasts=True), name="as in the dump")
fl.diff(one, dump)

# %% [markdown]
# The tables are small relative to the gradients, so reading them twice costs little; and each kernel keeps half as many values.
#
# The zeros are in none of the tables above, because each segment that adds them makes its own. Suppose that they are also a result of
# the fusion. Today they are then stored once, and the last segment reads them. An alternative that was discussed is
# `forward_factory_outputs`: no segment reads what it can make itself, and a separate segment writes the result.

# %%
zeros = replace(rope.fusion, outputs=(*rope.fusion.outputs, rope.fusion.tensors["T10"]))
once = fl.segment(zeros, specs, name="stored once")
recomputed = fl.segment(zeros, specs, options=fl.SegmenterOptions(forward_factory_outputs=True), name="recomputed")
fl.diff(once, recomputed)

# %% [markdown]
# The alternative has one more launch, and saves the bytes of one read.
#
# ## Your turn
#
# Pick a case, look at it, and try to improve on nvFuser's plan with `cut`, `glue` and `move`, or with the mouse.

# %%
mine = "relu_bookend_permute"
print(CASES[mine]["description"], "\n\nWhat the issue argues to be better:", CASES[mine]["better"])
fl.explore(PLANS[mine])

# %% [markdown]
# **Predict:** in that case, a view-only segment turned into a kernel, since the relu before it was computed again there. How many
# *kernels* does today's plan launch? (`expr_eval` of a view launches none.)

# %%
question = predict("Kernels", None)
question

# %%
launched = [s.scheduler.value for s in PLANS["relu_bookend_permute"].segments if s.scheduler.value not in {"expr_eval", "no_op"}]
outcomes.append(
    question.reveal(
        len(launched), hints={2: "There are two segments. But does each of them compute something?"},
        because=f"Kernels: {', '.join(launched)}. A view is an address and strides, and launches nothing.",
    ),
)
outcomes[5]

# %%
score(*outcomes)

# %% [markdown]
# ## Where to go next
#
# - [docs/known_answers.md](../docs/known_answers.md) lists these fusions and those of nvFuser's own tests.
# - Do you have a case of your own? [09_replay_an_issue](09_replay_an_issue.ipynb) reads it from the text of an issue.
# - Which rule would have helped? [12_write_your_own_scheduler_rule](12_write_your_own_scheduler_rule.ipynb).

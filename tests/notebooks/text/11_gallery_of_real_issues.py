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
# # Published segment counts: a gallery of real issues
#
# After this lesson, you can compare a published segment count with a plan, and judge when such a count still holds. The lesson takes about 20 minutes.
#
# Each of the twenty-seven fusions was rebuilt from a public issue or a real model: Llama, Phi-3, Mistral, nanoGPT, diffusion transformers, batch norm, cross
# entropy. For nearly all of them, somebody published how many segments nvFuser made. The picture shows one of them; the issue says at
# least **six** kernels, three for the queries and three for the keys of Llama-2. How many are there here?

# %%
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition, SegmenterOptions
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/11_gallery_of_real_issues.toml").predict

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
question = predict("How many of the known counts agree?", None)
print(known, "counts are known.")
question

# %% jupyter={"source_hidden": true}
# Makes the plan of each case, and a table of published and computed counts.
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
question.show(table)
outcome_1 = question.reveal(int(table["agrees"].sum()), within=0.15)
outcome_1

# %% [markdown]
# Where a number is known for exactly this definition and is said to hold today, it has to agree:
#
# What about the rest? Read the last columns before you call a row wrong. Some people count kernels, others segments, and a segment that
# only makes a view launches no kernel.

# %%
must = table[table["must agree"]]
assert must["agrees"].all(), must[~must["agrees"]]
print(f"{len(must)} counts must agree, and do")
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
# The next sections look more closely at two of them.
#
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
    question.show(f"{word}: {len(plan.segments)} segments; the largest that crosses is {largest.name}, {largest.nbytes:,} bytes")
    found[word] = "matrix" if largest.numel > 371 else "vector"
outcome_2 = question.reveal(found, facts={"reason": CASES["cross_entropy_softmax"]["lesson"]})
outcome_2

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
# ## 3. Where is there something to gain?
#
# For cases of up to 45 ops, and a larger one (#2473), the next cell compares the bytes of nvFuser's plan with the best plan that a short
# search finds.
#
# **Predict:** in which case can the largest *share* of the bytes be saved? (A name from the table above.)

# %%
question = predict("Most to gain", None)
question

# %% jupyter={"source_hidden": true}
# Searches a better plan for each case of up to 45 ops, and compares the bytes.
best = plan_of("dit_layernorm_bwd_io", strategy="optimal", options=SegmenterOptions(search_states=5_000))
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
question.show(gained.sort_values("saved", ascending=False).head(8).style.format({"saved": "{:.0%}", "MB": "{:.2f}", "MB, optimal": "{:.2f}"}))
outcome_3 = question.reveal(gained["saved"].idxmax(), facts={"saved": gained["saved"].max()})
outcome_3

# %% [markdown]
# ### Fewer bytes, not fewer kernels (#2473)
#
# This is the backward pass of a diffusion transformer's LayerNorm. The largest difference between nvFuser's plan and the best one that was found is not the number of
# kernels.

# %%
fl.diff(PLANS["dit_layernorm_bwd_io"], best.renamed("optimal"))

# %% [markdown]
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
outcome_4 = question.reveal(len(launched), facts={"kernels": ", ".join(launched)})
outcome_4

# %%
score(outcome_1, outcome_2, outcome_3, outcome_4)

# %% [markdown]
# ## Where to go next
#
# - [docs/known_answers.md](../docs/known_answers.md) lists these fusions and those of nvFuser's own tests.
# - Do you have a case of your own? [09_replay_an_issue](09_replay_an_issue.ipynb) reads it from the text of an issue.
# - Which rule would have helped? [12_write_your_own_scheduler_rule](12_write_your_own_scheduler_rule.ipynb).
#
# **Words:** [Crossing tensor](../docs/glossary.md#crossing-tensor "A tensor that one segment writes to memory and another one reads.") · [Definition](../docs/glossary.md#definition "The record of the ops of a fusion, made by calls in a `with FusionDefinition()` block.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Launch](../docs/glossary.md#launch "The start of a kernel; it takes a few microseconds, whatever the kernel does.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Rule](../docs/glossary.md#rule "A condition of a scheduler; a candidate that breaks it is refused.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.") · [segment_set](../docs/glossary.md#segment_set "An op that computes nothing and tells the segmenter to end a segment there.")

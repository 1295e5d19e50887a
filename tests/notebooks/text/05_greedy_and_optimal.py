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
# # Greedy merges, lower bounds, and the best plan
#
# After this lesson, you can compare plans by one number, and say how far a plan is from the best one. The lesson takes about 20 minutes.
#
# The backward pass of layer norm computes the gradients of the input, the weight and the bias. A single kernel can compute all three
# gradients, and nvFuser finds this plan, because it first asks the schedulers about the whole fusion.
#
# The next cell makes other plans of the same fusion: it merges pairs of neighbours in random order until no pair can be merged, as in
# lesson 03. It does so 25 times, and draws the plan that moves the most bytes. How much slower is this plan than a single kernel?

# %%
import json
from collections import Counter
from pathlib import Path

import numpy as np

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition, SegmenterOptions
from fuser_lab.segmentation import verify
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/05_greedy_and_optimal.toml").predict


def neighbours(plan):
    return [(a, b) for a, after in enumerate(plan.segmented.successors) for b in sorted(after)]


def merged_at_random(plan, rng):
    """Return the plan after merging neighbours in random order until no two can be merged (lesson 03)."""
    while True:
        pairs = neighbours(plan)
        for index in rng.permutation(len(pairs)):
            try:
                plan = plan.glue(*pairs[index])
            except fl.errors.IllegalEdit:
                continue
            break
        else:
            return plan


fd, sizes = fl.example("layer_norm_backward", "full")
single = fl.segment(fd, sizes, strategy="unfused", name="single ops")
rng = np.random.default_rng(0)
at_random = [merged_at_random(single, rng) for _ in range(25)]


def moved(plan):
    return sum(segment.bytes for segment in plan.segments)


worst = max(at_random, key=moved).renamed("random merges")
worst

# %% [markdown]
# ## One number for a plan
#
# To compare plans, estimate the time of each plan. A segment takes the time to read and write its bytes at the bandwidth of the
# memory, plus 4 µs to start its kernel, which is called a **launch**:
#
# > time = (bytes read + bytes written) / bandwidth + 4 µs × segments
#
# **Predict:** the memory of an H200 has a bandwidth of 4,800 GB/s, and the headline of the picture says how many bytes the plan moves.
# How many µs does the plan take? (An answer within 10 % counts as right.)

# %%
question = predict("Microseconds of the plan above", None)
question

# %%
def microseconds(plan):
    return 1e6 * (moved(plan) / (plan.oracle.device.bandwidth * 1e9)) + 4 * len(plan.segments)


launches = 4 * len(worst.segments)
outcome_1 = question.reveal(microseconds(worst), within=0.1, facts={"launches": launches})
outcome_1

# %% [markdown]
# The next cell counts the 25 random plans by their time, and prints the time of nvFuser's plan in the last line:

# %%
counts = Counter(round(microseconds(plan)) for plan in at_random)
for time in sorted(counts):
    print(f"{time:6,} µs  {'#' * counts[time]}")
print(f"{microseconds(fl.segment(fd, sizes)):6,.0f} µs  nvFuser")

# %% [markdown]
# A **greedy** method takes the next step that looks good, and never takes a step back. It is fast, and its results are mostly good. But
# an early merge can rule out a better merge later, and the method never learns of it.
#
# ## A better greedy rule?
#
# nvFuser merges the first pair that a scheduler accepts, and does not ask how much time the merge saves. The strategy `"saving"` of
# fuser_lab always merges the pair that saves most. Is this better? Try both strategies on two real fusions: the backward pass of
# Llama-3's rotary embedding, and the backward pass of the layer norm of a diffusion transformer (NVIDIA/Fuser issues #4269 and
# #2473).
#
# **Predict:** for each fusion, which strategy has the plan with the shorter estimated time: nvFuser's `bottom_up`, or `saving`?

# %%
question = predict("Which is faster, bottom_up or saving?", {"rotary embedding": None, "layer norm": None})
question

# %% jupyter={"source_hidden": true}
# Reads both fusions from the gallery, and predicts the time of each strategy.
gallery = {case["id"]: case for case in json.loads(Path("../tests/data/gallery.json").read_text())}


def from_gallery(name):
    """Return the definition and abstract inputs of a fusion from an issue."""
    case = gallery[name]
    with FusionDefinition() as fd:
        exec(case["python"], {"fd": fd, "DataType": DataType})  # noqa: S102 - a file of this repository
    return fd, [fl.spec(tuple(i["shape"]), i["dtype"], i.get("strides")) for i in case["inputs"]]


REAL = {"rotary embedding": from_gallery("rope_llama3_bwd"), "layer norm": from_gallery("dit_layernorm_bwd_io")}
times = {
    name: {s: microseconds(fl.segment(*real, strategy=s)) for s in ("bottom_up", "saving")} for name, real in REAL.items()
}
for name, of in times.items():
    question.show(f"{name:18}", *(f"{strategy} {time:6.0f} µs" for strategy, time in of.items()))
outcome_2 = question.reveal({name: min(of, key=of.get) for name, of in times.items()})
outcome_2

# %% [markdown]
# ## What is the minimum?
#
# How good can a plan of a fusion be? One way to find out is to try all plans. Another way is to **prove a lower bound**: a cost that
# every plan has to pay, however it cuts the fusion. No plan can be better than a plan whose cost equals the bound.
#
# Take a fusion that resembles the fusion of lesson 03: a = exp(x), b = a · (row sums of a), the first output is b · (column sums of
# b) + y, and the second output is the row sums of y · (column sums of b). The inputs x and y, the tensors a and b, and the first output are
# matrices of 64 MiB. The sums and the second output are small.
#
# **Predict:** how many times, at least, does **every** plan read or write a matrix? Start with the inputs and outputs. Then think about
# which ops cannot share a kernel: for example, all of b has to be computed before its column sums can be used.

# %%
question = predict("Matrices read or written, at least", None)
question

# %%
with FusionDefinition() as two_norms:
    x, y = (two_norms.define_tensor(shape=[4096, 4096], contiguity=True, dtype=DataType.Float) for _ in range(2))
    ops = two_norms.ops
    a = ops.exp(x)
    b = ops.mul(a, ops.broadcast(ops.sum(a, dims=[1]), is_broadcast_dim=[False, True]))
    columns = ops.broadcast(ops.sum(b, dims=[0]), is_broadcast_dim=[True, False])
    two_norms.add_output(ops.add(ops.mul(b, columns), y))
    two_norms.add_output(ops.sum(ops.mul(y, columns), dims=[1]))

plan = fl.segment(two_norms)
certificate = plan.certificate()
question.show(certificate)
outcome_3 = question.reveal(
    sum(term.cost // fl.spec((4096, 4096)).nbytes for term in certificate.proof.terms if term.kind.value != "launches"),
)
outcome_3

# %% [markdown]
# The text below the answer is a **certificate**. Under *every plan pays*, each line is a cost that no plan avoids, with a reason that you
# can check by hand. The sum of these costs is the bound. Under *known*, the certificate shows a cheaper plan, what it saves, and which
# question nvFuser never asked.
#
# ## The best plan
#
# `strategy="optimal"` searches for the cheapest plan. It merges greedily in several ways, improves the plans by small random changes, and
# compares the best plan with the bound. If the two differ, it searches all other plans, up to a limit.

# %%
best = fl.segment(two_norms, strategy="optimal")
proved = best.certificate()
print(str(proved).split("every plan pays")[0])
print(verify(proved, best.segmented, best.oracle))

# %% [markdown]
# The last line is printed by a checker that shares no code with the search. It computes the costs again, asks the schedulers about each
# pair of ops in the reasons, and adds up the bound.
#
# For this fusion, the bound equals the cost of the plan, so no search was necessary. For the layer norm, the bound is lower than the
# cost. There a search through all plans proves that no plan is cheaper. The option `search_states` limits the number of partial
# plans that the search examines:

# %%
limited = SegmenterOptions(search_states=2_000)
layer_norm = fl.segment(*REAL["layer norm"], strategy="optimal", options=limited)
print(f"{microseconds(layer_norm):.0f} µs; nvFuser {times['layer norm']['bottom_up']:.0f} µs\n")
print(str(layer_norm.certificate()).split("every plan pays")[0])

# %% [markdown]
# Sometimes the search reaches its limit without a proof. Then the certificate says by how much the plan is above the bound at most. An
# example is the rotary embedding of Llama-2 (issue #2599):

# %%
rotary = fl.segment(*from_gallery("rope_llama2_fwd"))
open_question = rotary.certificate(states=2_000)
print("\n".join(str(open_question).splitlines()[:4]))

# %% [markdown]
# ## Your turn: beat nvFuser
#
# The explorer below shows nvFuser's plan of the fusion with two sums. Find a better plan by clicking in the explorer. Then write the same
# edits into the cell that follows, as `cut`, `glue` and `move`. Your score is the bound divided by the time of your plan, so the
# best possible score is 100 %.

# %%
explorer = fl.explore(plan)
explorer

# %%
mine = plan  # for example plan.cut("T5"), plan.glue(1, 2), plan.move("T10", 1)

bound = 1e6 * certificate.model.seconds(certificate.bound)
print(f"{microseconds(mine):.1f} µs, at least {bound:.1f} µs: {bound / microseconds(mine):.0%}")

# %%
score(outcome_1, outcome_2, outcome_3)

# %% [markdown]
# ## Where to go next
#
# - [docs/optimal.md](../docs/optimal.md) describes which plans are compared, how bounds are computed, and what the checker checks.
# - `certificate.missed` and `certificate.terms` are the lines of the certificate as data.
# - This lesson estimated times from bytes. Is this estimate right? [06_cost_models](06_cost_models.ipynb).
#
# **Words:** [Bound](../docs/glossary.md#bound "A cost that every plan of a fusion has to pay, however it is cut.") · [Certificate](../docs/glossary.md#certificate "A proof of how far a plan is at most from the cheapest one, as a list of reasons that add up to a bound.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Greedy](../docs/glossary.md#greedy "A method that takes the next best step and does not take back earlier ones.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Launch](../docs/glossary.md#launch "The start of a kernel; it takes a few microseconds, whatever the kernel does.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Rule](../docs/glossary.md#rule "A condition of a scheduler; a candidate that breaks it is refused.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.") · [Strategy](../docs/glossary.md#strategy "The method that cuts a fusion, such as bottom-up, top-down or optimal.")

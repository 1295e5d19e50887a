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
# The backward pass of layer norm computes gradients of the input, the weight and the bias. One kernel can compute all three, and
# nvFuser finds it, because it asks about the whole fusion first. The picture shows another plan of the same fusion. It comes from
# merging legal pairs in random order until no two neighbours can be merged. How much slower is it?

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


def joined_by_lot(plan, rng):
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
by_lot = [joined_by_lot(single, rng) for _ in range(25)]


def moved(plan):
    return sum(segment.bytes for segment in plan.segments)


worst = max(by_lot, key=moved).renamed("random merges")
worst

# %% [markdown]
# ## One number for a plan
#
# To compare plans, count what memory has to do. A segment costs the bytes that it reads and writes, at the bandwidth of the device,
# plus 4 µs for its launch:
#
# > time = (bytes read + bytes written) / bandwidth + 4 µs × segments
#
# **Predict:** the bandwidth of an H200 is 4,800 GB/s, and the table above shows how many bytes the plan moves. How many µs does the
# plan take? (Within 10 %.)

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
# Here are all 25 random plans, and nvFuser's:

# %%
counts = Counter(round(microseconds(plan)) for plan in by_lot)
for time in sorted(counts):
    print(f"{time:6,} µs  {'#' * counts[time]}")
print(f"{microseconds(fl.segment(fd, sizes)):6,.0f} µs  nvFuser")

# %% [markdown]
# A **greedy** method takes the next best step and never looks back. It is fast, and mostly good. But an early merge can rule out a
# better one, and the method cannot tell that this has happened.
#
# ## A better greedy rule?
#
# nvFuser merges the first pair that a scheduler accepts, without asking what the merge saves. Surely it is better to merge the pair
# that saves most, then the next: `strategy="saving"`. Try it on two real fusions: the backward passes of Llama-3's rotary embedding
# and of a diffusion transformer's layer norm (NVIDIA/Fuser issues #4269 and #2473).
#
# **Predict:** for each fusion, which strategy is faster according to the model, `bottom_up` (nvFuser's) or `saving`?

# %%
question = predict("Which is faster?", {"rotary embedding": None, "layer norm": None})  # "bottom_up" or "saving"
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
# How good can a plan of the second fusion be? One way to find out is to try everything. The other is to **prove a lower bound**: a cost
# that every plan has to pay, however it cuts. A plan that costs exactly that cannot be beaten.
#
# Take the fusion of lesson 03, defined once more below; nvFuser uses three kernels and `glue` reduced them to two. The inputs x and
# y, the first output, and a and b are matrices of 64 MiB. The sums and the second output are small.
#
# **Predict:** how many times, at least, does **any** plan read or write a matrix? Start with inputs and outputs. Then think about what
# cannot be in one kernel: b, for instance, has to be complete before its column sums can be used.

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
# This is a **certificate**. Each line is a reason that you can check by hand, and together they form a bound. The lines above the
# bound show what would have improved the plan, and which question was never asked.
#
# ## The best plan
#
# `strategy="optimal"` looks for the cheapest plan. It merges greedily in several ways, improves the results by small random changes,
# and searches the rest within a limit. Then it compares the result with the bound.

# %%
best = fl.segment(two_norms, strategy="optimal")
proved = best.certificate()
print(str(proved).split("every plan pays")[0])
print(verify(proved, best.segmented, best.oracle))

# %% [markdown]
# The last line comes from a checker that shares no code with the search. It recomputes the costs, asks the schedulers about each pair
# that a reason names, and adds everything up.
#
# Here the reasons already add up to the cost of the plan, so no search was needed. For the layer norm they do not, and exhaustive
# search proves the rest, within a limit on the number of states (partial plans) that it may visit:

# %%
limited = SegmenterOptions(search_states=2_000)
layer_norm = fl.segment(*REAL["layer norm"], strategy="optimal", options=limited)
print(f"{microseconds(layer_norm):.0f} µs; nvFuser {times['layer norm']['bottom_up']:.0f} µs\n")
print(str(layer_norm.certificate()).split("every plan pays")[0])

# %% [markdown]
# Sometimes neither is enough. Then the certificate says how far a plan can be from the bound, and which better plan is known. This is
# the rotary embedding of Llama-2 (issue #2599):

# %%
rotary = fl.segment(*from_gallery("rope_llama2_fwd"))
open_question = rotary.certificate(states=2_000)
print("\n".join(str(open_question).splitlines()[:4]))

# %% [markdown]
# ## Your turn: beat nvFuser
#
# Below is nvFuser's plan of two norms. Edit it, by clicking in the explorer or with `cut`, `glue` and `move` in the cell that
# follows. Your score is the bound divided by the cost of your plan; 100 % cannot be beaten.

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
# - [docs/optimal.md](../docs/optimal.md): which plans are compared, where bounds come from, and what the checker checks.
# - `certificate.missed` and `certificate.terms` hold the same as data.
# - All of this counts bytes. Is that the right measure? [06_cost_models](06_cost_models.ipynb).
#
# **Words:** [Bound](../docs/glossary.md#bound "A cost that every plan of a fusion has to pay, however it is cut.") · [Certificate](../docs/glossary.md#certificate "A proof of how far a plan is at most from the cheapest one, as a list of reasons that add up to a bound.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Greedy](../docs/glossary.md#greedy "A method that takes the next best step and does not take back earlier ones.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Launch](../docs/glossary.md#launch "The start of a kernel; it takes a few microseconds, whatever the kernel does.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Rule](../docs/glossary.md#rule "A condition of a scheduler; a candidate that breaks it is refused.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.") · [Strategy](../docs/glossary.md#strategy "The method that cuts a fusion, such as bottom-up, top-down or optimal.")

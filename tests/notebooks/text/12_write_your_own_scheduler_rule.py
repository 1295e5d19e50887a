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
# # Scheduler rules of your own
#
# After this lesson, you can write a scheduler rule of your own, and measure what it changes. The lesson takes about 25 minutes.
#
# Eight tensors are summed, each through a sine, in one kernel with eight inputs. Nothing in nvFuser's rules limits how many tensors a
# kernel touches. Other compilers have such a limit, because many pointers cost registers. Is it a good rule? You do not have to take
# anybody's word for it. You can write it down, and look.

# %%
import numpy as np

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.schedule.own import SchedulerType
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/12_write_your_own_scheduler_rule.toml").predict

with FusionDefinition() as many:
    xs = [many.define_tensor(shape=[2048, 2048], dtype=DataType.Float) for _ in range(8)]
    total = many.ops.sin(xs[0])
    for x in xs[1:]:
        total = many.ops.add(total, many.ops.sin(x))
    many.add_output(total)

fl.segment(many)

# %% [markdown]
# ## 1. A rule that refuses
#
# A rule is a function. It receives the device and the **facts** of a candidate, which is a set of ops that the segmenter wants to
# put into one kernel. It returns None to accept the candidate, or a sentence with the reason for its refusal.

# %%
MOST = 4


def few_tensors(facts, device):
    """Refuse a candidate that touches more than `MOST` tensors in memory."""
    count = len(facts.inputs) + len(facts.outputs)
    return f"{count} tensors in memory, more than {MOST}" if count > MOST else None

# %% [markdown]
# `fl.with_rule` adds it to nvFuser's schedulers, and `fl.segment(..., schedulers=...)` uses those.
#
# **Predict:** with at most four tensors per kernel, how many segments are there? And how many times as many bytes do they move? (Sums
# pass from kernel to kernel; each is written once and read once.)

# %%
question = predict("With at most four tensors", {"segments": None, "times the bytes": None})
question

# %%
def moved(plan):
    return sum(segment.bytes for segment in plan.segments)


free = fl.segment(many, name="nvFuser's rules")
limited = fl.segment(many, schedulers=fl.with_rule(few_tensors), name="few tensors")
question.show(limited)
question.show(limited.boundaries()[0])
outcome_1 = question.reveal(
    {"segments": len(limited.segments), "times the bytes": moved(limited) / moved(free)},
    within=0.05,
)
outcome_1

# %% [markdown]
# Your sentence now appears wherever the others do: in `why`, in the log of decisions, in the explorer, and at the boundary shown above.
#
# Strategies do not know what a rule means; they only ask it. **Predict:** does the exact search find a plan with fewer bytes than the
# bottom-up one, under the same rule?

# %%
question = predict("Is the optimum cheaper?", None)  # True or False
question

# %%
optimum = fl.segment(many, strategy="optimal", schedulers=fl.with_rule(few_tensors))
question.show(f"bottom-up {moved(limited):,} bytes, optimal {moved(optimum):,} bytes")
outcome_2 = question.reveal(moved(optimum) < moved(limited))
outcome_2

# %% [markdown]
# ## 2. A surprise
#
# Now use the same kind of rule for ops instead of tensors: at most three. **Predict:** for eight sines in a row, x → sin → sin → ..., how
# many segments are there?

# %%
question = predict("Segments of eight sines, at most three ops each", None)
question

# %%
def few_ops(facts, device):
    count = len(facts.candidate.exprs)
    return f"{count} ops, more than 3" if count > 3 else None


with FusionDefinition() as sines:
    x = sines.define_tensor(shape=[1 << 20], dtype=DataType.Float)
    for _ in range(8):
        x = sines.ops.sin(x)
    sines.add_output(x)

surprised = fl.segment(sines, schedulers=fl.with_rule(few_ops))
question.show(surprised.decisions.to_pandas().head(5))
plain = fl.SegmenterOptions(forward_inputs=False)
question.show(len(fl.segment(sines, schedulers=fl.with_rule(few_ops), options=plain).segments), "segments without forwarding")
outcome_3 = question.reveal(len(surprised.segments))
outcome_3

# %% [markdown]
# A rule does not only refuse candidates one at a time; it interacts with everything else that the segmenter does. nvFuser's own history
# is full of such cases ([11_gallery_of_real_issues](11_gallery_of_real_issues.ipynb)).
#
# ## 3. The order of the schedulers
#
# The segmenter asks the schedulers in this order, until one accepts:

# %%
print(*(scheduler.type.value for scheduler in fl.SCHEDULERS), sep=" → ")

# %% [markdown]
# The order is a rule too. The *transpose* scheduler accepts the sum of a matrix and a transposed one, and moves tiles through shared
# memory. *Pointwise* would accept it as well, but comes later. Let it come first.
#
# **Predict:** does the order of the schedulers change the number of segments here, the kernel, or both?

# %%
question = predict("What changes?", None, choices=("segments", "kernel", "both", "nothing"))
question

# %%
with FusionDefinition() as transposed:
    a, b = (transposed.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float) for _ in range(2))
    transposed.add_output(transposed.ops.add(a, transposed.ops.permute(b, dims=[1, 0])))

rng = np.random.default_rng(0)
square = [rng.standard_normal((1024, 1024), dtype=np.float32) for _ in range(2)]
pointwise_first = sorted(fl.SCHEDULERS, key=lambda scheduler: scheduler.type is not SchedulerType.POINTWISE)
usual = fl.segment(transposed, square, name="transpose first")
other = fl.segment(transposed, square, schedulers=pointwise_first, name="pointwise first")
changed = {
    "segments": len(usual.segments) != len(other.segments),
    "kernel": usual.segments[0].scheduler is not other.segments[0].scheduler,
}
question.show(fl.time([usual, other], square, seconds=0.1, progress=False))
outcome_4 = question.reveal(
    "both" if all(changed.values()) else next((k for k, v in changed.items() if v), "nothing"),
)
outcome_4

# %% [markdown]
# The bytes and the segments are the same; the kernel is different. `can_schedule` says what is *possible*; the order says what is
# *preferred*.
#
# ## 4. On real fusions
#
# **Predict:** with at most six tensors in a kernel, which of these examples are cut?

# %%
NAMES = ("softmax", "rms_norm", "layer_norm", "layer_norm_backward", "silu_mul")
question = predict("Cut by the rule", None)  # a set of names, as {"softmax", "silu_mul"}
question

# %%
MOST = 6
cut = set()
for name in NAMES:
    fd, specs = fl.example(name, "full")
    before, after = fl.segment(fd, specs), fl.segment(fd, specs, schedulers=fl.with_rule(few_tensors))
    question.show(f"{name:22} {len(before.segments)} -> {len(after.segments)} segments, {moved(after) / moved(before):.2f} times the bytes")
    cut |= {name} if len(after.segments) > len(before.segments) else set()
outcome_5 = question.reveal(cut)
outcome_5

# %% [markdown]
# ## Your turn
#
# Write a rule for *reductions only* (`fl.with_rule(rule, "reduction", "inner_persistent")` adds it to these two schedulers) that cuts
# softmax into **three or more** segments. A rule may look at `facts.inputs`, `facts.outputs`, `facts.candidate.exprs` (each with
# `.op.name`), `facts.reductions`, `facts.patterns` (`.numel` reduced for each of `.rows` results), and `facts.buffers`.

# %%
def mine(facts, device):
    """Refuse ... what?"""
    return None  # noqa: RET501 - a sentence goes here


softmax, specs = fl.example("softmax", "full")
attempt = fl.segment(softmax, specs, schedulers=fl.with_rule(mine, "reduction", "inner_persistent"))
said = {
    1: "nothing was refused yet. What does a candidate with two reductions have that one with a single reduction lacks? (`facts.patterns`)",
    2: "the two reductions are separate. One of the parts still keeps a row on chip: refuse that as well (`facts.buffers`)",
}.get(len(attempt.segments), "well done; `attempt.boundaries()` has your sentences")
print(f"{len(attempt.segments)} segment{'s' * (len(attempt.segments) != 1)}: {said}")

# %%
score(outcome_1, outcome_2, outcome_3, outcome_4, outcome_5)

# %% [markdown]
# ## Where to go next
#
# - `fl.explore(many, schedulers=fl.with_rule(few_tensors))` opens an explorer that applies your rule to every click.
# - nvFuser's rules are in `fuser_lab/schedule/`, one file per scheduler; `CONTRIBUTING.md` says how to add one permanently.
#   [docs/reasons.md](../docs/reasons.md) lists every sentence that they return.
# - A scheduler that accepts more than nvFuser's, and a pass: [24_schedulers_and_passes](24_schedulers_and_passes.ipynb).
# - A rule can also be a *strategy*: `fl.segment(fd, strategy=function)` takes a function of fusion and schedulers, as in
#   [03_how_the_segmenter_thinks](03_how_the_segmenter_thinks.ipynb) and [13_teaching_kit](13_teaching_kit.ipynb).
#
# **Words:** [Bottom-up](../docs/glossary.md#bottom-up "nvFuser's way to segment: it starts from single ops and merges neighbours, step by step.") · [Boundary](../docs/glossary.md#boundary "A place between two segments, with the tensors that cross it and the reason for it.") · [Decision log](../docs/glossary.md#decision-log "The record of each attempt of the segmenter: the ops, the scheduler's answer and its reason.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Pointwise](../docs/glossary.md#pointwise "Computed element by element, without a reduction.") · [Reduction](../docs/glossary.md#reduction "An op that combines the elements along an axis, such as a sum or a maximum.") · [Register](../docs/glossary.md#register "Storage of a single thread inside the processor, the fastest there is.") · [Rule](../docs/glossary.md#rule "A condition of a scheduler; a candidate that breaks it is refused.") · [Schedule](../docs/glossary.md#schedule "The list of transforms that turns a segment into the loops of a kernel.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.") · [Strategy](../docs/glossary.md#strategy "The method that cuts a fusion, such as bottom-up, top-down or optimal.")

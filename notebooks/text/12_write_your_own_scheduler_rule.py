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
# # What if the rules were yours?
#
# After this lesson, you can write a scheduler rule, a scheduler and a pass of your own, and measure what they change.
#
# Eight tensors are summed, each through a sine, in one kernel with eight inputs. Nothing in nvFuser's rules limits how many tensors a
# kernel touches. Other compilers have such a limit, because many pointers cost registers. Is it a good rule? You do not have to take
# anybody's word for it. You can write it down, and look.

# %%
from dataclasses import dataclass

import numpy as np

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.cost.verdict import accept
from fuser_lab.schedule.own import CandidateFacts, Device, SchedulerType, Verdict, refusal
from fuser_lab.teaching import predict, score

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
# A rule is a function. It receives the **facts** of a candidate, which is a set of ops that the segmenter wants to put in one kernel, and
# the device. It returns None, or a sentence that says why not.

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
outcomes = [
    question.reveal(
        {"segments": len(limited.segments), "times the bytes": moved(limited) / moved(free)}, within=0.05,
        hints={"segments": {2: "Each has four tensors, but a kernel writes one of the four.", 3: "The next kernel reads what a kernel passes on."}},
        because="Each kernel writes one sum. The first reads up to three tensors; each later one reads the last sum and up to two more.",
    ),
]
outcomes[0]

# %%
limited

# %% [markdown]
# Your sentence now appears wherever the others do: in `why`, in the log of decisions, and in the explorer:

# %%
limited.boundaries()[0]

# %% [markdown]
# Strategies do not know what a rule means; they only ask it. **Predict:** does the exact search find a plan with fewer bytes than the
# bottom-up one, under the same rule?

# %%
question = predict("Is the optimum cheaper?", None)  # True or False
question

# %%
optimum = fl.segment(many, strategy="optimal", schedulers=fl.with_rule(few_tensors))
print(f"bottom-up {moved(limited):,} bytes, optimal {moved(optimum):,} bytes")
outcomes.append(
    question.reveal(
        moved(optimum) < moved(limited), because="The first kernel reads three of the eight tensors and each later one reads two more, so three sums have to pass.",
    ),
)
outcomes[1]

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
outcomes.append(
    question.reveal(
        len(surprised.segments), hints={3: "It would be three, three and two without the phase that comes first. Look at the log below."},
        because="Chains of unary ops from an input are forwarded: they are set aside, and each reader computes them again. The whole chain "
        "is then refused in one attempt, and its ops stay alone.",
    ),
)
outcomes[2]

# %%
surprised.decisions.to_pandas().head(5)

# %%
plain = fl.SegmenterOptions(forward_inputs=False)
print(len(fl.segment(sines, schedulers=fl.with_rule(few_ops), options=plain).segments), "segments without forwarding")

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
outcomes.append(
    question.reveal(
        "both" if all(changed.values()) else next((k for k, v in changed.items() if v), "nothing"),
        hints={"segments": "Both schedulers accept the whole fusion. So where would a cut come from?"},
        because="The first scheduler that accepts gets the segment, and uses its own kind of kernel.",
    ),
)
outcomes[3]

# %%
fl.time([usual, other], square, seconds=0.1, progress=False)

# %% [markdown]
# The bytes and the segments are the same; the kernel is different. `can_schedule` says what is *possible*; the order says what is
# *preferred*.
#
# ## 4. A scheduler that accepts more
#
# Lesson 02 ran into a limit: the row sums of x, added to the rows of **y**, need two kernels, since no scheduler walks over a second row
# after the reduction. The next scheduler does. A scheduler has a `type`, which says whose kernels it uses, and `can_schedule`, which
# returns a **verdict**.

# %%
with FusionDefinition() as rows:
    x, y = (rows.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float) for _ in range(2))
    rows.add_output(rows.ops.add(y, rows.ops.sum(x, dims=[1], keepdim=True)))


@dataclass(frozen=True)
class SecondWalk:
    """Accepts a sum of rows followed by any pointwise ops, whatever they read."""

    type: SchedulerType = SchedulerType.REDUCTION

    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the acceptance, or a refusal with its own sentence."""
        if facts.reduction is None:
            return refusal(self, "the candidate has no reduction", facts)
        if len(facts.patterns) > 1:
            return refusal(self, f"{len(facts.patterns)} reductions; one is enough for a second walk", facts)
        if not facts.patterns[0].inner:
            return refusal(self, "columns are summed, not rows", facts)
        return accept(self.type)


inputs = [rng.standard_normal((1024, 1024), dtype=np.float32) for _ in range(2)]
two = fl.segment(rows, inputs, name="nvFuser's rules")
one = fl.segment(rows, inputs, schedulers=[SecondWalk(), *fl.SCHEDULERS], name="second walk")
one

# %% [markdown]
# There is one segment. Is the result right?

# %%
(result,) = one.run(inputs)
np.testing.assert_allclose(result, inputs[1] + inputs[0].sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-3)
print("the same as NumPy")

# %% [markdown]
# **Predict:** is it faster than the two segments? Before you answer, look up the crossing tensor in the table of the two-segment plan.

# %%
question = predict("Faster by more than a tenth?", None, choices=("yes", "no"))
question

# %%
times = fl.time([two, one], inputs, seconds=0.1, progress=False)
frame = times.to_pandas(verbose=True)
(row,) = frame[(frame["segment"] == "total") & (frame["plan"] == "second walk")].itertuples(index=False)
outcomes.append(
    question.reveal(
        "yes" if row.ratio < 0.9 and not row.tie else "no",
        because=f"Measured: {row.ratio:.2f} of the time of two segments. Only one number per row crossed, {two.bytes_crossing:,} bytes.",
    ),
)
outcomes[4]

# %%
times

# %%
print(one.segments[0].source("cpu"))

# %% [markdown]
# Read the kernel: the generator has made two loops over all rows, one after the other. **Accepting promises what is possible; how the
# kernel loops is decided elsewhere**, and no rule can make a result wrong. Here the generator was allowed to do better, and did not. So
# nvFuser's limit is at a place where there is little to gain, and now you know that instead of guessing.
#
# ## 5. On real fusions
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
    print(f"{name:22} {len(before.segments)} -> {len(after.segments)} segments, {moved(after) / moved(before):.2f} times the bytes")
    cut |= {name} if len(after.segments) > len(before.segments) else set()
outcomes.append(question.reveal(cut, because="The backward pass of a normalization reads five tensors and writes three."))
outcomes[5]

# %% [markdown]
# ## 6. A pass that puts `segment_set` where it helps
#
# Rules decide what one kernel may hold. A **pass** rewrites the fusion before any scheduler is asked. This is the fusion of lesson 04,
# which bottom-up cuts into more segments than necessary:

# %%
with FusionDefinition() as norms:
    x, y = (norms.define_tensor(shape=[4096, 4096], contiguity=True, dtype=DataType.Float) for _ in range(2))
    a = norms.ops.exp(x)
    b = norms.ops.mul(a, norms.ops.sum(a, dims=[1], keepdim=True))
    columns = norms.ops.sum(b, dims=[0], keepdim=True)
    norms.add_output(norms.ops.add(norms.ops.mul(b, columns), y))
    norms.add_output(norms.ops.sum(norms.ops.mul(y, columns), dims=[1]))

before = fl.segment(norms, name="no pass")
before

# %% [markdown]
# The pattern is a column sum that depends on row sums, and whose broadcast several ops read. A kernel that ends with the column sum
# leaves all readers to the next kernel. A pass has a `name` and a method `run`, which receives a fusion with all sizes
# known and returns one with the same inputs and outputs; `with_segment_set` returns a fusion with one more
# `segment_set`.

# %%
from typing import ClassVar

from fuser_lab.ir import Fusion, OpKind
from fuser_lab.passes import with_segment_set


def is_sum_of(expr, axis):
    """Return whether an expression sums a matrix along one axis."""
    return expr.kind is OpKind.REDUCTION and expr.attr("dims") == (axis,)


def leads_from_rows(fusion, expr):
    """Return whether an expression depends on sums of rows."""
    makers = [fusion.producers[v] for v in expr.tensor_inputs if v in fusion.producers]
    return any(is_sum_of(maker, 1) or leads_from_rows(fusion, maker) for maker in makers)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndWithColumnSums(fl.Pass):
    """Puts segment_set after sums of columns that depend on sums of rows."""

    name: ClassVar[str] = "end_with_column_sums"

    def run(self, fusion: Fusion) -> Fusion:
        """Return the fusion with the hints."""
        for expr in fusion.exprs:
            if is_sum_of(expr, 0) and leads_from_rows(fusion, expr) and fusion.users.get(expr.out):
                fusion = with_segment_set(fusion, expr.name)
        return fusion


# %% [markdown]
# **Predict:** the pass runs after nvFuser's passes. How many segments are there, and what fraction of the bytes is left?

# %%
question = predict("With the pass", {"segments": None, "part of the bytes": None})
question

# %%
after = fl.segment(norms, passes=[*fl.PASSES, EndWithColumnSums()], name="with the pass")
outcomes.append(
    question.reveal(
        {"segments": len(after.segments), "part of the bytes": moved(after) / moved(before)}, within=0.05,
        because="The hint ends a segment after the sums, and both of their readers are together in the next one.",
    ),
)
outcomes[6]

# %%
print(*(one.name for one in after.decisions.passes), sep="\n")
fl.diff(before, after)

# %% [markdown]
# The log lists the pass next to the others, and so does the explorer. `before.annotate("T6")` does the same by hand, for one fusion; a
# pass does it for all fusions that match the pattern.
#
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
score(*outcomes)

# %% [markdown]
# ## Where to go next
#
# - `fl.explore(many, schedulers=fl.with_rule(few_tensors))` opens an explorer that applies your rule to every click.
# - nvFuser's rules are in `fuser_lab/schedule/`, one file per scheduler; `CONTRIBUTING.md` says how to add one permanently.
#   [docs/reasons.md](../docs/reasons.md) lists every sentence that they return.
# - A rule can also be a *strategy*: `fl.segment(fd, strategy=function)` takes a function of fusion and schedulers, as in
#   [03_how_the_segmenter_thinks](03_how_the_segmenter_thinks.ipynb) and [13_teaching_kit](13_teaching_kit.ipynb).

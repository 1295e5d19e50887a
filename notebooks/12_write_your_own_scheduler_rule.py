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
# Eight tensors are summed, each through a sine: one kernel with eight inputs. Nothing in nvFuser's rules limits how many
# tensors a kernel touches. Other compilers have such a limit; too many pointers cost registers. Is it a good rule? One does not
# have to believe anybody. One can write it down, and look.

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
# A rule is a function. It is told the **facts** of a candidate, some ops that the segmenter would like to have in one
# kernel, and the device. It returns None, or a sentence that says why not.

# %%
MOST = 4


def few_tensors(facts, device):
    """Refuse what touches more than `MOST` tensors in memory."""
    count = len(facts.inputs) + len(facts.outputs)
    return f"{count} tensors in memory, more than {MOST}" if count > MOST else None


# %% [markdown]
# `fl.with_rule` gives it to nvFuser's schedulers, and `fl.segment(..., schedulers=...)` asks those.
#
# **Predict:** with at most four tensors for each kernel, how many segments? And how many times as many bytes? (Sums pass from
# kernel to kernel, and each is written and read once.)

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
        hints={"segments": {2: "Four tensors each; but one of the four is what a kernel writes.", 3: "And what a kernel hands on is read by the next."}},
        because="Each kernel writes one sum; the first reads up to three tensors, each later one the last sum and up to two more.",
    ),
]
outcomes[0]

# %%
limited

# %% [markdown]
# Your sentence is now where the others are, in `why`, in the log of decisions, in the explorer:

# %%
limited.boundaries()[0]

# %% [markdown]
# Strategies do not know what a rule means. They only ask. **Predict:** does the exact search find a plan with fewer bytes than
# the bottom-up one, under the same rule?

# %%
question = predict("Is the optimum cheaper?", None)  # True or False
question

# %%
optimum = fl.segment(many, strategy="optimal", schedulers=fl.with_rule(few_tensors))
print(f"bottom-up {moved(limited):,} bytes, optimal {moved(optimum):,} bytes")
outcomes.append(
    question.reveal(
        moved(optimum) < moved(limited), because="Eight tensors, three to begin with and two more each time: three sums have to pass.",
    ),
)
outcomes[1]

# %% [markdown]
# ## 2. A surprise
#
# The same kind of rule, for ops in place of tensors: at most three. **Predict:** eight sines in a row, x → sin → sin → ... How
# many segments?

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
        len(surprised.segments), hints={3: "Three, three and two: so it would be without the one thing that happens first. Look at the log below."},
        because="Chains of unary ops from an input are forwarded: kept back, to be computed again by each reader. The whole chain "
        "is then refused at once, and its ops stay alone.",
    ),
)
outcomes[2]

# %%
surprised.decisions.to_pandas().head(5)

# %%
plain = fl.SegmenterOptions(forward_inputs=False)
print(len(fl.segment(sines, schedulers=fl.with_rule(few_ops), options=plain).segments), "segments without forwarding")

# %% [markdown]
# A rule does not only say no here and there. It meets everything else that the segmenter does. nvFuser's own history is full of
# that ([11_gallery_of_real_issues](11_gallery_of_real_issues.ipynb)).
#
# ## 3. Who is asked
#
# The schedulers are asked in this order, until one accepts:

# %%
print(*(scheduler.type.value for scheduler in fl.SCHEDULERS), sep=" → ")

# %% [markdown]
# The order is a rule too. A matrix plus a transposed one is taken by *transpose*, which moves tiles through shared memory.
# *Pointwise* would take it as well, but is asked later. Let it be asked first.
#
# **Predict:** does the order of schedulers change the number of segments here, the kernel, or both?

# %%
question = predict("What changes?", None, choices=("segments", "kernel", "both", "nothing"))
question

# %%
with FusionDefinition() as turned:
    a, b = (turned.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float) for _ in range(2))
    turned.add_output(turned.ops.add(a, turned.ops.permute(b, dims=[1, 0])))

rng = np.random.default_rng(0)
square = [rng.standard_normal((1024, 1024), dtype=np.float32) for _ in range(2)]
pointwise_first = sorted(fl.SCHEDULERS, key=lambda scheduler: scheduler.type is not SchedulerType.POINTWISE)
usual = fl.segment(turned, square, name="transpose first")
other = fl.segment(turned, square, schedulers=pointwise_first, name="pointwise first")
changed = {
    "segments": len(usual.segments) != len(other.segments),
    "kernel": usual.segments[0].scheduler is not other.segments[0].scheduler,
}
outcomes.append(
    question.reveal(
        "both" if all(changed.values()) else next((k for k, v in changed.items() if v), "nothing"),
        hints={"segments": "Both take the whole fusion. So where would a cut come from?"},
        because="Whoever is asked first and accepts gets it, with kernels of its own kind.",
    ),
)
outcomes[3]

# %%
fl.time([usual, other], square, seconds=0.1, progress=False)

# %% [markdown]
# Same bytes, same segments, another kernel. `can_schedule` says what is *possible*; the order says what is *preferred*.
#
# ## 4. A scheduler that accepts more
#
# Lesson 02 ended in front of a wall: the sums of the rows of x, added to the rows of **y**, are two kernels, since no scheduler
# walks over a second row after the reduction. Here is one that does. A scheduler has a `type`, which says whose kernels it
# gets, and `can_schedule`, which returns a **verdict**.

# %%
with FusionDefinition() as rows:
    x, y = (rows.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float) for _ in range(2))
    rows.add_output(rows.ops.add(y, rows.ops.sum(x, dims=[1], keepdim=True)))


@dataclass(frozen=True)
class SecondWalk:
    """Takes a sum of rows with pointwise ops behind it, whatever these read."""

    type: SchedulerType = SchedulerType.REDUCTION

    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the acceptance, or a refusal in words of our own."""
        if facts.reduction is None:
            return refusal(self, "nothing is summed", facts)
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
# One segment. Is the result right?

# %%
(result,) = one.run(inputs)
np.testing.assert_allclose(result, inputs[1] + inputs[0].sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-3)
print("the same as NumPy")

# %% [markdown]
# **Predict:** is it faster than the two segments? Look at the crossing tensor in the table of the two before you answer.

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
        because=f"Measured: {row.ratio:.2f} of the time of two. What crossed was one number for each row, {two.bytes_crossing:,} bytes.",
    ),
)
outcomes[4]

# %%
times

# %%
print(one.segments[0].source("cpu"))

# %% [markdown]
# Read the kernel: the generator has made two loops over all rows, one after the other. **Accepting is a promise about what is
# possible; how it is looped is decided elsewhere**, and no rule can make a result wrong. Here it was allowed to do better
# and does not. So the wall in nvFuser stands at a place where there is little to gain; now you know, and did not have to guess.
#
# ## 5. On real fusions
#
# **Predict:** at most six tensors in a kernel. Which of these examples are cut?

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
# Rules decide what one kernel may hold. A **pass** rewrites the fusion before anybody is asked. This one is lesson 04's fusion,
# which bottom-up cuts into more segments than it has to:

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
# The pattern: columns are summed of what rows were summed into, and several ops read the broadcast of these sums. A kernel that
# ends with the sums leaves all of their readers to the next one. A pass has a `name` and `run`, which takes a fusion with all
# sizes known and returns one with the same inputs and outputs; `with_segment_set` returns a fusion with one more `segment_set`.

# %%
from typing import ClassVar

from fuser_lab.ir import Fusion, OpKind
from fuser_lab.passes import with_segment_set


def is_sum_of(expr, axis):
    """Whether an expression sums a matrix along one axis."""
    return expr.kind is OpKind.REDUCTION and expr.attr("dims") == (axis,)


def leads_from_rows(fusion, expr):
    """Whether sums of rows lead to an expression."""
    makers = [fusion.producers[v] for v in expr.tensor_inputs if v in fusion.producers]
    return any(is_sum_of(maker, 1) or leads_from_rows(fusion, maker) for maker in makers)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndWithColumnSums(fl.Pass):
    """Puts segment_set behind sums of columns to which sums of rows lead."""

    name: ClassVar[str] = "end_with_column_sums"

    def run(self, fusion: Fusion) -> Fusion:
        """Return the fusion with the hints."""
        for expr in fusion.exprs:
            if is_sum_of(expr, 0) and leads_from_rows(fusion, expr) and fusion.users.get(expr.out):
                fusion = with_segment_set(fusion, expr.name)
        return fusion


# %% [markdown]
# **Predict:** it runs behind nvFuser's passes. How many segments, and how much of the traffic is left?

# %%
question = predict("With the pass", {"segments": None, "part of the bytes": None})
question

# %%
after = fl.segment(norms, passes=[*fl.PASSES, EndWithColumnSums()], name="with the pass")
outcomes.append(
    question.reveal(
        {"segments": len(after.segments), "part of the bytes": moved(after) / moved(before)}, within=0.05,
        because="The hint ends a segment behind the sums, and both of their readers come together in the next one.",
    ),
)
outcomes[6]

# %%
print(*(one.name for one in after.decisions.passes), sep="\n")
fl.diff(before, after)

# %% [markdown]
# The log names it beside ours, and so does the explorer. `before.annotate("T6")` does the same by hand, for one fusion; a pass does
# it for all fusions that have the pattern.
#
# ## Your turn
#
# Write a rule for *reductions only* (`fl.with_rule(rule, "reduction", "inner_persistent")` gives it to these two) that makes
# **three or more** segments of softmax. What a rule may look at: `facts.inputs`, `facts.outputs`, `facts.candidate.exprs` (each with
# `.op.name`), `facts.reductions`, `facts.patterns` (`.numel` reduced for each of `.rows` results), `facts.buffers`.

# %%


def mine(facts, device):
    """Refuse ... what?"""
    return None  # noqa: RET501 - a sentence goes here


softmax, specs = fl.example("softmax", "full")
attempt = fl.segment(softmax, specs, schedulers=fl.with_rule(mine, "reduction", "inner_persistent"))
said = {
    1: "nothing was refused yet. What do two reductions have in one candidate, and one reduction not? (`facts.patterns`)",
    2: "the two reductions are apart. One of the parts still keeps a row: refuse that as well (`facts.buffers`)",
}.get(len(attempt.segments), "well done; `attempt.boundaries()` has your sentences")
print(f"{len(attempt.segments)} segment{'s' * (len(attempt.segments) != 1)}: {said}")

# %%
score(*outcomes)

# %% [markdown]
# ## Where to go on
#
# - `fl.explore(many, schedulers=fl.with_rule(few_tensors))`: every click is answered by your rule as well.
# - The rules of nvFuser are in `fuser_lab/schedule/`, a file for each; `CONTRIBUTING.md` says how to add one for good.
#   [docs/reasons.md](../docs/reasons.md) has every sentence that they say.
# - A rule that is a *strategy*: `fl.segment(fd, strategy=function)` takes a function of fusion and schedulers, as in
#   [03_how_the_segmenter_thinks](03_how_the_segmenter_thinks.ipynb) and [13_teaching_kit](13_teaching_kit.ipynb).

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
# # Schedulers and passes of your own
#
# After this lesson, you can write a scheduler that accepts more than nvFuser's, and a pass that rewrites a fusion before it is cut. The lesson takes about 15 minutes.
#
# A rule that refuses is the subject of [lesson 12](12_write_your_own_scheduler_rule.ipynb). The row sums of x, added to the rows of **y**,
# need two kernels in the picture, because no scheduler walks over a second row after the reduction (lesson 02). What is gained if one
# does?

# %%
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from IPython.display import display

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.cost.verdict import accept
from fuser_lab.ir import Fusion, OpKind
from fuser_lab.passes import with_segment_set
from fuser_lab.schedule.own import CandidateFacts, Device, SchedulerType, Verdict, refusal
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/24_schedulers_and_passes.toml").predict


def moved(plan):
    return sum(segment.bytes for segment in plan.segments)


with FusionDefinition() as rows:
    x, y = (rows.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float) for _ in range(2))
    rows.add_output(rows.ops.add(y, rows.ops.sum(x, dims=[1], keepdim=True)))

rng = np.random.default_rng(0)
inputs = [rng.standard_normal((1024, 1024), dtype=np.float32) for _ in range(2)]
two = fl.segment(rows, inputs, name="nvFuser's rules")
two

# %% [markdown]
# ## 1. A scheduler that accepts more
#
# A scheduler has a `type`, which says whose kernels it uses, and `can_schedule`, which returns a **verdict**.
#
# With this one, the plan has one segment; the last lines of the cell check the result.

# %%
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


one = fl.segment(rows, inputs, schedulers=[SecondWalk(), *fl.SCHEDULERS], name="second walk")
display(one)
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
question.show(times)
outcome_1 = question.reveal(
    "yes" if row.ratio < 0.9 and not row.tie else "no",
    facts={"ratio": row.ratio, "bytes_crossing": two.bytes_crossing},
)
outcome_1

# %%
print(one.segments[0].source("cpu"))

# %% [markdown]
# Read the kernel: the generator has made two loops over all rows, one after the other. **Accepting promises what is possible; how the
# kernel loops is decided elsewhere**, and no rule can make a result wrong. Here the generator was allowed to do better, and did not. So
# nvFuser's limit is at a place where there is little to gain, and now you know that instead of guessing.
#
# ## 2. A pass that puts `segment_set` where it helps
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
# The pattern is a column sum that depends on row sums, and whose broadcast several ops read. A kernel that ends with the column
# sum leaves all readers to the next kernel. A pass has a `name` and a method `run`. The method receives a fusion in which all
# sizes are known, and returns a fusion with the same inputs and outputs. `with_segment_set` returns a fusion with an additional
# `segment_set`.

# %%
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
outcome_2 = question.reveal(
    {"segments": len(after.segments), "part of the bytes": moved(after) / moved(before)},
    within=0.05,
)
outcome_2

# %%
print(*(one.name for one in after.decisions.passes), sep="\n")
fl.diff(before, after)

# %%
score(outcome_1, outcome_2)

# %% [markdown]
# The log lists the pass next to the others, and so does the explorer. `before.annotate("T6")` does the same by hand, for one fusion; a
# pass does it for all fusions that match the pattern.
#
# ## Where to go next
#
# - `CONTRIBUTING.md` says how to add a scheduler or a pass permanently.
# - [docs/passes.md](../docs/passes.md) shows nvFuser's passes, each on a small fusion.
# - What does each of nvFuser's rules cost? [20_the_price_of_a_rule](20_the_price_of_a_rule.ipynb).
#
# **Words:** [Bottom-up](../docs/glossary.md#bottom-up "nvFuser's way to segment: it starts from single ops and merges neighbours, step by step.") · [Broadcast](../docs/glossary.md#broadcast "An op that gives a tensor one more axis, along which it repeats its elements; it moves no data.") · [Crossing tensor](../docs/glossary.md#crossing-tensor "A tensor that one segment writes to memory and another one reads.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Reduction](../docs/glossary.md#reduction "An op that combines the elements along an axis, such as a sum or a maximum.") · [Rule](../docs/glossary.md#rule "A condition of a scheduler; a candidate that breaks it is refused.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.") · [segment_set](../docs/glossary.md#segment_set "An op that computes nothing and tells the segmenter to end a segment there.") · [Verdict](../docs/glossary.md#verdict "A scheduler's answer to a candidate: accepted, or refused with a reason.")

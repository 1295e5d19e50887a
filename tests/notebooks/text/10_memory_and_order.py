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
# # Peak memory: the order of segments
#
# After this lesson, you can compute the peak memory of a plan, and lower it by changing the order or the fusion. The lesson takes about 20 minutes.
#
# Each of ten matrices goes through a relu, is multiplied by itself, and goes through a relu again; then they are multiplied into an
# accumulator, one after another. The picture shows three of them. Segments, bytes moved and results do not depend on the order in
# which the branches run. What does?
#
# The case is real (NVIDIA/Fuser issue #3290): nvFuser needed several times the memory of running op by op.

# %%
import heapq

import numpy as np
from IPython.display import HTML

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.report import plots
from fuser_lab.runtime.plan.storage import Lifetime, plan_storage
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/10_memory_and_order.toml").predict

SIDE = 256


def branches(count, *, breadth_first):
    """Return a definition that finishes all branches first, or multiplies each branch in before the next one begins."""
    with FusionDefinition() as fd:
        xs = [fd.define_tensor(shape=[SIDE, SIDE], dtype=DataType.Float) for _ in range(count)]
        total = fd.define_tensor(shape=[SIDE, SIDE], dtype=DataType.Float)

        def branch(x):
            x = fd.ops.relu(x)
            return fd.ops.relu(fd.ops.matmul(x, x))

        for y in [branch(x) for x in xs] if breadth_first else map(branch, xs):
            total = fd.ops.matmul(y, total)
        fd.add_output(total)
    return fd


fl.segment(branches(3, breadth_first=True))

# %% [markdown]
# ## 1. The peak
#
# A tensor between two segments lives from the segment that writes it to the last segment that reads it. The **peak** is the largest sum
# of the bytes that are alive at one moment. Inputs stay throughout, since they belong to the caller.
#
# Every tensor here has 256 x 256 floats, a quarter of a megabyte (MiB). The plans here run their segments in the order in which the ops
# are defined, as far as the arrows allow.
#
# **Predict:** for ten branches, what is the peak in MiB, not counting inputs, if all branches come first? And if each branch is finished
# and multiplied in before the next one begins?

# %%
question = predict("Peak in MiB", {"all branches first": None, "one after another": None})
question

# %%
def peak(plan):
    """Return the largest number of bytes that crossing tensors and results occupy at one time."""
    return max(step.between + step.results for step in plots.memory_steps(plan))


plans = {
    name: fl.segment(branches(10, breadth_first=first), name=name)
    for name, first in (("all branches first", True), ("one after another", False))
}
for name, plan in plans.items():
    question.show(f"{name:20} {len(plan.segments)} segments, {sum(s.bytes for s in plan.segments) / 2**20:.2f} MiB moved")
outcome_1 = question.reveal({name: peak(plan) / 2**20 for name, plan in plans.items()})
outcome_1

# %% [markdown]
# Both plans have the same segments and move the same bytes. The issue reports exactly these peaks: the large one for nvFuser at that
# time, the small one for running op by op. nvFuser now searches for an order. This is the memory over time, for four branches:

# %%
HTML("".join(plots.memory_svg(fl.segment(branches(4, breadth_first=first))) for first in (True, False)))

# %% [markdown]
# ## 2. The best order
#
# With three branches, you can try *all* orders that respect the arrows. A state is the set of segments that have run. From each state,
# any segment may run whose operands exist. The path with the smallest peak is found like a shortest path (Dijkstra), with *max* in place
# of *plus*.

# %% jupyter={"source_hidden": true}
# Defines `best_order(plan)`: the smallest peak over all orders, an order that has it, and the states visited.
def best_order(plan):
    """Return the smallest peak over all orders of the segments, an order that has it, and the number of states visited."""
    written = [{t.name: t.nbytes for t in s.outputs} for s in plan.segments]
    read = [{t.name for t in s.inputs} for s in plan.segments]
    made = {name: n for n, outputs in enumerate(written) for name in outputs}
    sizes = {name: size for outputs in written for name, size in outputs.items()}
    results = {t.name for t in plan.fusion.outputs}
    readers = {name: {n for n, names in enumerate(read) if name in names} for name in made}

    def alive(done, now):
        """Return the bytes that are alive while segment `now` runs after the segments in `done`."""
        return sum(
            sizes[name]
            for name, maker in made.items()
            if (maker in done or maker == now) and (name in results or maker == now or readers[name] - done)
        )

    queue, best = [(0, ())], {}
    while queue:
        highest, order = heapq.heappop(queue)
        done = frozenset(order)
        if len(order) == len(written):
            return highest, order, len(best)
        if done in best:
            continue
        best[done] = highest
        for n in set(range(len(written))) - done:
            if all(made[name] in done for name in read[n] & made.keys()):
                heapq.heappush(queue, (max(highest, alive(done, n)), (*order, n)))
    return None


three = fl.segment(branches(3, breadth_first=True))

# %% [markdown]
# **Predict:** take the plan with three branches. In MiB, what is its peak in the present order, what is the peak if all branches
# run first, and what is the smallest possible peak?

# %%
question = predict("Peak in MiB, three branches", {"as it is": None, "smallest": None})
question

# %%
smallest, order, states = best_order(three)
question.show(f"{states} states; an order with the smallest peak:", *(f"S{n}" for n in order))
outcome_2 = question.reveal({"as it is": peak(three) / 2**20, "smallest": smallest / 2**20})
outcome_2

# %% [markdown]
# In general this problem is NP-hard. It is the *pebbling* of a graph, and as old as register allocation (R. Sethi, 1975). So
# planners use simple rules. A good rule is to finish a branch before the next branch starts.
#
# ## 3. Blocks that are reused
#
# A planner does not allocate memory at every step. It knows all lifetimes beforehand, and lets tensors share a block if they are not
# alive at the same time. This function does that when a plan runs:

# %% jupyter={"source_hidden": true}
# Defines `storage(plan)`, the blocks of the tensors that pass between segments, and prints their number.
def storage(plan):
    """Return the blocks for the tensors that pass between segments."""
    made = {t.name: (n, t.nbytes) for n, s in enumerate(plan.segments) for t in s.outputs}
    last = {t.name: n for n, s in enumerate(plan.segments) for t in s.inputs}
    return plan_storage(
        [
            Lifetime(name=name, nbytes=size, first=first, last=last[name])
            for name, (first, size) in made.items()
            if name in last
        ],
    )


for name, plan in plans.items():
    found = storage(plan)
    print(f"{name:20} {len(found.block_of)} tensors in {len(found.blocks)} blocks, {found.nbytes / 2**20:.2f} MiB")

# %% [markdown]
# **Predict:** a chain of six matrix products, x·w·w·w·w·w·w, has five tensors between segments. How many blocks do they need?

# %%
question = predict("Blocks for the chain", None)
question

# %%
with FusionDefinition() as chain:
    x, w = (chain.define_tensor(shape=[SIDE, SIDE], dtype=DataType.Float) for _ in range(2))
    for _ in range(6):
        x = chain.ops.matmul(x, w)
    chain.add_output(x)

outcome_3 = question.reveal(len(storage(fl.segment(chain)).blocks))
outcome_3

# %% [markdown]
# ## 4. Fusing is the best order
#
# What never leaves registers needs no memory. This is GELU in its tanh form, op by op and fused. The peak includes the result.

# %%
with FusionDefinition() as gelu:
    x = gelu.define_tensor(shape=[4096, 4096], dtype=DataType.Float)
    cube = gelu.ops.mul(gelu.ops.mul(x, x), x)
    inner = gelu.ops.mul(gelu.ops.add(x, gelu.ops.mul(cube, 0.044715)), np.sqrt(2 / np.pi))
    gelu.add_output(gelu.ops.mul(gelu.ops.mul(x, 0.5), gelu.ops.add(gelu.ops.tanh(inner), 1.0)))

for strategy in ("unfused", "bottom_up"):
    plan = fl.segment(gelu, strategy=strategy)
    print(f"{strategy:10} {len(plan.segments)} segments, peak {peak(plan) / 2**20:.0f} MiB besides the input of 64 MiB")

# %% [markdown]
# ## 5. Compute it again instead of keeping it
#
# The backward pass of Llama-3's rotary embedding adds zeros in two segments. nvFuser lets each segment make its own zeros
# (*forwarding*), instead of writing them once and reading them twice.
#
# **Predict:** what does this reduce, the bytes moved, the peak, or both?

# %%
question = predict("What becomes smaller?", None, choices=("bytes", "peak", "both"))
question

# %%
rope, specs = fl.example("llama3_rope_backward", "full")
kept = fl.segment(rope, specs, options=fl.SegmenterOptions(forward_factories=frozenset()), name="kept")
made_again = fl.segment(rope, specs, name="made again")
smaller = set()
for what, measured in (("bytes", lambda p: sum(s.bytes for s in p.segments)), ("peak", peak)):
    before, after = measured(kept), measured(made_again)
    question.show(f"{what:6} {before / 1e6:6.1f} MB -> {after / 1e6:6.1f} MB")
    smaller |= {what} if after < before else set()
question.show(fl.diff(kept, made_again))
outcome_4 = question.reveal("both" if len(smaller) == 2 else smaller.pop() if smaller else "neither")
outcome_4

# %% [markdown]
# Training frameworks do the same on a larger scale, under the name *rematerialization* or checkpointing.
#
# ## Your turn
#
# Write the branches so that the peak is as small as possible **and** the product is the same. Hint: you may group matrix products
# differently, (a·b)·c = a·(b·c), but must keep their order. Start from the version below, which multiplies neighbours first, like a
# tournament.

# %%
with FusionDefinition() as tournament:
    xs = [tournament.define_tensor(shape=[SIDE, SIDE], dtype=DataType.Float) for _ in range(8)]
    while len(xs) > 1:
        xs = [tournament.ops.matmul(a, b) for a, b in zip(xs[::2], xs[1::2], strict=True)]
    tournament.add_output(xs[0])

mine = fl.segment(tournament)
by_order, by_grouping = best_order(mine)[0], 2 * SIDE * SIDE * 4
print(f"peak {peak(mine) / 2**20:.2f} MiB; {by_order / 2**20:.2f} in another order; {by_grouping / 2**20:.2f} is possible")
print("well done" if peak(mine) <= by_grouping else "not yet: if you group from the left, how many tensors are alive?")

# %%
score(outcome_1, outcome_2, outcome_3, outcome_4)

# %% [markdown]
# ## Where to go next
#
# - In `fl.explore(...)`, the view *Memory* in the tab *Cost* shows the same bars; cut and glue, and watch them change.
# - [14_segments_as_definitions](14_segments_as_definitions.ipynb) runs segments by hand and drops each tensor after its last reader.
#
# **Words:** [Forwarding](../docs/glossary.md#forwarding "The segmenter's choice to let each segment compute a cheap tensor again, so that it is neither written nor read.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Peak memory](../docs/glossary.md#peak-memory "The largest number of bytes that the tensors of a plan occupy at one moment.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Register](../docs/glossary.md#register "Storage of a single thread inside the processor, the fastest there is.") · [Rule](../docs/glossary.md#rule "A condition of a scheduler; a candidate that breaks it is refused.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.")

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
# # A segment is a definition
#
# nvFuser cuts a fusion into segments and runs each as a kernel. For a while its Python frontend could hand those segments
# out as definitions of their own, each to be printed, run, scheduled or cut again, and then it was removed. Here it works. But
# which value of a segment is which value of the whole?
#
# To follow a value from the whole fusion into a segment one needs names that hold in both. They are plain numbers, and this
# notebook follows them through five objects:
#
# **definition → state → cache → schedules → segments**

# %%
import numpy as np

import fuser_lab as fl
from fuser_lab import DataType, FusionCache, FusionDefinition
from fuser_lab.teaching import predict, score

cache = FusionCache()


def rows_added(fd):
    x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float) for _ in range(2))
    total = fd.ops.sum(x, dims=[1])
    column = fd.ops.broadcast(total, is_broadcast_dim=[False, True])
    fd.add_output(fd.ops.add(y, column))


with FusionDefinition(cache=cache) as fd:
    rows_added(fd)

fl.segment(fd, [fl.spec((2, 32)), fl.spec((2, 128))])

# %% [markdown]
# ## 1. The definition
#
# Sum the rows of one tensor, put the sums back as a column, add the column to another tensor. The definition went into a
# cache, which is nothing but an argument; step 3 shows what it is for.

# %%
fd

# %% [markdown]
# ## 2. The state: every value gets a number
#
# Numbers go up in the order of definition: inputs, results, and also constants. The sizes of input tensors have numbers of
# their own, and these go down: −1, −2, … in the order of inputs and their axes.
#
# Sizes are special because **a kernel returns tensors only**. A segment that needs a size cannot get it from another
# segment; it has to come from the inputs of the whole fusion. So a size always goes by its negative number, also when the
# definition asked for it with `fd.ops.size` and it has a number of the other kind.

# %%
fd.state

# %% [markdown]
# ## 3. The cache: a tree of calls
#
# What was called is kept as a tree of *canonical records*: what each call does, after its arguments are understood. A
# definition walks down along it, call by call. As long as the calls are known, *nothing is built*: the values come from the
# tree. At the end of its path it finds everything that the first one like it left there.
# Definitions that begin alike share the beginning.
#
# Below, the same fusion is defined again, and one that differs in a single argument:

# %%
with FusionDefinition(cache=cache) as again:
    rows_added(again)

with FusionDefinition(cache=cache) as columns_summed:
    x = columns_summed.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
    y = columns_summed.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
    columns_summed.add_output(columns_summed.ops.add(y, columns_summed.ops.sum(x, dims=[0])))

print("the same object:", again.fusion is fd.fusion)
cache

# %% [markdown]
# **Predict:** if you define `rows_added` once more, but with the names `a` and `b` for `x` and `y`, is that a hit? If
# `sum` is called as `sum(a, [-1])`, with the axis counted from the end? And if `b` is added first, `add(total, b)` instead of
# `add(b, total)`?

# %%
question = predict("Is it a hit? True or False", {"other names": None, "other spelling": None, "other order": None})
question

# %%


def other_names(fd):
    a, b = (fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float) for _ in range(2))
    fd.add_output(fd.ops.add(b, fd.ops.broadcast(fd.ops.sum(a, dims=[1]), is_broadcast_dim=[False, True])))


def other_spelling(fd):
    a, b = (fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float) for _ in range(2))
    fd.add_output(fd.ops.add(b, fd.ops.broadcast(fd.ops.sum(a, [-1]), [False, True])))


def other_order(fd):
    a, b = (fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float) for _ in range(2))
    fd.add_output(fd.ops.add(fd.ops.broadcast(fd.ops.sum(a, dims=[1]), is_broadcast_dim=[False, True]), b))


hits = {}
ways = {"other names": other_names, "other spelling": other_spelling, "other order": other_order}
for name, define in ways.items():
    before = cache.stats().hits
    with FusionDefinition(cache=cache) as attempt:
        define(attempt)
    hits[name] = cache.stats().hits > before
outcomes = [question.reveal(
    hits, hints={"other order": {True: "No rule of arithmetic is applied: other operands are another record."}},
    because="What is compared is the record after its arguments are understood. Names and spelling are no part of it.",
)]
outcomes[0]

# %% [markdown]
# The last one is a fusion of its own, and harmless: it only costs its place in the tree. The printed definition, `print(fd)`,
# is the same fusion as the definition that it was printed from.
#
# ## 4. Schedules: what stands at the end of a path
#
# The fusion, its state, and, once something has run, all that was compiled. A definition that is found in the cache runs with
# what the first one compiled.

# %%
schedules = cache.schedules(fd.fusion_id)
print(schedules)

rng = np.random.default_rng(0)
x, y = (rng.standard_normal(shape, dtype=np.float32) for shape in ((2, 32), (2, 128)))
fd.execute([x, y])

print(schedules)
print("one set of plans for both:", again.plan_for([x, y]) is fd.plan_for([x, y]))

# %% [markdown]
# ## 5. Segments
#
# `segment` cuts the definition for inputs of these sizes and returns the segments as definitions, in the order in which they
# run. nvFuser's kernels for reductions do not read another tensor after the reduction, so there are two:

# %%
segments = fd.segment([x, y])
for segment in segments:
    print(segment)

# %% [markdown]
# Each has numbers of its own, beginning with 0. Which number is which, says a map per segment. Inputs have a blue frame,
# outputs a green one; 3, in between, is neither: it is what passes from one segment to the other.

# %%
fd.index_maps

# %%
for segment in segments:
    print(fd.segment_index_space_maps[segment])
print("last read by segment:", fd.map_value_to_last_used_segment)

# %% [markdown]
# With the maps, running the segments is bookkeeping: keep values by their numbers, give each segment those that it reads,
# store what it returns, and drop each value after the last segment that reads it. By hand:

# %%
values = {0: x, 1: y}
for index, segment in enumerate(segments):
    numbers = fd.segment_index_space_maps[segment]
    results = segment.execute([values[numbers[fid]] for fid in segment.state.inputs])
    values.update((numbers[fid], result) for fid, result in zip(segment.state.outputs, results, strict=True))
    for fid in [fid for fid, last in fd.map_value_to_last_used_segment.items() if last == index]:
        del values[fid]
print("left over:", {fid: value.shape for fid, value in values.items()})

np.testing.assert_allclose(values[4], y + x.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-5)

# %% [markdown]
# `fd.execute` does the same from now on:

# %%
(result,) = fd.execute([x, y])
np.testing.assert_array_equal(result, values[4])

# %% [markdown]
# ## Why values are dropped
#
# Three sums, one after another. The first one leaves a tensor of half a megabyte, which is of no use once the second has run.
#
# **Predict.** Which values are alive while each of the three segments runs? Number 0 is the input, 2 the input plus one, 3, 4
# and 5 are the sums.

# %%
question = predict("What is alive while each segment runs?", None)  # as [{0}, {0}, {0}]
question

# %%
with FusionDefinition(cache=cache) as three_sums:
    t0 = three_sums.define_tensor(shape=[-1, -1, -1, -1], contiguity=True, dtype=DataType.Double)
    t2 = three_sums.ops.sum(three_sums.ops.add(t0, 1.0), dims=[0])
    t3 = three_sums.ops.sum(t2, dims=[-1])
    three_sums.add_output(three_sums.ops.sum(t3, dims=[0]))

shape = (32, 64, 8, 128)
parts = three_sums.segment([fl.spec(shape, "float64")])
last = three_sums.map_value_to_last_used_segment
alive, while_running = set(three_sums.state.inputs), []
for index, part in enumerate(parts):
    numbers = three_sums.segment_index_space_maps[part]
    alive |= {numbers[fid] for fid in part.state.outputs}
    while_running.append(set(alive))
    alive = {fid for fid in alive if last.get(fid, len(parts)) > index or fid in three_sums.state.inputs}
outcomes.append(
    question.reveal(
        while_running, hints={tuple(map(frozenset, ([0, 3], [0, 3, 4], [0, 3, 4, 5]))): "Nobody reads 3 after the second segment, so it need not stay."},
        because="2 lives in registers only. 3, the first sum, is gone when the last segment runs.",
    ),
)
outcomes[1]

# %% [markdown]
# ## A size on its way into a segment
#
# A reshape to sizes that another input decides. Look for the line from a negative number:

# %%
with FusionDefinition(cache=cache) as reshaped:
    x = reshaped.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
    y = reshaped.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
    reshaped.add_output(reshaped.ops.sum(reshaped.ops.exp(x), dims=[1]))
    flat = reshaped.ops.sum(y, dims=[0])
    reshaped.add_output(reshaped.ops.exp(reshaped.ops.reshape(flat, [reshaped.ops.size(x, 1), -1])))

reshaped.segment([fl.spec((64, 4)), fl.spec((512, 4096))])
reshaped.index_maps

# %% [markdown]
# ## Other sizes
#
# The segments were made for 2 rows, but nothing in them says so: sizes are symbolic in a segment where they are in the
# definition.

# %%
taller = [np.ones((3, 32), np.float32), np.ones((3, 16), np.float32)]
np.testing.assert_allclose(fd.execute(taller)[0], fd.reference(taller)[0])

# %% [markdown]
# ## Every plan becomes definitions
#
# The cut above is nvFuser's. Any other plan will do, by another strategy or with a cut of yours, with what its passes made.
# The softmax is one kernel, and here it is cut behind the exponential:

# %%
with FusionDefinition(cache=cache) as softmax:
    x = softmax.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
    powers = softmax.ops.exp(softmax.ops.sub(x, softmax.ops.max(x, dims=[1], keepdim=True)))
    softmax.add_output(softmax.ops.truediv(powers, softmax.ops.sum(powers, dims=[1], keepdim=True)))

rows = rng.standard_normal((8, 64), dtype=np.float32)
whole = fl.segment(softmax, [rows])
edited = whole.cut("T4")
softmax.segment(plan=edited)
softmax.index_maps

# %% [markdown]
# **Predict.** How many definitions does the softmax become for each of these strategies? `"unfused"` makes a segment of each
# op, and `keepdim=True` is a broadcast of its own.

# %%
question = predict("How many definitions?", {"as nvFuser": None, "cut once": None, "unfused": None})
question

# %%
plans = {"as nvFuser": whole, "cut once": edited, "unfused": fl.segment(softmax, [rows], strategy="unfused")}
outcomes.append(question.reveal(
    {name: len(plan.definitions()) for name, plan in plans.items()},
    because="`plan.definitions()` has one definition for each segment, also where there is only one.",
    hints={"unfused": {5: "The largest and the sum are put back as columns, by a broadcast each."}},
))
outcomes[2]

# %% [markdown]
# Together they give what the softmax gives, and each is a definition as any other:

# %%
for plan in plans.values():
    np.testing.assert_allclose(plan.definitions().reference([rows]), softmax.reference([rows]), rtol=1e-6)
edited.definitions()[1]

# %% [markdown]
# ## What is refused
#
# A pass or the segmenter may have used a size, as when the mean of a row became a sum that is divided by the row's length.
# For rows of other lengths the answer is a sentence, never a wrong result:

# %%
with FusionDefinition(cache=cache) as centred:
    x = centred.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
    variance, mean = centred.ops.var_mean(x, dims=[1], correction=0, keepdim=True)
    centred.add_output(centred.ops.mul(centred.ops.sub(x, mean), centred.ops.rsqrt(variance)))

definitions = fl.segment(centred, [rows]).definitions()
definitions.reference([rows[:3]])
try:
    definitions.reference([rows[:, :10]])
except fl.errors.InputError as error:
    print(error)

# %%
score(*outcomes)

# %% [markdown]
# ## Where to go on
#
# - A segment is a definition: `fl.explore(segments[1], [values[4], result[:, :1]])`, `segments[0].print_math()`,
#   `segments[0].segment(...)`.
# - `setup_segmentation`, `build_segment` and `finalize_segmentation` are the three steps inside `segment`.
# - `cache.save("fusions.json")` and `FusionCache.load("fusions.json")` keep the tree, but nothing that is compiled.
# - [docs/segments_as_definitions.md](../docs/segments_as_definitions.md) says what is different from nvFuser's.

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
# # Segments as definitions: follow a value from one to the next
#
# After this lesson, you can take the segments of a fusion as definitions, run them one by one, and follow a value from one to the next. The lesson takes about 20 minutes.
#
# nvFuser cuts a fusion into segments and runs each as a kernel. For a while, its Python frontend could also return those segments as
# separate definitions, to print, run, schedule or cut again; then the feature was removed. Here it works. But which value of a segment is
# which value of the whole fusion?
#
# To follow a value from the whole fusion into a segment, you need names that hold in both. These names are plain numbers, and this
# notebook follows them through five objects:
#
# **definition → state → cache → schedules → segments**

# %%
import numpy as np
from IPython.display import display

import fuser_lab as fl
from fuser_lab import DataType, FusionCache, FusionDefinition
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/14_segments_as_definitions.toml").predict

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
# Sum the rows of one tensor, turn the sums into a column, and add the column to another tensor. The definition goes into a cache, which
# is an ordinary argument; step 3 shows what it is for.
#
# ## 2. The state: every value gets a number
#
# Numbers increase in the order of definition, over inputs, results, and constants. The sizes of input tensors have their own numbers,
# and these decrease: −1, −2, … in the order of the inputs and their axes.
#
# Sizes are special because **a kernel returns only tensors**. A segment that needs a size cannot get it from another segment; the size
# has to come from the inputs of the whole fusion. So a size is always identified by its negative number, even if the definition asked for
# it with `fd.ops.size` and it also has a nonnegative number.

# %%
print(fd)
fd.state

# %% [markdown]
# ## 3. The cache: a tree of calls
#
# The cache stores calls as a tree of *canonical records*: what each call does, after its arguments are resolved. A definition walks down
# this tree, call by call. As long as the calls are known, *nothing is built*: the values come from the tree. At the end of its path, the
# definition finds everything that the first equal definition left there. Definitions with the same beginning share that part of the tree.
#
# The next cell defines the same fusion again, and one that differs in a single argument:

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
# **Predict:** is it a hit if you define `rows_added` once more, but with the names `a` and `b` for `x` and `y`? If you call `sum` as
# `sum(a, [-1])`, with the axis counted from the end? And if `b` comes last, as in `add(total, b)` instead of `add(b, total)`?

# %%
question = predict("Is it a hit? True or False", {"other names": None, "other spelling": None, "other order": None})
question

# %% jupyter={"source_hidden": true}
# Defines the fusion in three other ways, and asks the cache whether each is a hit.
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
outcome_1 = question.reveal(hits)
outcome_1

# %% [markdown]
# The last one is a different fusion. That does no harm; it only takes a place in the tree. The printed definition, `print(fd)`, is the
# same fusion as the definition that printed it.
#
# ## 4. Schedules: what the end of a path stores
#
# The end of a path stores the fusion, its state, and, once something has run, everything that was compiled. A definition that hits the
# cache runs what the first one compiled.

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
# `segment` cuts the definition for inputs of these sizes and returns the segments as definitions, in the order in which they run.
# nvFuser's kernels for reductions do not read another tensor after the reduction, so there are two segments:
#
# Each segment has its own numbers, starting at 0. One map per segment relates them to the numbers of the whole. Inputs have a
# blue frame, and outputs have a green frame. Value 3 has neither, because it passes from one segment to the other.

# %%
segments = fd.segment([x, y])
for segment in segments:
    print(segment)
display(fd.index_maps)
for segment in segments:
    print(fd.segment_index_space_maps[segment])
print("last read by segment:", fd.map_value_to_last_used_segment)

# %% [markdown]
# With these maps, running the segments is bookkeeping: store values by their numbers, pass each segment the values that it reads,
# store the values that it returns, and drop each value after its last reader. By hand:
#
# From now on, `fd.execute` does the same:
#
# The segments were made for 2 rows, but nothing in them depends on that: a size is symbolic in a segment if it is symbolic in the
# definition. So the last lines run them for 3 rows.

# %%
values = {0: x, 1: y}
for index, segment in enumerate(segments):
    numbers = fd.segment_index_space_maps[segment]
    results = segment.execute([values[numbers[fid]] for fid in segment.state.inputs])
    values.update((numbers[fid], result) for fid, result in zip(segment.state.outputs, results, strict=True))
    for fid in [fid for fid, last in fd.map_value_to_last_used_segment.items() if last == index]:
        del values[fid]
print("left over:", {fid: value.shape for fid, value in values.items()})

display(np.testing.assert_allclose(values[4], y + x.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-5))
(result,) = fd.execute([x, y])
np.testing.assert_array_equal(result, values[4])

taller = [np.ones((3, 32), np.float32), np.ones((3, 16), np.float32)]
np.testing.assert_allclose(fd.execute(taller)[0], fd.reference(taller)[0])

# %% [markdown]
# ## Why values are dropped
#
# This fusion has three sums, one after another. The first one leaves a tensor of half a megabyte, which is useless once the second has
# run.
#
# **Predict:** which values are alive while each of the three segments runs? Number 0 is the input, 2 is the input plus one, and 3, 4 and
# 5 are the sums.

# %%
question = predict("What is alive while each segment runs?", None)  # as [{0}, {0}, {0}]
question

# %% jupyter={"source_hidden": true}
# Segments the three sums, and follows which values are alive.
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
outcome_2 = question.reveal(while_running)
outcome_2

# %% [markdown]
# ## How a size reaches a segment
#
# This fusion reshapes to sizes that another input determines. Look for the line from a negative number:

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
# ## Every plan becomes definitions
#
# The cut above is nvFuser's. Any other plan works too, from another strategy or with a cut of yours, and includes the results of its
# passes. Softmax is one kernel; here it is cut after the exponential:

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
# **Predict:** how many definitions does softmax become with each of these strategies? `"unfused"` makes a segment of each op, and
# `keepdim=True` adds a broadcast of its own.

# %%
question = predict("How many definitions?", {"as nvFuser": None, "cut once": None, "unfused": None})
question

# %%
plans = {"as nvFuser": whole, "cut once": edited, "unfused": fl.segment(softmax, [rows], strategy="unfused")}
for plan in plans.values():
    np.testing.assert_allclose(plan.definitions().reference([rows]), softmax.reference([rows]), rtol=1e-6)
question.show(edited.definitions()[1])
outcome_3 = question.reveal({name: len(plan.definitions()) for name, plan in plans.items()})
outcome_3

# %% [markdown]
# Together they compute softmax, which the cell above has checked, and each of them is an ordinary definition.
#
# ## What is refused
#
# A pass or the segmenter may have used a size, for example to turn the mean of a row into a sum divided by the row's length. For rows of
# another length you get an error, never a wrong result ([docs/segments_as_definitions.md](../docs/segments_as_definitions.md)).

# %%
score(outcome_1, outcome_2, outcome_3)

# %% [markdown]
# ## Where to go next
#
# - A segment is a definition: `fl.explore(segments[1], [values[4], result[:, :1]])`, `segments[0].print_math()`,
#   `segments[0].segment(...)`.
# - `setup_segmentation`, `build_segment` and `finalize_segmentation` are the three steps inside `segment`.
# - `cache.save("fusions.json")` and `FusionCache.load("fusions.json")` store the tree without anything compiled.
# - [docs/segments_as_definitions.md](../docs/segments_as_definitions.md) lists the differences from nvFuser.
#
# **Words:** [Broadcast](../docs/glossary.md#broadcast "An op that gives a tensor one more axis, along which it repeats its elements; it moves no data.") · [Definition](../docs/glossary.md#definition "The record of the ops of a fusion, made by calls in a `with FusionDefinition()` block.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Reduction](../docs/glossary.md#reduction "An op that combines the elements along an axis, such as a sum or a maximum.") · [Schedule](../docs/glossary.md#schedule "The list of transforms that turns a segment into the loops of a kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.") · [Strategy](../docs/glossary.md#strategy "The method that cuts a fusion, such as bottom-up, top-down or optimal.")

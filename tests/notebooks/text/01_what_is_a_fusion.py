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
# # Memory traffic: what fusing saves
#
# After this lesson, you can count the bytes that a fusion moves, and predict from them how much fusing saves. The lesson takes about 20 minutes.
#
# Add a bias to every row of a matrix, then apply SiLU, which is z · sigmoid(z). A library runs this one op after another, as in
# the picture below. Each box is a **kernel**, a program that runs on the GPU; each arrow is a tensor that one kernel writes to
# memory and another reads back.
#
# The arithmetic is the same however many boxes there are. So what do fewer boxes save?

# %%
import numpy as np
from IPython.display import display

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.teaching import on_gpu, read_questions, score

predict = read_questions("questions/01_what_is_a_fusion.toml").predict


def bias_silu(*more):
    """Return a definition of bias and SiLU, followed by further unary ops."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
        bias = fd.define_tensor(shape=[-1], contiguity=True, dtype=DataType.Float)
        z = fd.ops.add(x, fd.ops.broadcast(bias, is_broadcast_dim=[True, False]))
        y = fd.ops.mul(z, fd.ops.sigmoid(z))
        for op in more:
            y = getattr(fd.ops, op)(y)
        fd.add_output(y)
    return fd


fd = bias_silu()
sizes = [fl.spec((4096, 4096)), fl.spec((4096,))]  # abstract inputs: nothing of this size is allocated
one_by_one = fl.segment(fd, sizes, strategy="unfused", name="one by one")
one_by_one

# %% [markdown]
# ## Count the bytes
#
# A kernel reads each tensor that it needs from memory and writes its result back. Let n be the number of bytes in the matrix. The
# bias is too small to count, and `broadcast` needs no separate kernel: it only says how to read the bias.
#
# | kernel | reads | writes |
# |---|---|---|
# | add | x | z |
# | sigmoid | z | s |
# | mul | z, s | result |
#
# Now let one kernel do all three: it loads an element of x, keeps z and s in registers, and stores the result.
#
# **Predict:** how many times as many bytes do the three kernels move as the single one?

# %%
question = predict("How many times as many bytes do the kernels move one by one as fused?", None)
question

# %%
fused = fl.segment(fd, sizes, name="fused")


def moved(plan):
    return sum(segment.bytes for segment in plan.segments)


question.show(f"one by one  {moved(one_by_one):>11,} bytes\nfused       {moved(fused):>11,} bytes")
first = question.reveal(moved(one_by_one) / moved(fused), within=0.02)
first

# %% [markdown]
# A **fusion** is a graph of ops like this one, handed over as a whole. To **fuse** it is to run it with as few trips to memory as
# possible. This is the plan with one kernel:

# %%
fused

# %% [markdown]
# **Predict:** append one more op, an `exp` of the result. By how many n does the number of bytes grow, with one kernel per op and
# fused?

# %%
question = predict("By how many n do the bytes grow?", {"one by one": None, "fused": None})
question

# %%
longer, n = bias_silu("exp"), sizes[0].nbytes
grown = {
    "one by one": (moved(fl.segment(longer, sizes, strategy="unfused")) - moved(one_by_one)) / n,
    "fused": (moved(fl.segment(longer, sizes)) - moved(fused)) / n,
}
second = question.reveal(grown)
second

# %% [markdown]
# ## Is it faster?
#
# Bytes can be counted; time has to be measured. The cell below runs both plans on this machine's processor, after comparing
# their results with a reference. The column *ratio* is relative to the first plan.

# %%
rng = np.random.default_rng(0)
inputs = [rng.standard_normal(shape, dtype=np.float32) for shape in ((1024, 4096), (4096,))]
plans = [fl.segment(fd, inputs, strategy="unfused", name="one by one"), fl.segment(fd, inputs, name="fused")]
display(fl.time(plans, inputs, seconds=0.1, progress=False))
(result,) = plans[1].run(inputs)
z = inputs[0] + inputs[1]
np.testing.assert_allclose(result, z / (1 + np.exp(-z)), rtol=1e-5, atol=1e-6)
print("the same as NumPy")

# %% [markdown]
# If this machine has a GPU, the same two plans run there:

# %%
on_device = on_gpu(inputs)
if on_device:
    print(fl.time(plans, on_device, seconds=0.1, progress=False))
else:
    print("There is no GPU here; the lesson continues without one.")

# %% [markdown]
# ## Why bytes, and not arithmetic?
#
# The data sheet of an H200 says how fast its memory is, and how fast it computes.
#
# **Predict:** in the time that one byte takes to arrive from memory, how many float32 operations can the H200 perform? (An answer
# within 50 % counts as right.)

# %%
question = predict("Operations for each byte?", None)
question

# %%
gpu = fused.oracle.device
question.show(f"{gpu.name}: {gpu.bandwidth:,.0f} GB/s from memory, {gpu.fp32:,.0f} float32 TFLOP/s")
third = question.reveal(gpu.fp32 * 1e12 / (gpu.bandwidth * 1e9), within=0.5)
third

# %% [markdown]
# Nearly everything between two matrix products behaves like this: memory bandwidth is the limit, so fusing helps.
#
# ## What a fused kernel looks like
#
# Look for the load of `T0`, the store of the result, and everything in between: `t3`, `t4` and so on are values in registers. No
# other tensor is read or written.

# %%
print(plans[1].segments[0].source("cpu"))

# %% [markdown]
# ## A definition is text
#
# A fusion can be printed, sent to someone, and read back. A size of −1 stays open until the inputs are known.

# %%
print(fd)
scope = {"FusionDefinition": FusionDefinition, "DataType": DataType}
exec(repr(fd), scope)  # noqa: S102 - this notebook printed the text itself
with FusionDefinition() as again:
    scope["nvfuser_fusion"](again)

print("the same fusion:", again.fusion == fd.fusion)

# %% [markdown]
# ## Your turn
#
# Change the ops below so that running them one by one moves at least **ten** times the bytes of the fused kernel. `fd.ops` has
# unary ops (`exp`, `sin`, `tanh`, `neg`, `relu`, `sqrt` and many more) and binary ops (`add`, `sub`, `mul`, `truediv`).

# %%
with FusionDefinition() as mine:
    x = mine.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
    mine.add_output(mine.ops.tanh(mine.ops.exp(x)))

whole, parts = (fl.segment(mine, sizes[:1], strategy=strategy) for strategy in ("bottom_up", "unfused"))
times_as_much = moved(parts) / moved(whole)
said = "well done" if times_as_much >= 10 else "not yet ten; what does one more op add to each side?"
if len(whole.segments) > 1:
    said = "these ops no longer fit in one kernel; lesson 02 explains why"
print(f"{times_as_much:.1f} times the bytes: {said}")

# %%
score(first, second, third)

# %% [markdown]
# ## Where to go next
#
# - If one kernel is always best, why are there ever two? The next lesson answers this: [02_why_fusions_split](02_why_fusions_split.ipynb).
# - `fl.examples.names()` lists real fusions: softmax, layer norm, dropout and more.
#
# **Words:** [Broadcast](../docs/glossary.md#broadcast "An op that gives a tensor one more axis, along which it repeats its elements; it moves no data.") · [Definition](../docs/glossary.md#definition "The record of the ops of a fusion, made by calls in a `with FusionDefinition()` block.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Register](../docs/glossary.md#register "Storage of a single thread inside the processor, the fastest there is.")

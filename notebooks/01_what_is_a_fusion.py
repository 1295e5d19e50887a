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
# # What does an op cost?
#
# Add a bias to every row of a matrix, then apply SiLU, which is z · sigmoid(z). Run as a library runs it, one op after the
# other, that is the picture below: each box is a **kernel**, a program that the GPU is told to run; each arrow is a tensor
# that one kernel writes to memory and another one reads back.
#
# The arithmetic is the same however many boxes there are. So what is saved by having fewer?

# %%
import numpy as np

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.teaching import on_gpu, predict, score


def bias_silu(*more):
    """Return a definition of bias and SiLU, with further unary ops behind them."""
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
sizes = [fl.spec((4096, 4096)), fl.spec((4096,))]  # only described: nothing of this size is allocated
one_by_one = fl.segment(fd, sizes, strategy="unfused", name="one by one")
one_by_one

# %% [markdown]
# ## Count the bytes
#
# A kernel reads each tensor that it needs from memory and writes its result there. Call the bytes of the matrix n. The bias
# is too small to count, and `broadcast` needs no kernel of its own: it only says how the bias is to be read.
#
# | kernel | reads | writes |
# |---|---|---|
# | add | x | z |
# | sigmoid | z | s |
# | mul | z, s | result |
#
# Now let one kernel do all three: it loads an element of x, keeps z and s in registers, and stores the result.
#
# **Predict:** how many times as many bytes do the three kernels move as the one?

# %%
question = predict("How many times as many bytes do the kernels move one by one as fused?", None)
question

# %%
fused = fl.segment(fd, sizes, name="fused")


def moved(plan):
    return sum(segment.bytes for segment in plan.segments)


print(f"one by one  {moved(one_by_one):>11,} bytes\nfused       {moved(fused):>11,} bytes")
first = question.reveal(
    moved(one_by_one) / moved(fused), within=0.02, because="4 n read and 3 n written, against n read and n written.",
    hints={3: "Three kernels, but not of equal size: mul reads two tensors.", 7: "That is how many n they move. The one moves some, too."},
)
first

# %% [markdown]
# A **fusion** is such a graph of ops, handed over as a whole. To **fuse** it is to run it with as few trips to memory as
# possible. This is the plan with one kernel:

# %%
fused

# %% [markdown]
# **Predict:** one more op is put behind the others, an `exp` of the result. By how many n do the bytes grow, one by one and
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
second = question.reveal(
    grown, hints={"one by one": {1: "The new kernel reads as well as writes."}, "fused": {1: "Which tensor would that be? The result was stored before."}},
    because="Fused, the exp stands between a load and a store that are there anyway.",
)
second

# %% [markdown]
# ## Is it faster?
#
# Bytes are a count; time has to be measured. Both plans run below, on this machine's processor, after their results were
# compared with a reference. The column *ratio* compares with the first plan.

# %%
rng = np.random.default_rng(0)
inputs = [rng.standard_normal(shape, dtype=np.float32) for shape in ((1024, 4096), (4096,))]
plans = [fl.segment(fd, inputs, strategy="unfused", name="one by one"), fl.segment(fd, inputs, name="fused")]
fl.time(plans, inputs, seconds=0.1, progress=False)

# %%
(result,) = plans[1].run(inputs)
z = inputs[0] + inputs[1]
np.testing.assert_allclose(result, z / (1 + np.exp(-z)), rtol=1e-5, atol=1e-6)
print("the same as NumPy")

# %% [markdown]
# With a GPU here the same two plans run there:

# %%
on_device = on_gpu(inputs)
if on_device:
    print(fl.time(plans, on_device, seconds=0.1, progress=False))
else:
    print("There is no GPU here; the lesson goes on without it.")

# %% [markdown]
# ## Why bytes, and not arithmetic?
#
# From the data sheet of an H200: how fast its memory is, and how fast it computes.
#
# **Predict:** while one byte comes from memory, how many float32 operations could it do? (Within a factor of two is good.)

# %%
question = predict("Operations for each byte?", None)
question

# %%
gpu = fused.oracle.device
print(f"{gpu.name}: {gpu.bandwidth:,.0f} GB/s from memory, {gpu.fp32:,.0f} float32 TFLOP/s")
third = question.reveal(
    gpu.fp32 * 1e12 / (gpu.bandwidth * 1e9), within=0.5,
    because="A kernel that does less for each byte waits for memory. SiLU does a handful of operations for 8 bytes.",
)
third

# %% [markdown]
# Nearly everything between two matrix products is like that: memory decides, and fusing is what helps.
#
# ## What a fused kernel looks like
#
# Look for the load of `T0`, the store of the result, and everything in between: `t3`, `t4` and so on are numbers in
# registers. No other tensor appears.

# %%
print(plans[1].segments[0].source("cpu"))

# %% [markdown]
# ## A definition is text
#
# A fusion can be printed, sent to someone, and read back. Sizes of −1 are left open until there are inputs.

# %%
print(fd)

# %%
scope = {"FusionDefinition": FusionDefinition, "DataType": DataType}
exec(repr(fd), scope)  # noqa: S102 - the text is our own
with FusionDefinition() as again:
    scope["nvfuser_fusion"](again)

print("the same fusion:", again.fusion == fd.fusion)

# %% [markdown]
# ## Your turn
#
# Change the ops below so that running them one by one moves at least **ten** times the bytes of the fused kernel. Unary ops
# in `fd.ops`: `exp`, `sin`, `tanh`, `neg`, `relu`, `sqrt` and many more; binary ones: `add`, `sub`, `mul`, `truediv`.

# %%
with FusionDefinition() as mine:
    x = mine.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
    mine.add_output(mine.ops.tanh(mine.ops.exp(x)))

whole, parts = (fl.segment(mine, sizes[:1], strategy=strategy) for strategy in ("bottom_up", "unfused"))
times_as_much = moved(parts) / moved(whole)
said = "well done" if times_as_much >= 10 else "not yet ten; what does one more op add to each side?"
if len(whole.segments) > 1:
    said = "one kernel does not do for these ops any more; lesson 02 tells why"
print(f"{times_as_much:.1f} times the bytes: {said}")

# %%
score(first, second, third)

# %% [markdown]
# ## Where to go on
#
# - If one kernel is always best, why are there ever two? That is the next lesson, [02_why_fusions_split](02_why_fusions_split.ipynb).
# - `fl.examples.names()` lists real fusions: softmax, layer norm, dropout and more.

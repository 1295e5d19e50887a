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
# Take a matrix x, add a bias to each row, z = x + bias, and apply SiLU, y = z · sigmoid(z). Each step is an operation on whole
# tensors, an **op**. Run op by op, as PyTorch does unless a compiler changes it, each op starts its own **kernel**: a program
# that runs on the GPU. A kernel reads its inputs from the GPU's memory and writes its result back.
#
# A compiler can also write one kernel for several ops. nvFuser, NVIDIA's compiler for PyTorch, does this, and fuser_lab makes
# the same decisions as nvFuser, without a GPU. The arithmetic is the same for one kernel and for three. So what does a single
# kernel save?
#
# The next cell describes the computation to fuser_lab, as one writes it for nvFuser. `define_tensor` declares an input: a size of
# −1 is decided later, and `contiguity=True` says that the elements lie in memory without gaps. `fl.spec` gives the sizes without
# allocating anything. The cell then draws a **plan**, which is a computation cut into kernels: here one kernel per op. Each
# coloured box is a **segment**, a set of ops that becomes one kernel; here each segment has one op. The rounded boxes are the
# inputs, and the box with six sides is the output. Each black arrow is a tensor that one kernel writes to memory and another one
# reads.

# %%
import numpy as np
from IPython.display import SVG, display

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
sizes = [fl.spec((4096, 4096)), fl.spec((4096,))]
one_by_one = fl.segment(fd, sizes, strategy="unfused", name="op-by-op")
SVG(one_by_one._repr_mimebundle_()["image/svg+xml"])

# %% [markdown]
# ## Count the bytes
#
# In the picture, S0 to S3 are the segments, and T0 to T5 are the tensors. Let n be the number of bytes of x; z, the sigmoid s and
# the result y have n bytes each. The bias is too small to count. S0 is not a real kernel, because `broadcast` moves no data: it
# only says that every row reads the same bias, and its arrow is no tensor in memory. So three kernels are left:
#
# | kernel | reads | writes |
# |---|---|---|
# | add | x | z |
# | sigmoid | z | s |
# | mul | z, s | y |
#
# Now let a single kernel compute all three ops. For each element, it loads x, keeps z and s in **registers**, the storage inside
# the processor, and stores y.
#
# **Predict:** add up the bytes that the three kernels read and write, and divide by those of the single kernel. What is the
# ratio?

# %%
question = predict("Bytes of the three kernels / bytes of the single kernel", None)
question

# %%
fused = fl.segment(fd, sizes, name="fused")


def moved(plan):
    return sum(segment.bytes for segment in plan.segments)


question.show(f"one by one  {moved(one_by_one):>11,} bytes\nfused       {moved(fused):>11,} bytes")
first = question.reveal(moved(one_by_one) / moved(fused), within=0.02)
first

# %% [markdown]
# To **fuse** ops is to compute them in one kernel, so that the tensors between them never go to memory. A graph of ops that is
# given to the compiler as a whole, like this one, is called a **fusion**. The next cell shows the plan with one kernel. Its
# headline says how many bytes all kernels move, how many bytes a single kernel for the whole fusion would move, and how many
# bytes *cross* from one segment to another. *Bottom-up* is nvFuser's method to find the segments (lesson 03). In the table, the
# column *crossing* has the bytes of the tensors that a segment writes for other segments or reads from them; the headline counts
# each of these tensors once. The *scheduler* of a segment is the subject of lesson 02.

# %%
fused

# %% [markdown]
# **Predict:** append one more op, an `exp` of the result. How many more bytes are moved then, as a multiple of n: with one kernel
# per op, and with all ops in one kernel?

# %%
question = predict("How many times n are added?", {"one by one": None, "fused": None})
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
# Bytes can be counted, but time has to be measured. The next cell makes both plans again for a smaller matrix and times them on this
# machine's processor, where the kernels are loops over all cores. `fl.time` first checks that both plans compute the right result.
#
# In the table, the row *total* is the time of a plan, *gaps* is the time between its kernels, and *± IQR* says how much the
# samples vary: it is the range of the middle half of the samples, in percent of the median. *Ratio* is the time divided by that
# of the first plan; it is marked *tie* if the samples vary too much to say which plan is faster. If other programs use the
# processor, the samples vary so much that even a gap can seem negative.

# %%
rng = np.random.default_rng(0)
inputs = [rng.standard_normal(shape, dtype=np.float32) for shape in ((1024, 4096), (4096,))]
plans = [fl.segment(fd, inputs, strategy="unfused", name="op-by-op"), fl.segment(fd, inputs, name="fused")]
display(fl.time(plans, inputs, seconds=0.1, progress=False))
(result,) = plans[1].run(inputs)
z = inputs[0] + inputs[1]
np.testing.assert_allclose(result, z / (1 + np.exp(-z)), rtol=1e-5, atol=1e-6)
print("the same as NumPy")

# %% [markdown]
# The plans differ by a factor of 3.5 in bytes, but on most processors by less in time. The reason is that the processor's caches hold a
# part of the tensors between the kernels, so these bytes come from a cache, which is faster than memory. And both plans compute the
# same exponentials, which also takes time. The bytes say how much fusing can save at most.
#
# If this machine has a GPU, the next cell times the same two plans there:

# %%
on_device = on_gpu(inputs)
if on_device:
    print(fl.time(plans, on_device, seconds=0.1, progress=False))
else:
    print("There is no GPU here; the lesson continues without one.")

# %% [markdown]
# ## Why bytes, and not arithmetic?
#
# So far the lesson has counted bytes and ignored arithmetic. Is that fair? The H200 is a GPU for data centres. According to its data
# sheet, it reads 4.8 · 10¹² bytes per second from memory, and performs 67 · 10¹² operations per second on float32 numbers.
#
# **Predict:** how many operations can an H200 perform for each byte that it reads? (A whole number is good enough.)

# %%
question = predict("Operations for each byte that an H200 reads", None)
question

# %%
gpu = fused.oracle.device  # the numbers of the data sheet
third = question.reveal(gpu.fp32 * 1e12 / (gpu.bandwidth * 1e9), within=0.1)
third

# %% [markdown]
# In a neural network, most ops other than matrix products do only a few operations per byte. Memory limits their speed, so fusing
# them makes them faster.
#
# ## What a fused kernel looks like
#
# fuser_lab writes its kernels in Python, and Numba compiles them. The next cell prints the fused kernel for the processor; `prange`
# is a loop whose iterations are distributed over the cores. Find the load of `T0`, which is x, and the store to `T5`, which is y.
# The variables between them, such as `t3` and `t4`, are single numbers in registers: z and s are never stored to memory.

# %%
print(plans[1].segments[0].source("cpu"))

# %% [markdown]
# ## Your turn
#
# Change the ops below so that running them one by one moves at least **ten** times the bytes of the fused kernel. `mine.ops` has
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
# - Fewer kernels often move fewer bytes. So why does nvFuser not always make a single kernel? The next lesson answers this: [02_why_fusions_split](02_why_fusions_split.ipynb).
# - `fl.examples.names()` lists real fusions: softmax, layer norm, dropout and more.
#
# **Words:** [Bottom-up](../docs/glossary.md#bottom-up "nvFuser's way to segment: it starts from single ops and merges neighbours, step by step.") · [Broadcast](../docs/glossary.md#broadcast "An op that gives a tensor one more axis, along which it repeats its elements; it moves no data.") · [Crossing tensor](../docs/glossary.md#crossing-tensor "A tensor that one segment writes to memory and another one reads.") · [Decision log](../docs/glossary.md#decision-log "The record of each attempt of the segmenter: the ops, the scheduler's answer and its reason.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Register](../docs/glossary.md#register "Storage of a single thread inside the processor, the fastest there is.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.") · [Tie](../docs/glossary.md#tie "Two measured times whose difference is not larger than the noise.")

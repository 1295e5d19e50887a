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
# # Parameters of kernels: heuristics, registers, tuning, and a schedule by hand
#
# After this lesson, you can say why a kernel has the parameters that it has, let a search find better ones, and write a schedule. The lesson takes about 20 minutes.
#
# The segment in the picture is the softmax over rows of [lesson 07](07_from_segment_to_kernel.ipynb): a schedule turns it into a kernel,
# and the numbers in that schedule decide how many threads work on a row. Who chose these numbers, and what would others cost?

# %%
from importlib.util import find_spec

import numpy as np
import pandas as pd
from IPython.display import display

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.teaching import on_gpu, read_questions, score

predict = read_questions("questions/22_parameters_of_kernels.toml").predict

with FusionDefinition() as fd:
    x = fd.define_tensor(shape=[-1, -1], contiguity=True)
    highest = fd.ops.max(x, dims=[1], keepdim=True)
    e = fd.ops.exp(fd.ops.sub(x, highest))
    fd.add_output(fd.ops.truediv(e, fd.ops.sum(e, dims=[1], keepdim=True)))


def segment_of(rows, columns):
    (segment,) = fl.segment(fd, [fl.spec((rows, columns))]).segments
    return segment


segment = segment_of(4096, 1024)
segment.plan

# %% [markdown]
# ## 1. Heuristics
#
# **Heuristics** propose the numbers from the sizes and the device, and give their reasons. What happens if rows get longer and fewer, so that
# the tensor keeps the same number of elements?
#
# **Predict** the number of threads for each row of 64, 1024, 8192 and 131072 elements. A block has at most 1024 threads.

# %%
question = predict("Threads for one row", {64: None, 1024: None, 8192: None, 131072: None})
question

# %%
chosen = {columns: segment_of(2**22 // columns, columns) for columns in (64, 1024, 8192, 131072)}
for columns, one in chosen.items():
    across, rows = one.params("cuda")[0].values["threads"]
    question.show(f"{columns:6} elements: blocks of {rows} rows x {across} threads. {one.schedule.reasons[0]}.")
first = question.reveal({columns: one.params("cuda")[0].values["threads"][0] for columns, one in chosen.items()})
first

# %% [markdown]
# What did the heuristics *not* choose? `segment.candidates()` lists other values of the parameters, with the time that a model predicts
# for each relative to the kernel that runs. Nothing is compiled for that.

# %%
segment.candidates()

# %% [markdown]
# The model recognizes slow candidates. Fast ones differ by less than its error, which is why it does not replace the heuristics:
# [docs/cost_model.md](../docs/cost_model.md#the-choice-of-parameters) says how well it agrees with measurements.
#
# ## 2. What a change costs
#
# All threads on a multiprocessor share its registers. The more registers each thread needs, the fewer threads fit, and the fewer
# others can run while one waits for memory. The share that fits is the **occupancy**. Numba compiles the source to PTX, the assembly
# language of NVIDIA's GPUs, which does not require a GPU either, and the compiler reports both.
#
# **Predict:** use four times as many threads per row. Does a thread need more registers, or fewer? And how does the occupancy change?

# %%
question = predict("With 128 threads for a row, not 32", {"registers": None, "occupancy": None})  # "more" or "fewer"
question

# %% jupyter={"source_hidden": true}
# Compiles the kernel with 32 and with 128 threads per row, and compares registers and occupancy.
if find_spec("numba_cuda"):
    facts = {}
    for threads in (32, 128):
        (facts[threads],) = segment.plan.with_params(0, threads=threads).segments[0].launches()
        question.show(facts[threads], end="\n\n")
    more = {True: "more", False: "fewer"}
    answer = {
        "registers": more[facts[128].registers > facts[32].registers],
        "occupancy": more[facts[128].occupancy > facts[32].occupancy],
    }
else:
    question.show("numba-cuda is not installed, so nothing is compiled; these are the answers that it gives.")
    answer = {"registers": "fewer", "occupancy": "more"}
second = question.reveal(answer)
second

# %% [markdown]
# **Predict:** a thread handles 32 elements of a row and loads four at a time. How many instructions that load from global memory does
# its program have? And how many stores?

# %%
question = predict("Instructions of one thread", {"loads": None, "stores": None})
question

# %% jupyter={"source_hidden": true}
# Compiles the kernel to PTX, and counts the instructions that access global memory.
if find_spec("numba_cuda"):
    from fuser_lab.runtime.gpu.ptx import compile_phases

    (phase,) = compile_phases(segment.kernel("cuda"))
    lines = [line.strip() for line in phase.ptx.splitlines()]
    kinds = pd.Series([line.split(" ")[0] for line in lines if line.endswith(";")])
    answer = {"loads": int(kinds.str.startswith("ld.global").sum()), "stores": int(kinds.str.startswith("st.global").sum())}
    question.show(*(line for line in lines if "global.v4" in line), sep="\n")
    question.show(kinds.value_counts().head(8))
else:
    question.show("numba-cuda is not installed; these are the numbers of accesses in the source.")
    answer = {"loads": 8, "stores": 8}
third = question.reveal(answer)
third

# %% [markdown]
# ## 3. Run, tune, keep
#
# `plan.run` compiles and launches the kernels: on the processor for NumPy arrays, on the GPU for arrays that are there. The
# processor has its own schedule. This schedule prints as a single step, a **template**, because no transforms express its
# vectorized loops:
#
# `fl.tune` measures candidates and takes one only if it is faster by more than the spread, twice. Here it tries a few; without
# `candidates`, it tries all of them. On a GPU, it begins with those that the model of section 1 predicts to be the fastest.

# %%
rows = np.random.default_rng(1).standard_normal((512, 1024), dtype=np.float32)
plan = fl.segment(fd, [rows])
print(plan.segments[0].schedule_for("cpu"))
edited = plan.with_params(0, target="cpu", grain=32).renamed("grain 32")
display(fl.time([plan, edited], [rows], seconds=0.05, progress=False))
found = fl.tune(plan, [rows], candidates=3, seconds=0.02, progress=False)
found

# %% [markdown]
# The result of the search is another plan, `found.plan`. If you want later plans to begin with it, *keep* it. The result is
# stored for this device, for this fusion, and for all sizes with the same kernel. It is used only if you request it. Then the
# reasons of the schedule say where the numbers are from. If nothing was faster, nothing is kept.

# %%
stored = found.keep()
print(stored)
with fl.use_tuned():  # or fl.use_tuned() for the rest of this session
    print(fl.segment(fd, [rows]).segments[0].schedule_for("cpu"))
stored.forget()  # a lesson leaves nothing behind; fl.kept_results() lists what is kept

# %%
there = on_gpu([rows])
if there:
    on_device = fl.segment(fd, there)
    tuned = fl.tune(on_device, there, candidates=6, seconds=0.05, progress=False)
    print(tuned)
    print(tuned.plan.segments[0].schedule)
else:
    print("There is no GPU here; the tables above are for the processor. With a GPU, this cell tunes the CUDA kernel.")

# %% [markdown]
# ## Your turn: be the scheduler
#
# Write the list yourself, as in nvFuser's own tutorials. This example computes the row sums of a matrix: split the row among the
# threads of a block, let each thread add its own elements (`rfactor`), then let the threads combine their sums. `with_schedule` accepts
# a function, too, which is called with a definition of the segment.

# %%
from fuser_lab import ParallelType

with FusionDefinition() as sums:
    x = sums.define_tensor(shape=[-1, -1], contiguity=True)
    sums.add_output(sums.ops.sum(x, [1]))

data = np.random.default_rng(0).standard_normal((16, 1024), dtype=np.float32)
automatic = fl.segment(sums, [data])


def by_hand(threads):
    """Return the plan whose kernel has this many threads per row, scheduled by hand."""

    def schedule(fd):
        total = fd.sched.tensor("T1")
        total.split(1, threads)  # [row, r] -> [row, r / threads, threads]
        partial = total.rfactor([1])  # the middle loop becomes a partial sum of each thread
        for tensor, axis in ((partial, 2), (total, 1)):
            tensor.parallelize(0, ParallelType.grid_x)  # a block for each row
            tensor.parallelize(axis, ParallelType.block_x)
        fd.sched.inline_most()

    return automatic.with_schedule(0, schedule)


mine = by_hand(128)
np.testing.assert_allclose(mine.run([data])[0], data.sum(axis=1), rtol=1e-4, atol=1e-4)
print(mine.segments[0].schedule)
print(mine.segments[0].schedule.nests()[-1], mine.segments[0].source("cuda"), sep="\n\n")

# %% [markdown]
# **Predict, then call `by_hand(96)`:** 1024 is not a multiple of it. What does the kernel contain then that it does not contain now?

# %%
question = predict("What is new?", None, choices=("an if", "a barrier", "a second kernel"))
question

# %%
for threads in (128, 96):
    begin = by_hand(threads).segments[0].source("cuda").split("# T2 =")[1].split("# T1 =")[0]
    question.show(f"{threads} threads:{begin}")
fourth = question.reveal("an if" if "if " in begin else "nothing")
fourth

# %%
score(first, second, third, fourth)

# %% [markdown]
# ## Where to go next
#
# - [docs/scheduling_by_hand.md](../docs/scheduling_by_hand.md) lists all transforms.
# - [docs/running.md](../docs/running.md#keep-what-was-found) says where kept parameters are used, and where not.
# - [docs/cost_model.md](../docs/cost_model.md) says how the time of a kernel is predicted.
# - Is the kernel any good? [08_profile_and_compare](08_profile_and_compare.ipynb).
#
# **Words:** [Definition](../docs/glossary.md#definition "The record of the ops of a fusion, made by calls in a `with FusionDefinition()` block.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Heuristics](../docs/glossary.md#heuristics "The rules that choose the parameters of a kernel from the sizes and the device.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Launch](../docs/glossary.md#launch "The start of a kernel; it takes a few microseconds, whatever the kernel does.") · [Occupancy](../docs/glossary.md#occupancy "The share of a multiprocessor's threads that are active at once, which registers and shared memory limit.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Register](../docs/glossary.md#register "Storage of a single thread inside the processor, the fastest there is.") · [Schedule](../docs/glossary.md#schedule "The list of transforms that turns a segment into the loops of a kernel.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.")

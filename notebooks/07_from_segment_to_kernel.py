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
# # What is inside the box?
#
# After this lesson, you can read a generated kernel, explain its loops and threads, and change its parameters.
#
# The picture shows softmax over rows: seven ops in one box, a segment. A box is not a program. Between this picture and something that
# a GPU runs, somebody decides how many threads work on a row, what each thread keeps, and when threads wait for each other. Who
# decides, and where can you see it?

# %%
from importlib.util import find_spec

import numpy as np
import pandas as pd

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.codegen.generate import generate
from fuser_lab.teaching import on_gpu, play, predict, score

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
# ## 1. Loops
#
# A scheduler has accepted the segment, and the box shows its name. The scheduler decides the loops. Ops have no loops: `max` says what
# is computed, not in which order.
#
# **Predict:** how many loops along each row does a kernel for a *processor* have? (Do not look yet. Count what has to be known before
# the next step can begin.)

# %%
question = predict("How many loops along a row?", None)
question

# %%
on_cpu = generate(segment.fusion, segment.scheduler, "cpu")
along_row = on_cpu.source.count("for r in range(")
first = question.reveal(
    along_row, hints={1: "A loop does not know the maximum before it ends.", 7: "Ops have no loops of their own."},
    because="The maximum must be complete before the first exp, and the sum before the first quotient, so one loop ends at each.",
)
first

# %%
print(on_cpu.source)

# %% [markdown]
# Seven ops became three loops. An op that is not a reduction has no loop of its own: `sub` and `exp` are computed where their results
# are needed, and the broadcasts have vanished, since `t1_fmax` is one variable for the whole row.
#
# `T4_row` is the **persistent buffer** of lesson 02: a row of exponentials, kept from the second loop to the third. Follow one row
# through the three loops: press *Play*, or drag the slider. The line that runs is marked, and so is each element that it reads or
# writes. The rows are shorter here, so that you can see all of them.

# %%
play(segment, "cpu")

# %% [markdown]
# ## 2. Which line comes from which op?
#
# Each line records the op that it implements, which is how the explorer links code and graph. Lines without an op belong to the loops.

# %%
ops = {expr.name: expr.op.name for expr in segment.exprs}
pd.DataFrame(
    [(name, op, ", ".join(map(str, on_cpu.lines_of(name)))) for name, op in ops.items()],
    columns=["result", "op", "lines of the file above"],
).style.hide()

# %% [markdown]
# ## 3. Threads
#
# On a GPU, thousands of threads run the same segment. The comment above each kernel shows the scheduler's choice as *launched with ...
# blocks of ... threads*. The threads of one block share a multiprocessor and can exchange values; different blocks cannot.
#
# A row of 1024 elements needs only a small team of threads. What happens if rows get longer and fewer, so that the tensor keeps the
# same number of elements?
#
# **Predict** the number of threads for each row of 64, 1024, 8192 and 131072 elements. A block has at most 1024 threads.

# %%
question = predict("Threads for one row", {64: None, 1024: None, 8192: None, 131072: None})
question


# %%
def launches(segment):
    """Return the launches of the segment's CUDA kernel."""
    kernel = generate(segment.fusion, segment.scheduler, "cuda").kernel_ir
    return [phase.launch for phase in kernel.phases]


SIZES = (64, 1024, 8192, 131072)
chosen = {columns: launches(segment_of(2**22 // columns, columns)) for columns in SIZES}
for columns, (launch, *_) in chosen.items():
    across, rows = launch.threads
    print(f"{columns:6} elements: {launch.blocks:5} blocks of {rows} rows x {across} threads, {launch.shared} bytes shared")
second = question.reveal(
    {columns: launch.threads[0] for columns, (launch, *_) in chosen.items()},
    hints={64: {64: "With 64 threads, each would load one element, 4 bytes. A vector access loads 16."}},
    because="A thread keeps a handful of elements in registers. Long rows need more threads; short rows share a block.",
)
second

# %% [markdown]
# Only a number in the sizes has changed. A schedule is made for particular sizes; that is why nvFuser, too, recompiles when sizes
# change a lot.
#
# ## 4. The kernel
#
# Generating source for a GPU does not require one. Read the source from the bottom: which threads store, and what? Then find
#
# - the vector accesses: `load_vector(T0, ..., 4)` loads four neighbouring elements, 16 bytes, at once;
# - the **shuffles**: `shfl_xor_sync`, by which the 32 threads of a warp exchange their partial results in five steps.

# %%
print(segment.source("cuda"))

# %% [markdown]
# **Predict:** a butterfly of shuffles combines 32 values in 5 steps. How many steps do 16 threads need, as for rows of 64?

# %%
question = predict("Steps of shuffles for 16 threads", None)
question

# %%
short = segment_of(65536, 64).source("cuda")
steps = int(short.split("shfl_xor_sync")[0].rsplit("for step in range(", 1)[1].split(")")[0])
third = question.reveal(steps, hints={16: "That would be one by one. In a butterfly, all pairs exchange at once."}, because="Each step doubles the number of values that a thread has combined, so it takes log2 of the number of threads.")
third

# %% [markdown]
# ## 5. Run it, thread by thread
#
# Is the kernel correct? You can run it without a GPU: all threads run together as NumPy arrays, with one entry per thread, and every
# statement is one step of all threads. This evaluator is slow and strict: a thread that reads outside a tensor, or reads what another
# thread may not have written yet, raises an error. The player shows its steps; choose one thread to see which elements are its own.

# %%
play(segment, "cuda")

# %% [markdown]
# And are the values right?

# %%
from fuser_lab.codegen.kernel_eval import evaluate_kernel

small = segment_of(16, 1024)
kernel = generate(small.fusion, small.scheduler, "cuda").kernel_ir
data = np.random.default_rng(0).standard_normal((16, 1024), dtype=np.float32)
result = np.full_like(data, np.nan)
name = small.outputs[0].name
writes = evaluate_kernel(kernel, {"T0": data.ravel(), name: result.reshape(-1)}).writes[name]

exact = np.exp(data.astype(np.float64) - data.max(axis=1, keepdims=True))
exact /= exact.sum(axis=1, keepdims=True)
print(f"largest difference from float64: {abs(result - exact).max():.1e}")
print("how many times each element was written:", set(writes.tolist()))

# %% [markdown]
# ## 6. Down to instructions
#
# Numba compiles the Python source to PTX, the assembly language of NVIDIA's GPUs. This does not require a GPU either. In the explorer,
# `fl.explore(fd)`, the tab *Source* shows source, schedule and PTX *side by side*: point at a line to see the lines of the other two
# that belong to it.
#
# **Predict:** a thread handles 32 elements of a row and loads four at a time. How many instructions that load from global memory does
# its program have? And how many stores?

# %%
question = predict("Instructions of one thread", {"loads": None, "stores": None})
question

# %%
if find_spec("numba_cuda"):
    from fuser_lab.runtime.ptx import compile_phases

    (phase,) = compile_phases(generate(segment.fusion, segment.scheduler, "cuda"))
    lines = [line.strip() for line in phase.ptx.splitlines()]
    kinds = pd.Series([line.split(" ")[0] for line in lines if line.endswith(";")])
    answer = {"loads": int(kinds.str.startswith("ld.global").sum()), "stores": int(kinds.str.startswith("st.global").sum())}
    print(*(line for line in lines if "global.v4" in line), sep="\n")
    print(kinds.value_counts().head(8))
else:
    print("numba-cuda is not installed; these are the numbers of accesses in the source.")
    answer = {"loads": 8, "stores": 8}
loads_hint = {32: "One access moves a vector of four elements."}
fourth = question.reveal(answer, hints={"loads": loads_hint, "stores": loads_hint}, because="8 accesses of 16 bytes are 32 elements of 4 bytes. The exponentials never leave registers.")
fourth

# %% [markdown]
# ## 7. Every kernel here is a few transforms: change one
#
# A scheduler decides the kind of loops; **heuristics** then choose the numbers, and explain their choice. The result is a
# **schedule**: a list of transforms, printed as the Python that you would write by hand. This is the kernel that runs:

# %%
print(segment.schedule)

# %% [markdown]
# The comments say which parameter each factor is. Change a number in the text, and the same kernel runs with that number:

# %%
text = str(segment.schedule)
narrower = segment.plan.with_schedule(0, text.replace("factor=32", "factor=16"))
print(narrower.segments[0].params("cuda")[0])
print("the text given back unchanged is the same plan:", segment.plan.with_schedule(0, text).hash == segment.plan.hash)

# %% [markdown]
# `plan.with_params` changes the same schedule, by the names of parameters. The result of the kernel stays the same for any legal
# value; an illegal value is refused with one sentence:

# %%
try:
    segment.plan.with_params(0, threads=100)
except fl.FuserLabError as error:
    print(error)

wider = segment.plan.with_params(0, threads=128)
print(wider.segments[0].params("cuda")[0])

# %% [markdown]
# What does this cost a multiprocessor? All threads on a multiprocessor share its registers. The more registers each thread needs, the
# fewer threads fit, and the fewer others can run while one waits for memory. The share that fits is the **occupancy**. The compiler
# reports both.
#
# **Predict:** use four times as many threads per row. Does a thread need more registers, or fewer? And how does the occupancy change?

# %%
question = predict("With 128 threads for a row, not 32", {"registers": None, "occupancy": None})  # "more" or "fewer"
question

# %%
if find_spec("numba_cuda"):
    facts = {}
    for threads in (32, 64, 128, 256):
        (facts[threads],) = segment.plan.with_params(0, threads=threads).segments[0].launches()
        print(facts[threads], end="\n\n")
    more = {True: "more", False: "fewer"}
    answer = {
        "registers": more[facts[128].registers > facts[32].registers],
        "occupancy": more[facts[128].occupancy > facts[32].occupancy],
    }
else:
    print("numba-cuda is not installed, so nothing is compiled; these are the answers that it gives.")
    answer = {"registers": "fewer", "occupancy": "more"}
knobs = question.reveal(
    answer, hints={"registers": {"more": "The row is as long as before. Which threads keep its elements?"}},
    because="Four times as many threads keep the row, so each keeps a quarter as much. But from 64 threads on, two or more warps "
    "have to exchange through shared memory. Only a measurement shows which is faster: `fl.tune`, in the next lesson.",
)
knobs

# %% [markdown]
# ## 8. Run it for real
#
# `plan.run` compiles and launches the kernels: on the processor for NumPy arrays, on the GPU for arrays that are there.

# %%
rows = np.random.default_rng(1).standard_normal((4096, 1024), dtype=np.float32)
plan = fl.segment(fd, [rows])
fl.time(plan, [rows], seconds=0.1, progress=False)

# %%
there = on_gpu([rows])
if there:
    plans = [plan, plan.with_params(0, threads=128).renamed("128 threads")]
    print(fl.time(plans, there, seconds=0.1, progress=False))
else:
    print("There is no GPU here; the table above is for the processor. With a GPU, this cell compares 32 threads per row with 128.")

# %% [markdown]
# ## Your turn: be the scheduler
#
# You can write the transforms of a schedule by hand, as in nvFuser's own tutorials. This example computes the row sums of a matrix:
# split the row among the threads of a block, let each thread add its own elements (`rfactor`), then let the threads combine their sums.

# %%
from fuser_lab import ParallelType

with FusionDefinition() as by_hand:
    x = by_hand.define_tensor(shape=[-1, -1], contiguity=True)
    total = by_hand.ops.sum(x, [1])
    by_hand.add_output(total)

THREADS = 128
total.split(1, THREADS)  # [row, r] -> [row, r / 128, 128]
partial = total.rfactor([1])  # the middle loop becomes a partial sum of each thread
for tensor in (partial, total):
    tensor.parallelize(0, ParallelType.grid_x)  # a block for each row
partial.parallelize(2, ParallelType.block_x)
total.parallelize(1, ParallelType.block_x)
by_hand.sched.inline_most()

(sums,) = by_hand.manual_execute([data])
np.testing.assert_allclose(sums, data.sum(axis=1), rtol=1e-4, atol=1e-4)
print(by_hand.ke.get_cuda_kernel())

# %% [markdown]
# **Predict, then change `THREADS` to 96:** 1024 is not a multiple of it. What does the kernel contain then that it does not contain
# now?

# %%
question = predict("What is new?", None, choices=("an if", "a barrier", "a second kernel"))
question


# %%
def row_sum_by_hand(threads):
    """Return the kernel of the row sum with this many threads per row."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        total = fd.ops.sum(x, [1])
        fd.add_output(total)
    total.split(1, threads)
    partial = total.rfactor([1])
    for tensor, axis in ((partial, 2), (total, 1)):
        tensor.parallelize(0, ParallelType.grid_x)
        tensor.parallelize(axis, ParallelType.block_x)
    fd.sched.inline_most()
    fd.manual_execute([data])
    return fd.ke.get_cuda_kernel()


for threads in (128, 96):
    begin = row_sum_by_hand(threads).split("# T2 =")[1].split("# T1 =")[0]
    print(f"{threads} threads:{begin}")
fifth = question.reveal(
    "an if" if "if " in begin else "nothing",
    hints={
        "a barrier": "Barriers are where threads wait for each other. The number of rounds does not change that.",
        "a second kernel": "The last round of a loop does not have to be full.",
    },
    because="The last round has too few elements for all threads. With 128 threads, the condition is proved to always hold.",
)
fifth

# %%
score(first, second, third, fourth, knobs, fifth)

# %% [markdown]
# ## Where to go on
#
# - [docs/scheduling_by_hand.md](../docs/scheduling_by_hand.md) lists all transforms; `fd.sched.schedule(SchedulerType.REDUCTION)` writes
#   a scheduler's own schedule.
# - `fd.sched.steps()` shows each transform with the state before and after it, and `fd.sched.undo()` undoes the last one.
# - Is the kernel any good? [08_profile_and_compare](08_profile_and_compare.ipynb).

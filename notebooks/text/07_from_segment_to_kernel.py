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
# After this lesson, you can read the schedule of a generated kernel, find each of its steps in the source, change one and run the
# result, and let a search find better numbers.
#
# The picture shows softmax over rows: seven ops in one box, a segment. A box is not a program. Between this picture and something that
# a GPU runs, somebody decides how many threads work on a row, what each thread keeps, and when threads wait for each other. Who
# decides, where can you see it, and can you decide something else?

# %%
import re
from importlib.util import find_spec

import numpy as np
import pandas as pd

import fuser_lab as fl
from fuser_lab import FusionDefinition
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
# ## 1. A kernel is a list of transforms
#
# The scheduler that has accepted the segment, whose name the box shows, decides this list: the **schedule**. It prints as the Python
# that you would write by hand. `fd` is a definition of the segment, and each line changes the loops of its tensors. This is the kernel
# that runs:

# %%
schedule = segment.schedule
schedule

# %% [markdown]
# It reads in groups:
#
# - `cache_after`, `cache_before`: copies of the input and of the result that a thread keeps for itself, in registers;
# - `split`: cuts one loop into two. The comment says which parameter of the kernel the factor is;
# - `transform_like`: gives all other tensors the loops of the result;
# - `parallelize`: distributes a loop over blocks, over threads, or over the elements of one memory access; `parallelize_like` does it
#   for all other tensors;
# - `inline_most`: computes a tensor inside the loops of its readers, as deep as possible.
#
# Every automatic kernel of one nest of loops consists of these kinds of steps, and a few more such as `merge` and `rfactor`. The
# comments at the top are the reasons for the numbers.
#
# ## 2. The loops, step by step
#
# `schedule.nests()` has the loop nest as text before the first step and after each. Without a schedule, each op has its own loops
# over the whole tensor.
#
# **Predict:** how many loops over rows, one inside another or one after another, does the fusion have before the first transform?

# %%
question = predict("Loops over rows before the first transform", None)
question

# %%
nests = schedule.nests()
print(nests[0])
own_loops = len(re.findall("^for ", nests[0], re.MULTILINE))
first = question.reveal(
    own_loops, hints={1: "That is after the last transform. An op alone has no loop in common with others."},
    because="Seven ops are seven loops over rows: what is computed is known, but not yet where.",
)
first

# %% [markdown]
# The first splits change only the loops of the result, `T7`, which is the last nest of the text. Watch its row of 1024 elements:

# %%
def last_loops(nest):
    """Return the loops of the last tensor of a nest."""
    lines = nest.splitlines()
    return "\n".join(lines[max(i for i, line in enumerate(lines) if line.startswith("for")):])


splits = [i for i, step in enumerate(schedule.transforms) if step.kind == "split"]
for i in splits:
    print(schedule.transforms[i], last_loops(nests[i + 1]), sep="\n", end="\n\n")

# %% [markdown]
# A loop over a row has become four loops, whose extents multiply to the length of the row. Some of them will not be loops in time:
# `parallelize` makes one of them the threads that work *at the same time*, another one the elements of a single access.
#
# **Predict:** how many elements of a row does each thread handle? (Look at the comments of the splits.)

# %%
question = predict("Elements of a row for each thread", None)
question

# %%
parallel = [i for i, step in enumerate(schedule.transforms) if step.kind == "parallelize"]
for i in parallel[:4]:
    print(schedule.transforms[i], last_loops(nests[i + 1]), sep="\n", end="\n\n")
print("after the last step:", nests[-1], sep="\n\n")
params = segment.params("cuda")[0].values
per_thread = 1024 // params["threads"][0]
second = question.reveal(
    per_thread,
    hints={4: "That is one access. How many of them does a thread make?", 8: "That is the number of accesses."},
    because="Only the threads share the row; the other loops along it are the elements that each of them takes, one after another.",
)
second

# %% [markdown]
# In the last nest, all tensors share the two outer loops: a block and its rows. Inside, the row is traversed several times, because the
# maximum has to be complete before the first exponential, and the sum before the first quotient. The input is read from memory only
# once: `T8` is the copy that each thread keeps.
#
# ## 3. The same list as source
#
# Generating source for a GPU does not require one. Find the steps of the schedule:
#
# - the loop on `grid_x` is `blockIdx`, the one on `block_y` is `line`, the one on `block_x` is `lane`: these are not loops but numbers of a
#   thread;
# - the `unroll` loop is `for u in ...`, and the copy `T8` is the array `T0_row`;
# - `vectorize` has become `load_vector(T0, ..., 4)`, which loads four adjacent elements, 16 bytes, at once;
# - no line of the schedule says how threads combine their results: a reduction over a loop on threads *is* a series of **shuffles**,
#   `shfl_xor_sync`, by which the threads of a warp exchange partial results.

# %%
print(segment.source("cuda"))

# %% [markdown]
# Each line of the source knows the op that it implements, which is how the explorer links code and graph. In the explorer,
# `fl.explore(fd)`, the *Schedule* tab shows the steps of this lesson, with buttons that change them.
#
# ## 4. Change one
#
# The text is the kernel. Change a number in it, pass it back, and the kernel runs with that number. The step that is commented with
# *threads of a block, in x* says how many threads share a row. Let 16 do it instead:

# %%
text = str(schedule)
narrower = segment.plan.with_schedule(0, text.replace("factor=32", "factor=16"))
print("the text passed back unchanged is the same plan:", segment.plan.with_schedule(0, text).hash == segment.plan.hash)

# %% [markdown]
# **Predict:** with 16 threads for the same row, how many elements does each keep? And how many steps of shuffles do 16 threads need,
# where 32 need five?

# %%
question = predict("With 16 threads for a row", {"elements": None, "steps of shuffles": None})
question

# %%
print(narrower.segments[0].schedule)
source = narrower.segments[0].source("cuda")
kept = int(re.search(r"T0_row = cuda.local.array\((\d+)", source).group(1))
steps = int(source.split("shfl_xor_sync")[0].rsplit("for step in range(", 1)[1].split(")")[0])
third = question.reveal(
    {"elements": kept, "steps of shuffles": steps},
    hints={"steps of shuffles": {16: "That would be one by one. In a butterfly, all pairs exchange at once."}},
    because="Half the threads keep twice as many elements each. Each step of a butterfly doubles the number of values that a thread has combined.",
)
third

# %% [markdown]
# Compare the two texts: the number of steps in registers, which the schedule only *implies*, has followed. `plan.with_params` changes
# the same schedule by the names of its parameters. A legal value never changes a result, and an illegal one is refused in one sentence:

# %%
same = segment.plan.with_params(0, threads=(16, 2))
print("with_params makes the same plan:", same.hash == narrower.hash)
for number in ("factor=48", "factor=0"):
    try:
        changed = segment.plan.with_schedule(0, text.replace("factor=32", number))
        print(changed.segments[0].schedule.reasons[0])
    except fl.FuserLabError as error:
        print(error)

# %% [markdown]
# A schedule need not be one that the scheduler would write. With 48 threads, which its own kernels refuse, the steps are followed loop
# by loop. You can also leave one out, or write all of them yourself, as at the end of this lesson.
#
# ## 5. Run it, thread by thread
#
# Is the changed kernel correct? You can run it without a GPU: all threads run together as NumPy arrays, with one entry per thread, and
# every statement is one step of all threads. This evaluator is slow and strict: a thread that reads outside a tensor, or reads what
# another thread may not have written yet, raises an error. Press *Play*, or drag the slider: the line that runs is marked, and so is
# each element that it reads or writes. Choose one thread to see which elements are its own. The rows are shorter here.

# %%
play(segment, "cuda")

# %% [markdown]
# And are the values right?

# %%
from fuser_lab.codegen.kernel_eval import evaluate_kernel

small = fl.segment(fd, [fl.spec((16, 1024))]).with_params(0, threads=(16, 2)).segments[0]
data = np.random.default_rng(0).standard_normal((16, 1024), dtype=np.float32)
result = np.full_like(data, np.nan)
name = small.outputs[0].name
writes = evaluate_kernel(small.kernel("cuda").kernel_ir, {"T0": data.ravel(), name: result.reshape(-1)}).writes[name]

exact = np.exp(data.astype(np.float64) - data.max(axis=1, keepdims=True))
exact /= exact.sum(axis=1, keepdims=True)
print(f"largest difference from float64: {abs(result - exact).max():.1e}")
print("how many times each element was written:", set(writes.tolist()))

# %% [markdown]
# ## 6. Who chose the numbers?
#
# **Heuristics** propose them from the sizes and the device, and give their reasons. What happens if rows get longer and fewer, so that
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
    print(f"{columns:6} elements: blocks of {rows} rows x {across} threads. {one.schedule.reasons[0]}.")
fourth = question.reveal(
    {columns: one.params("cuda")[0].values["threads"][0] for columns, one in chosen.items()},
    hints={64: {64: "With 64 threads, each would load one element, 4 bytes. A vector access loads 16."}},
    because="A thread keeps a handful of elements in registers. Long rows need more threads; short rows share a block.",
)
fourth

# %% [markdown]
# What did the heuristics *not* choose? `segment.candidates()` lists other values of the parameters, with the time that a model predicts
# for each relative to the kernel that runs. Nothing is compiled for that.

# %%
segment.candidates()

# %% [markdown]
# The model recognizes slow candidates. Fast ones differ by less than its error, which is why it does not replace the heuristics:
# [docs/cost_model.md](../docs/cost_model.md#the-choice-of-parameters) says how well it agrees with measurements.
#
# ## 7. What a change costs
#
# All threads on a multiprocessor share its registers. The more registers each thread needs, the fewer threads fit, and the fewer
# others can run while one waits for memory. The share that fits is the **occupancy**. Numba compiles the source to PTX, the assembly
# language of NVIDIA's GPUs, which does not require a GPU either, and the compiler reports both.
#
# **Predict:** use four times as many threads per row. Does a thread need more registers, or fewer? And how does the occupancy change?

# %%
question = predict("With 128 threads for a row, not 32", {"registers": None, "occupancy": None})  # "more" or "fewer"
question

# %%
if find_spec("numba_cuda"):
    facts = {}
    for threads in (32, 128):
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
fifth = question.reveal(
    answer, hints={"registers": {"more": "The row is as long as before. Which threads keep its elements?"}},
    because="Four times as many threads keep the row, so each keeps a quarter as much. But from 64 threads on, two or more warps "
    "have to exchange through shared memory. Only a measurement shows which is faster.",
)
fifth

# %% [markdown]
# **Predict:** a thread handles 32 elements of a row and loads four at a time. How many instructions that load from global memory does
# its program have? And how many stores?

# %%
question = predict("Instructions of one thread", {"loads": None, "stores": None})
question

# %%
if find_spec("numba_cuda"):
    from fuser_lab.runtime.ptx import compile_phases

    (phase,) = compile_phases(segment.kernel("cuda"))
    lines = [line.strip() for line in phase.ptx.splitlines()]
    kinds = pd.Series([line.split(" ")[0] for line in lines if line.endswith(";")])
    answer = {"loads": int(kinds.str.startswith("ld.global").sum()), "stores": int(kinds.str.startswith("st.global").sum())}
    print(*(line for line in lines if "global.v4" in line), sep="\n")
    print(kinds.value_counts().head(8))
else:
    print("numba-cuda is not installed; these are the numbers of accesses in the source.")
    answer = {"loads": 8, "stores": 8}
loads_hint = {32: "One access moves a vector of four elements."}
sixth = question.reveal(answer, hints={"loads": loads_hint, "stores": loads_hint}, because="8 accesses of 16 bytes are 32 elements of 4 bytes. The exponentials never leave registers.")
sixth

# %% [markdown]
# ## 8. Run, tune, keep
#
# `plan.run` compiles and launches the kernels: on the processor for NumPy arrays, on the GPU for arrays that are there. The processor
# has its own schedule. It prints as one step, a **template**, because no transforms express its vectorized loops:

# %%
rows = np.random.default_rng(1).standard_normal((512, 1024), dtype=np.float32)
plan = fl.segment(fd, [rows])
print(plan.segments[0].schedule_for("cpu"))
edited = plan.with_params(0, target="cpu", grain=32).renamed("grain 32")
fl.time([plan, edited], [rows], seconds=0.05, progress=False)

# %% [markdown]
# `fl.tune` measures candidates and takes one only if it is faster by more than the spread, twice. Here it tries a few; without
# `candidates`, it tries all of them. On a GPU, it begins with those that the model of section 6 predicts to be the fastest.

# %%
found = fl.tune(plan, [rows], candidates=3, seconds=0.02, progress=False)
found

# %% [markdown]
# What it finds is one more plan, `found.plan`. If you want later plans to begin with it, *keep* it. It is stored for this device, this
# program and the sizes that have the same kernel, and used only where you say so. Then the reasons of the schedule say where the
# numbers are from. If nothing was faster, nothing is kept.

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
    print(f"{threads} threads:{begin}")
seventh = question.reveal(
    "an if" if "if " in begin else "nothing",
    hints={
        "a barrier": "Barriers are where threads wait for each other. The number of rounds does not change that.",
        "a second kernel": "The last round of a loop does not have to be full.",
    },
    because="The last round has too few elements for all threads. With 128 threads, the condition is proved to always hold.",
)
seventh

# %%
score(first, second, third, fourth, fifth, sixth, seventh)

# %% [markdown]
# ## Where to go next
#
# - [docs/scheduling_by_hand.md](../docs/scheduling_by_hand.md) lists all transforms, and how many automatic kernels are loops and how
#   many are templates.
# - `fd.sched.steps()` shows each transform with the state before and after it, and `fd.sched.undo()` undoes the last one.
# - [docs/running.md](../docs/running.md#keep-what-was-found) says where kept parameters are used, and where not.
# - Is the kernel any good? [08_profile_and_compare](08_profile_and_compare.ipynb).

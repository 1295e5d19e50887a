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
# # From a segment to a kernel: the schedule, step by step
#
# After this lesson, you can read the schedule of a generated kernel, find each of its steps in the source, change one and run the
# result. The lesson takes about 20 minutes.
#
# The picture shows softmax over rows: seven ops in one box, a segment. A box is not a program. Between this picture and something that
# a GPU runs, somebody decides how many threads work on a row, what each thread keeps, and when threads wait for each other. Who
# decides, where can you see it, and can you decide something else?

# %%
import re

import numpy as np

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.teaching import play, read_questions, score

predict = read_questions("questions/07_from_segment_to_kernel.toml").predict

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
question.show(nests[0])
own_loops = len(re.findall("^for ", nests[0], re.MULTILINE))
first = question.reveal(own_loops)
first

# %% [markdown]
# The first splits change only the loops of the result, `T7`, which is the last nest of the text. Watch its row of 1024 elements:

# %% jupyter={"source_hidden": true}
# Prints the loops of the last nest after each split.
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
    question.show(schedule.transforms[i], last_loops(nests[i + 1]), sep="\n", end="\n\n")
question.show("after the last step:", nests[-1], sep="\n\n")
params = segment.params("cuda")[0].values
per_thread = 1024 // params["threads"][0]
second = question.reveal(per_thread)
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
# `fl.explore(fd)`, the view *Schedule* in the tab *Code* shows the steps of this lesson, with buttons that change them.
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
question.show(narrower.segments[0].schedule)
source = narrower.segments[0].source("cuda")
kept = int(re.search(r"T0_row = cuda.local.array\((\d+)", source).group(1))
steps = int(source.split("shfl_xor_sync")[0].rsplit("for step in range(", 1)[1].split(")")[0])
third = question.reveal({"elements": kept, "steps of shuffles": steps})
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
# by loop. You can also leave one out, or write all of them yourself, as in [lesson 22](22_parameters_of_kernels.ipynb).
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

# %%
score(first, second, third)

# %% [markdown]
# ## Where to go next
#
# - Who chose the numbers, and are there better ones? [22_parameters_of_kernels](22_parameters_of_kernels.ipynb).
# - [docs/scheduling_by_hand.md](../docs/scheduling_by_hand.md) lists all transforms, and how many automatic kernels are loops and how
#   many are templates.
# - `fd.sched.steps()` shows each transform with the state before and after it, and `fd.sched.undo()` undoes the last one.
# - Is the kernel any good? [08_profile_and_compare](08_profile_and_compare.ipynb).
#
# **Words:** [Definition](../docs/glossary.md#definition "The record of the ops of a fusion, made by calls in a `with FusionDefinition()` block.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Reduction](../docs/glossary.md#reduction "An op that combines the elements along an axis, such as a sum or a maximum.") · [Register](../docs/glossary.md#register "Storage of a single thread inside the processor, the fastest there is.") · [Schedule](../docs/glossary.md#schedule "The list of transforms that turns a segment into the loops of a kernel.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.")

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
# result. The lesson takes about 25 minutes.
#
# The picture below the next cell shows softmax over rows: seven ops in one box, a segment. To make a GPU program of the box, nvFuser has
# to decide how many threads work on a row, what each thread keeps in its registers, and when threads wait for each other. A
# **thread** is one of many thousand instances of the program, which run at the same time; a **block** is a group of threads that can
# exchange data. Where can you see these decisions, and can you change them?

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
# The scheduler that accepted the segment, whose name is in the box, writes a list of transforms: the **schedule**. A schedule prints as
# the Python code that you would write by hand. In this code, `fd` is a definition of the segment, and each line changes the loops of
# its tensors. The next cell prints the schedule of the kernel that runs:

# %%
schedule = segment.schedule
schedule

# %% [markdown]
# The transforms are:
#
# - `cache_after` and `cache_before` make copies of the input and of the result, which each thread keeps in registers.
# - `split` divides one loop into two nested loops. The comment names the parameter of the kernel that is the factor.
# - `transform_like` gives all other tensors the same loops as the result.
# - `parallelize` distributes a loop over blocks, over threads, or over the elements of one memory access. `parallelize_like` does the
#   same for all other tensors.
# - `inline_most` computes each tensor inside the loops of the ops that read it, as deep as possible.
#
# The comments at the top give the reasons for the numbers.
#
# ## 2. The loops, step by step
#
# `schedule.nests()` returns the nested loops as text: before the first step, and after each step. Before the first step, each op has its own
# loops over its whole tensor.
#
# **Predict:** how many loops over rows does the fusion have in total before the first transform?

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
# The first splits change only the loops of the result `T7`, which are at the end of the text. The next cell prints these loops after each
# split. Watch the loop over the 1024 elements of a row:

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
# The loop over a row has become several nested loops, and the product of their extents is the length of the row. Later, `parallelize`
# turns one of these loops into threads, which run at the same time, and another loop into the elements of a single memory access.
#
# **Predict:** how many elements of a row does each thread handle? The comments of the splits say how many threads share a row.

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
# Below the answer, the text after the last step shows that all tensors share the two outer loops, over blocks and over the rows of a
# block. Inside, the kernel walks along the row several times, because the maximum has to be complete before the first exponential,
# and the sum before the first quotient. Still, it reads the input from memory only once: `T8` is the copy that each thread keeps.
#
# ## 3. The same list as source
#
# The next cell prints the source of the GPU kernel, for which no GPU is necessary. Find the steps of the schedule in it:
#
# - The loops on `grid_x`, `block_y` and `block_x` are not loops any more. They have become the numbers `blockIdx`, `line` and `lane`, which
#   each thread reads to find its part of the work.
# - The `unroll` loop is `for u in ...`, and the copy `T8` is the array `T0_row`.
# - `vectorize` has become `load_vector(T0, ..., 4)`, which loads four adjacent elements, 16 bytes, in one access.
# - A reduction over a loop on threads has become a series of **shuffles**, `shfl_xor_sync`: in each shuffle, the threads of a warp
#   (32 threads that run together) exchange their partial results.

# %%
print(segment.source("cuda"))

# %% [markdown]
# The explorer, `fl.explore(fd)`, links each line of this source to its op. Its view *Schedule* in the tab *Code* shows the steps of this
# lesson, with buttons that change them.
#
# ## 4. Change one
#
# The text of a schedule determines the kernel. You can change a number in the text and pass it to `with_schedule`, and get a plan whose
# kernel has this number. In the text, the factor with the comment *threads of a block, in x* is the number of threads that share a row.
# The next cell changes it from 32 to 16:

# %%
text = str(schedule)
narrower = segment.plan.with_schedule(0, text.replace("factor=32", "factor=16"))
print("the text passed back unchanged is the same plan:", segment.plan.with_schedule(0, text).hash == segment.plan.hash)

# %% [markdown]
# **Predict:** if 16 threads share the same row, how many elements does each thread keep? And how many shuffles do 16 threads need to
# combine their results, if 32 threads need five?

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
# Below the answer is the changed schedule. Compare it with the first one: no line says how many elements a thread keeps, because this number
# follows from the others. `plan.with_params` makes the same change by the name of the parameter. No legal number changes the
# results, and an illegal number is refused with a reason:

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
# The scheduler itself never writes a schedule with 48 threads for a row. Then fuser_lab generates the kernel loop by loop from the steps. You
# can also remove steps, or write all of them yourself, as in [lesson 22](22_parameters_of_kernels.ipynb).
#
# ## 5. Run it, thread by thread
#
# You can also run a kernel without a GPU. fuser_lab has an evaluator in which each variable of a thread is a NumPy array with one entry per
# thread, so that all threads execute a statement in the same step. The evaluator is slow and strict: it raises an error if a thread
# reads outside a tensor, or reads an element that another thread may not have written yet.
#
# Press *Play*, or drag the slider. The current line is marked, and so is each element that it reads or writes. Choose a thread to see
# which elements it handles. The rows are shorter here.

# %%
play(segment, "cuda")

# %% [markdown]
# The next cell runs the changed kernel in this evaluator, and compares its results with float64:

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
# - How does the scheduler choose the numbers, and are other numbers better? [22_parameters_of_kernels](22_parameters_of_kernels.ipynb).
# - [docs/scheduling_by_hand.md](../docs/scheduling_by_hand.md) lists all transforms.
# - `fd.sched.steps()` shows each transform with the state before and after it, and `fd.sched.undo()` undoes the last one.
# - How fast is the kernel? [08_profile_and_compare](08_profile_and_compare.ipynb).
#
# **Words:** [Decision log](../docs/glossary.md#decision-log "The record of each attempt of the segmenter: the ops, the scheduler's answer and its reason.") · [Definition](../docs/glossary.md#definition "The record of the ops of a fusion, made by calls in a `with FusionDefinition()` block.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Reduction](../docs/glossary.md#reduction "An op that combines the elements along an axis, such as a sum or a maximum.") · [Register](../docs/glossary.md#register "Storage of a single thread inside the processor, the fastest there is.") · [Schedule](../docs/glossary.md#schedule "The list of transforms that turns a segment into the loops of a kernel.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.")

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
# # Working on an issue: from a script to a repair
#
# After this lesson, you can take the script of an issue, find the op that splits the fusion, and repair it without a GPU. The lesson takes about 25 minutes.
#
# Somebody opens an issue: GroupNorm with SiLU, from a diffusion model, is cut, and a tensor of a gigabyte passes through memory.
# A script is attached. You have no GPU of that kind, and no time to run a stranger's script. Why does nvFuser not make one kernel
# of this fusion, and what can you find out about it?
#
# The case is real (NVIDIA/Fuser issue #2375); the text below is rewritten.

# %%
import numpy as np

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/09_replay_an_issue.toml").predict

ISSUE = """
### GroupNorm + SiLU is segmented

We expected one kernel for the normalization and everything around it. Repro:

```python
import torch
from nvfuser import FusionDefinition, DataType

def nvfuser_fusion_id0(fd : FusionDefinition) -> None :
    T0 = fd.define_tensor(shape=[-1, -1, -1, -1], contiguity=[True, True, True, True], dtype=DataType.Half, is_cpu=False)
    T1 = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.Float, is_cpu=False)
    T2 = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.Float, is_cpu=False)
    T3 = fd.ops.cast(T0, dtype=DataType.Float)
    T4 = fd.ops.reshape(T3, new_shape=[32, 32, 4, 256, 256])
    T5, T6 = fd.ops.var_mean(T4, dims=[2, 3, 4], correction=0, keepdim=True)
    T7 = fd.ops.sub(T4, T6)
    T8 = fd.ops.rsqrt(fd.ops.add(T5, 1e-05))
    T9 = fd.ops.mul(T7, T8)
    T10 = fd.ops.reshape(T9, new_shape=[32, 128, 256, 256])
    T11 = fd.ops.broadcast_in_dim(T1, shape=[1, 128, 1, 1], broadcast_dims=[1])
    T12 = fd.ops.broadcast_in_dim(T2, shape=[1, 128, 1, 1], broadcast_dims=[1])
    T13 = fd.ops.add(fd.ops.mul(T10, T11), T12)
    T14 = fd.ops.mul(T13, fd.ops.sigmoid(T13))
    fd.add_output(fd.ops.cast(T14, dtype=DataType.Half))

with FusionDefinition() as fd:
    nvfuser_fusion_id0(fd)

inputs = [
    torch.testing.make_tensor((32, 128, 256, 256), dtype=torch.float16, device='cuda:0'),
    torch.testing.make_tensor((128,), dtype=torch.float32, device='cuda:0'),
    torch.testing.make_tensor((128,), dtype=torch.float32, device='cuda:0'),
]
fd.execute(inputs)
```
"""

fd, inputs = fl.load_repro(ISSUE)
plan = fl.segment(fd, inputs)
plan

# %% [markdown]
# `fl.load_repro` takes the whole text. The function finds the script between its fences and **reads** it. It neither executes the
# script nor allocates its tensor of half a gigabyte. The inputs are descriptions.
#
# Anything that it does not understand is named, with its line, so that it never silently misreads a script:

# %%
print(*inputs, sep="\n")

try:
    fl.load_repro(ISSUE.replace("fd.execute(inputs)", "import os; os.remove('precious')\nfd.execute(inputs)"))
    print("read; and the file is still there, since nothing was executed")
except fl.errors.DefinitionError as error:
    print(error)

try:
    fl.load_repro(ISSUE.replace("fd.ops.sub(T4, T6)", "fd.ops.subtract(T4, T6)"))
except fl.FuserLabError as error:
    print(error)

# %% [markdown]
# ## 1. Which scheduler refuses?
#
# **Predict:** the schedulers were asked whether both segments could be one. Which kind of op does the decisive refusal mention?

# %%
question = predict("The op in the way", None, choices=("a cast", "a reshape", "a sigmoid", "a broadcast"))
question

# %%
(between,) = plan.boundaries()
persistent = next(v for v in between.verdicts if v.scheduler.value == "inner_persistent")
question.show(persistent.text, end="\n\n")
question.show(between)
first = question.reveal("a reshape" if "reshape" in persistent.text else persistent.code)
first

# %% [markdown]
# ## 2. Would something else help?
#
# Before rewriting anything, check whether the cause is only nvFuser's order of merging, or a limit of the device. Other strategies and
# devices are one argument away.
#
# **Predict:** what is the fewest number of segments over all of these?

# %%
question = predict("The fewest segments", None)
question

# %%
counts = {s: len(fl.segment(fd, inputs, strategy=s).segments) for s in ("bottom_up", "top_down", "saving", "optimal")}
counts |= {target: len(fl.segment(fd, inputs, target=target).segments) for target in ("A100", "H100", "B200")}
question.show(counts)
question.show(plan.certificate(states=20_000))
second = question.reveal(min(counts.values()))
second

# %% [markdown]
# Is that proved? The certificate below the answer says what every plan must pay, and for what. Read its first line: it says how much
# any other cut of this definition could gain at most.
#
# ## 3. What is essential?
#
# People read issues that are short. `fl.shrink` removes everything that is not needed, and makes a plan after each step. `keep` says
# what has to remain: here a reason, by its code ([docs/reasons.md](../docs/reasons.md) lists them).
#
# **Predict:** how many ops are left? A broadcast counts as one; so does a call that returns both variance and mean.

# %%
question = predict("Ops left", None)
question

# %%
small = fl.shrink(fd, inputs, keep="reshape_mixes")
question.show(small.plan)
question.show(small.script)
third = question.reveal(small.ops[1], facts={"ops": small.ops[0], "tried": small.tried})
third

# %% [markdown]
# What remains is a normalization, followed by a reshape that merges a reduced axis with one that was kept. The casts, the weights and
# SiLU play no part. You can paste the script below the picture into the issue, where its few lines show what the long script hid.
#
# `keep=` also takes two tensors that must stay separate, as in `("T14", "T15")`, or any function of a plan. Without it, `fl.shrink` keeps
# the boundary that the most bytes cross.
#
# ## 4. The repair
#
# The reshape back to channels is *in the middle*, because weight and bias are given per channel. Reshape those two small tensors to
# groups instead, and the large one can stay in groups to the end.
#
# **Predict:** how many segments are there now? And how many times as many bytes did the plan of the issue move?

# %%
question = predict("After the repair", {"segments": None, "bytes before / after": None})
question

# %%
def group_norm_silu(fd, n=32, groups=32, each=4, side=256):
    """Define GroupNorm and SiLU with the large reshape at the end."""
    x = fd.define_tensor(shape=[-1] * 4, contiguity=True, dtype=DataType.Half)
    weight, bias = (fd.define_tensor(shape=[-1], contiguity=True, dtype=DataType.Float) for _ in range(2))
    grouped = fd.ops.reshape(fd.ops.cast(x, dtype=DataType.Float), new_shape=[n, groups, each, side, side])
    var, mean = fd.ops.var_mean(grouped, dims=[2, 3, 4], correction=0, keepdim=True)
    normal = fd.ops.mul(fd.ops.sub(grouped, mean), fd.ops.rsqrt(fd.ops.add(var, 1e-5)))
    by_group = (
        fd.ops.broadcast_in_dim(
            fd.ops.reshape(t, new_shape=[groups, each]), shape=[1, groups, each, 1, 1], broadcast_dims=[1, 2],
        )
        for t in (weight, bias)
    )
    z = fd.ops.add(fd.ops.mul(normal, next(by_group)), next(by_group))
    y = fd.ops.cast(fd.ops.mul(z, fd.ops.sigmoid(z)), dtype=DataType.Half)
    fd.add_output(fd.ops.reshape(y, new_shape=[n, groups * each, side, side]))


def moved(plan):
    return sum(segment.bytes for segment in plan.segments if segment.scheduler.value != "expr_eval")


with FusionDefinition() as repaired_fd:
    group_norm_silu(repaired_fd)
repaired = fl.segment(repaired_fd, inputs, name="repaired")
question.show(repaired)
fourth = question.reveal(
    {"segments": len(repaired.segments), "bytes before / after": moved(plan) / moved(repaired)},
    within=0.1,
)
fourth

# %% [markdown]
# ## 5. Is it the same function?
#
# A repair must not change the result. Run both definitions at small sizes, and compare them with NumPy in float64:

# %% jupyter={"source_hidden": true}
# Runs both definitions at small sizes, and compares them with NumPy in float64.
SIZES = {"[32, 32, 4, 256, 256]": "[2, 2, 4, 8, 8]", "[32, 128, 256, 256]": "[2, 8, 8, 8]", "shape=[1, 128, 1, 1]": "shape=[1, 8, 1, 1]"}
text = ISSUE.replace("(32, 128, 256, 256)", "(2, 8, 8, 8)").replace("(128,)", "(8,)")
for large, tiny in SIZES.items():
    text = text.replace(large, tiny)
tiny_fd, tiny_inputs = fl.load_repro(text)
with FusionDefinition() as tiny_repaired:
    group_norm_silu(tiny_repaired, 2, 2, 4, 8)

arrays = [spec.materialize() for spec in tiny_inputs]
results = [definition.execute(arrays)[0].astype(np.float64) for definition in (tiny_fd, tiny_repaired)]

x, weight, bias = (a.astype(np.float64) for a in arrays)
grouped = x.reshape(2, 2, 4, 8, 8)
normal = (grouped - grouped.mean((2, 3, 4), keepdims=True)) / np.sqrt(grouped.var((2, 3, 4), keepdims=True) + 1e-5)
z = normal.reshape(x.shape) * weight[:, None, None] + bias[:, None, None]
exact = z / (1 + np.exp(-z))
print("largest differences from float64:", *(f"{abs(result - exact).max():.1e}" for result in results))
print(f"one step of Half at the largest result: {np.spacing(np.float16(abs(exact).max())):.1e}")

# %% [markdown]
# ## Your turn
#
# In a second issue, the loss of a classifier picks the entry of the right class from each row of a softmax. The author expected the
# lookup (`take_along_axis`) to be in the kernel of the softmax (NVIDIA/Fuser #250). Which reason keeps it out? Give its code.
# `fl.shrink(...)`, `plan.boundaries()` and the explorer all show it.

# %%
with FusionDefinition() as loss:
    logits = loss.define_tensor(shape=[128, 371], contiguity=True, dtype=DataType.Float)
    labels = loss.define_tensor(shape=[128, 1], contiguity=[True, None], dtype=DataType.Int)
    e = loss.ops.exp(loss.ops.sub(logits, loss.ops.max(logits, dims=[1], keepdim=True)))
    probability = loss.ops.truediv(e, loss.ops.sum(e, dims=[1], keepdim=True))
    loss.add_output(loss.ops.take_along_axis(loss.ops.neg(loss.ops.log(probability)), labels, dim=1))

loss_plan = fl.segment(loss)
question = predict("The reason's code", None)  # a text; docs/reasons.md lists them
question

# %%
verdicts = loss_plan.boundaries()[0].verdicts
said = next(v for v in verdicts if v.scheduler.value == "inner_persistent")
fifth = question.reveal(said.code, facts={"reason": f"{said.text[0].upper()}{said.text[1:]}"})
fifth

# %%
score(first, second, third, fourth, fifth)

# %% [markdown]
# ## Where to go next
#
# - `plan.to_python()` and `repr(fd)` write scripts that `load_repro` reads.
# - `python -m fuser_lab explain FILE` prints the same text on the command line. `python -m fuser_lab report FILE -o out.html`
#   writes a single HTML file, which you can attach to an issue.
# - [docs/repro_scripts.md](../docs/repro_scripts.md): what is read from a script, and what is refused.
# - More real issues: [11_gallery_of_real_issues](11_gallery_of_real_issues.ipynb).
#
# **Words:** [Boundary](../docs/glossary.md#boundary "A place between two segments, with the tensors that cross it and the reason for it.") · [Broadcast](../docs/glossary.md#broadcast "An op that gives a tensor one more axis, along which it repeats its elements; it moves no data.") · [Certificate](../docs/glossary.md#certificate "A proof of how far a plan is at most from the cheapest one, as a list of reasons that add up to a bound.") · [Crossing tensor](../docs/glossary.md#crossing-tensor "A tensor that one segment writes to memory and another one reads.") · [Definition](../docs/glossary.md#definition "The record of the ops of a fusion, made by calls in a `with FusionDefinition()` block.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.") · [Strategy](../docs/glossary.md#strategy "The method that cuts a fusion, such as bottom-up, top-down or optimal.")

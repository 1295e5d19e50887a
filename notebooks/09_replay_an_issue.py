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
# # "Why is this not one kernel?"
#
# Somebody opens an issue: GroupNorm with SiLU, from a diffusion model, is cut, and a tensor of a gigabyte goes through memory.
# A script is attached. You have no GPU of that kind, and not the time to run a stranger's script. What can you find out?
#
# The case is real (NVIDIA/Fuser issue #2375); the text below is rewritten.

# %%
import numpy as np

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.teaching import predict, score

ISSUE = """
### GroupNorm + SiLU is segmented

The reshapes to groups and back seem to be in the way. Repro:

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
# `fl.load_repro` takes the whole text. It finds the script in its fence and **reads** it; nothing is executed and nothing of
# half a gigabyte is allocated. The inputs are descriptions:

# %%
inputs

# %% [markdown]
# What is not read is named, with its line, so that no repro is silently read wrong:

# %%
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
# ## 1. Who says no?
#
# **Predict:** the schedulers were asked whether both segments could be one. Which kind of op does the refusal that counts
# speak about?

# %%
question = predict("The op in the way", None, choices=("a cast", "a reshape", "a sigmoid", "a broadcast"))
question

# %%
(between,) = plan.boundaries()
persistent = next(v for v in between.verdicts if v.scheduler.value == "inner_persistent")
print(persistent.text, end="\n\n")
elementwise = "It is computed element by element, and goes wherever its neighbours go."
first = question.reveal(
    "a reshape" if "reshape" in persistent.text else persistent.code, hints={"a cast": elementwise, "a sigmoid": elementwise},
    because="The scheduler that keeps rows is the one that is meant for a normalization, so its sentence is the one to read.",
)
first

# %%
between

# %% [markdown]
# ## 2. Would something else help?
#
# Before anything is rewritten: is it only nvFuser's order of merging, or a device's limit? Other strategies and devices are
# an argument away.
#
# **Predict:** the fewest segments over all of these?

# %%
question = predict("The fewest segments", None)
question

# %%
counts = {s: len(fl.segment(fd, inputs, strategy=s).segments) for s in ("bottom_up", "top_down", "saving", "optimal")}
counts |= {target: len(fl.segment(fd, inputs, target=target).segments) for target in ("A100", "H100", "B200")}
print(counts)
second = question.reveal(
    min(counts.values()), hints={1: "Then some scheduler would have to take the whole, and each was asked."},
    because="No scheduler takes the whole, so no strategy can; and no limit of a device is the cause.",
)
second

# %% [markdown]
# Is that proved? A certificate says what every plan must pay, and for what. Read its first line: that much, at most, could any
# other cut of this definition gain.

# %%
plan.certificate(states=20_000)

# %% [markdown]
# ## 3. What is essential?
#
# Issues are read when they are short. `fl.shrink` removes everything that is not needed, making a plan after each step. What
# has to stay is said with `keep`: here a reason, by its code ([docs/reasons.md](../docs/reasons.md) lists them).
#
# **Predict:** how many ops are left? A broadcast counts as one; so does a call that gives both variance and mean.

# %%
question = predict("Ops left", None)
question

# %%
small = fl.shrink(fd, inputs, keep="reshape_mixes")
third = question.reveal(small.ops[1], because=f"Of {small.ops[0]}; {small.tried} plans were tried.")
third

# %%
small.plan

# %% [markdown]
# A normalization, and behind it a reshape that merges an axis which was reduced with one that was kept. The casts, the
# weights and SiLU are innocent. The script can be pasted into the issue, where it says in a few lines what the long one hid:

# %%
print(small.script)

# %% [markdown]
# `keep=` also takes two tensors that must stay apart, as `("T14", "T15")`, or any function of a plan. Left out, it is the place
# where the most bytes cross.
#
# ## 4. The repair
#
# The reshape back to channels stands *in the middle*, because weight and bias come by channel. Reshape those two small
# tensors to groups instead, and the large one can stay in groups to the end.
#
# **Predict:** how many segments now? And how many times as many bytes did the plan of the issue move?

# %%
question = predict("After the repair", {"segments": None, "bytes before / after": None})
question

# %%


def group_norm_silu(fd, n=32, groups=32, each=4, side=256):
    """Define GroupNorm and SiLU with the reshape at the edge."""
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
fourth = question.reveal(
    {"segments": len(repaired.segments), "bytes before / after": moved(plan) / moved(repaired)}, within=0.1,
    hints={"segments": {1: "Nearly: the reshape at the end is a segment of its own, which launches nothing."}},
    because="What remains is one kernel; a reshape of a result is a view, which costs nothing.",
)
fourth

# %%
repaired

# %% [markdown]
# ## 5. Is it the same function?
#
# A repair that changes the result is none. Small sizes, both definitions, and NumPy in float64 as the judge:

# %%
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
print("largest differences to float64:", *(f"{abs(result - exact).max():.1e}" for result in results))
print(f"one step of Half at the largest result: {np.spacing(np.float16(abs(exact).max())):.1e}")

# %% [markdown]
# ## Your turn
#
# A second issue: the loss of a classifier picks, from each row of a softmax, the entry of the right class. The author expected
# the picking (`take_along_axis`) in the kernel of the softmax (NVIDIA/Fuser #250). Which reason keeps it out, by its code?
# `fl.shrink(...)` and `plan.boundaries()` tell; so does the explorer.

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
fifth = question.reveal(
    said.code, hints={"reshape_mixes": "That was the first issue. There is no reshape here."},
    because=f"{said.text[0].upper()}{said.text[1:]}. docs/reasons.md says what helps; lesson 11 tries it.",
)
fifth

# %%
score(first, second, third, fourth, fifth)

# %% [markdown]
# ## Where to go on
#
# - `plan.to_python()` and `repr(fd)` write what `load_repro` reads.
# - `python -m fuser_lab explain FILE` says the same on the command line; `python -m fuser_lab report FILE -o out.html` makes one
#   HTML file of a script, to be attached to an issue.
# - [docs/repro_scripts.md](../docs/repro_scripts.md): what is read of a script, and what is refused.
# - More real issues: [11_gallery_of_real_issues](11_gallery_of_real_issues.ipynb).

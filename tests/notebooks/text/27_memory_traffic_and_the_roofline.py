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
# # Memory traffic and the roofline: what bounds a kernel
#
# After this lesson, you can say whether memory or arithmetic bounds a kernel, and how much work fits between a load and a store for free. The lesson takes about 15 minutes.
#
# [Lesson 01](01_what_is_a_fusion.ipynb) counts the bytes that fusing saves. But a kernel also computes. From which amount of arithmetic on
# does the number of bytes no longer decide the time? The next cell draws the fusion of lesson 01, bias and SiLU, with one kernel per
# op.

# %%
from IPython.display import SVG

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.report import plots
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/27_memory_traffic_and_the_roofline.toml").predict

with FusionDefinition() as fd:
    x = fd.define_tensor(shape=[4096, 4096], contiguity=True, dtype=DataType.Float)
    bias = fd.define_tensor(shape=[4096], contiguity=True, dtype=DataType.Float)
    z = fd.ops.add(x, fd.ops.broadcast(bias, is_broadcast_dim=[True, False]))
    fd.add_output(fd.ops.mul(z, fd.ops.sigmoid(z)))

one_by_one = fl.segment(fd, strategy="unfused", name="one by one")
fused = fl.segment(fd, name="fused")
one_by_one

# %% [markdown]
# ## 1. Operations per byte
#
# The **intensity** of a kernel is the number of its arithmetic operations, divided by the number of bytes that it reads and writes. The
# next cell prints both numbers for each kernel of two plans: one kernel per op, and a single fused kernel.

# %%
for plan in (one_by_one, fused):
    for load in plots.loads(plan):
        if load.bytes:  # broadcast only says how to read the bias
            print(f"{plan.name:12} {load.operations / 1e6:6.1f} million operations {load.bytes / 1e6:6.1f} MB")

# %% [markdown]
# **Predict:** divide the intensity of the fused kernel by the intensity of the three kernels together. What is the ratio? (Both plans
# perform the same operations.)

# %%
question = predict("Intensity of the fused kernel / intensity of the three kernels", None)
question


# %%
def intensity(plan):
    loads = plots.loads(plan)
    return sum(load.operations for load in loads) / sum(load.bytes for load in loads)


question.show(f"one by one {intensity(one_by_one):.3f}, fused {intensity(fused):.3f} operations per byte")
first = question.reveal(intensity(fused) / intensity(one_by_one), within=0.02)
first

# %% [markdown]
# ## 2. The roofline
#
# A device can move a certain number of bytes per second, and perform a certain number of operations per second. The **roofline** is a plot
# of both limits against the intensity. Under the slope on the left, a kernel waits for memory. Under the flat part on the right, a
# kernel waits for arithmetic. The two parts meet at the *ridge*:

# %%
device = fused.oracle.device
print(f"{device.name}: {device.bandwidth:,.0f} GB/s, {device.fp32:.0f} T operations of Float per second")
SVG(plots.roofline_svg([*plots.loads(one_by_one), *plots.loads(fused)], device))

# %% [markdown]
# All these kernels are far to the left of the ridge, so they could do more arithmetic in the same time.
#
# **Predict:** a kernel loads x, applies tanh to it several times in a row, and stores the result. How many times can it apply tanh and
# take at most a tenth longer than with a single tanh?

# %%
question = predict("Most tanh in a row for less than a tenth more time", None, choices=(1, 4, 16, 64))
question


# %%
def chain(count, dtype=DataType.Float):
    """Return a plan that loads x, applies tanh so many times, and stores the result."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[4096, 4096], contiguity=True, dtype=dtype)
        y = fd.ops.cast(x, DataType.Float)
        for _ in range(count):
            y = fd.ops.tanh(y)
        fd.add_output(fd.ops.cast(y, dtype))
    return fl.segment(fd, name=f"{count} tanh, {dtype.name}")


def seconds(count, dtype=DataType.Float):
    return chain(count, dtype).predicted_time().seconds


def most(dtype):
    return max(count for count in (1, 4, 16, 64) if seconds(count, dtype) < 1.1 * seconds(1, dtype))


question.show("\n".join(f"{count:3} tanh {1e6 * seconds(count):6.1f} us" for count in (1, 4, 16, 64)))
second = question.reveal(most(DataType.Float))
second

# %% [markdown]
# ## 3. Narrower tensors
#
# Now x and the result are BFloat16, which has two bytes per element; Float has four. Both kernels compute in Float.
#
# **Predict:** with 64 tanh in a row, divide the time of the kernel with Float tensors by the time of the kernel with BFloat16 tensors. Which
# ratio is nearest?

# %%
question = predict("64 tanh: time with Float tensors over time with BFloat16", None, choices=(1, 1.5, 2))
question

# %%
ratios = {count: seconds(count) / seconds(count, DataType.BFloat16) for count in (1, 64)}
question.show(f"1 tanh {ratios[1]:.2f}, 64 tanh {ratios[64]:.2f}")
third = question.reveal(min((1, 1.5, 2), key=lambda choice: abs(choice - ratios[64])), facts={"one": ratios[1]})
third

# %% [markdown]
# ## 4. How far from the bound?
#
# `time_bound` compares the time of a plan with a bound: no plan of the fusion takes less time than to read every input once, to write every
# output once, and to perform every operation once.

# %%
print(one_by_one.time_bound())

# %%
print(fused.time_bound())

# %%
score(first, second, third)

# %% [markdown]
# ## Where to go next
#
# * [Cost models: what a count of bytes misses](06_cost_models.ipynb): sectors, caches, and when fewer bytes are slower.
# * [The roofline, tuning, and where the time of a call goes](23_roofline_and_tuning.ipynb): the roofline of a measured kernel.
# * [The time of a kernel](../docs/cost_model.md): how times are predicted, and how well predictions agree with measurements.
#
# **Words:** [Bound](../docs/glossary.md#bound "A cost that every plan of a fusion has to pay, however it is cut.") · [Cost model](../docs/glossary.md#cost-model "An estimate of the time of a plan that is cheap to compute, such as a count of bytes and launches.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Roofline](../docs/glossary.md#roofline "A plot of two limits of a device: operations per second against operations per byte of memory traffic.")

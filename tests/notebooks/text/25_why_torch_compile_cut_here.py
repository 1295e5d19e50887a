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
# # Kernels of torch.compile, and why it cut here
#
# After this lesson, you can list the kernels that torch.compile makes of a function, ask why two of them are separate, and try another cut. The lesson takes about 15 minutes.
#
# `fl.from_inductor` compiles a function as `torch.compile` does, and records the decisions of Inductor, the compiler of `torch.compile`. The
# next cell shows the kernels of a softmax of rows. How many kernels does a softmax of columns have?
#
# This lesson needs torch, `pip install torch`, and a C++ compiler, which Inductor calls.

# %%
import torch

import fuser_lab as fl
from fuser_lab.errors import IllegalEdit
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/25_why_torch_compile_cut_here.toml").predict

x = torch.randn(1024, 512)
rows = fl.from_inductor(lambda x: torch.softmax(x, -1), x).plans[0]
rows

# %% [markdown]
# ## 1. Kernels
#
# `plans` contains one plan for each graph that Inductor compiles, and the `segments` of a plan are its kernels in the order of their launches. For
# each kernel, you can print its ops, its buffers, its loops and its source.

# %%
for kernel in rows.segments:
    print(kernel)
    print("\n".join(kernel.source().splitlines()[:8]))

# %% [markdown]
# **Predict:** how many kernels does Inductor make of the softmax of columns on a CPU?

# %%
question = predict("Kernels for columns", None)
question

# %%
columns = fl.from_inductor(lambda x: torch.softmax(x, 0), x).plans[0]
question.show(columns)
first = question.reveal(len(columns.segments), facts={"loops": rows.segments[0].loops})
first

# %% [markdown]
# ## 2. Why are two of them separate?
#
# `why` says why two kernels are separate. Inductor's own log has short texts, and no line for some pairs. If Inductor gives no reason, fuser_lab
# derives a reason from the kernels; the mark `[inductor]` or `[fuser_lab]` names the source of the reason.

# %%
print(columns.why("amax", "exp"))
print(columns.why("exp", "div"))

# %% [markdown]
# ## 3. Glue
#
# `glue` compiles the function again with two kernels fused, if Inductor can write such a kernel. Inductor leaves some pairs separate only because
# fusing them would save no bytes; `glue` overrides this choice. For other pairs, Inductor has no code.
#
# **Predict:** can Inductor write a single kernel for the maximum and the exponential?

# %%
question = predict("One kernel for the maximum and the exponential?", None, choices=("yes", "no"))
question


# %%
def glued(plan, a, b):
    try:
        return plan.glue(a, b)
    except IllegalEdit as error:
        return error


answer = glued(columns, 0, 1)
question.show(answer)
second = question.reveal("no" if isinstance(answer, IllegalEdit) else "yes")
second

# %% [markdown]
# ## 4. Cut
#
# A cut is always possible. The values of the edited plan are compared with the values of Inductor's plan, and both plans are timed.

# %%
edited = rows.cut(rows.segments[0].writes[0])
print(edited)

# %% [markdown]
# If an edit saves time, use it in your program: `to_code` prints lines of Python that make `torch.compile` follow the edited plan. Paste them
# before the first call of the compiled function.

# %%
print("\n".join(edited.to_code().splitlines()[:12]))

# %% [markdown]
# ## 5. Beside other plans
#
# `fl.compare` compares plans of the same graph: their bytes, their predicted times, and the ops that the plans group differently. The name of a
# strategy adds a plan of fuser_lab: `"bottom_up"` is cut by nvFuser's rules, and `"optimal"` moves the fewest bytes. With `measure=True`, a
# call of the function is also timed with each plan.
#
# **Predict:** for the softmax of columns, divide the bytes of Inductor's plan by the bytes of the optimal plan. What is the ratio?

# %%
question = predict("Bytes of Inductor's plan / bytes of the optimal plan", None)
question

# %%
comparison = fl.compare([columns, "bottom_up", "optimal"])
question.show(comparison.table())
inductor, _, optimal = comparison.figures
third = question.reveal(inductor.bytes / optimal.bytes, within=0.1, facts={"crossing": inductor.bytes_crossing})
third

# %%
score(first, second, third)

# %% [markdown]
# ## Where to go next
#
# * [Plans of torch.compile and XLA](../docs/inductor.md): all reasons, files that open without torch, and `fl.from_xla`.
# * `fl.explore(columns)` shows the kernels. Click a kernel to see its source, its neighbours, and where it can be cut.
# * [PyTorch models](17_bytes_of_a_model.ipynb): the cuts of a model that move the most bytes, by nvFuser's rules.
#
# **Words:** [Decision log](../docs/glossary.md#decision-log "The record of each attempt of the segmenter: the ops, the scheduler's answer and its reason.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Launch](../docs/glossary.md#launch "The start of a kernel; it takes a few microseconds, whatever the kernel does.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Rule](../docs/glossary.md#rule "A condition of a scheduler; a candidate that breaks it is refused.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.") · [Strategy](../docs/glossary.md#strategy "The method that cuts a fusion, such as bottom-up, top-down or optimal.")

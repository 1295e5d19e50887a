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
# `fl.from_inductor` compiles a function as `torch.compile` does and records what its compiler, Inductor, decides. The picture shows the
# softmax of rows. How many kernels has the softmax of columns?
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
# `plans` has one plan for each graph that Inductor schedules, and `segments` are its kernels in order of launch. A kernel knows its ops, its
# buffers, its loops, and its source.

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
# Inductor's log has no line for some pairs, and its texts are short. `why` answers for each two kernels, and says who states the reason:
# Inductor, or `fuser_lab` where Inductor gives none.

# %%
print(columns.why("amax", "exp"))
print(columns.why("exp", "div"))

# %% [markdown]
# ## 3. Glue
#
# `glue` compiles the function again with two kernels fused, if Inductor can do that. Some pairs are only declined, because fusing them would
# save no bytes; such a choice can be overridden. Others are impossible for the code that Inductor writes.
#
# **Predict:** does Inductor emit one kernel of the first two?

# %%
question = predict("One kernel of the maximum and the exponential", None, choices=("yes", "no"))
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
# A cut is always possible. The values are compared with those of Inductor's own plan, and both are timed in turns.

# %%
edited = rows.cut(rows.segments[0].writes[0])
print(edited)

# %% [markdown]
# If an edit is worth it, `to_code` prints the lines that make `torch.compile` do the same in your program. Paste them before the first call.

# %%
print("\n".join(edited.to_code().splitlines()[:12]))

# %% [markdown]
# ## 5. Beside other plans
#
# `fl.compare` puts plans of one graph side by side: bytes, predicted times, and the ops that each plan groups differently. Names of strategies
# stand for our own plans, which are cut by nvFuser's rules (`"bottom_up"`), or so that the fewest bytes move (`"optimal"`). With `measure=True`
# a call of the function is timed under each plan.
#
# **Predict:** how many times as many bytes does Inductor's plan of the columns move as the optimal one?

# %%
question = predict("Times as many bytes", None)
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
# * `fl.explore(columns)` shows the kernels: click one for its source, its neighbours, and what can be cut.
# * [PyTorch models](17_bytes_of_a_model.ipynb): the cuts of a model that move the most bytes, by nvFuser's rules.
#
# **Words:** [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Launch](../docs/glossary.md#launch "The start of a kernel; it takes a few microseconds, whatever the kernel does.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Rule](../docs/glossary.md#rule "A condition of a scheduler; a candidate that breaks it is refused.") · [Schedule](../docs/glossary.md#schedule "The list of transforms that turns a segment into the loops of a kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.") · [Strategy](../docs/glossary.md#strategy "The method that cuts a fusion, such as bottom-up, top-down or optimal.")

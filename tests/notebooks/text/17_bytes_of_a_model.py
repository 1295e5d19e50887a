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
# # PyTorch models: the cuts that move the most bytes
#
# After this lesson, you can find the most expensive cuts of a PyTorch model, and the rule and the source line behind each. The lesson takes about 15 minutes.
#
# The cells below capture a PyTorch model with its gradients. Which of its cuts move the most bytes between kernels, and why are they
# there? Nothing below runs. Tensors on the device `"meta"` have sizes but no memory, so the model may be as large as yours.
#
# This lesson needs torch: `pip install torch`.

# %%
import torch
from torch.nn import functional

import fuser_lab as fl
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/17_bytes_of_a_model.toml").predict


class Mlp(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.RMSNorm(width)
        self.gate, self.up, self.down = (torch.nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Model(torch.nn.Module):
    def __init__(self, width=2048, words=32_000):
        super().__init__()
        self.layers = torch.nn.ModuleList([Mlp(width), Mlp(width)])
        self.head = torch.nn.Linear(width, words, bias=False)

    def forward(self, x, targets):
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.head(x), targets)


def capture(tokens):
    with torch.device("meta"):
        model, x, targets = Model(), torch.empty(tokens, 2048), torch.empty(tokens, dtype=torch.int64)
    return fl.from_torch(model, x, targets, backward=True)


captured = capture(4096)
captured

# %% [markdown]
# ## 1. What is a region?
#
# Matrix products have their own kernels and are left to torch. Everything between two of them is a *region*: a fusion with a plan like any
# other. Equal regions, such as those of equal layers, are planned once.

# %%
for row in captured.left_to_torch:
    if not row.is_free:
        print(row)

# %% [markdown]
# ## 2. What does a step cost?
#
# `fl.explain` lists each region and each op of torch with its bytes, the least time for these, and the time that is predicted for its kernels.
# The sentence on top names the row that could save the most, with its line and the rule that causes the difference. With
# `fl.explain(captured, measure=True)`, a model whose tensors have values is also measured.

# %%
step = fl.explain(captured)
step

# %% [markdown]
# ## 3. Which cut is the most expensive?
#
# At a cut in a region, one segment writes a tensor to memory, and another segment reads it again. If the region were one kernel,
# these bytes would never leave the chip.
#
# **Predict:** which part of the model has the cuts that move the most bytes, forward and backward together?

# %%
question = predict("The most bytes cross segments in", None, choices=("a norm", "silu and its product", "the loss"))
question

# %%
costs = captured.costs()
costliest = costs.boundaries[0]
inner = costliest.module.rpartition(".")[2]
part = {"": "the loss", "norm": "a norm"}.get(inner, "silu and its product")
question.show(costs)
first = question.reveal(part, facts={"bytes": costliest.bytes})
first

# %% [markdown]
# ## 4. Why is it there?
#
# Each boundary records the rule that keeps its two segments separate, and the line of the model that it comes from.

# %%
print(costliest.line)
print(costliest.why)

# %% [markdown]
# ## 5. What if the batch is half as large?
#
# **Predict:** with half as many tokens, by what factor does the number of bytes that cross segments change?

# %%
question = predict("Times as many bytes", None)
question

# %%
half = capture(2048).costs()
second = question.reveal(half.bytes_crossing / costs.bytes_crossing, within=0.02)
second

# %%
score(first, second)

# %% [markdown]
# ## Where to go next
#
# * [From PyTorch](../docs/pytorch.md): options, `torch.compile(model, backend="fuser_lab")`, and its limits.
# * [Why fusions split](02_why_fusions_split.ipynb): the rules behind `why`.
# * `fl.explore(captured)` opens the map of a model: click a module, then one of its regions.
# * `python -m fuser_lab explain model.py:Model --inputs "f32[64,512]"` prints the table for a class in a file, and writes a report.
#
# **Words:** [Boundary](../docs/glossary.md#boundary "A place between two segments, with the tensors that cross it and the reason for it.") · [Crossing tensor](../docs/glossary.md#crossing-tensor "A tensor that one segment writes to memory and another one reads.") · [Forwarding](../docs/glossary.md#forwarding "The segmenter's choice to let each segment compute a cheap tensor again, so that it is neither written nor read.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Region](../docs/glossary.md#region "The ops of a PyTorch model between two matrix products or other calls that are left to torch: one fusion.") · [Rule](../docs/glossary.md#rule "A condition of a scheduler; a candidate that breaks it is refused.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.")

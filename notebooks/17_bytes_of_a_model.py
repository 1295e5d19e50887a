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
# # Where does my model spend its bytes?
#
# A model in PyTorch, its gradients, and a question: which of its cuts move the most bytes between kernels, and why are they
# there? Nothing below runs. Tensors on the device `"meta"` have sizes and no memory, so the model may be as large as yours.
#
# This lesson needs torch: `pip install torch`.

# %%
import torch
from torch.nn import functional

import fuser_lab as fl
from fuser_lab.teaching import predict, score


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


found = capture(4096)
found

# %% [markdown]
# ## 1. What is a region?
#
# Matrix products have kernels of their own and are left to torch. Everything between two of them is a *region*: a fusion,
# with a plan like any other. Equal regions, as those of equal layers, are planned once.

# %%
for row in found.left_to_torch:
    if not row.is_free:
        print(row)

# %% [markdown]
# ## 2. Which cut is the dearest?
#
# Where a region is cut, what one segment writes the next one reads again. Those bytes would never leave the chip if the
# region were one kernel.
#
# **Predict:** which part of the model has the cuts that move the most bytes, forward and backward together?

# %%
question = predict("The most bytes cross segments in", None, choices=("a norm", "silu and its product", "the loss"))
question

# %%
costs = found.costs()
dearest = costs.boundaries[0]
inner = dearest.module.rpartition(".")[2]
part = {"": "the loss", "norm": "a norm"}.get(inner, "silu and its product")
first = question.reveal(
    part,
    because=f"Its dearest boundary moves {dearest.bytes:,} bytes: logits have 32,000 columns, all other tensors 2,048.",
)
first

# %%
costs

# %% [markdown]
# ## 3. Why is it there?
#
# Each boundary knows the rule that keeps its two segments apart, and the line of the model that it comes from.

# %%
print(dearest.line)
print(dearest.why)

# %% [markdown]
# ## 4. What if the batch is half as large?
#
# **Predict:** with half as many tokens, how many times as many bytes cross segments?

# %%
question = predict("Times as many bytes", None)
question

# %%
half = capture(2048).costs()
second = question.reveal(
    half.bytes_crossing / costs.bytes_crossing, within=0.02,
    hints={1: "Weights are read by matrix products, which are no part of any region."},
    because="What crosses are activations and their gradients, and each of them has a row for each token.",
)
second

# %%
score(first, second)

# %% [markdown]
# ## Where to go on
#
# * [From PyTorch](../docs/pytorch.md): options, `torch.compile(model, backend="fuser_lab")`, and how far it goes.
# * [Why fusions split](02_why_fusions_split.ipynb): the rules behind `why`.
# * `fl.explore(found)` opens the map of a model: click a module, then one of its regions.

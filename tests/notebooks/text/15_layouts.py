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
# # Layouts: in which order the axes of a tensor are stored
#
# After this lesson, you can predict where a layout costs time, and let segments agree on a better one. The lesson takes about 15 minutes.
#
# A tensor is a block of memory, read in some order of its axes. The numbers below are positions in memory, for one matrix of 3 rows and 5
# columns in both orders. A kernel that walks along the dark cells reads neighbours; a kernel that walks across them reads from a different
# part of memory for every element. Which order does each segment want?

# %%
import numpy as np
from IPython.display import HTML

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.examples import layouts
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/15_layouts.toml").predict


def cells(order, title, shape=(3, 5)):
    """Return a picture of the position of each element of a matrix in memory, for an order of axes, slowest first."""
    places = np.arange(np.prod(shape)).reshape([shape[axis] for axis in order]).transpose(np.argsort(order))
    dark = {0: "#cfe3f7", 1: "#f2f2f2"}
    rows = ""
    for row in places:
        colours = (dark[0] if place < shape[order[-1]] else dark[1] for place in row)
        boxes = zip(row, colours, strict=True)
        rows += "<tr>" + "".join(f'<td style="background:{c};color:#222;padding:6px 10px">{n}</td>' for n, c in boxes)
    return f'<table style="display:inline-table;margin-right:3em"><caption>{title}</caption>{rows}</table>'


HTML(cells((0, 1), "order 0,1: row-major") + cells((1, 0), "order 1,0: column-major"))

# %% [markdown]
# ## What nvFuser does
#
# An image is stored channels-last, order `0,2,3,1`. The fusion normalizes the image. After a cut, it scales the result and
# applies relu. nvFuser gives the *result* the layout of the input, and never changes the layout of what passes between segments.
#
# **Predict:** the second segment only scales and applies the relu. Which scheduler accepts it, and why?

# %%
question = predict("Which scheduler accepts the second segment?", None, choices=["pointwise", "transpose", "reduction", "resize"])
question

# %%
with FusionDefinition() as fd:
    layouts.channels_last_norm(fd)

today = fl.segment(fd, name="outputs")
question.show(today)
outcome_1 = question.reveal(today.segments[1].scheduler.value)
outcome_1

# %% [markdown]
# The tensor between the segments is row-major. So the first kernel reads channels-last and writes row-major, and the second one has to
# transpose everything back: **transpose**. The last column of the lower table shows what that costs in this model: bytes that move only
# because a kernel walks across rows.
#
# ## Let the segments agree
#
# `layout_mode="negotiate"` asks each producer which layout it writes naturally and each consumer which layout it prefers, and chooses the
# cheapest. Then the schedulers are asked again about the segments whose tensors changed.

# %%
agreed = fl.segment(fd, options=fl.SegmenterOptions(layout_mode="negotiate"), name="negotiate")
agreed.layouts()

# %%
fl.time([today, agreed], layouts.inputs_of(today.fusion), seconds=0.2, progress=False)  # this checks the results first

# %% [markdown]
# ## Propagating is not yet negotiating
#
# A *hint* follows the inputs downwards: `layout_mode="propagate"` would have been enough above. Here it is not enough. An outer sum of two
# vectors has no input that suggests its layout, and its reader also reads a column-major matrix.

# %%
with FusionDefinition() as outer:
    layouts.reader_decides(outer)

for mode in ("outputs", "propagate", "negotiate"):
    plan = fl.segment(outer, options=fl.SegmenterOptions(layout_mode=mode))
    print(", ".join(s.scheduler.value for s in plan.segments))
    print(plan.layouts(), end="\n\n")

# %% [markdown]
# Read the last table: the tensor between the segments has no hint, its producer would write `0,1`, and the reader `S1` decided. The
# explorer shows the same in the inspector when you click an arrow between two boxes.

# %%
explorer = fl.explore(outer, options=fl.SegmenterOptions(layout_mode="negotiate"))
explorer

# %% [markdown]
# ## A hint is not a requirement
#
# Any segment may drop a layout that the inference proposes. A layout that *you* ask for is kept. nvFuser has one field for both, which
# caused this problem: for a linear of [b, m, k] and [n, k], nvFuser's inference skips the axis that the sum removed and proposes n, b, m.
# The library returns b, m, n. (NVIDIA/Fuser issues #2354 and #2425.)

# %%
from fuser_lab.analysis.layout import propose_orders

with FusionDefinition() as linear:
    layouts.linear_and_product(linear)

fusion = fl.segment(linear).fusion
product = fusion.outputs[0]
for past in (True, False):
    print("past the sum:" if past else "up to the sum:", propose_orders(fusion, [product], past_reductions=past)[product])

# %% [markdown]
# If the inference stops at the sum, its proposal is what the library does anyway. If you want another order, ask for it: then it is
# required, and some segment has to pay for a copy.

# %%
with FusionDefinition() as asked:
    layouts.required_copy(asked)

plan = fl.segment(asked, options=fl.SegmenterOptions(layout_mode="negotiate"))
result, scaled = plan.run(layouts.inputs_of(plan.fusion))
print("strides of the linear:", [s // 4 for s in result.strides])
plan.layouts()

# %% [markdown]
# The hint for the second result was row-major. Its segment dropped the hint, because it is cheaper to read `0,2,1` and write `0,2,1`.
#
# ## Your turn
#
# In the outer sum above, the reader got the layout that it prefers. Now require its *result* to be row-major. In which order is the
# tensor between the segments stored (as in [0, 1]), who decides, and what does it cost?

# %%
question = predict("The tensor between the segments", {"order": None, "decided by": None, "megabytes": None})
question

# %%
required = outer.fusion.set_output_stride_order(outer.fusion.outputs[0], [1, 0])
plan = fl.segment(required, options=fl.SegmenterOptions(layout_mode="negotiate"))
between = plan.layouts()[plan.segmented.crossing[0].name]
outcome_2 = question.reveal(
    {"order": between.chosen, "decided by": between.by, "megabytes": between.cost / 1e6},
    within=0.05,
)
outcome_2

# %%
score(outcome_1, outcome_2)

# %% [markdown]
# ## Where to go next
#
# - [docs/layouts.md](../docs/layouts.md) has the rules and the cost model.
# - A cost model can be wrong: [06_cost_models](06_cost_models.ipynb).
# - `plan.layouts().to_pandas()` is the table as data; in the explorer, a click on an arrow shows its row.
#
# **Words:** [Cost model](../docs/glossary.md#cost-model "An estimate of the time of a plan that is cheap to compute, such as a count of bytes and launches.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Layout](../docs/glossary.md#layout "The order in which the axes of a tensor are stored in memory.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Rule](../docs/glossary.md#rule "A condition of a scheduler; a candidate that breaks it is refused.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.")

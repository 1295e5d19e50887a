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
# # Sweeps and ledgers: many measurements for one question
#
# After this lesson, you can turn a question into a sweep, keep the results in a ledger, and compare them with older ones. The lesson takes about 20 minutes.
#
# A softmax over rows is one kernel that keeps each row on chip. Up to which length does that hold, on which GPU and for which dtype, and
# what do longer rows cost? One plan answers for one length:

# %%
from IPython.display import display

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/19_a_question.toml").predict


def softmax(dtype):
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=dtype)
        wide = x if dtype == DataType.Float else fd.ops.cast(x, dtype=DataType.Float)
        e = fd.ops.exp(fd.ops.sub(wide, fd.ops.max(wide, dims=[1], keepdim=True)))
        result = fd.ops.div(e, fd.ops.sum(e, dims=[1], keepdim=True))
        fd.add_output(result if dtype == DataType.Float else fd.ops.cast(result, dtype=dtype))
    return fd


fusions = {"float": softmax(DataType.Float), "bfloat16": softmax(DataType.BFloat16)}
fl.segment(fusions["float"], [fl.spec((512, 8192))], target="A100")

# %% [markdown]
# ## 1. From a question to tasks
#
# A **sweep** makes a task of each combination: here of two fusions, 25 lengths and four GPUs. A size is a shape that holds for all inputs.
# `work` says what to do with each plan: `"time"` measures seconds, and `"certificate"` counts bytes and launches and proves how far the plan
# is from the best one. The second needs no GPU, and its answer is the same on every machine.
#
# **Predict:** how many tasks is that?

# %%
question = predict("Tasks", None)
question

# %%
lengths = [1024 * round(8 * 2 ** (n / 3)) for n in range(25)]
sweep = fl.sweep(
    fusions, [(512, length) for length in lengths], targets=["A100", "H100", "H200", "B200"], work="certificate",
    name="rows",
)
first = question.reveal(len(sweep))
first

# %% [markdown]
# ## 2. Run it
#
# Rows arrive in a **ledger**, a folder of files, as soon as their task is done.

# %%
import tempfile

ledger = fl.Ledger(tempfile.mkdtemp())
display(sweep.run(ledger))
sweep.run(ledger)

# %% [markdown]
# Each task has a key, a hash of its content. The second run finds the keys in the ledger and executes the missing tasks:
# none here, and the remaining ones after an interrupt, a crash or the loss of a machine.
#
# ## 3. Where one kernel ends
#
# A ledger is a table. `fl.views` draws it; the number in a cell is the number of segments.

# %%
rows = ledger.sql("SELECT * FROM rows WHERE segment IS NULL")
fl.views.heat_map(rows[rows["subject"] == "float"], "sizes[0][1]", "target", "segments")

# %% [markdown]
# The row is a *persistent buffer*: the kernel reads it once and needs it twice. On an A100, one multiprocessor has to hold the
# row; later GPUs can distribute the row over the multiprocessors of a cluster.
#
# **Predict:** the kernel computes in Float, whatever the input is. How many times as long may rows of bfloat16 be on an A100?

# %%
question = predict("Times as long", None)
question

# %%
import json

rows["length"] = [json.loads(sizes)[0][1] for sizes in rows["sizes"]]
longest = rows[rows["segments"] == 1].groupby(["subject", "target"])["length"].max()
question.show(longest.unstack())
second = question.reveal(longest["bfloat16", "A100"] / longest["float", "A100"])
second

# %% [markdown]
# ## 4. What longer rows cost
#
# A longer row is read, its exponentials are written to memory, and another kernel reads them.
#
# **Predict:** for Float, the three segments move 2.5 times the bytes of the one kernel. And for bfloat16?

# %%
question = predict("Times the bytes", None)
question

# %%
rows["bytes"] = rows["bytes_in"] + rows["bytes_out"]
rows["times"] = rows["bytes"] / (rows["length"] * 512 * 2 * rows["subject"].map({"float": 4, "bfloat16": 2}))
cut = rows[rows["segments"] > 1].groupby("subject")["times"].median()
third = question.reveal(cut["bfloat16"], within=0.01)
third

# %% [markdown]
# Is the segmenter to blame? The certificates say how far each plan is from a bound that holds for all plans under the same rules:

# %%
(rows["cost"] / rows["bound"]).groupby(rows["segments"]).max()

# %% [markdown]
# A ratio of 1 means that no plan is better: to move fewer bytes, a rule has to change. `io_to_lower_precision` is such a rule, an
# option of the segmenter that passes the exponentials as bfloat16. Options are another axis of a sweep:

# %%
lower = fl.sweep(
    {"bfloat16": fusions["bfloat16"]}, [(512, lengths[-1])], targets=["A100"], work="certificate", name="rows",
    options=[fl.SegmenterOptions(), fl.SegmenterOptions(io_to_lower_precision=True)],
)
lower.run(ledger, progress=False)
found = lower.to_pandas(ledger)
found[found["segment"].isna()][["segments", "bytes_in", "bytes_out", "cost", "bound", "note"]]

# %% [markdown]
# ## 5. Then and now
#
# The folder `ledger_19` beside this notebook holds the rows of the same 200 plans, which `python -m tests.notebooks.lesson_ledger` made at
# an earlier commit of fuser_lab. Every row says when, on which processor and at which commit:
#
# Keys are the same everywhere, so a join compares two ledgers. What changed since?

# %%
then = fl.Ledger("ledger_19").to_pandas()
display(then[["measured_at", "cpu", "commit"]].drop_duplicates("commit"))
both = rows.merge(then, on="task", suffixes=("", "_then"))
changed = both[both["cost"] != both["cost_then"]]
print(f"{len(both)} tasks are in both ledgers; {len(changed)} have a different cost now.")

# %% [markdown]
# ## 6. Seconds
#
# The same sweep with `work="time"`, which is the default, compiles kernels, checks their results and measures them as `fl.time`
# does. The measurement uses a GPU if this machine has one. Here is a single task, because kernels take a while to compile:

# %%
timed = fl.sweep({"float": fusions["float"]}, [(64, 1024)], seconds=0.05, name="seconds")
timed.run(ledger, progress=False)
timed.to_pandas(ledger)[["plan", "segment", "scheduler", "median", "low", "high", "device"]]

# %% [markdown]
# For a sweep over many GPUs, `sweep.run(ledger, client)` takes a client of dask.distributed: each GPU has its own
# worker, so nothing else runs during a measurement, and other workers segment and compile. On the command line, `python
# -m fuser_lab sweep FILE.toml --scheduler ADDRESS` does the same.

# %%
score(first, second, third)

# %% [markdown]
# ## Where to go next
#
# - [The ledger, and sweeps](../docs/lab.md): columns, files, clusters from a laptop to SLURM, comparison with confidence intervals.
# - [Lesson 08](08_profile_and_compare.ipynb): how one measurement is made, and when to believe it.
# - [Lesson 05](05_greedy_and_optimal.ipynb): what a certificate proves.
#
# **Words:** [Bound](../docs/glossary.md#bound "A cost that every plan of a fusion has to pay, however it is cut.") · [Certificate](../docs/glossary.md#certificate "A proof of how far a plan is at most from the cheapest one, as a list of reasons that add up to a bound.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Launch](../docs/glossary.md#launch "The start of a kernel; it takes a few microseconds, whatever the kernel does.") · [Persistent buffer](../docs/glossary.md#persistent-buffer "A tensor that a kernel keeps on chip across a reduction, so that it is read from memory once and used twice.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Rule](../docs/glossary.md#rule "A condition of a scheduler; a candidate that breaks it is refused.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.")

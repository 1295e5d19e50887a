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
# # Dumps of nvFuser: where it cut, and which rule made the difference
#
# After this lesson, you can read a dump of nvFuser's segments, compare it with fuser_lab's plan, and find the rule behind a difference. The lesson takes about 15 minutes.
#
# Where did nvFuser cut? fuser_lab computes where it *should* cut. Only nvFuser knows where it *did* cut, and it says so on request:
# `NVFUSER_DUMP=segmented_fusion python script.py`. You do not need a GPU to read the answer from somebody who has one.
#
# The dump below was written by hand, in nvFuser's format, with a cut that differs from the one that fuser_lab expects.

# %%
from pathlib import Path

import fuser_lab as fl
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/16_ask_nvfuser_itself.toml").predict

TEXT = Path("../tests/data/dumps/cut_before_broadcast.txt").read_text(encoding="utf-8")
dump = fl.load_dump(TEXT, name="dump")
dump.plan

# %% [markdown]
# ## Read the groups
#
# This part of the text defines the segments. The numbers are expressions; the name after the arrow is the tensor that passes between the
# segments.

# %%
lines = TEXT.splitlines()
begin = lines.index("groups: ")
print("\n".join(lines[begin : begin + 6]))

# %% [markdown]
# **Predict:** the sum `T2` is broadcast to `T3`, which is added to `T1`. How many expressions are in a different segment in our plan?

# %%
question = predict("How many expressions are elsewhere?", None)
question

# %%
ours = dump.ours()
difference = fl.diff(dump.plan, ours)
question.show(difference)
outcome_1 = question.reveal(len(difference.moved))
outcome_1

# %% [markdown]
# ## Whose rule is it?
#
# Every difference comes from a rule on one side or the other. You can ask our side: why are `T3` and `T4` separate?

# %%
ours.why("T3", "T4")

# %% [markdown]
# You can ask nvFuser too, if the dump was made with `NVFUSER_DUMP=segmented_fusion,segmenter_logging`.

# %%
for refusal in dump.refusals:
    print(f"{refusal.scheduler:>18}  {refusal.text}")

# %% [markdown]
# **Predict:** both sides refused one kernel for all three ops. Do our schedulers accept the cut of the dump as well?

# %%
question = predict("Does one scheduler accept T2 alone, and one accept T3 with T4?", None, choices=["both", "neither"])
question

# %%
same_cut = fl.segment(dump.fd, passes=(), strategy=lambda fusion, oracle: [["T2"], ["T3", "T4"]])
outcome_2 = question.reveal("both" if all(segment.scheduler for segment in same_cut.segments) else "neither")
outcome_2

# %% [markdown]
# So the rule does not belong to a scheduler. It belongs to the segmenter, and decides which of two legal merges comes first. The log of
# our plan contains the decisive merge.

# %%
print(ours.decisions.filter(op="T3", accepted=True))

# %% [markdown]
# ## What does it cost?
#
# **Predict:** `T2` and `T3` have the same elements. How many more bytes does one cut move than the other?

# %%
question = predict("How many bytes more?", None)
question

# %%
outcome_3 = question.reveal(abs(difference.bytes_saved))
outcome_3

# %% [markdown]
# ## The other direction
#
# A plan can print itself as such a dump, for an issue or for a reader of nvFuser's format. Loading the dump gives the plan back.

# %%
fd, inputs = fl.example("softmax")
plan = fl.segment(fd, inputs).cut("T2")
text = plan.to_dump()
print("\n".join(text.splitlines()[-24:]))

# %%
print(fl.load_dump(text).plan.segmented == plan.segmented)

# %%
score(outcome_1, outcome_2, outcome_3)

# %% [markdown]
# ## Where to go next
#
# - [docs/dumps.md](../docs/dumps.md): what is read, in part and from old versions.
# - `python -m fuser_lab agree FILE...` compares many dumps at once.
# - A script instead of a dump: [09_replay_an_issue](09_replay_an_issue.ipynb).
# - Reasons, each with a fusion that causes it: [docs/reasons.md](../docs/reasons.md).
#
# **Words:** [Broadcast](../docs/glossary.md#broadcast "An op that gives a tensor one more axis, along which it repeats its elements; it moves no data.") · [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Rule](../docs/glossary.md#rule "A condition of a scheduler; a candidate that breaks it is refused.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.")

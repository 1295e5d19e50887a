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
# # Where did nvFuser cut?
#
# fuser_lab computes where nvFuser *should* cut. Where it *did* cut, only nvFuser knows, and it says so when it is asked:
# `NVFUSER_DUMP=segmented_fusion python script.py`. You need no GPU to read the answer of somebody who has one.
#
# The dump below was written by hand, in nvFuser's form, with a cut that is not the one fuser_lab expects.

# %%
from pathlib import Path

import fuser_lab as fl
from fuser_lab.teaching import predict, score

TEXT = Path("../tests/data/dumps/cut_before_broadcast.txt").read_text(encoding="utf-8")
dump = fl.load_dump(TEXT, name="dump")
dump.plan

# %% [markdown]
# ## Read the groups
#
# This is the part of the text that the segments come from. The numbers are expressions; what is behind the arrow is the
# tensor that passes between the segments.

# %%
lines = TEXT.splitlines()
begin = lines.index("groups: ")
print("\n".join(lines[begin : begin + 6]))

# %% [markdown]
# **Predict:** the sum `T2` is broadcast to `T3`, which is added to `T1`. How many expressions stand in another segment in
# our plan?

# %%
question = predict("How many expressions are elsewhere?", None)
question

# %%
ours = dump.ours()
difference = fl.diff(dump.plan, ours)
difference

# %%
outcomes = [
    question.reveal(
        len(difference.moved),
        because="Only the broadcast is on the other side of the cut. T3 passes between the segments instead of T2.",
        hints={0: "Both have two segments. Do the same expressions stand in them?", 2: "The add is alone in both."},
    ),
]
outcomes[0]

# %% [markdown]
# ## Whose rule is it?
#
# A difference has a rule behind it, on one side or the other. Ours can be asked: why are `T3` and `T4` apart?

# %%
ours.why("T3", "T4")

# %% [markdown]
# nvFuser can be asked too, if the dump was made with `NVFUSER_DUMP=segmented_fusion,segmenter_logging`.

# %%
for refusal in dump.refusals:
    print(f"{refusal.scheduler:>18}  {refusal.text}")

# %% [markdown]
# **Predict:** both sides refused one kernel for all three. Is the cut of the dump legal for our schedulers as well?

# %%
question = predict("Does some scheduler take T2 alone, and one T3 with T4?", None, choices=["both", "neither"])
question

# %%
same_cut = fl.segment(dump.fd, passes=(), strategy=lambda fusion, oracle: [["T2"], ["T3", "T4"]])
outcomes.append(
    question.reveal(
        "both" if all(segment.scheduler for segment in same_cut.segments) else "neither",
        because="Both cuts are legal, so that legality does not explain the difference: the order of merges does.",
    ),
)
outcomes[1]

# %% [markdown]
# So the rule is not one of a scheduler. It is the segmenter's: which of two legal merges comes first. The log of our plan
# has the merge that decided.

# %%
print(ours.decisions.filter(op="T3", accepted=True))

# %% [markdown]
# ## What does it cost?
#
# **Predict:** `T2` and `T3` have the same elements. How many bytes more does one of the cuts move?

# %%
question = predict("How many bytes more?", None)
question

# %%
outcomes.append(
    question.reveal(
        abs(difference.bytes_saved),
        because="A broadcast axis takes no memory: T2 and T3 are one number for each row, written once and read once.",
    ),
)
outcomes[2]

# %% [markdown]
# ## The other way
#
# A plan prints itself as such a dump, for an issue or for somebody who reads nvFuser's form. Reading it gives the plan.

# %%
fd, inputs = fl.example("softmax")
plan = fl.segment(fd, inputs).cut("T2")
text = plan.to_dump()
print("\n".join(text.splitlines()[-24:]))

# %%
print(fl.load_dump(text).plan.segmented == plan.segmented)

# %%
score(*outcomes)

# %% [markdown]
# ## Where to go on
#
# - [docs/dumps.md](../docs/dumps.md): what is read, in parts and in old versions.
# - `python -m fuser_lab agree FILE...` compares many dumps at once.
# - A script instead of a dump: [09_replay_an_issue](09_replay_an_issue.ipynb).
# - Reasons, each with a fusion that gets it: [docs/reasons.md](../docs/reasons.md).

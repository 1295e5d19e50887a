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
# # Fusion contracts: tests that keep a fusion fused
#
# After this lesson, you can write a test that fails when two ops get separate kernels, read its message, and choose a contract that does not
# depend on the device. The lesson takes about 15 minutes.
#
# A change of a shape, a dtype or a release of the compiler can cut a fusion in two. The results stay right, so no other test fails. The
# picture shows the fusion to keep: each row of x divided by its sum, and the sums of the columns of the result, in one kernel. Which change would part them?

# %%
import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.errors import FusionContractError
from fuser_lab.teaching import read_questions, score

predict = read_questions("questions/28_fusion_contracts.toml").predict


def shares(length, dtype=DataType.Float):
    """Return a definition over 2,048 rows of a length."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[2048, length], contiguity=True, dtype=dtype)
        wide = x if dtype is DataType.Float else fd.ops.cast(x, DataType.Float)
        share = fd.ops.div(wide, fd.ops.sum(wide, dims=[1], keepdim=True))
        fd.add_output(share if dtype is DataType.Float else fd.ops.cast(share, dtype))
        fd.add_output(fd.ops.sum(share, dims=[0]))
    return fd


fl.segment(shares(8192))

# %% [markdown]
# ## 1. One kernel
#
# `fl.one_kernel` returns the partition if the contract holds. With `compiler="nvfuser"` the rules of nvFuser cut the fusion for a device that
# need not be present. A function of torch is compiled by torch.compile unless you say otherwise.

# %%
fl.one_kernel(shares(8192), compiler="nvfuser")

# %% [markdown]
# **Predict:** somebody changes the length of the rows to 65,536. Does the contract still hold?

# %%
question = predict("Does the contract hold for rows of 65,536?", None, choices=("yes", "no"))
question


# %%
def outcome(contract, *arguments, **options):
    """Return the partition of a contract that holds, or the error of a broken one."""
    try:
        return contract(*arguments, compiler="nvfuser", **options)
    except FusionContractError as error:
        return error


broken = outcome(fl.one_kernel, shares(65536), shrink_seconds=0)
question.show(broken)
first = question.reveal("no" if isinstance(broken, FusionContractError) else "yes")
first

# %% [markdown]
# The message names the ops that parted and the reason, and says what the cut costs. `error.partition` has the same as data. By default,
# the message also contains the smallest function that is still cut for this reason.
#
# ## 2. Who is with whom
#
# A number of kernels depends on the device, and says little about the fusion. Two other contracts say more:
#
# * `fl.same_kernel(f, ops=[...])`: these ops share a kernel.
# * `fl.at_most(f, kernels=2, bytes_over_bound=1.6)`: at most so many times the bytes that one kernel would move.
#
# **Predict:** with rows of 65,536, how many times the bytes of one kernel do the two kernels move?

# %%
question = predict("Bytes over the bytes of one kernel", None)
question

# %%
partition = fl.at_most(shares(65536), kernels=9, compiler="nvfuser")
question.show(partition)
second = question.reveal(partition.bytes_over_bound, within=0.02)
second

# %% [markdown]
# ## 3. A change that is harmless, and another one
#
# A good contract breaks for the changes that matter, and for no others.
#
# **Predict:** the tensors of the broken fusion become BFloat16, at half the bytes. Is the fusion with rows of 65,536 one kernel then?

# %%
question = predict("One kernel in BFloat16?", None, choices=("yes", "no"))
question

# %%
narrow = outcome(fl.one_kernel, shares(65536, DataType.BFloat16), shrink_seconds=0)
question.show(narrow)
third = question.reveal("no" if isinstance(narrow, FusionContractError) else "yes")
third

# %% [markdown]
# ## 4. In a test, and between releases
#
# The package has a plugin for pytest. This file is a complete test:
#
# ```python
# def test_the_shares_are_one_kernel(fusion):
#     fusion.one_kernel(shares(8192), compiler="nvfuser", device="H100")
# ```
#
# A lock records the partition of a function of torch in a file that you commit. After an upgrade, `check` names what changed and the decision
# that changed first:
#
# ```
# python -m fuser_lab lock model.py:step -o fusion.lock
# python -m fuser_lab check fusion.lock model.py:step
# ```

# %%
score(first, second, third)

# %% [markdown]
# ## Where to go next
#
# * [Fusion contracts](../docs/contracts.md): names of ops, locks, `bisect`, and a job of GitHub Actions.
# * [The decision log](26_the_decision_log.ipynb): where the reason in the message comes from.
# * [Kernels of torch.compile](25_why_torch_compile_cut_here.ipynb): the same questions about a function of torch.
#
# **Words:** [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Rule](../docs/glossary.md#rule "A condition of a scheduler; a candidate that breaks it is refused.")

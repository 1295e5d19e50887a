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
# A change of a shape or a dtype, or a new release of the compiler, can cut a fusion in two. The results stay right, so no other test fails,
# but the program becomes slower. The next cell draws a fusion that should stay one kernel: it divides each row of x by its sum, and
# also returns the column sums of the result. Which changes would cut it in two?

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
# A **contract** is a call that fails if a function is not fused as you want. `fl.one_kernel` fails if the function has more than one kernel;
# otherwise it returns the partition, which lists the kernels. With `compiler="nvfuser"`, nvFuser's rules cut the fusion, for a device
# that need not be present. By default, a PyTorch function is compiled by torch.compile.

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
# The message names the ops that are now in different kernels, and the reason. It also says what the cut costs. `error.partition` contains
# the same information as data. By default, the message also shows the smallest function that is still cut for this reason.
#
# ## 2. Ops that share a kernel, and bytes
#
# The number of kernels of a function depends on the device. Two other contracts depend less on it:
#
# * `fl.same_kernel(f, ops=[...])` fails if the listed ops do not share a kernel.
# * `fl.at_most(f, kernels=2, bytes_over_bound=1.6)` fails if the function has more than 2 kernels, or moves more than 1.6 times the bytes
#   of a single kernel.
#
# **Predict:** with rows of 65,536, divide the bytes that the two kernels move by the bytes that a single kernel would move. What is the
# ratio?

# %%
question = predict("Bytes of the two kernels / bytes of a single kernel", None)
question

# %%
partition = fl.at_most(shares(65536), kernels=9, compiler="nvfuser")
question.show(partition)
second = question.reveal(partition.bytes_over_bound, within=0.02)
second

# %% [markdown]
# ## 3. Another dtype
#
# You could try to repair the fusion with a narrower dtype: BFloat16 takes half the bytes of Float.
#
# **Predict:** is the fusion with rows of 65,536 one kernel if x and the quotient are BFloat16?

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
# fuser_lab includes a pytest plugin with the fixture `fusion`. With it, a test of the contract is:
#
# ```python
# def test_the_shares_are_one_kernel(fusion):
#     fusion.one_kernel(shares(8192), compiler="nvfuser", device="H100")
# ```
#
# A **lock** is a file with the partition of a PyTorch function, which you commit. After an upgrade of PyTorch, `check` compares the function
# with its lock, and prints what changed and which decision of the compiler changed first:
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
# * [The decision log](26_the_decision_log.ipynb): the source of the reason in the message.
# * [Kernels of torch.compile](25_why_torch_compile_cut_here.ipynb): why torch.compile cuts a PyTorch function.
#
# **Words:** [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Kernel](../docs/glossary.md#kernel "A program that runs on the device, started by one launch.") · [Rule](../docs/glossary.md#rule "A condition of a scheduler; a candidate that breaks it is refused.")

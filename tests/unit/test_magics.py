"""The magics, called as a notebook calls them."""

import pytest

pytest.importorskip("IPython", reason="the notebook packages are not installed")
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

import fuser_lab as fl
from fuser_lab.cli.magics import FusionMagics
from fuser_lab.segmentation import STRATEGIES

CELL = """
def softmax_like(fd: FusionDefinition):
    x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
    y = fd.ops.exp(x)
    fd.add_output(fd.ops.div(y, fd.ops.broadcast_in_dim(fd.ops.sum(y, dims=[1]), shape=[64, 32], broadcast_dims=[0])))

with FusionDefinition() as fd:
    softmax_like(fd)

inputs = [torch.randn(64, 32, device="cuda")]
fd.execute(inputs)
"""


@pytest.fixture
def shell():
    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "fuser_lab")
    yield shell
    InteractiveShell.clear_instance()


def test_a_cell_defines_a_fusion_and_its_plan(shell):
    plan = shell.run_cell_magic("fusion", "soft --strategy unfused", CELL)
    names = shell.user_ns
    assert isinstance(names["soft"], fl.FusionDefinition)
    assert names["soft_plan"] is plan
    assert plan.strategy == "unfused"
    expected = fl.segment(names["soft"], names["soft_inputs"], strategy="unfused")
    assert plan == expected


def test_nothing_of_a_cell_is_executed(shell, tmp_path):
    trap = tmp_path / "trap"
    with pytest.raises(UsageError, match="open"):
        shell.run_cell_magic("fusion", "", CELL + f"\nopen({str(trap)!r}, 'w')\nfd.ops.add(open, 1)\n")
    assert not trap.exists()


def test_plans_are_timed_and_compared(shell):
    shell.run_cell_magic("fusion", "", CELL)
    shell.user_ns["other"] = fl.segment(shell.user_ns["fd"], shell.user_ns["fd_inputs"], strategy="unfused")
    times = shell.run_line_magic("fusion_time", "fd_plan other --seconds 0.05")
    totals = times.to_pandas()
    assert set(totals["plan"]) == {"bottom-up", "unfused"}
    changed = shell.run_line_magic("fusion_diff", "fd_plan other")
    assert repr(changed) == repr(fl.diff(shell.user_ns["fd_plan"], shell.user_ns["other"]))


@pytest.mark.parametrize(
    ("magic", "line", "says"),
    [
        ("fusion_time", "missing", "there is no variable 'missing'"),
        ("fusion_time", "number", "'number' must hold a plan .*, but holds a int"),
        ("fusion_diff", "fd_plan", "the following arguments are required: after"),
    ],
)
def test_what_cannot_be_meant_is_refused(shell, magic, line, says):
    shell.user_ns["number"] = 3
    shell.run_cell_magic("fusion", "", CELL)
    with pytest.raises(UsageError, match=says):
        shell.run_line_magic(magic, line)


def test_the_help_names_every_strategy():
    text = " ".join(FusionMagics.fusion.__doc__.split())
    assert f"one of {', '.join(STRATEGIES)} " in text


def test_a_cell_that_is_no_script_says_so(shell):
    with pytest.raises(UsageError, match="FusionDefinition|definition"):
        shell.run_cell_magic("fusion", "", "x = 1")
    with pytest.raises(UsageError, match="not a variable name"):
        shell.run_cell_magic("fusion", "not-a-name", CELL)


def test_the_history_of_a_plan(shell, tmp_path):
    ledger = shell.user_ns["ledger"] = fl.Ledger(tmp_path)
    for commit, seconds in (("1", 2e-6), ("2", 3e-6)):
        ledger.append({"plan": "a", "median": seconds, "commit": commit, "fusion_hash": "0"})
    for line in ("ledger", f"{tmp_path} --plan a --fusion 0"):
        assert [row.seconds for row in shell.run_line_magic("fusion_history", line).rows] == [2e-6, 3e-6]
    for line, said in ((str(tmp_path / "none"), "neither a variable that"), ("ledger --plan b", "no measured row")):
        with pytest.raises(UsageError, match=said):
            shell.run_line_magic("fusion_history", line)

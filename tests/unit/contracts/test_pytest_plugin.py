"""The plugin of pytest, run by pytester on tests of definitions."""

from importlib.metadata import entry_points

import pytest

pytest_plugins = ["pytester"]

TEST = """
import fuser_lab as fl

def test_rows(fusion):
    fd, inputs = fl.example("softmax")
    fusion.one_kernel(fd, inputs, compiler="nvfuser")
    fusion.at_most(fd, inputs, compiler="nvfuser", kernels=1, bytes_over_bound=1.1)
    fusion.same_kernel(fd, inputs, compiler="nvfuser", ops=["exp", "sum"])

def test_sum(fusion):
    fusion.one_kernel(*fl.example("sum_broadcast_add"), compiler="nvfuser")
"""
LOCKED = """
import fuser_lab as fl

def test_step(fusion):
    fd, inputs = fl.example("softmax")
    fusion.lock(fd, inputs, compiler="nvfuser", strategy={strategy!r})
"""


@pytest.fixture
def run(pytester):
    registered = any(point.name == "fuser_lab" for point in entry_points(group="pytest11"))
    plugin = () if registered else ("-p", "fuser_lab.contracts.pytest_plugin")
    return lambda *arguments: pytester.runpytest_inprocess(*plugin, "-p", "no:cacheprovider", *arguments)


def test_a_failure_is_readable_and_saves_a_picture_and_the_smallest_function(pytester, run):
    pytester.makepyfile(test_model=TEST)
    result = run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([
        ">*fusion.one_kernel(*sum_broadcast_add*",
        "E *FusionContractError: one_kernel: FusionDefinition is 2 kernels under nvfuser on H200*",
        "E *parted: sum | add", "E *why: reduction: *", "E *costs: *", "E *saved:*",
    ])
    result.stdout.no_fnmatch_line("*pytest_plugin.py:*")  # the frames of the plugin are hidden
    folder = pytester.path / "fusion-failures" / "test_model.test_sum"
    assert sorted(path.name for path in folder.iterdir()) == ["fusion-0.svg", "partition.txt", "smallest.py"]
    assert (folder / "fusion-0.svg").read_text(encoding="utf-8").startswith("<svg")
    compile((folder / "smallest.py").read_text(encoding="utf-8"), "smallest.py", "exec")


def test_a_lock_is_written_kept_and_broken(pytester, run):
    pytester.makepyfile(test_model=LOCKED.format(strategy="bottom_up"))
    missing = run()
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["*there is no lock *test_model.test_step.lock; pytest --fusion-update writes it."])
    run("--fusion-update").assert_outcomes(passed=1)
    assert (pytester.path / "fusion-locks" / "test_model.test_step.lock").is_file()
    run().assert_outcomes(passed=1)
    pytester.makepyfile(test_model=LOCKED.format(strategy="unfused"))
    broken = run()
    broken.assert_outcomes(failed=1)
    broken.stdout.fnmatch_lines(["E *fusion.lock: test_model.test_step.lock: regressed: 7 kernels*"])


def test_locks_are_in_the_folder_of_the_option(pytester, run):
    pytester.makepyfile(test_model=LOCKED.format(strategy="bottom_up"))
    run("--fusion-lock", "locks", "--fusion-update").assert_outcomes(passed=1)
    assert (pytester.path / "locks" / "test_model.test_step.lock").is_file()
    run("--fusion-lock", "locks").assert_outcomes(passed=1)

"""How the sanitizer's command distributes its work and reads the output of the tools; no GPU is needed."""

import sys
from collections import Counter
from pathlib import Path

import pytest

import fuser_lab as fl
from fuser_lab.cost.verdict import SchedulerType
from tests.gpu import sanitize
from tests.gpu.kinds import STRATEGIES, kinds
from tests.gpu.planted import PTX
from tests.gpu.sanitize import TOOLS, Share, command, read, shares, table, worked


@pytest.fixture(scope="module")
def found():
    return list(kinds())


def test_every_kind_of_kernel_is_there(found):
    names = [(kind.group, kind.name) for kind in found]
    assert len(set(names)) == len(names)
    assert {f"{name}, {strategy}" for name in fl.examples.names() for strategy in STRATEGIES} <= {
        kind.name for kind in found if kind.group == "examples"
    }
    groups = Counter(kind.group for kind in found)
    assert set(groups) == {
        "examples", "segments", "lookups", "elements", "transposes", "sums", "rows", "columns", "backward", "views",
        "parameters", "clusters", "by hand", "random", "graphs", "ops", "tiles",
        "additions",
    }


def test_every_scheduler_that_has_kernels_is_there():
    from backend.fusions import CASES

    from fuser_lab.codegen.pipeline import EVALUATED

    assert {case.scheduler for case in CASES} == set(SchedulerType) - EVALUATED


@pytest.mark.parametrize("jobs", [1, 3, 7])
def test_each_tool_gets_every_kind_once(found, jobs):
    groups = [kind.group for kind in found]
    todo = shares(["memcheck", "racecheck"], jobs)
    for tool in ("memcheck", "racecheck"):
        taken = [number for share in todo if share.tool == tool for number in share.taken(groups)]
        assert sorted(taken) == list(range(len(found)))
    assert [share.text for share in todo if share.planted] == ["planted/memcheck", "planted/racecheck"]
    for share in todo:
        assert sanitize._share(share.text).text == share.text
        assert {groups[number] == "graphs" for number in share.taken(groups)} <= {share.alone}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", [
    "softmax, unfused", "column sums of a softmax", "rows", "along the last axis", "begins at an odd address",
    "uniform", "transpose 1", "cumsum", "six segments",
])
def test_kinds_run_on_the_cpu_too(found, name):
    kind = next(kind for kind in found if name in kind.name)
    assert list(worked([(kind.name, kind.run)], "cpu", float("inf"))) == ["SHARE ran 1 left 0"]


def test_a_wrong_result_and_a_crash_are_told_and_the_rest_runs():
    def wrong(_):
        raise AssertionError("two runs differ\nin detail")

    def nothing(_):
        raise ZeroDivisionError

    ran = []
    assert list(worked([("a", wrong), ("b", nothing), ("c", ran.append)], "cpu", float("inf"))) == [
        "FAILED a: AssertionError: two runs differ",
        "FAILED b: ZeroDivisionError: raise ZeroDivisionError",
        "SHARE ran 3 left 0",
    ]
    assert ran == ["cpu"]
    assert list(worked([("c", ran.append)], "cpu", 0.0)) == ["SHARE ran 0 left 1"]


def test_the_command_of_a_share():
    words = command(Share(tool="racecheck", number=2, of=5), 90)
    assert words[:3] == ["compute-sanitizer", "--tool", "racecheck"]
    assert words[words.index("--report-api-errors") + 1] == "no"
    assert words[words.index("--share") + 1] == "2/5"
    assert words[words.index("-m") + 1] == "tests.gpu.sanitize"
    assert command(Share(tool="", number=0, of=1), 90)[0] == sys.executable


CLEAN = """========= COMPUTE-SANITIZER
SHARE ran 40 left 0
========= ERROR SUMMARY: 0 errors
"""
BAD = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at pointwise_T2+0x90
=========     by thread (127,0,0) in block (3,0,0)
FAILED rows, softmax: AssertionError: two runs differ
SHARE ran 39 left 1
========= ERROR SUMMARY: 2 errors
"""
RACES = """SHARE ran 40 left 0
========= Error: Race reported between Write access at kernel+0x10 and Read access at kernel+0x20
========= RACECHECK SUMMARY: 3 hazards displayed (1 error, 2 warnings)
"""
NO_RACES = """SHARE ran 40 left 0
========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)
"""


@pytest.mark.parametrize(
    ("tool", "status", "output", "expected"),
    [
        ("memcheck", 0, CLEAN, (40, 0, 0, 0, 0)), ("memcheck", 97, BAD, (39, 1, 1, 2, 0)),
        ("racecheck", 97, RACES, (40, 0, 0, 1, 2)), ("racecheck", 0, NO_RACES, (40, 0, 0, 0, 0)),
        ("memcheck", 1, "Error: device not supported\n", (0, 0, 1, 0, 0)),
        ("memcheck", 0, "SHARE ran 40 left 0\n", (40, 0, 1, 0, 0)),
        ("memcheck", -11, CLEAN, (40, 0, 1, 0, 0)), ("", 0, "SHARE ran 40 left 0\n", (40, 0, 0, 0, 0)),
    ],
)
def test_summaries_are_read(tool, status, output, expected):
    said = read(Share(tool=tool), status, output)
    assert (said.ran, said.left, len(said.failures), said.errors, said.warnings) == expected
    assert said.clean == (expected[1:4] == (0, 0, 0))


def test_the_table_says_what_was_found_and_where():
    memory, races = Share(tool="memcheck"), Share(tool="racecheck")
    planted = Share(tool="memcheck", planted=True)
    found = [read(memory, 97, BAD), read(memory, 0, CLEAN), read(races, 0, NO_RACES), read(planted, 97, BAD)]
    text = table(found)
    assert [line.split() for line in text.splitlines()[1:3]] == [
        ["memcheck", "79", "1", "1", "2", "0", "1"], ["racecheck", "40", "0", "0", "0", "0", "0"],
    ]
    assert "memcheck: rows, softmax: AssertionError: two runs differ" in text
    assert "Invalid __global__ write of size 4 bytes" in text
    assert [one.clean for one in found] == [False, True, True, True]


def test_a_planted_error_that_is_not_found_is_a_failure():
    said = read(Share(tool="memcheck", planted=True), 0, CLEAN)
    assert not said.clean
    assert said.failures == ("the planted error was not found",)
    assert set(PTX) == set(TOOLS)


def test_without_the_program_the_command_says_so(capsys):
    assert sanitize.main(["--sanitizer", "no-such-sanitizer"]) == 2
    assert "no-such-sanitizer is not on the PATH" in capsys.readouterr().out


def test_processes_side_by_side_are_read(monkeypatch, tmp_path: Path, capsys):
    """A stand-in for the sanitizer that runs nothing and reports an error under one tool."""
    program = tmp_path / "sanitizer"
    program.write_text(
        f"#!{sys.executable}\nimport sys\ntool, planted = sys.argv[2], 'planted' in ' '.join(sys.argv)\n"
        "print('SHARE ran 5 left 0')\n"
        "print('========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)' if tool == 'racecheck' else "
        "f'========= ERROR SUMMARY: {int(planted)} errors')\nsys.exit(97 if tool == 'racecheck' else 0)\n",
    )
    program.chmod(0o755)
    plain = command

    def no_kinds(share: Share, seconds: float, sanitizer: str) -> list[str]:
        return plain(share, seconds, sanitizer) if share.tool else [sys.executable, "-c", "print('SHARE ran 5 left 0')"]

    monkeypatch.setattr(sanitize, "command", no_kinds)
    arguments = ["--sanitizer", str(program), "--jobs", "2", "--seconds", "5"]
    assert sanitize.main([*arguments, "--tools", "memcheck"]) == 0
    assert sanitize.main([*arguments, "--tools", "memcheck", "racecheck"]) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["memcheck", "15", "0", "0", "0", "0", "1"] in lines
    assert ["racecheck", "15", "0", "0", "3", "0", "1"] in lines

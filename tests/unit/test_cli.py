"""The command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fuser_lab import __version__, examples
from fuser_lab.cli import commands as cli
from fuser_lab.report import op_page

NEG = """\
with FusionDefinition() as fd:
    x = fd.define_tensor(shape=[4], contiguity=[True])
    fd.add_output(fd.ops.neg(x))
"""


def test_examples_as_json(capsys):
    assert cli.main(["examples", "sum_broadcast_add", "softmax", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["version"]) == ("fuser_lab.examples", 1)
    first, second = data["examples"]
    assert first["name"] == "sum_broadcast_add"
    assert first["segments"] == 2
    assert first["schedulers"] == ["reduction", "pointwise"]
    assert 0 < first["max_error"] < 1
    assert second["schedulers"] == ["inner_persistent"]
    assert second["seconds"] > 0


def test_examples_as_text(capsys):
    assert cli.main(["examples", "bias_gelu"]) == 0
    assert "bias_gelu" in capsys.readouterr().out


def test_a_wrong_result_is_an_exit_status(capsys, monkeypatch):
    monkeypatch.setattr(examples.Example, "max_error", lambda *_: 2.0)
    assert cli.main(["examples", "softmax"]) == 1
    assert "2.000" in capsys.readouterr().out


def test_one_attempt_is_counted_in_the_singular(capsys, tmp_path):
    script = tmp_path / "neg.py"
    script.write_text(NEG)
    assert cli.main(["explain", str(script)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 attempt, accepted"


RESHAPED = """\
with FusionDefinition() as fd:
    x = fd.define_tensor(shape=[1024, 1024], contiguity=[True, True])
    fd.add_output(fd.ops.sin(fd.ops.reshape(fd.ops.exp(x), [512, 2048])))
"""


def test_top_down_is_forced_by_switches(capsys, tmp_path):
    script = tmp_path / "reshaped.py"
    script.write_text(RESHAPED)
    forced = ["--strategy", "top_down", "--cut-reshape-inputs"]

    def explained(*switches):
        assert cli.main(["explain", str(script), *switches, "--json"]) == 0
        return [segment["exprs"] for segment in json.loads(capsys.readouterr().out)["segments"]]

    assert [len(ops) for ops in explained("--strategy", "top_down")] == [3]
    assert [len(ops) for ops in explained(*forced)] == [1, 2]
    assert [len(ops) for ops in explained(*forced, "--pieces-by-depth", "--no-whole-fusion")] == [1, 2]
    assert [len(ops) for ops in explained("--strategy", "top_down", "--cut-resize-inputs")] == [3]
    assert cli.main(["explain", str(script), "--cut-reshape-inputs"]) == 2
    assert "the strategy 'bottom_up' does not accept cut_reshape_inputs" in capsys.readouterr().err
    assert cli.main(["diff", str(script), "--strategies", "bottom_up,saving", "--cut-reshape-inputs"]) == 2
    capsys.readouterr()
    # If several strategies are given, those without such cuts are compared without them.
    assert cli.main(["diff", str(script), "--cut-reshape-inputs", "--json"]) == 0
    assert capsys.readouterr().out


def test_every_command_names_the_schema_of_its_json(capsys, tmp_path, repository, monkeypatch):
    monkeypatch.setattr(op_page, "op_rows", lambda: ())  # test_op_page.py tests the rows, which take seconds
    script = tmp_path / "neg.py"
    script.write_text(NEG)
    commands = {
        "examples": ["bias_gelu"], "ops": [], "explain": [str(script)], "diff": [str(script)],
        "report": [str(script), "-o", str(tmp_path / "out.html")],
        "price": [str(script)],
        "agree": [str(repository / "tests" / "data" / "dumps" / "permute_and_hint.txt")],
    }
    # `sweep` and `retime` write to a ledger and return an exit status; test_this_cpu.py tests `fit`, and test_locks.py
    # the commands of locks.
    others = {"sweep", "retime", "fit", "lock", "check", "bisect"}
    assert set(commands) | others == set(cli._parser()._subparsers._group_actions[0].choices)
    for command, arguments in commands.items():
        assert cli.main([command, *arguments, "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert data["schema"].startswith("fuser_lab.")
        assert data["version"] == 1


LONG_OUTPUT = """
import sys
from fuser_lab.cli import commands as cli
from fuser_lab.report import op_page
op_page.op_data = lambda: ["longer than a pipe"] * 100_000
sys.exit(cli.main(["ops", "--json"]))
"""


def test_a_reader_that_stops_early_is_no_error():
    command = f"{sys.executable} -c '{LONG_OUTPUT}' | head -1"
    command += "; echo ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.split() == ["[", "141"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["explain", "x.py", "--strategy", "best"], "unknown strategy 'best'; choose from bottom_up, "),
        (["explain", "x.py", "--target", "V100"], "unknown target 'V100'; choose from A100, "),
        (["diff", "x.py", "--strategies", "bottom_up,best"], "unknown strategy 'best'; choose from bottom_up, "),
        (["report", "x.py", "--strategies", ""], "unknown strategy ''"),
    ],
)
def test_what_cannot_be_chosen_is_answered_with_the_choices(arguments, said, capsys):
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "a function" not in error
    assert "a Device" not in error


def test_the_version_is_told(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"fuser_lab {__version__}\n"


def test_bad_names(capsys):
    assert cli.main(["examples", "nothing"]) == 2
    assert "unknown example 'nothing'" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_output_that_cannot_be_written_is_said(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "def nvfuser_fusion(fd):\n    x = fd.define_tensor([4])\n    fd.add_output(fd.ops.neg(x))\n", encoding="utf-8",
    )
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fuser_lab", "explain", str(script)], stdout=full, stderr=subprocess.PIPE, text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "fuser_lab: the output cannot be written: No space left on device.\n"


def test_a_file_or_a_ledger_that_is_not_there_is_named_once(capsys, tmp_path):
    gone = str(tmp_path / "gone")
    assert cli.main(["agree", gone]) != 0
    assert capsys.readouterr().out.splitlines()[0] == f"{gone} cannot be read: No such file or directory."
    assert cli.main(["retime", gone, "r1", "--below", "1"]) == 125
    assert capsys.readouterr().err.strip() == (
        f"fuser_lab: retime: there is no ledger {gone}; give the folder that a sweep wrote."
    )
    assert not (tmp_path / "gone").exists()

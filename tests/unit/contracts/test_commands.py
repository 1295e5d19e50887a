"""The commands lock, check and bisect on a file with a definition, which needs no torch."""

import contextlib
import io
import subprocess

import pytest

import fuser_lab as fl
from fuser_lab import cli
from fuser_lab.cli.user_file import UserFunction, load_function
from fuser_lab.contracts import commands
from fuser_lab.contracts.call import Call
from fuser_lab.contracts.compiled import compile_call
from fuser_lab.contracts.locks import Lock, lock_of, lock_text, printable, revision_of
from fuser_lab.errors import InputError

STEP = """\
from fuser_lab import FusionDefinition

with FusionDefinition() as step:
    x = step.define_tensor([512, 1024], contiguity=True)
    y = step.ops.exp(x)
    z = step.ops.sum(y, [1])
    step.add_output(z)
"""
WORSE = STEP.replace("z = step.ops.sum(y, [1])", "z = step.ops.sum(step.ops.cumsum(y, 1), [1])")


def _git(folder, *arguments):
    identity = ("-c", "user.name=tester", "-c", "user.email=tester@localhost")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository of three commits, of which the second is worse, with locks of the first and the last."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GIT_DIR", raising=False)
    _git(tmp_path, "init", "--quiet")
    for number, (text, title) in enumerate(((STEP, "a step"), (WORSE, "a cumulative sum"), (f"\n{WORSE}", "a line"))):
        (tmp_path / "model.py").write_text(text, encoding="utf-8")
        _git(tmp_path, "add", "model.py")
        _git(tmp_path, "commit", "--quiet", "-m", title)
        step, _, _ = load_function(UserFunction(file="model.py", name="step", library=""))
        made = compile_call(Call(who="lock", function=step, compiler="nvfuser")).partition
        lock = Lock(function="model.py:step", revision=revision_of("model.py"), partition=printable(made))
        (tmp_path / f"{number}.lock").write_text(lock_text(lock), encoding="utf-8")
    return tmp_path


def test_bisect_names_the_decision_and_the_commit(repository, capsys):
    assert cli.main(["bisect", "model.py:step", "--between", "0.lock", "2.lock"]) == 1
    said = capsys.readouterr().out
    assert "cumsum is new" in said
    assert "a cumulative sum (tester" in said.splitlines()[-1]
    assert _git(repository, "worktree", "list").count("\n") == 0  # the worktree of the search is gone


@pytest.mark.parametrize(("arguments", "said"), [
    (["lock", "model.py"], "the function must be FILE:NAME"),
    (["lock", "model.py:step", "--compiler", "nvfuser", "--option", "strategy"], "--option must be NAME=VALUE"),
])
def test_refusals(arguments, said, capsys):
    assert cli.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_a_file_without_the_function_is_refused_with_those_that_it_has(tmp_path):
    (tmp_path / "model.py").write_text("def forward(x):\n    return x\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"^lock: .* has no 'step'; it has forward\. For example: .* lock .*:forward "):
        load_function(UserFunction(file=str(tmp_path / "model.py"), name="step", who="lock", library=""))


def test_lock_writes_what_the_child_process_prints(tmp_path, monkeypatch, capsys):
    run = subprocess.run

    def run_here(command, *, input=None, **options):
        if command[0] == "git":
            return run(command, **options)
        monkeypatch.setattr("sys.stdin", io.StringIO(input))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            status = commands.main()
        return subprocess.CompletedProcess(command, status, printed.getvalue(), "")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands.subprocess, "run", run_here)
    (tmp_path / "model.py").write_text(STEP, encoding="utf-8")
    assert cli.main(["lock", "model.py:step", "--compiler", "nvfuser", "--target", "A100"]) == 0
    assert "nvfuser on A100: 1 kernel" in capsys.readouterr().out
    lock = lock_of("fusion.lock")
    assert (lock.function, lock.partition.device) == ("model.py:step", "A100")
    assert lock.partition.versions == {"fuser_lab": fl.__version__}

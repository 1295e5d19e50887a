"""Files of locks: their text, and the strict reading of hostile ones."""

import difflib
import json

import pytest

import fuser_lab as fl
from fuser_lab import cli
from fuser_lab.contracts.call import Call
from fuser_lab.contracts.compiled import compile_call
from fuser_lab.contracts.locks import Lock, lock_of, lock_text, printable
from fuser_lab.errors import InputError
from fuser_lab.files.reading import record_of


@pytest.fixture(scope="module")
def lock():
    fd, inputs = fl.example("sum_broadcast_add")
    made = compile_call(Call(who="lock", function=fd, inputs=(inputs,), compiler="nvfuser"))
    return Lock(function="model.py:step", partition=printable(made.partition))


def test_a_lock_reads_back(lock, tmp_path):
    path = tmp_path / "fusion.lock"
    path.write_text(lock_text(lock), encoding="utf-8")
    again = lock_of(path)
    assert again.partition.graphs == lock.partition.graphs
    assert again.function == "model.py:step"
    assert lock_text(again) == lock_text(lock)


def test_a_moved_op_is_a_line_less_in_one_kernel_and_a_line_more_in_another(lock):
    data = json.loads(lock_text(lock))
    (graph,) = data["partition"]["graphs"]
    graph["kernels"][1]["ops"].insert(0, graph["kernels"][0]["ops"].pop())
    before, after = (text.replace(",\n", "\n").splitlines() for text in (
        lock_text(lock), lock_text(record_of(Lock, data)),
    ))
    changed = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    assert [line.replace(" ", "") for line in changed] == ['-"broadcast"', '+"broadcast"']


def _changed(text, change):
    data = json.loads(text)
    change(data)
    return json.dumps(data)


HOSTILE = {
    "no JSON": lambda text: "fusion",
    "a list": lambda text: "[]",
    "another format": lambda text: text.replace("fuser_lab.fusion_lock", "fuser_lab.compiled_plans"),
    "a later version": lambda text: text.replace('"version": 1', '"version": 2'),
    "nesting": lambda text: "[" * 100_000,
    "NaN": lambda text: text.replace('"seconds": ', '"seconds": NaN, "x": '),
    "a huge number": lambda text: text.replace('"seconds": ', '"seconds": 1e999, "x": '),
    "a number for a name": lambda text: _changed(text, lambda d: d["partition"].update(compiler=7)),
    "no graphs": lambda text: _changed(text, lambda d: d["partition"].pop("graphs")),
    "an unknown op": lambda text: _changed(
        text, lambda d: d["partition"]["graphs"][0]["kernels"][0]["ops"].append("rm -rf"),
    ),
    "a decision about an unknown op": lambda text: _changed(
        text, lambda d: d["partition"]["graphs"][0]["decisions"][0].update(groups=["x", "y"]),
    ),
    "negative bytes": lambda text: _changed(text, lambda d: d["partition"].update(bytes=-1)),
    "control characters": lambda text: _changed(text, lambda d: d["partition"].update(device="\x1b[2J")),
    "no UTF-8": lambda text: b"\xff\xfe",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused_with_one_sentence(lock, kind, tmp_path):
    path = tmp_path / "fusion.lock"
    text = HOSTILE[kind](lock_text(lock))
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=r"is not a fusion lock: [^\n]*\.$"):
        lock_of(path)


@pytest.fixture
def locks(tmp_path):
    """The paths of two locks of a softmax: in one kernel, and in one kernel per op."""
    fd, inputs = fl.example("softmax")
    paths = tmp_path / "a.lock", tmp_path / "b.lock"
    for path, options in zip(paths, ({}, {"strategy": "unfused"}), strict=True):
        call = Call(who="lock", function=fd, inputs=(inputs,), compiler="nvfuser", options=options)
        path.write_text(lock_text(Lock(partition=printable(compile_call(call).partition))), encoding="utf-8")
    return paths


def test_check_compares_two_locks_with_the_exit_status_of_git_bisect(locks, tmp_path, capsys):
    first, second = locks
    assert cli.main(["check", str(first), str(first)]) == 0
    assert capsys.readouterr().out == "unchanged\n"
    assert cli.main(["check", str(first), str(second)]) == 1
    said = capsys.readouterr().out
    assert said.startswith("regressed: 7 kernels")
    assert "cast, fmax, sub, exp, sum, truediv and cast#2 were in one kernel, and are in 7" in said
    assert cli.main(["check", str(first), str(second), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["verdict"]) == ("fuser_lab.fusion_comparison", "regressed")
    assert data["kernels"] == {"before": 1, "after": 7}
    assert cli.main(["check", str(second), str(first)]) == 0
    assert capsys.readouterr().out.startswith("improved: 1 kernel")
    assert cli.main(["check", str(first), str(tmp_path / "missing.lock")]) == 125
    assert "is not a fusion lock: No such file or directory." in capsys.readouterr().err


def test_bisect_names_the_decision_of_two_locks(locks, capsys):
    first, second = locks
    assert cli.main(["bisect", "model.py:step", "--between", str(first), str(second)]) == 1
    said = capsys.readouterr().out
    assert "the option strategy = 'unfused' is set" in said
    assert "the decision that differs first:\n  cast, fmax, sub, exp, sum, truediv and cast#2 were in one" in said
    assert "the commit: none is searched" in said
    assert cli.main(["bisect", "model.py:step", "--between", str(first), str(first)]) == 0

"""The short form of the replay: kernels and plans are those of the digests that are committed."""

from pathlib import Path

import pytest

from fuser_lab.targets.cuda_compiler import VARIABLE
from tests.replay.record import DIGESTS, compared, difference, digests, row, written


def test_kernels_and_plans_are_those_of_the_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    before = dict(reversed(line.split(" ", 1)) for line in DIGESTS.read_text().splitlines())
    after = digests()
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    names = "\n".join(changed[:20])
    assert not changed, (
        f"{len(changed)} of {len(before)} texts differ from those of {DIGESTS.name}:\n{names}\n"
        "`python -m tests.replay compare` prints how kernels and plans differ from those of HEAD. If the change is "
        "intended, renew the digests with `python -m tests.replay digests` and commit them."
    )


def test_a_changed_character_is_shown_and_new_texts_are_counted(tmp_path: Path) -> None:
    texts = {"a: S0": "x = 1\ny = 2\n", "b: S0": "z = 3\n"}
    before = written(tmp_path / "before", [[row(name, "kernel", text) for name, text in texts.items()]], 1)
    rows = row("a: S0", "kernel", "x = 1\ny = 7\n"), row("c: plan", "plan", "one segment\n")
    after = written(tmp_path / "after", [[rows[0]], [rows[1]]], 2)
    kernels, plans, logs = compared(before, after)
    assert (kernels.count, kernels.differing, kernels.removed, kernels.added) == (1, ("a: S0",), ("b: S0",), ())
    assert (plans.count, plans.differing, plans.added) == (0, (), ("c: plan",))
    assert not logs.count
    assert difference(before, after, "a: S0").splitlines()[-2:] == ["-y = 2", "+y = 7"]
    assert [len(one.removed) for one in compared(before, after, "[!b]")] == [0, 0, 0], "only cases that match count"
    assert str(kernels) == "1 of 1 kernels differ, 1 removed"


def test_an_interrupted_record_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="1 chunks of cases are missing"):
        written(tmp_path / "record", [[row("a", "kernel", "x = 1\n")]], 2)
    assert not list(tmp_path.iterdir())

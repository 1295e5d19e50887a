"""Tuning: candidates are checked and measured, those faster beyond the spread win, results are cached, stops work."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab.errors import ArgumentTypeError, InputError
from fuser_lab.runtime.clocks import HostClock, Sample
from fuser_lab.search import tuning
from tests.unit.tuning_clock import clock

X = np.linspace(0, 1, 64 * 300, dtype=np.float32).reshape(64, 300)


@pytest.fixture(scope="module")
def plan() -> fl.Plan:
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.Float)
        fd.add_output(fd.ops.sum(fd.ops.exp(x), [1]))
    return fl.segment(fd, [X])


@pytest.fixture(autouse=True)
def _few_candidates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tuning, "suggestions", lambda _: ((("grain", 8),), (("grain", 4),), (("partial", 64),)))
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))


def test_the_fastest_beyond_the_spread_is_taken_and_tried_with_others(
    plan: fl.Plan, monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = clock(monkeypatch, {"grain=4": (0.5,), "grain=8": (0.8,), "grain=4, partial=64": (0.4,)})
    found = fl.tune(plan, [X], progress=False)
    assert measured == ["the given plan", "grain=8", "grain=4", "partial=64", "grain=4, partial=64"]
    best = found.best(0)
    assert best is not None
    assert best.values == (("grain", 4), ("partial", 64))
    assert found.plan.segments[0].params("cpu")[0].values["grain"] == 4
    assert found.plan == plan.with_params(0, target="cpu", grain=4, partial=64)
    np.testing.assert_allclose(found.plan.run([X])[0], np.exp(X).sum(1), rtol=1e-5)
    table = found.table()
    assert table.rows[0][2] == "grain=4, partial=64"
    assert table.rows[0][5] == "0.40"
    assert table.rows[0][6] == "taken"
    assert "grain=4, partial=64" in found.svg()
    assert found.complete


def test_what_is_only_within_the_spread_is_a_tie_and_not_taken(plan: fl.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, {"the given plan": (0.8, 1.0, 1.2), "grain=4": (0.7, 0.9, 1.1)})
    found = fl.tune(plan, [X], progress=False)
    assert found.plan == plan
    row = next(r for r in found.table().rows if r[2] == "grain=4")
    assert row[5] == "0.90 (tie)"


def test_what_is_not_faster_when_measured_again_is_not_taken(
    plan: fl.Plan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:
    clock(
        monkeypatch, {"the given plan": (1.0,), "grain=8": (0.2,), "grain=4": (0.1,), "partial=64": (0.8,)},
        {"the given plan": (0.2,), "grain=8": (0.2,), "grain=4": (0.19, 0.21), "partial=64": (0.15,)},
    )
    found = fl.tune(plan, [X], progress=False)
    assert found.plan == plan.with_params(0, target="cpu", partial=64)
    notes = {row[2]: row[6] for row in found.table().rows}
    assert notes["grain=4"] == notes["grain=8"] == "not faster when measured again, alternating with the given plan"
    assert notes["partial=64"] == "taken"
    assert {row[2]: row[5] for row in found.table().rows}["partial=64"] == "0.75"
    assert fl.tune(plan, [X], progress=False).plan == found.plan, "from the cache on disk"


def test_a_slow_moment_of_the_machine_takes_nothing(plan: fl.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = dict.fromkeys(("the given plan", "grain=8", "grain=4", "partial=64"), (0.01,))
    clock(monkeypatch, {**fast, "the given plan": (1.0,)}, fast)
    found = fl.tune(plan, [X], progress=False)
    assert found.plan == plan
    best = found.best(0)
    assert best is not None
    assert not best.values
    assert best.median == 0.01
    assert not any(trial.confirmed for trial in found.trials)


def test_results_are_read_from_disk_the_next_time(
    plan: fl.Plan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:
    measured = clock(monkeypatch, {"grain=4": (0.5,)})
    first = fl.tune(plan, [X], progress=False)
    count = len(measured)
    second = fl.tune(plan, [X], progress=False)
    assert len(measured) == count
    assert second.plan == first.plan
    assert second.kept == {0}
    assert second.trials == first.trials
    fl.tune(plan, [X], progress=False, again=True)
    assert len(measured) == 2 * count
    (place,) = tmp_path.rglob("*.json")
    place.write_text("[{")
    assert fl.tune(plan, [X], progress=False).kept == frozenset()
    fl.tune(plan.with_params(0, target="cpu", partial=128), [X], progress=False)
    assert len(list(tmp_path.rglob("*.json"))) == 2, "another starting point gives another search"


def test_wrong_results_are_never_taken(plan: fl.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, {"grain=4": (0.1,)})
    monkeypatch.setattr(tuning, "distance", lambda *_: math.inf)
    found = fl.tune(plan, [X], progress=False)
    assert found.plan == plan
    assert all(t.note == "wrong results, not timed" and math.isnan(t.median) for t in found.trials)


@pytest.mark.parametrize("ended", ["asked", "interrupted"])
def test_a_search_can_be_ended(plan: fl.Plan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ended: str) -> None:
    measured = clock(monkeypatch, {"grain=8": (0.5,)})
    if ended == "asked":
        found = fl.tune(plan, [X], progress=False, cancelled=lambda: len(measured) >= 3)
    else:
        sample = HostClock.sample

        def interrupting(self: HostClock, call: Callable[[], object], seconds: float) -> Sample:
            if len(measured) >= 3:
                raise KeyboardInterrupt
            return sample(self, call, seconds)

        monkeypatch.setattr(HostClock, "sample", interrupting)
        found = fl.tune(plan, [X], progress=False)
    assert not found.complete
    assert [t.text for t in found.trials] == ["the given plan", "grain=8"]
    assert found.plan.segments[0].params("cpu")[0].values["grain"] == 8
    assert not list(tmp_path.rglob("*.json")), "an incomplete search is not stored"


def test_progress_counts_candidates(plan: fl.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, {})
    seen: list[tuple[int, int, str]] = []
    fl.tune(plan, [X], progress=lambda *said: seen.append(said))
    assert seen[-1] == (3, 3, "S0")


def test_what_cannot_be_tuned_is_told(plan: fl.Plan) -> None:
    with pytest.raises(InputError, match="abstract inputs cannot run"):
        fl.tune(plan, [fl.spec((64, 300), "float32")])
    with pytest.raises(InputError, match="segments must be from 0 to 0, given 4"):
        fl.tune(plan, [X], segments=[4])
    with pytest.raises(ArgumentTypeError, match="plan must be a Plan, given "):
        fl.tune([plan], [X])  # type: ignore[arg-type]

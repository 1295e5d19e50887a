"""Segments are timed inside runs of their plan, so that their times add up."""

from types import SimpleNamespace

import pytest

from fuser_lab.runtime import clocks
from fuser_lab.runtime.clocks import HostClock, Turns


def test_calls_are_measured_in_runs_of_all_of_them():
    seen = []
    measured = HostClock().measured_in_order([lambda n=n: seen.append(n) for n in range(3)])
    for _ in range(4):
        for one in (2, 0, 1, 1):
            assert measured[one]() >= 0
    assert seen == [0, 1, 2] * (len(seen) // 3)
    # One run gives a sample of every call: 8 samples of the second call take 8 runs, after the warm-up.
    assert len(seen) == 3 * (3 + 8)


def test_the_times_of_parts_add_up_to_the_time_of_a_run(monkeypatch):
    # The second call is slow only right after the first: alone it would seem fast.
    state = {"cold": False, "now": 0.0}
    monkeypatch.setattr(clocks, "time", SimpleNamespace(perf_counter=lambda: state["now"]))

    def first():
        state["cold"] = True
        state["now"] += 0.001

    def second():
        state["now"] += 0.004 if state["cold"] else 0.0005
        state["cold"] = False

    clock, turns = HostClock(), Turns(0.1)
    numbers = [turns.add(one) for one in clock.measured_in_order([first, second])]
    whole = turns.add(clock.measured(lambda: (first(), second())))
    for _ in turns.rounds():
        pass
    parts = [turns.sample(number).quartiles()[1] for number in numbers]
    assert sum(parts) == pytest.approx(turns.sample(whole).quartiles()[1], rel=1e-9)

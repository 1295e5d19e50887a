"""A clock for searches of parameters that determines the time of each candidate."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

import fuser_lab as fl
from fuser_lab.runtime.clocks import HostClock
from fuser_lab.search import tuning


def clock(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[str, tuple[float, ...]],
    later: dict[str, tuple[float, ...]] | None = None,
) -> list[str]:
    """Let the clock return a candidate's time by the text of its values, and ``later`` when it is measured again.

    Returns the measured candidates in order, without repeated measurements.
    """
    measured: list[str] = []
    called: list[str] = []
    asked, calling = tuning._Search._measure, tuning._Search._call

    def asking(self: Any, given: fl.Plan, number: int, nest: int, values: Any, wanted: Any) -> tuning.Trial:
        measured.append(tuning.Trial(segment=number, nest=nest, values=values).text)
        return asked(self, given, number, nest, values, wanted)

    def call(self: Any, given: fl.Plan, number: int, nest: int, values: Any, wanted: Any) -> Any:
        called.append(tuning.Trial(segment=number, nest=nest, values=values).text)
        return calling(self, given, number, nest, values, wanted)

    def samples(_: HostClock, call: Callable[[], object]) -> Callable[[], float]:
        call()
        name = called[-1]
        known = {**seconds, **(later or {})} if called.count(name) > 1 else seconds
        values = itertools.cycle(known.get(name, (1.0, 1.0, 1.0)))
        return lambda: next(values)

    monkeypatch.setattr(tuning._Search, "_measure", asking)
    monkeypatch.setattr(tuning._Search, "_call", call)
    monkeypatch.setattr(HostClock, "measured", samples)
    return measured

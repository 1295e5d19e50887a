import math
import threading
from types import ModuleType, SimpleNamespace

import pytest
from unit.report import stub_plan


@pytest.fixture(scope="session")
def stubs() -> ModuleType:
    """The stand-ins for plans."""
    return stub_plan


class StubTimer:
    """Times nothing: one row a segment, a total a plan; waits for ``gate`` before each row."""

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()
        self.asked = []
        self.problem = None

    def __call__(self, plans, inputs, *, progress, cancelled):
        self.asked.append([p.hash for p in plans])
        rows, total = [], sum(len(p.segments) for p in plans)
        for number, plan in enumerate(plans):
            for segment in plan.segments:
                self.gate.wait(10)
                if self.problem:
                    raise self.problem
                if cancelled():
                    return SimpleNamespace(rows=tuple(rows))
                rows.append(row(plan.name, segment.index, math.nan))
                progress(len(rows), total, SimpleNamespace(rows=tuple(rows)))
            rows.append(row(plan.name, None, 1.0 + number))
        return SimpleNamespace(rows=tuple(rows))


def row(plan, segment, ratio):
    return SimpleNamespace(
        plan=plan, segment=segment, scheduler="pointwise", ops=1, bytes_io=10**6, bytes_crossing=0, median=1e-3,
        iqr=2e-5, samples=20, bandwidth=1.0, ratio=ratio, tie=False, device="CPU", timer="wall clock", error=0.1,
    )  # fmt: skip


@pytest.fixture
def timer() -> StubTimer:
    """A timer that can be held and broken."""
    return StubTimer()

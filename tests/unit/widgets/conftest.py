import math
import threading
from types import ModuleType

import pytest
from unit.report import stub_plan

from fuser_lab.cost.measured_times import TimingRow, Timings


@pytest.fixture(scope="session")
def stubs() -> ModuleType:
    """The stand-ins for plans."""
    return stub_plan


class StubTimer:
    """Measures nothing: a row per segment, a total per plan; waits for ``gate`` before each after ``free`` of them."""

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()
        self.free = 0
        self.asked = []
        self.problem = None

    def __call__(self, plans, inputs, *, progress, cancelled):
        self.asked.append([p.hash for p in plans])
        rows, total = [], sum(len(p.segments) for p in plans)
        for number, plan in enumerate(plans):
            for segment in plan.segments:
                if len(rows) >= self.free:
                    self.gate.wait(300)
                if self.problem:
                    raise self.problem
                if cancelled():
                    return Timings(rows=tuple(rows))
                rows.append(row(plan.name, segment.index, math.nan))
                progress(len(rows), total, Timings(rows=tuple(rows)))
            rows.append(row(plan.name, None, 1.0 + number))
        return Timings(rows=tuple(rows))


def row(plan, segment, ratio):
    return TimingRow(
        plan=plan, segment=segment, scheduler="pointwise", ops=1, bytes_in=5 * 10**5, bytes_out=5 * 10**5,
        bytes_crossing=0, median=1e-3, iqr=2e-5, samples=20, ratio=ratio, device="CPU", timer="wall clock", error=0.1,
    )


@pytest.fixture
def timer() -> StubTimer:
    """A timer that can be paused and made to fail."""
    return StubTimer()


@pytest.fixture
def explorer(plan):
    """An explorer of the module's plan."""
    from fuser_lab_widgets import Explorer

    made = Explorer(plan, [], strategies=["unfused"])
    yield made
    made.close()

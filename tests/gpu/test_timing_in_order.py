"""Rows of one table are measured in the same state: a plan's segments and gaps add up to its time, cold and warm."""

from typing import Any

import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab.cost.measured_times import TimingRow

torch = needs("torch")
# Other processes that use the GPU meanwhile would affect one row and not the others.
pytestmark = [pytest.mark.gpu, pytest.mark.benchmark]


def measured(rows: int, columns: int) -> tuple[list[TimingRow], TimingRow]:
    """The rows of the segments and of the plan: the second segment reads what the first has just written."""
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        y = fd.ops.exp(x)
        fd.add_output(fd.ops.add(y, fd.ops.sum(y, [1], keepdim=True)))
    inputs: list[Any] = [torch.randn(rows, columns, device="cuda")]
    plan = fl.segment(fd, inputs).cut("T1")
    assert len(plan.segments) == 2
    times = fl.time(plan, inputs, progress=False, seconds=0.5)
    *parts, whole = times.rows
    return parts, whole


@pytest.mark.parametrize("rows", [512, 8192, 65536], ids=["fits in L2", "spills", "far beyond L2"])
def test_segments_add_up_to_their_plan(rows: int) -> None:
    parts, whole = measured(rows, 4096)
    spread = sum(row.iqr**2 for row in (*parts, whole)) ** 0.5
    launches = 5e-6 * len(parts)  # the gap between two kernels, and the resolution of events
    assert abs(sum(row.median for row in parts) - whole.median) <= max(spread, 0.1 * whole.median) + launches
    assert abs(sum(row.warm for row in parts) - whole.warm) <= max(spread, 0.1 * whole.warm) + launches


def test_a_segment_finds_in_the_cache_what_the_one_before_it_left() -> None:
    parts, whole = measured(512, 4096)  # 8 MB: the first segment's result stays in the L2 cache
    assert whole.warm <= whole.median
    # The second reads warm data in both states; the first is the one that waits for memory.
    assert parts[0].warm < parts[0].median
    assert parts[1].warm == pytest.approx(parts[1].median, rel=0.5, abs=3e-6)

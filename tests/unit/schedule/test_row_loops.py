"""Loops of rows on a GPU: lanes, widths of accesses and loads in flight for rows of any length and number."""

from dataclasses import replace

import pytest

from fuser_lab.cost.device import H200
from fuser_lab.schedule.gpu_row_loops import SHIFTED_STEPS, row_loops
from fuser_lab.schedule.state import LoopSchedule, Space

MANY = 1 << 17


def rows(count: int, depth: int, *, passes: int = 2, later: int = 0, vector: int = 8, shifted: bool = False) -> Space:
    """Rows of BFloat16 whose later passes read ``later`` bytes per element that differ along the row."""
    return Space(
        kept=(count,), reduced=(depth,), kept_run=count, reduced_run=depth, inner_reduced=True, passes=passes,
        reduces=True, vector=vector, shifted=shifted, read_bytes=2, input_bytes=2, value_bytes=2, constant_bytes=later,
        varying_bytes=later, stored_bytes=2 * count * depth, device=H200,
    )


def steps(space: Space, loops: LoopSchedule) -> int:
    return -(-space.groups(loops.vector) // loops.threads[0])


@pytest.mark.parametrize("groups", [n for n in range(3, 120) if n & (n - 1)])
def test_short_rows_leave_few_lanes_idle(groups: int) -> None:
    space = rows(MANY, 8 * groups)
    loops = row_loops(space)
    assert steps(space, loops) >= 3
    assert space.groups(loops.vector) / (steps(space, loops) * loops.threads[0]) > 0.75


@pytest.mark.parametrize("groups", [1, 2, 4, 8, 16, 32])
def test_rows_that_fill_lanes_have_one_group_for_each(groups: int) -> None:
    assert row_loops(rows(MANY, 8 * groups)).threads[0] == groups


@pytest.mark.parametrize("depth", [640, 768, 1280, 12288])
def test_accesses_are_narrower_where_a_third_pass_loads_two_weights(depth: int) -> None:
    assert row_loops(rows(MANY, depth, passes=3, later=4)).vector == 4
    assert row_loops(rows(MANY, depth, passes=2, later=2)).vector == 8


@pytest.mark.parametrize("count", [1, 64])
def test_few_rows_have_all_later_inputs_in_flight(count: int) -> None:
    loops = row_loops(rows(count, 768, passes=3, later=4))
    assert loops.vector == 8
    assert loops.unroll == loops.registers
    many = row_loops(rows(MANY, 768, passes=3, later=4))
    assert many.unroll < many.registers


@pytest.mark.parametrize("depth", [257, 333, 777, 1021, 2047, 4093, 12345, 50257])
def test_rows_that_begin_anywhere_have_many_steps_or_the_narrowest_accesses(depth: int) -> None:
    space = rows(MANY * 1024 // depth, depth, shifted=True)
    loops = row_loops(space)
    assert loops.vector == 2 or steps(space, loops) >= SHIFTED_STEPS
    assert row_loops(replace(space, passes=1)).vector == 8, "a single pass stores nothing"


@pytest.mark.parametrize(("count", "depth", "lanes"), [(MANY * 8, 16, 1), (MANY * 8, 60, 2), (1000, 16, 16)])
def test_lanes_that_read_nothing_together_are_few_if_rows_are_many(count: int, depth: int, lanes: int) -> None:
    space = replace(rows(count, depth, vector=1), read_bytes=0, value_bytes=4, stored_bytes=0, apart=True, widest_sum=4)
    assert row_loops(space).threads[0] == lanes

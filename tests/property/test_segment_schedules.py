"""Schedules of random fusions: printed, they give the plan back; edited, they keep the values or are refused."""

import re

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from thorough import share, tries

import fuser_lab as fl
from fuser_lab.codegen.pipeline import evaluated_because
from fuser_lab.errors import ScheduleError, UnsupportedError
from tests.agreement import STRATEGIES
from tests.fuzz.check import Checked
from tests.fuzz.choices import Choices, Drawn, Seeded
from tests.fuzz.generator import generate

pytestmark = [pytest.mark.property, pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")]

COUNT = share(60)
TYPES = ("grid_x", "grid_y", "block_x", "block_y", "unroll", "serial", "vectorize")
_NUMBER = re.compile(r"\b(?:factor|axis|axis_o|axis_i|vector|blocks|unroll|tile|grain|split|partial|pos)=(-?\d+)")
_THREADS = re.compile(r"\bthreads=\((\d+)")
_TYPE = re.compile(r"ParallelType\.(\w+)")
_FLAG = re.compile(r"\b(True|False)\b")


def edited(text: str, choices: Choices) -> str:
    """Return a schedule with one line changed, left out or moved, or without its last lines."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    place = choices.integer(0, len(lines) - 1)
    how = choices.pick(("change", "change", "change", "leave out", "swap", "end"))
    if how == "leave out" and len(lines) > 1:
        del lines[place]
    elif how == "swap" and place + 1 < len(lines):
        lines[place : place + 2] = lines[place + 1], lines[place]
    elif how == "end":
        del lines[place + 1 :]
    else:
        number = str(choices.pick((2, 4, 8, 3, 1, 16, 0, -1)))
        changes = [
            (found.span(1), new)
            for pattern, new in (
                (_NUMBER, number), (_THREADS, number), (_TYPE, choices.pick(TYPES)),
                (_FLAG, choices.pick(("False", "True"))),
            )
            for found in pattern.finditer(lines[place])
        ]
        if changes:
            (start, end), new = choices.pick(changes)
            lines[place] = lines[place][:start] + new + lines[place][end:]
    return "\n".join(lines)


def check_edited(choices: Choices) -> bool:
    """Edit the schedule of one kernel of a random fusion and check what it gives; whether a kernel follows it."""
    program = generate(choices, 12)
    checked = Checked(program)
    plan = fl.segment(checked.fd, checked.inputs, strategy=choices.pick(STRATEGIES))
    found = [
        segment for segment in plan.segments
        if segment.scheduler is not None and not evaluated_because(segment.fusion, segment.scheduler)
    ]
    if not found:
        return False
    index = choices.pick(found).index
    one = plan.segments[index]
    for schedule in (one.schedule, one.schedule_for("cpu")):
        assert plan.with_schedule(index, str(schedule)).hash == plan.hash, f"{schedule}\n{program}"
    text = str(choices.pick((one.schedule, one.schedule, one.schedule_for("cpu"))))
    for _ in range(choices.integer(1, 3)):
        text = edited(text, choices)
    try:
        changed = plan.with_schedule(index, text)
    except (ScheduleError, UnsupportedError):
        return False
    again = plan.with_schedule(index, str(changed.segments[index].schedule))
    assert again.hash == changed.hash, f"{text}\n{changed.segments[index].schedule}\n{program}"
    try:
        checked.plan(changed, ("cuda",) if changed.segments[index].loops else ("cuda", "cpu"))
    except AssertionError as error:
        raise AssertionError(f"segment {index}: {error}\n{text}\n{program}") from error
    return True


@tries(60, phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_edited_schedules_of_random_fusions(data):
    check_edited(Drawn(data))


def test_a_fixed_batch_has_kernels_that_follow_an_edit():
    assert sum(check_edited(Seeded(17, index)) for index in range(COUNT)) >= COUNT // 4

"""The Schedule tab shows each step with the loop nest after it, and its buttons change and run one."""

import json
import re

import numpy as np
import pytest

pytest.importorskip("anywidget")

from fuser_lab_widgets import Explorer, schedules

import fuser_lab as fl
from fuser_lab.errors import InputError

X = np.arange(512, dtype=np.float32).reshape(4, 128)


def row_sum():
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.sum(x, [1]))
    return fl.segment(fd, [X])


class Page:
    """Presses the buttons of the tab as the page does."""

    def __init__(self, explorer):
        self.explorer, self.number = explorer, 0

    def send(self, kind, **data):
        self.number += 1
        self.explorer.events = [{"n": self.number, "type": kind, **data}]
        return self.explorer.status["text"]

    @property
    def html(self):
        return self.explorer.panels["schedule"]["html"]

    def press(self, text):
        """Press the first button with a text."""
        found = re.search(rf'data-send="([^"]*)"[^>]*>{text}</button>', self.html)
        assert found, f"no button {text!r}"
        event = json.loads(found.group(1).replace("&quot;", '"'))
        return self.send(event.pop("type"), **event)


@pytest.fixture
def page():
    explorer = Explorer(row_sum(), [X])
    found = Page(explorer)
    found.send("panel", name="schedule")
    yield found
    explorer.close()


def test_steps_are_shown_with_the_loop_nest_after_each(page):
    schedule = page.explorer.plan.segments[0].schedule
    assert page.html.count("<details>") == len(schedule.transforms)
    assert ".split(axis=1, factor=" in page.html
    assert "for threadIdx.x in 32:" in page.html
    assert "not yet the kernel that runs" in page.html


def test_a_changed_step_runs_and_is_undone(page):
    before = page.explorer.plan
    assert page.press("factor 16") == "S0 follows a schedule by hand."
    edited = page.explorer.plan
    assert edited.hash != before.hash
    assert "factor=16" in str(edited.segments[0].schedule)
    np.testing.assert_allclose(edited.run([X])[0], X.sum(1))
    assert page.press("Return to the automatic kernel") == "S0 has its automatic kernel again."
    assert page.explorer.plan.hash == before.hash
    page.send("undo")
    assert page.explorer.plan.hash == edited.hash


def test_a_step_that_others_need_cannot_be_left_out(page):
    before = page.explorer.plan.hash
    assert "is not a tensor" in page.press("Leave out")
    assert page.explorer.plan.hash == before


def test_changes_of_steps():
    transforms = row_sum().segments[0].schedule.transforms
    split = next(n for n, one in enumerate(transforms) if one.kind == "split")
    assert dict(schedules.changed(transforms, split, 8)[split].args)["factor"] == 8
    assert len(schedules.changed(transforms, split, None)) == len(transforms) - 1
    with pytest.raises(InputError, match="has no factor"):
        schedules.changed(transforms, 0, 8)
    with pytest.raises(InputError, match="has no step 100"):
        schedules.changed(transforms, 99, 8)

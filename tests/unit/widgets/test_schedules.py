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
        assert found, f"there is no button {text!r}"
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
    assert "This is the schedule of the kernel that runs" in page.html
    assert "# threads of a block, in x" in page.html


def test_other_parameters_are_ranked_and_one_is_used(page):
    before = page.explorer.plan
    page.press("Rank other parameters")
    found = before.segments[0].candidates()
    assert f"from {found.source}; fl.tune" in page.html
    assert page.html.count(">Use</button>") == min(len(found.ranked), 8)
    first = found.ranked[0]
    assert first.text in page.html
    assert page.press("Use") == "S0 has these parameters. Run measures them."
    edited = page.explorer.plan
    assert edited.hash == before.with_params(0, **dict(first.values)).hash != before.hash
    assert "Rank other parameters" in page.html, "a ranking is shown only for its kernel"
    page.send("undo")
    assert page.explorer.plan.hash == before.hash


def test_a_changed_step_runs_and_is_undone(page):
    before = page.explorer.plan
    assert page.press("factor 16") == "S0 follows this schedule."
    edited = page.explorer.plan
    threads = before.segments[0].params()[0].values["threads"]
    assert edited.hash == before.with_params(0, threads=(16, threads[1])).hash != before.hash
    assert "factor=16" in str(edited.segments[0].schedule)
    assert "the scheduler's kernel with numbers that were set by hand" in page.html.replace("&#x27;", "'")
    np.testing.assert_allclose(edited.run([X])[0], X.sum(1))
    assert page.press("Return to the automatic kernel") == "S0 has its automatic kernel."
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
    assert dict(schedules.change_step(transforms, split, 8)[split].args)["factor"] == 8
    assert len(schedules.change_step(transforms, split, None)) == len(transforms) - 1
    with pytest.raises(InputError, match="has no factor"):
        schedules.change_step(transforms, 0, 8)
    (line,) = row_sum().segments[0].schedule_for("cpu").transforms
    assert dict(schedules.change_step([line], 0, 8, "partial")[0].args)["partial"] == 8
    with pytest.raises(InputError, match="has no step 100"):
        schedules.change_step(transforms, 99, 8)


def test_numbers_of_a_template_are_changed(page):
    columns = np.ones((1 << 12, 64), np.float32)
    with fl.FusionDefinition() as fd:
        x, dy = (fd.define_tensor([-1, -1], contiguity=True) for _ in range(2))
        row = fd.ops.sum(fd.ops.mul(x, dy), [1], keepdim=True)
        fd.add_output(fd.ops.sub(dy, fd.ops.mul(x, row)))
        fd.add_output(fd.ops.sum(dy, [0]))
    plan = fl.segment(fd, [columns, columns])
    template = Page(Explorer(plan, [columns, columns]))
    template.send("panel", name="schedule")
    assert "fd.sched.on_blocks" in template.html
    blocks = plan.segments[0].params()[0].values["blocks"]
    assert template.press(f"blocks {blocks // 2}") == "S0 follows this schedule."
    assert template.explorer.plan.hash == plan.with_params(0, blocks=blocks // 2).hash
    template.explorer.close()

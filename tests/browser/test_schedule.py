"""The schedule tab: a step with the loop nest after it, and a changed step."""

from __future__ import annotations

import pytest
from browser.accessibility import serious_findings
from browser.stage import Stage
from browser.tools import open_view
from browser.waiting import expect
from fuser_lab_widgets import Explorer

import fuser_lab as fl

pytestmark = pytest.mark.browser


def test_a_step_is_opened_and_changed(browser, shots):
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.sum(x, [1]))
    stage, explorer = Stage(browser, size=(1440, 900)), Explorer(fl.segment(fd, [fl.spec((4, 128))]))
    stage.show(explorer)
    root = stage.root
    open_view(root, "schedule")
    step = root.locator("details").filter(has_text=".split(axis=1, factor=32").first
    step.locator("summary").click()
    expect(step.locator("pre")).to_contain_text("for serial in 32:")
    root.screenshot(path=shots / "schedule.png")
    step.get_by_role("button", name="factor 16").click()
    expect(stage.status).to_have_text("S0 follows this schedule.")
    expect(root.locator("summary").filter(has_text=".split(axis=1, factor=16")).to_have_count(1)
    expect(root.get_by_role("button", name="Return to the automatic kernel")).to_be_visible()
    assert serious_findings(stage.page) == []  # settled
    assert stage.errors == []
    stage.close()

"""The button beside a refusal that shows the plan without the rule."""

from __future__ import annotations

import re

import pytest
from browser.accessibility import serious_findings
from browser.sizes import joined_sums
from browser.stage import Stage
from browser.tools import open_view
from browser.waiting import expect
from fuser_lab_widgets import Explorer

pytestmark = pytest.mark.browser


def test_a_rule_is_lifted_beside_its_refusal(browser, shots):
    explorer = Explorer(joined_sums(), [], strategies=["top_down", "unfused", "optimal"], title="joined sums")
    stage = Stage(browser, size=(1280, 720))
    stage.show(explorer)
    stage.settle()
    root = stage.root
    root.locator(".fl-edge.fl-boundary").first.dispatch_event("click", {"shiftKey": True, "bubbles": True})
    lift = root.locator(".fx-inspector").get_by_role("button", name="Lift this rule: ")
    expect(lift.first).to_be_attached()
    assert serious_findings(stage.page) == []  # settled
    stage.page.screenshot(path=shots / "explorer-refusals.png")
    open_view(root, "decisions")
    rows = root.locator(".fx-decision").filter(has_text=re.compile(r"T4\} \+ "))
    rows.first.locator("summary").click()
    rows.first.get_by_role("button", name="Lift this rule: connected_besides").first.press("Enter")
    expect(root.locator(".fx-status")).to_contain_text("Without the rule connected_besides: ")
    expect(root.locator(".fx-status")).to_contain_text("2 → 1 segment, −67.1 MB")
    open_view(root, "compare")
    expect(root.locator(".fx-panel")).to_contain_text("the plan with connected_besides")
    stage.page.screenshot(path=shots / "explorer-lifted.png")
    assert serious_findings(stage.page) == []  # settled
    root.get_by_role("button", name="Undo").click()
    expect(root.locator(".fx-status")).to_have_text("Undid lift connected_besides.")
    assert stage.errors == []
    stage.close()
    explorer.close()

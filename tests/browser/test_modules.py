"""The level of modules in one explorer, and the header of the explorer on a small screen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from browser.accessibility import serious_findings
from browser.sizes import layers
from browser.stage import Stage
from browser.tools import tool
from browser.waiting import eventually, expect
from fuser_lab_widgets import Explorer

pytestmark = pytest.mark.browser


@pytest.fixture
def stage(browser):
    plan = layers(2)
    ops = [expr.name for expr in plan.fusion.tensor_exprs]
    half = len(ops) // 2
    paths = ["layers.0.norm"] * 10 + ["layers.0.softmax"] * (half - 10) + ["layers.1.norm"] * (len(ops) - half)
    plan = replace(plan, modules=tuple(zip(ops, paths, strict=True)))
    explorer = Explorer(plan, [], strategies=["top_down", "optimal", "unfused"], title="two layers")
    found = Stage(browser, size=(1280, 720))
    found.show(explorer)
    found.settle()
    yield found
    found.close()
    explorer.close()


def test_modules_open_and_fold_again(stage, shots):
    root = stage.root
    boxes = root.locator(".fl-whole")
    modules = tool(root, "Modules")
    modules.click()
    expect(modules).to_have_attribute("aria-pressed", "true")
    first = root.locator('.fl-whole[data-id="module:layers.0@0"]')
    first.focus()
    stage.page.keyboard.press("Enter")
    expect(root.locator(".fx-inspector h3")).to_contain_text("layers.0 in Segment 0")
    expect(first).to_have_count(1)
    folded = boxes.count()
    root.get_by_role("button", name="Show what it holds").click()
    inner = root.locator('.fl-whole[data-id="module:layers.0.norm@0"]')
    expect(inner).to_have_count(1)
    expect(first).to_have_count(0)
    inner.dispatch_event("click", {"bubbles": True})
    root.get_by_role("button", name="Show what it holds").click()
    expect(root.locator('.fl-node[data-id="op:0"]')).to_have_count(1)
    stage.settle()
    stage.page.screenshot(path=shots / "explorer-modules.png")
    assert serious_findings(stage.page) == []  # settled
    root.locator('.fl-node[data-id="op:0"]').dispatch_event("click", {"bubbles": True})
    root.get_by_role("button", name="Fold layers.0.norm").click()
    inner.dispatch_event("click", {"bubbles": True})
    root.get_by_role("button", name="Fold layers.0", exact=True).click()
    expect(first).to_have_count(1)
    expect(boxes).to_have_count(folded)
    assert stage.errors == []


def test_a_double_click_or_a_key_opens_a_box_and_a_key_closes_it(stage):
    root, page = stage.root, stage.page
    tool(root, "Modules").click()
    first = root.locator('.fl-whole[data-id="module:layers.0@0"]')
    inner = root.locator('.fl-whole[data-id="module:layers.0.norm@0"]')
    first.dblclick()
    expect(inner).to_have_count(1)
    expect(first).to_have_count(0)
    inner.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("x")
    op = root.locator('.fl-node[data-id="op:0"]')
    expect(op).to_have_count(1)
    op.focus()
    page.keyboard.press("Enter")
    expect(root.get_by_role("button", name="Fold layers.0.norm")).to_be_visible()
    page.keyboard.press("x")
    expect(inner).to_have_count(1)
    tool(root, "Segments").click()
    segment = root.locator('.fl-whole[data-id="segment:0"]')
    segment.dblclick()
    expect(segment).to_have_count(0)
    expect(op).to_have_count(1)
    op.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("x")
    expect(segment).to_have_count(1)
    assert stage.errors == []


def test_the_head_is_one_row_and_the_status_is_seen(stage):
    root = stage.root
    strategy = root.get_by_label("Strategy")
    root.locator(".fl-edge.fl-inside .fl-hit").first.dispatch_event("click", {"bubbles": True})
    expect(strategy).to_have_value("mine")  # the longest choice, next to all numbers
    expect(root.locator(".fx-status")).to_be_in_viewport(ratio=1)
    head, tools = (root.locator(one).bounding_box() for one in (".fx-head", ".fx-tools"))
    assert head["height"] < 2 * tools["height"]
    strategy.select_option("unfused")
    expect(root.locator(".fx-status")).to_contain_text("Unfused: ")
    expect(strategy).to_have_value("unfused")
    root.get_by_role("button", name="Undo").click()
    expect(strategy).to_have_value("mine")
    canvas = root.locator(".fx-graph").bounding_box()["height"]
    said = "A sentence of the segmenter that takes more than two lines. " * 8
    stage.page.evaluate("(text) => window.model.take({ status: { n: 99, kind: 'info', text } })", said)
    expect(root.locator(".fx-said")).to_have_attribute("title", said)
    stage.settle()
    eventually(lambda: root.locator(".fx-graph").bounding_box()["height"], canvas)
    assert stage.errors == []

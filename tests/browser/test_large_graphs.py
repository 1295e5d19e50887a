"""Graphs of hundreds of ops: room, a search that finds the intended op, and steps over an edited plan."""

import re

import pytest
from browser.tools import tool
from browser.waiting import expect, until

pytestmark = pytest.mark.browser

CHAIN = """\
import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition

with FusionDefinition() as fd:
    t = x = fd.define_tensor([64, 64], contiguity=True, dtype=DataType.Float)
    for n in range(330):
        t = fd.ops.sin(t)
    fd.add_output(t)

fl.explore(fd, title="long chain")
"""
SOFTMAX = """\
import fuser_lab as fl

fl.explore(*fl.example("softmax"), title="softmax")
"""


def test_the_ops_of_a_large_graph_get_more_room_until_somebody_chooses_it(open_explorer):
    desk = open_explorer(CHAIN)
    explorer = desk.explorer
    graph = explorer.locator(".fx-graph")
    explorer.locator(".fl-whole").first.wait_for()
    desk.settle()
    collapsed = graph.bounding_box()["height"]
    tool(explorer, "Ops").click()
    explorer.locator(".fl-whole").wait_for(state="detached")
    until(lambda: graph.bounding_box()["height"], lambda opened: opened >= collapsed and opened > 300)
    graph.evaluate("one => { one.style.height = '333px' }")  # like dragging the corner
    tool(explorer, "Segments").click()
    explorer.locator(".fl-whole").first.wait_for()
    expect(graph).to_have_css("height", "333px")
    tool(explorer, "Ops").click()
    explorer.locator(".fl-whole").wait_for(state="detached")
    search = explorer.get_by_role("searchbox", name="Search the graph")
    search.fill("t12")
    explorer.get_by_text("13 found").wait_for()  # T12, T120 to T129, and their readers
    search.press("Enter")
    explorer.locator(".fx-inspector").get_by_role("heading", name="T12 =").wait_for()
    assert desk.complaints == []


def test_steps_over_an_edited_plan_show_the_groups_of_the_decision(open_explorer, shots):
    desk = open_explorer(SOFTMAX)
    explorer, status = desk.explorer, desk.explorer.locator(".fx-status")
    ops = explorer.locator(".fl-op").count()
    assert ops > 0
    desk.click_edge("T4", "inside")
    status.get_by_text("1 → 2 segments").wait_for()
    desk.page.keyboard.press("j")
    status.get_by_text("Decision 0 (1 of 1): ").wait_for()
    expect(status).to_have_text(re.compile(r"\(before your edits\)$"))
    joined = explorer.locator(".fl-op.fx-joined")
    expect(joined).to_have_count(ops)
    desk.page.wait_for_function("""() => {
      const shapes = document.querySelectorAll('.fl-explorer .fl-op.fx-joined .fl-shape');
      return new Set([...shapes].map((one) => getComputedStyle(one).fill)).size === 1;
    }""")  # after the transition of colours
    explorer.screenshot(path=shots / "explorer-steps-edited.png")
    desk.page.keyboard.press("Escape")
    expect(explorer.locator(".fx-stepping")).to_have_count(0)
    assert desk.complaints == []

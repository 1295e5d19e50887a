"""One selection for all: graph, inspector, log, kernels, PTX, tables and plots."""

import re

import pytest
from browser.tools import open_view
from browser.waiting import eventually, expect, until

pytestmark = pytest.mark.browser

REAL = """\
import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
import numpy as np
with FusionDefinition() as fd:
    x, y = (fd.define_tensor([512, 512], contiguity=True, dtype=DataType.Float) for _ in range(2))
    a = fd.ops.exp(x)
    b = fd.ops.mul(a, fd.ops.broadcast(fd.ops.sum(a, dims=[1]), is_broadcast_dim=[False, True]))
    columns = fd.ops.broadcast(fd.ops.sum(b, dims=[0]), is_broadcast_dim=[True, False])
    fd.add_output(fd.ops.neg(fd.ops.add(fd.ops.mul(b, columns), y)))
plan = fl.segment(fd, strategy="unfused").glue(0, 1).glue(2, 3)
fl.explore(plan, [np.ones((512, 512), np.float32)] * 2)
"""
NAMES = "(all) => [...new Set(all.map((line) => line.dataset.name))]"


def test_an_op_its_lines_in_both_kernels_and_its_ptx_are_one_selection(open_explorer, shots):
    desk = open_explorer(REAL)
    explorer = desk.explorer
    node = explorer.locator(".fl-op:has(title:text-matches('= exp'))")
    name = node.evaluate("(g) => g.querySelector('title').textContent").partition(" ")[0]
    node.click()
    explorer.get_by_role("button", name="Show source").click()
    lit = explorer.locator(".fx-panel .fx-lit")
    for target, word in (("CPU", "exp"), ("CUDA", "exp"), ("PTX", "")):
        button = explorer.get_by_role("button", name=target, exact=True)
        button.click()
        expect(button).to_have_attribute("aria-pressed", "true")
        eventually(lambda: lit.evaluate_all(NAMES), [name])
        until(lambda: " ".join(lit.all_inner_texts()), lambda text, word=word: word in text)
    explorer.screenshot(path=shots / "explorer-ptx.png")
    other = explorer.locator(f".fx-panel .fx-at:not([data-name='{name}'])").first
    aim = other.get_attribute("data-name")
    other.click()
    explorer.locator(f".fx-panel .fx-lit[data-name='{aim}']").first.wait_for()
    expect(explorer.locator(".fl-node.fx-selected title").first).to_contain_text(aim)
    expect(explorer.locator(".fx-inspector h3")).to_contain_text(aim)
    explorer.get_by_label("Segment", exact=True).select_option("2")
    explorer.locator(".fx-panel pre[aria-label='Source of segment 2']").wait_for()
    expect(explorer.locator(".fx-panel pre")).to_contain_text(".visible .entry")
    assert desk.complaints == []


def test_rows_bars_and_marks_of_every_tab_select_and_show_what_is_selected(open_explorer):
    desk = open_explorer(REAL)
    explorer, page = desk.explorer, desk.page
    explorer.get_by_role("button", name="Run").click()
    explorer.get_by_text("Done: ").wait_for()
    heading = explorer.locator(".fx-inspector h3")
    for view in ("segments", "timings", "roofline", "memory"):
        desk.open_view(view)
        item = explorer.locator(".fx-panel [data-id='segment:1']").first
        item.dispatch_event("click")
        heading.get_by_text("Segment 1").wait_for()
        page.wait_for_function("() => document.querySelector('.fx-panel .fx-current')?.dataset.id === 'segment:1'")
        explorer.locator(".fl-op").last.press("Enter")  # it is below the part of the picture that is seen
        heading.get_by_text("neg").wait_for()
        expect(explorer.locator(".fx-panel .fx-current")).to_have_count(0)
    for view in ("layouts", "graph"):
        desk.open_view(view)
        row = explorer.locator(".fx-panel tr[data-id^='op:']").first
        aim = row.get_attribute("data-id")
        row.focus()
        page.keyboard.press("Enter")
        page.wait_for_function("(id) => document.querySelector('.fl-node.fx-selected')?.dataset.id === id", arg=aim)
        expect(explorer.locator(".fx-panel .fx-current").first).to_have_attribute("data-id", aim)
    assert desk.complaints == []


def test_decisions_about_the_selection_are_marked_in_the_log(open_explorer):
    desk = open_explorer(REAL.replace('strategy="unfused").glue(0, 1).glue(2, 3)', 'strategy="bottom_up")'))
    explorer = desk.explorer
    open_view(explorer, "decisions")
    explorer.locator(".fx-decision").nth(1).wait_for()  # decisions are sent in pages, on request
    expect(explorer.locator(".fx-mine")).to_have_count(0)
    explorer.locator(".fl-op").first.click()
    explorer.locator(".fx-mine").first.wait_for()
    name = re.search(r"T\d+", explorer.locator(".fx-inspector h3").inner_text())[0]
    explorer.get_by_role("button", name="Decisions about it").click()
    rows = explorer.locator(".fx-decision")
    expect(explorer.locator(".fx-decision:not(.fx-mine)")).to_have_count(0)
    expect(rows).not_to_have_count(0)
    # A click on a decision shows the groups after it, and its ops.
    rows.first.locator(".fx-reason").click()
    about = explorer.locator(".fl-op.fx-about title, .fl-op.fx-refusing title")
    until(about.all_text_contents, lambda texts: name in {text.partition(" ")[0] for text in texts})
    assert desk.complaints == []

"""The result of an edit is shown at the pointer and at the focus; profitable edits are one click away."""

import re

import pytest
from browser.tools import open_view
from browser.waiting import expect

pytestmark = pytest.mark.browser

PLAN = """\
import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
with FusionDefinition() as fd:
    x = fd.define_tensor([256, 512], contiguity=True, dtype=DataType.Float)
    a = fd.ops.exp(x)
    b = fd.ops.mul(a, fd.ops.broadcast(fd.ops.sum(a, dims=[1]), is_broadcast_dim=[False, True]))
    fd.add_output(fd.ops.add(b, fd.ops.broadcast(fd.ops.sum(b, dims=[0]), is_broadcast_dim=[True, False])))
fl.explore(fl.segment(fd))
"""

FITS_LONG_NAMES = """hint => {
    const name = document.createTextNode(" " + "long_".repeat(40));
    hint.append(name);
    const fits = hint.scrollWidth <= hint.clientWidth;
    name.remove();
    return fits;
}"""


def hovered(desk, tensor, kind):
    """The text at the pointer over an edge, once Python has computed the result of a click."""
    desk.page.mouse.move(*desk.middle(tensor, kind))
    hint = desk.explorer.locator(".fx-hint.fx-on")
    hint.filter(has_text=":").wait_for()
    return hint.inner_text()


def test_what_a_click_would_give_is_told_before_it(open_explorer, shots):
    desk = open_explorer(PLAN)
    explorer, page = desk.explorer, desk.page
    words = hovered(desk, "T5", "inside")
    promised = re.fullmatch(r"cut T5: (\d+) → (\d+) segments, \+(.*) moved, \+(.*) predicted \(H200\)", words)
    assert promised, words
    explorer.screenshot(path=shots / "explorer-preview.png")
    desk.has_segments(int(promised[1]))
    desk.edge("T5", "inside").first.locator(".fl-hit").dispatch_event("click")
    explorer.locator(".fx-status").get_by_text("Cut at T5").wait_for()
    desk.has_segments(int(promised[2]))
    expect(desk.status).to_contain_text(f"+{promised[3]} moved")
    page.keyboard.press("u")
    refused = explorer.locator(".fl-boundary.fx-cannot")
    refused.first.wait_for()
    tensor = refused.first.get_attribute("data-id").partition("|")[0]
    assert hovered(desk, tensor, "boundary").startswith("cannot glue S")
    assert explorer.locator(".fx-hint.fx-on").evaluate(FITS_LONG_NAMES)  # settled
    refused.first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.wait_for_function("() => /^Enter: .*:/.test(document.activeElement.getAttribute('aria-description') || '')")
    expect(explorer.locator(".fx-hint.fx-on")).to_have_count(1)
    refused.first.dispatch_event("click", {"shiftKey": True, "bubbles": True})
    button = explorer.locator(".fx-actions button[aria-disabled=true]").filter(has_text="Glue")
    button.wait_for()
    now = desk.segments()
    button.dispatch_event("click")
    expect(explorer.locator(".fx-said")).to_have_text(button.get_attribute("title"))
    desk.has_segments(now)
    assert desk.complaints == []


def test_the_best_edit_is_applied_with_a_click(open_explorer, shots):
    desk = open_explorer(PLAN)
    explorer = desk.explorer
    explorer.get_by_label("Strategy").select_option("unfused")
    explorer.get_by_text("Unfused: ").wait_for()
    explorer.locator(".fl-boundary.fx-saves2").first.wait_for()
    open_view(explorer, "edits")
    apply = explorer.get_by_role("button", name="Apply: ").first
    apply.wait_for()
    explorer.screenshot(path=shots / "explorer-best-edits.png")
    segments = desk.segments()
    apply.click()
    explorer.get_by_text(re.compile(rf"{segments} → {segments - 1} segments")).first.wait_for()
    desk.has_segments(segments - 1)
    assert desk.complaints == []

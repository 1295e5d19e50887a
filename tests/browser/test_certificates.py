
import pytest
from browser.tools import open_view
from browser.waiting import expect, until

pytestmark = pytest.mark.browser

# Two sums of a matrix, along rows and along columns, which nvFuser's rules cut more often than they must.
FUSION = """\
import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition

with FusionDefinition() as fd:
    x, y = (fd.define_tensor([4096, 4096], contiguity=True, dtype=DataType.Float) for _ in range(2))
    wide = fd.ops.cast(fd.ops.cast(x, dtype=DataType.Double), dtype=DataType.Float)
    a = fd.ops.exp(wide)
    rows = fd.ops.broadcast(fd.ops.sum(a, dims=[1]), is_broadcast_dim=[False, True])
    b = fd.ops.mul(a, rows)
    columns = fd.ops.broadcast(fd.ops.sum(b, dims=[0]), is_broadcast_dim=[True, False])
    fd.add_output(fd.ops.add(fd.ops.mul(b, columns), y))
    fd.add_output(fd.ops.sum(fd.ops.mul(y, columns), dims=[1]))

fl.explore(fd, title="sums both ways")
"""


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.matrix)])
def test_the_optimal_plan_its_certificate_and_the_passes(open_explorer, shots, theme):
    desk = open_explorer(FUSION, theme=theme)
    explorer, status = desk.explorer, desk.explorer.locator(".fx-status")
    desk.has_segments(3)
    open_view(explorer, "certificate")
    explorer.locator(".fx-panel").get_by_text("Searches for a plan with a lower cost").wait_for()
    expect(explorer.get_by_role("button", name="Cancel search")).to_have_count(0)
    explorer.get_by_role("button", name="Search for a cheaper plan").click()
    explorer.locator(".fx-verdict").wait_for()
    expect(explorer.locator(".fx-verdict")).to_contain_text("no plan costs less")
    desk.settle()
    explorer.screenshot(path=shots / f"explorer-certificate-{theme}.png")
    explorer.get_by_label("Strategy").select_option("optimal")
    status.get_by_text("Optimal: ").wait_for()
    expect(explorer.get_by_label("Strategy")).to_have_value("optimal")
    desk.has_segments(2)
    expect(explorer.locator(".fx-busy")).to_have_count(0)
    open_view(explorer, "passes")
    panel = explorer.locator(".fx-panel")
    panel.get_by_text("consecutive_casts").wait_for()
    expect(panel).to_contain_text("changed the fusion, in this order")
    drawn = panel.locator(".fl-rewrite.fl-removed > text")
    until(drawn.all_text_contents, lambda texts: bool(texts) and all(text.startswith("− T") for text in texts))
    until(drawn.first.bounding_box, lambda box: box is not None and box["height"] >= 9)
    expect(explorer.locator(".fx-gone")).not_to_have_count(0)
    desk.settle()
    explorer.screenshot(path=shots / f"explorer-passes-{theme}.png")
    assert desk.complaints == []
    assert desk.strangers == []


HELD = """\
from pathlib import Path

def found():
    end = time.monotonic() + 600
    while not Path("found").exists() and time.monotonic() < end:
        time.sleep(0.05)
    return stub_plan.replace(plan, groups=(("T2", "T3"), ("T4",)), strategy="optimal")

Explorer(stub_plan.replace(plan, makers=(("optimal", found),)), strategies=["optimal"], title="held")
"""


def test_a_search_is_cancelled_or_opened_when_it_is_ready(open_explorer, lab):
    desk = open_explorer(HELD)
    explorer, status = desk.explorer, desk.explorer.locator(".fx-status")
    optimal = explorer.locator("[data-key=optimal]")
    optimal.click()
    cancel = explorer.get_by_role("button", name="Cancel search")
    cancel.wait_for()
    expect(optimal).to_have_attribute("aria-busy", "true")
    cancel.click()
    status.get_by_text("The search was cancelled.").wait_for()
    expect(cancel).to_have_count(0)
    optimal.click()
    cancel.wait_for()
    desk.click_edge("T3", "inside")
    status.get_by_text("Cut at T3").wait_for()
    (lab.root / "found").touch()
    status.get_by_text("The optimal plan is ready").wait_for()
    expect(optimal).to_have_attribute("aria-pressed", "false")
    status.get_by_role("button", name="Show it").click()
    status.get_by_text("Optimal: ").wait_for()
    expect(optimal).to_have_attribute("aria-pressed", "true")
    expect(status.get_by_role("button")).to_have_count(0)
    assert desk.complaints == []

"""From a click to code: segment_set inserted at an edge, read as a cut, top-down, timed, copied and executed."""

import json
import re

import pytest
from browser.accessibility import serious_findings
from browser.test_actions import button, in_kernel, look_at, says
from browser.tools import tool
from browser.waiting import expect

pytestmark = pytest.mark.browser

FUSION = """\
import numpy as np
import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition

with FusionDefinition() as fd:
    x = fd.define_tensor([256, 256], contiguity=True, dtype=DataType.Float)
    a = fd.ops.exp(x)
    r = fd.ops.reshape(fd.ops.neg(a), [128, 512])
    fd.add_output(fd.ops.sin(a))
    fd.add_output(fd.ops.cos(r))

explorer = fl.explore(fd, [np.ones((256, 256), np.float32)], title="exp, twice")
explorer
"""
NEXT_CELL = """async (code) => {
  const panel = window.jupyterapp.shell.currentWidget;
  panel.content.activeCellIndex = panel.content.widgets.length - 1;
  await window.jupyterapp.commands.execute('notebook:insert-cell-below');
  panel.content.activeCell.model.sharedModel.setSource(code);
  await window.jupyterapp.commands.execute('notebook:run-cell');
  const { outputs } = panel.content.activeCell.model.sharedModel;
  return outputs.map((o) => o.output_type === 'error' ? o.evalue : '').join('');
}"""


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.matrix)])
def test_from_a_click_to_code_that_runs(open_explorer, shots, theme):
    desk = open_explorer(FUSION, theme=theme)
    explorer = desk.explorer
    desk.has_segments(1)
    tool(desk.explorer, "segment_set").click()
    x, y = desk.middle("T1", "inside")
    desk.page.mouse.move(x, y)
    expect(explorer.locator(".fx-hint")).to_have_text("insert segment_set at a T1")
    desk.click_edge("T1", "inside")
    says(desk, re.compile(r"^Inserted segment_set at a T1 → T\d: .*1 → \d segments, \+"))
    marked = explorer.locator(".fl-edge.fl-hinted")
    expect(marked).to_have_count(1)
    expect(marked.locator(".fl-mark")).to_have_count(1)
    expect(marked).to_have_attribute("aria-label", re.compile("annotated T1_hint"))
    expect(explorer.locator(".fx-badge")).to_have_text("segment_set(a T1)")
    hinted = desk.segments()
    found = {"annotated": serious_findings(desk.page)}
    button(desk, "cut").click()
    says(desk, "Segmented with segment_set as cut: ")
    expect(button(desk, "cut")).to_have_attribute("aria-pressed", "true")
    expect(button(desk, "at reshapes")).to_have_count(0)
    explorer.get_by_label("Strategy").select_option("top_down")
    says(desk, "Top-down: ")
    forced = desk.segments()
    button(desk, "at reshapes").click()
    says(desk, "Segmented with cuts at reshapes on: ")
    assert len({hinted, forced, desk.segments()}) > 1  # settled: each after its sentence
    look_at(desk, "T1_hint", "boundary")
    explorer.get_by_role("button", name="Remove segment_set").wait_for()
    desk.settle()
    explorer.screenshot(path=shots / f"explorer-annotated-{theme}.png")
    found["forced"] = serious_findings(desk.page)
    button(desk, "Run").click()
    explorer.get_by_text("Done: ").wait_for()
    expect(explorer.locator(".fx-total")).to_have_count(2)
    button(desk, "Copy as code").click()
    code = explorer.locator(".fx-inspector pre")
    code.get_by_text("fd.ops.segment_set(").wait_for()
    explorer.screenshot(path=shots / f"explorer-code-{theme}.png")
    failed = desk.page.evaluate(NEXT_CELL, code.inner_text())
    assert failed == ""
    assert in_kernel(desk, "print(plan.hash == explorer.plan.hash, plan.strategy)").split() == ["True", "top_down"]
    button(desk, "nvfuser_direct").click()
    code.get_by_text("from nvfuser_direct import").wait_for()
    read = f"again, specs = fl.load_repro({json.dumps(code.inner_text())})\n"
    read += "options = fl.SegmenterOptions(segment_set='cut', cut_reshape_inputs=True)\n"
    read += "print(fl.segment(again, specs, strategy='top_down', options=options).hash == explorer.plan.hash)"
    assert in_kernel(desk, read).strip() == "True"
    found["code"] = serious_findings(desk.page)
    button(desk, "Undo").click()
    says(desk, "Undid cuts at reshapes on.")
    look_at(desk, "T1_hint", "boundary")
    explorer.get_by_role("button", name="Remove segment_set").click()
    says(desk, "Removed the segment_set of a T1: ")
    expect(explorer.locator(".fl-mark")).to_have_count(0)
    expect(explorer.locator(".fx-badge")).to_be_hidden()
    assert {state: said for state, said in found.items() if said} == {}
    assert desk.complaints == []
    assert desk.strangers == []


def test_the_key_inserts_and_removes(open_explorer):
    desk = open_explorer(FUSION)
    look_at(desk, "T1", "inside")
    desk.page.keyboard.press("s")
    desk.explorer.locator(".fl-mark").wait_for()
    look_at(desk, "T1_hint", "boundary")
    desk.page.keyboard.press("s")
    desk.explorer.locator(".fl-mark").wait_for(state="detached")
    assert desk.complaints == []


LINKED = """\
import ipywidgets as w
choice = w.Dropdown(options=["bottom_up", "top_down", "unfused"])
reading = w.Dropdown(options=["hint", "cut", "ignore"])
picked, busy = w.Text(description="selection"), w.ToggleButton(description="running")
w.link((explorer, "strategy"), (choice, "value"))
w.link((explorer, "reading"), (reading, "value"))
w.jslink((explorer, "selection"), (picked, "value"))
w.jslink((explorer, "running"), (busy, "value"))
seen = []
note = lambda change: seen.append((change["name"], explorer.plan.strategy))
explorer.observe(note, ["plan", "strategy", "selection"])
w.VBox([w.HBox([choice, reading, picked, busy]), explorer])
"""


def test_traits_are_linked_with_other_widgets_and_it_stands_in_a_box(open_explorer, shots):
    desk = open_explorer(FUSION.removesuffix("explorer\n"), LINKED)
    page, explorer = desk.page, desk.explorer
    page.locator(".widget-dropdown select").first.select_option("unfused")
    says(desk, "Unfused: 5 segments.")
    expect(explorer.get_by_label("Strategy")).to_have_value("unfused")
    explorer.get_by_label("Strategy").select_option("bottom_up")
    says(desk, "Bottom-up: 1 segment.")
    page.wait_for_function("() => document.querySelector('.widget-dropdown select').value === 'bottom_up'")
    look_at(desk, "T1", "inside")
    page.wait_for_function("() => document.querySelector('.widget-text input').value.startsWith('T1 -> T')")
    assert in_kernel(desk, "explorer.selection = 'T1'\nprint(seen)").count("unfused") >= 2
    explorer.locator(".fl-op.fx-selected").wait_for()
    expect(explorer.locator(".fl-op.fx-selected title")).to_have_text(re.compile("^T1 = exp"))
    page.locator(".widget-toggle-button").click()
    explorer.get_by_text("Done: ").wait_for()
    assert in_kernel(desk, "print(explorer.running, len(explorer.timings.rows))").split()[0] == "False"
    page.locator(".widget-toggle-button:not(.mod-active)").wait_for()
    explorer.screenshot(path=shots / "explorer-linked.png")
    assert desk.complaints == []

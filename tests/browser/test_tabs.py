"""Tabs and situations at two screen sizes: all is visible and legible, nothing overlaps; tabs also under axe-core."""

from __future__ import annotations

import re

import pytest
from browser.accessibility import RULES, serious_findings
from browser.sizes import two_norms
from browser.stage import Stage
from browser.test_canvas import FAULTS, FAULTS_BELOW, SCREENS
from browser.tools import open_view, view_names
from browser.waiting import eventually, expect, until
from fuser_lab_widgets import Explorer

from fuser_lab.cost.measured_times import TimingRow, Timings

pytestmark = pytest.mark.browser

# Defects in the panel of a tab: words that are too small or overlap, and buttons that overlap or extend beyond it.
PANEL_FAULTS = """(panel) => {
  const faults = [];
  const box = (e) => e.getBoundingClientRect();
  const shown = (e) => e.checkVisibility({ visibilityProperty: true }) && box(e).width > 1;
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  const frame = box(panel);
  const seen = Math.min(frame.bottom, innerHeight) - frame.top;
  if (seen < 60) faults.push(`${seen} px of the panel are on the screen`);
  for (const e of panel.querySelectorAll("*")) {
    const words = [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data.trim()).join("");
    if (!words || !shown(e) || e.closest("option, title, style")) continue;
    const scale = e.ownerSVGElement?.getScreenCTM().a ?? 1;
    const size = parseFloat(getComputedStyle(e).fontSize) * scale;
    if (size < 10.95) faults.push(`${words} is ${size.toFixed(1)} px`);
  }
  const texts = [...panel.querySelectorAll("svg text")].filter((t) => shown(t) && t.textContent.trim());
  const controls = [...panel.querySelectorAll("button, input, select")].filter(shown);
  for (const all of [texts, controls]) {
    const boxes = all.map(box);
    boxes.forEach((a, n) => boxes.slice(n + 1).forEach((b, m) => {
      if (meet(a, b)) faults.push(`${all[n].textContent} meets ${all[n + 1 + m].textContent}`);
    }));
  }
  for (const c of controls) if (box(c).right > frame.right + 1) faults.push(`${c.textContent} sticks out`);
  return faults;
}"""
# Defects of a small explorer: no room for the inspector or the zoom, something over the tabs, or over the status line.
SMALL_FAULTS = """(root) => {
  const faults = [];
  const box = (css) => root.querySelector(css).getBoundingClientRect();
  const [main, tabs, panel, inspector] = [".fx-main", ".fx-tabs", ".fx-panel", ".fx-inspector"].map(box);
  if (main.bottom > tabs.top + 1) faults.push(`the canvas ends at ${main.bottom}, the tabs begin at ${tabs.top}`);
  for (const [name, { height }] of Object.entries({ inspector, panel })) {
    if (height < 60) faults.push(`the ${name} is ${height} px high`);
  }
  for (const one of [...root.querySelectorAll(".fx-zoom button, .fx-tab, .fx-feedback button, .fx-said")]) {
    if (!one.checkVisibility()) continue;
    const { left, top, width, height } = one.getBoundingClientRect();
    for (const share of [0.1, 0.5, 0.9]) {
      const hit = document.elementFromPoint(left + width * share, top + height / 2);
      if (!one.contains(hit)) faults.push(`${one.textContent} is below ${hit?.className}`);
    }
  }
  return faults;
}"""
UNFOLD = "(panel) => [...panel.querySelectorAll('details')].slice(0, 2).forEach((one) => { one.open = true; })"


def timed(plans, inputs, *, progress, cancelled):
    """Rows like those of a run, without running anything."""
    return Timings(rows=tuple(
        TimingRow(
            plan=name, segment=index, scheduler="pointwise", ops=1, bytes_in=10**6, bytes_out=10**6, bytes_crossing=0,
            median=1e-3, iqr=2e-5, samples=20, device="CPU", timer="wall clock", error=0.1)
        for name, plan in zip(("baseline", "edited"), plans, strict=False)
        for index in (*range(len(plan.segments)), None)
    ))


@pytest.fixture
def stage(browser):
    explorer = Explorer(two_norms(), [], strategies=["unfused"], timer=timed, title="tabs")
    made = Stage(browser, size=SCREENS[0])
    made.show(explorer)
    made.settle()
    yield made
    made.close()
    explorer.close()


def resize(stage, size):
    stage.page.set_viewport_size({"width": size[0], "height": size[1]})
    until(lambda: stage.page.evaluate("() => innerWidth"), lambda width: width == size[0])
    stage.settle()


def show_view(stage, name):
    open_view(stage.root, name)
    panel = stage.root.locator(".fx-panel")
    expect(panel).not_to_have_text(re.compile(r"^\s*$|…\s*$"))
    panel.evaluate(UNFOLD)
    stage.settle()


def themed(stage, theme):
    stage.page.emulate_media(color_scheme=theme)
    stage.page.evaluate("(light) => { document.body.dataset.jpThemeLight = light; }", str(theme == "light").lower())


def test_every_situation_is_seen_whole_at_both_sizes(stage, shots):
    root, keys, found = stage.root, stage.page.keyboard, {}

    def look(name, faults=FAULTS):
        for size in SCREENS:
            resize(stage, size)
            stage.page.screenshot(path=shots / f"situation-{name}-{size[0]}.png")
            found[name, size] = root.evaluate(faults)

    root.locator(".fl-edge.fl-inside .fl-hit").last.dispatch_event("click")
    expect(stage.status).to_contain_text("Cut at")
    look("edited")
    root.get_by_role("button", name="unfused").click()
    expect(stage.status).to_contain_text("Unfused: ")
    look("another-strategy")
    root.get_by_role("button", name="bottom-up").click()
    expect(stage.status).to_contain_text("Bottom-up: ")
    stage.settle()
    room = root.locator(".fx-canvas").bounding_box()
    stage.explorer.wait(60)  # the previews come with the next answer
    root.locator(".fl-boundary").first.dispatch_event("click", {"shiftKey": True})
    root.locator(".fl-boundary.fx-cannot").last.dispatch_event("click")
    expect(root.locator(".fx-status.fx-error")).to_be_visible()
    look("refused")
    assert root.locator(".fx-canvas").bounding_box() == room  # settled: an answer takes no room from the picture
    resize(stage, (720, 700))  # where the answer does not fit
    more = root.get_by_role("button", name="Read on", exact=True)
    more.click()
    expect(root.get_by_role("button", name="Less", exact=True)).to_have_attribute("aria-expanded", "true")
    assert root.locator(".fx-said").evaluate("(e) => e.scrollHeight <= e.clientHeight")  # settled: it is open
    stage.page.screenshot(path=shots / "situation-refused-open.png")
    assert serious_findings(stage.page, ".fx-feedback") == []  # settled: it is open
    keys.press("j")
    expect(root.locator(".fx-stepping")).to_be_visible()
    look("steps")
    bands = "(all) => all.filter((e) => getComputedStyle(e).stroke !== 'rgba(0, 0, 0, 0)').length"
    lit = root.locator(".fl-boundary:not(.fx-joined, .fx-selected) .fl-hit")
    assert lit.evaluate_all(bands) == 0  # settled: only groups have bands
    keys.press("Escape")
    expect(stage.status).to_contain_text("No scheduler accepts segments")
    root.get_by_label("Search the graph").fill("sum")
    expect(root.get_by_text(" found")).to_be_visible()
    look("search")
    keys.press("Escape")
    root.evaluate("(one) => one.focus()")
    keys.press("?")
    expect(root.get_by_role("dialog", name="Keys")).to_be_visible()
    look("keys", FAULTS_BELOW)
    assert serious_findings(stage.page, "[role=dialog]") == []  # settled: the keys are shown
    root.get_by_role("button", name="Close").press("Enter")
    expect(root.get_by_role("dialog", name="Keys")).to_be_hidden()
    assert {where: said for where, said in found.items() if said} == {}
    assert stage.errors == []


def test_every_tab_is_legible_and_accessible_at_both_sizes_and_in_both_themes(stage, shots):
    root, explorer = stage.root, stage.explorer
    root.locator(".fl-edge.fl-inside .fl-hit").last.dispatch_event("click")
    expect(stage.status).to_contain_text("Cut at")
    root.get_by_role("button", name="Run").click()
    explorer.wait(60)
    found = {}
    for name in view_names(root):
        show_view(stage, name)
        for size in SCREENS:
            resize(stage, size)
            stage.page.screenshot(path=shots / f"tab-{name}-{size[0]}.png")
            found[name, size] = root.evaluate(FAULTS) + root.locator(".fx-panel").evaluate(PANEL_FAULTS)
        for theme, rules in RULES.items():
            themed(stage, theme)
            found[name, theme] = serious_findings(stage.page, ".fx-panel", rules=rules)
        themed(stage, "light")
    assert {where: said for where, said in found.items() if said} == {}
    assert stage.errors == []


@pytest.mark.parametrize(("width", "height"), [(468, 630), (440, 460), (640, 400), (640, 560)])
def test_a_small_explorer_with_an_open_tab_has_all_of_its_parts(stage, width, height):
    resize(stage, (width, 700))
    stage.root.evaluate("(root, px) => Object.assign(root.style, { height: `${px}px`, minHeight: 0 })", height)
    show_view(stage, "compare")
    stage.root.locator(".fl-op").first.dispatch_event("click")
    stage.rest()
    stage.settle()
    eventually(lambda: stage.root.evaluate(SMALL_FAULTS), [])


def test_what_was_measured_is_in_the_head_of_a_small_explorer_with_a_long_title(browser):
    explorer = Explorer(two_norms(), [], timer=timed, title="bottom-up (the same plan as top-down and optimal)")
    made = Stage(browser, size=(848, 700))
    made.show(explorer)
    made.root.get_by_role("button", name="Run").click()
    made.rest()
    measured = made.root.locator(".fx-facts > span", has_text="measured (this CPU)")
    expect(measured).to_be_visible()
    row, number = made.root.locator(".fx-facts").bounding_box(), measured.bounding_box()
    assert row["y"] <= number["y"] < row["y"] + 9
    assert number["x"] + number["width"] <= row["x"] + row["width"]
    expect(made.root.locator(".fx-title")).to_have_attribute("title", re.compile(re.escape(explorer.scene["title"])))
    made.close()
    explorer.close()

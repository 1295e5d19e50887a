"""The canvas at two screen sizes: nothing overlaps, every box has a name, no word is too small."""

from __future__ import annotations

import re

import pytest
from browser.accessibility import RULES, serious_findings
from browser.measure import metrics
from browser.sizes import chain, layers, two_norms
from browser.stage import Stage
from browser.tools import colour_by, in_menu, tool
from browser.waiting import eventually, expect, until
from fuser_lab_widgets import Explorer

pytestmark = pytest.mark.browser

SCREENS = [(1440, 900), (1280, 720)]
LARGE = ("400", "chain")  # on the smaller screen only, where words have the least room
PLANS = {"11": two_norms, "60": lambda: layers(3), "400": lambda: layers(22), "chain": lambda: chain(18)}
# All defects of the drawing, as sentences.
FAULTS = """(root) => {
  const faults = [];
  const shown = (e) => e.checkVisibility({ visibilityProperty: true });
  const box = (e) => e.getBoundingClientRect();
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  const canvas = box(root.querySelector(".fx-canvas"));
  const scale = root.querySelector(".fx-canvas svg").getScreenCTM().a;
  const words = [...root.querySelectorAll(".fx-canvas svg text")].filter((t) => shown(t) && box(t).width > 1);
  for (const t of words) for (const part of [t, ...t.querySelectorAll("tspan")]) {
    if (part.textContent.trim() && shown(part)) {
      const grown = part.closest(".fl-label") ? new DOMMatrix(getComputedStyle(t).transform).a : 1;
      const size = parseFloat(getComputedStyle(part).fontSize) * scale * grown;
      if (size < 10.95) faults.push(`${part.textContent} is ${size.toFixed(1)} px`);
    }
  }
  const boxes = words.map(box);
  const controls = [...root.querySelectorAll("button, input, select, .fx-status, .fx-facts, .fx-title")]
    .filter((e) => shown(e) && !e.closest(".fx-panel, .fx-help, .fx-menu"));
  for (const [all, name] of [[boxes, words], [controls.map(box), controls]]) {
    all.forEach((a, n) => all.slice(n + 1).forEach((b, m) => {
      const [one, two] = [name[n], name[n + 1 + m]];
      if (!meet(a, b) || one.contains(two) || two.contains(one)) return;
      faults.push(`${one.textContent} meets ${two.textContent}`);
    }));
  }
  const pen = document.createElement("canvas").getContext("2d");
  for (const one of controls.filter((c) => c.localName === "select")) { // an arrow of 16 pixels beside the words
    const { fontSize, fontFamily, paddingLeft, paddingRight } = getComputedStyle(one);
    pen.font = `${fontSize} ${fontFamily}`;
    const { text } = one.selectedOptions[0];
    const needed = pen.measureText(text).width + parseFloat(paddingLeft) + parseFloat(paddingRight) + 16;
    if (needed > one.clientWidth + 1) faults.push(`${text} is cut off`);
  }
  for (const frame of root.querySelectorAll(".fx-frame")) {
    const [inner, outer] = [box(frame), box(frame.closest(".fx-overview"))];
    const isIn = inner.top >= outer.top && inner.bottom <= outer.bottom
      && inner.left >= outer.left && inner.right <= outer.right;
    if (shown(frame) && !isIn) faults.push("the frame is outside of the overview");
  }
  for (const c of controls) if (meet(box(c), canvas)) faults.push(`${c.textContent} lies over the canvas`);
  for (const e of [...controls, root.querySelector(".fx-canvas"), root.querySelector(".fx-tabs")]) {
    const { left, top, right, bottom } = box(e);
    if (e.closest(".fx-inspector")) continue; // which scrolls
    const seen = left >= 0 && top >= 0 && right <= innerWidth + 0.5 && bottom <= innerHeight + 0.5;
    if (!seen) faults.push(`${e.textContent} is off the screen`);
  }
  for (const node of root.querySelectorAll(".fl-node:not(.fx-dot)")) {
    const { textContent } = node.querySelector(".fl-name");
    if (shown(node) && !textContent.trim()) faults.push(`${node.dataset.id} has no name`);
  }
  for (const head of root.querySelectorAll(".fl-head")) {
    if (!words.some((t) => head.contains(t))) faults.push(`${head.dataset.id} has no name`);
  }
  const seen = ({ left, top, right, bottom }) => left >= canvas.left && top >= canvas.top
    && right <= canvas.right && bottom <= canvas.bottom;
  for (const edge of root.querySelectorAll(".fl-edge")) {
    const wire = edge.querySelector(".fl-wire");
    if (!shown(edge) || !seen(box(wire)) || root.querySelector(".fx-tiny")) continue; // boxes hide what is in them
    const tensor = (id) => id?.split("|")[0];
    const hits = [0.5, 0.4, 0.6, 0.3, 0.7].map((share) => { // another wire may cross right in the middle
      const at = wire.getPointAtLength(wire.getTotalLength() * share).matrixTransform(wire.getScreenCTM());
      return document.elementFromPoint(at.x, at.y)?.closest("[data-id]")?.dataset.id;
    });
    const { id } = edge.dataset;
    if (!hits.some((hit) => tensor(hit) === tensor(id))) faults.push(`the middle of ${id} hits ${hits}`);
    if (hits.some((hit) => !hit?.includes("|"))) faults.push(`the middle of ${id} lies below ${hits}`);
  }
  return faults;
}"""
FAULTS_BELOW = FAULTS.replace('querySelectorAll(".fl-edge")', 'querySelectorAll("none")')  # edges are below a dialog


@pytest.fixture(scope="module")
def plans():
    return {name: make() for name, make in PLANS.items()}


@pytest.fixture
def open_stage(browser):
    open_ones = []

    def open_it(plan, **options):
        explorer = Explorer(plan, [], strategies=["top_down", "optimal"], title="canvas")
        stage = Stage(browser, **options)
        open_ones.append((stage, explorer))
        stage.show(explorer)
        stage.settle()
        return stage

    yield open_it
    for stage, explorer in open_ones:
        stage.close()
        explorer.close()


def draw(stage, detail):
    """Draw the ops, or the segments, and wait until they are drawn."""
    button = tool(stage.root, detail)
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    stage.settle()


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "screen"), [
    pytest.param(name, screen, marks=[pytest.mark.matrix] if name in LARGE and screen is SCREENS[0] else [])
    for name in PLANS for screen in SCREENS
])
def test_all_boxes_have_names_and_nothing_overlaps(open_stage, plans, shots, screen, name):
    stage = open_stage(plans[name], size=screen)
    stage.page.screenshot(path=shots / f"canvas-{name}-{screen[0]}.png")
    faults = stage.root.evaluate(FAULTS)
    for detail in ("Segments", "Ops"):
        draw(stage, detail)
        faults += [f"{detail}: {fault}" for fault in stage.root.evaluate(FAULTS)]
    stage.page.screenshot(path=shots / f"canvas-{name}-ops-{screen[0]}.png")
    stage.root.get_by_role("button", name="Fit", exact=True).click()
    faults += [f"whole: {fault}" for fault in stage.root.evaluate(FAULTS)]
    assert faults == []
    assert stage.errors == []


def test_far_away_segments_say_what_they_are_and_near_by_ops_appear(open_stage, plans):
    stage = open_stage(plans["60"])
    root, keys = stage.root, stage.page.keyboard
    ops = root.locator(".fl-op >> visible=true")
    until(ops.count, lambda count: count > 0)
    stage.rest()
    root.evaluate("(root) => root.focus()")
    keys.press("0")
    expect(ops).to_have_count(0)
    first = root.locator(".fl-head .fx-label").first
    expect(first).to_have_text(re.compile(r"S0.*ops.*(µs|ms)"))
    assert root.evaluate(FAULTS) == []  # settled
    for _ in range(12):
        keys.press("+")
    until(ops.count, lambda count: count > 0)
    frame = root.locator(".fx-frame")
    before = frame.get_attribute("y")
    box = root.locator(".fx-overview").bounding_box()
    stage.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 0.9 * box["height"])
    expect(frame).not_to_have_attribute("y", before)


def test_what_is_searched_for_is_seen_where_ops_were_hidden(open_stage, plans):
    stage = open_stage(plans["60"])
    root = stage.root
    root.evaluate("(root) => root.focus()")
    stage.page.keyboard.press("0")
    expect(root.locator(".fl-op >> visible=true")).to_have_count(0)
    root.get_by_label("Search the graph").fill("sum")
    found = root.locator(".fl-op.fx-found")
    expect(root.get_by_text(" found")).to_have_text(f"{found.count()} found")
    expect(found.first).to_be_visible()


def test_the_ops_of_each_decision_and_of_the_selection_with_the_focus_are_brought_into_view(open_stage, plans):
    stage = open_stage(plans["60"])
    root = stage.root
    canvas = root.locator(".fx-canvas").bounding_box()

    def is_seen(op):
        box = op.bounding_box()
        middle = box["y"] + box["height"] / 2
        return canvas["y"] < middle < canvas["y"] + canvas["height"]

    last = root.locator(".fl-op").last
    assert not is_seen(last)
    last.press("Enter")
    eventually(lambda: is_seen(last), True)
    root.get_by_role("button", name="Fit", exact=True).click()
    root.evaluate("(root) => root.focus()")
    stage.page.keyboard.press("j")
    about = root.locator(".fl-op:is(.fx-about, .fx-refusing)")
    until(about.count, lambda count: count > 0)
    slider = root.get_by_label("Decisions taken")
    for step in ("1", slider.get_attribute("max")):
        slider.fill(step)
        eventually(lambda: any(map(is_seen, about.all())), True)


def test_a_late_answer_takes_the_place_of_the_words_that_none_came(open_stage, plans):
    stage = open_stage(plans["11"])
    before = stage.status.inner_text()
    stage.page.evaluate("() => { window.model.save_changes = () => {}; }")  # as a busy kernel
    stage.root.locator(".fl-op").first.click()
    expect(stage.status).to_contain_text("No answer from the kernel yet")
    stage.page.evaluate("() => window.model.take({ acked: window.model.get('events').at(-1).n })")
    expect(stage.status).to_have_text(before)


def test_panels_dock_beside_the_canvas_and_give_their_room_back(open_stage, plans):
    stage = open_stage(plans["11"])
    canvas = stage.root.locator(".fx-canvas")
    first = canvas.bounding_box()
    for key, side in (("i", "width"), ("t", "height"), ("d", "height")):
        stage.root.evaluate("(root) => root.focus()")
        stage.page.keyboard.press(key)
        until(canvas.bounding_box, lambda box, side=side: abs(box[side] - first[side]) > 50)
        stage.settle()
        assert stage.root.evaluate(FAULTS) == []  # settled
        stage.page.keyboard.press(key)
        eventually(canvas.bounding_box, first)
    stage.page.keyboard.press("?")
    expect(stage.root.get_by_role("dialog", name="Keys")).to_be_visible()
    stage.settle()
    assert stage.root.evaluate(FAULTS_BELOW) == []  # settled


def test_keys_still_reach_the_explorer_after_what_had_the_focus_is_drawn_anew_or_hidden(open_stage, plans):
    stage = open_stage(plans["11"])
    root, keys = stage.root, stage.page.keyboard
    root.locator(".fl-op").nth(3).focus()
    for detail in ("Segments", "Ops"):  # neither picture contains the focused element of the other
        keys.press("o")
        expect(in_menu(root, detail)).to_have_attribute("aria-pressed", "true")
        expect(root).to_be_focused()
    root.locator(".fl-edge.fl-inside").last.focus()
    root.get_by_role("button", name=re.compile("^Cut at")).press("Enter")
    expect(stage.status).to_contain_text("Cut at")
    keys.press("u")
    expect(stage.status).to_contain_text("Undid")
    keys.press("j")
    root.get_by_role("button", name="End stepping").press("Enter")
    expect(root).to_be_focused()
    stage.page.evaluate("() => document.activeElement.blur()")  # like a click beside the explorer
    stage.settle()
    expect(root).not_to_be_focused()


def test_an_edit_keeps_all_names_and_undoing_it_moves_everything_back(open_stage, plans):
    stage = open_stage(plans["60"])
    places = "(all) => Object.fromEntries(all.map((g) => [g.dataset.id, g.getAttribute('transform')]))"
    nodes = stage.root.locator(".fl-node")
    before = nodes.evaluate_all(places)
    stage.click(stage.root.locator(".fl-edge.fl-inside .fl-hit").last)
    expect(stage.status).to_contain_text("Cut at")
    stage.settle()
    until(lambda: nodes.evaluate_all(places), lambda after: set(after) >= set(before))
    assert stage.root.evaluate(FAULTS) == []  # settled
    stage.page.keyboard.press("u")
    expect(stage.status).to_contain_text("Undid")
    eventually(lambda: nodes.evaluate_all(places), before)


def test_segments_are_coloured_by_bytes_time_and_distance_from_the_roof(open_stage, plans, shots):
    stage = open_stage(plans["11"])
    fills = "(all) => all.map((box) => getComputedStyle(box).fill)"
    boxes = stage.root.locator(".fl-segment .fl-box")
    plain = boxes.evaluate_all(fills)
    stage.rest()  # colourings follow the picture
    for by in ("bytes", "time", "roof"):
        colour_by(stage.root, by)
        expect(stage.root.locator(".fx-legend")).to_have_text(re.compile(r"\S"))
        until(lambda: set(boxes.evaluate_all(fills)), lambda colours: len(colours) > 1)
        stage.settle()
        assert stage.root.evaluate(FAULTS) == []  # settled
    stage.page.screenshot(path=shots / "canvas-heat.png")
    stage.root.evaluate("(root) => root.focus()")
    stage.page.keyboard.press("h")
    eventually(lambda: boxes.evaluate_all(fills), plain)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_in_any_panel(open_stage, plans, theme):
    stage = open_stage(plans["400"], theme=theme)
    rules = RULES[theme]
    found = {"folded": serious_findings(stage.page, rules=rules)}
    stage.root.locator('.fl-whole[data-id^="block:"]').first.click()
    expect(stage.root.locator(".fx-inspector")).to_contain_text("times")
    found["a block"] = serious_findings(stage.page, rules=rules)
    folded = stage.root.locator(".fl-whole").count()
    stage.root.get_by_role("button", name="Show its segments").click()
    until(stage.root.locator(".fl-whole").count, lambda now: now > folded)
    colour_by(stage.root, "roof")
    expect(stage.root.locator(".fx-legend")).to_have_text(re.compile(r"\S"))
    for key, panel in (("d", ".fx-decisions .fx-decision"), ("2", ".fx-panel tr"), ("m", ".fx-menu button")):
        stage.root.evaluate("(root) => root.focus()")
        stage.page.keyboard.press(key)
        expect(stage.root.locator(panel).first).to_be_visible()
    found["all panels"] = serious_findings(stage.page, rules=rules)
    assert {state: said for state, said in found.items() if said} == {}


def test_a_button_of_the_inspector_keeps_the_focus_only_while_it_is_of_the_same_plan(open_stage):
    stage = open_stage(two_norms())
    stage.root.locator(".fl-edge.fl-inside .fl-hit").first.dispatch_event("click", {"shiftKey": True})
    cut = stage.root.locator(".fx-inspector").get_by_role("button", name="Cut at")
    cut.focus()
    again = "(more) => window.model.take({ answer: { ...window.model.state.answer, ...more } })"
    stage.page.evaluate(again, {"adopt": True})
    expect(cut).to_be_focused()
    stage.page.evaluate(again, {"plan": -1})
    expect(cut).not_to_be_focused()


@pytest.mark.parametrize("width", [900, 1280])
def test_the_switches_of_a_mode_take_one_row_beside_the_status_while_it_is_the_mode(open_stage, width):
    stage = open_stage(two_norms(), size=(width, 720))
    at_reshapes = stage.root.get_by_role("button", name="at reshapes")
    meaning = stage.root.get_by_role("group", name="Meaning of segment_set")
    expect(at_reshapes).to_have_count(0)
    expect(meaning).to_be_hidden()
    stage.root.get_by_label("Strategy").select_option("top_down")
    expect(at_reshapes).to_be_visible()
    tool(stage.root, "segment_set").click()
    expect(meaning).to_be_visible()
    expect(stage.status).to_contain_text("inserts or removes")
    tool(stage.root, "Cut").click()
    expect(meaning).to_be_hidden()
    rows = """(group) => new Set([...group.children].filter((one) => one.getClientRects().length)
      .map((one) => one.offsetTop)).size"""
    beside = """(row) => row.querySelector('.fx-status').getBoundingClientRect().bottom
      > row.querySelector('.fx-controls').getBoundingClientRect().top"""
    edges = stage.root.locator(".fl-edge.fl-inside .fl-hit")
    stage.click(edges.last)
    expect(stage.status).to_contain_text("Cut at")
    controls = stage.root.locator(".fx-feedback .fx-controls")
    eventually(lambda: controls.evaluate(rows), 1)
    eventually(lambda: stage.root.locator(".fx-feedback").evaluate(beside), True)


def test_the_picture_is_the_same_at_every_size_of_the_canvas(browser):
    seen = []
    for size in ((1680, 1050), (1280, 720), (900, 700)):
        stage, explorer = Stage(browser, size=size), Explorer(two_norms())
        stage.show(explorer)
        stage.settle()
        nodes = stage.root.locator(".fl-node")
        places = nodes.evaluate_all("(all) => all.map((g) => [g.dataset.id, g.getAttribute('transform')])")
        for key in ("i", "t", "t", "i"):
            stage.root.evaluate("(root) => root.focus()")
            stage.page.keyboard.press(key)
            expect(stage.root.locator(".fl-op >> visible=true")).to_have_count(10)  # a panel leaves all in the picture
        seen.append((explorer.scene["size"], places))
        stage.close()
        explorer.close()
    assert seen[0] == seen[1] == seen[2]


def test_only_what_is_seen_of_thousands_of_ops_is_in_the_page(open_stage):
    stage = open_stage(layers(120))
    stage.click(tool(stage.root, "Ops"))
    stage.settle()
    ops = stage.root.locator(".fl-op")
    until(ops.count, lambda count: 0 < count < 300)
    search = stage.root.get_by_role("searchbox", name="Search the graph")
    search.fill("t1000")
    search.press("Enter")
    expect(stage.root.locator(".fl-op.fx-selected")).to_be_visible()
    until(ops.count, lambda count: 0 < count < 300)
    search.fill("")
    inside = stage.root.locator(".fl-edge.fl-inside .fl-hit")
    until(inside.count, lambda count: count > 0)
    before = stage.root.locator(".fx-facts").inner_text()
    stage.click(inside.first)
    expect(stage.status).to_contain_text("Cut at")
    expect(stage.root.locator(".fx-facts")).not_to_have_text(before)
    until(ops.count, lambda count: 0 < count < 300)
    stage.page.keyboard.press("0")  # fits the picture again
    expect(ops.locator("visible=true")).to_have_count(0)
    expect(stage.root.locator(".fl-edge.fx-selected")).to_be_visible()  # the selection stays


def test_a_page_that_opens_is_laid_out_three_times_at_most(browser, plans):
    """A layout of the picture before its scale is known took a quarter of the page's time to open 60 ops."""
    explorer, stage = Explorer(plans["11"], []), Stage(browser, fresh=True)
    session = stage.page.context.new_cdp_session(stage.page)
    session.send("Performance.enable")
    before = metrics(session)["LayoutCount"]
    stage.show(explorer)
    assert metrics(session)["LayoutCount"] - before <= 3
    stage.close()
    explorer.close()

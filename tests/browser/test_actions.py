"""Every button, key and edit of the explorer that no other test covers, in JupyterLab."""

import re

import pytest
from browser.test_explorer import REAL, SHOW
from browser.tools import in_menu, is_open, open_view, tool, view_choice
from browser.waiting import eventually, expect, until

pytestmark = pytest.mark.browser

INK_AND_PAPER = "(e) => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor]"
KERNEL = """(code) => {
  const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  const future = kernel.requestExecute({ code });
  let said = '';
  future.onIOPub = (m) => { if (m.header.msg_type === 'stream') said += m.content.text; };
  return future.done.then(({ content }) => content.status === 'ok' ? said : `${content.ename}: ${content.evalue}`);
}"""


def in_kernel(desk, code):
    """The output of a piece of code in the notebook's kernel."""
    return desk.page.evaluate(KERNEL, code)


def button(desk, name):
    return desk.explorer.get_by_role("button", name=name, exact=True)


def says(desk, text):
    desk.explorer.locator(".fx-status").get_by_text(text).wait_for()


def look_at(desk, tensor, kind):
    x, y = desk.middle(tensor, kind)
    desk.page.keyboard.down("Shift")
    desk.page.mouse.click(x, y)
    desk.page.keyboard.up("Shift")
    desk.explorer.locator(".fx-inspector .fx-facts-list").first.wait_for()


def test_the_buttons_of_the_inspector_and_the_header_edit_and_go_back(open_explorer):
    desk = open_explorer(SHOW)
    expect(button(desk, "Undo")).to_be_disabled()
    expect(in_menu(desk.explorer, "Reset")).to_be_disabled()
    expect(button(desk, "mine")).to_have_count(0)
    look_at(desk, "T3", "inside")
    button(desk, "Cut at T3").click()
    says(desk, "Cut at T3: 2 → 3 segments")
    expect(button(desk, "mine")).to_have_attribute("aria-pressed", "true")
    expect(desk.explorer.locator(".fx-badge")).to_have_text("cut(T3)")
    button(desk, "Undo").click()
    says(desk, "Undid cut(T3).")
    desk.has_segments(2)
    expect(button(desk, "mine")).to_have_count(0)
    button(desk, "Redo").click()
    says(desk, "Redid cut(T3).")
    look_at(desk, "T3", "boundary")
    button(desk, "Glue S1 and S2").click()
    says(desk, "Glued S1 and S2: 3 → 2 segments")
    tool(desk.explorer, "Reset").click()
    says(desk, "Back to the plan without edits.")
    expect(button(desk, "mine")).to_have_attribute("aria-pressed", "false")
    button(desk, "mine").click()
    says(desk, "Your plan: 2 segments.")
    expect(desk.explorer.locator(".fx-badge")).to_have_text("cut(T3) · glue(S1, S2)")
    button(desk, "Undo").click()
    says(desk, "Undid switch to mine.")
    assert desk.complaints == []


def place(svg):
    """How the picture is scaled and moved."""
    return svg.evaluate("(one) => one.style.transform")


def scale(svg):
    return float(re.search(r"scale\(([0-9.]+)\)", place(svg))[1])


def test_the_buttons_on_the_graph(open_explorer):
    desk = open_explorer(SHOW)
    svg = desk.explorer.locator(".fx-canvas svg")
    desk.settle()
    fitted, before = place(svg), scale(svg)
    button(desk, "+").click()
    until(lambda: scale(svg), lambda now: now > before)
    button(desk, "−").click()
    eventually(lambda: scale(svg), pytest.approx(before, rel=0.01))
    button(desk, "+").click()
    until(lambda: scale(svg), lambda now: now > before)
    button(desk, "Fit").click()
    eventually(lambda: place(svg), fitted)
    tool(desk.explorer, "Keys").click()
    help_shown = desk.explorer.get_by_role("dialog", name="Keys")
    expect(help_shown).to_be_visible()
    expect(help_shown).to_be_focused()
    desk.page.keyboard.press("?")
    expect(help_shown).to_be_hidden()
    for name, panel in (("Inspector", ".fx-inspector"), ("Tables", ".fx-panel")):
        for shown in (name == "Inspector", name != "Inspector"):
            expect(in_menu(desk.explorer, name)).to_have_attribute("aria-pressed", str(shown).lower())
            expect(desk.explorer.locator(panel)).to_be_visible(visible=shown)
            tool(desk.explorer, name).click()
        expect(desk.explorer.locator(panel)).to_be_visible(visible=name == "Inspector")
    tool(desk.explorer, "Segments").click()
    desk.explorer.locator(".fl-whole").first.wait_for()
    tool(desk.explorer, "Ops").click()
    desk.explorer.locator(".fl-box").first.wait_for()
    for mode in ("segment_set", "Look", "Cut"):
        tool(desk.explorer, mode).click()
        expect(tool(desk.explorer, mode)).to_have_attribute("aria-pressed", "true")
        pressed = tool(desk.explorer, mode)
        pressed.hover()
        until(lambda one=pressed: one.evaluate(INK_AND_PAPER), lambda two: two[0] != two[1])
    desk.explorer.locator(".fx-canvas").click(position={"x": 5, "y": 60})
    desk.explorer.get_by_text("Select an edge, an op or a segment").wait_for()
    assert desk.complaints == []


def test_the_wheel_scrolls_the_page_and_zooms_with_ctrl(open_explorer):
    desk = open_explorer(SHOW)
    svg = desk.explorer.locator(".fx-canvas svg")
    desk.settle()
    before = place(svg)
    box = desk.explorer.locator(".fx-canvas").bounding_box()
    desk.page.mouse.move(box["x"] + 100, box["y"] + 100)
    desk.page.evaluate("() => { window.taken = []; addEventListener('wheel', (e) => taken.push(e.defaultPrevented)); }")
    desk.page.mouse.wheel(0, 60)
    eventually(lambda: desk.page.evaluate("() => taken"), [False])
    assert place(svg) == before
    desk.page.keyboard.down("Control")
    desk.page.mouse.wheel(0, -60)
    desk.page.keyboard.up("Control")
    eventually(lambda: desk.page.evaluate("() => taken"), [False, True])
    until(lambda: place(svg), lambda now: now != before)


def test_the_keys_that_step_search_switch_and_copy_and_none_reaches_the_notebook(open_explorer):
    desk = open_explorer(SHOW)
    keys, explorer = desk.page.keyboard, desk.explorer
    cells = "() => window.jupyterapp.shell.currentWidget.content.widgets.map((c) => c.model.sharedModel.getSource())"
    sources = desk.page.evaluate(cells)
    explorer.locator(".fl-node[tabindex='0']").focus()
    for key in "abw":  # without an action here
        keys.press(key)
    for key, shown in (("j", "Decision 0 (1 of 2): "), ("j", "Decision 1 (2 of 2): "), ("k", "Decision 0 (1 of 2): ")):
        keys.press(key)
        says(desk, shown)
    expect(explorer.locator(".fx-now")).to_have_attribute("data-step", "1")
    expect(explorer.locator(".fl-op.fx-refusing")).to_have_count(2)
    keys.press("Escape")
    expect(explorer.locator(".fx-stepping")).to_have_count(0)
    keys.press("p")
    says(desk, "Decision 1 (2 of 2): ")
    keys.press("Escape")
    expect(explorer.locator(".fx-log")).to_be_visible()
    keys.press("d")
    expect(explorer.locator(".fx-log")).to_be_hidden()
    keys.press("d")
    keys.press("o")
    explorer.locator(".fl-whole").first.wait_for()
    keys.press("o")
    explorer.locator(".fl-box").first.wait_for()
    for mode in ("segment_set", "Look", "Cut"):
        keys.press("e")
        expect(in_menu(explorer, mode)).to_have_attribute("aria-pressed", "true")
    keys.press("/")
    keys.type("add")
    keys.press("Enter")
    explorer.locator(".fl-op.fx-selected.fx-found").wait_for()
    keys.press("Escape")
    for key, view in (("2", "segments"), ("2", "time_line"), ("3", "source"), ("1", "decisions")):
        keys.press(key)
        is_open(explorer, view)
    keys.press("y")
    explorer.locator(".fx-inspector pre").get_by_text("plan = fl.segment").wait_for()
    keys.press("r")
    explorer.get_by_text("Done: ").wait_for()
    for key in "abdxvzmlfth":  # keys that JupyterLab handles itself in command mode
        keys.press(key)
    assert desk.page.evaluate(cells) == sources  # settled: JupyterLab has handled the keys
    mode = desk.page.evaluate("() => window.jupyterapp.shell.currentWidget.content.mode")
    assert mode == "command"
    assert desk.complaints == []


def test_every_key_that_the_help_lists_is_one_that_does_something(open_explorer):
    desk = open_explorer(SHOW)
    tool(desk.explorer, "Keys").click()
    listed = " ".join(desk.explorer.locator(".fx-help dt").all_inner_texts()).split()
    for key in ("Tab", "↓", "↑", "←", "→", "Enter", "/", "n", "j", "k", "p", "d", "i", "t", "f", "h", "o", "e", "c",
                "g", "s", "u", "U", "r", "y", "1", "6", "m", "+", "−", "0", "Esc", "?"):
        assert key in listed


def test_tabs_are_walked_with_arrows_and_all_that_can_be_pressed_is_reached_with_tab(open_explorer):
    desk = open_explorer(SHOW)
    keys, explorer = desk.page.keyboard, desk.explorer
    explorer.get_by_role("tab", name="Why").focus()
    keys.press("ArrowRight")
    expect(explorer.get_by_role("tab", name="Cost")).to_be_focused()
    is_open(explorer, "segments")
    keys.press("ArrowLeft")
    keys.press("ArrowLeft")
    is_open(explorer, "layouts")
    view_choice(explorer, "layouts").focus()
    keys.press("ArrowRight")
    expect(view_choice(explorer, "graph")).to_be_focused()
    is_open(explorer, "graph")
    open_view(explorer, "segments")
    reachable = explorer.locator("button:visible:enabled, input:visible, select:visible, summary:visible")
    wanted = set(reachable.evaluate_all("(all) => all.filter((e) => e.tabIndex >= 0).map((e) => e.outerHTML)"))
    explorer.evaluate("(root) => root.focus()")
    reached = set()
    for _ in range(len(wanted) + 12):
        keys.press("Tab")
        reached.add(desk.page.evaluate("() => document.activeElement.outerHTML"))
    assert wanted - reached == set()


HELD = """\
from pathlib import Path

def pause(cancelled):
    end = time.monotonic() + 600
    while not Path("run on").exists() and time.monotonic() < end and not cancelled():
        time.sleep(0.02)

e = """


def test_run_pressed_twice_is_one_run(open_explorer, lab):
    desk = open_explorer(HELD + SHOW + "\ne")
    # Two events at once, as from a page that does not know yet that the first was accepted.
    desk.explorer.get_by_role("button", name="Run").evaluate("(b) => { b.click(); b.click(); }")
    says(desk, "A run is in progress; cancel it first, or wait for it to end.")
    (lab.root / "run on").touch()
    desk.explorer.get_by_text("Done: ").wait_for()
    expect(desk.explorer.locator(".fx-total")).to_have_count(1)
    assert desk.complaints == []


def test_inputs_that_changed_under_the_explorer_are_answered_with_a_sentence(open_explorer):
    real = REAL.replace("fl.explore(plan, [np.ones((256, 512), np.float32)])",
                        "given = [np.ones((256, 512), np.float32)]\nfl.explore(plan, given)")
    desk = open_explorer(real)
    assert in_kernel(desk, "given[0].resize((8, 8), refcheck=False)") == ""
    desk.explorer.get_by_role("button", name="Run").click()
    desk.explorer.locator(".fx-status.fx-error").wait_for()
    expect(desk.status).to_contain_text("size 8 on axis 0; this plan is for size 256")
    desk.explorer.get_by_role("button", name="Run").wait_for()
    assert in_kernel(desk, "given[0].resize((256, 512), refcheck=False)") == ""
    desk.explorer.get_by_role("button", name="Run").click()
    desk.explorer.get_by_text("Done: ").wait_for()
    expect(desk.facts).to_have_text(re.compile(r"(?<!–) measured"))


def test_closing_one_of_two_frees_it_and_leaves_the_other(open_explorer):
    desk = open_explorer(f"one = {SHOW}\ntwo = {SHOW}", "one", "two")
    desk.page.locator(".fl-explorer").nth(1).wait_for()
    known = "from ipywidgets.widgets import widget\nprint([w.model_id in widget._instances for w in (one, two)])"
    assert in_kernel(desk, known).strip() == "[True, True]"
    ended = in_kernel(desk, "gone = one.model_id\none.close()\nprint(gone in widget._instances, one.comm)")
    assert ended.strip() == "False None"
    expect(desk.page.locator(".fl-explorer")).to_have_count(1)
    assert desk.click_edge("T3", "inside") > 0
    desk.has_segments(3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>"])
def test_a_hostile_name_stays_text_in_every_tab(open_explorer, name):
    cell = f"Explorer(stub_plan.sum_broadcast_add(({name!r}, 'T1', 'T2', 'T3', 'T4')), [], timer=timer)"
    desk = open_explorer(cell)
    for view in ("segments", "compare", "roofline", "memory", "source", "layouts", "graph"):
        desk.open_view(view)
        expect(desk.explorer.locator("script, img")).to_have_count(0)
    expect(desk.explorer.locator(".fx-panel")).to_contain_text(name)
    assert desk.complaints == []

import re
import time

import pytest
from browser.tools import open_view, tool
from browser.waiting import expect
from machine import allowed

pytestmark = pytest.mark.browser

SHOW = 'Explorer(plan, [], strategies=["top_down"], timer=timer)'


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.matrix)])
def test_cut_glue_and_time(open_explorer, shots, theme):
    desk = open_explorer(SHOW, theme=theme)
    desk.has_segments(2)
    took = [desk.click_edge("T3", "inside")]
    desk.has_segments(3)
    expect(desk.status).to_have_text("Cut at T3: 2 → 3 segments, +65.5 kB moved.")
    expect(desk.explorer.locator(".fl-segment")).to_have_count(3)
    desk.settle()
    desk.explorer.screenshot(path=shots / f"explorer-cut-{theme}.png")
    took.append(desk.click_edge("T3", "boundary", mouse=False))
    desk.has_segments(2)
    took.append(desk.click_edge("T3", "inside", mouse=False))
    assert min(took) > 0
    desk.explorer.get_by_role("button", name="Run").click()
    desk.explorer.locator(".fx-table tbody tr").nth(6).wait_for()
    desk.explorer.get_by_text("Done: ").wait_for()
    expect(desk.explorer.locator(".fx-total")).to_have_count(2)
    expect(desk.explorer.locator(".fx-table thead")).to_contain_text("CPU median")
    desk.explorer.screenshot(path=shots / f"explorer-timed-{theme}.png")
    paper = desk.explorer.evaluate("(root) => getComputedStyle(root).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 29)"}[theme]
    assert desk.complaints == []
    assert desk.strangers == []


def test_notes_on_inputs_and_script_stand_below_the_header(open_explorer):
    notes = ["Run creates inputs of the given sizes", "line 3: <b>x</b> is skipped"]
    desk = open_explorer(f"Explorer(plan, [], timer=timer, notes={notes})")
    expect(desk.explorer.locator(".fx-notes li")).to_have_text(notes)
    assert desk.complaints == []


def test_an_illegal_glue_is_answered_with_a_sentence_and_the_schedulers_reasons(open_explorer):
    desk = open_explorer(SHOW)
    x, y = desk.middle("T2", "boundary")
    desk.page.mouse.click(x, y)
    desk.explorer.locator(".fx-status.fx-error").wait_for()
    expect(desk.status).to_have_text(re.compile("^S0 and S1 cannot be one kernel"))
    inspector = desk.explorer.locator(".fx-inspector")
    expect(inspector).to_contain_text("A reduction is inside: T1.")
    expect(inspector).not_to_contain_text("cannot be one kernel")  # while the status line says it
    expect(desk.explorer.locator(".fx-hint")).not_to_have_class(re.compile("fx-on"))
    desk.page.keyboard.press("u")
    expect(desk.status).to_have_text("Nothing to undo.")
    expect(inspector).to_contain_text("cannot be one kernel")
    desk.has_segments(2)


def test_everything_can_be_done_with_keys(open_explorer):
    desk = open_explorer(SHOW)
    keys, status = desk.page.keyboard, desk.explorer.locator(".fx-status")
    desk.explorer.locator(".fl-node[tabindex='0']").focus()
    desk.has_focus("in:T0")
    for key, at in (
        ("ArrowDown", "T0|in:T0|op:0"),
        ("ArrowDown", "op:0"),
        ("ArrowDown", "T2|op:0|op:1"),
        ("ArrowDown", "op:1"),
        ("ArrowDown", "T3|op:1|op:2"),
    ):
        keys.press(key)
        desk.has_focus(at)
    keys.press("Enter")
    status.get_by_text("Cut at T3: 2 → 3 segments, +65.5 kB moved.").wait_for()
    desk.has_focus("T3|op:1|op:2")
    desk.settle()
    keys.press("u")
    status.get_by_text("Undid cut(T3).").wait_for()
    keys.press("U")
    status.get_by_text("Redid cut(T3).").wait_for()
    keys.press("g")
    status.get_by_text("Glued S1 and S2: 3 → 2 segments, −65.5 kB moved.").wait_for()
    keys.press("c")
    status.get_by_text("Cut at T3: 2 → 3 segments, +65.5 kB moved.").wait_for()
    desk.settle()
    svg = desk.explorer.locator(".fx-canvas svg")
    before = svg.get_attribute("style")
    keys.press("+")
    expect(svg).not_to_have_attribute("style", before)
    keys.press("0")
    expect(svg).to_have_attribute("style", before)
    keys.press("?")
    expect(desk.explorer.get_by_role("dialog")).to_be_visible()
    keys.press("Escape")
    expect(desk.explorer.get_by_role("dialog")).to_be_hidden()
    keys.press("Escape")
    desk.explorer.get_by_text("Select an edge, an op or a segment").wait_for()
    cells = desk.page.evaluate("() => window.jupyterapp.shell.currentWidget.content.widgets.length")
    assert cells == 2  # none of the keys reached the notebook


def test_the_source_of_the_selected_segment_for_both_targets(open_explorer):
    desk = open_explorer(SHOW)
    desk.explorer.locator('.fl-node[data-id="op:2"]').click()
    desk.explorer.get_by_role("button", name="Show source").click()
    desk.explorer.locator(".fx-panel pre").get_by_text("Segment 1, cpu").wait_for()
    desk.explorer.get_by_role("button", name="CUDA").click()
    desk.explorer.locator(".fx-panel pre").get_by_text("Segment 1, cuda").wait_for()


def test_decisions_are_filtered_by_words_outcome_and_selection(open_explorer):
    desk = open_explorer(SHOW)
    open_view(desk.explorer, "decisions")
    rows = desk.explorer.locator(".fx-decisions > li")
    expect(rows).to_have_count(2)
    desk.explorer.get_by_label("Outcome").select_option("no")
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("broadcast back")
    desk.explorer.get_by_label("Outcome").select_option("all")
    expect(rows).to_have_count(2)
    desk.explorer.get_by_label("Filter decisions").fill("pointwise took")
    expect(rows).to_have_count(1)
    desk.explorer.get_by_label("Filter decisions").fill("")
    expect(rows).to_have_count(2)
    x, y = desk.middle("T2", "boundary")
    desk.page.keyboard.down("Shift")
    desk.page.mouse.click(x, y)
    desk.page.keyboard.up("Shift")
    desk.explorer.get_by_role("button", name="Decisions about it").click()
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("{T2} + {T3}")
    desk.has_segments(2)
    desk.explorer.locator('.fl-node[data-id="op:2"]').click()  # the list follows the selection
    expect(rows.first).to_contain_text("{T3} + {T4}")
    expect(rows).to_have_count(1)


def test_the_strategy_switch_looking_and_copying(open_explorer):
    desk = open_explorer(SHOW)
    desk.explorer.get_by_role("button", name="top-down").click()
    desk.explorer.get_by_text("Top-down: 2 segments.").wait_for()
    expect(desk.edge("T2", "inside")).to_have_count(1)
    tool(desk.explorer, "Look").click()
    x, y = desk.middle("T2", "inside")
    desk.page.mouse.click(x, y)
    desk.explorer.locator(".fx-inspector").get_by_text("T2 inside segment 0").wait_for()
    desk.has_segments(2)
    desk.explorer.get_by_role("button", name="Copy as code").click()
    desk.explorer.locator(".fx-inspector pre").get_by_text("plan = fl.segment").wait_for()


def test_a_run_can_be_cancelled_and_the_kernel_answers_meanwhile(open_explorer):
    desk = open_explorer("PAUSE = 600", SHOW)  # the run would outlast the test
    desk.explorer.get_by_role("button", name="Run").click()
    desk.explorer.get_by_role("button", name="Cancel").wait_for()
    desk.explorer.locator(".fx-progress.fx-on").wait_for()
    assert desk.click_edge("T3", "inside", mouse=False) > 0
    desk.has_segments(3)
    desk.explorer.get_by_role("button", name="Cancel").click()
    desk.explorer.get_by_text("Cancelled; no segment was measured yet.").wait_for()
    desk.explorer.get_by_role("button", name="Run").wait_for()


def test_drag_pans_and_is_no_click(open_explorer):
    desk = open_explorer(SHOW)
    svg = desk.explorer.locator(".fx-canvas svg")
    x, y = desk.middle("T3", "inside")
    before = svg.get_attribute("style")
    desk.page.mouse.move(x, y)
    desk.page.mouse.down()
    desk.page.mouse.move(x + 60, y + 30, steps=4)
    desk.page.mouse.up()
    expect(svg).not_to_have_attribute("style", before)
    desk.explorer.locator(".fl-op").first.click()
    desk.explorer.locator(".fx-inspector .fx-facts-list").first.wait_for()  # answered after all earlier events
    desk.has_segments(2)


def test_narrow_cells_have_one_column(open_explorer, shots):
    desk = open_explorer(SHOW)
    boxes = [desk.explorer.locator(s).bounding_box() for s in (".fx-graph", ".fx-side")]
    assert boxes[0]["y"] == pytest.approx(boxes[1]["y"], abs=2)
    desk.page.set_viewport_size({"width": 760, "height": 1300})
    desk.page.wait_for_function("""() => {
      const [graph, inspector, lowest] = ['.fx-graph', '.fx-inspector', '.fl-output-node'].map(
        (selector) => document.querySelector(`.fl-explorer ${selector}`).getBoundingClientRect());
      return inspector.top >= graph.bottom - 2 && lowest.bottom <= graph.bottom;
    }""")
    desk.explorer.screenshot(path=shots / "explorer-narrow.png")


def test_two_explorers_do_not_disturb_each_other_and_one_shown_twice_stays_one(open_explorer):
    desk = open_explorer(f"from IPython.display import display\none = {SHOW}\ndisplay(one, one)\n{SHOW}")
    page = desk.page
    page.locator(".fl-explorer").nth(2).wait_for()
    assert desk.click_edge("T3", "inside") > 0
    page.locator(".fx-facts").nth(1).get_by_text("3 segments").wait_for()
    expect(page.locator(".fx-facts")).to_have_text([re.compile(f"^{count} segments") for count in (3, 3, 2)])
    ids = page.locator(".fx-canvas svg [id]").evaluate_all("(all) => all.map((e) => e.id)")
    assert ids
    assert len(ids) == len(set(ids))
    assert desk.complaints == []


def crowding() -> float:
    """The current ratio of a computation's elapsed time to its processor time, because other programs use the cores."""
    wall, own = time.perf_counter(), time.process_time()
    while time.process_time() - own < 0.2:
        pass
    return (time.perf_counter() - wall) / (time.process_time() - own)


@pytest.mark.benchmark
def test_a_fusion_of_300_ops_is_drawn_and_edited_quickly(open_explorer, shots):
    cells = "plan = stub_plan.rope_like(30)\nprint(len(plan.fusion.exprs), 'ops')\nExplorer(plan, [], timer=timer)"
    desk = open_explorer(cells)
    expect(desk.facts).to_contain_text("299 ops")
    desk.settle()
    desk.explorer.screenshot(path=shots / "explorer-300-ops.png")
    quiet = []  # milliseconds of an edit on an otherwise idle machine
    for tensor in ("T3", "T13", "T24", "T35", "T46"):
        before = crowding()
        took = desk.click_edge(tensor, "inside", mouse=False)
        assert took > 0
        quiet.append(took / max(before, crowding()))
    assert min(quiet) < allowed(200)  # 93 and 111 in two runs on two cores shared by many processes; the goal is 150
    desk.has_segments(9)


# Reruns the last cell; milliseconds until the frame in which its explorer shows ops.
PAINTED = """async () => {
  const notebook = window.jupyterapp.shell.currentWidget.content;
  notebook.activeCellIndex = notebook.widgets.length - 1;
  const old = new Set(document.querySelectorAll('.fl-explorer'));
  const shown = new Promise((done) => {
    const observer = new MutationObserver(() => {
      if (![...document.querySelectorAll('.fl-explorer')].some((e) => !old.has(e) && e.querySelector('.fl-op'))) return;
      observer.disconnect();
      requestAnimationFrame(() => setTimeout(() => done(performance.now()), 0));
    });
    observer.observe(document.body, { childList: true, subtree: true });
  });
  const start = performance.now();
  await window.jupyterapp.commands.execute('notebook:run-cell');
  return await shown - start;
}"""


@pytest.mark.benchmark
def test_300_ops_are_painted_within_a_second(open_explorer):
    desk = open_explorer("plan = stub_plan.rope_like(30)", "Explorer(plan, [], timer=timer)")
    quiet = []
    for _ in range(3):
        before = crowding()
        quiet.append(desk.page.evaluate(PAINTED) / max(before, crowding()))
    assert min(quiet) < allowed(1000), quiet


def test_2000_ops_are_shown_by_segments_and_can_be_opened_searched_and_edited(open_explorer, shots):
    desk = open_explorer("Explorer(stub_plan.rope_like(201, 40), [], timer=timer)")
    explorer = desk.explorer
    expect(desk.facts).to_contain_text("2009 ops")
    tool(explorer, "Segments").click()
    explorer.locator(".fl-whole").nth(39).wait_for()
    expect(explorer.locator(".fl-whole")).to_have_count(40)
    tensor = explorer.locator(".fl-edge.fl-boundary").first.get_attribute("data-id").partition("|")[0]
    assert desk.click_edge(tensor, "boundary", mouse=False) > 0
    desk.has_segments(39)
    glued = explorer.locator(".fl-whole:has(title:text-matches('102 ops'))")
    glued.dispatch_event("click")
    explorer.get_by_role("button", name="Show or hide its ops").click()
    explorer.locator(".fl-box").wait_for()
    expect(explorer.locator(".fl-op:not(.fl-whole)")).to_have_count(2 * 51)  # the two that were glued
    explorer.get_by_label("Search the graph").fill("S7 ")
    explorer.get_by_text("1 found").wait_for()
    explorer.screenshot(path=shots / "explorer-2000-ops.png")
    assert desk.complaints == []


REAL = """\
import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
import numpy as np
with FusionDefinition() as fd:
    x = fd.define_tensor([256, 512], contiguity=True, dtype=DataType.Float)
    a = fd.ops.exp(x)
    rows = fd.ops.broadcast(fd.ops.sum(a, dims=[1]), is_broadcast_dim=[False, True])
    b = fd.ops.mul(a, rows)
    columns = fd.ops.broadcast(fd.ops.sum(b, dims=[0]), is_broadcast_dim=[True, False])
    fd.add_output(fd.ops.neg(fd.ops.mul(b, columns)))
plan = fl.segment(fd, strategy="unfused")
fl.explore(plan, [np.ones((256, 512), np.float32)])
"""


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.matrix)])
def test_moving_comparing_and_the_tabs_of_a_real_plan(open_explorer, shots, theme):
    desk = open_explorer(REAL, theme=theme)
    explorer, inspector = desk.explorer, desk.explorer.locator(".fx-inspector")
    node = explorer.locator(".fl-op").last
    node.press("Enter")  # the last op is below the part of the picture that is seen
    inspector.get_by_text("Moved to another segment").wait_for()
    move = inspector.get_by_role("button", name="Move to").first
    before = desk.segments()
    explorer.screenshot(path=shots / f"explorer-move-{theme}.png")
    move.click()
    explorer.locator(".fx-status").get_by_text(re.compile(r"^Moved T\d+: ")).wait_for()
    desk.has_segments(before - 1)
    open_view(explorer, "compare")
    explorer.get_by_role("button", name="the plan before the edits").click()
    explorer.locator(".fl-op.fx-moved").first.wait_for()
    expect(explorer.locator(".fl-edge.fx-gone")).not_to_have_count(0)
    explorer.screenshot(path=shots / f"explorer-compare-{theme}.png")
    open_view(explorer, "memory")
    explorer.locator(".fx-panel .fx-note").get_by_text("At most").wait_for()
    open_view(explorer, "roofline")
    explorer.locator(".fx-panel .fl-hollow").first.wait_for()
    expect(explorer.locator(".fx-panel .fl-full")).to_have_count(0)
    explorer.get_by_role("button", name="Run").click()
    explorer.get_by_text("Done: ").wait_for()
    open_view(explorer, "roofline")
    explorer.locator(".fx-panel .fl-full").first.wait_for()
    explorer.screenshot(path=shots / f"explorer-roofline-{theme}.png")
    assert desk.complaints == []
    assert desk.strangers == []


def test_after_a_restart_of_the_kernel_the_picture_stays_and_says_what_happened(open_explorer):
    desk = open_explorer(SHOW, fresh=True)
    ops = desk.explorer.locator(".fl-op").count()
    desk.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.restartKernel()")
    desk.page.wait_for_timeout(500)
    if desk.page.locator(".fl-explorer").count():
        x, y = desk.middle("T3", "inside")
        desk.page.mouse.click(x, y)
        desk.explorer.locator(".fx-status").get_by_text(re.compile("The kernel |No answer from")).wait_for()
        expect(desk.explorer.locator(".fl-op")).to_have_count(ops)
    else:
        expect(desk.page.locator(".jp-OutputArea svg .fl-op")).to_have_count(ops)


def test_an_exception_in_a_callback_is_shown(open_explorer):
    broken = "e = " + SHOW + "\ne._session.cut = lambda *_, **__: 1 / 0\ne"
    desk = open_explorer(broken)
    x, y = desk.middle("T3", "inside")
    desk.page.mouse.click(x, y)
    desk.explorer.locator(".fx-status.fx-error").get_by_text("Act failed: ZeroDivisionError").wait_for()
    desk.has_segments(2)


def test_a_fusion_that_no_scheduler_takes_is_drawn_with_the_reasons(open_explorer, shots):
    desk = open_explorer("Explorer(stub_plan.replace(plan, refused=frozenset({1})), [], timer=timer)")
    expect(desk.explorer.locator(".fl-segment.fl-refused")).to_have_count(1)
    desk.explorer.locator(".fl-head.fl-refused .fl-chip").click()
    desk.explorer.locator(".fx-inspector").get_by_text("No scheduler accepts").or_(
        desk.explorer.locator(".fx-inspector").get_by_text("No reduction in the segment."),
    ).first.wait_for()
    desk.explorer.screenshot(path=shots / "explorer-refused.png")


def test_a_hostile_name_runs_nothing(open_explorer):
    cell = "Explorer(stub_plan.sum_broadcast_add(('<img src=x onerror=alert(1)>', 'T1', 'T2', 'T3', 'T4')))"
    desk = open_explorer(cell)
    expect(desk.explorer.locator("img")).to_have_count(0)
    assert desk.complaints == []

"""Keys while the explorer has the focus: JupyterLab's shortcuts reach it, and plain keys do not edit the notebook."""

from __future__ import annotations

import pytest
from browser.sizes import layers, two_norms
from browser.stage import Stage
from browser.waiting import expect, until
from fuser_lab_widgets import Explorer

pytestmark = pytest.mark.browser

# Records the keys that a host receives: one that listens before the explorer, as JupyterLab did until 4.0, ignores
# those inside an element with the attribute; one that listens after it gets those that bubble.
HOST = """() => {
  window.keys = { before: [], after: [] };
  const isOurs = (e) => e.target.closest("[data-lm-suppress-shortcuts]");
  document.addEventListener("keydown", (e) => isOurs(e) || window.keys.before.push(e.key), true);
  document.addEventListener("keydown", (e) => window.keys.after.push(e.key));
}"""
SHOWN_CELLS = "() => window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells.map((cell) => cell.source)"
ACTIVE_CELL = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"
CHANGE = """() => {
  const { model } = window.jupyterapp.shell.currentWidget.content;
  model.sharedModel.insertCell(model.cells.length, { cell_type: 'markdown', source: 'changed just now' });
}"""
IS_INSIDE = "() => document.activeElement.closest('.fl-explorer') !== null"


@pytest.mark.parametrize(
    "where", [".fl-explorer", ".fl-node", ".fx-tab[aria-selected=true]", "[aria-label='Search the graph']"],
)
def test_a_host_receives_its_shortcuts_and_no_plain_key(browser, where):
    stage = Stage(browser, size=(1280, 720))
    stage.show(Explorer(two_norms(), []))
    stage.settle()
    stage.page.evaluate(HOST)
    item, keys = stage.page.locator(where).first, stage.page.keyboard
    item.evaluate("(one) => one.focus()")
    for key in ("d", "d", "x", "a", "b", "Shift+D", "Enter", "Escape", "ArrowDown", "1"):
        keys.press(key)
        item.evaluate("(one) => one.focus()")
    stage.rest()
    assert stage.page.evaluate("() => window.keys") == {"before": [], "after": []}  # settled
    item.evaluate("(one) => one.focus()")
    for key in ("Control+s", "Meta+s", "Control+Shift+C", "Alt+w", "F10"):
        keys.press(key)
    received = ["s", "s", "C", "w", "F10"]
    for order in stage.page.evaluate("() => Object.values(window.keys)"):
        assert [key for key in order if key not in {"Control", "Meta", "Shift", "Alt"}] == received
    stage.close()
    stage.explorer.close()


def test_keys_that_edit_the_text_of_a_field_stay_in_it(browser):
    stage = Stage(browser, size=(1280, 720))
    stage.show(Explorer(two_norms(), []))
    stage.page.evaluate(HOST)
    field = stage.root.get_by_label("Search the graph")
    field.fill("exp")
    for key in ("Control+a", "Control+c", "Control+z", "Control+ArrowLeft", "Control+Backspace"):
        field.press(key)
    assert set(stage.page.evaluate("() => Object.values(window.keys).flat()")) <= {"Control"}  # settled
    stage.close()
    stage.explorer.close()


def test_an_explorer_that_is_gone_listens_to_no_key(browser):
    stage = Stage(browser, size=(1280, 720))
    stage.page.evaluate("""() => {
      window.listeners = 0;
      const { addEventListener: add, removeEventListener: remove } = window;
      window.addEventListener = (...a) => { window.listeners += 1; add.call(window, ...a); };
      window.removeEventListener = (...a) => { window.listeners -= 1; remove.call(window, ...a); };
    }""")
    stage.show(Explorer(two_norms(), []))
    assert stage.page.evaluate("() => window.listeners") == 2  # settled
    stage.page.evaluate("() => window.gone()")
    assert stage.page.evaluate("() => window.listeners") == 0  # settled
    assert stage.page.evaluate("() => window.model.listeners.length") == 0  # settled
    stage.close()
    stage.explorer.close()


def test_arrows_enter_the_graph_and_follow_edges_at_any_scale_and_change_no_menu(browser):
    stage = Stage(browser, size=(1280, 720))
    stage.show(Explorer(layers(3), [], strategies=["unfused", "top_down"]))
    keys, at = stage.page.keyboard, "() => document.activeElement.dataset.id"
    menu = stage.root.locator("select[data-key=strategies]")
    menu.focus()
    for key in ("ArrowDown", "Escape", "t", "t"):  # 't' opens and closes the tables
        keys.press(key)
        assert menu.input_value() == "bottom_up"  # settled
    stage.root.evaluate("(root) => root.focus()")
    keys.press("0")
    assert "fx-tiny" in stage.root.locator(".fx-canvas").get_attribute("class")  # settled
    keys.press("ArrowDown")
    assert stage.page.evaluate(at).startswith("in:")  # settled
    passed = []
    for _ in range(4):
        keys.press("ArrowDown")
        passed.append(stage.page.evaluate(at))
    assert len(set(passed)) == len(passed)
    keys.press("j")
    stage.rest()
    assert "fx-tiny" not in stage.root.locator(".fx-canvas").get_attribute("class")  # settled: the ops have names
    stage.close()
    stage.explorer.close()


def test_escape_closes_the_sentence_before_it_drops_the_selection(browser):
    stage = Stage(browser, size=(700, 720))
    stage.show(Explorer(two_norms(), []))
    stage.root.locator(".fl-edge.fl-boundary .fl-hit").last.dispatch_event("click")  # which cannot be glued
    stage.rest()
    stage.root.get_by_role("button", name="Read on").click()
    stage.page.keyboard.press("Escape")
    expect(stage.status.get_by_role("button", name="Read on")).to_be_visible()
    expect(stage.root.locator(".fl-edge.fx-selected")).to_have_count(1)
    stage.page.keyboard.press("Escape")
    expect(stage.root.locator(".fl-edge.fx-selected")).to_have_count(0)
    stage.close()
    stage.explorer.close()


def test_a_click_with_shift_selects_no_cells_of_the_notebook(open_explorer):
    desk = open_explorer("Explorer(plan, [], timer=timer)")
    chosen = "() => window.jupyterapp.shell.currentWidget.content.selectedCells.length"
    assert desk.page.evaluate(chosen) == 1  # settled
    desk.page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 0; }")
    desk.explorer.locator(".fl-node").first.click(modifiers=["Shift"])
    expect(desk.explorer.locator(".fl-node.fx-selected")).to_have_count(1)
    assert desk.page.evaluate(chosen) == 1  # settled: the page got the click


def test_the_notebook_is_saved_while_the_explorer_has_the_focus(open_explorer, lab):
    desk = open_explorer("Explorer(plan, [], timer=timer)")
    page, keys = desk.page, desk.page.keyboard

    def saved_changes() -> int:
        """Save, again if necessary: JupyterLab ignores the key while it makes the checkpoint of the previous save."""
        keys.press("Control+s")
        return (lab.root / desk.path).read_text(encoding="utf-8").count("changed just now")

    cells = page.evaluate(SHOWN_CELLS)
    for number, before in enumerate(((), ("Escape", "Escape"), ("d", "d", "x", "a", "b", "z", "Shift+M"))):
        desk.settle()
        desk.explorer.locator(".fl-node").first.evaluate("(one) => one.focus()")
        for key in before:
            keys.press(key)
        assert page.evaluate(SHOWN_CELLS) == cells  # settled: the keys were handled before they could arrive there
        assert page.evaluate(IS_INSIDE) == ("Escape" not in before)  # settled: Escape gives the keyboard back
        page.evaluate(CHANGE)
        cells = page.evaluate(SHOWN_CELLS)
        until(saved_changes, lambda count, wanted=number + 1: count == wanted)
    expect(desk.explorer.locator(".fx-log")).to_be_hidden()  # 'd' twice
    desk.explorer.locator(".fl-node").first.evaluate("(one) => one.focus()")
    active = page.evaluate(ACTIVE_CELL)
    for key in ("Escape", "Escape", "ArrowUp"):  # the last one is the notebook's
        keys.press(key)
    until(lambda: page.evaluate(ACTIVE_CELL), lambda now: now == max(active - 1, 0))
    keys.press("Control+Shift+C")
    expect(page.locator(".jp-modal-commandpalette, #modal-command-palette")).to_be_visible()
    keys.press("Escape")
    assert desk.complaints == []

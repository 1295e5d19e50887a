"""axe-core on the live explorer in JupyterLab, in every state that looks different."""

import pytest
from browser.accessibility import serious_findings
from browser.test_explorer import REAL, SHOW

pytestmark = pytest.mark.browser



@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_any_state(open_explorer, theme):
    desk = open_explorer(REAL, theme=theme)
    explorer, page = desk.explorer, desk.page
    found = {"first": serious_findings(page)}
    for kind, name in (("inside", "an edge"), ("boundary", "a boundary")):
        edges = explorer.locator(f".fl-edge.fl-{kind}")
        if edges.count():
            edges.first.dispatch_event("click", {"shiftKey": True, "bubbles": True})
            explorer.locator(".fx-facts-list").first.wait_for()
            found[name] = serious_findings(page)
    explorer.locator(".fl-op").first.click()
    explorer.locator(".fx-inspector").get_by_text("Schedulers, as asked").wait_for()
    found["an op"] = serious_findings(page)
    for tab in explorer.get_by_role("tab").all():
        tab.click()
        page.wait_for_function("() => !['', '…'].includes(document.querySelector('.fx-panel').innerText.trim())")
        found[tab.inner_text()] = serious_findings(page)
    page.keyboard.press("?")
    found["keys"] = serious_findings(page)
    page.keyboard.press("Escape")
    explorer.get_by_role("button", name="bottom-up").click()
    explorer.get_by_text("Bottom-up: ").wait_for()
    explorer.get_by_role("button", name="Decisions", exact=True).click()
    explorer.get_by_role("button", name="One decision on").click()
    explorer.locator(".fx-stepping").wait_for()
    found["a step"] = serious_findings(page)
    assert {state: said for state, said in found.items() if said} == {}


def test_axe_would_find_a_button_without_a_name(open_explorer):
    desk = open_explorer(SHOW)
    desk.page.evaluate("() => document.querySelector('.fl-explorer').append(document.createElement('button'))")
    assert [said.partition(":")[0] for said in serious_findings(desk.page)] == ["button-name"]

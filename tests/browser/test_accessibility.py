"""axe-core on the live explorer in JupyterLab, in every visually different state."""

import pytest
from browser.accessibility import RULES, serious_findings
from browser.test_explorer import REAL, SHOW
from browser.tools import open_view
from browser.waiting import eventually

pytestmark = pytest.mark.browser


@pytest.mark.sampled(2)  # a bare page has its panels checked in both themes
@pytest.mark.parametrize("theme", RULES)
def test_axe_finds_nothing_serious_in_any_state(open_explorer, theme):
    """Checks the colours of the whole explorer, and by all rules what has changed, and all of it once.

    In JupyterLab's page, all rules take seconds; the tests of a bare page apply them in most states and in every tab.
    """
    desk = open_explorer(REAL, theme=theme)
    explorer, page = desk.explorer, desk.page

    def findings(selector=".fl-explorer"):
        return serious_findings(page, selector, rules=RULES[theme])

    def colours():
        return serious_findings(page, rules=("color-contrast",))

    found = {"first": colours()}
    for kind, name in (("inside", "an edge"), ("boundary", "a boundary")):
        edges = explorer.locator(f".fl-edge.fl-{kind}")
        if edges.count():
            edges.first.dispatch_event("click", {"shiftKey": True, "bubbles": True})
            explorer.locator(".fx-facts-list").first.wait_for()
            found[name] = findings(".fx-inspector")
    explorer.locator(".fl-op").first.click()
    explorer.locator(".fx-inspector").get_by_text("Schedulers, in order").wait_for()
    found["an op"] = colours()
    page.keyboard.press("?")
    explorer.get_by_role("dialog", name="Keys").wait_for()
    found["keys"] = findings("[role=dialog]")
    page.keyboard.press("Escape")
    explorer.get_by_label("Strategy").select_option("bottom_up")
    explorer.get_by_text("Bottom-up: ").wait_for()
    open_view(explorer, "decisions")
    explorer.get_by_role("button", name="One decision forward").click()
    explorer.locator(".fx-stepping").wait_for()
    found["a step"] = findings()
    assert {state: said for state, said in found.items() if said} == {}


def test_axe_would_find_a_button_without_a_name(open_explorer):
    desk = open_explorer(SHOW)
    desk.page.evaluate("() => document.querySelector('.fl-explorer').append(document.createElement('button'))")
    eventually(lambda: [said.partition(":")[0] for said in serious_findings(desk.page)], ["button-name"])

"""The explorer comes to rest after each answer: what is shown, its size, and what is asked do not follow each other."""

from __future__ import annotations

import time

import pytest
from browser.rest import SIZES, drive, example, opened, rest_after
from browser.stage import Stage
from browser.tools import open_view, view_names
from browser.waiting import expect
from fuser_lab_widgets import Explorer
from fuser_lab_widgets.parts.panels import Panels

import fuser_lab as fl

pytestmark = pytest.mark.browser

FLICKERED = ("llama3_rope_backward", "dropout_add_layer_norm")
QUIET = 0.1  # seconds, from when the page and Python wait for nothing
HEIGHT = "(panel) => panel.offsetHeight"
# Counts how often the panel loses its list.
EMPTIED = """() => {
  const panel = document.querySelector(".fx-panel");
  window.emptied = 0;
  const look = () => { if (!panel.querySelector("ol")) window.emptied += 1; };
  new MutationObserver(look).observe(panel, { childList: true });
}"""
# A second view of the same model, as JupyterLab shows in another panel, in half of the page's width.
ANOTHER_VIEW = """() => {
  const place = document.createElement("div");
  place.style.width = "560px";
  document.querySelector("main").after(place);
  window.render(place);
}"""


@pytest.fixture
def at(browser):
    """Show an explorer at a size."""
    stages = []

    def show(plan, size):
        stages.append(opened(browser, plan, size))
        return stages[-1]

    yield show
    for stage in stages:
        stage.close()
        stage.explorer.close()


def of_the_day():
    """Return another example and a size, others each day."""
    names = [name for name in fl.examples.names() if name not in FLICKERED]
    day = int(time.time() // 86400)
    return names[day % len(names)], SIZES[day % len(SIZES)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "size"), [*((name, size) for name in FLICKERED for size in (SIZES[1], SIZES[4])), of_the_day()],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_page_is_at_rest_after_each_view_and_panel_is_opened(at, name, size):
    stage = at(example(name), size)
    rests = drive(stage, QUIET)
    assert {name: rest for name, rest in rests.items() if not rest.is_soon or rest.messages > 3 or rest.pictures} == {}
    assert stage.errors == []


def test_a_tab_keeps_its_content_and_its_height_while_slow_answers_come(at, monkeypatch):
    stage = at(example(FLICKERED[1]), SIZES[1])
    write, looked = Panels.write, []

    def late(panels, name, **options):
        stage.page.wait_for_timeout(400)  # a slow answer
        while not looked:  # the first one until the page was looked at, however slow this machine is
            stage.page.wait_for_timeout(20)
        write(panels, name, **options)

    monkeypatch.setattr(Panels, "write", late)
    panel = stage.root.locator(".fx-panel")
    open_view(stage.root, "schedule")
    height = panel.evaluate(HEIGHT)
    expect(panel).to_have_text("…")
    looked.append("…")
    expect(panel.locator("ol")).to_be_visible()
    assert panel.evaluate(HEIGHT) == height  # settled
    stage.page.evaluate(EMPTIED)
    edge = stage.root.locator(".fl-edge.fl-inside .fl-hit").last
    rest = rest_after(stage, lambda: edge.dispatch_event("click"))
    expect(stage.status).to_contain_text("Cut at")
    expect(panel).to_have_attribute("aria-busy", "false")
    assert rest.is_soon
    assert stage.page.evaluate("() => window.emptied") == 0  # settled
    stage.page.set_viewport_size({"width": 1500, "height": 980})
    rest = rest_after(stage, lambda: stage.page.set_viewport_size({"width": 1680, "height": 1050}))
    assert rest.is_soon
    assert rest.messages == 0  # the picture does not depend on the size of the canvas
    assert stage.page.evaluate("() => window.emptied") == 0  # settled
    buttons = panel.get_by_role("group", name="Segment").locator("button")
    expect(buttons).to_have_count(len(stage.explorer.plan.segments))


def test_each_tab_has_one_height_whatever_it_contains(at):
    stage = at(example("softmax"), SIZES[1])
    panel = stage.root.locator(".fx-panel")
    for name in view_names(stage.root):
        open_view(stage.root, name)
        heights = [panel.evaluate(HEIGHT)]
        stage.rest()
        heights.append(panel.evaluate(HEIGHT))
        panel.evaluate("(one) => one.replaceChildren()")
        heights.append(panel.evaluate(HEIGHT))
        assert len(set(heights)) == 1, name


def test_two_views_of_different_sizes_are_at_rest(browser):
    stage = Stage(browser, size=(1440, 900))
    stage.show(Explorer(example("softmax"), []))
    stage.settle()
    rest = rest_after(stage, lambda: stage.page.evaluate(ANOTHER_VIEW))
    assert rest.is_soon
    assert rest.messages == 0  # the picture does not depend on the size of a canvas
    for view in stage.page.locator(".fl-explorer").all():
        rest = rest_after(stage, lambda view=view: open_view(view, "source"))
        assert rest.is_soon
        open_view(view, "segments")
        stage.rest()
    expect(stage.page.locator(".fl-explorer[data-settled]")).to_have_count(2)
    assert stage.errors == []
    stage.close()
    stage.explorer.close()

"""The source tab: source and schedule side by side, and the steps of a kernel, in the explorer, a page and a report."""

from __future__ import annotations

import re

import pytest
from browser.accessibility import serious_findings
from browser.pages import open_page
from browser.stage import Stage
from browser.tools import open_view
from browser.waiting import eventually, expect, until
from fuser_lab_widgets import Explorer
from fuser_lab_widgets.playing import player_html

import fuser_lab as fl
from fuser_lab import FusionDefinition

pytestmark = pytest.mark.browser


def softmax():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, dims=[1], keepdim=True)))
        fd.add_output(fd.ops.truediv(e, fd.ops.sum(e, dims=[1], keepdim=True)))
    return fl.segment(fd, [fl.spec((4, 16))])


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.matrix)])
def test_lines_are_linked_and_steps_are_followed(browser, shots, theme):
    stage, explorer = Stage(browser, size=(1440, 900), theme=theme), Explorer(softmax())
    stage.show(explorer)
    page, root = stage.page, stage.root
    open_view(root, "source")
    root.get_by_role("button", name="Side by side").click()
    source, schedule = root.get_by_role("listbox", name="Source"), root.get_by_role("listbox", name="Schedule")
    line = source.get_by_role("option").filter(has_text="_row[r] =").first
    line.click()
    loops = (re.compile(rf"^\s*for {name} in") for name in ("group", "row", "r"))
    expect(schedule.locator(".fx-lit")).to_have_text(list(loops))
    expect(source.locator(".fx-lit")).to_have_text([line.inner_text()])
    source.focus()
    page.keyboard.press("ArrowUp")
    chosen = source.get_by_role("option", selected=True)
    expect(chosen).not_to_have_id(line.get_attribute("id"))
    expect(source).to_have_attribute("aria-activedescendant", chosen.get_attribute("id"))
    schedule.get_by_role("option").filter(has_text="for row").click()
    until(source.locator(".fx-lit").count, lambda count: count > 10)
    assert serious_findings(page) == []  # settled
    root.screenshot(path=shots / f"source-beside-{theme}.png")

    root.get_by_role("button", name="Steps").click()
    slider = root.get_by_role("slider", name="Step", exact=True)
    told = root.locator(".fx-step-text")
    expect(told).to_have_text(re.compile(r": reads T0\[0\]; group = 0, row = 0, r = 0; the only thread\.$"))
    expect(root.get_by_role("button", name="Play")).to_be_disabled()  # the page has reduced motion
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(told).to_contain_text("reads T0[1]; ")
    expect(slider).to_have_attribute("aria-valuetext", told.inner_text())
    expect(root.locator(".fx-kernel-player figure .fx-reads")).to_have_attribute("title", "T0[1]")
    number = int(told.inner_text().removeprefix("Line ").partition(":")[0])
    expect(root.locator(".fx-doing")).to_have_attribute("data-line", str(number))
    expect(root.locator(".fx-doing")).to_contain_text("T0[")
    page.keyboard.press("End")
    output = root.locator("figure").filter(has_text="output")
    expect(output.locator(".fx-writes")).to_have_count(1)
    expect(output.locator(".fx-was")).to_have_count(63)
    assert serious_findings(page) == []  # settled
    root.screenshot(path=shots / f"source-steps-{theme}.png")

    root.get_by_role("button", name="CUDA").click()
    threads = root.get_by_role("combobox", name="Threads")
    everyone = root.locator("figure").filter(has_text="T0 input").locator(".fx-reads")
    threads.wait_for()  # drawn with the grids once Python has answered; a single thread offers no choice
    expect(everyone).to_have_count(64)
    threads.select_option("block 0, thread y 1, thread x 0")
    titles = "(cells) => cells.map((cell) => cell.title)"
    eventually(lambda: everyone.evaluate_all(titles), [f"T0[{n}]" for n in range(16, 20)])
    assert stage.errors == []
    explorer.close()
    stage.close()


def test_a_player_plays_by_itself_in_a_page_of_its_own(browser):
    place = open_page(browser, size=(1000, 700), still=False)
    page = place.page
    page.set_content(player_html(softmax().segments[0].steps("cpu"), "<i>Steps</i>"))
    frame = page.frame_locator("iframe[title='<i>Steps</i>']")
    count = frame.locator(".fx-note").filter(has_text=" of ").first
    frame.get_by_role("button", name="Play").click()
    expect(count).not_to_have_text(re.compile("^1 of "))
    frame.get_by_role("button", name="Pause").click()
    frame.get_by_role("button", name="Play").wait_for()
    stopped = count.inner_text()
    page.wait_for_timeout(800)  # in which the player would advance
    assert count.inner_text() == stopped  # settled: it must be unchanged
    frame.get_by_role("slider", name="Step").focus()
    page.keyboard.press("Space")
    expect(frame.get_by_role("button", name="Pause")).to_be_visible()
    expect(page.locator(".fl-play > pre")).to_be_hidden()
    assert place.errors == []
    place.close()


def test_a_report_holds_the_steps_and_the_linked_lines(browser, tmp_path):
    path = fl.report([softmax()], tmp_path / "report.html")
    place = open_page(browser, size=(1300, 900))
    page = place.page
    page.goto(path.as_uri())
    open_view(page, "source")
    page.get_by_role("button", name="Steps").click()
    page.locator(".fx-step-text").filter(has_text="reads T0[0]").wait_for()
    slider = page.get_by_role("slider", name="Step", exact=True)
    seen = """(shelf) => [...shelf.querySelectorAll(".fx-writes")].every((cell) => {
      const [cells, room] = [cell, shelf].map((one) => one.getBoundingClientRect());
      return cells.top >= room.top && cells.bottom <= room.bottom + 1;
    })"""
    for step in range(0, int(slider.get_attribute("max")), 7):  # what a step writes is in view
        slider.fill(str(step))
        eventually(lambda: page.locator(".fx-grids").evaluate(seen), True)
    page.get_by_role("button", name="Side by side").click()
    expect(page.get_by_role("listbox")).to_have_count(2)
    page.get_by_role("button", name="CUDA").click()
    expect(page.get_by_role("listbox", name="Schedule")).to_contain_text("blockIdx.x")
    assert place.errors == []
    place.close()

"""The source tab's profile: each line that reads or writes memory with its bytes, and the bound of the kernel."""

from __future__ import annotations

import re

import numpy as np
import pytest
from browser.accessibility import serious_findings
from browser.pages import open_page
from browser.stage import Stage
from browser.tools import open_view
from browser.waiting import expect
from fuser_lab_widgets import Explorer
from fuser_lab_widgets.saved import saved_html

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.lab.profiling import PlanProfile
from fuser_lab.lab.profiling.ncu import KernelCounters
from fuser_lab.lab.profiling.profile import counted_profile

pytestmark = pytest.mark.browser


def softmax():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, dims=[1], keepdim=True)))
        fd.add_output(fd.ops.truediv(e, fd.ops.sum(e, dims=[1], keepdim=True)))
    return fl.segment(fd, [fl.spec((512, 1024))])


@pytest.mark.parametrize(("theme", "size"), [
    ("light", (1440, 900)), pytest.param("dark", (1280, 720), marks=pytest.mark.matrix),
])
def test_lines_have_their_bytes_and_the_kernel_its_bound(browser, shots, theme, size):
    plan = softmax()
    explorer = Explorer(plan, [np.ones((512, 1024), np.float32)])
    stage = Stage(browser, size=size, theme=theme)
    stage.show(explorer)
    page, root = stage.page, stage.root
    open_view(root, "source")
    root.get_by_role("button", name="Profile", exact=True).click()
    ask = root.get_by_role("button", name="Profile this plan")
    ask.focus()
    page.keyboard.press("Enter")
    expect(root.locator(".fx-panel")).to_contain_text("Profiling")
    explorer.wait()
    page.evaluate("() => window.model.save_changes()")  # updates from the background come with the next answer
    source = root.get_by_role("listbox", name="Source")
    told = root.get_by_role("listbox", name=re.compile("^Profile, CPU"))
    expect(told).to_contain_text(re.compile(r"(Bound by|bound by).*it took"))
    read = source.get_by_role("option").filter(has_text="= T0[")
    expect(read).to_have_count(2)  # the rows are read twice
    expect(read.first).to_have_text(re.compile(r"^35\s*2.1\d MB"))
    expect(source.get_by_role("option").filter(has_text="t4 = exp32")).not_to_contain_text("MB")
    told.focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    chosen = told.get_by_role("option", selected=True)
    expect(chosen).to_have_text(re.compile(r"^Line \d+ reads T0: 2\.1\d MB, 33% of all, 1\.00 times the tensor, "))
    expect(source.locator(".fx-lit")).to_have_count(1)
    expect(source.locator(".fx-lit")).to_contain_text("T0[")
    assert serious_findings(page) == []  # settled
    root.screenshot(path=shots / f"source-profile-{theme}-{size[0]}.png")
    assert stage.errors == []
    stage.close()
    explorer.close()


def test_counters_and_names_are_shown_as_text(browser):
    plan = softmax()
    known = fl.profile(plan)
    name = known.rows[0].kernels[0]
    counters = KernelCounters(
        name=f"{name}<img src=x>", seconds=1e-5, dram_read=2e6, dram_written=2e6, l2_bytes=9e6, dram_share=0.8,
        l2_share=0.4, sm_share=0.3, occupancy=0.7, registers=32, bank_conflicts=0, shared_wavefronts=10,
    )
    found: PlanProfile = counted_profile(known, [counters])
    explorer = Explorer(plan, profile=found)
    stage = Stage(browser, size=(1440, 900))
    stage.show(explorer)
    root = stage.root
    open_view(root, "source")
    root.get_by_role("button", name="Profile", exact=True).click()
    root.get_by_role("button", name="CUDA", exact=True).click()
    told = root.get_by_role("listbox", name="Profile, H200")
    expect(told).to_contain_text(f"Launch {name}<img src=x>: Bound by memory: memory at 80 %")
    expect(told).to_contain_text("from memory, by counters 4.00 MB; through L2 9.00 MB")
    assert told.locator("img").count() == 0  # settled
    assert stage.errors == []
    stage.close()
    explorer.close()


def test_a_page_without_a_kernel_shows_the_profile(browser, tmp_path):
    plan = softmax()
    page_path = tmp_path / "saved.html"
    body = saved_html([plan], "abc", profile=fl.profile(plan))
    page_path.write_text(f"<!DOCTYPE html><body>{body}", encoding="utf-8")
    place = open_page(browser, size=(1300, 900))
    place.page.goto(page_path.as_uri())
    frame = place.page.frame_locator(".fl-saved iframe")
    open_view(frame, "source")
    frame.get_by_role("button", name="Profile", exact=True).click()
    expect(frame.locator(".fx-panel")).to_contain_text("The profile is of the kernels for cuda.")
    frame.get_by_role("button", name="CUDA", exact=True).click()
    expect(frame.get_by_role("listbox", name="Profile, H200")).to_contain_text("By the roofline of H200")
    expect(frame.locator(".fx-cost:not(:empty)").first).to_contain_text("MB")
    place.close()

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser.lab import change_theme, open_notebook, replace_cells, start_lab, write_notebook

if TYPE_CHECKING:
    from browser.lab import Desk, Lab
    from playwright.sync_api import Browser

SETUP = """\
import time
import stub_plan
from fuser_lab.cost.measured_times import TimingRow, Timings
from fuser_lab_widgets import Explorer

def row(plan, segment, ratio):
    return TimingRow(
        plan=plan, segment=segment, scheduler="pointwise", ops=1, bytes_in=5 * 10**5, bytes_out=5 * 10**5,
        bytes_crossing=0, median=1e-3, iqr=2e-5, samples=20, ratio=ratio, device="CPU", timer="wall clock", error=0.1)

def pause(cancelled):
    end = time.monotonic() + PAUSE
    while time.monotonic() < end and not cancelled():
        time.sleep(0.02)

def timer(plans, inputs, *, progress, cancelled):
    rows, total = [], sum(len(plan.segments) for plan in plans)
    for number, plan in enumerate(plans):
        for segment in plan.segments:
            pause(cancelled)
            if cancelled():
                return Timings(rows=tuple(rows))
            rows.append(row(("baseline", "edited")[number], segment.index, float("nan")))
            progress(len(rows), total, Timings(rows=tuple(rows)))
        rows.append(row(("baseline", "edited")[number], None, 1.0 + number))
    return Timings(rows=tuple(rows))

PAUSE = 0.1
plan = stub_plan.sum_broadcast_add()
other = stub_plan.replace(plan, groups=(("T2", "T3"), ("T4",)), strategy="top_down")
plan = stub_plan.replace(plan, makers=(("top_down", lambda: other),))
"""


@pytest.fixture(scope="session")
def shots(repository: Path) -> Path:
    """The folder of screenshots."""
    folder = repository / "test-output"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory, repository: Path, browser: Browser) -> Iterator[Lab]:
    """A JupyterLab on a separate directory, with the stand-ins for plans and the project's notebooks."""
    root = tmp_path_factory.mktemp("lab")
    shutil.copy(repository / "tests" / "unit" / "report" / "stub_plan.py", root)
    for notebook in sorted((repository / "notebooks").glob("*.ipynb")):
        shutil.copy(notebook, root)
    shutil.copytree(repository / "notebooks" / "questions", root / "questions")
    running = start_lab(root, tmp_path_factory.mktemp("state"))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def desks() -> Iterator[list[Desk]]:
    """The notebook that tests share, once it is open: opening another takes three times as long as most tests."""
    shared: list[Desk] = []
    yield shared
    for desk in shared:
        desk.page.close()


@pytest.fixture
def open_explorer(
    lab: Lab, browser: Browser, desks: list[Desk], request: pytest.FixtureRequest,
) -> Iterator[Callable[..., Desk]]:
    """Run these cells in a notebook and wait for its explorer; ``fresh`` opens one that no other test uses."""
    own, failed = [], request.session.testsfailed
    taken = False

    def open_it(*cells: str, theme: str = "light", fresh: bool = False) -> Desk:
        nonlocal taken
        if fresh or taken or not desks:
            path = lab.root / f"n{len(list(lab.root.iterdir()))}.ipynb"
            write_notebook(path, SETUP, *cells)
            desk, errors = open_notebook(lab, browser, path.name, theme=theme)
            (own if fresh or taken else desks).append(desk)
        else:
            (desk,) = desks
            if desk.theme != theme:
                change_theme(desk, theme)
            errors = replace_cells(desk, SETUP, *cells)
        taken = taken or not fresh
        assert errors == []
        desk.explorer.wait_for()
        if desk.explorer.locator(".fl-node").count():
            desk.page.locator(".fl-explorer[data-settled]").first.wait_for()
        return desk

    yield open_it
    if request.session.testsfailed > failed:  # in any state
        own += desks
        desks.clear()
    for desk in own:
        desk.page.close()

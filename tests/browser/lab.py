"""A separate JupyterLab for the browser tests, and a page to control it."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .tools import open_view
from .waiting import PATIENCE, eventually, expect

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator, Page

OWN_DIRECTORIES = (
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_RUNTIME_DIR",
    "JUPYTERLAB_WORKSPACES_DIR",
    "JUPYTERLAB_SETTINGS_DIR",
    "IPYTHONDIR",
)
START_SECONDS = 90
SETTINGS = {
    "apputils-extension/notification": {"checkForUpdates": False, "doNotDisturbMode": True, "fetchNews": "false"},
    "docmanager-extension/plugin": {"autosave": False},  # tests save
}
RUN_ALL = """async (path) => {
  const app = window.jupyterapp;
  let panel;
  for (let n = 0; n < 2400 && !panel; n++) {
    panel = [...app.shell.widgets('main')].find((w) => w.context && w.context.path === path && w.sessionContext);
    if (!panel) await new Promise((done) => setTimeout(done, 50));
  }
  if (!panel) throw new Error('the notebook did not open');
  await panel.context.ready;
  await panel.sessionContext.ready;
  await panel.sessionContext.session.kernel.info;
  app.shell.activateById(panel.id);
  await app.commands.execute('notebook:run-all-cells');
  return panel.content.model.sharedModel.cells.flatMap((cell) => cell.outputs || [])
    .filter((output) => output.output_type === 'error').map((output) => `${output.ename}: ${output.evalue}`);
}"""
# Replaces the names, the widgets and the cells of the open notebook by these cells.
REPLACE = """async (sources) => {
  const panel = window.jupyterapp.shell.currentWidget;
  const code = 'from ipywidgets import Widget\\nWidget.close_all()\\nget_ipython().reset(new_session=False)';
  await panel.sessionContext.session.kernel.requestExecute({ code }).done;
  const model = panel.content.model.sharedModel;
  const before = model.cells.length;
  const cells = sources.map((source) => ({ cell_type: 'code', source, metadata: {}, outputs: [] }));
  model.transact(() => {
    model.insertCells(0, cells);
    model.deleteCellRange(cells.length, cells.length + before);
  });
  panel.content.activeCellIndex = 0;
  panel.content.mode = 'command';
}"""
CHANGE_THEME = "(theme) => window.jupyterapp.commands.execute('apputils:change-theme', { theme })"
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
VIEW = {"width": 1440, "height": 1250}
SHOW_CELL = """async (needle) => {
  const notebook = window.jupyterapp.shell.currentWidget.content;
  const at = notebook.widgets.findIndex((cell) => cell.model.sharedModel.getSource().includes(needle));
  if (at < 0) throw new Error(`no cell contains ${needle}`);
  notebook.activeCellIndex = at;
  await notebook.scrollToItem(at, 'start');
}"""
ROOM = """async () => {
  await window.jupyterapp.commands.execute('application:set-mode', {mode: 'single-document'});
  window.jupyterapp.shell.collapseLeft();
}"""
MIDDLE = """(path) => {
  const at = path.getPointAtLength(path.getTotalLength() / 2).matrixTransform(path.getScreenCTM());
  return [at.x, at.y];
}"""


@dataclass
class Lab:
    """A running JupyterLab."""

    url: str
    token: str
    root: Path
    settings: Path
    process: subprocess.Popen[bytes]
    context: BrowserContext | None = None

    def page(self, browser: Browser) -> Page:
        """Return a new page; all share a context, so the browser compiles JupyterLab's scripts once."""
        if self.context is None:
            self.context = browser.new_context(viewport=VIEW)
            self.context.set_default_timeout(PATIENCE)
        return self.context.new_page()

    def address(self, path: str) -> str:
        """Return the address of a notebook, in a new workspace."""
        return f"{self.url}/lab/workspaces/e2e-{secrets.token_hex(4)}/tree/{path}?reset&token={self.token}"

    def stop(self) -> None:
        """End the server and its kernels: they have their own process group."""
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(20)


def start_lab(root: Path, state: Path) -> Lab:
    """Return a JupyterLab that serves ``root`` and keeps its settings under ``state``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_hex(16)
    own = {name: str(state / name.lower()) for name in OWN_DIRECTORIES}
    command = [
        sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={root}", "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate", "--LabApp.extension_manager=readonly",
        "--LabApp.expose_app_in_browser=True",
    ]  # fmt: skip
    settings = state / "jupyterlab_settings_dir" / "@jupyterlab"
    for name, values in SETTINGS.items():
        path = settings / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    with (state / "lab.log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **own}, stdout=log, stderr=log, start_new_session=True)
    lab = Lab(f"http://127.0.0.1:{port}", token, root, settings / "apputils-extension", process)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{lab.url}/api/status?token={token}", timeout=5):
                return lab
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    lab.stop()
    message = f"JupyterLab did not start: {(state / 'lab.log').read_text()[-2000:]}"
    raise RuntimeError(message)


@dataclass
class Desk:
    """A notebook open in a page, with the page's errors and requests."""

    page: Page
    path: str
    theme: str = "light"
    complaints: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)

    @property
    def explorer(self) -> Locator:
        """The first explorer of the notebook."""
        return self.page.locator(".fl-explorer").first

    def edge(self, tensor: str, kind: str) -> Locator:
        """The edges of a kind for a tensor."""
        return self.explorer.locator(f'.fl-edge.fl-{kind}[data-id^="{tensor}|"]')

    def middle(self, tensor: str, kind: str) -> tuple[float, float]:
        """The middle of an edge on the screen; the bounding box of a straight edge has no height to click."""
        self.settle()
        self.explorer.scroll_into_view_if_needed()
        x, y = self.edge(tensor, kind).first.locator(".fl-hit").evaluate(MIDDLE)
        return x, y

    def has_focus(self, ident: str) -> None:
        """Wait until something in the graph, named by its id, has the focus."""
        eventually(lambda: self.page.evaluate("() => document.activeElement.dataset.id || ''"), ident)

    def click_edge(self, tensor: str, kind: str, *, mouse: bool = True) -> float:
        """Click the middle of an edge and return the milliseconds until the picture was redrawn.

        ``mouse=False`` sends the click to the edge itself, which may be below another or moving.
        """
        x, y = self.middle(tensor, kind)
        self.explorer.evaluate(
            """(root) => {
              root.drawn = new Promise((done) => {
                let start;
                root.addEventListener('click', (e) => { start = performance.now(); }, {capture: true, once: true});
                const drawn = () => requestAnimationFrame(() => done(performance.now() - start));
                root.addEventListener('fuser-lab-drawn', drawn, {once: true});
                setTimeout(() => done(-1), 60000);
              });
            }""",
        )
        if mouse:
            self.page.mouse.click(x, y)
        else:
            self.edge(tensor, kind).first.locator(".fl-hit").dispatch_event("click")
        return float(self.explorer.evaluate("(root) => root.drawn"))

    def sum_result(self) -> str:
        """The name of the tensor that a sum computes."""
        title = self.explorer.locator(".fl-op title").filter(has_text="= sum(").first.text_content()
        return str(title).partition(" ")[0]

    def open_view(self, name: str) -> None:
        """Open a view, and wait until it shows its content from Python."""
        open_view(self.explorer, name)
        expect(self.explorer.locator(".fx-panel")).not_to_have_text(re.compile(r"^\s*$|…\s*$"))

    def show_cell(self, needle: str) -> None:
        """Scroll to the cell that contains a text: JupyterLab draws only what is near the screen."""
        self.page.evaluate(SHOW_CELL, needle)
        self.explorer.scroll_into_view_if_needed()
        # Not innerText, which is empty where JupyterLab does not render the cell: it may still scroll to the other one.
        self.page.wait_for_function("() => document.querySelector('.fl-explorer .fx-facts').textContent !== ''")

    def is_centred(self) -> bool:
        """Whether the boxes of the picture currently have equal margins on the left and on the right."""
        canvas = self.explorer.locator(".fx-canvas").bounding_box()
        shapes = self.explorer.locator(".fl-op, .fl-io, .fl-box").all()
        boxes = [box for shape in shapes if (box := shape.bounding_box())]
        left = min(box["x"] for box in boxes) - canvas["x"]
        right = canvas["x"] + canvas["width"] - max(box["x"] + box["width"] for box in boxes)
        return abs(left - right) < 0.1 * canvas["width"]

    @property
    def facts(self) -> Locator:
        """The numbers in the header."""
        return self.explorer.locator(".fx-facts")

    @property
    def status(self) -> Locator:
        """The status line."""
        return self.explorer.locator(".fx-status")

    def has_segments(self, count: int) -> None:
        """Wait until the header shows this number of segments."""
        expect(self.facts).to_have_text(re.compile(rf"^{count} segment"))

    def segments(self) -> int:
        """The number of segments that the header shows now."""
        return int(self.facts.inner_text().split()[0])

    def settle(self) -> None:
        """Wait until the picture has the shape of the canvas and no animation runs."""
        expect(self.explorer.and_(self.page.locator("[data-settled]"))).to_be_visible()
        expect(self.explorer.locator(".fx-canvas")).not_to_have_class(re.compile("fx-gliding"))


def open_notebook(lab: Lab, browser: Browser, path: str, *, theme: str = "light") -> tuple[Desk, list[str]]:
    """Open a notebook, run all cells, and return the page with the errors of the cells."""
    (lab.settings / "themes.jupyterlab-settings").write_text(json.dumps({"theme": THEMES[theme]}))
    page = lab.page(browser)
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    desk = Desk(page, path, theme)
    page.on("console", lambda m: desk.complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: desk.complaints.append(f"{e} {e.stack}"))
    page.on("request", lambda r: desk.strangers.append(r.url) if _strange(r.url) else None)
    page.goto(lab.address(path))
    page.wait_for_function("window.jupyterapp && window.jupyterapp.started.then(() => true)")
    page.evaluate(ROOM)
    errors: list[str] = page.evaluate(RUN_ALL, path)
    return desk, errors


def change_theme(desk: Desk, theme: str) -> None:
    """Show a page in another theme."""
    desk.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    desk.page.evaluate(CHANGE_THEME, THEMES[theme])
    desk.page.wait_for_function("(theme) => document.body.dataset.jpThemeName === theme", arg=THEMES[theme])
    desk.theme = theme


def replace_cells(desk: Desk, *cells: str) -> list[str]:
    """Run other cells in an open notebook, reusing its page and kernel, and return their errors."""
    desk.page.set_viewport_size(VIEW)
    desk.page.mouse.move(0, 0)
    desk.page.evaluate(REPLACE, cells)
    desk.complaints.clear()
    desk.strangers.clear()
    errors: list[str] = desk.page.evaluate(RUN_ALL, desk.path)
    return errors


def _strange(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in {"http", "https", "ws", "wss"} and parts.hostname not in {"127.0.0.1", "localhost"}


def write_notebook(path: Path, *cells: str) -> None:
    """Write a notebook of code cells."""
    made: list[dict[str, Any]] = [
        {"cell_type": "code", "id": f"c{n}", "metadata": {}, "outputs": [], "execution_count": None, "source": source}
        for n, source in enumerate(cells)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    body = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(body), encoding="utf-8")

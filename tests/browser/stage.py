"""The real explorer in a bare page: its script, and its Python side in this process instead of a kernel."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from fuser_lab_widgets import assets
from fuser_lab_widgets.runner import Runner

from fuser_lab.files.json_text import json_text

from .pages import open_page
from .waiting import PATIENCE, expect

if TYPE_CHECKING:
    from fuser_lab_widgets import Explorer
    from playwright.sync_api import Browser, Locator, Page

_PAGE = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>explorer</title>%s<style>%s
body{margin:0}</style></head><body data-jp-theme-light="%s"><main></main><script type="module">
const module = URL.createObjectURL(new Blob([%s], { type: "text/javascript" })); // as anywidget does
const { default: widget } = await import(module);
class Model {
  constructor(state) { this.state = state; this.listeners = []; this.changed = {}; this.asking = 0; }
  get(name) { return this.state[name]; }
  set(name, value) { this.state[name] = this.changed[name] = value; }
  on(name, run) { this.listeners.push([name, run]); }
  off(name, run) { this.listeners = this.listeners.filter(([n, r]) => n !== name || r !== run); }
  async save_changes() {
    const changed = this.changed;
    this.changed = {};
    this.asking += 1;
    this.take(JSON.parse(await window.toPython(JSON.stringify(changed))));
    this.asking -= 1;
  }
  take(news) {
    Object.assign(this.state, news);
    for (const name of Object.keys(news)) for (const [n, run] of this.listeners) if (n === `change:${name}`) run();
  }
}
window.render = (el) => widget.render({ model: window.model, el });
window.show = (text) => {
  window.model = new Model(JSON.parse(text));
  window.gone = window.render(document.querySelector("main"));
  const nodes = () => document.querySelectorAll(".fl-node").length;
  return new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(nodes()))));
};
</script></body></html>"""
# Milliseconds from a click on an element to the frame with the requested picture.
_CLICKED = """(item) => new Promise((done) => {
  const start = performance.now();
  const drawn = () => requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
  item.closest(".fl-explorer").addEventListener("fuser-lab-drawn", drawn, { once: true });
  setTimeout(() => done(-1), 60000);
  item.dispatchEvent(new MouseEvent("click", { bubbles: true }));
})"""

# The stage that a page shows now; a page can be given the function that calls Python only once.
_on_page: WeakKeyDictionary[Page, Stage | None] = WeakKeyDictionary()


class Stage:
    """A page that shows an explorer; every message between the two is JSON, as between a notebook and its kernel.

    Messages that Python sends while it handles an event reach the page at once, so the page draws while Python
    continues. Changes in the background are sent with the answer to the next event. ``policy`` is the page's
    Content-Security-Policy; a ``fresh`` page is new to the browser.
    """

    def __init__(
        self, browser: Browser, *, size: tuple[int, int] = (1280, 720), theme: Literal["light", "dark"] = "light",
        policy: str = "", fresh: bool = False,
    ) -> None:
        self._place = open_page(browser, size=size, theme=theme, fresh=fresh)
        self.page, self.errors = self._place.page, self._place.errors
        self._sent: dict[str, Any] = {}
        self._handles, self._begun = False, 0.0
        self._waiting: list[str] = []
        self.python_seconds = 0.0  # processor time of Python for the last picture, from the event until it was sent
        if self.page not in _on_page:
            self.page.expose_function("toPython", lambda text, page=self.page: _to_python(page, text))
        _on_page[self.page] = self
        script = json_text(assets.script()).replace("</", "<\\/")
        allowed = f'<meta http-equiv="Content-Security-Policy" content="{policy}">' if policy else ""
        self.page.set_content(_PAGE % (allowed, assets.style(), str(theme == "light").lower(), script))
        self.page.wait_for_function("() => window.show")

    @property
    def root(self) -> Locator:
        """The explorer."""
        return self.page.locator(".fl-explorer")

    def show(self, explorer: Explorer) -> None:
        """Show an explorer, and return once it is painted."""
        self.explorer = explorer
        explorer.send_state = self._push  # type: ignore[method-assign]
        explorer.wait = self._wait  # type: ignore[method-assign]
        nodes = self.page.evaluate("(text) => window.show(text)", self._news())
        if self.errors or not nodes:
            message = f"the explorer did not open: {self.errors}"
            raise RuntimeError(message)

    def settle(self) -> None:
        """Wait until the picture has the shape of the canvas."""
        expect(self.page.locator(".fl-explorer[data-settled]")).to_be_visible()

    def rest(self) -> None:
        """Wait until Python has nothing to do and the page has all of it."""
        quiet = "new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(window.model.asking === 0))))"
        while True:
            if not self.page.evaluate(quiet):
                continue  # the page may ask again once it has the answer
            self.explorer.wait(60)
            if not self.deliver():
                return

    def deliver(self) -> bool:
        """Send what has changed in the background, as a kernel does at once, and return whether there was something."""
        with self.explorer._lock:
            news = self._news()
        if news == "{}":
            return False
        self.page.evaluate("(text) => window.model.take(JSON.parse(text))", news)
        return True

    @property
    def works(self) -> bool:
        """Whether Python computes something in the background."""
        return any(one.running if isinstance(one, Runner) else one.busy for one in self.explorer._workers)

    def click(self, item: Locator) -> float:
        """Click something and return the milliseconds until the picture was redrawn, -1 if it was not."""
        return float(item.evaluate(_CLICKED))

    @property
    def status(self) -> Locator:
        """The status line."""
        return self.page.locator(".fx-status")

    def close(self) -> None:
        """Close the page."""
        _on_page[self.page] = None
        self._place.close()

    def _wait(self, timeout: float | None = None) -> None:
        """Wait as the explorer does, once all events are handled: this thread handles them, and others wait for it."""
        while True:
            self.page.wait_for_function("() => window.model.asking === 0")
            # The page may have asked after that. An event that is being handled has the explorer's lock, and goes on
            # only when this thread queries the page.
            if not self._handles:
                break
        type(self.explorer).wait(self.explorer, PATIENCE / 1000 if timeout is None else timeout)

    def _take(self, text: str) -> str:
        self._waiting.append(text)
        if self._handles:
            return "{}"  # a kernel handles one message after the other
        with self.explorer._lock:  # as a kernel sends what an event changes before a thread changes more
            while self._waiting:
                self._handles, self._begun = True, time.thread_time()
                self.explorer.set_state(json.loads(self._waiting.pop(0)))
                self._handles = False
            return self._news()

    def _push(self, key: object = None) -> None:
        if not self._handles or threading.current_thread() is not threading.main_thread():
            return
        if isinstance(key, set) and "scene" in key:
            self.python_seconds = time.thread_time() - self._begun
        self.page.evaluate("(text) => window.model.take(JSON.parse(text))", self._news(key))

    def _news(self, key: object = None) -> str:
        """Return what has changed since it was sent, of the traits that ``key`` names or (None) of all."""
        state = self.explorer.get_state(key)
        news = {
            name: value for name, value in state.items()
            if not name.startswith("_") and name not in {"layout", "tabbable", "tooltip"}
            and self._sent.get(name) is not value and self._sent.get(name) != value
        }
        self._sent |= news
        return json_text(news)


def _to_python(page: Page, text: str) -> str:
    stage = _on_page[page]
    return "{}" if stage is None else stage._take(text)

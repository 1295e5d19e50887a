"""The explorer's times at 10, 60, 400 and 3,000 ops: ``python -m tests.browser.measure`` prints one table.

*Open* runs from ``Explorer(plan)``, as in a cell that displays a plan, to the painted picture, without segmentation.
*Click* runs from a click on an edge, which cuts there, to the frame with the new picture, *select* from a click on a
node to its result. A graph that opens folded has a second row: *open* is from a click on *Ops* to the picture of all
ops, and the clicks are on elements around an op in its middle. The page contains only the explorer's script, and Python
answers in this process: the times exclude the cost of a kernel, a few milliseconds per message. Each click comes after
all work started by the previous one has ended. *CPU* is the processor time of Python and of the page's main thread,
which is meaningful on a busy machine as well. *Memory* is the page's heap; *sent* is the data that Python sends to
open.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fuser_lab_widgets import Explorer
from playwright.sync_api import sync_playwright

from tests.browser.sizes import OPS_PER_LAYER, layers, two_norms
from tests.browser.stage import Stage
from tests.browser.tools import tool
from tests.browser_path import HOW, find_browser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from playwright.sync_api import Browser, CDPSession, Locator

    from fuser_lab.plan import Plan

SIZES = (10, 60, 400, 3000)
MOST_OPEN, MOST_CLICK = 1500.0, 100.0  # milliseconds
_SELECTED = """(item) => new Promise((done) => {
  const start = performance.now();
  const panel = document.querySelector(".fx-inspector");
  new MutationObserver((_, seen) => { seen.disconnect(); requestAnimationFrame(() => done(performance.now() - start)); }).observe(panel, { childList: true });
  item.dispatchEvent(new MouseEvent("click", { bubbles: true }));
})"""  # noqa: E501


def plan_of(ops: int) -> Plan:
    """Return a plan of about ``ops`` ops."""
    return two_norms() if ops <= OPS_PER_LAYER else layers(round(ops / OPS_PER_LAYER))


@dataclass
class Measured:
    """Times in milliseconds, heap and data sent in MB; ``unfolded`` is with all ops in the picture."""

    opened: list[float] = field(default_factory=list)
    open_cpu: list[float] = field(default_factory=list)
    clicked: list[float] = field(default_factory=list)
    click_cpu: list[float] = field(default_factory=list)
    selected: list[float] = field(default_factory=list)
    heap: float = 0.0
    sent: float = 0.0
    unfolded: Measured | None = None

    @property
    def medians(self) -> list[float]:
        """The medians of the times."""
        return [statistics.median(one) for one in (
            self.opened, self.open_cpu, self.clicked, self.click_cpu, self.selected)]


def metrics(session: CDPSession) -> dict[str, float]:
    """Return the page's counters; times are processor seconds."""
    return {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}


class Page:
    """A fresh page with the explorer of a plan, and the time to open it."""

    def __init__(self, browser: Browser, plan: Plan, found: Measured) -> None:
        self.stage = Stage(browser, fresh=True)
        self._session = self.stage.page.context.new_cdp_session(self.stage.page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        before, start, begun = self._busy(), time.perf_counter(), time.thread_time()
        self.explorer = Explorer(plan, [])
        made = time.thread_time() - begun
        self.stage.show(self.explorer)
        found.opened.append(1e3 * (time.perf_counter() - start))
        found.open_cpu.append(1e3 * (made + self._busy() - before))
        found.sent = len(self.stage.page.evaluate("() => JSON.stringify(window.model.state)")) / 1e6
        self.stage.settle()

    def _busy(self) -> float:
        return metrics(self._session)["TaskDuration"]

    def _rest(self) -> None:
        """Wait for pending work of Python and of the page."""
        self.explorer.wait(60)
        self.stage.page.evaluate("() => new Promise((done) => requestIdleCallback(done, { timeout: 1000 }))")

    def click(self, item: Locator, wall: list[float], cpu: list[float]) -> None:
        """Click something that changes the picture, and add the time."""
        item.wait_for(state="attached")
        self._rest()
        before = self._busy()
        wall.append(self.stage.click(item))
        cpu.append(1e3 * (self.stage.python_seconds + self._busy() - before))

    def cut_and_select(self, found: Measured) -> None:
        """Cut at three visible edges, and select an op."""
        inside = self.stage.root.locator(".fl-edge.fl-inside .fl-hit")
        for _ in range(3):
            if inside.count():
                self.click(inside.last, found.clicked, found.click_cpu)
        self._rest()
        found.selected.append(float(self.stage.root.locator(".fl-node").last.evaluate(_SELECTED)))
        self._session.send("HeapProfiler.collectGarbage")
        found.heap = metrics(self._session)["JSHeapUsedSize"] / 1e6

    def open_segment(self, found: Measured) -> None:
        """Show the ops of one segment, because a folded one has no edge to cut."""
        self.stage.root.locator('.fl-whole:not([data-id^="block:"])').first.dispatch_event("click")
        self.click(self.stage.root.get_by_role("button", name="Show or hide its ops"), found.clicked, found.click_cpu)

    def unfold(self, found: Measured) -> None:
        """Show all ops, and then those around one in the middle."""
        self.click(tool(self.stage.root, "Ops"), found.opened, found.open_cpu)
        found.sent = len(self.stage.page.evaluate("() => JSON.stringify(window.model.state)")) / 1e6
        self.stage.settle()
        plan = self.explorer.plan
        search = self.stage.root.get_by_label("Search the graph")
        search.fill(plan.segments[len(plan.segments) // 2].exprs[1].outputs[0].name)
        search.press("Enter")
        self.stage.root.locator(".fl-node.fx-selected").wait_for()
        search.fill("")

    def close(self) -> None:
        """Close the page and the explorer."""
        self.stage.close()
        self.explorer.close()


def measure(browser: Browser, plan: Plan, times: int = 3) -> Measured:
    """Return the times for a plan, measured in fresh pages."""
    found = Measured()
    for _ in range(times):
        page = Page(browser, plan, found)
        folded = page.explorer.scene["detail"] != "ops"
        if folded:
            page.open_segment(found)
        page.cut_and_select(found)
        page.close()
        if folded:
            found.unfolded = found.unfolded or Measured()
            page = Page(browser, plan, Measured())
            page.unfold(found.unfolded)
            page.cut_and_select(found.unfolded)
            page.close()
    return found


def main(sizes: Sequence[int] = SIZES) -> int:
    """Print the table; return 1 if a time exceeds its limit."""
    path = find_browser()
    if path is None:
        print(HOW)
        return 1
    over = False
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        print("          ops  segments   open ms    (CPU)  click ms    (CPU) select ms  memory MB  sent MB")
        for size in sizes:
            plan = plan_of(size)
            found = measure(browser, plan)
            for what, one in (("", found), ("all", found.unfolded)):
                if one is None:
                    continue
                opened, _, clicked, _, selected = one.medians
                over |= opened > MOST_OPEN or max(clicked, selected) > MOST_CLICK
                times = "".join(f"{f'({ms:.0f})':>9}" if n % 2 else f"{ms:10.0f}" for n, ms in enumerate(one.medians))
                name = f"{what} {len(plan.fusion.tensor_exprs)}"
                print(f"{name:>13}{len(plan.segments):10}{times}{one.heap:11.1f}{one.sent:9.2f}", flush=True)
        browser.close()
    print(f"bars: open {MOST_OPEN:.0f} ms, click and select {MOST_CLICK:.0f} ms: {'missed' if over else 'met'}")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())

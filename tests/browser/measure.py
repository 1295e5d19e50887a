"""What the explorer costs at 10, 60, 400 and 3,000 ops: ``python -m tests.browser.measure`` prints one table.

*Open* runs from ``Explorer(plan)``, which is what the cell that displays a plan does, to the painted picture;
segmenting the fusion comes before. *Click* runs from a click on an edge, which cuts there, to the frame with the new
picture, *select* from a click on a node to its answer. The page is a bare one with the explorer's script, and Python
answers in this process: what a kernel adds, some milliseconds for each message, is not in the numbers. *CPU* is the
processor time in it, of Python and of the page's main thread: it counts on a machine with other work. *Memory* is the
page's heap; *sent* is what Python sends to open.
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
from tests.browser_path import HOW, find_browser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from playwright.sync_api import Browser, CDPSession

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
    """Return a plan of about so many ops."""
    return two_norms() if ops <= OPS_PER_LAYER else layers(round(ops / OPS_PER_LAYER))


@dataclass
class Measured:
    """Times in milliseconds, and the page's heap and what was sent in MB."""

    opened: list[float] = field(default_factory=list)
    open_cpu: list[float] = field(default_factory=list)
    clicked: list[float] = field(default_factory=list)
    click_cpu: list[float] = field(default_factory=list)
    selected: list[float] = field(default_factory=list)
    heap: float = 0.0
    sent: float = 0.0

    @property
    def medians(self) -> list[float]:
        """The medians of the times."""
        return [statistics.median(one) for one in (
            self.opened, self.open_cpu, self.clicked, self.click_cpu, self.selected)]


def metrics(session: CDPSession) -> dict[str, float]:
    """Return the page's counters; times are seconds on a processor."""
    return {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}


def measure(browser: Browser, plan: Plan, times: int = 3) -> Measured:
    """Return what a plan costs, measured in fresh pages."""
    found = Measured()
    for _ in range(times):
        stage = Stage(browser)
        session = stage.page.context.new_cdp_session(stage.page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        before, start, begun = metrics(session), time.perf_counter(), time.thread_time()
        explorer = Explorer(plan, [])
        made = time.thread_time() - begun
        stage.show(explorer)
        found.opened.append(1e3 * (time.perf_counter() - start))
        found.open_cpu.append(1e3 * (made + metrics(session)["TaskDuration"] - before["TaskDuration"]))
        found.sent = len(stage.page.evaluate("() => JSON.stringify(window.model.state)")) / 1e6
        stage.settle()
        inside = stage.root.locator(".fl-edge.fl-inside .fl-hit")
        wanted = []
        if explorer.scene["detail"] != "ops":  # what is folded has no edge to cut
            stage.root.locator(".fl-whole").first.click()
            wanted.append(stage.root.get_by_role("button", name="Show or hide its ops"))
            wanted[0].wait_for()
        wanted += [inside.last] * 3
        for item in wanted:
            if not item.count():
                break
            before = metrics(session)
            found.clicked.append(stage.click(item))
            page = metrics(session)["TaskDuration"] - before["TaskDuration"]
            found.click_cpu.append(1e3 * (stage.python_seconds + page))
        found.selected.append(float(stage.root.locator(".fl-node").last.evaluate(_SELECTED)))
        session.send("HeapProfiler.collectGarbage")
        found.heap = metrics(session)["JSHeapUsedSize"] / 1e6
        stage.close()
        explorer.close()
    return found


def main(sizes: Sequence[int] = SIZES) -> int:
    """Print the table; return 1 if a time is over its bar."""
    path = find_browser()
    if path is None:
        print(HOW)
        return 1
    over = False
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        print("   ops  segments   open ms    (CPU)  click ms    (CPU) select ms  memory MB  sent MB")
        for size in sizes:
            plan = plan_of(size)
            found = measure(browser, plan)
            opened, _, clicked, *_ = found.medians
            over |= opened > MOST_OPEN or clicked > MOST_CLICK
            ops = len(plan.fusion.tensor_exprs)
            times = "".join(f"{f'({ms:.0f})':>9}" if n % 2 else f"{ms:10.0f}" for n, ms in enumerate(found.medians))
            print(f"{ops:6}{len(plan.segments):10}{times}{found.heap:11.1f}{found.sent:9.2f}", flush=True)
        browser.close()
    print(f"bars: open {MOST_OPEN:.0f} ms, click {MOST_CLICK:.0f} ms: {'missed' if over else 'met'}")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())

"""What the explorer costs at 10, 60, 400 and 3,000 ops: ``python -m tests.browser.measure`` prints one table.

*Open* runs from ``Explorer(plan)`` to the painted picture, *click* from a click on an edge, which cuts there, to the
frame with the new picture, *select* from a click on a node to its answer. The page is a bare one with the explorer's
script, and Python answers in this process: what a kernel adds, some milliseconds for each message, is not in the
numbers. *Memory* is the page's heap; *sent* is what Python sends to open.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import TYPE_CHECKING

from fuser_lab_widgets import Explorer
from playwright.sync_api import sync_playwright

from tests.browser.sizes import OPS_PER_LAYER, layers, two_norms
from tests.browser.stage import Stage
from tests.browser_path import HOW, find_browser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from playwright.sync_api import Browser

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


def measure(browser: Browser, plan: Plan, times: int = 3) -> tuple[float, float, float, float, float]:
    """Return the medians of open, click and select in milliseconds, the page's heap and what was sent in MB."""
    opened, clicked, selected, heap, sent = [], [], [], 0.0, 0.0
    for _ in range(times):
        stage = Stage(browser)
        start = time.perf_counter()
        explorer = Explorer(plan, [])
        stage.show(explorer)
        opened.append(1e3 * (time.perf_counter() - start))
        sent = len(stage.page.evaluate("() => JSON.stringify(window.model.state)")) / 1e6
        stage.settle()
        if explorer.scene["detail"] != "ops":  # what is folded has no edge to cut
            stage.root.locator(".fl-whole").first.click()
            clicked.append(stage.click(stage.root.get_by_role("button", name="Show or hide its ops")))
        inside = stage.root.locator(".fl-edge.fl-inside .fl-hit")
        clicked += [stage.click(inside.last) for _ in range(min(3, inside.count()))]
        selected.append(float(stage.root.locator(".fl-node").last.evaluate(_SELECTED)))
        session = stage.page.context.new_cdp_session(stage.page)
        session.send("HeapProfiler.collectGarbage")
        session.send("Performance.enable")
        metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
        heap = metrics["JSHeapUsedSize"] / 1e6
        stage.close()
        explorer.close()
    return statistics.median(opened), statistics.median(clicked), statistics.median(selected), heap, sent


def main(sizes: Sequence[int] = SIZES) -> int:
    """Print the table; return 1 if a time is over its bar."""
    path = find_browser()
    if path is None:
        print(HOW)
        return 1
    over = False
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        print("   ops  segments    open ms   click ms  select ms  memory MB  sent MB")
        for size in sizes:
            plan = plan_of(size)
            opened, clicked, selected, heap, sent = measure(browser, plan)
            over |= opened > MOST_OPEN or clicked > MOST_CLICK
            print(f"{len(plan.fusion.tensor_exprs):6}{len(plan.segments):10}{opened:11.0f}{clicked:11.0f}{selected:11.0f}"
                  f"{heap:11.1f}{sent:9.2f}", flush=True)
        browser.close()
    print(f"bars: open {MOST_OPEN:.0f} ms, click {MOST_CLICK:.0f} ms: {'missed' if over else 'met'}")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())

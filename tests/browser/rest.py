"""How soon the explorer is at rest: ``python -m tests.browser.rest`` opens all views of all examples at five sizes.

After each action, nothing may change in the page once the last answer of Python is a second old, no message may pass
between them, and the picture is not drawn again: views, panels, the menu and the window do not concern it. *Messages*
is the number that the page sent for one action, *changes* that of changes of its elements, *rest* the time from the
last answer to the last change, each the largest of a row. A cycle between what is shown, its size and what is asked
never ends: its action counts as restless, as does one that draws the picture again. Names of examples select some of
them.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fuser_lab_widgets import Explorer
from playwright.sync_api import sync_playwright

import fuser_lab as fl
from tests.browser.stage import Stage
from tests.browser.tools import open_view, view_names
from tests.browser_path import HOW, find_browser

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from playwright.sync_api import Browser

    from fuser_lab.plan import Plan

SIZES: Final = ((1280, 720), (1280, 800), (1440, 900), (1680, 1050), (1920, 1080))
MOST_REST: Final = 1.0  # seconds from the last answer to the last change
_PATIENCE: Final = 20.0  # seconds after which a page that still changes counts as never at rest
# Seconds without a change or a message after an action: more than a frame and the timers of the page that draw take.
_QUIET: Final = 0.15
_LONG_QUIET: Final = 1.0  # the same after the last action, in which slower cycles are seen
_NARROWER: Final = 90  # pixels by which the window is resized for a moment
_TICK: Final = 30.0  # milliseconds between two looks at the page

# Counts the changed elements of the explorer and the messages of its model, and the times of the last ones.
_WATCH: Final = """() => {
  const { model } = window;
  const seen = (window.seen = { changes: 0, pictures: 0, asked: 0, answered: 0, changedAt: performance.now(), answeredAt: 0 });
  window.watcher?.disconnect();
  window.counter ??= addEventListener("fuser-lab-drawn", () => { window.seen.pictures += 1; }) ?? true;
  window.watcher = new MutationObserver((changes) => { seen.changes += changes.length; seen.changedAt = performance.now(); });
  for (const root of document.querySelectorAll(".fl-explorer")) window.watcher.observe(root, { subtree: true, childList: true, attributes: true, characterData: true });
  const { save_changes, take } = Object.getPrototypeOf(model);
  model.save_changes = () => { seen.asked += 1; return save_changes.call(model); };
  model.take = (news) => {
    if (Object.keys(news).length) { seen.answered += 1; seen.answeredAt = performance.now(); }
    take.call(model, news);
  };
}"""  # noqa: E501
_SEEN: Final = """() => ({ ...window.seen, now: performance.now(),
  waits: Boolean(window.model.asking || document.querySelector(".fl-explorer:not([data-settled])")) })"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What one action led to: messages of the page, changed elements, new pictures, and seconds from the last answer to
    the last change; None if the page never came to rest.
    """

    messages: int
    changes: int
    pictures: int
    seconds: float | None

    @property
    def is_soon(self) -> bool:
        """Whether the page was at rest soon enough."""
        return self.seconds is not None and self.seconds <= MOST_REST


def rest_after(stage: Stage, act: Callable[[], Any], quiet: float = _QUIET) -> Rest:
    """Do something in the page, and return how it came to rest."""
    stage.page.evaluate(_WATCH)
    act()
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        stage.page.wait_for_timeout(_TICK)  # this thread answers meanwhile
        stage.deliver()
        seen = stage.page.evaluate(_SEEN)
        last = max(seen["changedAt"], seen["answeredAt"])
        if not seen["waits"] and not stage.works and seen["now"] - last > 1e3 * quiet:
            late = max(seen["changedAt"] - seen["answeredAt"], 0) / 1e3 if seen["answered"] else 0.0
            return Rest(messages=seen["asked"], changes=seen["changes"], pictures=seen["pictures"], seconds=late)
    return Rest(messages=seen["asked"], changes=seen["changes"], pictures=seen["pictures"], seconds=None)


def example(name: str) -> Plan:
    """Return the plan of an example at its full sizes."""
    made = fl.examples.get(name)
    with fl.FusionDefinition() as fd:
        made.define(fd, "full")
    return fl.segment(fd, made.specs("full"))


def opened(browser: Browser, plan: Plan, size: tuple[int, int]) -> Stage:
    """Return a page with an explorer of a plan, at rest."""
    stage = Stage(browser, size=size)
    stage.show(Explorer(plan, []))
    stage.settle()
    stage.rest()
    return stage


def drive(stage: Stage, quiet: float = _QUIET) -> dict[str, Rest]:
    """Open each view, the panels and the menu, resize the window, and return how the page came to rest each time."""

    def press(key: str) -> None:
        stage.root.evaluate("(root) => root.focus()")
        stage.page.keyboard.press(key)

    def resize() -> None:
        width, height = stage.page.evaluate("() => [innerWidth, innerHeight]")
        stage.page.set_viewport_size({"width": width - _NARROWER, "height": height - _NARROWER})
        stage.page.set_viewport_size({"width": width, "height": height})

    rests = {name: rest_after(stage, lambda name=name: open_view(stage.root, name), quiet)
             for name in view_names(stage.root)}
    rests |= {f"key {key}": rest_after(stage, lambda key=key: press(key), quiet) for key in "ittmi"}
    rests["window"] = rest_after(stage, resize, quiet)
    return rests | {"end": rest_after(stage, lambda: None, _LONG_QUIET)}


def main(names: Sequence[str]) -> int:
    """Print the table; return 1 if a page does not come to rest soon."""
    path = find_browser()
    if path is None:
        print(HOW)
        return 1
    restless = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"],
            ignore_default_args=["--hide-scrollbars"],  # which take room from what they scroll
        )
        print(f"{'example':26}{'size':>10} actions  messages  changes  rest ms  restless")
        for name in names or fl.examples.names():
            plan = example(name)
            for width, height in SIZES:
                stage = opened(browser, plan, (width, height))
                rests = drive(stage)
                late = [name for name, rest in rests.items() if not rest.is_soon or rest.pictures]
                restless += len(late)
                most = [max(values) for values in zip(*(
                    (rest.messages, rest.changes, 1e3 * (rest.seconds or 0)) for rest in rests.values()), strict=True)]
                print(f"{name:26}{f'{width}x{height}':>10}{len(rests):8}{most[0]:10}{most[1]:9}{most[2]:9.0f}"
                      f"  {', '.join(late) or 'none'}", flush=True)
                stage.close()
                stage.explorer.close()
        browser.close()
    print(f"bar: at rest within {MOST_REST:.0f} s: {'missed' if restless else 'met'}")
    return int(restless > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

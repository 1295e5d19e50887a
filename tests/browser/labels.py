"""Names in the picture before and after edits: ``python -m tests.browser.labels`` makes 200 random ones.

In each of some examples, edges are cut or glued in turn, and the picture is looked at each time, at the scale at which
it opened. *Named* is the number of ops, inputs, outputs and segments with a name among those that are shown, *smallest*
the size of the smallest text in pixels. Names of examples select some of them.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any, Final

from fuser_lab_widgets import Explorer
from playwright.sync_api import sync_playwright

import fuser_lab as fl
from tests.browser.stage import Stage
from tests.browser_path import HOW, find_browser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from playwright.sync_api import Browser

EDITS: Final = 200
LEAST_TEXT: Final = 10.0  # pixels
_EXAMPLES: Final = ("llama3_rope_backward", "layer_norm_backward", "dropout_add_layer_norm", "softmax")
_LOOK: Final = """(root) => {
  const shown = (e) => e.checkVisibility({ visibilityProperty: true });
  const scale = root.querySelector(".fx-canvas svg").getScreenCTM().a;
  const sizes = [...root.querySelectorAll(".fx-canvas svg text")].flatMap((text) => [text, ...text.querySelectorAll("tspan")])
    .filter((part) => shown(part) && part.textContent.trim()).map((part) => {
      const grown = part.closest(".fl-label") ? new DOMMatrix(getComputedStyle(part.closest("text")).transform).a : 1;
      return parseFloat(getComputedStyle(part).fontSize) * scale * grown;
    });
  const boxes = [...root.querySelectorAll(".fl-node, .fl-head")].filter(shown);
  const named = boxes.filter((box) => [...box.querySelectorAll("text")].some((text) => shown(text) && text.textContent.trim()));
  return { boxes: boxes.length, named: named.length, smallest: Math.min(...sizes) };
}"""  # noqa: E501


def looks(browser: Browser, name: str, edits: int) -> list[dict[str, Any]]:
    """Return what is seen of an example at first and after each of some random edits."""
    drawn = random.Random(name)
    explorer, stage = Explorer(fl.segment(*fl.example(name)), []), Stage(browser, size=(1280, 800))
    stage.show(explorer)
    stage.settle()
    seen = [stage.root.evaluate(_LOOK)]
    for _ in range(edits):
        edges = stage.root.locator(".fl-edge:is(.fl-inside, .fl-boundary) .fl-hit")
        edges.nth(drawn.randrange(edges.count())).dispatch_event("click")
        stage.rest()
        seen.append(stage.root.evaluate(_LOOK))
    stage.close()
    explorer.close()
    return seen


def main(names: Sequence[str] = _EXAMPLES) -> int:
    """Print the table; return 1 if a box has no name or a text is too small."""
    path = find_browser()
    if path is None:
        print(HOW)
        return 1
    failed = False
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        print(f"{'picture':28}{'edits':>6}{'named before':>16}{'fewest named':>16}{'smallest':>10}")
        for name in names:
            before, *after = looks(browser, name, EDITS // len(names))
            worst = min(after, key=lambda look: look["named"] / look["boxes"])
            smallest = min(look["smallest"] for look in (before, *after))
            shares = [f"{look['named']} of {look['boxes']}" for look in (before, worst)]
            print(f"{name:28}{len(after):6}{shares[0]:>16}{shares[1]:>16}{smallest:10.1f}", flush=True)
            failed |= any(look["named"] < look["boxes"] for look in (before, *after)) or smallest < LEAST_TEXT
        browser.close()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or _EXAMPLES))

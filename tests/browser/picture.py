"""The two pictures in README and in the docs: ``python -m tests.browser.picture`` regenerates them.

The small one is the plan of the example ``sum_broadcast_add``. The one of the explorer shows a layer of GPT-2 as
``fl.from_torch`` captures it, with its backward graph: the map of its modules, and below it the explorer of the region
of its attention weights. It needs torch; the layer is on the device "meta", so nothing is computed.
"""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import fuser_lab as fl
from fuser_lab import FusionDefinition, examples
from tests.browser.lab import Desk, open_notebook, start_lab, write_notebook
from tests.browser.tools import tool
from tests.browser_path import HOW, find_browser

IMAGES = Path(__file__).parents[2] / "docs" / "images"
MODEL = """\
import torch
import fuser_lab as fl

class Layer(torch.nn.Module):  # of GPT-2
    def __init__(self, width=768, heads=12):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.c_attn, self.c_proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.c_fc, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        parts = self.c_attn(self.ln_1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        weights = torch.softmax(scores.masked_fill(later, float("-inf")), -1)
        x = x + self.c_proj((weights @ v).transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))

with torch.device("meta"):
    layer, x = Layer(), torch.randn(8, 1024, 768)
found = fl.from_torch(layer, x, backward=True)
shown = fl.explore(found)
shown.show_region(0, 1)
shown
"""
WIDTH = 1480  # pixels of the page
HEIGHTS = """.fl-modelmap { height: 420px !important }
.fl-explorer:not(.fl-modelmap) { height: 560px !important }"""


def take(desk: Desk) -> None:
    """Write the picture of a notebook's explorer with the boundary selected that crosses between the segments."""
    page = desk.page
    page.set_viewport_size({"width": WIDTH, "height": 1250})
    page.add_style_tag(content=HEIGHTS)
    explorer = page.locator(".fl-explorer:not(.fl-modelmap)")
    explorer.locator(".fl-edge").first.wait_for()
    tool(explorer, "Look").click()
    explorer.locator(".fl-edge.fl-boundary .fl-hit").first.dispatch_event("click")
    explorer.locator(".fx-inspector .fx-facts-list").first.wait_for()
    page.mouse.move(0, 0)
    page.wait_for_timeout(500)
    page.locator(".widget-box").filter(has=explorer).first.screenshot(path=IMAGES / "explorer.png")


def main() -> None:
    """Save the plan of the example; start a JupyterLab, run the notebook in it and take the picture."""
    path = find_browser()
    if path is None:
        sys.exit(HOW)
    example = examples.get("sum_broadcast_add")
    with FusionDefinition() as fd:
        example.define(fd, "full")
    fl.segment(fd, example.specs("full")).save(IMAGES / "sum_broadcast_add.svg")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        root, state = Path(folder) / "root", Path(folder) / "state"
        root.mkdir()
        state.mkdir()
        write_notebook(root / "picture.ipynb", MODEL)
        lab = start_lab(root, state)
        try:
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
            desk, errors = open_notebook(lab, browser, "picture.ipynb")
            assert errors == [], errors
            take(desk)
            browser.close()
        finally:
            lab.stop()


if __name__ == "__main__":
    main()

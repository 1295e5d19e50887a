"""The picture of the explorer in README and in the docs: ``python -m tests.browser.picture`` takes it anew."""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.browser.lab import Desk, open_notebook, start_lab, write_notebook
from tests.browser_path import HOW, find_browser

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "explorer.png"
FUSION = """\
import fuser_lab as fl
from fuser_lab import FusionDefinition

with FusionDefinition() as fd:
    x, y = (fd.define_tensor([4096, 4096], contiguity=True) for _ in range(2))
    a = fd.ops.exp(x)
    b = fd.ops.mul(a, fd.ops.broadcast(fd.ops.sum(a, [1]), [False, True]))
    columns = fd.ops.broadcast(fd.ops.sum(b, [0]), [True, False])
    fd.add_output(fd.ops.add(fd.ops.mul(b, columns), y))
    fd.add_output(fd.ops.sum(fd.ops.mul(y, columns), [1]))

fl.explore(fl.segment(fd).annotate("T5"), title="two norms")
"""
WIDTH, HEIGHT = 1360, 935  # pixels of the page's width, and of the picture's height at most


def take(desk: Desk) -> None:
    """Write the picture of a notebook's explorer while it tells about the edge behind the segment_set."""
    page, explorer = desk.page, desk.explorer
    page.set_viewport_size({"width": WIDTH, "height": 820})
    explorer.wait_for()
    explorer.get_by_role("button", name="Look", exact=True).click()
    page.mouse.click(*desk.middle("T5_hint", "boundary"))
    explorer.locator(".fx-inspector .fx-facts-list").first.wait_for()
    page.mouse.move(0, 0)
    page.wait_for_timeout(500)
    box = explorer.bounding_box()
    assert box is not None
    page.screenshot(path=PICTURE, clip={**box, "height": min(box["height"], HEIGHT)})


def main() -> None:
    """Start a JupyterLab, run the notebook in it and take the picture."""
    path = find_browser()
    if path is None:
        sys.exit(HOW)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        root, state = Path(folder) / "root", Path(folder) / "state"
        root.mkdir()
        state.mkdir()
        write_notebook(root / "picture.ipynb", FUSION)
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

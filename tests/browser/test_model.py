"""The map of a captured model: modules open, a region is opened by its module's path, edited and run."""

import pytest
from needs import needs

pytestmark = pytest.mark.browser
torch = needs("torch")

MODEL = """\
import torch
import fuser_lab as fl
F = torch.nn.functional

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(32)
        self.mlp = torch.nn.Linear(32, 32)

    def forward(self, x):
        return x + F.silu(self.mlp(self.norm(x))) * 2

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(), Layer()])
        self.head = torch.nn.Softmax(-1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

found = fl.from_torch(Model(), torch.randn(16, 32))
shown = fl.explore(found)
shown
"""


def test_a_region_is_opened_by_its_module_cut_and_run(open_explorer, shots):
    desk = open_explorer(MODEL)
    page, root = desk.page, desk.page.locator(".fl-modelmap")

    def box(name):
        return root.locator(f'.fl-mapbox[data-box="{name}"]')

    root.get_by_role("button", name="1", exact=True).click()
    root.get_by_role("button", name="fold equal modules").click()
    box("layers.1").wait_for()
    box("layers.1").click()
    box("layers.1.norm").wait_for()
    assert box("layers.1").get_attribute("aria-expanded") == "true"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Escape")
    box("layers.1.norm").wait_for(state="detached")
    page.keyboard.press("Enter")
    box("layers.1.norm").wait_for()
    leaf = root.locator('.fl-mapbox.fl-region[data-box^="layers.1#"]').last
    leaf.click()
    root.get_by_role("button", name="Open region").wait_for()
    rows = root.locator(".fm-side tr[data-send]")
    silu = rows.filter(has_text="silu").first
    silu.wait_for()
    assert "layers.1: return x + F.silu(self.mlp(self.norm(x))) * 2" in silu.inner_text()
    page.screenshot(path=shots / "model-map.png")
    silu.click()
    explorer = page.locator(".fl-explorer:not(.fl-modelmap)")
    inspector = explorer.locator(".fx-inspector")
    inspector.get_by_text("F.silu(self.mlp(self.norm(x))) * 2").first.wait_for()
    assert "silu(" in inspector.locator("h3").inner_text()
    explorer.locator(".fl-edge.fl-inside .fl-hit").first.dispatch_event("click")
    explorer.locator(".fx-status").get_by_text("Cut at").wait_for()
    explorer.get_by_role("button", name="Run").click()
    explorer.get_by_text("Done. The table shows medians.").wait_for(timeout=120_000)
    page.screenshot(path=shots / "model-region.png")
    assert desk.complaints == []
    assert desk.strangers == []

"""The map of a captured model: modules open, a region is opened by its module's path, edited and run."""

import pytest
from bridge.uncompiled import compile_nothing
from browser.accessibility import RULES, serious_findings
from browser.pages import open_page
from browser.test_explorer import PAINTED, crowding
from browser.waiting import eventually, expect, until
from fuser_lab_widgets import assets
from machine import allowed
from needs import needs

import fuser_lab as fl
from fuser_lab.files.json_text import json_text

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
# Words of the map that are too small or overlap, and misplaced elements once an explorer is below the map.
FAULTS = """(root) => {
  const faults = [];
  const box = (e) => e.getBoundingClientRect();
  const apart = (a, b, from, to) => a[from] >= b[to] - 1 || b[from] >= a[to] - 1;
  const meet = (a, b) => !apart(a, b, "left", "right") && !apart(a, b, "top", "bottom");
  const scale = root.querySelector("svg").getScreenCTM().a;
  const words = [...root.querySelectorAll(".fm-picture text")].filter((t) => t.getClientRects().length);
  if (!words.length) faults.push("no words");
  for (const t of words) {
    const { fontSize, fill } = getComputedStyle(t);
    if (parseFloat(fontSize) * scale < 10.95) faults.push(`${t.textContent} is ${parseFloat(fontSize) * scale} px`);
    if (fill === getComputedStyle(root).backgroundColor) faults.push(`${t.textContent} is not seen`);
  }
  const boxes = words.map(box);
  boxes.forEach((a, n) => boxes.slice(n + 1).forEach((b, m) => {
    if (meet(a, b)) faults.push(`${words[n].textContent} meets ${words[n + 1 + m].textContent}`);
  }));
  const [picture, side] = [".fm-picture", ".fm-side"].map((part) => box(root.querySelector(part)));
  const isBeside = Math.abs(picture.top - side.top) <= 1 || side.top >= picture.bottom - 1;
  if (meet(picture, side) || !isBeside) faults.push("the details are not beside the picture, or below it");
  if (picture.top > box(root.querySelector(".fm-bar")).bottom + 1) faults.push("a gap above the picture");
  return faults;
}"""


# Boxes that are not in view.
HIDDEN = """(root) => {
  const view = root.querySelector(".fm-picture").getBoundingClientRect();
  const isOut = ({ left, top, right, bottom }) =>
    left < view.left || top < view.top || right > view.right || bottom > view.bottom;
  const shapes = [...root.querySelectorAll(".fm-picture :is(.fl-shape, .fl-frame)")];
  return shapes.filter((shape) => isOut(shape.getBoundingClientRect())).map((shape) => shape.parentNode.dataset.box);
}"""


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
    expect(box("layers.1")).to_have_attribute("aria-expanded", "true")
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
    expect(silu).to_contain_text("layers.1: return x + F.silu(self.mlp(self.norm(x))) * 2")
    page.screenshot(path=shots / "model-map.png")
    silu.click()
    explorer = page.locator(".fl-explorer:not(.fl-modelmap)")
    inspector = explorer.locator(".fx-inspector")
    inspector.get_by_text("F.silu(self.mlp(self.norm(x))) * 2").first.wait_for()
    expect(inspector.locator("h3")).to_contain_text("silu(")
    explorer.locator(".fl-edge.fl-inside .fl-hit").first.dispatch_event("click")
    explorer.locator(".fx-status").get_by_text("Cut at").wait_for()
    for size in ((1440, 900), (1280, 720)):
        page.set_viewport_size({"width": size[0], "height": size[1]})
        eventually(lambda: page.evaluate("() => [innerWidth, innerHeight]"), list(size))
        root.get_by_role("button", name="Fit").click()
        eventually(lambda: root.evaluate(HIDDEN), [])
        for step in ("−", "−", "+", "+", "+", "+"):
            root.get_by_role("button", name=step, exact=True).click()
            faults = until(lambda: root.evaluate(FAULTS), lambda now: set(now) <= {"no words"})
        assert faults == []  # close enough for words
        root.locator(".fm-bar").evaluate("(bar) => bar.scrollIntoView()")
        page.screenshot(path=shots / f"model-map-{size[0]}.png")
    explorer.get_by_role("button", name="Run").click()
    explorer.get_by_text("Done: ").wait_for()
    page.screenshot(path=shots / "model-region.png")
    assert desk.complaints == []
    assert desk.strangers == []


@pytest.mark.parametrize("theme", RULES)
def test_axe_finds_nothing_serious_in_the_map_and_keys_reach_all_of_it(open_explorer, theme):
    desk = open_explorer(MODEL, theme=theme)
    page, root = desk.page, desk.page.locator(".fl-modelmap")

    def findings():
        return serious_findings(page, rules=RULES[theme])

    found = {"first": findings()}
    root.get_by_role("button", name="1", exact=True).focus()
    page.keyboard.press("Enter")
    layers = root.locator('.fl-mapbox[data-box="layers.0"]')
    layers.and_(root.locator("[aria-expanded=false]")).wait_for()
    root.locator(".fl-mapbox[tabindex='0']").focus()
    page.keyboard.press("Home")  # has no meaning here
    page.keyboard.press("Enter")
    layers.and_(root.locator("[aria-expanded=true]")).wait_for()
    found["a module"] = findings()
    page.keyboard.press("ArrowDown")
    until(lambda: page.evaluate("() => document.activeElement.dataset.box"), lambda box: box.startswith("layers.0"))
    leaf = root.locator('.fl-mapbox.fl-region[data-box^="layers.0#"]').last
    leaf.focus()
    page.keyboard.press(" ")
    root.get_by_role("button", name="Open region").wait_for()
    found["a region"] = findings()
    root.get_by_role("button", name="what the cuts cost").focus()
    page.keyboard.press("Enter")
    root.get_by_text("What the cuts cost:").wait_for()
    found["costs"] = findings()
    root.locator(".fm-side tr[data-send]").first.focus()
    page.keyboard.press("Enter")
    page.locator(".fl-explorer:not(.fl-modelmap) .fl-op").first.wait_for()
    found["an open region"] = findings()
    assert {state: said for state, said in found.items() if said} == {}
    assert desk.complaints == []


# The script of the map in a bare page; its messages wait until the test passes them to Python.
BARE = """<!DOCTYPE html><html lang="en"><body data-jp-theme-light="true"><main></main><script type="module">
const { default: widget } = await import(URL.createObjectURL(new Blob([%s], { type: "text/javascript" })));
window.sent = [];
const runs = [];
const send = (event) => window.sent.push(event);
const model = { get: () => window.view, on: (_, run) => runs.push(run), off() {}, send };
window.show = (view) => {
  window.view = view;
  if (runs.length) runs.forEach((run) => run());
  else widget.render({ model, el: document.querySelector("main") });
};
</script></body></html>"""


def test_an_answer_that_comes_late_does_not_take_the_focus(browser):
    names = {}
    exec(MODEL, names)
    shown = names["shown"].map
    place = open_page(browser, size=(1280, 720))
    page = place.page
    page.set_content(BARE % json_text(assets.map_script()).replace("</", "<\\/"))
    page.wait_for_function("() => window.show")

    def show():
        page.evaluate("(view) => window.show(view)", shown.view)

    def answer():
        for event in page.evaluate("() => window.sent.splice(0)"):
            shown._receive(shown, event, [])
        shown.wait(60)
        show()

    show()
    costs = page.get_by_role("button", name="what the cuts cost")
    box = page.locator(".fl-mapbox[tabindex='0']")
    box.focus()
    page.keyboard.press("Enter")
    costs.focus()
    answer()
    expect(costs).to_be_focused()
    page.keyboard.press("Enter")
    answer()
    page.get_by_text("What the cuts cost:").wait_for()
    expect(costs).to_be_focused()  # its bar was redrawn
    expect(costs).to_have_attribute("aria-pressed", "true")
    page.locator("[data-box]").first.focus()
    page.keyboard.press("Enter")
    answer()
    expect(page.locator("[data-box]").first).to_be_focused()
    place.close()


LARGE = """\
import jax
import jax.numpy as jnp
import fuser_lab as fl

def layer(x, w):
    with jax.named_scope("norm"):
        x = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    with jax.named_scope("mlp"):
        for n in range(7):
            x = jax.nn.gelu(x * n + 1) - jnp.sin(x) / 2
    return x + jnp.tanh(x @ w) @ w

def model(x, w):
    for n in range(32):
        with jax.named_scope(f"layers.{n}"):
            x = layer(x, w)
    return jax.nn.log_softmax(x)

found = fl.from_jax(model, *[jax.ShapeDtypeStruct((64, 64), "float32")] * 2)
assert found.graphs[0].nodes > 3000
"""
# Clicks a box; milliseconds until the frame with the redrawn map is on the screen.
REDRAWN = """(box) => new Promise((done) => {
  const root = document.querySelector('.fl-modelmap');
  const start = performance.now();
  root.addEventListener('fuser-lab-drawn', () => {
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - start), 0));
  }, { once: true });
  root.querySelector(`[data-box="${box}"]`).dispatchEvent(new MouseEvent('click', { bubbles: true }));
})"""


@pytest.mark.benchmark
def test_the_map_of_3000_calls_opens_and_answers_at_once(open_explorer):
    needs("jax")
    desk = open_explorer(LARGE, "shown = fl.explore(found)\nshown")
    page, root = desk.page, desk.page.locator(".fl-modelmap")
    painted = PAINTED.replace(".fl-op", ".fl-mapbox")
    opened, redrawn = [], []
    for _ in range(3):
        before = crowding()
        opened.append(page.evaluate(painted) / max(before, crowding()))
    root.get_by_role("button", name="1", exact=True).click()
    root.locator('.fl-mapbox[data-box="layers.0"][aria-expanded=false]').wait_for()
    for _ in range(6):
        before = crowding()
        redrawn.append(page.evaluate(REDRAWN, "layers.0") / max(before, crowding()))
    assert min(opened) < allowed(1500), opened
    assert min(redrawn) < allowed(100), redrawn


def test_lines_of_a_compiled_kernel_show_their_ops(browser, shots, tmp_path):
    def block(x, w):
        h = x.sin().softmax(-1) + w
        return h, h.exp().sum(0)

    with pytest.MonkeyPatch.context() as patch:
        compile_nothing(patch)
        path = fl.from_inductor(block, torch.ones(8, 16), torch.ones(16)).save(tmp_path / "block.fusions.json")
    shown = fl.explore(fl.load_recorded(path)).map
    place = open_page(browser, size=(1280, 720))
    place.page.set_content(BARE % json_text(assets.map_script()).replace("</", "<\\/"))
    place.page.add_style_tag(content=assets.map_style())
    place.page.wait_for_function("() => window.show")
    shown.press("kernel 0")
    place.page.evaluate("(view) => window.show(view)", shown.view)
    lines = place.page.locator(".fm-source tr")
    sine = lines.filter(has_text="std::sin(").first
    expect(sine).to_have_class("fm-within")
    expect(sine.locator("td").first).to_have_text("sin")
    expect(sine.locator("td").nth(1)).to_have_text(f"test_model.py:{block.__code__.co_firstlineno + 1}")
    place.page.screenshot(path=shots / "compiled_source.png")
    expect(lines.filter(has_text="std::exp(").last).to_have_class("fm-beside")
    expect(lines.filter(has_text="#include")).to_have_class("")
    place.close()

"""The explorer in pages other than JupyterLab: VS Code's, small ones, and ones with reduced motion."""

import base64
import json
import zlib

import pytest
from browser.accessibility import RULES, serious_findings
from browser.pages import open_page
from browser.stage import Stage
from browser.tools import open_view, tool, view_names
from browser.waiting import expect
from fuser_lab_widgets import Explorer, assets
from fuser_lab_widgets.baked import bake
from fuser_lab_widgets.saved import saved_html

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition

pytestmark = pytest.mark.browser

# Attributes of VS Code's webviews for its themes: the kind, the class, and some of its variables.
HOSTS = {
    "dark": ("vscode-dark", "vscode-dark", "#1f1f1f", "#181818"),
    "light": ("vscode-light", "vscode-light", "#ffffff", "#f8f8f8"),
    "high-contrast": ("vscode-high-contrast", "vscode-high-contrast", "#000000", "#000000"),
    "old-dark": ("", "vscode-dark", "#1e1e1e", "#252526"),
}
# The report's model answers like the kernel.
PAGE = """<!DOCTYPE html>
<html style="--vscode-editor-background: {paper}; --vscode-sideBar-background: {panel}">
<head><meta charset="utf-8"><style>body {{ margin: 0; background: {paper} }}
.cell-output-ipywidget-background {{ background: white }}
{style}</style></head>
<body class="{css}" {kind}><div class="cell-output-ipywidget-background"><div id="fl-live"></div></div>
<script type="application/octet-stream" id="fl-data">{data}</script>
<script type="module">{script}</script></body></html>"""


@pytest.fixture(scope="module")
def plans():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4096, 4096], contiguity=True, dtype=DataType.Float)
        a = fd.ops.exp(x)
        b = fd.ops.mul(a, fd.ops.broadcast(fd.ops.sum(a, dims=[1]), is_broadcast_dim=[False, True]))
        fd.add_output(fd.ops.mul(b, fd.ops.broadcast(fd.ops.sum(b, dims=[0]), is_broadcast_dim=[True, False])))
    return fl.segment(fd), fl.segment(fd, strategy="unfused")


@pytest.fixture
def show(browser, plans, tmp_path):
    """Show the explorer of the plans in a page of a host; returns the page."""
    opened = []

    def open_it(host, *, system="light", width=1000, still=False):
        kind, css, paper, panel = HOSTS[host]
        mark = f'data-vscode-theme-kind="{kind}"' if kind else ""
        data = base64.b64encode(zlib.compress(json.dumps(bake(plans)).encode())).decode()
        path = tmp_path / f"{host}.html"
        path.write_text(PAGE.format(
            paper=paper, panel=panel, css=css, kind=mark, style=assets.style(), data=data,
            script=assets.report_script()))
        place = open_page(browser, size=(width, 900), theme=system, still=still)
        opened.append(place)
        place.page.goto(path.as_uri())
        place.page.locator(".fl-op").first.wait_for()
        return place.page

    yield open_it
    for place in opened:
        place.close()


def has_colour(page, selector, what, text):
    expect(page.locator(selector).first).to_have_css(what, text)


def rgb(text):
    return f"rgb({', '.join(str(int(text[n : n + 2], 16)) for n in (1, 3, 5))})"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("host", list(HOSTS))
def test_vs_codes_theme_decides_whatever_the_system_prefers(show, shots, host):
    is_light = host == "light"
    page = show(host, system="dark" if is_light else "light")
    _, _, paper, panel = HOSTS[host]
    has_colour(page, ".fl-explorer", "background-color", rgb(paper))
    has_colour(page, ".fx-head", "background-color", rgb(panel))
    has_colour(page, ".fx-canvas .fl-tag", "fill", rgb(paper))
    ink = {True: "#1d2330", False: "#e7eaf0"}[is_light]
    has_colour(page, ".fl-explorer", "color", rgb(ink))
    has_colour(page, ".fl-op .fl-name", "fill", rgb(ink))
    has_colour(page, ".cell-output-ipywidget-background", "background-color", "rgba(0, 0, 0, 0)")
    page.locator(".fl-op").first.click()
    page.locator(".fx-inspector").get_by_text("Schedulers, in order").wait_for()
    assert serious_findings(page, rules=RULES["light" if is_light else "dark"]) == []  # settled: the answer is shown
    page.screenshot(path=shots / f"vscode-{host}.png")


def test_what_a_notebook_keeps_works_under_vs_codes_policy(browser, plans, tmp_path):
    """The policy of VS Code's page for outputs; our own frame lets scripts run and makes no requests."""
    policy = (
        "default-src 'none'; script-src https://*.vscode-cdn.net 'unsafe-inline' 'unsafe-eval'; "
        "style-src https://*.vscode-cdn.net 'unsafe-inline'; img-src https: http: data:; font-src https:; "
        "connect-src https:; child-src https: data: blob:"
    )
    path = tmp_path / "output.html"
    path.write_text(
        f'<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<body class="vscode-dark" data-vscode-theme-kind="vscode-dark">{saved_html(plans, "abc")}</body>',
        encoding="utf-8",
    )
    place = open_page(browser, size=(1000, 900))
    place.page.goto(path.as_uri())
    frame = place.page.frame_locator(".fl-saved iframe")
    frame.locator(".fl-op").first.click()
    frame.get_by_text("Schedulers, in order").wait_for()
    assert place.errors == []
    place.close()


def test_the_live_explorer_needs_nothing_that_a_notebook_defines(browser, plans):
    """Starts it like anywidget: a module with its own URL. The page has no JupyterLab, require.js, eval or network."""
    policy = "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; img-src data:"
    stage, explorer = Stage(browser, policy=policy), Explorer(plans[0])
    stage.show(explorer)
    missing = "() => ['jupyterapp', 'jupyterlab', 'require', 'define', 'Jupyter', 'IPython'].filter((n) => n in window)"
    assert stage.page.evaluate(missing) == []  # settled: the page defines none of them
    stage.root.locator(".fl-op").first.click()
    expect(stage.root.locator(".fx-inspector")).to_contain_text("Schedulers, in order")
    assert stage.click(tool(stage.root, "Segments")) > 0
    expect(stage.status).to_contain_text("One box per segment.")
    for name in view_names(stage.root):
        open_view(stage.root, name)
    assert stage.errors == []
    data = explorer._repr_mimebundle_()[0]
    view = data["application/vnd.jupyter.widget-view+json"]
    assert (view["version_major"], view["model_id"]) == (2, explorer.model_id)
    state = explorer.get_state()
    assert state["_view_module"] == state["_model_module"] == "anywidget"
    json.dumps(state)  # VS Code keeps widgets' states as JSON
    explorer.close()
    stage.close()


@pytest.mark.parametrize("still", [True, False])
def test_nothing_glides_for_who_asked_for_less_motion(show, still):
    page = show("light", still=still)
    running = page.evaluate("""() => new Promise((done) => {
      const drawn = () => done(document.getAnimations().length);
      document.querySelector('.fl-explorer').addEventListener('fuser-lab-drawn', drawn, { once: true });
      document.querySelector('[data-key="1"]').click();
    })""")
    assert (running == 0) == still


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("width", "columns"), [(1400, 2), (900, 2), (600, 1)])
def test_columns_follow_the_width_and_nothing_sticks_out(show, shots, width, columns):
    page = show("light", width=width)
    page.locator(".fl-op").first.click()
    page.locator(".fx-inspector").get_by_text("Schedulers, in order").wait_for()
    open_view(page, "decisions")
    expect(page.locator(".fx-log")).to_be_visible()
    tops = {round(page.locator(f".fx-{name}").bounding_box()["y"]) for name in ("graph", "side")}
    assert len(tops) == 3 - columns
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width  # settled: all panels are shown
    edges = page.locator(".fl-explorer button, .fl-explorer input, .fl-explorer select").evaluate_all(
        "(all) => all.filter((e) => e.offsetParent).map((e) => e.getBoundingClientRect().right)")
    assert max(edges) <= width
    page.screenshot(path=shots / f"width-{width}.png", full_page=True)

"""The saved explorer of a notebook: without a kernel, in an untrusted notebook, and as exported HTML."""

import re

import pytest
from browser.pages import open_page
from browser.waiting import expect, until

pytestmark = pytest.mark.browser

PLAN = """\
import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
with FusionDefinition() as fd:
    x = fd.define_tensor([2048, 1024], contiguity=True, dtype=DataType.Float)
    y = fd.define_tensor([2048, 1024], contiguity=True, dtype=DataType.Float)
    fd.add_output(fd.ops.add(y, fd.ops.sum(x, dims=[1], keepdim=True)))
fl.explore(fd)
"""
SAVE = """async () => {
  const panel = window.jupyterapp.shell.currentWidget;
  await panel.context.save();
  await panel.sessionContext.shutdown();
  return panel.context.path;
}"""


OPEN = "(path) => { window.jupyterapp.commands.execute('docmanager:open', { path }); }"


@pytest.fixture
def offline(browser):
    """A page without network."""
    place = open_page(browser, size=(1440, 1000))
    yield place.page
    place.close()


def explore_in(page):
    """Select an op in the frame's page, without a kernel."""
    frame = page.frame_locator(".fl-saved iframe")
    frame.locator(".fl-op").first.click()
    frame.get_by_text("Schedulers, in order").wait_for()
    expect(frame.locator(".fx-facts")).to_have_text(re.compile("^3 segments"))


def test_a_notebook_shows_the_edited_plan_without_its_kernel(lab, browser, open_explorer, offline, shots):
    import nbformat  # takes a second, and so does nbconvert
    from nbconvert import HTMLExporter

    desk = open_explorer(PLAN, fresh=True)
    kept = desk.page.locator(".fl-saved")
    kept.wait_for(state="attached")
    before = kept.inner_html()
    edge = desk.explorer.locator(".fl-edge.fl-inside").first.get_attribute("data-id")
    desk.click_edge(edge.partition("|")[0], "inside")
    desk.page.wait_for_function("(before) => document.querySelector('.fl-saved').innerHTML !== before", arg=before)
    expect(kept).to_be_hidden()
    path = desk.page.evaluate(SAVE)
    notebook = nbformat.read(lab.root / path, as_version=4)
    assert len(notebook.cells[1].outputs[0].data["text/html"]) < 150_000

    page = lab.page(browser)
    page.goto(lab.address(path))
    explore_in(page)
    expect(page.get_by_text("Error displaying widget")).to_be_hidden()
    page.screenshot(path=shots / "saved-notebook.png")

    notebook.cells[0].source += "\n# Not signed by this user, so not trusted."
    nbformat.write(notebook, lab.root / "untrusted.ipynb")
    page.evaluate(OPEN, "untrusted.ipynb")
    shown = page.locator(".jp-NotebookPanel:visible").filter(has_text="Not signed by this user")
    picture = shown.locator(".jp-OutputArea img")
    picture.wait_for()
    until(lambda: picture.evaluate("(img) => img.decode().then(() => img.naturalWidth)"), lambda width: width > 100)
    expect(shown.locator(".jp-OutputArea iframe")).to_have_count(0)
    page.screenshot(path=shots / "untrusted-notebook.png")
    page.close()

    for template in ("lab", "basic"):  # nbconvert's own page, and the body that nbviewer inserts into its page
        exported = lab.root / f"exported-{template}.html"
        html, _ = HTMLExporter(template_name=template).from_notebook_node(notebook)
        exported.write_text(f"<!DOCTYPE html><body>{html}" if template == "basic" else html, encoding="utf-8")
        offline.goto(exported.as_uri())
        explore_in(offline)

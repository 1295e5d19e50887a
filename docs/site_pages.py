"""A Sphinx extension: lessons whose answers are folded away, and the gallery with its static explorers."""

import html
from pathlib import Path

import nbformat
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util.docutils import SphinxDirective

import fuser_lab as fl
from fuser_lab.examples import Example

_FOLDED = "The answer"


def fold_lesson(app: Sphinx, page: str, source: list[str]) -> None:
    """Fold the collapsed cells of a lesson and its answers, and put its number before its title."""
    if not page.startswith("notebooks/"):
        return
    notebook = nbformat.reads(source[0], as_version=4)
    notebook.cells[0].source = f"# {Path(page).name[:2]} {notebook.cells[0].source.removeprefix('# ')}"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in code:
        if cell.source.startswith("score("):  # a reader of the page has made no predictions
            _tag(cell, "remove-cell", "")
        elif ".reveal(" in cell.source:
            _tag(cell, "hide-cell", _FOLDED)
        elif cell.metadata.get("jupyter", {}).get("source_hidden"):
            _tag(cell, "hide-input", cell.source.partition("\n")[0].lstrip("# "))
        elif cell is code[0]:  # the page begins with its picture
            _tag(cell, "hide-input", "The code of this picture")
    source[0] = nbformat.writes(notebook)


def _tag(cell: nbformat.NotebookNode, tag: str, prompt: str) -> None:
    cell.metadata["tags"] = [tag]
    cell.metadata["mystnb"] = {"code_prompt_show": prompt, "code_prompt_hide": prompt}


def show_markup(app: Sphinx, doctree: nodes.document) -> None:
    """Open the answers in folded cells, and put SVG files into their pages, where they follow the theme."""
    for node in list(doctree.findall(nodes.raw)):
        if 'class="fl-skip"' in node.astext():
            _replace(node, node.astext().replace('<details class="fl-skip">', '<details class="fl-skip" open>'))
    for node in list(doctree.findall(nodes.image)):
        path = Path(app.srcdir, node["uri"])
        if path.suffix == ".svg" and path.is_file():
            _replace(node, f'<div class="fl-out">{path.read_text(encoding="utf-8")}</div>')


def _replace(node: nodes.Node, markup: str) -> None:
    node.replace_self(nodes.raw("", markup, format="html"))


class Gallery(SphinxDirective):
    """Pictures of the examples; each is a link to its static explorer."""

    def run(self) -> list[nodes.Node]:
        """Return the pictures as HTML."""
        cards = []
        for example in _examples(self.config):
            plan = _plan(example)
            kernels = f"{len(plan.segments)} kernel{'s' if len(plan.segments) > 1 else ''}"
            cards.append(
                f'<a class="fl-card" href="../gallery/{example.name}.html">{plan._repr_mimebundle_()["image/svg+xml"]}'
                f"<strong>{html.escape(example.title)}</strong> <span>{kernels}</span>"
                f"<p>{html.escape(example.look_at)}</p></a>",
            )
        return [nodes.raw("", f'<div class="fl-cards">{"".join(cards)}</div>', format="html")]


def _examples(config: Config) -> list[Example]:
    return [example for example in fl.examples.ALL if config.gallery in {"all", example.name}]


def _plan(example: Example) -> fl.Plan:
    """Return nvFuser's plan of an example at full size."""
    with fl.FusionDefinition() as fd:
        example.define(fd, "full")
    return fl.segment(fd, example.specs("full"), name=example.name)


def write_pages(app: Sphinx, error: Exception | None) -> None:
    """Write the static explorers of the gallery, and a first page that leads to the start page."""
    if error is not None or app.builder.format != "html":
        return
    start = f"{app.config.root_doc}.html"
    (app.outdir / "index.html").write_text(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>fuser_lab</title>'
        f'<meta http-equiv="refresh" content="0; url={start}"><a href="{start}">fuser_lab</a></html>\n',
        encoding="utf-8",
    )
    (app.outdir / "gallery").mkdir(exist_ok=True)
    for example in _examples(app.config):
        fl.report(_plan(example), path=app.outdir / "gallery" / f"{example.name}.html", title=example.title)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the parts."""
    app.add_config_value("gallery", "all", "env", str)  # or the name of one example
    app.add_directive("gallery", Gallery)
    app.connect("source-read", fold_lesson)
    app.connect("doctree-read", show_markup, priority=100)  # before the files of images are collected
    app.connect("build-finished", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

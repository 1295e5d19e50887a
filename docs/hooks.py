"""Lessons become pages: each notebook is executed, and its cells and results are written as Markdown.

A page begins with its picture, the code that drew it behind. Answers of questions are folded away, and so are the
sources of cells that are collapsed in the notebook.
``FUSER_LAB_PAGES=unexecuted`` leaves the results out, for a quick look at the site.
"""

import html
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbclient import NotebookClient

_NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
_SECONDS = 180  # for one lesson
_WIDGET = "application/vnd.jupyter.widget-view+json"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the lessons to the navigation."""
    sys.path[:0] = [str(_NOTEBOOKS.parent), str(_NOTEBOOKS.parent / "widgets")]
    lessons = [{_title(path): f"lessons/{path.stem}.md"} for path in sorted(_NOTEBOOKS.glob("*.ipynb"))]
    start, *rest = config.nav or []
    config.nav = [start, {"Lessons": lessons}, *rest]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each lesson."""
    for path in sorted(_NOTEBOOKS.glob("*.ipynb")):
        files.append(File.generated(config, f"lessons/{path.stem}.md", content=_page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page whose links to notebooks lead to their pages."""
    return re.sub(r"\]\(\.\./notebooks/(\w+)\.ipynb\)", r"](lessons/\1.md)", markdown)


def _title(path: Path) -> str:
    first = nbformat.read(path, as_version=4).cells[0].source.splitlines()[0]
    return f"{path.stem[:2]} {first.lstrip('# ').strip()}"


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _page(path: Path) -> str:
    notebook = nbformat.read(path, as_version=4)
    lacks_torch = any(cell.source.startswith("import torch\n") for cell in notebook.cells) and not _has_torch()
    if os.environ.get("FUSER_LAB_PAGES") != "unexecuted" and not lacks_torch:
        NotebookClient(notebook, timeout=_SECONDS, resources={"metadata": {"path": str(path.parent)}}).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(re.sub(r"\]\(([\w]+)\.ipynb\)", r"](\1.md)", cell.source.replace("](../docs/", "](../")))
        elif cell.source.strip() and not cell.source.startswith("score("):  # nobody has predicted anything on a page
            source, shown = f"```python\n{cell.source}\n```", _outputs(cell.get("outputs", ()))
            if cell is code[0]:
                parts += [*shown, source]
            elif ".reveal(" in cell.source:
                parts += ["/// details | The answer\n    type: question", source, *shown, "///"]
            elif cell.metadata.get("jupyter", {}).get("source_hidden"):
                parts += [f"/// details | {cell.source.splitlines()[0].lstrip('# ')}", source, "///", *shown]
            else:
                parts += [source, *shown]
    return "\n\n".join(parts) + "\n"


def _outputs(outputs: list[dict[str, Any]]) -> list[str]:
    """Return what a cell shows: its prints in one piece, and of widgets what they show without a kernel."""
    shown: list[str] = []
    printed = ""
    for output in outputs:
        if output["output_type"] == "stream":
            printed += output["text"]
            continue
        shown += [_text(printed), _result(output)]
        printed = ""
    return [part for part in (*shown, _text(printed)) if part]


def _result(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    markup = data.get("text/html") or data.get("image/svg+xml")
    if markup:
        markup = markup.replace('<details class="fl-skip">', '<details class="fl-skip" open>')  # in one of its own
        shown = re.sub(r"\n\s*\n", "\n", markup)  # an empty line would end the HTML
        return f'<div class="fl-out">\n{shown}\n</div>'
    if "image/png" in data:
        return f'<img src="data:image/png;base64,{data["image/png"].strip()}">'
    if _WIDGET in data:  # a progress bar
        return ""
    return _text(data.get("text/plain") or "\n".join(output.get("traceback", ())))


def _text(text: str) -> str:
    return f"<pre><code>{html.escape(text)}</code></pre>" if text.strip() else ""

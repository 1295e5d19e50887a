"""Lessons become pages: each notebook is executed, and its cells and results are written as Markdown.

``FUSER_LAB_PAGES=unexecuted`` leaves the results out, for a quick look at the site.
"""

import html
import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient

_NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
_SECONDS = 180  # for one lesson


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the lessons to the navigation."""
    sys.path[:0] = [str(_NOTEBOOKS.parent), str(_NOTEBOOKS.parent / "widgets")]
    lessons = [{_title(path): f"lessons/{path.stem}.md"} for path in sorted(_NOTEBOOKS.glob("*.ipynb"))]
    config.nav = [*(config.nav or []), {"Lessons": lessons}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each lesson."""
    for path in sorted(_NOTEBOOKS.glob("*.ipynb")):
        files.append(File.generated(config, f"lessons/{path.stem}.md", content=_page(path)))
    return files


def _title(path: Path) -> str:
    first = nbformat.read(path, as_version=4).cells[0].source.splitlines()[0]
    return f"{path.stem[:2]} {first.lstrip('# ').strip()}"


def _page(path: Path) -> str:
    notebook = nbformat.read(path, as_version=4)
    if os.environ.get("FUSER_LAB_PAGES") != "unexecuted":
        NotebookClient(notebook, timeout=_SECONDS, resources={"metadata": {"path": str(path.parent)}}).execute()
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(re.sub(r"\]\(([\w]+)\.ipynb\)", r"](\1.md)", cell.source.replace("](../docs/", "](../")))
        elif cell.source.strip():
            parts.append(f"```python\n{cell.source}\n```")
            parts += [_output(output) for output in cell.get("outputs", ())]
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "text/html" in data:
        shown = re.sub(r"\n\s*\n", "\n", data["text/html"])  # an empty line would end the HTML
        return f'<div class="fl-out">\n{shown}\n</div>'
    if "image/png" in data:
        return f'<img src="data:image/png;base64,{data["image/png"].strip()}">'
    text = output.get("text") or data.get("text/plain") or "\n".join(output.get("traceback", ()))
    return f"<pre><code>{html.escape(text)}</code></pre>" if text else ""

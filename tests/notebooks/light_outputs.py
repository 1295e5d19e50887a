"""The outputs that notebooks are committed with: pictures and tables, for readers of a static page.

Only cells before the first question have them, because the output of a later one could give an answer away. Measured
times are left out. ``python -m tests.notebooks.light_outputs [NAME ...]`` runs these cells and writes their outputs.
"""

import base64
import html
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parents[2] / "notebooks"
KINDS = ("image/svg+xml", "text/html")
WIDGET = "application/vnd.jupyter.widget-view+json"
SAVED = re.compile(r'class="fl-saved".*?src="data:image/svg\+xml;base64,([^"]*)"', re.DOTALL)
MEASURED = re.compile(r"\d\s*(?:ns|µs|us|ms|s|GB/s)\b")


def illustrated(notebook: NotebookNode) -> list[int]:
    """Return the numbers of the code cells before the first question."""
    numbers = []
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            if re.search(r"\bpredict\(", cell.source):
                break
            numbers.append(number)
    return numbers


def light(cell: NotebookNode) -> list[NotebookNode]:
    """Return the pictures and tables among the outputs of a cell, without measurements."""
    found = []
    for output in cell.outputs:
        data = pictured(output.get("data", {}))
        kind = next((kind for kind in KINDS if kind in data), None)
        if kind is None or WIDGET in data or MEASURED.search(words(data[kind])):
            continue
        if kind == "text/html" and "<table" not in data[kind]:
            continue
        found.append(nbformat.v4.new_output("display_data", data={kind: data[kind].strip()}))
    return found


def pictured(data: NotebookNode) -> NotebookNode:
    """Return the data of an output; of the saved form of an explorer, only the picture."""
    found = SAVED.search(data.get("text/html", ""))
    return data if found is None else nbformat.from_dict({"image/svg+xml": base64.b64decode(found[1]).decode()})


def words(markup: str) -> str:
    """Return the text of a picture or a table."""
    shown = re.sub(r"<(style|script)\b.*?</\1>", " ", markup, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", shown)).split())


def stale(committed: NotebookNode, executed: NotebookNode) -> list[int]:
    """Return the numbers of the cells whose committed outputs differ from those of a run.

    Words are compared in any order: coordinates, and the order of drawing, depend on the version of Graphviz.
    """
    return [
        number
        for number in illustrated(committed)
        if _said(committed.cells[number].outputs) != _said(light(executed.cells[number]))
    ]


def _said(outputs: list[NotebookNode]) -> list[list[str]]:
    return [sorted(words(markup).split()) for output in outputs for markup in output.data.values()]


def run(path: Path) -> NotebookNode:
    """Return a notebook whose cells before the first question have been executed, and have light outputs."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    numbers = illustrated(notebook)
    shown = nbformat.from_dict({**notebook, "cells": [notebook.cells[number].copy() for number in numbers]})
    NotebookClient(shown, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
    for number, cell in zip(numbers, shown.cells, strict=True):
        notebook.cells[number].outputs = light(cell)
    return notebook


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.ipynb")):
        if len(sys.argv) == 1 or path.stem in sys.argv[1:]:
            nbformat.write(run(path), path)
            print(path.name, f"{path.stat().st_size:,} bytes", flush=True)

"""Every notebook runs from top to bottom, is paired with its text form and carries no outputs."""

from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient
from needs import needs

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))

pytestmark = pytest.mark.notebooks


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs(path):
    notebook = nbformat.read(path, as_version=4)
    if any(cell.source.startswith("import torch\n") for cell in notebook.cells):
        needs("torch")
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(path.parent)}}).execute()
    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    assert any("text/html" in o.get("data", {}) for o in outputs)
    assert not any(o.output_type == "stream" and o.name == "stderr" for o in outputs), "warnings belong fixed"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_and_text_form_agree(path):
    cells = [(c.cell_type, c.source) for c in nbformat.read(path, as_version=4).cells]
    assert [(c.cell_type, c.source) for c in jupytext.read(path.with_suffix(".py")).cells] == cells


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_carries_no_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)
    assert "widgets" not in notebook.metadata


def test_there_are_notebooks():
    assert NOTEBOOKS

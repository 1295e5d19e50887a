"""Every notebook runs from top to bottom, gives no answer away, is paired with its text form, and has light outputs."""

from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient
from needs import needs
from notebooks.answer_key import lessons, section
from notebooks.leaks import leaks
from notebooks.light_outputs import KINDS, illustrated, light, stale
from notebooks.text_forms import text_form

from fuser_lab.teaching import read_questions

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))

pytestmark = pytest.mark.notebooks


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs(path):
    committed, notebook = (nbformat.read(path, as_version=4) for _ in range(2))
    if any(cell.source.startswith("import torch\n") for cell in notebook.cells):
        needs("torch")
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(path.parent)}}).execute()
    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    assert any("text/html" in o.get("data", {}) for o in outputs)
    assert not any(o.output_type == "stream" and o.name == "stderr" for o in outputs), "fix the cause of a warning"
    bank = path.parent / "questions" / f"{path.stem}.toml"
    assert not bank.exists() or leaks(notebook, read_questions(bank)) == []
    key = (path.parents[1] / "docs" / "course_key.md").read_text(encoding="utf-8")
    renewal = "python -m tests.notebooks.answer_key > docs/course_key.md"
    assert path not in lessons() or section(path, notebook) in key, renewal
    assert stale(committed, notebook) == [], f"python -m tests.notebooks.light_outputs {path.stem}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_and_text_form_agree(path):
    cells = [(c.cell_type, c.source) for c in nbformat.read(path, as_version=4).cells]
    assert [(c.cell_type, c.source) for c in jupytext.read(text_form(path.stem)).cells] == cells


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_outputs_are_pictures_and_tables_before_the_first_question(path):
    notebook = nbformat.read(path, as_version=4)
    shown = {n for n, cell in enumerate(notebook.cells) if cell.get("outputs")}
    assert shown
    assert shown <= set(illustrated(notebook))
    assert {kind for n in shown for o in notebook.cells[n].outputs for kind in o.data} <= set(KINDS)
    assert not any(cell.get("execution_count") for cell in notebook.cells)
    assert "widgets" not in notebook.metadata


def test_a_stale_output_is_found_and_measured_times_are_left_out():
    def notebook(*markups):
        outputs = [nbformat.v4.new_output("display_data", data={"image/svg+xml": markup}) for markup in markups]
        cells = [nbformat.v4.new_code_cell("plan", outputs=outputs), nbformat.v4.new_code_cell("predict('?')")]
        return nbformat.v4.new_notebook(cells=cells)

    two, three = (f'<svg><text x="1">S0</text><text>{count} segments</text></svg>' for count in (2, 3))
    assert stale(notebook(two), notebook(two.replace('x="1"', 'x="2"'))) == []
    assert stale(notebook(two), notebook(three)) == [0]
    assert stale(notebook(), notebook(two)) == [0]
    assert light(notebook("<svg><text>median 3.5 ms</text></svg>").cells[0]) == []


def test_there_are_notebooks():
    assert NOTEBOOKS

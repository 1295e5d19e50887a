"""``python -m tests.notebooks.text_forms [NAME ...]`` renews the footers of text forms and writes the notebooks.

A lesson ends with the words that it uses, from the glossary. The outputs of cells that have not changed are left as
they are.
"""

import sys
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

from fuser_lab.teaching.glossary import footer

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
TEXTS = Path(__file__).parent / "text"  # outside the folder that JupyterLab lists, where each lesson is once
MARK = "\n\n**Words:** "


def text_form(name: str) -> Path:
    """Return the path of the text form of a notebook."""
    return TEXTS / f"{name}.py"


def with_footer(cells: list[NotebookNode]) -> str:
    """Return the last cell of a lesson with a footer of the words of all text cells."""
    last = cells[-1].source.partition(MARK)[0]
    texts = [cell.source for cell in cells[:-1] if cell.cell_type == "markdown"]
    return f"{last}\n\n{footer(' '.join([*texts, last]))}"


def written(name: str) -> NotebookNode:
    """Return the notebook of a text form, with the outputs of the stored one, and write the text form's footer."""
    path, stored = text_form(name), NOTEBOOKS / f"{name}.ipynb"
    last = with_footer(jupytext.read(path).cells).rpartition("\n\n")[2]
    text = path.read_text(encoding="utf-8").partition(MARK.replace("\n\n", "\n#\n# "))[0].rstrip("\n")
    path.write_text(f"{text}\n#\n# {last}\n", encoding="utf-8")
    notebook = jupytext.read(path)
    if stored.exists():
        outputs = nbformat.read(stored, as_version=4)
        notebook = jupytext.combine.combine_inputs_with_outputs(notebook, outputs, fmt="ipynb")
    return notebook


if __name__ == "__main__":
    for path in sorted(TEXTS.glob("*.py")):
        if len(sys.argv) == 1 or path.stem in sys.argv[1:]:
            nbformat.write(written(path.stem), NOTEBOOKS / f"{path.stem}.ipynb")

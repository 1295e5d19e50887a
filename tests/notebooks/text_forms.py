"""``python -m tests.notebooks.text_forms [NAME ...]`` renews two lines of each text form and writes the notebooks.

A lesson says at its beginning how long it takes, and at its end which words of the glossary it uses. The outputs of
cells that have not changed are left as they are.
"""

import math
import re
import sys
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

from tests.pages.glossary import footer

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
TEXTS = Path(__file__).parent / "text"  # outside the folder that JupyterLab lists, where each lesson is once
MARK = "\n\n**Words:** "
TAKES = re.compile(r" The \w+ takes about \d+ minutes\.")
# Estimates. Adults read 238 words of non-fiction per minute (Brysbaert 2019); technical text is read more slowly.
WORDS_PER_MINUTE, LINES_PER_MINUTE, MINUTES_PER_CELL, MINUTES_PER_QUESTION = 180, 30, 0.5, 1.5
ROUNDED = 5  # minutes


def text_form(name: str) -> Path:
    """Return the path of the text form of a notebook."""
    return TEXTS / f"{name}.py"


def minutes(cells: list[NotebookNode]) -> int:
    """Return the time that a lesson takes: to read its text and open code, to run its cells and to think of answers."""
    words = lines = code = questions = 0
    for cell in cells:
        text = TAKES.sub("", cell.source.partition(MARK)[0])
        if cell.cell_type == "markdown":
            words += len(text.split())
            continue
        code += 1
        questions += bool(re.search(r"^question = ", text, re.MULTILINE))
        if not cell.metadata.get("jupyter"):
            lines += sum(bool(line.strip()) for line in text.splitlines())
    reading = words / WORDS_PER_MINUTE + lines / LINES_PER_MINUTE
    return ROUNDED * math.ceil((reading + code * MINUTES_PER_CELL + questions * MINUTES_PER_QUESTION) / ROUNDED)


def with_minutes(cells: list[NotebookNode]) -> str:
    """Return the first cell of a lesson with the time that the lesson takes, after what the reader can do then."""
    title, purpose, *rest = TAKES.sub("", cells[0].source).split("\n\n")
    kind = purpose.removeprefix("After this ").partition(",")[0]
    return "\n\n".join([title, f"{purpose} The {kind} takes about {minutes(cells)} minutes.", *rest])


def with_footer(cells: list[NotebookNode]) -> str:
    """Return the last cell of a lesson with a footer of the words of all text cells."""
    last = cells[-1].source.partition(MARK)[0]
    texts = [cell.source for cell in cells[:-1] if cell.cell_type == "markdown"]
    return f"{last}\n\n{footer(' '.join([*texts, last]))}"


def written(name: str) -> NotebookNode:
    """Return the notebook of a text form, with the outputs of the stored one; renew two lines of the text form."""
    path, stored = text_form(name), NOTEBOOKS / f"{name}.ipynb"
    cells = jupytext.read(path).cells
    last = with_footer(cells).rpartition("\n\n")[2]
    text = path.read_text(encoding="utf-8").partition(MARK.replace("\n\n", "\n#\n# "))[0].rstrip("\n")
    first, renewed = ("\n".join(f"# {line}".rstrip() for line in source.split("\n"))
                      for source in (cells[0].source, with_minutes(cells)))
    text = text.replace(first, renewed, 1)
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

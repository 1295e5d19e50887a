"""The answer key of the course: ``python -m tests.notebooks.answer_key > docs/course_key.md`` runs its lessons.

The question banks of the lessons contain the questions, reasons and hints, and the lessons compute the answers.
"""

import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from fuser_lab.teaching import read_questions
from fuser_lab.teaching.question_bank import BankEntry, QuestionBank
from tests.notebooks.leaks import asked
from tests.notebooks.light_outputs import FOLDER, words

COURSE = FOLDER.parent / "docs" / "course.md"
HEAD = """---
no-search: true
---

# The answer key of the course

<!-- Made by `python -m tests.notebooks.answer_key > docs/course_key.md`; a test fails when it is stale. -->

For teachers: the answers of the six lessons of [the course](course.md), with their reasons and frequent mistakes. The
search of the site does not find this page.
"""


def lessons() -> list[Path]:
    """Return the lessons in the plan of the course."""
    names = re.findall(r"^\| \d+ \| \[[^]]*\]\(\.\./notebooks/(\w+)\.ipynb\)", COURSE.read_text("utf-8"), re.MULTILINE)
    return [FOLDER / f"{name}.ipynb" for name in names]


def bank_of(path: Path) -> QuestionBank:
    """Return the question bank of a lesson."""
    return read_questions(path.parent / "questions" / f"{path.stem}.toml")


def section(path: Path, notebook: NotebookNode) -> str:
    """Return the part of the key for a lesson, from the notebook after its execution."""
    title = notebook.cells[0].source.partition("\n")[0].lstrip("# ")
    parts = [f"## {path.stem[:2]} {title}"]
    for number, item in enumerate(asked(notebook, bank_of(path)), 1):
        said = words(" ".join(output.data["text/html"] for output in notebook.cells[item.reveal].outputs))
        answer, because = _answer(said, item.entry)
        parts += [f"**{number}. {item.entry.asks}**", f"Answer: **{answer}.** {because}", *_mistakes(item.entry)]
    return "\n\n".join(parts) + "\n"


def _answer(said: str, entry: BankEntry) -> tuple[str, str]:
    """Return the answer, and its reason with the facts that the lesson puts in."""
    words_of_reason = " ".join(entry.explanation.because.replace("`", "").replace("*", "").split())
    reason = r"[^{}]+?".join(map(re.escape, re.split(r"\{[^}]*\}", words_of_reason)))
    shown = re.search(rf"The answer: (.*?)\.? ({reason})", said)
    if shown is None:
        msg = f"the answer to {entry.asks!r} is not in the output of its lesson: {said}"
        raise ValueError(msg)
    return shown[1], shown[2]


def _mistakes(entry: BankEntry) -> list[str]:
    rows = []
    for predicted, says in entry.explanation.hints.items():
        if isinstance(says, dict):
            rows += [f"- {predicted}: {_shown(value)}? {text}" for value, text in says.items()]
        else:
            rows.append(f"- {_shown(predicted)}? {says}")
    return ["\n".join(rows)] if rows else []


def _shown(prediction: Any) -> str:
    return ", ".join(map(str, prediction)) if isinstance(prediction, tuple) else str(prediction)


def executed(path: Path) -> NotebookNode:
    """Return a notebook with the outputs of all cells."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
    return notebook


if __name__ == "__main__":
    sys.stdout.write("\n".join([HEAD, *(section(path, executed(path)) for path in lessons())]))

"""What a lesson says above the answers of its questions: sources, texts and outputs, in which no answer may occur."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nbformat import NotebookNode

from fuser_lab.teaching.question_bank import BankEntry, QuestionBank
from fuser_lab.teaching.questions import HIDDEN
from tests.notebooks.light_outputs import words

LENGTH = 5  # characters of an answer that occurs nowhere by chance
QUESTION = re.compile(r"^question = [\w.]*\bpredict\(", re.MULTILINE)
ANSWER = re.compile(r"The answer: (.*?)\.(?:\s|$)")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question of a lesson with the numbers of its cells."""

    entry: BankEntry
    question: int
    reveal: int


def asked(notebook: NotebookNode, bank: QuestionBank) -> list[Asked]:
    """Return the questions of a lesson in order; each is answered by the next cell that reveals one."""
    sources = {n: cell.source for n, cell in enumerate(notebook.cells) if cell.cell_type == "code"}
    questions = [n for n, source in sources.items() if QUESTION.search(source)]
    reveals = [n for n, source in sources.items() if "question.reveal(" in source]
    return [
        Asked(entry=entry, question=question, reveal=reveal)
        for entry, question, reveal in zip(bank.entries, questions, reveals, strict=True)
    ]


def leaks(notebook: NotebookNode, bank: QuestionBank) -> list[str]:
    """Return where an executed lesson shows an answer before it is revealed."""
    found = []
    for item in asked(notebook, bank):
        outputs = notebook.cells[item.reveal].outputs
        if len(outputs) != 1 or HIDDEN not in outputs[0].get("data", {}).get("text/plain", ""):
            found.append(f"cell {item.reveal} shows more than the hidden answer to {item.entry.asks!r}")
        patterns = [re.compile(pattern, re.IGNORECASE) for pattern in item.entry.gives_away]
        patterns += map(re.compile, answer_words(outputs, notebook.cells[item.question].source))
        for number, said in said_before(notebook, item):
            found += [
                f"cell {number} says {hit[0]!r}, before the answer to {item.entry.asks!r}"
                for pattern in patterns if (hit := pattern.search(said))
            ]
    return found


def answer_words(outputs: list[NotebookNode], question: str) -> list[str]:
    """Return patterns of an answer with several parts or a long number, unless the question offers it as a choice."""
    said = ANSWER.search(" ".join(words(output.get("data", {}).get("text/html", "")) for output in outputs))
    answer = said[1] if said else ""
    recognised = len(answer) >= LENGTH and (", " in answer or answer.replace(",", "").isdigit())
    return [re.escape(answer)] if recognised and answer.casefold() not in question.casefold() else []


def said_before(notebook: NotebookNode, item: Asked) -> Iterator[tuple[int, str]]:
    """Yield what the cells before an answer say, apart from the sources that ask and compute."""
    for number, cell in enumerate(notebook.cells[: item.reveal]):
        yield number, cell.source
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            yield number, output.get("text", "")
            yield number, data.get("text/plain", "")
            yield from ((number, words(data[kind])) for kind in ("text/html", "image/svg+xml") if kind in data)

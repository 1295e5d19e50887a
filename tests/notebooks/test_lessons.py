"""Lessons ask before they answer: the reader makes predictions, and each is compared with an answer further down."""

import ast
import re
from pathlib import Path

import nbformat
import pytest
from notebooks.leaks import asked, leaks
from notebooks.text_forms import minutes, with_footer, with_minutes

from fuser_lab.teaching import read_questions
from tests.pages.glossary import glossary_markdown

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
LESSONS = [path for path in NOTEBOOKS if "fuser_lab.teaching" in path.read_text(encoding="utf-8")]
MOST_BYTES = 300_000
MOST_CODE_CELLS = 15  # of a lesson that takes at most 25 minutes


def bank_of(path):
    """Return the question bank of a lesson."""
    return read_questions(path.parent / "questions" / f"{path.stem}.toml")


def code_cells(path):
    """Return the syntax trees of the code cells that are plain Python, by number."""
    cells = nbformat.read(path, as_version=4).cells
    plain = {i: c.source for i, c in enumerate(cells) if c.cell_type == "code" and not c.source.startswith("%")}
    return {i: ast.parse(source) for i, source in plain.items()}


def questions(tree):
    """Return the calls of predict whose result is assigned to a name: those that the reader answers."""
    named = (node.value for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call))
    return [call for call in named if getattr(call.func, "id", getattr(call.func, "attr", "")) == "predict"]


def answers(tree):
    """Return the calls of reveal on a name."""
    methods = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
    return [call for call in methods if call.func.attr == "reveal" and isinstance(call.func.value, ast.Name)]


def is_left_open(node):
    """Whether a prediction is None, or a dict of these."""
    if isinstance(node, ast.Dict):
        return all(map(is_left_open, node.values))
    return isinstance(node, ast.Constant) and node.value is None


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_each_question_is_open_and_is_answered_in_a_later_cell(path):
    cells = code_cells(path)
    questioned = [i for i, tree in cells.items() for _ in questions(tree)]
    answered = [i for i, tree in cells.items() for _ in answers(tree)]
    assert questioned
    assert len(questioned) == len(answered)
    assert all(question < answer for question, answer in zip(questioned, answered, strict=True))
    assert all(is_left_open(call.args[1]) for tree in cells.values() for call in questions(tree) if len(call.args) > 1)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_are_small(path):
    assert path.stat().st_size < MOST_BYTES
    assert sum(cell.cell_type == "code" for cell in nbformat.read(path, as_version=4).cells) <= MOST_CODE_CELLS


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_each_answer_is_explained_in_the_question_bank_and_in_no_visible_source(path):
    cells, entries = code_cells(path), bank_of(path).entries
    texts = [call.args[0].value for tree in cells.values() for call in questions(tree)]
    assert [entry.asks for entry in entries] == texts
    assert all(entry.explanation.because and entry.gives_away for entry in entries)
    given = {keyword.arg for tree in cells.values() for call in answers(tree) for keyword in call.keywords}
    assert given <= {"within", "facts", "exact"}


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_the_bank_gives_no_answer_away_before_it_is_asked_for(path):
    """The reason of an answer is written in no cell of the lesson."""
    cells = nbformat.read(path, as_version=4).cells
    said = " ".join(" ".join(cell.source for cell in cells).split())
    assert not [entry.asks for entry in bank_of(path).entries if entry.explanation.because in said]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_cells_of_machinery_are_collapsed_under_a_line_that_says_what_they_do(path):
    for cell in nbformat.read(path, as_version=4).cells:
        shown = {key: value for key, value in cell.metadata.items() if key != "lines_to_next_cell"}
        assert shown in ({}, {"jupyter": {"source_hidden": True}})
        if shown:
            assert re.match(r"# [A-Z`].*\.\n", cell.source), cell.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_begins_with_its_subject_and_what_the_reader_can_do_afterwards(path):
    title, _, purpose = nbformat.read(path, as_version=4).cells[0].source.partition("\n\n")
    assert re.fullmatch(r"# [^?]+", title), "the title says the subject, and asks nothing"
    assert re.match(r"After this (?:lesson|notebook), you can ", purpose)


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_each_lesson_begins_with_a_question_and_ends_with_where_to_go(path):
    cells = nbformat.read(path, as_version=4).cells
    assert "?" in cells[0].source
    assert cells[1].cell_type == "code"
    assert "## Where to go next" in cells[-1].source
    assert re.search(r"\]\((?:\d\d_\w+\.ipynb|\.\./docs/\w+\.md)", cells[-1].source)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_says_how_long_it_takes(path):
    cells = nbformat.read(path, as_version=4).cells
    assert minutes(cells) <= 25
    assert cells[0].source == with_minutes(cells), f"python -m tests.notebooks.text_forms {path.stem}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_words_of_a_notebook_are_explained_at_its_end(path):
    cells = nbformat.read(path, as_version=4).cells
    assert cells[-1].source == with_footer(cells), f"python -m tests.notebooks.text_forms {path.stem}"


def test_the_glossary_is_up_to_date(repository):
    page = (repository / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert page == glossary_markdown(), "python -m tests.pages.glossary > docs/glossary.md"


def test_an_answer_that_was_written_down_is_found():
    tree = ast.parse('first = predict("How many?", {"a": None, "b": 2}); second = predict("Who?", None)')
    assert [is_left_open(call.args[1]) for call in questions(tree)] == [False, True]


@pytest.mark.parametrize(
    ("source", "output", "shown", "expected"),
    [
        ("plan", "3 segments", "", []),
        ("plan", "2 segments", "", ["cell 0 says '2 segments'"]),
        ("plan  # 2 segments", "3 segments", "", ["cell 0 says '2 segments'"]),
        ("plan", "T3+T4", "", []),
        ("plan", "T3+T4, T5+T6", "", ["cell 0 says 'T3+T4, T5+T6'"]),
        ("plan", "3 segments", "the evidence", ["cell 2 shows more than the hidden answer"]),
    ],
)
def test_an_answer_that_stands_above_its_question_is_found(source, output, shown, expected, tmp_path):
    (tmp_path / "bank.toml").write_text(
        '[[question]]\nasks = "How many?"\nbecause = "Counted."\ngives_away = ["2 segments"]\n', encoding="utf-8",
    )
    bank = read_questions(tmp_path / "bank.toml")
    outcome = bank.predict("How many?", None).reveal("T3+T4, T5+T6")
    stream = nbformat.v4.new_output("stream", text=output)
    evidence = [nbformat.v4.new_output("stream", text=shown)] if shown else []
    hidden = nbformat.v4.new_output("display_data", data=outcome._repr_mimebundle_())
    notebook = nbformat.v4.new_notebook(cells=[
        nbformat.v4.new_code_cell(source, outputs=[stream]),
        nbformat.v4.new_code_cell('question = predict("How many?", None)\nquestion'),
        nbformat.v4.new_code_cell("first = question.reveal(pairs)\nfirst", outputs=[*evidence, hidden]),
    ])
    assert len(asked(notebook, bank)) == 1
    assert [line.partition(" to ")[0].removesuffix(", before the answer") for line in leaks(notebook, bank)] == expected


def test_there_are_lessons():
    assert LESSONS

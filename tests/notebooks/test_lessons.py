"""Lessons ask before they answer: the reader makes predictions, and each is compared with an answer further down."""

import ast
import re
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
LESSONS = [path for path in NOTEBOOKS if "fuser_lab.teaching" in path.read_text(encoding="utf-8")]
MOST_BYTES = 300_000


def code_cells(path):
    """Return the syntax trees of the code cells that are plain Python, by number."""
    cells = nbformat.read(path, as_version=4).cells
    plain = {i: c.source for i, c in enumerate(cells) if c.cell_type == "code" and not c.source.startswith("%")}
    return {i: ast.parse(source) for i, source in plain.items()}


def questions(tree):
    """Return the calls of predict whose result is assigned to a name: those that the reader answers."""
    named = (node.value for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call))
    return [call for call in named if isinstance(call.func, ast.Name) and call.func.id == "predict"]


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
    asked = [i for i, tree in cells.items() for _ in questions(tree)]
    answered = [i for i, tree in cells.items() for _ in answers(tree)]
    assert asked
    assert len(asked) == len(answered)
    assert all(question < answer for question, answer in zip(asked, answered, strict=True))
    assert all(is_left_open(call.args[1]) for tree in cells.values() for call in questions(tree) if len(call.args) > 1)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_are_small(path):
    assert path.stat().st_size < MOST_BYTES


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_each_answer_says_why(path):
    given = [call for tree in code_cells(path).values() for call in answers(tree)]
    assert all("because" in {keyword.arg for keyword in call.keywords} for call in given)


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_each_lesson_begins_with_a_question_and_ends_with_where_to_go(path):
    cells = nbformat.read(path, as_version=4).cells
    assert "?" in cells[0].source
    assert cells[1].cell_type == "code"
    assert "## Where to go next" in cells[-1].source
    assert re.search(r"\]\((?:\d\d_\w+\.ipynb|\.\./docs/\w+\.md)", cells[-1].source)


def test_an_answer_that_was_written_down_is_found():
    tree = ast.parse('first = predict("How many?", {"a": None, "b": 2}); second = predict("Who?", None)')
    assert [is_left_open(call.args[1]) for call in questions(tree)] == [False, True]


def test_there_are_lessons():
    assert LESSONS

"""What every lesson has: a question to begin with, predictions that are left to the reader, and a small file."""

import ast
from pathlib import Path

import jupytext
import pytest

LESSONS = [p for p in sorted((Path(__file__).parents[2] / "notebooks").glob("*.py")) if "01" <= p.name[:2] <= "13"]
MOST_BYTES = 50_000

pytestmark = pytest.mark.notebooks


def calls(tree, name):
    """Return the calls of a function or method."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [c for c in found if name in {getattr(c.func, "id", None), getattr(c.func, "attr", None)}]


def code_of(path):
    """Return the code of a lesson as a syntax tree; magics are no Python."""
    cells = [c.source for c in jupytext.read(path).cells if c.cell_type == "code"]
    return ast.parse("\n\n".join(text for text in cells if not text.lstrip().startswith("%")))


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_begins_with_a_question_and_a_picture(path):
    first, second, *_ = jupytext.read(path).cells
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    assert "?" in first.source
    assert second.cell_type == "code"
    last = ast.parse(second.source).body[-1]
    assert isinstance(last, ast.Expr), "the first code cell shows something"


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_predictions_are_left_to_the_reader(path):
    tree = code_of(path)
    asked = [c for c in calls(tree, "predict") if len(c.args) > 1 and isinstance(c.args[0], ast.Constant)]
    assert asked
    for call in asked:
        given = call.args[1]
        parts = given.values if isinstance(given, ast.Dict) else [given]
        # A try that shows how a wrong prediction is refused answers right away.
        revealed = any(call in ast.walk(other.func) for other in calls(tree, "reveal"))
        assert revealed or all(isinstance(p, ast.Constant) and p.value is None for p in parts), ast.unparse(call)


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_each_question_is_answered(path):
    tree = code_of(path)
    assert len(calls(tree, "reveal")) >= len([c for c in calls(tree, "predict") if isinstance(c.args[0], ast.Constant)])


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_is_small(path):
    assert path.with_suffix(".ipynb").stat().st_size < MOST_BYTES


def test_there_are_thirteen():
    assert [p.name[:2] for p in LESSONS] == [f"{number:02d}" for number in range(1, 14)]

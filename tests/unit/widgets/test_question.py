"""The control of a question: a choice, a text, or a text per part; nothing is revealed before."""

import pytest

pytest.importorskip("anywidget")

import ipywidgets
from fuser_lab_widgets.question import question_control

from fuser_lab.teaching import answer_text, predict, read_questions
from fuser_lab.teaching.questions import HIDDEN


def pressed(control, name):
    buttons = [one for row in control.children if isinstance(row, ipywidgets.HBox) for one in row.children]
    next(one for one in buttons if getattr(one, "description", "") == name).click()
    return next(one.value for one in buttons if isinstance(one, ipywidgets.Label))


def test_a_choice_is_answered():
    question = predict("Who takes it?", choices=["resize", "pointwise"])
    outcome = question.reveal("resize")
    control = question_control(question, "abc", answer_text)
    assert "Predict something first" in pressed(control, "Answer")
    assert str(outcome.now) == HIDDEN
    control.children[0].value = "pointwise"
    pressed(control, "Answer")
    assert str(outcome.now) == "✗ Predicted: pointwise. The answer: resize."


def test_each_part_has_a_field():
    question = predict("How many?", {"rows": None, "columns": None})
    outcome = question.reveal({"rows": 2, "columns": 3})
    control = question_control(question, "abc", answer_text)
    for field, text in zip(control.children[:2], ("2", "3"), strict=True):
        field.value = text
    pressed(control, "Answer")
    assert outcome.now.right


def test_a_question_is_skipped():
    question = predict("How many?", None)
    outcome = question.reveal(2, because="As counted.")
    pressed(question_control(question, "abc", answer_text), "Skip")
    assert str(outcome.now) == "The answer: 2.\nAs counted."
    assert outcome.now.skipped


def test_a_question_that_is_asked_again_keeps_its_answer(tmp_path):
    (tmp_path / "bank.toml").write_text('[[question]]\nasks = "How many?"\nbecause = "As counted."\n')
    bank = read_questions(tmp_path / "bank.toml")
    question = bank.predict("How many?", {"rows": None})
    control = question_control(question, "abc", answer_text)
    control.children[0].value = "2"
    assert pressed(control, "Answer") == "Answered: the next cell shows the outcome."
    again = bank.predict("How many?", {"rows": None})
    assert question_control(again, "abc", answer_text).children[0].value == "2"
    assert again.reveal({"rows": 2}).right

"""Predictions of readers and what they are told about them."""

import numpy as np
import pytest

from fuser_lab.errors import ArgumentTypeError, InputError
from fuser_lab.teaching import INVITATION, on_gpu, predict, score, shown


@pytest.mark.parametrize(
    ("predicted", "answer"),
    [
        (2, 2),
        (2, 2.0),
        (2, np.int64(2)),
        (True, True),
        (False, False),
        (" PointWise ", "pointwise"),
        ([1, 0], (1, 0)),
        ({"a", "b"}, frozenset({"b", "a"})),
        ({"order": [1, 0], "who": "Producer"}, {"order": (1, 0), "who": "producer"}),
    ],
)
def test_right_predictions(predicted, answer):
    outcome = predict("?", predicted).reveal(answer, because="So it is.")
    assert outcome.right is True
    assert str(outcome).startswith("✓ As predicted")
    assert str(outcome).endswith("So it is.")


@pytest.mark.parametrize(
    ("predicted", "answer"),
    [
        (3, 2),
        (0, 2),
        (True, False),
        ("transpose", "pointwise"),
        ([0, 1], (1, 0)),
        ([1], (1, 0)),
        ([], (1, 0)),
        (set(), {"a"}),
        ({"a": 1, "b": 3}, {"a": 1, "b": 2}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1, "b": None}, {"a": 1, "b": 2}),
    ],
)
def test_wrong_predictions(predicted, answer):
    outcome = predict("?", predicted).reveal(answer)
    assert outcome.right is False
    assert f"The answer: {shown(answer)}." in str(outcome)
    assert f"Predicted: {shown(predicted)}." in str(outcome)


@pytest.mark.parametrize("nothing", [None, {"a": None, "b": None}, {}])
def test_without_a_prediction_the_answer_is_given(nothing):
    question = predict("How many?", nothing)
    assert INVITATION in str(question)
    outcome = question.reveal({"a": 1, "b": 2})
    assert outcome.right is None
    assert str(outcome) == "The answer: a: 1, b: 2."


@pytest.mark.parametrize(("predicted", "right"), [(90, True), (110, True), (89, False), (111, False), (100.0, True)])
def test_numbers_may_be_off_by_a_part_of_the_answer(predicted, right):
    outcome = predict("?", predicted).reveal(100, within=0.1)
    assert outcome.right is right
    assert ("near enough" in str(outcome)) is (right and predicted != 100)


@pytest.mark.parametrize(
    ("predicted", "answer"), [("two", 2), (2, "two"), (True, 1), (1, True), (2, [2]), ([1], {1}), (3, {"a": 3})],
)
def test_another_kind_of_answer_is_no_wrong_answer(predicted, answer):
    with pytest.raises(ArgumentTypeError, match="the answer"):
        predict("?", predicted).reveal(answer)


def test_a_part_that_is_not_asked_for_is_refused():
    with pytest.raises(InputError, match="'c' is not asked for; the parts are a, b"):
        predict("?", {"c": 1}).reveal({"a": 1, "b": 2})


def test_choices():
    assert "Who? One of: resize, pointwise." in str(predict("Who?", choices=["resize", "pointwise"]))
    assert "Who takes it. One of: resize." in str(predict("Who takes it", choices=["resize"]))
    assert "Your prediction: Resize." in str(predict("Who?", "Resize", choices=["resize", "pointwise"]))
    with pytest.raises(InputError, match="reduction is none of the choices; there are resize, pointwise"):
        predict("Who?", "reduction", choices=["resize", "pointwise"])


def test_score():
    outcomes = [predict("one", 1).reveal(1), predict("two", 3).reveal(2), predict("three").reveal(3)]
    result = score(*outcomes)
    assert (result.right, result.predicted) == (1, 2)
    assert str(result).splitlines() == [
        "1 of 3 questions as predicted, 1 without a prediction.", "✗: two", "no prediction: three",
    ]
    assert result._repr_mimebundle_()["text/html"].count("<tr>") == 3


def test_html_is_escaped():
    question = predict("Is <script>alert(1)</script> run?", "<b>", choices=["<b>", "<i>"])
    outcome = question.reveal("<i>", because="a < b & c")
    for shown_object in (question, outcome, score(outcome)):
        page = shown_object._repr_mimebundle_()["text/html"]
        assert "<script>" not in page
        assert "<i>" not in page
        assert "<b>" not in page
    assert "a &lt; b &amp; c" in outcome._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567, "1,234,567"), (0.123456, "0.1235"), (33.6, "33.6"), (1234567.8, "1,234,568"), (True, "yes"),
        ((), "none"), (("b", 2), "b, 2"), ({10, 9}, "{9, 10}"), (frozenset("ba"), "{a, b}"),
        (set(), "none"), ([[1, 0], 2], "[1, 0], 2"),
        (None, "nothing"),
        ({"a": False, "b": (1, 0)}, "a: no, b: [1, 0]"),
    ],
)  # fmt: skip
def test_shown(value, text):
    assert shown(value) == text


def test_inputs_go_to_the_gpu_where_there_is_one():
    moved = on_gpu([np.arange(3, dtype=np.float32), 2.0])
    if not _has_gpu():
        assert moved is None
    else:
        assert moved[0].is_cuda
        assert moved[0].tolist() == [0, 1, 2]
        assert moved[1] == 2.0


def _has_gpu():
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()

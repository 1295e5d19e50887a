"""Predictions of readers and the feedback on them."""

import numpy as np
import pytest

from fuser_lab.errors import InputError
from fuser_lab.teaching import answer_text, on_gpu, predict, read_answers, read_questions, score
from fuser_lab.teaching.questions import AGAIN, HIDDEN, INVITATION


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
    outcome = predict("?", predicted).reveal(answer, because="As counted.")
    assert outcome.right is True
    assert str(outcome).startswith("✓ As predicted")
    assert str(outcome).endswith("As counted.")


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
    assert f"The answer: {answer_text(answer)}." in str(outcome)
    assert f"Predicted: {answer_text(predicted)}." in str(outcome)


@pytest.mark.parametrize("nothing", [None, {"a": None, "b": None}, {}])
def test_without_a_prediction_the_answer_stays_hidden_until_the_question_is_skipped(nothing):
    question = predict("How many?", nothing)
    assert INVITATION in str(question)
    outcome = question.reveal({"a": 1, "b": 2}, because="Both.")
    assert outcome.right is None
    assert outcome.hidden
    assert str(outcome) == HIDDEN
    assert outcome._repr_mimebundle_()["text/html"].count("<details") == 1
    question.skip()
    assert not outcome.now.hidden
    assert str(outcome.now) == "The answer: a: 1, b: 2.\nBoth."
    assert "<details" not in outcome.now._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize(
    ("typed", "answer", "right"),
    [
        ("3", 3, True), (" 1,024 ", 1024, True), ("20 %", 0.2, True), ("2.5", 2, False), ("Yes", True, True),
        ("n", False, True), ("T3+T4, T5+T6", {"T5+T6", "T3+T4"}, True), ("[1, 0]", (1, 0), True), ("1", (1, 0), False),
        ("Pointwise", "pointwise", True), ({"a": "1", "b": "yes"}, {"a": 1, "b": True}, True),
        ({"a": "1"}, {"a": 1, "b": True}, False), ("many", 3, None), ("perhaps", True, None),
    ],
)
def test_what_is_typed_into_the_control_is_read_as_what_is_asked_for(typed, answer, right):
    question = predict("?", None)
    outcome = question.reveal(answer)
    question.answer(typed)
    assert outcome.now.right is right
    assert bool(outcome.now.unclear) == (right is None)
    assert "The answer: " not in str(outcome.now) or right is False


def test_outcomes_on_show_are_told_of_an_answer():
    question, told = predict("How many?", None), []
    outcome = question.reveal(3)
    question.reply.listeners.append(lambda: told.append(str(outcome.now)))
    question.answer("4")
    question.answer("3")
    assert told == ["✗ Predicted: 4. The answer: 3.", "✓ As predicted: 3."]
    assert score(outcome).right == 1
    assert str(question).endswith("Your prediction: 3.")


def test_the_answers_of_a_class_are_handed_in_and_summarised(tmp_path):
    for name, given in (("Ada", "3"), ("Ben", "4"), ("Cy", "4"), ("Di", None), ("Eve", "skip")):
        one, two = predict("How many?", None), predict("Who?", "resize")
        outcomes = one.reveal(3), two.reveal("resize")
        if given == "skip":
            one.skip()
        elif given is not None:
            one.answer(given)
        score(*outcomes).save(tmp_path / f"{name}.json", name)
    found = read_answers(tmp_path)
    assert [sheet.name for sheet in found.sheets] == ["Ada", "Ben", "Cy", "Di", "Eve"]
    assert found.rows()[0] == {
        "question": "How many?", "answered": 3, "right": 1, "wrong": 2, "skipped": 1, "open": 1, "mistake": "4",
        "times": 2,
    }
    assert found.rows()[1]["right"] == 5
    assert "4 (2)" in str(found)
    assert found.save(tmp_path / "class.csv").read_text().startswith("question,answered,right")
    assert len(read_answers([tmp_path / "Ada.json", tmp_path / "Ben.json"]).sheets) == 2
    (tmp_path / "other.json").write_text('{"schema": "another"}')
    with pytest.raises(InputError, match=r"other\.json' contains no answers"):
        read_answers(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        read_answers(tmp_path / "gone.json")


def test_a_score_shows_no_answer_that_is_hidden():
    shown_page = score(predict("?").reveal(12345))._repr_mimebundle_()["text/html"]
    assert "12,345" not in shown_page


@pytest.mark.parametrize(("predicted", "right"), [(90, True), (110, True), (89, False), (111, False), (100.0, True)])
def test_numbers_may_be_off_by_a_part_of_the_answer(predicted, right):
    outcome = predict("?", predicted).reveal(100, within=0.1)
    assert outcome.right is right
    assert ("close enough" in str(outcome)) is (right and predicted != 100)


@pytest.mark.parametrize(
    ("predicted", "answer", "said"),
    [
        ("two", 2, "a number; the prediction is two, a text"),
        (2, "two", "a text; the prediction is 2, a number"),
        (True, 1, "a number; the prediction is yes, True or False"),
        (1, True, "True or False; the prediction is 1, a number"),
        (2, [2], "a list"),
        ([1], {1}, "a set"),
        (3, {"a": 3}, "has parts: give a dict with a, not 3"),
        (len, 3, "a builtin_function_or_method"),
        ({"a": 1, "b": "x"}, {"a": 1, "b": 77}, "b: The answer is a number"),
        ({"c": 1}, {"a": 1, "b": 2}, "The question has no part 'c'; choose from a, b"),
    ],
)
def test_what_cannot_be_compared_is_no_wrong_answer_and_gives_nothing_away(predicted, answer, said):
    outcome = predict("?", predicted).reveal(answer, because="It is 77, as counted.")
    assert outcome.right is None
    assert said in outcome.unclear
    assert str(outcome) == f"? {outcome.unclear}\n{AGAIN}"
    page = outcome._repr_mimebundle_()["text/html"] + score(outcome)._repr_mimebundle_()["text/html"]
    assert "77" not in page
    assert str(score(outcome)).splitlines()[1] == "?: ?"


def test_answers_of_numpy_are_yes_or_no():
    assert predict("?", True).reveal(np.bool(True)).right is True
    question = predict("?")
    question.skip()
    assert str(question.reveal(np.bool(False))) == "The answer: no."


def test_hints_are_for_those_who_predict_wrongly():
    hints = {7: "You have counted the reads twice.", 4: "The write counts as well."}
    asked = [predict("?", given).reveal(5, because="2 + 3.", hints=hints) for given in (7, 6, 5, None)]
    assert [outcome.hint for outcome in asked] == ["You have counted the reads twice.", "", "", ""]
    assert str(asked[0]).endswith("You have counted the reads twice. 2 + 3.")
    near = predict("?", 7.2).reveal(5, within=0.05, hints=hints)
    assert near.hint == hints[7]


def test_a_tolerance_does_not_hold_for_exact_parts():
    answer = {"segments": 2, "runs": 20}
    question = predict("?", {"segments": 3, "runs": 25})
    assert question.reveal(answer, within=0.5).right
    exact = question.reveal(answer, within=0.5, exact=["segments"])
    assert exact.right is False
    assert exact.hint == "Right: runs; wrong: segments."


def test_hints_for_parts():
    hints = {"a": {1: "Not one."}, "b": {"row": "Columns."}}
    parts = {"a": 2, "b": "column"}
    assert predict("?", {"a": 1, "b": "row"}).reveal(parts, hints=hints).hint == "Not one. Columns."
    assert predict("?", {"a": 2, "b": "Row"}).reveal(parts, hints=hints).hint == "Right: a; wrong: b. Columns."


def test_choices():
    assert "Who? One of: resize, pointwise." in str(predict("Who?", choices=["resize", "pointwise"]))
    assert "Who takes it. One of: resize." in str(predict("Who takes it", choices=["resize"]))
    assert "Your prediction: Resize." in str(predict("Who?", "Resize", choices=["resize", "pointwise"]))
    other = predict("Who?", "reduction", choices=["resize", "pointwise"])
    assert str(other).endswith("? reduction is not one of the choices; choose from resize, pointwise.")
    assert other.reveal("resize").unclear == other.unclear
    assert "The answer" not in str(other.reveal("resize"))


def test_score():
    outcomes = [predict("one", 1).reveal(1), predict("two", 3).reveal(2), predict("three").reveal(3)]
    result = score(*outcomes)
    assert (result.right, result.predicted) == (1, 2)
    assert str(result).splitlines() == [
        "1 of 3 questions answered correctly, 1 without a prediction.", "✗: two", "no prediction: three",
    ]
    assert result._repr_mimebundle_()["text/html"].count("<tr>") == 4


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
    assert answer_text(value) == text


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


def test_a_wrong_prediction_of_several_parts_says_which_were_right():
    answer = {"A100": 3, "H200": 1, "B200": 1}
    asked = predict("How many?", {"A100": 3, "H200": 2})
    outcome = asked.reveal(answer, hints={"H200": {2: "It keeps a row."}})
    assert outcome.right is False
    assert outcome.hint == "Right: A100; wrong: H200; not predicted: B200. It keeps a row."
    assert outcome.hint in repr(outcome)
    assert predict("How many?", {"A100": 1, "H200": 3, "B200": 2}).reveal(answer).hint == ""
    assert predict("How many?", answer).reveal(answer).hint == ""
    assert predict("How many?", {"A100": 2}).reveal({"A100": 3}).hint == ""


BANK = """
[[question]]
asks = "How many?"
because = "Counted: {count:,}."
hints = [{ if = 3, says = "The write counts." }, { if = [1, 2], says = "Not a list." }]

[[question]]
asks = "Which?"
because = "Both."
hints = [{ part = "a", if = 1, says = "The first is two." }]
"""


@pytest.fixture
def bank(tmp_path):
    path = tmp_path / "bank.toml"
    path.write_text(BANK, encoding="utf-8")
    return read_questions(path)


def test_a_bank_explains_the_answers_of_its_questions(bank):
    outcome = bank.predict("How many?", 3).reveal(2048, facts={"count": 2048})
    assert str(outcome).splitlines() == ["✗ Predicted: 3. The answer: 2,048.", "The write counts. Counted: 2,048."]
    parts = bank.predict("Which?", {"a": 1, "b": 2}).reveal({"a": 2, "b": 2})
    assert str(parts).endswith("The first is two. Both.")


def test_a_question_that_is_not_in_the_bank_is_refused_with_those_that_are(bank):
    with pytest.raises(InputError, match=r"has no question 'How few\?'; it has 'How many\?', 'Which\?'\."):
        bank.predict("How few?")


def test_a_reason_whose_facts_are_missing_is_refused(bank):
    with pytest.raises(InputError, match=r"facts=\{\} does not fit 'Counted: \{count:,\}\.'"):
        bank.predict("How many?").reveal(3)


@pytest.mark.parametrize(
    "text",
    [
        "question = 3", "[[question]]\nasks = 'How many?'", "[[questions]]", "[[question", "\xff",
        "[[question]]\nasks = 'a'\nbecause = 'b'\nhints = [{ says = 'c' }]",
        "[[question]]\nasks = 'a'\nbecause = 'b'\nhints = [3]",
        "[[question]]\nasks = 'a'\nbecause = ''\nhints = [{ if = 'p', says = 'd' }, { part = 'p', if = 1, says = '' }]",
    ],
)
def test_a_file_that_is_not_a_bank_is_refused(text, tmp_path):
    (tmp_path / "bank.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"read_questions: '.*bank\.toml'"):
        read_questions(tmp_path / "bank.toml")
    with pytest.raises(InputError, match=r"read_questions: 'gone\.toml' cannot be read"):
        read_questions("gone.toml")


def test_what_is_shown_with_an_answer_is_hidden_until_then():
    class Table:
        def _repr_html_(self):
            return "<table>evidence</table>"

        def __str__(self):
            return "evidence as text"

    question = predict("How many?", None)
    question.show("2", 3, sep="+")
    question.show("end")
    question.show(Table())
    outcome = question.reveal(5)
    assert str(outcome) == HIDDEN
    before, _, folded = outcome._repr_html_().partition("<details")
    assert "evidence" not in before
    assert "<table>evidence</table>" in folded
    question.answer("5")
    assert str(outcome.now) == "✓ As predicted: 5.\n2+3\nend\nevidence as text"
    question.answer("many")
    assert "evidence" not in outcome.now._repr_html_()
    assert question.reveal(5).evidence == ()

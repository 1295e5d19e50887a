"""Questions of lessons: the reader predicts, and then sees whether the prediction is right."""

from fuser_lab.teaching.answer_sheets import read_answers
from fuser_lab.teaching.question_bank import QuestionBank, read_questions
from fuser_lab.teaching.questions import (
    Outcome,
    Played,
    Prediction,
    Score,
    answer_text,
    on_gpu,
    play,
    predict,
    score,
)

__all__ = [
    "Outcome",
    "Played",
    "Prediction",
    "QuestionBank",
    "Score",
    "answer_text",
    "on_gpu",
    "play",
    "predict",
    "read_answers",
    "read_questions",
    "score",
]

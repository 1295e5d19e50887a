"""The predictions of a lesson's readers, as files to hand in, and a summary of those of a class."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fuser_lab.arguments import PATH, list_of, short_text, takes
from fuser_lab.errors import InputError
from fuser_lab.files.json_text import json_text
from fuser_lab.files.reading import UnreadableError, content_of, parse_json
from fuser_lab.report import save
from fuser_lab.report.html import table_html
from fuser_lab.report.records import Records
from fuser_lab.report.shown import Shown
from fuser_lab.report.tables import Table, table_text

if TYPE_CHECKING:
    import pandas as pd

_SCHEMA: Final = "fuser_lab.answers"
_VERSION: Final = 1  # of the format of answer sheets
_NUMERIC: Final = ("answered", "right", "wrong", "skipped", "open")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a reader predicted for a question, as text; ``right`` is None without a prediction."""

    question: str
    predicted: str
    right: bool | None
    skipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSheet:
    """The predictions of one reader."""

    name: str
    answers: tuple[Answer, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the sheet as data that JSON can hold."""
        return {"schema": _SCHEMA, "version": _VERSION, "name": self.name, "answers": list(map(asdict, self.answers))}

    @takes("AnswerSheet.save", path=PATH)
    def save(self, path: str | Path) -> Path:
        """Write the sheet as .json and return the path.

        Raises
        ------
        InputError
            If the extension is not .json, or the file cannot be written.
        """
        return save.save("answers", path, {".json": lambda: json_text(self.to_json(), indent=1)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassAnswers(Shown):
    """The predictions of several readers; it shows one row per question."""

    sheets: tuple[AnswerSheet, ...]

    def rows(self) -> list[dict[str, Any]]:
        """Return one record per question: how many readers answered, were right or wrong, skipped it or left it open.

        ``mistake`` is the most frequent wrong prediction, as text, and ``times`` how often it was made.
        """
        asked: dict[str, list[Answer]] = {}
        for sheet in self.sheets:
            for answer in sheet.answers:
                asked.setdefault(answer.question, []).append(answer)
        return [_row(question, answers) for question, answers in asked.items()]

    def to_pandas(self) -> "pd.DataFrame":
        """Return the rows as a DataFrame."""
        import pandas as pd

        return pd.DataFrame.from_records(self.rows())

    @takes("ClassAnswers.save", path=PATH)
    def save(self, path: str | Path) -> Path:
        """Write the rows as .csv, .json, .html or .txt and return the path.

        Raises
        ------
        InputError
            If the extension is not one of these, or the file cannot be written.
        """
        rows = self.rows()
        columns = tuple(rows[0]) if rows else ("question",)
        records = Records(columns=columns, rows=tuple(tuple(row.values()) for row in rows))
        writers = save.table_writers(self._table, lambda: records, lambda: rows, note=self._note, title="answers")
        return save.save("answers", path, writers)

    @property
    def _table(self) -> Table:
        rows = [
            (
                row["question"], *(str(row[name]) for name in _NUMERIC),
                f"{row['mistake']} ({row['times']})" if row["times"] else "",
            )
            for row in self.rows()
        ]
        columns = ("question", *_NUMERIC, "most frequent mistake")
        return Table(columns=columns, rows=tuple(rows), numeric=frozenset(_NUMERIC))

    @property
    def _note(self) -> str:
        return f"{len(self.sheets)} sheet{'s' * (len(self.sheets) != 1)}."

    def __repr__(self) -> str:
        """Return the table as text."""
        return f"{table_text(self._table)}\n{self._note}"

    def _repr_html_(self) -> str:
        """Return static HTML."""
        return table_html(self._table, note=self._note)


@takes(paths=(PATH | list_of(PATH, "a list of paths")).worded("a file, a folder of .json files, or a list of files"))
def read_answers(paths: str | Path | Sequence[str | Path]) -> ClassAnswers:
    """Return the answers of a class, from the files that `Score.save` wrote.

    Parameters
    ----------
    paths
        One file, a folder (all its .json files are read), or a list of files.

    Raises
    ------
    InputError
        If a file cannot be read or contains no answers; the message names it.
    """
    files = [paths] if isinstance(paths, str | Path) else list(paths)
    return ClassAnswers(sheets=tuple(_sheet(file) for path in map(Path, files) for file in _files(path)))


def _files(path: Path) -> list[Path]:
    # Path.is_dir raises an error if a name is too long.
    return sorted(path.glob("*.json")) if os.path.isdir(path) else [path]  # noqa: PTH112


def _sheet(path: Path) -> AnswerSheet:
    try:
        content = content_of(path)
    except UnreadableError as error:
        raise InputError(f"read_answers: {short_text(path.name)} cannot be read ({error}).") from None
    try:
        data = parse_json(content)
        is_ours = (data["schema"], data["version"]) == (_SCHEMA, _VERSION)
        answers = tuple(_answer(**answer) for answer in data["answers"]) if is_ours else None
    except (KeyError, TypeError, UnreadableError):
        answers = None
    if answers is None:
        msg = f"read_answers: {short_text(path.name)} contains no answers written by Score.save of fuser_lab.teaching."
        raise InputError(msg)
    return AnswerSheet(name=str(data.get("name", "")), answers=answers)


def _answer(question: object, predicted: object, right: object, skipped: object) -> Answer:
    return Answer(
        question=str(question), predicted=str(predicted), right=None if right is None else right is True,
        skipped=skipped is True,
    )


def _row(question: str, answers: Sequence[Answer]) -> dict[str, Any]:
    right = sum(answer.right is True for answer in answers)
    wrong = [answer.predicted for answer in answers if answer.right is False]
    skipped = sum(answer.right is None and answer.skipped for answer in answers)
    mistake, times = Counter(wrong).most_common(1)[0] if wrong else ("", 0)
    answered = right + len(wrong)
    return {
        "question": question, "answered": answered, "right": right, "wrong": len(wrong), "skipped": skipped,
        "open": len(answers) - answered - skipped, "mistake": mistake, "times": times,
    }

"""How many assertions of nvFuser's tests fuser_lab agrees with, as Markdown."""

from collections.abc import Iterator

from tests.nvfuser_assertions.assertion import Assertion, Assertions, files

COLUMNS = ("found", "expressible", "agree", "differ", "cases")


def report() -> Iterator[str]:
    """Yield the lines of a table by file, the cases with another answer, and what cannot be expressed."""
    listed = list(files())
    answers = {file.file: [(case, *case.answer()) for case in file.cases] for file in listed}
    rows = {file.file: counts(file, answers[file.file]) for file in listed}
    yield f"| file | {' | '.join(COLUMNS)} |"
    yield f"|---|{'---:|' * len(COLUMNS)}"
    for name, row in (*rows.items(), ("all", tuple(map(sum, zip(*rows.values(), strict=True))))):
        yield f"| {name} | {' | '.join(map(str, row))} |"
    yield ""
    apart = [(case, got) for several in answers.values() for case, agrees, got in several if not agrees]
    yield "Cases with another answer:" if apart else "No case has another answer."
    yield ""
    for case, got in apart:
        reason = f"{case.differs}." if case.differs else "The reason is not known."
        yield f"- `{case.name}` ({case.source}): expected {case.expected}, got {got or 'no segment'}. {reason}"
    if apart:
        yield ""
    yield "Assertions that have no case:"
    yield ""
    for file in listed:
        yield from (f"- {file.file}: {', '.join(map(str, lines))}: {why}." for why, lines in file.left.items())


def counts(file: Assertions, answers: list[tuple[Assertion, bool, str]]) -> tuple[int, ...]:
    """Return the numbers of `COLUMNS`; an assertion is a line of nvFuser, and agrees if all its cases do."""
    expressible = {case.line for case, _, _ in answers}
    differ = {case.line for case, agrees, _ in answers if not agrees}
    left = sum(map(len, file.left.values()))
    return len(expressible) + left, len(expressible), len(expressible - differ), len(differ), len(answers)

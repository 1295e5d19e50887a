"""The table of known answers: ``python -m tests.pages.known_answers > docs/known_answers.md``."""

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.nvfuser_assertions.report import report
from tests.unit.segmentation.test_known_answers import (
    CASES,
    CONTRADICTED,
    GALLERY,
    at_head,
    count_holds,
    holds,
    schedulers,
    segmented,
    stated_schedulers,
)

COMMAND = "python -m tests.pages.known_answers > docs/known_answers.md"
STATUS = {
    "asserted": "a test of nvFuser asserts it",
    "derived": "derived from nvFuser's rules",
    "reported": "stated in an issue",
    "stated": "stated in an issue, for this definition and today's nvFuser",
}
RELATION = {"==": "", "<=": "at most ", ">=": "at least "}


def row(case: dict[str, Any]) -> tuple[bool, str]:
    """Return whether a case holds, and its line of the table."""
    result = segmented(case)
    count, got, stated = len(result.groups), schedulers(result), stated_schedulers(case)
    mark = "" if count_holds(case, count) else " (NO)"
    if case["id"] in CONTRADICTED:
        mark = f" (no: rule {CONTRADICTED[case['id']][1]})"
    expected = f"{RELATION[case['relation']]}{case['segments']}"
    beside = "" if stated in (None, got) else " (NO)"
    said = "not stated" if stated is None else listed(stated)
    status = STATUS[case["segments_status"]]
    cells = (f"`{case['id']}`", expected, f"{count}{mark}", said, f"{listed(got)}{beside}", status)
    return holds(case, result), f"| {' | '.join(cells)} |"


def listed(names: list[str]) -> str:
    """Return names with their numbers of occurrences."""
    return ", ".join(f"{n} x {name}" if n > 1 else name for name, n in Counter(names).items())


def table(cases: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a sentence with the count, and a table."""
    rows = [row(case) for case in cases]
    both = sum(stated_schedulers(case) is not None for case in cases)
    yield f"{sum(good for good, _ in rows)} of {len(rows)} hold; {both} of them also state the schedulers."
    yield ""
    yield "| case | segments expected | got | schedulers expected | got | source |"
    yield "|---|---:|---:|---|---|---|"
    yield from (line for _, line in rows)


def page() -> str:
    """Return the page."""
    lines = [
        f"<!-- Made by `{COMMAND}`; a test fails when it is stale. -->",
        "",
        "# Known answers",
        "",
        "This page lists fusions with a known number of segments, and for many also the schedulers, from nvFuser's own",
        "tests, from its rules, and from issues of NVIDIA/Fuser. Each is cut bottom-up for an H200 with nvFuser's",
        "passes and the case's switches (`SegmenterOptions.from_nvfuser`), as in",
        "`tests/unit/segmentation/test_known_answers.py`.",
        "",
        "## From nvFuser's tests and rules",
        "",
        *table(CASES),
        "",
    ]
    if CONTRADICTED:
        lines += ["These answers differ by intention:", ""]
        said = {c["id"]: c for c in CASES}
        lines += [
            f"- `{name}`: the rules alone suggest {said[name]['segments']}; the rule {rule}, which nvFuser's own tests "
            f"assert for fusions of the same shape, gives {count}."
            for name, (count, rule) in CONTRADICTED.items()
        ]
        lines.append("")
    lines += ["## From issues", "", *table([c for c in GALLERY if at_head(c)]), ""]
    lines += [
        "## All assertions of nvFuser's tests",
        "",
        "In these files nvFuser's tests (81c4b22f) assert how many segments a fusion has, which schedulers they have,",
        "or that a scheduler accepts or refuses the fusion. An assertion is one line of nvFuser, and its cases are the",
        "parameters of the test. `tests/nvfuser_assertions` has the definitions, and",
        "`python -m tests.nvfuser_assertions` prints this section.",
        "",
        *report(),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page())

"""The table of known answers: ``python -m tests.pages.known_answers > docs/known_answers.md``."""

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.unit.segmentation.test_known_answers import CASES, CONTRADICTED, GALLERY, at_head, segmented

COMMAND = "python -m tests.pages.known_answers > docs/known_answers.md"
STATUS = {
    "asserted": "a test of nvFuser asserts it",
    "derived": "read off nvFuser's rules",
    "reported": "said in an issue",
    "stated": "said in an issue, for this definition and today's nvFuser",
}
RELATION = {"==": "", "<=": "at most ", ">=": "at least "}


def holds(case: dict[str, Any], count: int) -> bool:
    """Return whether a number of segments is as expected."""
    wanted: int = case["segments"]
    return {"==": count == wanted, "<=": count <= wanted, ">=": count >= wanted}[case["relation"]]


def row(case: dict[str, Any]) -> tuple[bool, str]:
    """Return whether a case holds, and its line of the table."""
    groups = segmented(case).groups
    said = Counter(g.scheduler.value if g.scheduler else "none" for g in groups)
    schedulers = ", ".join(f"{n} x {name}" if n > 1 else name for name, n in said.items())
    good = holds(case, len(groups))
    expected = f"{RELATION[case['relation']]}{case['segments']}"
    mark = "" if good else f" (no: rule {CONTRADICTED[case['id']][1]})" if case["id"] in CONTRADICTED else " (NO)"
    cells = (f"`{case['id']}`", expected, f"{len(groups)}{mark}", schedulers, STATUS[case["segments_status"]])
    return good, f"| {' | '.join(cells)} |"


def table(cases: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a table with a sentence before it that counts."""
    rows = [row(case) for case in cases]
    yield f"{sum(good for good, _ in rows)} of {len(rows)} hold."
    yield ""
    yield "| case | segments expected | got | schedulers that took them | who says so |"
    yield "|---|---:|---:|---|---|"
    yield from (line for _, line in rows)


def page() -> str:
    """Return the page."""
    lines = [
        f"<!-- Made by `{COMMAND}`; a test fails when it is stale. -->",
        "",
        "# Known answers",
        "",
        "Fusions for which the number of segments is known: from nvFuser's own tests, from its rules, and from issues",
        "of NVIDIA/Fuser. Each is cut bottom-up for an H200 with nvFuser's passes and the case's switches",
        "(`SegmenterOptions.from_nvfuser`), as `tests/unit/segmentation/test_known_answers.py` does.",
        "",
        "## From nvFuser's tests and rules",
        "",
        *table(CASES),
        "",
    ]
    if CONTRADICTED:
        lines += ["Where the answer differs, on principle:", ""]
        said = {c["id"]: c for c in CASES}
        lines += [
            f"- `{name}`: {said[name]['segments']} was read off the rules, and is {count} by the rule {rule}, which "
            "nvFuser's own tests assert for fusions of the same shape."
            for name, (count, rule) in CONTRADICTED.items()
        ]
        lines.append("")
    lines += ["## From issues", "", *table([c for c in GALLERY if at_head(c)]), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page())

"""The page of the thresholds of the choice of kernels: ``python -m tests.pages.thresholds > docs/thresholds.md``."""

import sys
from collections.abc import Iterable, Iterator

from fuser_lab.cost.crossovers import ROWS, Crossover

COMMAND = "python -m tests.pages.thresholds > docs/thresholds.md"
_KIB = 1024  # bytes
_HEADINGS = {
    "gpu": "Kernels of a GPU",
    "cpu": "Kernels of the CPU",
    "": "Kernels of both",
}


def page() -> str:
    """Return the page as Markdown."""
    measured = sum(row.source.is_measured for row in ROWS)
    lines = [
        "# Thresholds",
        "",
        f"<!-- Made by `{COMMAND}`; a test fails when it is stale. -->",
        "",
        "Loops and forms of kernels are chosen by bytes, lanes, registers and the numbers of the device. What these do",
        f"not decide is decided by the {len(ROWS)} numbers of `fuser_lab/cost/crossovers.py`, on this page. For",
        f"{measured} of them a measurement is recorded: the processor, the day, and the command if the repository has",
        "it. Each of the others has the day on which it was chosen. The [benchmarks](benchmarks.md) were measured with",
        "it, but no recorded measurement compares it with other values. Before you change a number, measure kernels on",
        "both sides of it, and record in its row how you did; `python -m tests.replay compare` lists the kernels that",
        "change.",
        "",
    ]
    for prefix, heading in _HEADINGS.items():
        lines += [f"## {heading}", "", *_table(row for row in ROWS if _prefix(row) == prefix), ""]
    return "\n".join(lines)


def _prefix(row: Crossover) -> str:
    prefix = row.name.split(".")[0]
    return prefix if prefix in _HEADINGS else ""


def _table(rows: Iterable[Crossover]) -> Iterator[str]:
    yield "| name | value | unit | decides | measured on | day | by |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        source = row.source
        cells = (f"`{row.name}`", _number(row), row.unit, row.decides, source.device, source.date, source.command)
        yield f"| {' | '.join(cells)} |"


def _number(row: Crossover) -> str:
    if row.unit.startswith("bytes") and isinstance(row.value, int) and row.value > _KIB and row.value % _KIB == 0:
        return f"{row.value // _KIB} KiB"
    return f"{row.value:,}"


if __name__ == "__main__":
    sys.stdout.write(page())

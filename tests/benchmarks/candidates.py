"""All candidates of `fl.tune` for a hundred segments or more, and the quality of a model's ranking.

``python -m tests.benchmarks.candidates --out FILE`` measures on the GPU (`tests.benchmarks.measure_kernels`, with a
cold L2 cache) until ``--seconds`` have passed; the file belongs in ``tests/data/kernels``. ``python -m
tests.benchmarks.candidates --fit`` fits the model to all files there, stores its weights in the package, and writes the
table of docs/cost_model.md; it needs no GPU.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fuser_lab import cli
from fuser_lab.cost.candidate_model import kept_record
from tests.benchmarks import measure_kernels

ROOT: Final = Path(__file__).parents[2]
KEPT: Final = ROOT / "tests" / "data" / "kernels"
PAGE: Final = ROOT / "docs" / "cost_model.md"
ALL: Final = 1000  # more candidates than any segment has
_BEGIN: Final = "| measured kernels |"
_AFTER: Final = (1, 2, 4, 8)


def files() -> list[Path]:
    """Return the files of measured kernels."""
    return sorted(KEPT.glob("*.csv.gz"))


def table(agreement: Sequence[Mapping[str, Any]]) -> str:
    """Return the agreement of a fit with each run of a measurement as Markdown."""
    def row(name: str, cell: Any) -> str:
        return f"| {name} | {' | '.join(cell(one) for one in agreement)} |"

    return "\n".join([
        row("", lambda one: f"{one['device']}, {one['kernels'] / one['segments']:.0f} kernels per segment"),
        "|---" * (len(agreement) + 1) + "|",
        row("measured kernels", lambda one: f"{one['kernels']:,}"),
        row("segments", lambda one: f"{one['segments']:,}"),
        row("pairs in order", lambda one: f"{one['concordant']:.1%}"),
        row("by the predicted time of each kernel alone", lambda one: f"{one['plain_concordant']:.1%}"),
        row("rank correlation", lambda one: f"{one['rank']:.2f}"),
        row("by the predicted time of each kernel alone", lambda one: f"{one['plain_rank']:.2f}"),
        row("over the fastest: the heuristics' choice", lambda one: f"{one['heuristics'] - 1:.1%}"),
        row("the candidate predicted to be the fastest", lambda one: f"{one['best'] - 1:.1%}"),
        row("this candidate, if predicted to be at least 1.1 times as fast", lambda one: f"{one['guarded'] - 1:.1%}"),
        row("under this condition: slower by 5 % or more", lambda one: f"{one['slower']:.1%}"),
        row("faster by 5 % or more", lambda one: f"{one['faster']:.1%}"),
        *(
            row(
                f"after measuring {count} in this order (in a random one)",
                lambda one, place=place: f"{one['after'][place] - 1:.1%} ({one['at_random'][place] - 1:.1%})",
            )
            for place, count in enumerate(_AFTER)
        ),
    ])


def written(page: str, found: str) -> str:
    """Return a page with its table of agreement replaced."""
    lines = page.splitlines()
    place = next(n for n, line in enumerate(lines) if line.startswith(_BEGIN))
    first = next(n for n in range(place, -1, -1) if not lines[n].startswith("|")) + 1
    last = next(n for n in range(place, len(lines)) if not lines[n].startswith("|"))
    return "\n".join([*lines[:first], *found.splitlines(), *lines[last:], ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="measure, and write this file; gzipped if its name ends in .gz")
    what.add_argument("--fit", action="store_true", help="fit the model to the stored files")
    parser.add_argument("--seconds", type=float, default=280.0, help="after which measuring ends")
    given = parser.parse_args(arguments)
    if given.out is not None:
        seconds, count = str(given.seconds), str(ALL)
        measure_kernels.main(["--out", str(given.out), "--seconds", seconds, "--candidates", count])
        return 0
    status = cli.main(["fit", "--candidates", "--write", *map(str, files())])
    if status == 0:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), table(kept_record()["agreement"])), encoding="utf-8")
    return status


if __name__ == "__main__":
    raise SystemExit(main())

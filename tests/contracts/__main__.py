"""``python -m tests.contracts``: how many planted regressions are found, and how many harmless edits are reported."""

import argparse
import tempfile
import time
from pathlib import Path

from tests.contracts.planted import harmless_results, planted_results, without_kernels


def main() -> int:
    """Print each regression that is missed or misnamed, each harmless edit that is reported, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--harmless", type=int, default=300, help="number of harmless edits")
    parser.add_argument("--only", default="", help="only cases whose name contains this text")
    parser.add_argument("--long", action="store_true", help="print the comparison of each regression")
    arguments = parser.parse_args()
    start = time.process_time()
    planted = named = count = reported = 0
    caught = 0
    with tempfile.TemporaryDirectory() as folder, without_kernels():
        for result in planted_results(Path(folder), only=arguments.only):
            planted, caught, named = planted + 1, caught + result.is_reported, named + result.names_culprit
            if arguments.long or not (result.is_reported and result.names_culprit):
                print(f"{result.name} (culprit {result.planted.culprit!r})\n{result.comparison}\n", flush=True)
        for result in harmless_results(Path(folder), arguments.harmless, only=arguments.only.partition(":")[0]):
            count, reported = count + 1, reported + bool(result.comparison)
            if result.comparison:
                print(f"harmless, and reported: {result.name}\n{result.comparison}\n", flush=True)
    print(
        f"{caught} of {planted} planted regressions are found, and {named} name the culprit first; {reported} of "
        f"{count} harmless edits are reported; {time.process_time() - start:.0f} s of processor time",
    )
    return int(caught < planted or reported > 0 or named < 0.9 * planted)


if __name__ == "__main__":
    raise SystemExit(main())

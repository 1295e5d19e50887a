"""The largest errors of the pointwise ops on this machine: ``python -m tests.op_accuracy [--write]``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # as pytest does

from tests.op_accuracy import tables
from tests.op_accuracy.measuring import measure_all


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and, on request, store the errors."""
    parser = argparse.ArgumentParser(prog="python -m tests.op_accuracy", description=__doc__)
    parser.add_argument("--write", action="store_true", help="store the errors as the figures of docs/ops.md")
    options = parser.parse_args(arguments)
    accuracies = measure_all()
    print(tables.accuracy_text(accuracies))
    if options.write:
        print(tables.save(accuracies))


if __name__ == "__main__":
    main()

"""Every kernel's text, before and after a change: ``python -m tests.replay compare [PATTERN] [--against REVISION]``.

Kernels of both targets, plans and decision logs of examples, the gallery, regions of the corpus, the sets of the
benchmark, the matrix of schedulers and dtypes, kernel forms and ops are compared with those of a git revision, which is
archived to a temporary folder and recorded there (HEAD by default), or with a record (``--with FILE``) that ``record
[PATTERN] --to FILE`` wrote. The exit status is 1 if anything differs. ``digests`` renews the digests of the short form,
which a test compares.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # as pytest does

from fuser_lab.targets.cuda_compiler import VARIABLE
from tests.processes import one_thread_each
from tests.replay.record import (
    DIGESTS,
    FOLDER,
    compared,
    difference,
    digests,
    recorded,
    recorded_revision,
)

_NAMED = 20  # differing texts of a kind
_LINES = 80  # of a difference
_COLUMNS = 200


def main(arguments: Sequence[str] | None = None) -> int:
    """Read arguments and run."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.replay", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("record", "compare", "digests"))
    parser.add_argument("pattern", nargs="?", default="*", help="names of cases, with wildcards")
    parser.add_argument("--to", type=Path, default=FOLDER / "working.sqlite", help="file for the record")
    parser.add_argument("--against", default="HEAD", metavar="REVISION")
    parser.add_argument("--with", dest="before", type=Path, metavar="FILE", help="a record to compare with")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    os.environ.pop(VARIABLE, None)
    start = time.perf_counter()
    if options.command == "digests":
        lines = [f"{digest} {name}\n" for name, digest in digests().items()]
        DIGESTS.write_text("".join(lines))
        print(f"{len(lines)} digests in {DIGESTS}")
        return 0
    before = None
    if options.command == "compare":
        before = options.before or recorded_revision(options.against, options.pattern, options.workers)
    after = recorded(options.to.resolve(), options.pattern, options.workers)
    print(f"recorded in {time.perf_counter() - start:.0f} s: {after}")
    return 0 if before is None else shown(before, after, options.pattern)


def shown(before: Path, after: Path, pattern: str) -> int:
    """Print what differs between two records and return the exit status."""
    comparisons = compared(before, after, pattern)
    for one in comparisons:
        for word, names in (("differs", one.differing), ("added", one.added), ("removed", one.removed)):
            print("".join(f"{word}: {name}\n" for name in names[:_NAMED]), end="")
        if one.differing:
            lines = difference(before, after, one.differing[0]).split("\n")
            print("\n".join(line[:_COLUMNS] for line in lines[:_LINES]))
    print("\n".join(map(str, comparisons)))
    return int(any(one.differing or one.added or one.removed for one in comparisons))


if __name__ == "__main__":
    one_thread_each()
    sys.exit(main())

"""Gains that strategy "fastest" predicts over the corpus, and search times: python -m tests.benchmarks.fastest.

Prints Markdown for docs/fastest.md. Times of plans are predictions for the H200; search times are processor time.
"""

import argparse
import time
from collections.abc import Callable
from math import exp, log

import fuser_lab as fl
from tests.benchmarks.optimal import irregular, transformer

LEAST = 0.001  # the smallest relative gain that counts


def searched(make: Callable[[], fl.Plan]) -> tuple[fl.Plan, float]:
    """Return a plan, and the processor seconds that planning took."""
    begin = time.process_time()
    plan = make()
    return plan, time.process_time() - begin


def over_corpus(pattern: str) -> None:
    """Print the gains over entries of the corpus."""
    rows = []
    for entry in fl.corpus(pattern):
        fd, inputs = entry.load()
        before = fl.segment(fd, inputs)
        seconds = before.time_bound().seconds
        kept, _ = searched(lambda: fl.segment(fd, inputs, strategy="fastest", schedulers=fl.SCHEDULERS))  # noqa: B023
        opened, spent = searched(lambda: fl.segment(fd, inputs, strategy="fastest"))  # noqa: B023
        rows.append((entry.name, before, opened, seconds / kept.time_bound().seconds,
                     seconds / opened.time_bound().seconds, spent))
    for name, place in (("nvFuser's rules", 3), ("open schedulers", 4)):
        gains = [row[place] for row in rows]
        mean = exp(sum(map(log, gains)) / len(gains))
        faster, slower = sum(g > 1 + LEAST for g in gains), sum(g < 1 - LEAST for g in gains)
        print(f"{name}: geometric mean {mean:.3f}, {faster} of {len(gains)} faster, {slower} slower")
    print(f"longest search {max(row[5] for row in rows):.1f} s")
    print("\n| fusion | segments | predicted before | fastest | ratio |\n|---|---|---|---|---|")
    for name, before, opened, _, gain, _ in sorted(rows, key=lambda row: -row[4])[:12]:
        times = " | ".join(f"{1e6 * plan.time_bound().seconds:.1f} µs" for plan in (before, opened))
        print(f"| `{name}` | {len(before.segments)} to {len(opened.segments)} | {times} | {gain:.2f} |")


def over_sizes() -> None:
    """Print the time of the search by size."""
    print("\n| fusion | ops | search | bottom-up | fastest | bound |\n|---|---|---|---|---|---|")
    cases = [(f"{n} decoder layers", transformer(n)) for n in (1, 4, 14)]
    cases += [(f"irregular, seed {seed}", irregular(seed, ops)) for seed, ops in ((1, 25), (1, 100), (2, 100))]
    for name, fd in cases:
        before = fl.segment(fd)
        plan, spent = searched(lambda: fl.segment(fd, strategy="fastest"))  # noqa: B023
        found = plan.time_bound()
        times = " | ".join(f"{1e6 * s:,.0f} µs" for s in (before.time_bound().seconds, found.seconds, found.bound))
        print(f"| {name} | {len(before.fusion.tensor_exprs)} | {spent:.1f} s | {times} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", default="*/*/0")
    over_corpus(parser.parse_args().corpus)
    over_sizes()

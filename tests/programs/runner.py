"""Random programs against torch in float64, in as many processes as there are cores.

``--count N`` random programs, and ``--rows N`` norm-like ones over rows of 1 to 130 elements, both from number
``--first``, are computed by the reference and by plans of every strategy, before and after random edits, whose kernels
run in lock step; one in ``--compile-every`` is compiled as well. ``--seed S --index I`` repeats one (``--row``: one
over rows). Failures are named as they are found; the first of each kind are shrunk and printed as Python at the end,
and the exit status is then 1. An interrupted run reports how far it got.
"""

import argparse
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tests.processes import chunks, results
from tests.programs.check import Way, check
from tests.programs.generator import ROWS, program_of, row_program
from tests.programs.program import Program
from tests.programs.shrink import kind_of, shrink

STRATEGIES = (*["bottom_up"] * 4, "top_down", "top_down", "saving", "optimal", "fastest", "fastest", "unfused")
CHUNK = 20
MOST_COMPILED_CALLS = 10  # a kernel takes a third of a second to compile
SHRUNK, LISTED, REFUSALS = 8, 60, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A failure: its program, a summary, and the traceback."""

    kind: str
    family: str
    index: int
    text: str


@dataclass(slots=True)
class Tally:
    """The counts and failures of a run so far."""

    done: Counter[str] = field(default_factory=Counter)
    ops: Counter[str] = field(default_factory=Counter)
    strategies: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Add another tally."""
        self.done += other.done
        self.ops += other.ops
        self.strategies += other.strategies
        self.refused += other.refused
        self.findings += other.findings


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def way_of(index: int, compile_every: int) -> Way:
    """Return how the program of a number is run."""
    return Way(
        strategy=STRATEGIES[index % len(STRATEGIES)],
        target=("cpu", "cuda")[index // len(STRATEGIES) % 2],
        edits=index if index % 3 == 0 else None,
        compiled=bool(compile_every) and index % compile_every == 0,
    )


def made(family: str, seed: int, index: int, way: Way, refused: Counter[str]) -> Program:
    """Return the program of a number."""
    if family == "rows":
        return row_program(seed, index, refused)
    return program_of(seed, index, refused, most_calls=MOST_COMPILED_CALLS if way.compiled else 24)


def failure_of(program: Program, way: Way, tally: Tally | None = None) -> Exception | None:
    """Return the failure of a program, or None; a warning is a failure too."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            plans, edited = check(program, way)
    except Exception as error:  # noqa: BLE001 - whatever is raised is the finding
        return error
    if tally is not None:
        tally.done.update({"plans": plans, "edited": edited})
    return None


def run_chunk(family: str, seed: int, indices: range, compile_every: int) -> Tally:
    """Check some programs."""
    torch.set_num_threads(1)
    tally = Tally()
    for index in indices:
        tally.done[family] += 1
        way = way_of(index, compile_every)
        try:
            program = made(family, seed, index, way, tally.refused)
        except Exception as error:  # noqa: BLE001 - whatever is raised is the finding
            text = f"while it was made, {type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}"
            tally.findings.append(Finding(kind="made", family=family, index=index, text=text))
            continue
        tally.ops.update(call.op for call in program.calls)
        tally.strategies[way.strategy] += 1
        tally.done["compiled"] += way.compiled
        error = failure_of(program, way, tally)
        if error is not None:
            text = f"{type(error).__name__}: {error}"
            tally.findings.append(Finding(kind=kind_of(error), family=family, index=index, text=text))
    return tally


def shrunk(family: str, seed: int, index: int, compile_every: int) -> str:
    """Return one failure, shrunk, as text."""
    torch.set_num_threads(1)
    way = way_of(index, compile_every)
    small = shrink(made(family, seed, index, way, Counter()), lambda p: failure_of(p, way))
    error = failure_of(small, way)
    return f"# {family} {index}: {way}\n# {type(error).__name__}: {error}\n{small}\n"


def run(arguments: argparse.Namespace) -> int:
    """Check the requested programs in worker processes; return the exit status."""
    start = time.perf_counter()
    total = Tally()
    calls = [
        (family, arguments.seed, some, arguments.compile_every)
        for family, count in (("programs", arguments.count), ("rows", arguments.rows))
        for some in chunks(arguments.first, count, CHUNK)
    ]
    for number, some in enumerate(results(run_chunk, calls, arguments.workers), 1):
        listed = LISTED - len(total.findings)
        total.add(some)
        for finding in some.findings[:max(listed, 0)]:
            row = " --row" if finding.family == "rows" else ""
            line = f"python -m tests.programs --seed {arguments.seed} --index {finding.index}{row}"
            say(f"--- {line}: {finding.text[:300]}")
        if number % 25 == 0 or number == len(calls):
            say(_progress(total, time.perf_counter() - start))
    left = arguments.count + arguments.rows - total.done["programs"] - total.done["rows"]
    say(_listed("ops", total.ops.most_common()))
    say(_listed("refused as definitions", total.refused.most_common(REFUSALS), apart="\n  "))
    if left:
        say(f"interrupted: {left} programs are not checked")
    else:
        first = {f.kind: f for f in sorted(total.findings, key=lambda f: -f.index) if f.kind != "made"}
        chosen = sorted(first.values(), key=lambda f: f.index)[:SHRUNK]
        small = [(f.family, arguments.seed, f.index, arguments.compile_every) for f in chosen]
        for text in results(shrunk, small, arguments.workers):
            say(text)
    return _last_lines(total, time.perf_counter() - start) or int(left > 0)


def _progress(total: Tally, seconds: float) -> str:
    count = total.done["programs"] + total.done["rows"]
    return f"{count:6d} programs, {len(total.findings)} failures, {count / seconds:.0f}/s"


def _listed(title: str, counts: Sequence[tuple[str, int]], apart: str = ", ") -> str:
    return f"{title}: {apart}{apart.join(f'{name} {count}' for name, count in counts)}".replace(": , ", ": ")


def _last_lines(total: Tally, seconds: float) -> int:
    done, count = total.done, len(total.findings)
    say(_listed("strategies", total.strategies.most_common()))
    say(
        f"{done['programs']} random programs and {done['rows']} over short rows, {done['plans']} plans "
        f"({done['edited']} of these edited, {done['compiled']} programs compiled) in {seconds:.0f} s: "
        f"{count or 'no'} failures"
    )
    return 1 if count else 0


def one(arguments: argparse.Namespace) -> int:
    """Check one program again and print it, shrunk if it fails."""
    family, way = "rows" if arguments.row else "programs", way_of(arguments.index, arguments.compile_every)
    program = made(family, arguments.seed, arguments.index, way, Counter())
    say(f"# {way}\n{program}")
    error = failure_of(program, way)
    if error is None:
        say("no failure")
        return 0
    say("".join(traceback.format_exception(error)))
    say(shrunk(family, arguments.seed, arguments.index, arguments.compile_every))
    return 1


def main() -> int:
    """Read arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="how many random programs (2000)")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"how many norm-like ones over short rows ({ROWS})")
    parser.add_argument("--first", type=int, default=0, help="the number of the first of either (0)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--index", type=int, help="only this one")
    parser.add_argument("--row", action="store_true", help="with --index: one over short rows")
    parser.add_argument("--compile-every", type=int, default=100, help="compile one in this many (100; 0: none)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    return run(arguments) if arguments.index is None else one(arguments)

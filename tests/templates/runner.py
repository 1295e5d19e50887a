"""Templates of real programs with random mutations, computed in every way, in as many processes as there are cores.

``--count N`` cases, from number ``--first``, are computed by plans of two strategies each, before and after random
edits, whose kernels run in lock step; one case in ``--compile-every`` is compiled as well, and executed at other sizes.
``--seed S --index I`` repeats one. Failures are named as they occur; the first of each kind are shrunk and printed at
the end, and the exit status is then 1.
"""

import argparse
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field

from numpy.exceptions import ComplexWarning

from tests.fuzz.shrink import kind_of
from tests.processes import chunks, results
from tests.templates.case import Case, case_of, recorded
from tests.templates.check import Way, check

STRATEGIES = ("bottom_up", "fastest", "top_down", "saving", "optimal", "unfused")
TARGETS = ("cpu", "cuda")
CHUNK = 20
SHRUNK, LISTED = 6, 60
MOST_TRIES = 60  # smaller cases that are tried for a failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A failure: the number of its case, its kind, and its text."""

    index: int
    kind: str
    text: str


@dataclass(slots=True)
class Tally:
    """The counts and failures of a run so far."""

    done: int = 0
    plans: int = 0
    templates: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)


def way_of(index: int, compile_every: int) -> Way:
    """Return the way to compute the case of a number."""
    first = index % len(STRATEGIES)
    return Way(
        strategies=(STRATEGIES[first], STRATEGIES[(first + 1 + index // 7 % 5) % len(STRATEGIES)]),
        targets=(TARGETS[index // len(STRATEGIES) % 2],), edits=True,
        compiled=bool(compile_every) and index % compile_every == 0,
    )


def failure_of(case: Case, way: Way, tally: Tally | None = None) -> Exception | None:
    """Return the failure of a case, or None; a warning is a failure too."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ComplexWarning)
            plans = check(case, way)
    except Exception as error:  # noqa: BLE001 - whatever is raised is the finding
        return error
    if tally is not None:
        tally.plans += plans
    return None


def run_chunk(seed: int, indices: range, compile_every: int) -> Tally:
    """Check some cases."""
    tally = Tally()
    for index in indices:
        case, way = case_of(seed, index), way_of(index, compile_every)
        tally.done += 1
        tally.templates[case.template] += 1
        error = failure_of(case, way, tally)
        if error is not None:
            text = f"{case.template}: {type(error).__name__}: {error}"
            tally.findings.append(Finding(index=index, kind=kind_of(error), text=text))
    return tally


def shrunk(seed: int, index: int, compile_every: int) -> str:
    """Return the text of a failure and its case, with as few mutations and elements as fail in the same way."""
    case, way = case_of(seed, index), way_of(index, compile_every)
    error = failure_of(case, way)
    kind, tries = kind_of(error) if error else "", 0
    smaller = case.smaller()
    while (candidate := next(smaller, None)) is not None and tries < MOST_TRIES:
        tries += 1
        other = failure_of(candidate, way)
        if other is not None and kind_of(other) == kind:
            case, error, smaller = candidate, other, candidate.smaller()
    lines = [f"# {way}", f"# {case}", f"# {type(error).__name__}: {error}", repr(recorded(case).fd)]
    lines += [f"# {x.name} = {x.array().shape} {x.dtype!r}, strides {x.array().strides}" for x in recorded(case).inputs]
    return "\n".join(lines)


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run(arguments: argparse.Namespace) -> int:
    """Check ``arguments.count`` cases in worker processes; return the exit status."""
    start, total = time.perf_counter(), Tally()
    work = chunks(arguments.first, arguments.count, CHUNK)
    calls = [(arguments.seed, some, arguments.compile_every) for some in work]
    for number, some in enumerate(results(run_chunk, calls, arguments.workers), 1):
        for finding in some.findings[: max(LISTED - len(total.findings), 0)]:
            name = f"python -m tests.templates --seed {arguments.seed} --index {finding.index}"
            say(f"--- {name}: {' '.join(finding.text.split())[:240]}")
        total.done, total.plans = total.done + some.done, total.plans + some.plans
        total.templates += some.templates
        total.findings += some.findings
        if number % 10 == 0 or number == len(work):
            rate = total.done / (time.perf_counter() - start)
            say(f"{total.done:6d} cases, {total.plans} plans, {len(total.findings)} failures, {rate:.1f}/s")
    first = {f.kind: f.index for f in sorted(total.findings, key=lambda f: -f.index)}
    for index in sorted(first.values())[:SHRUNK]:
        say(shrunk(arguments.seed, index, arguments.compile_every))
    count = len(total.findings)
    say(
        f"{total.done} cases of {len(total.templates)} templates, {total.plans} plans: {count or 'no'} failures of "
        f"{len(first)} kinds",
    )
    return 1 if count or total.done < arguments.count else 0


def one(arguments: argparse.Namespace) -> int:
    """Check one case again, and print it, shrunk if it fails."""
    case, way = case_of(arguments.seed, arguments.index), way_of(arguments.index, arguments.compile_every)
    say(f"# {way}\n# {case}\n{recorded(case).fd!r}")
    error = failure_of(case, way)
    if error is None:
        say("no failure")
        return 0
    say("".join(traceback.format_exception(error)))
    say(shrunk(arguments.seed, arguments.index, arguments.compile_every))
    return 1


def main() -> int:
    """Read arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.templates", description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="how many cases (2000)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case (0)")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--index", type=int, help="check only this one")
    parser.add_argument("--compile-every", type=int, default=16, help="compile one in this many (16; 0: none)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    return run(arguments) if arguments.index is None else one(arguments)

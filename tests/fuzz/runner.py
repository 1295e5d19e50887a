"""Random definitions, computed in every way and compared, in one process per core.

``--count N`` definitions are interpreted, starting at number ``--first``; one in ``--compile-every`` is also compiled.
``--seed S --index I`` repeats one. Failures are named as they are found; the first of each kind are shrunk and
printed as Python at the end, and the exit status is then 1. An interrupted run reports how far it got.
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

from tests.fuzz.analysis import DRAWN, Analysis
from tests.fuzz.check import Way, check
from tests.fuzz.choices import Seeded
from tests.fuzz.generator import ENTRIES, Generator
from tests.fuzz.program import Program
from tests.fuzz.shrink import kind_of, shrink
from tests.processes import chunks, results

# Single ops take the most kernels and find the fewest defects.
STRATEGIES = (*["bottom_up"] * 7, *["top_down"] * 2, "unfused")
TARGETS = (("cpu",), ("cuda",), ("cpu",), ("cuda",), ("cpu", "cuda"))
CHUNK = 50
MOST_STEPS, MOST_COMPILED_STEPS = 60, 14  # a kernel takes a third of a second to compile
SHRUNK, LISTED = 6, 60
COVERED_FROM = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A failure: its program, a summary, and the traceback."""

    index: int
    kind: str
    text: str
    trace: str


@dataclass(slots=True)
class Tally:
    """The counts and failures of a run so far."""

    ops: Counter[str] = field(default_factory=Counter)
    done: int = 0
    calls: int = 0
    compiled: int = 0
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Add another tally."""
        self.ops += other.ops
        self.done += other.done
        self.calls += other.calls
        self.compiled += other.compiled
        self.findings += other.findings


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def way_of(index: int, compile_every: int) -> Way:
    """The checks for the program of an index."""
    compiled = bool(compile_every) and index % compile_every == 0
    return Way(
        strategy=STRATEGIES[index // len(TARGETS) % len(STRATEGIES)], targets=TARGETS[index % len(TARGETS)],
        compiled=compiled,
    )


def made(seed: int, index: int, *, compiled: bool) -> tuple[Program, Analysis]:
    """The program of an index."""
    generator = Generator(Seeded(seed, index))
    return generator.program(MOST_COMPILED_STEPS if compiled else MOST_STEPS), generator.analysis


def failure_of(program: Program, way: Way, analysis: Analysis | None = None) -> Exception | None:
    """The failure of a program, or None; a warning is a failure too."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ComplexWarning)
            check(program, way, analysis)
    except Exception as error:  # noqa: BLE001 - whatever is raised is the finding
        return error
    return None


def run_chunk(seed: int, indices: range, compile_every: int) -> Tally:
    """Check some programs."""
    warnings.simplefilter("ignore", ComplexWarning)
    tally = Tally()
    for index in indices:
        tally.done += 1
        way = way_of(index, compile_every)
        try:
            program, analysis = made(seed, index, compiled=way.compiled)
        except Exception as error:  # noqa: BLE001 - whatever is raised is the finding
            text = f"while it was made, {type(error).__name__}: {error}"
            tally.findings.append(Finding(index=index, kind="", text=text, trace=traceback.format_exc(limit=-3)))
            continue
        tally.ops.update(program.ops())
        tally.calls += len(program.steps)
        tally.compiled += way.compiled
        error = failure_of(program, way, analysis)
        if error is not None:
            trace = "".join(traceback.format_exception(error))
            text = f"{type(error).__name__}: {error}"
            tally.findings.append(Finding(index=index, kind=kind_of(error), text=text, trace=trace))
    return tally


def shrunk(seed: int, index: int, compile_every: int) -> str:
    """One failure, shrunk, as text."""
    way = way_of(index, compile_every)
    program, _ = made(seed, index, compiled=way.compiled)
    small = shrink(program, lambda p: failure_of(p, way))
    error = failure_of(small, way)
    return f"# {way}\n# {type(error).__name__}: {error}\n{small}\n"


def coverage(ops: Counter[str]) -> str:
    """The number of occurrences of each op of the registry, most frequent first."""
    counts = sorted(((ops[name], name) for name in ENTRIES), reverse=True)
    cells = [f"{name:>22} {count:6d}" for count, name in counts]
    rows = -(-len(cells) // 4)
    return "\n".join("  ".join(cells[row::rows]) for row in range(rows))


def run(arguments: argparse.Namespace) -> int:
    """Check ``arguments.count`` programs in worker processes; returns the exit status."""
    start = time.perf_counter()
    total = Tally()
    work = chunks(arguments.first, arguments.count, CHUNK)
    calls = [(arguments.seed, some, arguments.compile_every) for some in work]
    for number, some in enumerate(results(run_chunk, calls, arguments.workers), 1):
        listed = LISTED - len(total.findings)
        total.add(some)
        _list(some.findings[:max(listed, 0)], arguments)
        if number % 10 == 0 or number == len(work):
            _progress(total, time.perf_counter() - start)
    count, missing = len(total.findings), []
    if total.done < arguments.count:
        _progress(total, time.perf_counter() - start)
        say(f"interrupted: {arguments.count - total.done} definitions are not checked")
    else:
        say(coverage(total.ops))
        if arguments.count >= COVERED_FROM:
            missing = [n for n, e in ENTRIES.items() if e.samples and n not in DRAWN and not total.ops[n]]
        if missing:
            say(f"ops that never occurred: {', '.join(missing)}")
        first = {f.kind: f.index for f in sorted(total.findings, key=lambda f: -f.index) if f.kind}
        calls = [(arguments.seed, index, arguments.compile_every) for index in sorted(first.values())[:SHRUNK]]
        for small in results(shrunk, calls, arguments.workers):
            say(small)
    say(f"{total.done} definitions in {time.perf_counter() - start:.0f} s: {count or 'no'} failures")
    return 1 if count or missing or total.done < arguments.count else 0


def _progress(total: Tally, seconds: float) -> None:
    families = Counter[str]()
    for name, count in total.ops.items():
        kind = getattr(ENTRIES[name], "kind", None)
        families[kind.value if kind is not None else "composite"] += count
    shown = ", ".join(f"{name} {count}" for name, count in families.most_common())
    say(
        f"{total.done:6d} definitions, {total.compiled} compiled, {len(total.findings)} failures, "
        f"{total.done / seconds:.0f}/s; {total.calls} calls: {shown}",
    )


def _list(findings: list[Finding], arguments: argparse.Namespace) -> None:
    for finding in findings:
        line = f"python -m tests.fuzz --seed {arguments.seed} --index {finding.index}"
        say(f"--- {line}: {' '.join(finding.text.split())[:200]}")
        if not finding.kind:
            say(finding.trace)


def one(arguments: argparse.Namespace) -> int:
    """Check one program again and print it, shrunk if it fails."""
    way = way_of(arguments.index, arguments.compile_every)
    warnings.simplefilter("ignore", ComplexWarning)
    program, analysis = made(arguments.seed, arguments.index, compiled=way.compiled)
    say(f"# {way}\n{program}")
    error = failure_of(program, way, analysis)
    if error is None:
        say("no failure")
        return 0
    say("".join(traceback.format_exception(error)))
    say(shrunk(arguments.seed, arguments.index, arguments.compile_every))
    return 1


def main() -> int:
    """Read arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="how many definitions (2000)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first definition (0)")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--index", type=int, help="check only this one")
    parser.add_argument("--compile-every", type=int, default=64, help="compile one in this many (64; 0: none)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    return run(arguments) if arguments.index is None else one(arguments)

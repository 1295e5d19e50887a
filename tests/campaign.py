"""Numbered random cases of a generator, checked in one process per core; failures are repeated and shrunk.

`Campaign` says how a case is drawn, checked, made smaller and printed; the command line is the same for all generators.
A long run can be split by the number of its first case, and an interrupted one prints how far it got.
"""

import argparse
import os
import re
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from numpy.exceptions import ComplexWarning

from tests.processes import chunks, results

SHRUNK, LISTED = 6, 60  # failures that are printed with their cases, and by number
MOST_TRIES = 400  # smaller cases that are tried for a failure
OFTEN = 10.0  # seconds between lines of progress

Counts = Counter[tuple[str, str]]
"""Counts by a group and a name: the ops that occurred, strategies, plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A failure: the number of its case, its kind, a line, and the traceback."""

    number: int
    kind: str
    text: str
    trace: str


@dataclass(slots=True)
class Tally:
    """The cases and failures of a run so far."""

    done: int = 0
    counts: Counts = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Add another tally."""
        self.done += other.done
        self.counts += other.counts
        self.findings += other.findings


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The number of a case, whether its kernels are compiled, and what it counts."""

    number: int
    seed: int = 0
    compiled: bool = False
    counts: Counts = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """The random cases of a generator; ``module`` is where this object is called CAMPAIGN.

    ``draw`` returns the case of a trial, and ``check`` raises its failure; both may count what they did. ``smaller``
    yields simpler cases, the simplest first. Each of the counts ``occurring`` must occur in ``occurring_from`` cases.
    """

    module: str
    noun: str
    draw: Callable[[Trial], Any]
    check: Callable[[Any, Trial], None]
    smaller: Callable[[Any], Iterator[Any]] = lambda _: iter(())
    text: Callable[[Any], str] = str
    compile_every: int = 0
    chunk: int = 20
    tries: int = MOST_TRIES
    occurring: Callable[[], Collection[tuple[str, str]]] = tuple
    occurring_from: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the object's place: worker processes import it."""
        return _campaign, (self.module,)

    def trial(self, seed: int, number: int, compile_every: int, counts: Counts | None = None) -> Trial:
        """Return the trial of a number."""
        compiled = bool(compile_every) and number % compile_every == 0
        return Trial(number=number, seed=seed, compiled=compiled, counts=Counter() if counts is None else counts)

    def drawn(self, trial: Trial) -> tuple[Any, Exception | None]:
        """Return the case of a trial, or the failure to draw it."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self.draw(trial), None
        except Exception as error:  # noqa: BLE001 - whatever is raised is the finding
            return None, error

    def failure(self, case: Any, trial: Trial | None = None) -> Exception | None:
        """Return the failure of a case, or None."""
        return failure_of(self.check, case, trial or Trial(number=0))

    def run(self, seed: int, numbers: range, compile_every: int = 0) -> Tally:
        """Check the cases of some numbers."""
        tally = Tally()
        for number in numbers:
            trial = self.trial(seed, number, compile_every, tally.counts)
            case, error = self.drawn(trial)
            tally.done += 1
            tally.counts["compiled", self.noun] += trial.compiled
            error = error or self.failure(case, trial)
            if error is not None:
                trace = "".join(traceback.format_exception(error))
                text = f"{type(error).__name__}: {error}"
                tally.findings.append(Finding(number=number, kind=kind_of(error), text=text, trace=trace))
        return tally

    def shrunk(self, seed: int, number: int, compile_every: int = 0) -> str:
        """Return the failure of a number and its case, shrunk, as text."""
        trial = self.trial(seed, number, compile_every)
        case, error = self.drawn(trial)
        if error is not None:
            return "".join(traceback.format_exception(error))
        small = shrink(case, self.smaller, lambda other: self.failure(other, trial), self.tries)
        error = self.failure(small, trial)
        return f"# {number}: {type(error).__name__}: {error}\n{self.text(small)}\n"

    def main(self) -> int:
        """Read the arguments of the command line and run; return the exit status."""
        parser = argparse.ArgumentParser(prog=f"python -m {self.command}")
        parser.add_argument("--count", type=int, default=2000, help=f"how many {self.noun} (2000)")
        parser.add_argument("--first", type=int, default=0, help="the number of the first (0)")
        parser.add_argument("--seed", type=int, default=17)
        parser.add_argument("--index", type=int, help="check only this number, and print its case")
        parser.add_argument("--compile-every", type=int, default=self.compile_every, help="compile one in this many")
        parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
        arguments = parser.parse_args()
        if arguments.index is not None:
            return self._repeat(arguments.seed, arguments.index, arguments.compile_every)
        return self._run_in_processes(arguments)

    @property
    def command(self) -> str:
        """The name after ``python -m``."""
        return self.module.removesuffix(".runner")

    def _run_in_processes(self, arguments: argparse.Namespace) -> int:
        start, total, told = time.perf_counter(), Tally(), 0.0
        seed, every, count = arguments.seed, arguments.compile_every, arguments.count
        calls = [(seed, numbers, every) for numbers in chunks(arguments.first, count, self.chunk)]
        for tally in results(self.run, calls, arguments.workers):
            for finding in tally.findings[: max(LISTED - len(total.findings), 0)]:
                name = f"python -m {self.command} --seed {seed} --index {finding.number}"
                say(f"--- {name}: {' '.join(finding.text.split())[:240]}")
            total.add(tally)
            seconds = time.perf_counter() - start
            if seconds - told > OFTEN:
                told = seconds
                say(f"{total.done:7d} {self.noun}, {len(total.findings)} failures, {total.done / seconds:.1f}/s")
        say(listed(total.counts))
        first = {f.kind: f.number for f in sorted(total.findings, key=lambda f: -f.number)}
        absent = []
        if total.done < count:
            say(f"interrupted: {count - total.done} {self.noun} are not checked")
        else:
            shrunk = [(seed, number, every) for number in sorted(first.values())[:SHRUNK]]
            for text in results(self.shrunk, shrunk, arguments.workers) if shrunk else ():
                say(text)
            absent = [name for name in self.occurring() if not total.counts[name] and count >= self.occurring_from]
        if absent:
            say(f"never occurred: {', '.join(name for _, name in absent)}")
        seconds, failures = time.perf_counter() - start, len(total.findings)
        kinds = f", of {len(first)} kinds" if failures else ""
        say(f"{total.done} {self.noun} in {seconds:.0f} s: {failures or 'no'} failures{kinds}")
        return int(bool(failures or absent) or total.done < count)

    def _repeat(self, seed: int, number: int, compile_every: int) -> int:
        trial = self.trial(seed, number, compile_every)
        case, error = self.drawn(trial)
        if error is None:
            say(self.text(case))
            error = self.failure(case, trial)
        if error is None:
            say("no failure")
            return 0
        say("".join(traceback.format_exception(error)))
        say(self.shrunk(seed, number, compile_every))
        return 1


def _campaign(module: str) -> Campaign:
    campaign: Campaign = import_module(module).CAMPAIGN
    return campaign


def failure_of(check: Callable[..., Any], *arguments: Any) -> Exception | None:
    """Return what a check raises, or None; a warning is raised too."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ComplexWarning)
            check(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever is raised is the finding
        return error
    return None


def shrink(
    case: Any, smaller: Callable[[Any], Iterator[Any]], failure: Callable[[Any], Exception | None],
    tries: int = MOST_TRIES,
) -> Any:
    """Return a case that fails in the same way, and is as small as ``smaller`` makes it within the tries."""
    error = failure(case)
    if error is None:
        return case
    kind, candidates = kind_of(error), smaller(case)
    for _ in range(tries):
        candidate = next(candidates, None)
        if candidate is None:
            break
        error = failure(candidate)
        if error is not None and kind_of(error) == kind:
            case, candidates = candidate, smaller(candidate)
    return case


def kind_of(error: Exception) -> str:
    """Return the kind of a failure: its class and what was compared or refused, without names and numbers."""
    text = re.sub(r"\b[A-Za-z]?\d[\w.+-]*", "", str(error).split(": ", 1)[0])
    return f"{type(error).__name__} {text[:60]}"


def listed(counts: Counts) -> str:
    """Return a line per group of counts, the largest first."""
    groups: dict[str, list[str]] = {}
    for (group, name), count in counts.most_common():
        if count:
            groups.setdefault(group, []).append(f"{name} {count}")
    return "\n".join(f"{group}: {', '.join(names)}" for group, names in sorted(groups.items()))


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()

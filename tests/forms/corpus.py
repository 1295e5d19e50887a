"""The corpus of forms: read, written, run, grown by what takes new branches, and reduced to what is needed."""

import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from numpy.exceptions import ComplexWarning

from fuser_lab.errors import FuserLabError
from tests.campaign import kind_of
from tests.forms.check import Refused, made, verify
from tests.forms.draw import changed, drawn, with_actions
from tests.forms.form import Form, form_of
from tests.forms.trace import Arc, Tracer

CORPUS = Path(__file__).with_name("corpus.jsonl")
MOST_SECONDS = 4  # of processor time of one form while the corpus grows
MOST_VERIFIED_SECONDS = 40  # with its compilation
_MOST_BY_HAND = 2000  # elements of inputs of a form that is scheduled by hand, perhaps in serial loops
_MOST_FAILURES = 3  # of forms with a branch, after which the branch counts as known
_FRESH, _BY_HAND = 0.2, 0.12  # shares of forms that are drawn again, and scheduled by hand


class TooLong(Exception):  # noqa: N818 - an outcome
    """A form that takes more than its time."""


@dataclass(slots=True, eq=False)
class Result:
    """What one form did: its arcs, by evaluated kernels or while it was refused, and its failure."""

    form: Form
    number: int = -1
    arcs: frozenset[Arc] = frozenset()
    schedulers: tuple[str, ...] = ()
    refused: bool = False
    failure: str = ""
    kind: str = ""
    trace: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class Covered:
    """The arcs of some results: by kernels that were compiled and evaluated, and by refusals."""

    evaluated: set[Arc] = field(default_factory=set)
    refused: set[Arc] = field(default_factory=set)

    def add(self, result: Result) -> None:
        """Add a result."""
        (self.refused if result.refused else self.evaluated).update(result.arcs)

    def lacks(self, arcs: frozenset[Arc] | set[Arc], *, refused: bool) -> bool:
        """Whether a form, which may be refused, takes branches that none before took."""
        return not arcs <= (self.evaluated | self.refused if refused else self.evaluated)


def read(path: Path = CORPUS) -> list[Form]:
    """Return the forms of a file."""
    return [form_of(line) for line in path.read_text().splitlines()] if path.exists() else []


def write(forms: Iterable[Form], path: Path = CORPUS) -> None:
    """Write forms to a file."""
    path.write_text("".join(f"{form.text()}\n" for form in forms))


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TooLong in a block that takes more processor time."""

    def end(number: int, frame: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def result_of(
    form: Form, tracer: Tracer, covered: Covered | None = None, *, is_verified: bool = True,
) -> Result | None:
    """Return what a form does; None if the program is illegal or takes no branch that is not covered.

    A form that is not verified is only generated, which is much faster.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ComplexWarning)  # for casts that drop imaginary parts
        return _result_of(form, tracer, covered, is_verified=is_verified)


def _result_of(form: Form, tracer: Tracer, covered: Covered | None, *, is_verified: bool) -> Result | None:
    start = time.process_time()
    result, found = Result(form=form), None
    try:
        found = made(form, tracer)
        if covered is not None and not covered.lacks(found.arcs, refused=bool(found.refusal)):
            return None
        result.refused = bool(found.refusal)
        result.form = replace(form, refusal=found.refusal.partition(":")[0])
        if not found.refusal and is_verified:
            verify(found, tracer)
        result.arcs = frozenset(found.arcs)
        if found.plan is not None:
            result.schedulers = tuple(part.scheduler.value for part in found.plan.segments if part.scheduler)
    except Refused:
        return None
    except TooLong:
        raise
    except Exception as error:  # noqa: BLE001 - whatever is raised is the finding
        result.arcs = frozenset(found.arcs if found is not None else ())
        result.failure = f"{type(error).__name__}: {error}"
        result.kind = kind_of(error)
        result.trace = "".join(traceback.format_exception(error)[-6:])
    result.seconds = time.process_time() - start
    return result


def numbered(path: Path, numbers: Sequence[int], is_verified: bool) -> list[Result]:
    """Return what some forms of a file do; that a form is illegal or takes too long is a failure."""
    forms, tracer, found = read(path), Tracer(), list[Result]()
    for number in numbers:
        try:
            with limited(MOST_VERIFIED_SECONDS):
                result = result_of(forms[number], tracer, is_verified=is_verified)
        except TooLong:
            result = Result(form=forms[number], failure=f"it takes more than {MOST_VERIFIED_SECONDS} s", kind="time")
        result = result or Result(form=forms[number], failure="it is not a legal program", kind="program")
        if not result.failure and result.form.refusal != forms[number].refusal:
            expected, got = (form.refusal or "kernels" for form in (forms[number], result.form))
            result.failure = f"expected {expected}, got {got}"
        result.number = number
        found.append(result)
    return found


def endless(known: Sequence[Form], seed: int, seconds: float) -> Iterator[Form]:
    """Yield drawn forms, and changes of forms of a list that may grow meanwhile, for some time."""
    rng, end = Random(f"forms {seed}"), time.monotonic() + seconds
    while time.monotonic() < end:
        yield _next(known, rng)


def grown(
    candidates: Iterable[Form], covered: Covered, tracer: Tracer, failures: list[Result], *, is_verified: bool = False,
) -> Iterator[Form]:
    """Yield the forms among the candidates whose generation takes new branches, or their evaluation if that is asked.

    Failures are added to a list, the first of each kind.
    """
    kinds, failed = {one.kind for one in failures}, Counter[Arc]()
    for form in candidates:
        try:
            with limited(MOST_VERIFIED_SECONDS if is_verified else MOST_SECONDS):
                result = result_of(form, tracer, None if is_verified else covered, is_verified=is_verified)
        except TooLong:
            continue
        if result is None or (not result.failure and not covered.lacks(result.arcs, refused=result.refused)):
            continue
        if result.failure:
            # Branches that only fail are not tried in every other form.
            new = result.arcs - covered.evaluated
            failed.update(new)
            covered.evaluated.update(arc for arc in new if failed[arc] >= _MOST_FAILURES)
            if result.kind not in kinds:
                kinds.add(result.kind)
                failures.append(result)
            continue
        covered.add(result)
        yield result.form


def _next(known: Sequence[Form], rng: Random) -> Form:
    while True:
        try:
            if not known or rng.random() < _FRESH:
                return drawn(rng)
            form = rng.choice(known[-40:] if rng.random() < 0.3 else known)
            by_hand = rng.random() < _BY_HAND and form.elements <= _MOST_BY_HAND
            return with_actions(form, rng) if by_hand else changed(form, rng)
        except (FuserLabError, ValueError, KeyError, IndexError):
            continue  # a change that leaves no program


def minimal(results: Sequence[Result]) -> list[Result]:
    """Return results that together have all arcs: those with the most new arcs per second first."""
    chosen: list[Result] = []
    for group in ([one for one in results if not one.refused], [one for one in results if one.refused]):
        missing = set().union(*(one.arcs for one in group)) - set().union(*(one.arcs for one in chosen))
        rest = list(group)
        while missing and rest:
            best = max(rest, key=lambda one: len(one.arcs & missing) / (0.1 + one.seconds))
            rest.remove(best)
            new = best.arcs & missing
            if new:
                chosen.append(best)
                missing -= new
    return chosen

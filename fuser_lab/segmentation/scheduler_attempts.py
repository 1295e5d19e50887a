"""Questions to the schedulers, and the answers as attempts."""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from time import perf_counter

from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import Answer, reason
from fuser_lab.ir import Expr, Fusion
from fuser_lab.segmentation.events import Attempt, Kind, LaterRecords, Names, Outcome, VerdictRecord
from fuser_lab.segmentation.hints import refused_by_hint
from fuser_lab.segmentation.options import SegmenterOptions
from fuser_lab.segmentation.oracle import Candidate, SchedulerOracle, candidate, grow_candidate
from fuser_lab.segmentation.welford import PERSISTENT, keeps_rows, rewrite_answer, welfords, written_out


def decisive_code(answer: Answer) -> str:
    """Return the accepting scheduler's name, or the code of the first decisive refusal."""
    if answer.chosen is not None:
        return answer.chosen.value
    return next((verdict.code for verdict in answer.decisive), "")


def records(answer: Answer) -> tuple[VerdictRecord, ...]:
    """Return an answer's verdicts by name."""
    return tuple(
        VerdictRecord(
            scheduler=v.scheduler.value,
            accepted=v.accepted,
            code=v.code,
            text=v.text,
            params=v.reason.params if v.reason is not None else (),
            beyond=tuple(code.value for code in v.beyond),
        )
        for v in answer.verdicts
    )


def attempt_of(answer: Answer, phase: str, subjects: tuple[Names, ...], *, accepted: bool) -> Attempt:
    """Return an attempt to merge groups with the schedulers' answer."""
    return Attempt(
        phase=phase, kind=Kind.MERGE, subjects=subjects, outcome=Outcome.ACCEPTED if accepted else Outcome.REFUSED,
        code=decisive_code(answer), text=answer.text, verdicts=LaterRecords(partial(records, answer)),
    )


def refusal(phase: str, subjects: tuple[Names, ...], code: ReasonCode, **params: str | int) -> Attempt:
    """Return an attempt to merge groups that a rule of the segmenter refuses before the schedulers are asked."""
    return Attempt(
        phase=phase, kind=Kind.MERGE, subjects=subjects, outcome=Outcome.REFUSED, code=code.value,
        text=reason(code, **params).text,
    )


class Asker:
    """Applies the rule about hints, then asks the schedulers, and returns the result as an attempt."""

    def __init__(
        self,
        fusion: Fusion,
        oracle: SchedulerOracle,
        options: SegmenterOptions,
        recomputed: frozenset[str] = frozenset(),
    ) -> None:
        self._fusion = fusion
        self._oracle = oracle
        self._options = options
        self._recomputed = recomputed
        self._accepted: dict[frozenset[Expr], Candidate] = {}  # about large groups that are not part of a larger one

    def merge(
        self, phase: str, subjects: tuple[Names, ...], groups: Sequence[frozenset[Expr]],
    ) -> tuple[Attempt, Answer]:
        """Return the schedulers' answer about disjoint groups together, and the attempt to merge them."""
        start = perf_counter()
        largest = max(groups, key=len)
        part = self._accepted.get(largest)
        union = None
        if part is not None and part.may_begin(sum(map(len, groups))):
            others = chain.from_iterable(group for group in groups if group is not largest)
            union = grow_candidate(part, others, self._recomputed)
        if union is None:
            union = candidate(self._fusion, chain.from_iterable(groups), self._recomputed)
        attempt, answer = self._attempt_of(phase, Kind.MERGE, subjects, union, start)
        if attempt.accepted and union.may_begin(len(union.exprs)):
            for group in groups:
                self._accepted.pop(group, None)
            self._accepted[frozenset().union(*groups)] = union
        return attempt, answer

    def attempt(
        self, phase: str, kind: Kind, subjects: tuple[Names, ...], exprs: Iterable[Expr],
    ) -> tuple[Attempt, Answer]:
        """Return the schedulers' answer about expressions as one group, and the attempt that records it."""
        start = perf_counter()
        return self._attempt_of(phase, kind, subjects, candidate(self._fusion, exprs, self._recomputed), start)

    def _attempt_of(
        self, phase: str, kind: Kind, subjects: tuple[Names, ...], group: Candidate, start: float,
    ) -> tuple[Attempt, Answer]:
        answer = refused_by_hint(group, self._options) or self._oracle.ask(group)
        attempt = attempt_of(answer, phase, subjects, accepted=answer.chosen is not None)
        return replace(attempt, kind=kind, seconds=perf_counter() - start), answer

    def whole(self, phase: str, exprs: Sequence[Expr]) -> tuple[Attempt, Answer]:
        """Return the attempt to join single expressions, with the schedulers' answer."""
        return self.attempt(phase, Kind.MERGE, tuple((expr.name,) for expr in exprs), exprs)

    def rewrite(self, phase: str, exprs: Iterable[Expr]) -> Attempt:
        """Return whether Welfords among expressions become sums, as an attempt: where their rows stay on chip."""
        start = perf_counter()
        group = candidate(self._fusion, exprs, self._recomputed)
        welford_exprs = welfords(group.exprs, self._fusion)
        answer = rewrite_answer(group, self._oracle)
        outcome = Outcome.ACCEPTED if keeps_rows(answer) else Outcome.REFUSED
        names = tuple(expr.name for expr in group.exprs if expr.tensor_outputs)
        # The other schedulers do not keep rows on chip.
        about = Answer(tuple(v for v in answer.decisive if v.scheduler in PERSISTENT) or answer.decisive)
        is_complete = outcome is Outcome.ACCEPTED or answer.chosen is None
        text = about.text if is_complete else f"{about.text}, which does not keep rows within a block"
        return Attempt(
            phase=phase, kind=Kind.REWRITE, subjects=(names,), outcome=outcome, code=decisive_code(about),
            text=f"{', '.join(expr.name for expr in welford_exprs)} as sums: {text}",
            verdicts=LaterRecords(partial(records, answer)), seconds=perf_counter() - start,
        )

    def rewritten(
        self, phase: str, exprs: Sequence[Expr], answer: Answer,
    ) -> Generator[Attempt, None, tuple[Fusion, tuple[Expr, ...]]]:
        """Yield the attempts to rewrite the Welfords of an accepted group; return the resulting fusion and group."""
        before = self._fusion, tuple(exprs)
        welford_exprs = welfords(exprs, self._fusion) if self._options.welford and answer.chosen in PERSISTENT else ()
        if not welford_exprs:
            return before
        attempt = self.rewrite(f"{phase}: welford", exprs)
        fusion = written_out(self._fusion, {expr.name for expr in welford_exprs})
        names = {expr.name for expr in exprs} | (fusion.positions.keys() - self._fusion.positions.keys())
        group = tuple(expr for expr in fusion.tensor_exprs if expr.name in names)
        asker = Asker(fusion, self._oracle, self._options, self._recomputed)
        whole, taken = asker.attempt(f"{phase}: welford", Kind.MERGE, tuple((expr.name,) for expr in group), group)
        if attempt.accepted and taken.chosen is None:
            attempt = replace(attempt, outcome=Outcome.REFUSED, code=decisive_code(taken), text=whole.text)
        yield attempt
        if not attempt.accepted:
            return before
        yield whole
        return fusion, group

"""Open schedulers that may lower a limited number of expressions, in limited time."""

from copy import copy

from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import Answer
from fuser_lab.ir import TensorView
from fuser_lab.process.ending import EndedError, ending
from fuser_lab.segmentation.ideals import Budget
from fuser_lab.segmentation.oracle import Candidate, SchedulerOracle

# Part of the processor time left in which one candidate has to be lowered, so that others have as much. Not measured
# alone.
OF_ONE = 0.5
LARGE, ALIKE = 40, 0.9  # size of a refused set, and the part of it that another set shares, which is then not lowered
_AFTER_LOWERING = frozenset({ReasonCode.NOT_LOWERED.value, ReasonCode.READ_AGAIN.value})


class RationedSchedulers:
    """Asks nvFuser's schedulers first, then open schedulers as long as these have not lowered too many expressions.

    Open schedulers are not asked about a large set that resembles a set for which they found no kernel. A set
    whose lowering takes a large part of the time left, such as one that computes values many times, counts as refused.
    """

    def __init__(self, oracle: SchedulerOracle, closed: SchedulerOracle, exprs: int, budget: Budget) -> None:
        self._oracle = oracle
        self._closed = closed
        self._budget = budget
        self._whole = self._left = exprs
        self._asked: dict[tuple[int, frozenset[str], tuple[TensorView, ...]], Answer] = {}
        self._refused: list[frozenset[str]] = []
        self.ended = set[frozenset[str]]()  # sets whose lowering was given up
        self.device = getattr(oracle, "device", None)

    def beside(self, budget: Budget) -> "RationedSchedulers":
        """Return the same schedulers with half of the limit besides and other time; they know each other's answers."""
        schedulers = copy(self)
        schedulers._left = self._whole // 2  # noqa: SLF001 - of the same class
        schedulers._budget = budget  # noqa: SLF001
        return schedulers

    def ask(self, candidate: Candidate) -> Answer:
        """Return the verdicts of all schedulers, or only of nvFuser's once the limit or the end is reached."""
        answer = self._closed.ask(candidate)
        if answer.chosen is not None:
            # One op that nvFuser's schedulers all refuse is the array library's, unless an open scheduler has a kernel
            # for it. The limits do not apply, because lowering one op takes a millisecond.
            is_refused = answer.verdicts[-1].code == ReasonCode.EVALUATED_ALONE.value
            return self._oracle.ask(candidate) if is_refused else answer
        key = (id(candidate.fusion), candidate.key, candidate.outputs)
        cached = self._asked.get(key)
        if cached is not None:
            return cached
        names = frozenset(candidate.key)
        if self._left < len(names) or self._budget.is_late or any(_alike(names, refused) for refused in self._refused):
            return answer
        part = self._budget.share(1, of_work=OF_ONE)
        try:
            with ending(lambda: part.is_late):
                open_answer = self._asked[key] = self._oracle.ask(candidate)
        except EndedError:
            self._asked[key] = answer
            self.ended.add(names)
            return answer
        if any(verdict.beyond or verdict.code in _AFTER_LOWERING for verdict in open_answer.verdicts):
            self._left -= len(names)
            codes = {verdict.code for verdict in open_answer.verdicts}
            if open_answer.chosen is None and len(names) >= LARGE and ReasonCode.READ_AGAIN.value not in codes:
                self._refused.append(names)
        return open_answer


def _alike(names: frozenset[str], refused: frozenset[str]) -> bool:
    """Whether two sets have nine tenths of the larger one in common."""
    return len(names & refused) >= ALIKE * max(len(names), len(refused))

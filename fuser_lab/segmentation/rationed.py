"""Open schedulers that may lower a limited number of expressions, and none once a search is late."""

from copy import copy

from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import Answer
from fuser_lab.ir import TensorView
from fuser_lab.segmentation.ideals import Budget
from fuser_lab.segmentation.oracle import Candidate, SchedulerOracle

LARGE, ALIKE = 40, 0.9  # size of a refused set, and the part of it that another set shares, which is then not lowered
_AFTER_LOWERING = frozenset({ReasonCode.NOT_LOWERED.value, ReasonCode.READ_AGAIN.value})


class RationedSchedulers:
    """Asks nvFuser's schedulers first, then open schedulers as long as these have not lowered too many expressions.

    An expression may have to be computed at many positions, so lowering few of them may take all of a search's time.

    Open schedulers are not asked about a large set that resembles a set which they refused after lowering it.
    """

    def __init__(self, oracle: SchedulerOracle, closed: SchedulerOracle, exprs: int, budget: Budget) -> None:
        self._oracle = oracle
        self._closed = closed
        self._budget = budget
        self._whole = self._left = exprs
        self._asked: dict[tuple[int, frozenset[str], tuple[TensorView, ...]], Answer] = {}
        self._refused: list[frozenset[str]] = []
        self.device = getattr(oracle, "device", None)

    def beside(self) -> "RationedSchedulers":
        """Return the same schedulers with half of the limit besides, which know each other's answers."""
        schedulers = copy(self)
        schedulers._left = self._whole // 2  # noqa: SLF001 - of the same class
        return schedulers

    def ask(self, candidate: Candidate) -> Answer:
        """Return the verdicts of all schedulers, or only of nvFuser's once the limit is reached."""
        answer = self._closed.ask(candidate)
        if answer.chosen is not None:
            return answer
        key = (id(candidate.fusion), candidate.key, candidate.outputs)
        cached = self._asked.get(key)
        if cached is not None:
            return cached
        names = frozenset(candidate.key)
        if self._left < len(names) or self._budget.is_late or any(_alike(names, refused) for refused in self._refused):
            return answer
        open_answer = self._asked[key] = self._oracle.ask(candidate)
        if any(verdict.beyond or verdict.code in _AFTER_LOWERING for verdict in open_answer.verdicts):
            self._left -= len(names)
            if open_answer.chosen is None and len(names) >= LARGE:
                self._refused.append(names)
        return open_answer


def _alike(names: frozenset[str], refused: frozenset[str]) -> bool:
    """Whether two sets have nine tenths of the larger one in common."""
    return len(names & refused) >= ALIKE * max(len(names), len(refused))

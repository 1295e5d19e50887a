"""All schedulers in nvFuser's order, asked about a candidate until one accepts."""

from collections import OrderedDict
from dataclasses import dataclass, field, replace

from fuser_lab.analysis.domain_map import FusionLinks
from fuser_lab.cost.device import DEFAULT, Device
from fuser_lab.cost.reasons import MONOTONE, ReasonCode
from fuser_lab.cost.verdict import Answer, SchedulerType, Verdict, accept, reason
from fuser_lab.ir import Fusion, TensorView
from fuser_lab.schedule.base import Scheduler, no
from fuser_lab.schedule.expr_eval import ExprEval
from fuser_lab.schedule.facts import CandidateFacts
from fuser_lab.schedule.greedy import Greedy
from fuser_lab.schedule.inner_outer_persistent import InnerOuterPersistent
from fuser_lab.schedule.inner_persistent import InnerPersistent
from fuser_lab.schedule.matmul import Matmul
from fuser_lab.schedule.no_op import NoOp
from fuser_lab.schedule.outer_persistent import OuterPersistent
from fuser_lab.schedule.pointwise import PointWise
from fuser_lab.schedule.reduction import Reduction
from fuser_lab.schedule.resize import Resize
from fuser_lab.schedule.transpose import Transpose
from fuser_lab.segmentation.oracle import Candidate

SCHEDULERS: tuple[Scheduler, ...] = (
    ExprEval(),
    NoOp(),
    Matmul(),
    Reduction(),
    Resize(),
    Transpose(),
    PointWise(),
    InnerPersistent(),
    OuterPersistent(),
    InnerOuterPersistent(),
    Greedy(),
)

# Who may take what the common gate refuses for all others.
_EXEMPT = {ReasonCode.MATMUL_INSIDE: SchedulerType.MATMUL, ReasonCode.EVALUATED_ONLY: SchedulerType.GREEDY}

MAX_FUSIONS = 8  # fusions whose answers are remembered


@dataclass(slots=True)
class _Known:
    """What is remembered of one complete fusion; holding the fusion keeps its id taken."""

    fusion: Fusion
    links: FusionLinks
    answers: dict[tuple[frozenset[str], tuple[TensorView, ...]], Answer] = field(default_factory=dict)


class SchedulerRegistry:
    """The oracle of the segmenter: asks each scheduler, remembers acceptances and refusals.

    Parameters
    ----------
    device
        Device whose limits decide.
    disabled
        Schedulers that refuse everything.
    memory_promotion
        Whether what take_along_axis reads may be computed in the same segment (nvFuser's option of this name).
    fuse_matmul
        Whether the Matmul scheduler may take matrix products with what is around them (nvFuser's option of this name).
    """

    def __init__(
        self, device: Device = DEFAULT, disabled: frozenset[SchedulerType] = frozenset(), *,
        memory_promotion: bool = False, fuse_matmul: bool = False,
    ) -> None:
        self.device = device
        self.disabled = disabled
        self.memory_promotion = memory_promotion
        self.fuse_matmul = fuse_matmul
        self._known: OrderedDict[int, _Known] = OrderedDict()

    def ask(self, candidate: Candidate) -> Answer:
        """Return the verdicts in order, ending with the first acceptance."""
        known = self._of(candidate.fusion)
        key = (candidate.key, candidate.outputs)
        answer = known.answers.get(key)
        if answer is None:
            answer = known.answers[key] = self._ask(self._facts(candidate, known))
        return answer

    def facts(self, candidate: Candidate) -> CandidateFacts:
        """Return what schedulers are told of a candidate."""
        return self._facts(candidate, self._of(candidate.fusion))

    def _facts(self, candidate: Candidate, known: _Known) -> CandidateFacts:
        return CandidateFacts(
            candidate, known.links, memory_promotion=self.memory_promotion, fuse_matmul=self.fuse_matmul,
        )

    def _of(self, fusion: Fusion) -> _Known:
        known = self._known.get(id(fusion))
        if known is None:
            known = self._known[id(fusion)] = _Known(fusion, FusionLinks(fusion))
            if len(self._known) > MAX_FUSIONS:
                self._known.popitem(last=False)
        return known

    def _ask(self, facts: CandidateFacts) -> Answer:
        verdicts: list[Verdict] = []
        for scheduler in SCHEDULERS:
            if scheduler.type in self.disabled:
                verdicts.append(no(scheduler.type, ReasonCode.DISABLED))
                continue
            verdict = scheduler.can_schedule(facts, self.device)
            verdicts.append(verdict)
            if verdict.accepted:
                return Answer(tuple(verdicts))
        exprs = facts.candidate.exprs
        # Every single expression must end up somewhere: nvFuser stops with an error where nothing takes one.
        if len(exprs) == 1 and facts.links:
            why = reason(ReasonCode.EVALUATED_ALONE, tensor=exprs[0].name, op=exprs[0].op.name)
            verdicts.append(accept(SchedulerType.EXPR_EVAL, why))
        elif facts.gate is not None and facts.gate[0].code in MONOTONE:
            # Whoever makes a kernel asks the gate, so what it refuses for good is refused for good by each of them,
            # whatever else they said first; an exempt scheduler has to promise that by itself.
            core, exempt = facts.gate[1], _EXEMPT.get(facts.gate[0].code)
            return Answer(
                tuple(
                    v if v.monotone or v.scheduler is exempt else replace(v, core=core, monotone=True) for v in verdicts
                ),
            )
        return Answer(tuple(verdicts))

"""ExprEval: segments that the array library evaluates without a generated kernel."""

from dataclasses import dataclass

from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.rules import follows
from fuser_lab.cost.verdict import SchedulerType, Verdict, accept, reason, refuse
from fuser_lab.ir import OpKind
from fuser_lab.schedule.facts import CandidateFacts


@dataclass(frozen=True, slots=True)
class ExprEval:
    """Accepts views of inputs, inputs, and single matrix products, attentions, scans, sorts, scatters and gathers.

    With ``has_kernels``, a single scan is left to Greedy and a single gather to PointWise, whose kernels have nothing
    that the op alone does not need.
    """

    type: SchedulerType = SchedulerType.EXPR_EVAL
    has_kernels: bool = False

    @follows("scheduler/expr_eval_sched", "canScheduleCompileTime", 47, 99, ReasonCode.NOT_VIEWS)
    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the acceptance, or the first expression that is not a view.

        An output that is an input counts as a view of it (nvFuser: csrc/scheduler/expr_eval_sched.cpp:20-45).
        """
        exprs = facts.candidate.exprs
        alone = facts.reserved or facts.matmul or facts.inexact_gather or facts.gather
        in_kernel = self.has_kernels and bool(exprs) and (exprs[0].kind is OpKind.SCAN or facts.gather is not None)
        if len(exprs) == 1 and alone is not None and not in_kernel:
            return accept(self.type, reason(ReasonCode.LIBRARY_CALL, tensor=exprs[0].name, op=exprs[0].op.name))
        computing = facts.not_view
        if computing is None:
            return accept(self.type, _VIEWS)
        # A computing op also rules out every larger candidate; a reshape may become a view behind a permutation.
        why = reason(ReasonCode.NOT_VIEWS, tensor=computing.name, op=computing.op.name)
        return refuse(self.type, why, computing.name, monotone=not computing.kind.is_view)


_VIEWS = reason(ReasonCode.VIEWS_OF_INPUTS)

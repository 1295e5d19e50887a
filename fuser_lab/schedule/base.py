"""What a scheduler is to the segmenter: a name and an answer."""

from typing import Protocol

from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import MONOTONE, ReasonCode
from fuser_lab.cost.verdict import Param, SchedulerType, Verdict, reason, refuse
from fuser_lab.schedule.facts import CandidateFacts, Refusal


class Scheduler(Protocol):
    """Decides whether it can make one kernel of a candidate; it never looks at how fast that would be."""

    @property
    def type(self) -> SchedulerType:
        """Which of nvFuser's schedulers this is."""

    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the acceptance, or the refusal with its reason."""


def refused(scheduler: SchedulerType, refusal: Refusal) -> Verdict:
    """Return the refusal as a verdict."""
    why, core = refusal
    return refuse(scheduler, why, *core, monotone=why.code in MONOTONE)


def no(scheduler: SchedulerType, code: ReasonCode, *core: str, **params: Param) -> Verdict:
    """Return a refusal by one reason."""
    return refuse(scheduler, reason(code, **params), *core, monotone=code in MONOTONE)

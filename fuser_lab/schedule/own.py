"""User-defined schedulers: asked instead of nvFuser's, before them, or with an additional rule."""

from collections.abc import Iterable, Sequence

from fuser_lab.arguments import FUNCTION, TEXT, instance, short_text, takes
from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import SchedulerType, Verdict
from fuser_lab.errors import InputError
from fuser_lab.schedule.base import Rule, RuledScheduler, Scheduler, no
from fuser_lab.schedule.facts import CandidateFacts
from fuser_lab.schedule.registry import SCHEDULER_LIST, SCHEDULERS
from fuser_lab.schedule.sets import known_set
from fuser_lab.segmentation.signatures import check_called


@takes(
    rule=FUNCTION.worded("a function of facts and device"),
    types=TEXT.worded("a scheduler's name") | instance(SchedulerType),
    schedulers=SCHEDULER_LIST,
)
def with_rule(
    rule: Rule, *types: str | SchedulerType, schedulers: Iterable[Scheduler] = SCHEDULERS,
) -> tuple[Scheduler, ...]:
    """Return schedulers that apply an additional rule before they accept, for ``fuser_lab.segment(schedulers=...)``.

    A rule can only refuse, so every plan that is made with it runs.

    Parameters
    ----------
    rule
        A function of the candidate's facts and the device. It returns None to accept, or a sentence to refuse.
    *types
        Names of the schedulers that apply it, such as ``"pointwise"``; all by default.
    schedulers
        The schedulers to which it is added; nvFuser's in nvFuser's order by default.

    Raises
    ------
    ArgumentTypeError
        If the rule is not a function, or does not accept facts and device.
    InputError
        If a scheduler's name is unknown.
    """
    check_called("with_rule: the rule", rule, "facts", "device")
    base = tuple(schedulers)
    chosen = {kind.value if isinstance(kind, SchedulerType) else kind for kind in types}
    unknown = sorted(map(str, chosen - {scheduler.type.value for scheduler in base}))
    if unknown:
        names = ", ".join(scheduler.type.value for scheduler in base)
        raise InputError(f"with_rule: unknown scheduler {short_text(unknown[0])}; choose from {names}.")
    return tuple(
        RuledScheduler(scheduler, rule) if not chosen or scheduler.type.value in chosen else scheduler
        for scheduler in base
    )


def schedulers_text(schedulers: Sequence[Scheduler]) -> str:
    """Return schedulers as a Python expression that names rules and classes."""
    named_set = known_set(schedulers)
    if named_set is not None:
        return repr(named_set)
    ruled = [scheduler for scheduler in schedulers if isinstance(scheduler, RuledScheduler)]
    rules = {id(scheduler.rule): scheduler.rule for scheduler in ruled}
    plain = tuple(each.scheduler if isinstance(each, RuledScheduler) else each for each in schedulers)
    if len(rules) == 1 and plain == SCHEDULERS:
        names = "".join(f", {scheduler.type.value!r}" for scheduler in ruled)
        types = "" if len(ruled) == len(schedulers) else names
        return f"fl.with_rule({_name(*rules.values())}{types})"
    count, shown = len(SCHEDULERS), list(map(_expression, schedulers))
    at = next((n for n in range(len(shown)) if tuple(schedulers[n : n + count]) == SCHEDULERS), None)
    if at is not None:
        shown[at : at + count] = ["*fl.SCHEDULERS"]
    return f"[{', '.join(shown)}]"


def _expression(scheduler: Scheduler) -> str:
    if isinstance(scheduler, RuledScheduler):
        return f"*fl.with_rule({_name(scheduler.rule)}, schedulers=[{_expression(scheduler.scheduler)}])"
    if scheduler in SCHEDULERS:
        return f"fl.SCHEDULERS[{SCHEDULERS.index(scheduler)}]"
    return f"{type(scheduler).__name__}(...)"


def _name(rule: Rule) -> str:
    name = getattr(rule, "__name__", type(rule).__name__)
    return name if name.isidentifier() else "rule"


def refusal(scheduler: Scheduler, text: str, facts: CandidateFacts) -> Verdict:
    """Return a refusal with your own sentence, for a user-defined ``can_schedule``."""
    return no(scheduler.type, ReasonCode.OWN_RULE, *facts.names, text=text)


__all__ = ["CandidateFacts", "Device", "Scheduler", "SchedulerType", "Verdict", "refusal", "with_rule"]

"""The plan of a fusion without one of nvFuser's rules, and the predicted cost of a plan."""

from collections.abc import Sequence
from typing import Final

from fuser_lab.codegen.one_kernel import with_lifted
from fuser_lab.errors import InputError
from fuser_lab.plan import Plan
from fuser_lab.schedule import open as open_rules
from fuser_lab.schedule.base import Scheduler
from fuser_lab.schedule.registry import SCHEDULERS

LIFTABLE: Final = {code.value: code for code in open_rules.LIFTABLE}  # the rules that not every kernel needs


def liftable(plan: object) -> tuple[str, ...]:
    """Return the codes of the rules that `without_rule` can lift; none if the plan was made with other schedulers."""
    by_rules = isinstance(plan, Plan) and plan.oracle.schedulers == SCHEDULERS
    return tuple(LIFTABLE) if by_rules else ()


def without_rule(plan: Plan, code: str) -> Plan:
    """Return the plan that ``plan.strategy`` makes of its definition if one of nvFuser's rules is lifted.

    Edits of the partition are dropped. `fl.price` computes the price of the rule from this plan.

    Raises
    ------
    InputError
        If every kernel of fuser_lab needs the rule, or the plan was not made under nvFuser's rules.
    """
    if code not in liftable(plan):
        raise InputError(f"the rule {code!r} cannot be lifted here; choose from {', '.join(liftable(plan)) or 'none'}.")
    return segmented_by(plan, with_lifted(LIFTABLE[code]))


def segmented_by(plan: Plan, schedulers: Sequence[Scheduler]) -> Plan:
    """Return the plan that the strategy of ``plan`` makes of its definition with other schedulers."""
    return plan.planned_for(plan.definition, plan.method, plan.options, schedulers)


def moved_bytes(plan: Plan) -> int:
    """Return the bytes that the segments of a plan read and write."""
    return sum(segment.bytes for segment in plan.segments)


def predicted_seconds(plan: Plan) -> float:
    """Return the predicted seconds of a plan on its target."""
    return plan.predicted_time().seconds

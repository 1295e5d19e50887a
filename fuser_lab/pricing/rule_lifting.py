"""The plan of a fusion without a rule of nvFuser, and what a plan is predicted to cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fuser_lab.codegen.one_kernel import with_lifted
from fuser_lab.cost.traffic import model_of
from fuser_lab.errors import InputError
from fuser_lab.plan import Plan
from fuser_lab.schedule import open as open_rules
from fuser_lab.schedule.registry import SCHEDULERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fuser_lab.schedule.base import Scheduler

LIFTABLE: Final = {code.value: code for code in open_rules.LIFTABLE}  # the rules that some kernel does without


def liftable(plan: object) -> tuple[str, ...]:
    """Return the codes of the rules that `without_rule` can lift; none unless nvFuser's rules made the plan."""
    by_rules = isinstance(plan, Plan) and plan.oracle.schedulers == SCHEDULERS
    return tuple(LIFTABLE) if by_rules else ()


def without_rule(plan: Plan, code: str) -> Plan:
    """Return the plan that the strategy of ``plan`` makes of its definition if one of nvFuser's rules is lifted.

    Edits of the partition are dropped. The plan is that from which `fl.price` computes the price of the rule.

    Raises
    ------
    InputError
        If no kernel of fuser_lab does without the rule, or nvFuser's rules did not make the plan.
    """
    if code not in liftable(plan):
        msg = f"the rule {code!r} cannot be lifted here; choose from {', '.join(liftable(plan)) or 'none'}."
        raise InputError(msg)
    return segmented_by(plan, with_lifted(LIFTABLE[code]))


def segmented_by(plan: Plan, schedulers: Sequence[Scheduler]) -> Plan:
    """Return the plan that the strategy of ``plan`` makes of its definition with other schedulers."""
    return plan.segmented_anew(plan.definition, plan.method, plan.options, schedulers)


def moved_bytes(plan: Plan) -> int:
    """Return the bytes that the segments of a plan read and write."""
    return sum(one.bytes for one in plan.segments)


def predicted_seconds(plan: Plan) -> float:
    """Return the predicted seconds of a plan on its target, by the model of bytes and launches."""
    model = model_of(plan.oracle)
    return model.seconds(moved_bytes(plan)) + len(plan.segments) * model.launch

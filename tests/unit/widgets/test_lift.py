"""Lifting a rule of nvFuser in the explorer: the plan that ``fl.price`` computes, beside the plan with the rule."""

import pytest

pytest.importorskip("anywidget")

from unit.widgets import drawn
from unit.widgets.events import send

import fuser_lab as fl
from fuser_lab.cost.amounts import seconds_label
from fuser_lab.errors import InputError
from fuser_lab.pricing.rule_lifting import liftable, predicted_seconds, without_rule
from tests.browser.sizes import joined_sums

RULE = "connected_besides"


@pytest.fixture(scope="module")
def plan():
    return joined_sums()


def test_the_plan_without_a_rule_saves_what_the_rule_costs(plan):
    prices = fl.price(plan.definition, list(plan.inputs))
    for row in prices:
        if row.rule not in liftable(plan):
            continue
        after = without_rule(plan, row.rule)
        assert predicted_seconds(plan) - predicted_seconds(after) == pytest.approx(row.seconds)
        assert sum(s.bytes for s in plan.segments) - sum(s.bytes for s in after.segments) == row.bytes
    assert liftable(without_rule(plan, RULE)) == ()  # which nvFuser's rules did not create
    with pytest.raises(InputError, match="the rule 'smem_limit' cannot be lifted here; choose from"):
        without_rule(plan, "smem_limit")


def test_a_rule_is_lifted_and_undone_like_an_edit(explorer, plan):
    assert RULE in explorer.history["liftable"]
    expected = without_rule(plan, RULE)
    said = send(explorer, "lift", rule=RULE)
    saved = predicted_seconds(plan) - predicted_seconds(expected)
    assert saved > 0
    assert said.startswith(f"Without the rule {RULE}: ")
    assert " moved from S1 to S0, because " in said
    assert f"; 2 → 1 segment, −67.1 MB moved, −{seconds_label(saved)} predicted" in said
    assert explorer.plan == expected
    assert explorer.history["liftable"] == ()
    assert explorer.scene["marks"]["moved"]  # compared with the plan that has the rule
    send(explorer, "panel", name="compare")
    assert f"the plan with {RULE}" in explorer.panels["compare"]["html"]
    assert send(explorer, "undo") == f"Undid lift {RULE}."
    assert explorer.plan == plan
    send(explorer, "redo")
    send(explorer, "strategy", strategy="unfused")  # keeps the schedulers
    assert explorer.plan.oracle.schedulers == expected.oracle.schedulers
    send(explorer, "reset")
    send(explorer, "strategy", strategy="bottom_up")
    assert explorer.plan == plan


def test_an_edit_before_is_left_behind_and_comes_back(explorer, plan):
    inside = next(e for e in drawn.edges(explorer) if e[1] == "inside" and e[4] == "T3")
    assert send(explorer, "act", id=inside[0]).startswith("Cut at T3")
    edited = explorer.plan
    assert send(explorer, "lift", rule=RULE).endswith("; 1 edit of the partition dropped.")
    send(explorer, "undo")
    assert explorer.plan == edited


def test_a_rule_that_cannot_be_lifted_is_refused_with_a_sentence(explorer, plan):
    assert send(explorer, "lift", rule="<b>").startswith("The rule '<b>' cannot be lifted here; choose from ")
    assert explorer.plan == plan

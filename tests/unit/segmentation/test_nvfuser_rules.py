"""Every rule of nvFuser that is listed cuts its fusions as it says, and their kernels are right."""

import numpy as np
import pytest

from fuser_lab.interpreter import evaluate
from tests import agreement
from tests.pages.rules import RULES, plan_of, schedulers

SHOWN = [
    pytest.param(rule, source, id=f"{rule.of}-{rule.ours.rpartition('.')[2]}-{number}")
    for rule in RULES
    for number, source in enumerate(rule.shows)
]


def some(value):
    """Return an array for an input: small numbers, which are places in any axis where they are integers."""
    rng = np.random.default_rng(len(value.name) + value.numel)
    numbers = rng.integers(0, 4, value.shape)
    if value.dtype.is_integral:
        return numbers.astype(value.dtype.numpy)
    return (numbers + rng.standard_normal(value.shape)).astype(value.dtype.numpy)


@pytest.mark.parametrize(("rule", "source"), SHOWN)
def test_rule(rule, source):
    plan = plan_of(rule, source)
    assert schedulers(plan) == rule.shows[source]
    if not rule.values:
        return
    inputs = [some(value) for value in plan.definition.tensor_inputs]
    wanted = evaluate(plan.fusion, inputs)
    for target in agreement.TARGETS:
        results = agreement.lock_step(plan, inputs, target)
        for output, got, right in zip(plan.fusion.outputs, results, wanted, strict=True):
            agreement.close(got, right, agreement.tolerance_of(plan.fusion), f"{output.name} on {target}")

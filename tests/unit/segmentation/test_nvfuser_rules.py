"""Every listed rule of nvFuser cuts its fusions as stated, and their kernels are right."""

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab.interpreter import evaluate
from tests import agreement
from tests.pages.rules import DIFFERENT, RULES, definition, plan_of, schedulers

SHOWN = [
    pytest.param(rule, source, id=f"{rule.of}-{rule.ours.rpartition('.')[2]}-{number}")
    for rule in RULES
    for number, source in enumerate(rule.shows)
]


def some(value):
    """Return an array for an input: small numbers; integers are valid positions in any axis."""
    rng = np.random.default_rng(len(value.name) + value.numel)
    numbers = np.asarray(rng.integers(0, 4, value.shape))
    if value.dtype.is_integral:
        return numbers.astype(value.dtype.numpy)
    return np.asarray(numbers + rng.standard_normal(value.shape), dtype=value.dtype.numpy)


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


@pytest.mark.parametrize(("source", "here", "options"), DIFFERENT)
def test_what_is_different_on_purpose(source, here, options, repository):
    assert source in (repository / "docs" / "design.md").read_text(encoding="utf-8")
    options = fl.SegmenterOptions.from_nvfuser(**options)
    assert schedulers(fl.segment(definition(source), strategy="bottom_up", options=options)) == here


def test_cast_groups_are_found_through_merged_groups():
    source = """
m = ops.matmul(tensor(8, 8, dtype=DataType.Half), tensor(8, 8, dtype=DataType.Half))
v = ops.sub(ops.cast(m, DataType.Float), tensor(8, 8))
c = ops.cat([v, tensor(8, 4)], 1)
fd.add_output(ops.cast(ops.mul(c, c), DataType.Half))"""
    plan = fl.segment(definition(source), strategy="bottom_up")
    pads, casts = (next(a for a in plan.decisions if a.phase == phase) for phase in ("cat with pads", "cast group"))
    merged = tuple(name for names in pads.subjects for name in names)
    assert pads.accepted
    assert casts.accepted
    assert merged in casts.subjects


def test_reductions_side_by_side_are_combined_from_their_nearest_source_only():
    source = """
x = tensor(16, 16)
p = ops.add(ops.mul(x, 2.0), 1.0)
fd.add_output(ops.sum(p, [1]))
fd.add_output(ops.sum(ops.permute(ops.mul(p, 3.0), [1, 0]), [1]))"""
    plan = fl.segment(definition(source), strategy="bottom_up")
    sets = [{name for names in a.subjects for name in names} for a in plan.decisions if a.phase == "combine reductions"]
    before = {expr.name for expr in plan.fusion.tensor_exprs[:2]}
    assert sets
    assert all(before.isdisjoint(names) for names in sets)

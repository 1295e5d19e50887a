"""Rules and schedulers that a user brings along."""

from dataclasses import dataclass

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.cost.verdict import SchedulerType, accept
from fuser_lab.errors import ArgumentTypeError, InputError
from fuser_lab.schedule.own import refusal
from fuser_lab.schedule.registry import SchedulerRegistry
from fuser_lab.segmentation import candidate

LONG = 3


def few_ops(facts, device):
    count = len(facts.candidate.exprs)
    return f"{count} ops are more than {LONG}" if count > LONG else None


def chain(length=8):
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1], dtype=DataType.Float) for _ in range(2))
        for _ in range(length):
            x = fd.ops.mul(x, y)
        fd.add_output(x)
    return fd


def rows_added():
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float) for _ in range(2))
        fd.add_output(fd.ops.add(y, fd.ops.sum(x, dims=[1], keepdim=True)))
    return fd


@dataclass(frozen=True)
class InTwoPasses:
    """A scheduler that nvFuser does not have: sums whose rows are added to another tensor."""

    type: SchedulerType = SchedulerType.REDUCTION

    def can_schedule(self, facts, device):
        if facts.reduction is None:
            return refusal(self, "nothing is summed", facts)
        return accept(self.type)


def test_a_rule_cuts_where_it_refuses():
    plan = fl.segment(chain(), [fl.spec((64,))] * 2, schedulers=fl.with_rule(few_ops))
    assert len(fl.segment(chain(), [fl.spec((64,))] * 2).segments) == 1
    assert max(len(s.exprs) for s in plan.segments) == LONG
    (first, _, *_) = plan.boundaries()
    assert any(v.code == "own_rule" and v.text.endswith("ops are more than 3") for v in first.verdicts)


def test_a_rule_of_some_schedulers():
    lenient = fl.with_rule(few_ops, "reduction", SchedulerType.TRANSPOSE)
    assert len(fl.segment(chain(), [fl.spec((64,))] * 2, schedulers=lenient).segments) == 1
    strict = fl.with_rule(few_ops, "pointwise")
    assert len(fl.segment(chain(), [fl.spec((64,))] * 2, schedulers=strict).segments) > 1


@pytest.mark.parametrize("strategy", ["bottom_up", "top_down", "saving", "optimal", "unfused"])
def test_every_strategy_obeys(strategy):
    plan = fl.segment(chain(), [fl.spec((64,))] * 2, strategy=strategy, schedulers=fl.with_rule(few_ops))
    assert all(len(s.exprs) <= LONG and s.scheduler is not None for s in plan.segments)


def test_what_no_scheduler_takes_any_more_is_evaluated_alone():
    plan = fl.segment(chain(2), [fl.spec((64,))] * 2, schedulers=fl.with_rule(lambda facts, device: "never"))
    assert [s.scheduler for s in plan.segments] == [SchedulerType.EXPR_EVAL] * 2


def test_a_scheduler_that_takes_more_gives_right_results():
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((64, 128), dtype=np.float32) for _ in range(2))
    plan = fl.segment(rows_added(), [x, y], schedulers=[InTwoPasses(), *fl.SCHEDULERS])
    assert [s.scheduler for s in plan.segments] == [SchedulerType.REDUCTION]
    (result,) = plan.run([x, y])
    np.testing.assert_allclose(result, y + x.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-5)


def test_what_nvfuser_refuses_for_good_is_not_refused_for_a_scheduler_that_takes_more():
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([16, 16], dtype=DataType.Half) for _ in range(2))
        x = a
        for _ in range(3):
            x = fd.ops.matmul(x, b)
        fd.add_output(x)

    @dataclass(frozen=True)
    class Whole(InTwoPasses):
        type: SchedulerType = SchedulerType.EXPR_EVAL

        def can_schedule(self, facts, device):
            whole = len(facts.candidate.exprs) == len(facts.candidate.fusion.exprs)
            return accept(self.type) if whole else refusal(self, "only the whole", facts)

    options = fl.SegmenterOptions(disabled_schedulers={"expr_eval"})
    parts = fl.segment(fd, options=options)
    pair = candidate(parts.fusion, parts.fusion.exprs[:2])
    assert all(v.monotone for v in parts.oracle.ask(pair).verdicts[1:])
    lenient = SchedulerRegistry(schedulers=[Whole(), *fl.SCHEDULERS[1:]])
    assert not lenient.ask(pair).verdicts[0].monotone
    assert len(fl.segment(fd, strategy="optimal", schedulers=lenient.schedulers).segments) == 1


def test_plans_with_rules_edit_and_come_back_as_python():
    schedulers = fl.with_rule(few_ops)
    plan = fl.segment(chain(), [fl.spec((64,))] * 2, schedulers=schedulers)
    with pytest.raises(fl.errors.IllegalEdit, match="ops are more than 3"):
        plan.glue(0, 1)
    names = {"schedulers": schedulers}
    exec(plan.to_python(), names)
    assert names["plan"] == plan
    assert plan != fl.segment(chain(), [fl.spec((64,))] * 2, strategy=lambda *_: groups_of(plan))


def groups_of(plan):
    return [[e.name for e in s.exprs] for s in plan.segments]


def test_other_tabs_of_an_explorer_obey():
    pytest.importorskip("fuser_lab_widgets")
    explorer = fl.explore(chain(), [fl.spec((64,))] * 2, schedulers=fl.with_rule(few_ops))
    assert len(explorer.plan.segments) > 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, "must be a list of schedulers, given 5"),
        (["pointwise"], "'pointwise' is no scheduler"),
        ([InTwoPasses], "is no scheduler"),
        ([InTwoPasses(type="reduction")], "must be a SchedulerType, given 'reduction'"),
    ],
)
def test_what_is_no_scheduler_is_named(given, said):
    with pytest.raises(ArgumentTypeError, match=said):
        fl.segment(rows_added(), [fl.spec((4, 4))] * 2, schedulers=given)


def test_answers_that_are_none_are_named():
    @dataclass(frozen=True)
    class Truth(InTwoPasses):
        def can_schedule(self, facts, device):
            return True

    with pytest.raises(ArgumentTypeError, match="must answer with a Verdict of its type, not True"):
        fl.segment(rows_added(), [fl.spec((4, 4))] * 2, schedulers=[Truth()])
    with pytest.raises(ArgumentTypeError, match="returned True; a rule returns a sentence"):
        fl.segment(chain(), [fl.spec((4,))] * 2, schedulers=fl.with_rule(lambda facts, device: True))
    with pytest.raises(InputError, match="no scheduler 'pointwize'; there are expr_eval"):
        fl.with_rule(few_ops, "pointwize")
    with pytest.raises(ArgumentTypeError, match="rule must be a function"):
        fl.with_rule("few ops")

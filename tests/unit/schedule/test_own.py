"""Rules and schedulers that a user supplies."""

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.codegen.pipeline import EVALUATED
from fuser_lab.cost.verdict import SchedulerType, accept
from fuser_lab.errors import ArgumentTypeError, InputError, ScheduleError
from fuser_lab.interpreter import evaluate
from fuser_lab.schedule.base import Heuristics
from fuser_lab.schedule.own import refusal
from fuser_lab.schedule.parameters import prefer
from fuser_lab.schedule.registry import SchedulerRegistry
from fuser_lab.segmentation import candidate
from tests.agreement import lock_step

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


def named(facts, device):
    return None


@pytest.mark.parametrize(
    ("schedulers", "said"),
    [
        (fl.with_rule(few_ops), "fl.with_rule(few_ops)"),
        (fl.with_rule(few_ops, "pointwise", "resize"), "fl.with_rule(few_ops, 'resize', 'pointwise')"),
        (fl.with_rule(lambda facts, device: None), "fl.with_rule(rule)"),
        ((InTwoPasses(), *fl.SCHEDULERS), "[InTwoPasses(...), *fl.SCHEDULERS]"),
        (fl.SCHEDULERS[2:4], "[fl.SCHEDULERS[2], fl.SCHEDULERS[3]]"),
        (
            fl.with_rule(named, schedulers=fl.with_rule(few_ops, schedulers=[InTwoPasses()])),
            "[*fl.with_rule(named, schedulers=[*fl.with_rule(few_ops, schedulers=[InTwoPasses(...)])])]",
        ),
    ],
)
def test_code_says_which_schedulers_it_needs(schedulers, said):
    plan = fl.segment(rows_added(), [fl.spec((8, 8))] * 2, schedulers=schedulers)
    code = plan.to_python()
    comment = next(line for line in code.splitlines() if line.startswith("# schedulers = "))
    assert comment == f"# schedulers = {said}"
    assert ", schedulers=schedulers)" in code
    if "..." not in said and "(rule)" not in said:
        assert tuple(eval(comment.removeprefix("# schedulers = "))) == schedulers
    names = {"schedulers": schedulers}
    exec(code, names)
    assert names["plan"].hash == plan.hash


def test_other_tabs_of_an_explorer_obey():
    pytest.importorskip("fuser_lab_widgets")
    explorer = fl.explore(chain(), [fl.spec((64,))] * 2, schedulers=fl.with_rule(few_ops))
    assert len(explorer.plan.segments) > 1


@dataclass(frozen=True)
class OfFacts:
    type: SchedulerType = SchedulerType.POINTWISE

    def __repr__(self):
        return "OfFacts()"

    def can_schedule(self, facts):
        return accept(self.type)


@dataclass(frozen=True)
class OfNothing(OfFacts):
    can_schedule = 3

    def __repr__(self):
        return "OfNothing()"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, "must be a list of schedulers or None, given 5"),
        (["pointwise"], r"a scheduler, which has a type and a method can_schedule\(facts, device\), given 'pointwise'"),
        ([InTwoPasses], "must be a scheduler, which has"),
        ([OfFacts()], r"can_schedule of OfFacts\(\) is called with facts and device, but accepts facts\."),
        ([OfNothing()], r"can_schedule of OfNothing\(\) must be a method, given 3\."),
        ([InTwoPasses(type="reduction")], "must be a SchedulerType, given 'reduction'"),
    ],
)
def test_what_is_no_scheduler_is_named(given, said):
    with pytest.raises((ArgumentTypeError, InputError), match=said):
        fl.segment(rows_added(), [fl.spec((4, 4))] * 2, schedulers=given)


def test_answers_that_are_none_are_named():
    @dataclass(frozen=True)
    class Truth(InTwoPasses):
        def can_schedule(self, facts, device):
            return True

    with pytest.raises(ArgumentTypeError, match="must answer with a Verdict of its type, not True"):
        fl.segment(rows_added(), [fl.spec((4, 4))] * 2, schedulers=[Truth()])
    with pytest.raises(ArgumentTypeError, match="returned True; a rule must return a sentence"):
        fl.segment(chain(), [fl.spec((4,))] * 2, schedulers=fl.with_rule(lambda facts, device: True))
    with pytest.raises(InputError, match="unknown scheduler 'pointwize'; choose from .*expr_eval"):
        fl.with_rule(few_ops, "pointwize")
    with pytest.raises(ArgumentTypeError, match="rule must be a function"):
        fl.with_rule("few ops")
    with pytest.raises(ArgumentTypeError, match="the rule is called with facts and device, but accepts facts"):
        fl.with_rule(lambda facts: None)


def softmax(fd, x, y):
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, dims=[1], keepdim=True)))
    fd.add_output(fd.ops.truediv(e, fd.ops.sum(e, dims=[1], keepdim=True)))
    fd.add_output(y)


def turned(fd, x, y):
    fd.add_output(fd.ops.add(fd.ops.permute(x, dims=[1, 0]), y))
    fd.add_output(fd.ops.sum(y, dims=[0]))


def apart(fd, x, y):
    fd.add_output(fd.ops.sin(x))
    fd.add_output(fd.ops.var_mean(y, dims=[0, 1])[0])


@pytest.mark.parametrize("kind", [t for t in SchedulerType if t not in EVALUATED], ids=lambda t: t.value)
@pytest.mark.parametrize("define", [softmax, turned, apart], ids=lambda d: d.__name__)
def test_no_acceptance_makes_a_result_wrong(define, kind):
    """The scheduler does not decide the loops of a kernel: if it accepts everything, kernels are right or refused."""

    @dataclass(frozen=True)
    class Everything:
        type: SchedulerType = kind

        def can_schedule(self, facts, device):
            return accept(self.type)

    with FusionDefinition() as fd:
        define(fd, *(fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float) for _ in range(2)))
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((12, 12), dtype=np.float32) for _ in range(2)]
    plan = fl.segment(fd, inputs, schedulers=[Everything()])
    exact = evaluate(plan.fusion, [x.astype(np.float64) for x in inputs])
    for target in ("cpu", "cuda"):
        for result, expected in zip(lock_step(plan, inputs, target), exact, strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


MOST = "1,000,000,000,000"
SMALL = {
    "name": "small", "cc": (9, 0), "sms": 8, "shared_per_sm": 2**15, "shared_per_block": 2**14, "l2": 0,
    "bandwidth": 100, "fp32": 1, "bf16": 0,
}


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"bandwidth": 0}, InputError, "Device: bandwidth must be a finite number above 0, given 0."),
        ({"bandwidth": float("nan")}, InputError, "Device: bandwidth must be a finite number above 0, given nan."),
        ({"bf16": -1}, InputError, "Device: bf16 must be a finite number of at least 0, given -1."),
        ({"cc": "9.0"}, ArgumentTypeError, "Device: cc must be two whole numbers such as (9, 0), given '9.0'."),
        ({"fp32": "x"}, ArgumentTypeError, "Device: fp32 must be a finite number above 0, given 'x'."),
        ({"sms": 0}, InputError, f"Device: sms must be a whole number from 1 to {MOST}, given 0."),
        ({"l2": -1}, InputError, f"Device: l2 must be a whole number from 0 to {MOST}, given -1."),
        ({"l2": None}, ArgumentTypeError, f"Device: l2 must be a whole number from 0 to {MOST}, given None."),
        ({"name": None}, ArgumentTypeError, "Device: name must be a str, given None."),
    ],
)
def test_a_device_that_cannot_be_is_refused(changed, error, said):
    assert fl.Device(**SMALL).l2 == 0
    with pytest.raises(error, match=f"^{re.escape(said)}$"):
        fl.Device(**SMALL | changed)


BY_TYPE = {scheduler.type: scheduler for scheduler in fl.SCHEDULERS}


class FewThreads(Heuristics):
    """InnerPersistent with 16 threads per row."""

    type = SchedulerType.INNER_PERSISTENT
    threads = (16, 1)

    def can_schedule(self, facts, device):
        return BY_TYPE[self.type].can_schedule(facts, device)

    def propose(self, space, target):
        found = super().propose(space, target)
        if target != "cuda":
            return found
        return replace(found, threads=self.threads, reasons=("few threads",))


def test_a_scheduler_of_your_own_proposes_the_parameters_of_its_kernels():
    x = np.random.default_rng(0).standard_normal((6, 200)).astype(np.float32)
    with fl.FusionDefinition() as fd:
        fd.add_output(fd.ops.softmax(fd.define_tensor([-1, -1], contiguity=True), 1))
    plain = fl.segment(fd, [x])
    assert plain.segments[0].scheduler is FewThreads.type
    for schedulers in ([FewThreads(), *fl.SCHEDULERS], fl.with_rule(lambda f, d: None, schedulers=[FewThreads()])):
        plan = fl.segment(fd, [x], schedulers=schedulers)
        (segment,) = plan.segments
        (nest,) = segment.params()
        assert nest.schedule.threads == (16, 1) != plain.segments[0].params()[0].schedule.threads
        assert "# few threads" in str(segment.schedule)
        assert "factor=16, inner_split=True)  # threads of a block, in x" in str(segment.schedule)
        assert plan.with_schedule(0, str(segment.schedule)).hash == plan.hash
        assert segment.source("cpu") == plain.segments[0].source("cpu")
        np.testing.assert_allclose(plan.run([x])[0], plain.run([x])[0], rtol=1e-6)


def test_an_illegal_proposal_is_an_error():
    class Odd(FewThreads):
        threads = (100, 1)

    with fl.FusionDefinition() as fd:
        fd.add_output(fd.ops.softmax(fd.define_tensor([-1, -1], contiguity=True), 1))
    plan = fl.segment(fd, [fl.spec((6, 200))], schedulers=[Odd(), *fl.SCHEDULERS])
    with pytest.raises(ScheduleError, match=r"propose: threads = \(100, 1\) must be a multiple of 32"):
        plan.segments[0].source("cuda")


def test_a_preferred_value_is_used_where_it_is_legal_and_otherwise_the_reasons_say_why_not():
    class InParts(FewThreads):
        type = SchedulerType.REDUCTION

        def propose(self, space, target):
            return prefer(Heuristics.propose(self, space, target), space, target, "rows in parts", split=4)

    def schedule(target, length):
        with fl.FusionDefinition() as fd:
            fd.add_output(fd.ops.sum(fd.define_tensor([-1, -1], contiguity=True), [1]))
        (segment,) = fl.segment(fd, [fl.spec((6, length))], schedulers=[InParts(), *fl.SCHEDULERS]).segments
        assert segment.source(target)
        return segment.params(target)[0].schedule

    assert (schedule("cuda", 8192).split, schedule("cuda", 8192).reasons[-1]) == (4, "rows in parts")
    assert "set by hand" not in str(schedule("cuda", 8192).reasons)
    short = schedule("cpu", 64)
    assert short.split == 1
    assert short.reasons[-1].startswith("split = 4 is not used: split = 4 requires several cores, but parallel is")

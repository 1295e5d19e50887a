"""Copies and pickles of a definition and of a plan, and abstract inputs that no machine can hold."""

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import FusionCache, FusionDefinition
from fuser_lab.errors import OutOfMemoryError, StateError, UnsupportedError

WAYS = {"deepcopy": copy.deepcopy, "copy": copy.copy, "pickle": lambda value: pickle.loads(pickle.dumps(value))}


@pytest.fixture(params=WAYS)
def copied(request: pytest.FixtureRequest) -> Callable[[FusionDefinition], FusionDefinition]:
    return WAYS[request.param]


def defined(cache: FusionCache | None = None) -> FusionDefinition:
    with FusionDefinition(cache) as fd:
        x = fd.define_tensor([-1, 8])
        fd.add_output(fd.ops.dropout(fd.ops.softmax(x, -1), 0.1))
        fd.add_output(fd.ops.add(x, 1.0), x)
    return fd


def test_a_copy_records_the_same_fusion(copied: Callable[[FusionDefinition], FusionDefinition]) -> None:
    cache = FusionCache()
    for fd in (defined(), defined(cache), defined(cache)):
        again = copied(fd)
        assert type(again) is FusionDefinition
        assert again.fusion == fd.fusion
        assert str(again) == str(fd)
        assert again.names == fd.names
        assert fl.segment(again, [fl.spec((4, 8))]).hash == fl.segment(fd, [fl.spec((4, 8))]).hash
        assert [expr.op for expr in again.fusion.exprs] == [expr.op for expr in fd.fusion.exprs]


def test_a_definition_that_ran_is_copied_without_its_kernels(
    copied: Callable[[FusionDefinition], FusionDefinition],
) -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.define_tensor([4])))
    x = np.arange(4, dtype=np.float32)
    (first,) = fd.execute([x])
    again = copied(fd)
    assert "fec" not in vars(again)
    assert np.array_equal(again.execute([x])[0], first)


def test_an_open_definition_is_not_copied(copied: Callable[[FusionDefinition], FusionDefinition]) -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.define_tensor([4])))
        with pytest.raises(StateError, match="the definition is still open"):
            copied(fd)


def test_a_copy_has_the_schedule_by_hand_and_changes_it_alone(
    copied: Callable[[FusionDefinition], FusionDefinition],
) -> None:
    with FusionDefinition() as fd:
        y = fd.ops.exp(fd.define_tensor([64, 32], contiguity=True))
        fd.add_output(fd.ops.neg(y))
    y.split(0, 8)
    y.cache_after()
    again = copied(fd)
    assert len(again.sched.transforms) == 2
    assert str(again.sched) == str(fd.sched)
    again.sched.undo()
    assert len(fd.sched.transforms) == 2


@pytest.mark.parametrize("strategy", ["bottom_up", "fastest"])
def test_the_copy_of_a_plan_is_equal_and_keeps_its_log(
    copied: Callable[[fl.Plan], fl.Plan], strategy: str,
) -> None:
    plan = fl.segment(defined(), [fl.spec((4, 8))], strategy=strategy)
    for one in (plan, plan.cut(plan.fusion.exprs[0].name)):
        again = copied(one)
        assert again is not one
        assert again == one
        assert again.hash == one.hash
        assert list(again.decisions) == list(one.decisions)
        assert str(again) == str(one)
        assert [segment.source("cpu") for segment in again.segments] == [s.source("cpu") for s in one.segments]


def test_a_plan_that_ran_is_copied_without_its_kernels(copied: Callable[[fl.Plan], fl.Plan]) -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.define_tensor([4])))
    plan = fl.segment(fd)
    x = np.arange(4, dtype=np.float32)
    (first,) = plan.run([x])
    assert np.array_equal(copied(plan).run([x])[0], first)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_compiled_plan_is_not_copied(copied: Callable[[object], object]) -> None:
    prepared = fl.segment(defined(), [fl.spec((4, 8))]).prepare("cpu")
    with pytest.raises(UnsupportedError, match="cannot be copied or pickled; copy or pickle the plan"):
        copied(prepared)


def test_the_copy_of_a_long_chain_is_no_deep_recursion(
    copied: Callable[[FusionDefinition], FusionDefinition],
) -> None:
    with FusionDefinition() as fd:
        y = fd.define_tensor([4])
        for _ in range(1500):
            y = fd.ops.relu(y)
        fd.add_output(y)
    assert copied(fd).fusion == fd.fusion


def test_an_input_that_no_machine_can_hold_is_not_materialized() -> None:
    with pytest.raises(OutOfMemoryError, match=r"materialize: not enough memory for float \[1048576, 1048576\]"):
        fl.spec((1 << 20, 1 << 20)).materialize()

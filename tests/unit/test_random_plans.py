"""Plans with random numbers: the seed and offsets that a pass adds are inputs of the fusion that no caller gives."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fuser_lab_widgets.runner import one_by_one

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition, Plan

X = np.linspace(-1, 1, 8 * 16, dtype=np.float32).reshape(8, 16)


def dropout_and_add(fd: FusionDefinition) -> list[Any]:
    x = fd.define_tensor([8, 16], contiguity=True)
    fd.add_output(fd.ops.add(fd.ops.dropout(x, 0.1), x))
    return [X]


def nothing_given(fd: FusionDefinition) -> list[Any]:
    fd.add_output(fd.ops.normal(0.0, 1.0, [8, 16]))
    return []


def transposed_with_a_scalar_in_front(fd: FusionDefinition) -> list[Any]:
    p, x = fd.define_scalar(dtype=DataType.Double), fd.define_tensor([-1, -1], contiguity=False)
    keep = fd.ops.cast(fd.ops.lt(fd.ops.rand_like(x), p), dtype=DataType.Float)
    fd.add_output(fd.ops.sum(fd.ops.mul(x, keep), [0]))
    return [0.5, X.T]


def random_in_two_segments(fd: FusionDefinition) -> list[Any]:
    x = fd.define_tensor([8, 16], contiguity=True)
    rows = fd.ops.sum(fd.ops.dropout(x, 0.1), [1])
    placed = fd.ops.broadcast_in_dim(fd.ops.segment_set(rows), [8, 16], [0])
    columns = fd.ops.sum(fd.ops.mul(placed, x), [0])
    fd.add_output(fd.ops.mul(columns, fd.ops.uniform(0.0, 1.0, [16])))
    return [X]


def seeds_given_and_drawn(fd: FusionDefinition) -> list[Any]:
    seed, offset = fd.define_scalar(dtype=DataType.Int), fd.define_scalar(dtype=DataType.Int)
    x = fd.define_tensor([8, 16], contiguity=True)
    given = fd.ops.uniform(0.0, 1.0, [8, 16], rng_seed=seed, rng_offset=offset)
    fd.add_output(fd.ops.mul(fd.ops.add(x, given), fd.ops.randn_like(x)))
    return [3, 4, X]


def no_elements(fd: FusionDefinition) -> list[Any]:
    x = fd.define_tensor([0, 16], contiguity=True)
    fd.add_output(fd.ops.add(fd.ops.rand_like(x), x))
    return [X[:0]]


DEFINITIONS = (
    dropout_and_add, nothing_given, transposed_with_a_scalar_in_front, random_in_two_segments, seeds_given_and_drawn,
    no_elements,
)
ASKED: dict[str, Callable[[Plan], Any]] = {
    "predicted_time": lambda p: p.predicted_time().seconds,
    "segments": lambda p: [(s.predicted_time().seconds, s.features) for s in p.segments],
    "time_bound": Plan.time_bound,
    "layouts": lambda p: str(p.layouts()),
    "fastest": lambda p: p.resegmented("fastest").predicted_time().seconds,
    "negotiate": lambda p: p.resegmented(layout_mode="negotiate").predicted_time().seconds,
    "best_edits": lambda p: [p.with_edit(one).predicted_time().seconds for one in p.best_edits(2, seconds=0.2)],
    "certificate": lambda p: str(p.certificate(states=50)),
    "html": Plan._repr_html_,
    "to_python": Plan.to_python,
}


FEW = pytest.mark.parametrize("case", [nothing_given, dropout_and_add], indirect=True, ids=lambda one: one.__name__)


@pytest.fixture(params=DEFINITIONS, ids=lambda definition: definition.__name__)
def case(request: pytest.FixtureRequest) -> tuple[FusionDefinition, list[Any]]:
    with FusionDefinition() as fd:
        inputs = request.param(fd)
    return fd, inputs


def test_a_plan_answers_questions_about_its_time_and_layouts(case: tuple[FusionDefinition, list[Any]]) -> None:
    plan = fl.segment(*case)
    for name, ask in ASKED.items():
        assert ask(plan) is not None, name
    assert np.isfinite(plan.predicted_time().seconds)
    assert len(plan.inputs) == len(case[1])


@pytest.mark.parametrize("strategy", ["top_down", "saving", "optimal", "fastest", "unfused"])
def test_every_strategy_predicts_the_time_of_its_plan(case: tuple[FusionDefinition, list[Any]], strategy: str) -> None:
    plan = fl.segment(*case, strategy=strategy)
    alone = sum(segment.predicted_time().seconds for segment in plan.segments)
    assert plan.predicted_time().seconds <= alone, "only the first kernel of a plan waits for its launch"


@FEW
def test_the_search_for_the_fastest_plan_ranks_plans(case: tuple[FusionDefinition, list[Any]]) -> None:
    seconds = [choice.predicted for choice in fl.fastest(*case)]
    assert seconds
    assert seconds == sorted(seconds)


def test_the_time_of_an_edited_plan_is_predicted() -> None:
    with FusionDefinition() as fd:
        inputs = random_in_two_segments(fd)
    plan = fl.segment(fd, inputs)
    (rows,) = (expr for expr in plan.segments[0].exprs if expr.op.name == "sum")
    cut = plan.cut(rows.inputs[0].name)
    assert len(cut.segments) == len(plan.segments) + 1
    assert cut.predicted_time().seconds > plan.predicted_time().seconds


@FEW
def test_peers_draw_their_own_numbers_and_are_timed(case: tuple[FusionDefinition, list[Any]]) -> None:
    fd, inputs = case
    plan = fl.segment(fd, inputs)
    (peer,) = one_by_one(plan, inputs).values()
    assert [result.shape for result in peer(*inputs)] == [result.shape for result in plan.run(inputs)]
    row = fl.time([plan], inputs, peers={"peer": peer}, seconds=0.001, progress=False).totals[1]
    assert row.median > 0, row.note
    assert "not checked: random numbers" in row.note

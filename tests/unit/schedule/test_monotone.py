"""Final refusals that follow from reductions: their reasons, and that no larger candidate is ever accepted."""

import random

import pytest
from unit.schedule.test_lowered import convex_pieces

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.segmentation.oracle import candidate
from tests.benchmarks.optimal import irregular

ROWS, COLUMNS = [1], [0]


def answer_of(body, names=None):
    with FusionDefinition() as fd:
        body(fd)
    plan = fl.segment(fd, strategy="unfused")
    exprs = [e for e in plan.fusion.tensor_exprs if names is None or e.name in names]
    return plan.oracle.ask(candidate(plan.fusion, exprs))


def matrix(fd, rows=512, columns=512):
    return fd.define_tensor([rows, columns], contiguity=True, dtype=DataType.Float)


def back(fd, total, dims):
    return fd.ops.broadcast(total, is_broadcast_dim=[axis in dims for axis in range(2)])


def test_a_row_sum_of_what_a_column_sum_changed():
    def body(fd):
        x = matrix(fd)
        scaled = fd.ops.mul(x, back(fd, fd.ops.sum(x, dims=COLUMNS), COLUMNS))
        fd.add_output(fd.ops.sum(scaled, dims=ROWS))

    answer = answer_of(body)
    assert answer.chosen is None
    assert all(verdict.monotone for verdict in answer.verdicts)
    assert answer.monotone.code.value == "outer_before_inner"


def test_a_sum_of_rows_and_of_columns_joined():
    def body(fd):
        x = matrix(fd)
        rows = fd.ops.mul(x, back(fd, fd.ops.sum(x, dims=ROWS), ROWS))
        columns = fd.ops.mul(x, back(fd, fd.ops.sum(x, dims=COLUMNS), COLUMNS))
        fd.add_output(fd.ops.add(rows, columns))

    assert answer_of(body).monotone.code.value in {"shared_consumer", "broadcast_after_reduction"}


def test_reductions_of_other_extents():
    def body(fd):
        x, y = matrix(fd), matrix(fd, 512, 256)
        total = fd.ops.add(fd.ops.sum(x, dims=ROWS), fd.ops.sum(y, dims=ROWS))
        fd.add_output(total)

    assert answer_of(body).monotone.code.value == "pattern_mismatch"


def test_sums_of_a_backward_pass_may_share_a_kernel():
    def body(fd):
        x = matrix(fd)
        rows = fd.ops.mul(x, back(fd, fd.ops.sum(x, dims=ROWS), ROWS))
        fd.add_output(rows)
        fd.add_output(fd.ops.sum(rows, dims=COLUMNS))

    assert answer_of(body).monotone is None


def test_two_softmaxes_in_a_row_may_share_a_kernel():
    def body(fd):
        x = matrix(fd)
        once = fd.ops.mul(x, back(fd, fd.ops.sum(x, dims=ROWS), ROWS))
        fd.add_output(fd.ops.mul(once, back(fd, fd.ops.sum(once, dims=ROWS), ROWS)))

    answer = answer_of(body)
    assert answer.chosen is not None
    assert answer.monotone is None


def test_without_elements_nothing_is_refused_for_good():
    def body(fd):
        x = matrix(fd)
        scaled = fd.ops.mul(x, back(fd, fd.ops.sum(x, dims=COLUMNS), COLUMNS))
        fd.add_output(fd.ops.sum(scaled, dims=ROWS))
        fd.add_output(matrix(fd, 0, 4))

    assert answer_of(body).monotone is None


@pytest.mark.parametrize("size", [4096, 64, 1])
@pytest.mark.parametrize("seed", range(6))
def test_no_larger_candidate_is_taken(seed, size):
    plan = fl.segment(irregular(seed, 16, size, size), strategy="unfused")
    fusion, oracle = plan.fusion, plan.oracle
    refused = []
    for exprs in convex_pieces(fusion, 60, largest=5):
        answer = oracle.ask(candidate(fusion, exprs))
        if answer.monotone is not None:
            assert answer.chosen is None
            assert all(verdict.monotone for verdict in answer.verdicts)
            refused.append(set(exprs))
    dice = random.Random(seed)
    for exprs in convex_pieces(fusion, 150, largest=14):
        if any(small <= set(exprs) for small in refused):
            assert oracle.ask(candidate(fusion, exprs)).chosen is None
    for small in dice.sample(refused, min(len(refused), 5)):
        assert oracle.ask(candidate(fusion, fusion.exprs)).chosen is None, small

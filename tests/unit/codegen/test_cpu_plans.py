"""The plans of styles on the CPU: what the functions that write them do not decide."""

from collections.abc import Callable
from typing import Any

import pytest
from backend.fusions import D, S, build

from fuser_lab.codegen.pipeline import steps_of, text_of
from fuser_lab.codegen.request import KernelRequest


def softmax(axis: int) -> Callable[..., Any]:
    def record(fd: Any, x: Any) -> Any:
        e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [axis], keepdim=True)))
        return fd.ops.div(e, fd.ops.sum(e, [axis], keepdim=True))

    return record


def long_chain(fd: Any, x: Any) -> Any:
    for _ in range(400):
        x = fd.ops.neg(x)
    return fd.ops.pad(x, [2, 3])


# Ops, shapes of inputs, scheduler, and parts of the plan's text.
PLANS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], S, list[str]]] = {
    "a loop per section of a pad": (
        lambda fd, x: fd.ops.pad(x, [2, 3]), [(6, 40)], S.POINTWISE, ["rows=6, length=45", "limits=[0, 2, 42, 45]"],
    ),
    "one loop of more statements than sections may repeat": (
        long_chain, [(6, 40)], S.POINTWISE, ["rows=6, length=45", "limits=[0, 45]"],
    ),
    "a loop per digit of an index": (
        lambda fd, x: (fd.ops.exp(x), fd.ops.reshape(fd.ops.permute(fd.ops.reshape(x, [5, 2, 8]), [1, 0, 2]), [80])),
        [(80,)], S.POINTWISE, ["length=80", "digits=[5, 2, 8]"],
    ),
    "a long row in chunks": (lambda fd, x: fd.ops.exp(x), [(2, 200_000)], S.POINTWISE, ["rows=1", "chunks=25"]),
    "functions of short rows ahead": (
        lambda fd, x, y: fd.ops.mul(x, fd.ops.broadcast(fd.ops.exp(y), [False, True])), [(512, 16), (512,)],
        S.POINTWISE, ["rows=512, length=16", "staged=[T3]"],
    ),
    "a transposed input": (
        lambda fd, x, y: fd.ops.add(x, fd.ops.permute(y, [1, 0])), [(64, 96), (96, 64)], S.POINTWISE,
        ["across=i0, inputs=[T1], outputs=[]", "side=64"],
    ),
    "exponentials of a row, kept between passes": (
        softmax(1), [(64, 4000)], S.INNER_PERSISTENT,
        ["reductions=[T5], stored=[], ahead=[], saved=[T4]", "stored=[T7], ahead=[], saved=[], restored=[T4]"],
    ),
    "exponentials of columns, kept between passes": (
        softmax(0), [(40, 64)], S.OUTER_PERSISTENT,
        ["reductions=[T5], stored=[], ahead=[], saved=[T4]", "stored=[T7], ahead=[], saved=[], restored=[T4]"],
    ),
    "exponentials of columns that no cache holds": (
        softmax(0), [(4000, 64)], S.OUTER_PERSISTENT, ["reductions=[T5], stored=[], ahead=[], saved=[]"],
    ),
    "a row of many short sections": (
        lambda fd, x: fd.ops.cat([x, fd.ops.neg(x), fd.ops.exp(x), x, fd.ops.neg(x), fd.ops.exp(x), x, x], 1),
        [(64, 1)], S.RESIZE, ["rows=64, length=8", "limits=[0, 1, 2, 3, 4, 5, 6, 7, 8]"],
    ),
    "exponentials of fewer columns than a vector has": (
        lambda fd, x: fd.ops.sum(fd.ops.exp(x), [0]), [(400, 3)], S.REDUCTION, ["RowPlan"],
    ),
    "subtotals of columns": (
        softmax(0), [(400, 64)], S.OUTER_PERSISTENT, ["is_short=False", "length=400, has_subtotals=True"],
    ),
    "rows with an input contiguous across them": (
        lambda fd, x, y: fd.ops.sum(fd.ops.mul(x, fd.ops.permute(y, [1, 0])), [1]), [(512, 64), (64, 512)],
        S.REDUCTION, ["across=[T1], height=64, columns=64, length=64"],
    ),
    "rows that are added to sums of columns": (
        lambda fd, x: (fd.ops.mul(x, fd.ops.broadcast(fd.ops.sum(x, [1]), [False, True])), fd.ops.sum(x, [0])),
        [(64, 40)], S.INNER_OUTER_PERSISTENT, ["reductions=[T1], stored=[]", "added=[T4]", "stored=[T3]"],
    ),
    "sections of a scan": (
        lambda fd, x: fd.ops.cumsum(x, 1), [(6, 3000)], S.GREEDY, ["sections=3, parts=8, each=128"],
    ),
    "a short scan": (lambda fd, x: fd.ops.cumsum(x, 1), [(6, 8)], S.GREEDY, ["levels=[[T1]], sections=0"]),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_says_what_is_written(name: str) -> None:
    record, shapes, scheduler, parts = PLANS[name]
    request = KernelRequest(fusion=build(record, shapes, D.Float), scheduler=scheduler, target="cpu")
    text = text_of(next(made for step, made in steps_of(request) if step == "plan"))
    assert [part for part in parts if part not in text] == [], text


def test_subtotals_of_a_long_run_are_added_to_a_wide_total() -> None:
    def record(fd: Any, x: Any) -> Any:
        return fd.ops.sum(fd.ops.slice(x, [0, 0], [64, 5000]), [0, 1])

    request = KernelRequest(fusion=build(record, [(64, 6000)], D.Float), scheduler=S.REDUCTION, target="cpu")
    text = text_of(dict(steps_of(request))["write"])
    assert text.count("float64(t2_sum_part))") == 1, "the loop over blocks of a run adds each subtotal to the total"
    assert "t2_sum_part_1" not in text, "no subtotal is added to another in Float"

"""Long loops of CPU kernels, divided: bitwise the same values, with limits that make every loop long."""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from backend.fusions import CASES, Case, D, S, build, numbers

from fuser_lab.codegen import long_loops
from fuser_lab.codegen.index_map import index_var
from fuser_lab.codegen.kernel_eval import evaluate_kernel
from fuser_lab.codegen.kernel_ir import Alloc, Buffer, If, Kernel, Let, Load, Loop, Role, Statement, Store, walk
from fuser_lab.codegen.long_loops import Body, Weights, best_cuts, divide_long_loops, units_of
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Fusion
from fuser_lab.ir.term import Apply, Const, Term, Var, apply, index
from fuser_lab.ir.transform import ParallelType
from tests.kernels import lower
from tests.unit.codegen.test_kernels_in_lock_step import run
from tests.unit.codegen.test_vectorize import buffer, kernel

F = DataType.Float
SMALL = [case for case in CASES if sum(map(prod, case.shapes)) < 1000]  # those that are fast in lock step
j = index_var("j")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divides loops of more than 3 instructions, into parts of 4, for blocks of 8 rounds."""
    for name, limit in (("LONG", 3), ("PART", 4), ("ROUNDS", 8)):
        monkeypatch.setattr(long_loops, name, limit)


def undivided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_loops, "LONG", 1 << 60)


def kept(body: tuple[Statement, ...]) -> list[Buffer]:
    return [s.buffer for s in walk(body) if isinstance(s, Alloc) and s.buffer.name.startswith("kept")]


def innermost(body: tuple[Statement, ...]) -> list[Loop]:
    loops = [s for s in walk(body) if isinstance(s, Loop)]
    return [loop for loop in loops if not any(isinstance(s, Loop) for s in walk(loop.body))]


def chain(fd: Any, x: Any, y: Any) -> Any:
    """Values with different lifetimes, each short once and long once."""
    o = fd.ops
    z = x
    for number in range(12):
        older, z = z, o.add(o.mul(z, 0.5), y if number % 3 else x)
        if number % 4 == 0:
            z = o.where(o.gt(z, y), z, o.neg(older))
    return z, o.exp(o.mul(z, y))


def padded(fd: Any, x: Any, y: Any) -> Any:
    o = fd.ops
    z = o.cat([o.exp(o.mul(o.add(x, y), 0.5)), o.neg(o.sub(o.mul(y, y), x))], -1)
    return o.pad(o.mul(o.add(z, 1.0), z), [2, 3])


def summed(fd: Any, x: Any, y: Any) -> Any:
    o = fd.ops
    z = o.add(o.mul(o.sub(x, y), 0.5), o.mul(x, y))
    total = o.sum(z, [1], keepdim=True)
    return o.div(o.sub(z, o.max(z, [1], keepdim=True)), o.add(o.mul(total, total), 1.0)), total


def looked_up(fd: Any, x: Any, y: Any) -> Any:
    o = fd.ops
    places = o.cast(o.mul(o.abs(y), 3.0), dtype=D.Int)
    return o.mul(o.gather(x, places, 1), o.add(o.cast(places, dtype=D.Float), y))


RECORDS: dict[str, tuple[Callable[..., Any], S]] = {
    "chain": (chain, S.POINTWISE), "padded": (padded, S.RESIZE), "summed": (summed, S.INNER_PERSISTENT),
    "looked up": (looked_up, S.POINTWISE),
}


def same(fusion: Fusion, scheduler: S, inputs: list[np.ndarray], monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """Run a kernel with and without divided loops, and compare the results."""
    found, got = run(fusion, scheduler, "cpu", inputs)
    undivided(monkeypatch)
    whole, wanted = run(fusion, scheduler, "cpu", inputs)
    assert not any(kept(phase.body) for phase in whole.phases)
    for a, b in zip(got, wanted, strict=True):
        assert a.tobytes() == b.tobytes()
    return found


def let(name: str, value: Term, *, update: bool = False) -> Let:
    return Let(name=name, value=value, update=update)


def var(name: str) -> Var:
    return Var(F, name)


T0, T1 = buffer("T0", 64), buffer("T1", 64, Role.OUTPUT)
X = Load(F, T0, j)
LINES = (
    let("a", X * 2.0 + 1.0), let("b", var("a") * var("a") - X),
    Store(buffer=T1, position=j, value=var("b") * var("b")),
)


def dependences(*statements: Statement) -> Body:
    return Body(tuple(units_of(statements, Weights())), "j")


def results(body: tuple[Statement, ...]) -> np.ndarray:
    memory = {"T0": np.linspace(-2, 2, 64, dtype=np.float32), "T1": np.full(64, np.nan, np.float32)}
    evaluate_kernel(kernel(*body), memory)
    return memory["T1"]


def loop(*body: Statement, stop: int = 50) -> Loop:
    return Loop(var="j", start=index(0), stop=index(stop), parallel=ParallelType.vectorize, body=body)


def check(*body: Statement) -> tuple[Statement, ...]:
    """Compare the results of a body and of the divided one, which is returned."""
    found = divide_long_loops(body)
    np.testing.assert_array_equal(results(found), results(body))
    return found


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_kernels_of_all_kinds_have_the_same_results(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    same(case.fusion(), case.scheduler, case.inputs(), monkeypatch)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(3, 7), (2, 16), (2, 17), (1, 1)], ids=str)
@pytest.mark.parametrize("name", RECORDS)
def test_rounds_that_fill_the_last_block_or_do_not(
    name: str, shape: tuple[int, int], dtype: DataType, monkeypatch: pytest.MonkeyPatch,
) -> None:
    record, scheduler = RECORDS[name]
    fusion = build(record, [shape, shape], dtype)
    found = same(fusion, scheduler, [numbers(shape, dtype), numbers(shape, dtype, 1)], monkeypatch)
    assert any(kept(phase.body) for phase in found.phases) or shape == (1, 1)


@pytest.mark.usefixtures("short")
def test_a_loop_that_threads_share_is_one_over_blocks() -> None:
    (outer,) = check(replace(loop(*LINES), parallel=ParallelType.grid_x))
    assert isinstance(outer, Loop)
    assert (outer.var, outer.parallel, outer.stop) == ("j_block", ParallelType.grid_x, index(7))
    assert kept(outer.body)
    assert {inner.parallel for inner in innermost((outer,))} == {ParallelType.vectorize}


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("limit", "stop", "blocks"), [
    (60, index_var("unit") * 20 + 20, [index(3)]),  # 20 rounds each
    (50, apply("min", index_var("unit") * 20 + 20, 50), [index(3)]),
    (50, apply("min", index(50), index_var("unit") * index_var("unit") * 30 + 10), None),  # any number of rounds
    (10, apply("min", index_var("unit") * 20 + 5, 10), []),  # few
])
def test_bounds_that_depend_on_the_loop_around(limit: int, stop: Term, blocks: list[Term] | None) -> None:
    inner = Loop(
        var="j", start=index_var("unit") * 20, stop=stop, parallel=ParallelType.vectorize, body=LINES,
    )
    count = index(-(-limit // 20))
    outer = Loop(var="unit", start=index(0), stop=count, parallel=ParallelType.serial, body=(inner,))
    found = check(outer)
    stops = [s.stop for s in walk(found) if isinstance(s, Loop) and s.var == "j_block"]
    assert stops == blocks or (blocks is None and len(stops) == 1 and not isinstance(stops[0], Const))


def test_short_loops_stay() -> None:
    for case in CASES:
        for phase in lower(case.fusion(), case.scheduler, "cpu", "kernel", {}).phases:
            assert divide_long_loops(phase.body) is phase.body


@pytest.mark.usefixtures("short")
def test_kernels_for_gpus_stay() -> None:
    fusion = build(chain, [(20, 64)] * 2, D.Float)
    (phase,) = lower(fusion, S.POINTWISE, "cuda", "kernel", {}).phases
    assert kept(phase.body) == []


def test_a_chain_of_1200_ops_is_cut_where_one_value_crosses() -> None:
    def long(fd: Any, x: Any, y: Any) -> Any:
        z = x
        for number in range(1200):
            z = fd.ops.mul(z, 0.99) if number % 2 else fd.ops.add(z, y)
        return z

    (phase,) = lower(build(long, [(40, 1024)] * 2, D.Float), S.POINTWISE, "cpu", "kernel", {}).phases
    parts = innermost(phase.body)
    assert len(parts) == 4
    # One of the two inputs is read again by each part, the other only by the first.
    assert len(kept(phase.body)) == 2  # the values that enter and leave a part are in different arrays
    weights = [sum(map(Weights().whole, loop.body)) for loop in parts]
    assert max(weights) <= 1.2 * sum(weights) / len(weights)
    names = [s.name for loop in parts for s in loop.body if isinstance(s, Let)]
    assert len(names) == len(set(names))


# Loops that are not divided


def test_what_rounds_pass_on_stays_in_one_part() -> None:
    body = dependences(
        let("a", X), let("b", var("a") * 2.0), let("sum", var("sum") + var("b"), update=True), let("c", var("b") + 1.0),
        Store(buffer=T1, position=j, value=var("sum")), let("d", var("c") * 3.0),
    )
    assert body.ties == ((2, 4),)
    assert body.repeated == {"a": 0}
    assert body.crossing() == [0, 0, 1, 2, 2, 1]  # b, the sum, c; a is loaded again


def test_assignments_of_one_name_stay_together() -> None:
    choice = [If(condition=j < 3, then=(let("c", X),), otherwise=(let("c", -X),)), let("d", var("c"))]
    assert dependences(*choice).ties == ()
    assert dependences(let("p", X), let("q", X), let("p", X * 2.0, update=True), let("r", var("p"))).ties == ((0, 2),)


def test_accesses_to_an_array_stay_together_unless_each_round_has_an_element() -> None:
    row = buffer("row", 64, Role.SCRATCH)

    def ties(read: Term, write: Term) -> tuple[tuple[int, int], ...]:
        return dependences(
            let("a", Load(F, row, read)), let("b", var("a") * 2.0), Store(buffer=row, position=write, value=var("b")),
        ).ties

    assert ties(j, j) == ()
    assert ties(j, j + 1) == ((0, 2),)
    assert ties(index(0), index(0)) == ((0, 2),)
    written = dependences(Store(buffer=row, position=j, value=X), Store(buffer=row, position=j + 1, value=X))
    assert written.ties == ()


def test_an_element_that_the_loop_stores_is_not_read_again() -> None:
    row = buffer("row", 64, Role.SCRATCH)
    body = dependences(let("a", Load(F, row, j)), Store(buffer=row, position=j, value=X), let("b", var("a") + 1.0))
    assert body.repeated == {}
    assert body.crossing() == [0, 1, 1]


def test_indices_are_computed_again_unless_they_are_of_values() -> None:
    position = Apply(DataType.Index, "cast", (var("b"),))
    body = dependences(
        let("place", j * 2 + 1), let("a", Load(F, T0, Var(DataType.Index, "place"))), let("b", var("a") + 1.0),
        let("at", position), let("c", Load(F, T0, Var(DataType.Index, "at"))),
    )
    assert body.repeated.keys() == {"place", "a"}


@pytest.mark.usefixtures("short")
def test_sums_and_rows_in_divided_loops() -> None:
    row = buffer("row", 64, Role.SCRATCH)
    start = (Alloc(buffer=row), let("sum", Const(F, 0.0)))
    first = loop(
        let("a", X), let("b", var("a") * 2.0), let("c", var("b") - var("a") * var("b")),
        let("sum", var("sum") + var("c"), update=True), let("d", var("c") * var("b")),
        Store(buffer=row, position=j, value=var("d") + var("sum")),
    )
    second = loop(
        let("a", Load(F, row, j)), let("b", var("a") * var("sum")), let("c", var("b") + var("a") * var("b")),
        Store(buffer=row, position=j, value=var("c") * 0.5), let("e", apply("exp", var("c"))),
        Store(buffer=T1, position=j, value=var("e") - Load(F, row, j)),
    )
    found = check(*start, first, second)
    assert len(innermost(found)) > 4


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("stop", [5, 50])
def test_long_choices_are_cut(stop: int) -> None:
    inside = [*LINES[:2], let("c", var("b") * var("a") + var("k") * 2.0)]
    choice = If(
        condition=j < 3, then=(*inside, let("t", var("c") + var("a"))),
        otherwise=(let("u", var("k") * X - 1.0), let("v", var("u") * var("k") + X), let("t", var("v") * var("u"))),
    )
    last = Store(buffer=T1, position=j, value=var("t") + var("k"))
    found = check(loop(let("k", apply("exp", X)), choice, last, stop=stop))
    parts = innermost(found)
    assert len(parts) > 2
    assert sum(any(isinstance(s, If) for s in part.body) for part in parts) > 1


@pytest.mark.usefixtures("short")
def test_elements_are_read_again_where_they_are_in_range_only() -> None:
    condition = j < 20
    choice = If(
        condition=condition,
        then=(let("a", Load(F, T0, j + 44)), let("b", var("a") * 2.0 + X), let("t", var("b") * var("b") - var("a"))),
        otherwise=(let("t", X * 3.0 - 1.0),),
    )
    check(loop(let("k", X + 1.0), choice, Store(buffer=T1, position=j, value=var("t") * var("k"))))


@pytest.mark.usefixtures("short")
def test_loops_with_other_statements_stay() -> None:
    whole = loop(Alloc(buffer=buffer("row", 8, Role.SCRATCH)), *LINES)
    assert divide_long_loops((whole,)) == (whole,)


# Where to cut


@pytest.mark.parametrize(("weights", "crossing", "closed", "cuts"), [
    ([1] * 8, [0, 5, 5, 1, 5, 5, 1, 5], (), (0, 3, 6, 8)),  # the fewest values, not the longest parts
    ([1] * 8, [0, 5, 5, 1, 5, 5, 1, 5], (3,), (0, 4, 8)),
    ([4] * 3, [0, 9, 9], (), (0, 1, 2, 3)),
    ([9, 1, 9], [0, 1, 1], (), (0, 1, 2, 3)),  # a statement heavier than a part is alone
    ([1] * 8, [0] + [1] * 7, tuple(range(1, 7)), (0, 7, 8)),  # and dependent statements stay together
    ([1] * 3, [0, 0, 0], (), (0, 3)),
])
def test_cuts_are_where_few_values_cross(
    weights: list[int], crossing: list[int], closed: tuple[int, ...], cuts: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_loops, "PART", 4)
    allowed = [place not in closed for place in range(len(weights) + 1)]
    assert best_cuts(weights, crossing, allowed) == cuts


def test_a_product_stays_with_its_only_sum() -> None:
    body = dependences(let("a", X * 2.0), let("b", var("a") + 1.0), let("c", var("b") + 1.0), let("d", var("c") + 1.0))
    assert body.crossing() == [0, 3, 1, 1]

"""Lookups of large nests: several positions of a thread are loaded together, then the elements there."""

from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build, numbers

from fuser_lab.codegen.kernel_ir import (
    Kernel,
    Load,
    Loop,
    Role,
    Statement,
    Store,
    VectorLoad,
    VectorStore,
    terms_of,
    walk,
)
from fuser_lab.cost.device import H200
from fuser_lab.ir.transform import ParallelType
from tests.kernels import generate
from tests.unit.codegen.test_gpu_memory import ONE_SM, run


def rows(fd: Any, x: Any, i: Any, weight: Any) -> Any:
    taken = fd.ops.cast(fd.ops.index_select(x, i, 0), D.Float)
    return fd.ops.mul(taken, fd.ops.broadcast(weight, [False, True]))


def elements(fd: Any, x: Any, i: Any) -> Any:
    return fd.ops.mul(fd.ops.gather(x, i, 1), 2.0)


def added(fd: Any, table: Any, i: Any, places: Any) -> Any:
    tokens = fd.ops.index_select(table, fd.ops.reshape(i, [i.size(0) * i.size(1)]), 0)
    tokens = fd.ops.reshape(tokens, [i.size(0), i.size(1), table.size(1)])
    return fd.ops.add(tokens, fd.ops.broadcast(places, [True, False, False]))


def chained(fd: Any, x: Any, i: Any) -> Any:
    return fd.ops.neg(fd.ops.index_select(x, fd.ops.index_select(i, fd.ops.abs(i), 0), 0))


def two_tables(fd: Any, x: Any, i: Any, y: Any) -> Any:
    first, second = (fd.ops.index_select(t, i, 0) for t in (x, y))
    return fd.ops.add(first, second), fd.ops.neg(first)


CASES: dict[str, tuple[Any, tuple[tuple[int, ...], ...], list[D], int]] = {
    "rows": (rows, ((50, 64), (600,), (600,)), [D.Float, D.Int, D.Float], 50),
    "narrow rows": (rows, ((50, 64), (1100,), (1100,)), [D.BFloat16, D.Int32, D.BFloat16], 50),
    "blocks that are not full": (rows, ((50, 44), (777,), (777,)), [D.Float, D.Int, D.Float], 50),
    "elements": (elements, ((300, 96), (300, 60)), [D.Float, D.Int], 96),
    "one by one": (elements, ((131, 67), (131, 67)), [D.ComplexDouble, D.Int], 67),
    "a table for all": (added, ((60, 160), (8, 256), (256, 160)), [D.Float, D.Int, D.Float], 60),
    "positions from positions": (chained, ((700, 48), (700,)), [D.Float, D.Int], 700),
    "two tables": (two_tables, ((40, 64), (600,), (40, 64)), [D.Float, D.Int, D.Float], 40),
}


def inputs_of(name: str) -> list[np.ndarray]:
    _, shapes, dtypes, size = CASES[name]
    found = [numbers(shape, dtype, n) for n, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))]
    found[1] = np.random.default_rng(0).integers(0, size, shapes[1]).astype(dtypes[1].numpy)
    return found


def loops_of(kernel: Kernel) -> list[Loop]:
    (phase,) = kernel.phases
    unrolled = [s for s in walk(phase.body) if isinstance(s, Loop) and s.parallel is ParallelType.unroll]
    assert unrolled
    return unrolled


def loaded(statement: Statement) -> set[str]:
    found = {s.buffer for s in walk((statement,)) if isinstance(s, VectorLoad)}
    terms = (t for s in walk((statement,)) for root in terms_of(s) for t in root.walk())
    found |= {t.buffer for t in terms if isinstance(t, Load)}
    return {buffer.name for buffer in found if buffer.role is Role.INPUT}


@pytest.mark.parametrize("name", CASES)
def test_positions_then_elements_then_results(name: str) -> None:
    record, shapes, dtypes, _ = CASES[name]
    kernel = run(build(record, shapes, dtypes), S.POINTWISE, inputs_of(name), ONE_SM)
    (nest,) = kernel.nests
    assert nest.schedule.unroll == 4
    loops = loops_of(kernel)
    storing = [
        any(isinstance(s, Store | VectorStore) and s.buffer.role is Role.OUTPUT for s in walk((loop,)))
        for loop in loops
    ]
    assert storing == [False] * (len(loops) - 1) + [True]
    first = [next(n for n, loop in enumerate(loops) if f"T{number}" in loaded(loop)) for number in range(len(shapes))]
    assert first[1] < first[0], "positions come before the elements there"
    read = [name for loop in loops for name in loaded(loop)]
    assert len(read) == len(shapes) + (name == "positions from positions"), "each input is read in one loop"
    assert not loaded(loops[-1]), "nothing is loaded while results are stored"


def test_what_shares_a_table_lies_a_grid_apart() -> None:
    record, shapes, dtypes, _ = CASES["a table for all"]
    (nest,) = generate(build(record, shapes, dtypes), S.POINTWISE, "cuda", device=ONE_SM).kernel_ir.nests
    assert nest.space.repeats == 4
    assert nest.space.looked_up


def test_few_elements_have_a_thread_each() -> None:
    record, shapes, dtypes, _ = CASES["rows"]
    (nest,) = generate(build(record, shapes, dtypes), S.POINTWISE, "cuda", device=H200).kernel_ir.nests
    assert nest.space.looked_up
    assert nest.schedule.unroll == 1


def test_sizes_that_fill_blocks_share_a_kernel() -> None:
    def source(count: int) -> str:
        fusion = build(rows, ((50, 64), (count,), (count,)), [D.Float, D.Int, D.Float])
        text = generate(fusion, S.POINTWISE, "cuda", device=ONE_SM).source
        return "\n".join(line for line in text.splitlines() if not line.startswith("#"))

    assert source(800) == source(960)
    assert source(801) == source(963)


def largest_of_columns(fd: Any, x: Any, i: Any, table: Any) -> Any:
    added = fd.ops.add(x, fd.ops.index_select(table, i, 0))
    return added, fd.ops.max(added, [0])


def sums_of_columns(fd: Any, x: Any, i: Any, table: Any) -> Any:
    return fd.ops.sum(fd.ops.add(x, fd.ops.index_select(table, i, 0)), [0])


@pytest.mark.parametrize("record", [largest_of_columns, sums_of_columns])
@pytest.mark.parametrize("count", [64, 301])
def test_columns_have_several_positions_then_elements_in_flight(record: Any, count: int) -> None:
    shapes, dtypes = ((count, 36), (count,), (50, 36)), [D.Float, D.Int, D.Float]
    found = [numbers(shape, dtype, n) for n, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))]
    found[1] = np.random.default_rng(0).integers(0, 50, count)
    kernel = run(build(record, shapes, dtypes), S.REDUCTION, found, ONE_SM)
    assert kernel.nests[0].schedule.unroll > 1
    loops = [s for s in walk(kernel.phases[0].body) if isinstance(s, Loop) and s.var.startswith("u")]
    read = [loaded(loop) for loop in loops if loaded(loop)]
    assert {"T1"} in read
    assert read[read.index({"T1"}) + 1] == {"T2"}

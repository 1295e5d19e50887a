"""Reductions whose inputs have different fastest axes in memory: tiles of both go through shared memory."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build, close, numbers

import fuser_lab as fl
from fuser_lab.codegen.kernel_ir import Alloc, Kernel, Load, Role, VectorLoad, terms_of, walk
from fuser_lab.cost.device import H200
from fuser_lab.errors import ScheduleError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion
from fuser_lab.schedule.gpu_tile_sum_loops import tile_sum_loops
from fuser_lab.schedule.state import Evict, Space, Style
from tests.kernels import generate
from tests.unit.codegen.test_gpu_memory import run as run_on
from tests.unit.codegen.test_kernels_in_lock_step import run


def squares(fd: Any, x: Any) -> Any:
    d = fd.ops.sub(x, fd.ops.permute(x, [1, 0]))
    return fd.ops.sum(fd.ops.mul(d, d), [1])


def of_columns(fd: Any, x: Any) -> Any:
    return fd.ops.max(fd.ops.sub(x, fd.ops.permute(x, [1, 0])), [0])


def several(fd: Any, x: Any) -> Any:
    d = fd.ops.add(fd.ops.cast(x, D.Float), fd.ops.permute(fd.ops.cast(x, D.Float), [0, 2, 1]))
    return fd.ops.max(d, [2]), fd.ops.cast(fd.ops.sum(d, [2]), D.BFloat16), fd.ops.min(d, [2])


def products(fd: Any, x: Any, y: Any) -> Any:
    return fd.ops.sum(fd.ops.mul(fd.ops.permute(x, [1, 0]), y), [1])


def scaled(fd: Any, x: Any, y: Any, weight: Any) -> Any:
    z = fd.ops.mul(fd.ops.permute(x, [1, 0]), fd.ops.broadcast(weight, [True, False]))
    return fd.ops.sum(fd.ops.add(z, fd.ops.exp(y)), [1])


def two_axes(fd: Any, x: Any, y: Any) -> Any:
    return fd.ops.sum(fd.ops.mul(fd.ops.permute(x, [2, 0, 1]), y), [1, 2])


def before_all(fd: Any, x: Any, y: Any) -> Any:
    return fd.ops.sum(fd.ops.mul(fd.ops.permute(x, [0, 2, 1]), y), [0, 2])


def pairs(fd: Any, x: Any, y: Any) -> Any:
    d = fd.ops.sub(fd.ops.broadcast(x, [False, False, True]), fd.ops.broadcast(y, [False, True, False]))
    return fd.ops.sum(fd.ops.exp(d), [2])


NO_CACHE = replace(H200, l2=1)
Shapes = tuple[tuple[int, ...], ...]
CASES: dict[str, tuple[Callable[..., Any], Shapes, D]] = {
    "squares": (squares, ((128, 128),), D.Float), "odd": (squares, ((83, 83),), D.Float),
    "turns that parts do not divide": (squares, ((280, 280),), D.Float), "double": (squares, ((70, 70),), D.Double),
    "columns": (of_columns, ((96, 96),), D.BFloat16), "batches": (several, ((3, 72, 72),), D.BFloat16),
    "odd batches": (several, ((2, 45, 45),), D.BFloat16), "bytes": (of_columns, ((80, 80),), D.Char),
    "another tensor": (products, ((100, 40), (40, 100)), D.Float),
    "one band": (products, ((700, 20), (20, 700)), D.Half),
    "a vector": (scaled, ((72, 64), (64, 72), (72,)), D.Float),
    "two axes": (two_axes, ((5, 40, 32), (32, 5, 40)), D.Float),
    "around": (before_all, ((6, 20, 48), (6, 48, 20)), D.Float),
}


TURNED: dict[str, tuple[Callable[..., Any], Shapes, D]] = {
    "sum": (lambda fd, x: fd.ops.add(x, fd.ops.permute(x, [1, 0])), ((200, 200),), D.Float),
    "odd": (lambda fd, x: fd.ops.sub(x, fd.ops.permute(x, [1, 0])), ((147, 147),), D.BFloat16),
    "batches": (lambda fd, x: fd.ops.sub(x, fd.ops.permute(x, [0, 2, 1])), ((3, 150, 150),), D.Float),
}


def kernel_of(name: str) -> Kernel:
    record, shapes, dtype = CASES[name]
    return generate(build(record, shapes, dtype), S.REDUCTION, "cuda").kernel_ir


def check(fusion: Fusion, inputs: list[np.ndarray]) -> None:
    _, got = run(fusion, S.REDUCTION, "cuda", inputs)
    for tv, a, b in zip(fusion.outputs, got, evaluate(fusion, inputs, exact=False), strict=True):
        close(a, np.asarray(b).astype(tv.dtype.numpy), tv.dtype)


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_computes_what_the_reference_does(name: str) -> None:
    record, shapes, dtype = CASES[name]
    assert kernel_of(name).nests[0].schedule.style is Style.TILES
    check(build(record, shapes, dtype), [numbers(shape, dtype, number) for number, shape in enumerate(shapes)])


@pytest.mark.parametrize("name", ["squares", "odd", "turns that parts do not divide", "batches", "bytes"])
def test_tiles_that_mirror_each_other_are_all_read(name: str) -> None:
    record, shapes, dtype = CASES[name]
    inputs = [numbers(shape, dtype, number) for number, shape in enumerate(shapes)]
    for device in (NO_CACHE, replace(NO_CACHE, sms=1)):
        kernel = run_on(build(record, shapes, dtype), S.REDUCTION, inputs, device)
        assert kernel.nests[0].space.mirrored


@pytest.mark.parametrize("name", TURNED)
def test_tiles_without_reductions_that_mirror_each_other_are_all_written(name: str) -> None:
    record, shapes, dtype = TURNED[name]
    inputs = [numbers(shape, dtype, number) for number, shape in enumerate(shapes)]
    kernel = run_on(build(record, shapes, dtype), S.POINTWISE, inputs, NO_CACHE)
    assert kernel.nests[0].space.mirrored


def test_inputs_that_lie_column_by_column() -> None:
    fusion = build(lambda fd, x, y: fd.ops.sum(fd.ops.mul(x, y), [1]), ((60, 90), (60, 90)), D.Float)
    check(fusion, [numbers((60, 90), D.Float, 0), np.asfortranarray(numbers((60, 90), D.Float, 1))])


@pytest.mark.parametrize("name", ["squares", "another tensor", "batches"])
def test_all_memory_is_read_in_whole_accesses(name: str) -> None:
    phase = kernel_of(name).phases[0]
    assert any(isinstance(s, Alloc) and s.buffer.role is Role.SHARED for s in walk(phase.body))
    loads = [s for s in walk(phase.body) if isinstance(s, VectorLoad) and s.buffer.role is Role.INPUT]
    versions = {"squares": 1, "another tensor": 1, "batches": 2}  # whole tiles have code of their own
    assert len(loads) == 2 * versions[name]
    assert {s.width * s.buffer.dtype.itemsize for s in loads} == {16}
    single = [t for s in walk(phase.body) for root in terms_of(s) for t in root.walk() if isinstance(t, Load)]
    assert not any(t.buffer.role is Role.INPUT for t in single)


@pytest.mark.parametrize(("record", "shapes"), [
    (lambda fd, x: fd.ops.sum(x, [1]), ((400, 400),)),
    (lambda fd, x: fd.ops.sum(fd.ops.permute(x, [1, 0]), [1]), ((400, 400),)),
    (squares, ((12, 12),)),
    (lambda fd, x: fd.ops.softmax(fd.ops.add(x, fd.ops.permute(x, [1, 0])), 1), ((200, 200),)),
    (pairs, ((40, 64), (40, 48))),
], ids=["rows", "columns", "small", "two passes", "pairs"])
def test_other_reductions_have_no_tiles(record: Any, shapes: Shapes) -> None:
    fusion = build(record, shapes, D.Float)
    for nest in generate(fusion, S.INNER_PERSISTENT, "cuda").kernel_ir.nests:
        assert nest.schedule.style is not Style.TILES


@pytest.mark.parametrize("count", [2, 5, 8])
@pytest.mark.parametrize("reduces", [True, False])
def test_what_is_read_straight_and_transposed_is_read_at_about_the_same_time(count: int, *, reduces: bool) -> None:
    """Tiles that mirror each other run in the same round or the next."""
    size = 64 * count
    record = squares if reduces else lambda fd, x: fd.ops.add(x, fd.ops.permute(x, [1, 0]))
    scheduler = S.REDUCTION if reduces else S.POINTWISE
    fusion = build(record, ((size, size),), D.Float)
    assert not generate(fusion, scheduler, "cuda").kernel_ir.nests[0].space.mirrored, "the cache holds all of it"
    made = generate(fusion, scheduler, "cuda", device=NO_CACHE)
    (nest,) = made.kernel_ir.nests
    assert nest.space.mirrored
    tiles = size // nest.schedule.tile
    lines = [line.strip() for line in made.source.splitlines()]
    order = [next(line for line in lines if line.startswith(f"{name} = ")) for name in ("distance", "tile_other")]
    turns = {}
    for turn, number in product(range(tiles), repeat=2):
        names = {"step": turn, "block": turn * tiles + number, "tile_along": number, "index32": int}
        names["where"] = lambda holds, yes, no: yes if holds else no
        for line in order:
            exec(line, names)
        turns[number, names["tile_other"]] = turn
    assert len(turns) == tiles**2
    assert all(abs(turn - turns[b, a]) <= 1 for (a, b), turn in turns.items())


def test_cached_inputs_are_not_evicted_first() -> None:
    space = Space(
        kept=(8192,), reduced=(8192,), kept_run=8192, reduced_run=8192, inner_reduced=True, passes=1, reduces=True,
        vector=4, transposed=(8192, 8192), itemsize=4, read_bytes=4, sum_bytes=4, widest_sum=4, mirrored=True,
    )
    loops = tile_sum_loops(space)
    assert loops is not None
    assert (loops.tile, loops.threads, loops.split, loops.evict) == (64, (256, 1), 4, Evict.NORMAL)


def test_parameters_by_hand() -> None:
    with fl.FusionDefinition() as fd:
        fd.add_output(squares(fd, fd.define_tensor([4096, 4096], contiguity=True)))
    plan = fl.segment(fd, schedulers=fl.OPEN_SCHEDULERS, strategy="fastest")
    changed = plan.with_params(0, tile=32, threads=64, split=3)
    (segment,) = changed.segments
    (nest,) = segment.params("cuda")
    assert (nest.schedule.tile, nest.schedule.threads, nest.schedule.split) == (32, (64, 1), 3)
    with pytest.raises(ScheduleError, match="must be a power of two from 64, a side of the tiles"):
        plan.with_params(0, threads=96)
    with pytest.raises(ScheduleError, match="vector is not a parameter"):
        plan.with_params(0, vector=1)

"""Memory optimizations of GPU kernels: hints to the L2 cache, transposed tiles, columns that are read once."""

import math
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build, close, numbers

import fuser_lab as fl
from fuser_lab.codegen.kernel_eval import evaluate_kernel
from fuser_lab.codegen.kernel_ir import Alloc, Kernel, Load, Loop, Role, VectorLoad, VectorStore, terms_of, walk
from fuser_lab.cost.device import H200, Device
from fuser_lab.errors import ScheduleError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion, OpKind
from fuser_lab.passes.fmin_fmax_promotion import FMinFMaxPromotion
from fuser_lab.runtime.arrays import flat_view, storage_dtype
from fuser_lab.schedule.parameters import choose_loops
from fuser_lab.schedule.state import Evict, LoopSchedule, Space, Style, eviction
from tests.kernels import generate

ONE_SM = replace(H200, name="one", sms=1)  # many tiles even for tensors that are small enough for lock step
NORM = [(16384, 8192), (16384, 8192), (8192,), (16384, 1)]


def schedules(kernel: Kernel) -> list[LoopSchedule]:
    return [nest.schedule for nest in kernel.nests]


def kernel_of(record: Any, shapes: list[tuple[int, ...]], dtype: Any, scheduler: S, device: Device = H200) -> Kernel:
    return generate(build(record, shapes, dtype), scheduler, "cuda", device=device).kernel_ir


def loads(kernel: Kernel) -> list[VectorLoad]:
    found = [s for phase in kernel.phases for s in walk(phase.body) if isinstance(s, VectorLoad)]
    return [s for s in found if s.buffer.role is Role.INPUT]


def run(fusion: Fusion, scheduler: S, inputs: list[np.ndarray], device: Device = H200) -> Kernel:
    """Evaluate a kernel in lock step, each output written once, and compare it with the reference."""
    kernel = generate(fusion, scheduler, "cuda", device=device).kernel_ir
    memory: dict[str, Any] = {
        tv.name: flat_view(x, tv.dtype, x.size, 0) for tv, x in zip(fusion.tensor_inputs, inputs, strict=True)
    }
    for tv in fusion.outputs:
        memory[tv.name] = np.full(math.prod(tv.shape), 77).astype(storage_dtype(tv.dtype))
    writes = evaluate_kernel(kernel, memory).writes
    with np.errstate(invalid="ignore"):
        wanted = evaluate(fusion, inputs, exact=False)
    for tv, expected in zip(fusion.outputs, wanted, strict=True):
        assert (writes[tv.name] == 1).all()
        got = memory[tv.name].view(tv.dtype.numpy).reshape(tv.shape)
        close(got, np.asarray(expected).astype(tv.dtype.numpy), tv.dtype)
    return kernel


# The L2 cache


def normalized(fd: Any, x: Any) -> Any:
    f = fd.ops.cast(x, D.Float)
    return fd.ops.cast(fd.ops.mul(f, fd.ops.rsqrt(fd.ops.sum(fd.ops.mul(f, f), [1], keepdim=True))), x.dtype)


def total(fd: Any, x: Any) -> Any:
    return fd.ops.sum(fd.ops.cast(x, D.Float), [1])


@pytest.mark.parametrize(
    ("record", "scheduler", "rows", "evict"),
    [
        (normalized, S.INNER_PERSISTENT, 16384, Evict.LAST), (normalized, S.INNER_PERSISTENT, 1024, Evict.NORMAL),
        (lambda fd, x: fd.ops.relu(x), S.POINTWISE, 16384, Evict.LAST),
        (lambda fd, x: fd.ops.relu(x), S.POINTWISE, 1024, Evict.NORMAL), (total, S.REDUCTION, 16384, Evict.FIRST),
        (total, S.REDUCTION, 65536, Evict.NORMAL),
        (lambda fd, x: fd.ops.permute(fd.ops.neg(x), [1, 0]), S.TRANSPOSE, 16384, Evict.LAST),
    ],
)
def test_loads_say_what_the_cache_gives_up_first(record: Any, scheduler: S, rows: int, evict: Evict) -> None:
    kernel = kernel_of(record, [(rows, 8192)], D.BFloat16, scheduler)
    assert {load.evict for load in loads(kernel)} == {evict}
    assert [s.evict for s in schedules(kernel)] == [evict]
    source = generate(build(record, [(rows, 8192)], D.BFloat16), scheduler, "cuda").source
    name = {Evict.LAST: "load_retained(", Evict.FIRST: "load_streamed(", Evict.NORMAL: "load_vector("}[evict]
    assert name in source
    said = any("keeps inputs and evicts outputs first" in text for text in schedules(kernel)[0].reasons)
    assert said == (evict is Evict.LAST)


def test_a_device_without_such_hints_is_given_none() -> None:
    old = replace(H200, cc=(7, 5))
    assert {s.evict for s in loads(kernel_of(normalized, [(16384, 8192)], D.BFloat16, S.INNER_PERSISTENT, old))} == {
        Evict.NORMAL,
    }


@pytest.mark.parametrize(("at", "hint"), [(32, Evict.NORMAL), (64, Evict.LAST)])
def test_what_other_threads_read_has_no_hint_and_what_one_thread_reads_has_one(at: int, hint: Evict) -> None:
    def record(fd: Any, x: Any, scale: Any) -> Any:
        rolled = fd.ops.cat([fd.ops.slice(x, [0, at], [65536, 128]), fd.ops.slice(x, [0, 0], [65536, at])], 1)
        return fd.ops.add(fd.ops.mul(rolled, scale), x)

    kernel = kernel_of(record, [(65536, 128), (65536, 128)], D.Float, S.RESIZE, replace(H200, l2=1 << 20))
    found = {load.buffer.name: load.evict for load in loads(kernel)}
    x, scale = kernel.inputs
    assert found == {x.name: hint, scale.name: Evict.LAST}


def test_the_cache_is_asked_of_the_device() -> None:
    space = Space(kept=(1 << 20,), reduced=(), kept_run=1, reduced_run=1, inner_reduced=False, passes=1)
    sizes = [replace(space, stored_bytes=n) for n in (2 * H200.l2, 2 * H200.l2 + 1)]
    assert [eviction(s) for s in sizes] == [Evict.NORMAL, Evict.LAST]
    assert eviction(replace(sizes[1], device=replace(H200, l2=2 * H200.l2))) is Evict.NORMAL


# Tiles


def turned_sum(fd: Any, x: Any, y: Any) -> Any:
    return fd.ops.cast(fd.ops.add(fd.ops.permute(x, [1, 0]), y), x.dtype)


@pytest.mark.parametrize(("dtype", "tile"), [(D.BFloat16, 128), (D.Float, 64), (D.Double, 32)], ids=str)
def test_large_tensors_are_turned_in_rows_of_two_cache_lines(dtype: Any, tile: int) -> None:
    large, small = ([s, s[::-1]] for s in ((16384, 8192), (512, 256)))
    for shapes, size in ((large, tile), (small, tile // 2)):
        (schedule,) = schedules(kernel_of(turned_sum, shapes, dtype, S.TRANSPOSE))
        assert schedule.tile == size


@pytest.mark.sampled(5)
@pytest.mark.parametrize("shape", [(512, 256), (520, 264), (300, 1000), (129, 1031)], ids=str)
@pytest.mark.parametrize("dtype", [D.BFloat16, D.Float, D.Double, D.Bool], ids=lambda d: d.name)
def test_turned_tiles_of_both_sizes(shape: tuple[int, int], dtype: Any) -> None:
    def record(fd: Any, x: Any, y: Any) -> Any:
        if dtype is D.Bool:
            return fd.ops.bitwise_xor(fd.ops.permute(x, [1, 0]), y)
        return turned_sum(fd, x, y)

    fusion = build(record, [shape, shape[::-1]], dtype)
    inputs = [numbers(shape, dtype), numbers(shape[::-1], dtype, 1)]
    tiles = {schedules(run(fusion, S.TRANSPOSE, inputs, device))[0].tile for device in (H200, ONE_SM)}
    assert len(tiles) == 2


SHORT = [(1 << 9, 16), (16, 1 << 9), (300, 24), (17, 300), (20, 31)]


@pytest.mark.parametrize("shape", SHORT, ids=str)
@pytest.mark.parametrize("dtype", [D.Char, D.BFloat16, D.Float, D.Double], ids=lambda d: d.name)
def test_tiles_are_no_longer_than_an_axis(shape: tuple[int, int], dtype: Any) -> None:
    shapes = [(3, *shape), (3, *shape[::-1])]

    def record(fd: Any, x: Any, y: Any) -> Any:
        return fd.ops.cast(fd.ops.add(fd.ops.permute(x, [0, 2, 1]), y), dtype)

    inputs = [numbers(s, dtype, n) for n, s in enumerate(shapes)]
    kernel = run(build(record, shapes, dtype), S.TRANSPOSE, inputs)
    (schedule,) = schedules(kernel)
    (tile,) = (s.buffer for p in kernel.phases for s in walk(p.body)
               if isinstance(s, Alloc) and s.buffer.role is Role.SHARED)
    sides = [min(schedule.tile, 1 << (n - 1).bit_length()) for n in shape]
    assert tile.size == math.prod(sides)
    # Each thread moves two vectors unless a warp covers more than that.
    assert schedule.threads == (max(tile.size // (2 * schedule.vector), 32), 1)


@pytest.mark.parametrize("columns", [16, 32, 64, 128])
@pytest.mark.parametrize("dtype", [D.BFloat16, D.Float], ids=lambda d: d.name)
def test_a_warp_writes_a_tile_in_one_access_for_each_element(columns: int, dtype: Any) -> None:
    shapes = [(64, 128, columns), (64, columns, 128)]

    def record(fd: Any, x: Any, y: Any) -> Any:
        return fd.ops.cast(fd.ops.add(x, fd.ops.permute(y, [0, 2, 1])), dtype)

    source = generate(build(record, shapes, dtype), S.TRANSPOSE, "cuda").source
    cell = re.search(r"T1_tile\[(.*)\] = ", source)
    assert cell is not None
    for place in range(8 * dtype.itemsize // 4):
        cells = [eval(cell[1], {"thread": n, "u": 0, "v": place}) for n in range(32)]
        words = {c * dtype.itemsize // 4 for c in cells}
        assert max(Counter(word % 32 for word in words).values()) == 1


def test_a_result_that_is_turned_goes_through_a_tile_too() -> None:
    def record(fd: Any, x: Any, y: Any, z: Any) -> Any:
        both = fd.ops.add(x, fd.ops.permute(y, [1, 0]))
        return both, fd.ops.permute(fd.ops.add(both, z), [1, 0])

    shapes = [(512, 256), (256, 512), (512, 256)]
    inputs = [numbers(s, D.Float, n) for n, s in enumerate(shapes)]
    for device in (H200, ONE_SM):
        kernel = run(build(record, shapes, D.Float), S.TRANSPOSE, inputs, device)
        tiles = [s.buffer for p in kernel.phases for s in walk(p.body)
                 if isinstance(s, Alloc) and s.buffer.role is Role.SHARED]
        assert len(tiles) == 2
        assert len({t.is_dynamic for t in tiles}) == 1


@pytest.mark.parametrize("tile", [64, 32, 16])
def test_a_large_tile_may_be_given_smaller(tile: int) -> None:
    with fl.FusionDefinition() as fd:
        x, y = (fd.define_tensor(list(s), contiguity=True, dtype=D.Float) for s in ((16384, 8192), (8192, 16384)))
        fd.add_output(turned_sum(fd, x, y))
    plan = fl.segment(fd, [fl.spec((16384, 8192), "float32"), fl.spec((8192, 16384), "float32")])
    (nest,) = plan.segments[0].params("cuda")
    assert nest.schedule.tile == 64
    (given,) = plan.with_params(0, tile=tile, threads=256).segments[0].params("cuda")
    assert (given.schedule.tile, given.schedule.threads) == (tile, (256, 1))
    with pytest.raises(ScheduleError, match="tile = 128 must be a power of two from 4 to 64"):
        plan.with_params(0, tile=128)


def test_rows_of_a_tile_are_read_whole_after_the_barrier() -> None:
    kernel = kernel_of(turned_sum, [(16384, 8192), (8192, 16384)], D.BFloat16, S.TRANSPOSE)
    found = [s for s in walk(kernel.phases[0].body) if isinstance(s, VectorLoad) and s.buffer.role is Role.SHARED]
    assert [(s.count, s.width) for s in found] == [(8, 8)]
    assert kernel.phases[0].launch.shared == 128 * 128 * 2


# Columns


def column_softmax(fd: Any, x: Any) -> Any:
    f = fd.ops.cast(x, D.Double if x.dtype is D.Double else D.Float)
    e = fd.ops.exp(fd.ops.sub(f, fd.ops.max(f, [0], keepdim=True)))
    return fd.ops.cast(fd.ops.div(e, fd.ops.sum(e, [0], keepdim=True)), x.dtype)


def statistics(fd: Any, x: Any) -> Any:
    f = fd.ops.cast(x, D.Double if x.dtype is D.Double else D.Float)
    highest = fd.ops.max(f, [0])
    return highest, fd.ops.sum(fd.ops.exp(fd.ops.sub(f, fd.ops.broadcast(highest, [True, False]))), [0])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("shape", [(300, 96), (5000, 40), (37, 5), (2, 64), (4096, 8)], ids=str)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16, D.Double], ids=lambda d: d.name)
def test_maximum_and_sum_of_columns_in_one_pass(shape: tuple[int, int], dtype: Any) -> None:
    kernel = run(build(statistics, [shape], dtype), S.REDUCTION, [numbers(shape, dtype)])
    (loops,) = schedules(kernel)
    assert loops.online or loops.persistent  # a few short columns stay on chip
    assert len(kernel.phases) == (1 if loops.split == 1 else 2)
    run(build(column_softmax, [shape], dtype), S.OUTER_PERSISTENT, [numbers(shape, dtype)])


def test_columns_are_read_once_for_maximum_and_sum_and_once_more_for_the_result() -> None:
    kernel = kernel_of(column_softmax, [(4096, 32768)], D.BFloat16, S.OUTER_PERSISTENT)
    x = kernel.inputs[0]
    assert [x in phase.buffers for phase in kernel.phases] == [True, False, True]


def test_columns_of_infinities_and_nan() -> None:
    x = np.asarray(numbers((600, 16), D.Float))
    x[:, 0] = -np.inf
    x[:300, 1] = -np.inf
    x[7, 2] = np.nan
    x[9, 3] = np.inf
    x[:, 4] = 1e30
    x[500:, 5] = 80.0
    run(build(statistics, [x.shape], D.Float), S.REDUCTION, [x])


@pytest.mark.parametrize("axis", [0, 1])
def test_a_maximum_that_passes_over_nan_is_found_with_its_sum(axis: int) -> None:
    def total(fd: Any, x: Any) -> Any:
        return fd.ops.sum(fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [axis], keepdim=True))), [axis])

    x = np.asarray(numbers((600, 16), D.Float))
    x[:, 0] = -np.inf
    x[7, 2] = np.nan
    x[:, 3] = np.nan
    x[9, 4] = np.inf
    x = x if axis == 0 else np.ascontiguousarray(np.repeat(x.T, 100, axis=1))
    fusion = FMinFMaxPromotion().run(build(total, [x.shape], D.Float))
    assert [expr.op.name for expr in fusion.exprs if expr.kind is OpKind.REDUCTION] == ["fmax", "sum"]
    small = replace(H200, shared_per_sm=16 << 10, shared_per_block=16 << 10)  # a row is too long for a block
    kernel = run(fusion, S.REDUCTION if axis == 0 else S.INNER_PERSISTENT, [x], H200 if axis == 0 else small)
    assert [s.online for s in schedules(kernel)] == [True]


def test_chunks_that_share_more_than_they_own_are_several_of_a_thread() -> None:
    def record(fd: Any, x: Any, highest: Any, total: Any) -> Any:
        f = fd.ops.cast(x, D.Float)
        return fd.ops.cast(fd.ops.div(fd.ops.sub(f, fd.ops.cast(highest, D.Float)), total), D.BFloat16)

    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([4096, 32768], contiguity=True, dtype=D.BFloat16)
        vectors = [fd.define_tensor([1, 32768], contiguity=True, dtype=D.Float) for _ in range(2)]
        fd.add_output(record(fd, x, *vectors))
    specs = [fl.spec((4096, 32768), "bfloat16"), *(fl.spec((1, 32768), "float32") for _ in range(2))]
    (segment,) = fl.segment(fd, specs).segments
    (nest,) = segment.params("cuda")
    # 8 bytes of vectors for 2 bytes of its own.
    assert nest.schedule.unroll == 4
    loops = [s for p in segment.kernel("cuda").kernel_ir.phases for s in walk(p.body) if isinstance(s, Loop)]
    assert any(loop.var == "u" for loop in loops)


# Rows that add to columns


def test_sums_that_registers_hold_with_twice_the_threads_have_the_next_row_on_its_way() -> None:
    def record(fd: Any, grad: Any, x: Any, weight: Any, scale: Any) -> Any:
        grad, x, weight = (fd.ops.cast(t, D.Float) for t in (grad, x, weight))
        scaled = fd.ops.mul(grad, weight)
        mean = fd.ops.sum(fd.ops.mul(scaled, x), [1], keepdim=True)
        row = fd.ops.mul(fd.ops.sub(scaled, fd.ops.mul(x, mean)), fd.ops.cast(scale, D.Float))
        return fd.ops.cast(row, D.BFloat16), fd.ops.sum(fd.ops.mul(grad, x), [0]), fd.ops.sum(grad, [0])

    (schedule, *_) = schedules(kernel_of(record, NORM, D.BFloat16, S.INNER_OUTER_PERSISTENT))
    assert (schedule.threads, schedule.shared, schedule.unroll, schedule.constants) == ((512, 1), 0, 2, True)


def test_values_that_are_dear_to_compute_again_have_half_the_elements_of_a_thread() -> None:
    def exponentials(fd: Any, x: Any) -> Any:
        e = fd.ops.exp(fd.ops.cast(x, D.Float))
        return fd.ops.cast(fd.ops.div(e, fd.ops.sum(e, [1], keepdim=True)), D.BFloat16)

    found = [
        schedules(kernel_of(record, [(16384, 8192)], D.BFloat16, S.INNER_PERSISTENT))[0].threads
        for record in (normalized, exponentials)
    ]
    assert found == [(256, 1), (512, 1)]


def test_nothing_waits_where_columns_go_by_once() -> None:
    space = Space(kept=(64,), reduced=(512,), kept_run=1, reduced_run=1, inner_reduced=False, passes=2, reduces=True)
    assert not space.is_one_pass
    online = replace(space, online=True)
    assert online.is_one_pass
    assert not online.is_walked_again
    assert not replace(online, passes=3).is_one_pass
    assert choose_loops(online, "cuda").online


# Windows, and columns of few rows


@pytest.mark.parametrize(("record", "shape", "style"), [
    (lambda fd, x: fd.ops.max(fd.ops.reshape(x, [64, 2, 40, 2]), [1, 3]), (128, 80), Style.COLUMNS),
    (lambda fd, x: fd.ops.sum(fd.ops.reshape(x, [40, 3, 40, 4]), [1, 3]), (120, 160), Style.COLUMNS),
    (lambda fd, x: fd.ops.sum(fd.ops.reshape(x, [16, 5, 512]), [1]), (80, 512), Style.COLUMNS),
    (lambda fd, x: fd.ops.sum(x, [1]), (2500, 8), Style.ROWS),
    (lambda fd, x: fd.ops.max(fd.ops.reshape(x, [4, 2, 4, 2]), [1, 3]), (8, 8), Style.ROWS),
], ids=["pool 2x2", "pool 3x4", "few rows", "wide", "too few"])
def test_a_thread_reduces_a_small_window_by_itself(record: Any, shape: tuple[int, ...], style: Style) -> None:
    kernel = run(build(record, [shape], D.Float), S.REDUCTION, [numbers(shape, D.Float)], ONE_SM)
    (schedule,) = schedules(kernel)
    assert schedule.style is style
    assert (style is Style.COLUMNS) == (schedule.threads[1] == 1 and schedule.threads[0] >= 32)


@pytest.mark.parametrize(("dtype", "side", "neighbours"), [(D.BFloat16, 2, 4), (D.BFloat16, 4, 2), (D.Float, 4, 1)])
def test_lines_of_windows_are_read_with_whole_accesses(dtype: D, side: int, neighbours: int) -> None:
    def pool(fd: Any, x: Any) -> Any:
        return fd.ops.max(fd.ops.reshape(x, [64, side, 64, side]), [1, 3])

    shape = 64 * side, 64 * side
    fusion, given = build(pool, [shape], dtype), [numbers(shape, dtype)]
    kernel = run(fusion, S.REDUCTION, given, ONE_SM)
    (schedule,) = schedules(kernel)
    assert schedule.vector == neighbours
    assert [(s.count, s.width) for s in loads(kernel)] == [(side * neighbours, 16 // dtype.itemsize)]
    scalar = [t for p in kernel.phases for s in walk(p.body) for root in terms_of(s) for t in root.walk()
              if isinstance(t, Load) and t.buffer.role is Role.INPUT]
    assert not scalar


def test_lines_of_windows_are_written_with_whole_accesses() -> None:
    def record(fd: Any, x: Any) -> Any:
        y = fd.ops.mul(x, 2.0)
        return fd.ops.sum(y, [1]), y

    kernel = run(build(record, [(8192, 3)], D.Float), S.REDUCTION, [numbers((8192, 3), D.Float)], ONE_SM)
    written = [s for phase in kernel.phases for s in walk(phase.body) if isinstance(s, VectorStore)]
    assert {(s.buffer.name, s.count, s.width) for s in written} == {("T2", 4, 4), ("T1", 12, 4)}


@pytest.mark.parametrize(("columns", "threads"), [(16, 128), (64, 128), (256, 64), (1024, 64)])
def test_blocks_of_short_rows_read_enough_to_be_worth_their_start(columns: int, threads: int) -> None:
    def softmax(fd: Any, x: Any) -> Any:
        e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True)))
        return fd.ops.div(e, fd.ops.sum(e, [1], keepdim=True))

    (schedule,) = schedules(kernel_of(softmax, [(1 << 20, columns)], D.Float, S.INNER_PERSISTENT))
    assert schedule.threads[0] * schedule.threads[1] == threads

"""Columns that a block keeps in registers between passes: read once, for any number, length and alignment."""

from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build, numbers
from unit.codegen.test_gpu_memory import ONE_SM, kernel_of, loads, run, schedules

import fuser_lab as fl
from fuser_lab.codegen.kernel_eval import evaluate_kernel
from fuser_lab.codegen.kernel_ir import LARGEST_STATIC, Alloc, If, Role, VectorLoad, VectorStore, terms_of, walk
from fuser_lab.errors import ScheduleError
from fuser_lab.ir.term import Apply
from fuser_lab.schedule.gpu_column_loops import KEPT_THREADS, MEETING_BUFFER
from fuser_lab.schedule.state import NestKind
from tests.kernels import generate


def softmax(axis: int) -> Any:
    def record(fd: Any, x: Any) -> Any:
        f = fd.ops.cast(x, D.Double if x.dtype is D.Double else D.Float)
        e = fd.ops.exp(fd.ops.sub(f, fd.ops.max(f, [axis], keepdim=True)))
        return fd.ops.cast(fd.ops.truediv(e, fd.ops.sum(e, [axis], keepdim=True)), x.dtype)

    return record


def norm(fd: Any, x: Any, residual: Any, weight: Any) -> Any:
    """Normalize over axis 1 of three; the means are a result too, and only the last pass reads the residual."""
    dtype = D.Double if x.dtype is D.Double else D.Float
    f = fd.ops.cast(x, dtype)
    mean = fd.ops.mul(fd.ops.sum(f, [1], keepdim=True), 1.0 / x.size(1))
    d = fd.ops.sub(f, mean)
    scale = fd.ops.rsqrt(fd.ops.sum(fd.ops.mul(d, d), [1], keepdim=True))
    y = fd.ops.mul(fd.ops.mul(d, scale), fd.ops.broadcast_in_dim(weight, x.shape(), [1]))
    return fd.ops.cast(fd.ops.add(y, fd.ops.cast(residual, dtype)), x.dtype), fd.ops.squeeze(mean, [1])


@pytest.mark.parametrize(("record", "shapes", "dtype"), [
    (softmax(0), [(5, 2048)], D.Float),
    (softmax(0), [(37, 513)], D.BFloat16),
    (softmax(1), [(3, 96, 160)], D.BFloat16),
    (softmax(1), [(2, 2, 300)], D.Float),
    (softmax(1), [(2, 300, 63)], D.Half),
    (softmax(0), [(1000, 40)], D.Float),
    (softmax(1), [(4, 130, 33)], D.Double),
    (norm, [(3, 48, 96), (3, 48, 96), (48,)], D.Float),
    (norm, [(2, 200, 72), (2, 200, 72), (200,)], D.BFloat16),
    (norm, [(1, 600, 9), (1, 600, 9), (600,)], D.Double),
    (norm, [(1, 2000, 8), (1, 2000, 8), (2000,)], D.Float),
])
def test_each_element_is_read_once(record: Any, shapes: list[tuple[int, ...]], dtype: D) -> None:
    fusion = build(record, shapes, dtype)
    kernel = run(fusion, S.OUTER_PERSISTENT, [numbers(shape, dtype) for shape in shapes], ONE_SM)
    (schedule,) = schedules(kernel)
    assert schedule.kind is NestKind.BLOCK_KEPT_COLUMNS
    assert len(kernel.phases) == 1
    assert not kernel.workspace


def test_functions_of_columns_are_computed_once_and_their_results_stay_in_registers() -> None:
    def record(fd: Any, x: Any, y: Any) -> Any:
        f = fd.ops.sub(x, fd.ops.max(x, [0], keepdim=True))
        g = fd.ops.log1p(fd.ops.abs(fd.ops.mul(f, y)))
        h = fd.ops.truediv(g, fd.ops.sum(g, [0], keepdim=True))
        return fd.ops.truediv(h, fd.ops.max(h, [0], keepdim=True))

    shapes = [(40, 160), (40, 160)]
    fusion = build(record, shapes, D.Float)
    kernel = run(fusion, S.OUTER_PERSISTENT, [numbers(shape, D.Float) for shape in shapes], ONE_SM)
    (schedule,) = schedules(kernel)
    assert (schedule.kind, schedule.values) == (NestKind.BLOCK_KEPT_COLUMNS, True)
    roots = [root for phase in kernel.phases for s in walk(phase.body) for root in terms_of(s)]
    assert sum(isinstance(term, Apply) and term.fn == "log1p" for root in roots for term in root.walk()) == 1
    source = generate(fusion, S.OUTER_PERSISTENT, "cuda", device=ONE_SM).source
    loops = [block for block in source.split("for u in ")[1:] if "math.log1p" in block.split("syncthreads")[0]]
    assert [loop.partition("(")[0] for loop in loops] == ["unrolled"]


@pytest.mark.parametrize(("shifts", "dtype"), [(24, D.Float), (70, D.Float), (24, D.Double)])
def test_columns_of_products_of_shifted_elements_are_kept_although_no_input_has_them(shifts: int, dtype: D) -> None:
    """As in a softmax over the displacements of a stereo or optical flow model: a value is cheap, but read thrice."""
    def record(fd: Any, x: Any, shifted: Any) -> Any:
        at = fd.ops.add(fd.ops.broadcast(fd.ops.iota(300), [False, True]), fd.ops.iota(shifts))
        windows = fd.ops.reshape(fd.ops.index_select(shifted, fd.ops.reshape(at, [300 * shifts]), dim=0), [300, shifts])
        products = fd.ops.mul(fd.ops.broadcast(x, [False, True]), windows)
        largest = fd.ops.max(products, [1], keepdim=True)
        total = fd.ops.sum(fd.ops.where(fd.ops.eq(products, largest), 0.0, products), [1], keepdim=True)
        return fd.ops.squeeze(total, [1]), fd.ops.min(fd.ops.abs(fd.ops.sub(products, total)), [1])

    shapes = [(300,), (300 + shifts,)]
    kernel = run(build(record, shapes, dtype), S.REDUCTION, [numbers(shape, dtype) for shape in shapes], ONE_SM)
    (schedule,) = schedules(kernel)
    assert schedule.kind is NestKind.BLOCK_KEPT_COLUMNS
    assert len(kernel.phases) == 1


@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16])
def test_columns_of_an_input_whose_elements_are_not_adjacent_are_kept_as_well(dtype: D) -> None:
    """As in the gradient of a softmax over channels, where one operand has the other order in memory."""
    def record(fd: Any, x: Any, transposed: Any) -> Any:
        f, y = fd.ops.cast(x, D.Float), fd.ops.permute(fd.ops.cast(transposed, D.Float), [0, 2, 1])
        total = fd.ops.sum(fd.ops.mul(f, y), [1], keepdim=True)
        return fd.ops.cast(fd.ops.mul(y, fd.ops.sub(f, total)), x.dtype)

    shapes = [(3, 24, 160), (3, 160, 24)]
    fusion = build(record, shapes, dtype)
    kernel = run(fusion, S.OUTER_PERSISTENT, [numbers(shape, dtype) for shape in shapes], ONE_SM)
    (schedule,) = schedules(kernel)
    assert schedule.kind is NestKind.BLOCK_KEPT_COLUMNS
    assert schedule.vector > 1
    assert len(kernel.phases) == 1


@pytest.mark.parametrize(("last", "exact"), [(lambda o, y: y, False), (lambda o, y: o.round(y), True)])
def test_elements_are_divided_by_a_result_of_their_column_without_a_branch(last: Any, exact: bool) -> None:
    def record(fd: Any, x: Any) -> Any:
        return last(fd.ops, fd.ops.truediv(x, fd.ops.sum(fd.ops.abs(x), [1], keepdim=True)))

    kernel = kernel_of(record, [(64, 512, 2048)], D.Float, S.OUTER_PERSISTENT)
    (schedule,) = schedules(kernel)
    assert schedule.kind is NestKind.BLOCK_KEPT_COLUMNS
    roots = [root for phase in kernel.phases for s in walk(phase.body) for root in terms_of(s)]
    names = {term.fn for root in roots for term in root.walk() if isinstance(term, Apply)}
    assert ("div" in names, "quotient" in names) == (exact, not exact)


@pytest.mark.parametrize(("shape", "threads", "rows"), [
    ((64, 192, 56 * 56), (16, 16), 12),  # whole lines of memory; as many rows as the depth needs
    ((64, 512, 2048), (8, 32), 16),  # half a line, so that the block stays small
    ((64, 1000, 2048), (4, 128), 8),  # too deep for a small block
])
def test_several_small_blocks_have_whole_columns(shape: tuple[int, ...], threads: tuple[int, int], rows: int) -> None:
    kernel = kernel_of(softmax(1), [shape], D.BFloat16, S.OUTER_PERSISTENT)
    (schedule,) = schedules(kernel)
    assert (schedule.threads, schedule.registers) == (threads, rows)
    small = threads[0] * threads[1] <= KEPT_THREADS
    assert schedule.resident == (3 if small else 1)
    assert [(s.count, s.width) for s in loads(kernel)] == [(4, 4) if small else (8, 8)]


def test_loads_of_rows_beyond_the_depth_have_no_condition() -> None:
    """A load in a branch would wait for the one before."""
    kernel = kernel_of(softmax(1), [(64, 190, 2048)], D.BFloat16, S.OUTER_PERSISTENT)
    (schedule,) = schedules(kernel)
    assert schedule.registers * schedule.threads[1] > 190
    statements = [s for phase in kernel.phases for s in walk(phase.body)]
    inside = [s for guard in statements if isinstance(guard, If) for s in walk(guard.then)]
    assert not any(isinstance(s, VectorLoad) for s in inside)
    assert any(isinstance(s, VectorStore) for s in inside)


@pytest.mark.parametrize("shape", [(16384, 4096), (512, 256)], ids=["too long", "too few columns"])
def test_columns_that_do_not_fit_are_read_once_for_each_result(shape: tuple[int, int]) -> None:
    kernel = kernel_of(softmax(0), [shape], D.BFloat16, S.OUTER_PERSISTENT)
    assert len(kernel.phases) > 1
    assert not any(schedule.kind is NestKind.BLOCK_KEPT_COLUMNS for schedule in schedules(kernel))


@pytest.mark.parametrize("summands", [1, 2])
def test_a_few_short_columns_are_one_launch_whichever_axis_is_adjacent(summands: int) -> None:
    """Two of three inputs have the reduced axis as the adjacent one, so lanes share rows instead."""
    def record(fd: Any, *tensors: Any) -> Any:
        o, (*rows, table) = fd.ops, tensors
        row = rows[0] if len(rows) == 1 else o.add(*rows)
        t = o.add(o.broadcast(row, [False, False, True]), o.broadcast(table, [True, False, False]))
        largest = o.max(t, [1], keepdim=True)
        return o.squeeze(largest, [1]), o.sum(o.sub(t, largest), [1])

    shapes = [(7, 41)] * summands + [(41, 41)]
    inputs = [numbers(shape, D.Float, n) for n, shape in enumerate(shapes)]
    kernel = run(build(record, shapes, D.Float), S.OUTER_PERSISTENT, inputs)
    assert len(kernel.phases) == 1
    assert schedules(kernel)[0].persistent


def test_depths_share_kernels() -> None:
    names = set()
    for depth in range(100, 500, 7):
        generated = generate(build(softmax(0), [(depth, 32768)], D.Float), S.OUTER_PERSISTENT, "cuda")
        assert all(schedule.kind is NestKind.BLOCK_KEPT_COLUMNS for schedule in schedules(generated.kernel_ir))
        lines = generated.source.splitlines()
        names.add("\n".join(line for line in lines if not line.lstrip().startswith("#")))
    assert len(names) <= 6


def test_parameters_by_hand_keep_the_columns() -> None:
    with fl.FusionDefinition() as fd:
        fd.add_output(softmax(0)(fd, fd.define_tensor([256, 65536], contiguity=True, dtype=D.Float)))
    plan = fl.segment(fd, [fl.spec((256, 65536), "float32")])
    (nest,) = plan.segments[0].params("cuda")
    assert nest.schedule.kind is NestKind.BLOCK_KEPT_COLUMNS
    assert set(nest.values) == {"threads", "vector", "cluster", "specialized"}
    (changed,) = plan.with_params(0, threads=(8, 32)).segments[0].params("cuda")
    assert (changed.schedule.threads, changed.schedule.registers) == ((8, 32), 8)
    with pytest.raises(ScheduleError, match="registers of columns"):
        plan.with_params(0, threads=(8, 1))


def test_buffers_in_which_lines_meet_have_memory_of_their_own() -> None:
    """Buffers sized by the launch start at the same address, so two reductions of a pass must not use them."""
    assert MEETING_BUFFER == LARGEST_STATIC

    def moments(fd: Any, x: Any) -> Any:
        f = fd.ops.cast(x, D.Double)
        low, high = fd.ops.min(f, [0], keepdim=True), fd.ops.max(f, [0], keepdim=True)
        return fd.ops.cast(fd.ops.truediv(fd.ops.sub(f, low), fd.ops.sub(high, low)), D.Float)

    for dtype in (D.BFloat16, D.Double):
        for depth in (100, 400, 900, 1500):
            kernel = kernel_of(moments, [(depth, 1 << 16)], dtype, S.OUTER_PERSISTENT)
            allocated = [s.buffer for p in kernel.phases for s in walk(p.body) if isinstance(s, Alloc)]
            assert not any(buffer.is_dynamic for buffer in allocated)


@pytest.mark.parametrize("shape", [(16, 512), (300, 512), (1000, 64)])
def test_variances_of_columns_far_from_0_are_accurate(shape: tuple[int, int]) -> None:
    """The sum of deviations, which corrects them, meets in the memory of the pass before."""
    def record(fd: Any, x: Any) -> Any:
        variance, mean = fd.ops.var_mean(x, [0], correction=0, keepdim=True)
        return fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(variance)), variance

    x = (np.random.default_rng(0).standard_normal(shape) + 1e6).astype(np.float32)
    kernel = generate(build(record, [shape], D.Float), S.OUTER_PERSISTENT, "cuda", "kernel", device=ONE_SM).kernel_ir
    (schedule,) = schedules(kernel)
    assert schedule.kind is NestKind.BLOCK_KEPT_COLUMNS
    memory = {"T0": x.reshape(-1)} | {b.name: np.zeros(b.size, np.float32) for b in kernel.outputs}
    evaluate_kernel(kernel, memory)
    np.testing.assert_allclose(memory[kernel.outputs[1].name], x.astype(np.float64).var(0), rtol=1e-6)
    (body,) = [phase.body for phase in kernel.phases]
    shared = [s.buffer.size for s in walk(body) if isinstance(s, Alloc) and s.buffer.role is Role.SHARED]
    threads = schedule.threads[0] * schedule.threads[1]
    assert shared.count(threads * schedule.vector) == (2 if schedule.threads[1] > 1 else 0)

"""Reductions on the GPU in lock step: every kind of kernel, dtype, row length and alignment, against float64."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build, close, numbers
from backend.reductions import ALL, BACKWARD, COLUMNS, FLOATS, PATTERNS, ROWS, add_norm, backward, softmax, totals
from hypothesis import given
from hypothesis import strategies as st
from thorough import tries

from fuser_lab.api.functions import FusionDefinition, segment
from fuser_lab.codegen.index_math import linear
from fuser_lab.codegen.kernel_eval import evaluate_kernel
from fuser_lab.codegen.kernel_ir import (
    Alloc,
    Barrier,
    Kernel,
    Let,
    Load,
    Loop,
    Reduce,
    Role,
    Statement,
    Store,
    VectorLoad,
    dense_strides,
    layout_of,
    terms_of,
    walk,
)
from fuser_lab.cost.device import H200, MEETING_BYTES
from fuser_lab.dtypes import DataType
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion
from fuser_lab.ir.term import Apply, Var
from fuser_lab.ir.transform import ParallelType
from fuser_lab.runtime.arrays import flat_view, storage_dtype
from fuser_lab.schedule import gpu_row_loops, parameters
from fuser_lab.schedule.gpu_column_loops import column_loops
from fuser_lab.schedule.gpu_column_sum_loops import backward_loops
from fuser_lab.schedule.gpu_row_loops import COMMON_STEPS, row_loops
from fuser_lab.schedule.parameters import LoopChange, describe
from fuser_lab.schedule.state import LoopSchedule, Refused, Space, Style
from tests import agreement
from tests.kernels import generate, lower

SHARED_OF_A_BLOCK = 227 << 10


def run(
    fusion: Fusion, scheduler: S, inputs: list[np.ndarray], alignment: dict[str, int] | None = None, **options: Any,
) -> tuple[Kernel, list[np.ndarray]]:
    strides = {
        tv.name: tuple(s // x.itemsize for s in x.strides) for tv, x in zip(fusion.tensor_inputs, inputs, strict=True)
    }
    kernel = lower(fusion, scheduler, "cuda", "kernel", strides, alignment, **options)
    memory: dict[str, Any] = {}
    for tv, x in zip(fusion.tensor_inputs, inputs, strict=True):
        layout = layout_of(tv, strides[tv.name])
        memory[tv.name] = flat_view(x, tv.dtype, layout.size, layout.offset)
    for tv in fusion.outputs:
        memory[tv.name] = np.full(layout_of(tv).size, 77).astype(storage_dtype(tv.dtype))
    writes = evaluate_kernel(kernel, memory).writes
    for tv in fusion.outputs:
        assert (writes[tv.name] == 1).all(), f"{tv.name} is not written exactly once"
    return kernel, [
        np.ndarray(
            tv.shape, tv.dtype.numpy, buffer=memory[tv.name] if memory[tv.name].size else None,
            strides=[s * tv.dtype.itemsize for s in dense_strides(tv)] if memory[tv.name].size else None,
        )
        for tv in fusion.outputs
    ]


def check(
    fusion: Fusion, scheduler: S, inputs: list[np.ndarray], alignment: dict[str, int] | None = None, **options: Any,
) -> Kernel:
    """Compare with the reference in float64."""
    kernel, got = run(fusion, scheduler, inputs, alignment, **options)
    for tv, a, b in zip(fusion.outputs, got, evaluate(fusion, inputs, exact=False), strict=True):
        close(a, np.asarray(b).astype(tv.dtype.numpy), tv.dtype)
    return kernel


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
@pytest.mark.parametrize(("record", "shape"), [p[1:] for p in PATTERNS], ids=[p[0] for p in PATTERNS])
def test_every_pattern_in_every_dtype(record: Any, shape: tuple[int, ...], dtype: DataType) -> None:
    check(build(record, [shape], dtype), S.REDUCTION, [numbers(shape, dtype)])


def nearest(fd: Any, x: Any, table: Any) -> tuple[Any, Any]:
    apart = fd.ops.abs(fd.ops.sub(fd.ops.broadcast(x, [False, True]), fd.ops.broadcast(table, [True, False])))
    least = fd.ops.min(apart, [1])
    return least, fd.ops.sum(fd.ops.exp(fd.ops.sub(fd.ops.broadcast(least, [False, True]), apart)), [1])


@pytest.mark.parametrize(("rows", "depth", "lanes"), [(1100, 19, 1), (1100, 60, 2), (7, 16, 4)])
def test_rows_that_read_the_same_elements_have_few_lanes(rows: int, depth: int, lanes: int) -> None:
    inputs = [numbers((rows,), D.Float), numbers((depth,), D.Float, 1)]
    fusion = build(nearest, ((rows,), (depth,)), D.Float)
    kernel = check(fusion, S.INNER_PERSISTENT, inputs, device=replace(H200, sms=1))
    assert kernel.nests[0].schedule.threads[0] == lanes


@pytest.mark.sampled(5)
@pytest.mark.parametrize("shape", ROWS, ids=str)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16], ids=lambda d: d.name)
def test_rows_of_every_length(shape: tuple[int, int], dtype: DataType) -> None:
    x = numbers(shape, dtype)
    check(build(softmax, [shape], dtype), S.INNER_PERSISTENT, [x])
    check(build(totals(1), [shape], dtype), S.REDUCTION, [x])


@pytest.mark.parametrize("shape", [(3, 1), (130, 6), (3, 700), (2, 9000), (2, 40_000)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_rows_of_two_inputs_and_a_weight(shape: tuple[int, int], dtype: DataType) -> None:
    shapes = [shape, shape, shape[1:]]
    inputs = [numbers(s, dtype, n) for n, s in enumerate(shapes)]
    check(build(add_norm, shapes, dtype), S.INNER_PERSISTENT, inputs)


@pytest.mark.parametrize("shape", COLUMNS, ids=str)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16, D.Double], ids=lambda d: d.name)
def test_columns_of_every_length(shape: tuple[int, int], dtype: DataType) -> None:
    record = totals(0) if shape[0] else lambda fd, x: fd.ops.sum(x, [0])
    check(build(record, [shape], dtype), S.REDUCTION, [numbers(shape, dtype)])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("shape", BACKWARD, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_rows_and_columns_at_once(shape: tuple[int, int], dtype: DataType) -> None:
    shapes = [shape, shape, shape[1:], (shape[0], 1)]
    inputs = [numbers(s, dtype, n) for n, s in enumerate(shapes)]
    check(build(backward, shapes, dtype), S.INNER_OUTER_PERSISTENT, inputs)


def test_rows_and_columns_whose_rows_go_across_memory_behind_a_reshape() -> None:
    def record(fd: Any, x: Any) -> Any:
        rows = fd.ops.broadcast(fd.ops.sum(x, [1, 2]), [True, False, True, True])
        return fd.ops.prod(x, [0]), fd.ops.where(fd.ops.gt(x, 0), fd.ops.reshape(rows, [5, 1, 1]), 0.5)

    x = np.moveaxis(numbers((5, 2, 5), D.Float), 2, 0)
    check(build(record, [x.shape], D.Float), S.INNER_OUTER_PERSISTENT, [x])


def bias_of_heads(fd: Any, x: Any) -> Any:
    """The gradient of a bias of attention: [heads, tokens, width] as [tokens, heads * width], summed over tokens."""
    rows = fd.ops.reshape(fd.ops.permute(x, [1, 0, 2]), [x.size(1), x.size(0) * x.size(2)])
    return fd.ops.mul(rows, 0.5), fd.ops.sum(rows, [0])


def columns_beside_a_transpose(fd: Any, x: Any, y: Any, z: Any) -> Any:
    return fd.ops.sum(fd.ops.mul(fd.ops.mul(x, y), fd.ops.permute(z, [1, 0])), [0])


def beside_a_transpose(fd: Any, x: Any, y: Any) -> Any:
    return fd.ops.sum(fd.ops.mul(x, fd.ops.permute(y, [1, 0])), [1])


@pytest.mark.parametrize(("record", "shapes", "style"), [
    (bias_of_heads, [(4, 70, 16)], Style.COLUMNS),
    (columns_beside_a_transpose, [(70, 12), (70, 12), (12, 70)], Style.COLUMNS),
    (beside_a_transpose, [(12, 70), (70, 12)], Style.ROWS),
    (columns_beside_a_transpose, [(70, 48), (70, 48), (48, 70)], Style.TILES),
    (beside_a_transpose, [(48, 70), (70, 48)], Style.TILES),
], ids=["heads", "most lie across", "as much along as across", "long both ways", "long both ways and as much"])
def test_threads_walk_along_what_most_of_memory_lies_along(record: Any, shapes: Any, style: Style) -> None:
    inputs = [numbers(shape, D.Float, n) for n, shape in enumerate(shapes)]
    kernel = check(build(record, shapes, D.Float), S.REDUCTION, inputs)
    schedule = kernel.phases[0].schedule
    assert schedule is not None
    assert schedule.style is style


def test_a_warp_keeps_few_loads_of_a_row_in_flight() -> None:
    x = numbers((9, 1021), D.BFloat16)
    kernel = check(build(softmax, [x.shape], D.BFloat16), S.INNER_PERSISTENT, [x], {"T0": 2})  # no vector access
    schedule = kernel.phases[0].schedule
    assert schedule is not None
    assert (schedule.registers, schedule.unroll) == (32, 8)


@pytest.mark.parametrize(("last", "exact"), [
    (lambda o, y: y, False), (lambda o, y: o.cast(y, dtype=D.BFloat16), False), (lambda o, y: o.exp(y), False),
    (lambda o, y: o.round(y), True), (lambda o, y: o.cast(y, dtype=D.Float8_e4m3fn), True),
    (lambda o, y: o.cast(o.clamp(o.neg(y), -448.0, 448.0), dtype=D.Float8_e4m3fn), True),
    (lambda o, y: o.cast(o.reshape(o.clamp(y, -127.0, 127.0), [300 * 4096]), dtype=D.Char), True),
], ids=["stored", "bfloat16", "exp", "round", "float8", "clamp, float8", "clamp, int8"])  # fmt: skip
def test_quotients_that_are_rounded_far_are_exact(last: Any, exact: bool) -> None:
    def record(fd: Any, x: Any) -> Any:
        o = fd.ops
        return last(o, o.truediv(x, o.max(o.abs(x), [1], keepdim=True)))

    kernel = lower(build(record, [(300, 4096)], D.Float), S.INNER_PERSISTENT, "cuda", "kernel", {})
    roots = [root for phase in kernel.phases for s in walk(phase.body) for root in terms_of(s)]
    names = {term.fn for root in roots for term in root.walk() if isinstance(term, Apply)}
    assert ("quotient" not in names, "div" in names) == (exact, exact)


def halved(o: Any, x: Any, y: Any, *, rounds: int) -> Any:
    """A value that each round reads twice, so that 2 ** rounds paths lead from it to the result."""
    for _ in range(rounds):
        x = o.where(o.lt(y, 0.5), o.add(x, y), x)
    return x


@pytest.mark.parametrize(("record", "functions"), [
    (lambda o, x, y: o.truediv(x, y), {"quotient"}), (lambda o, x, y: o.truediv(x, 3.0), {"mul"}),
    (lambda o, x, y: o.reciprocal(x), {"quotient"}), (lambda o, x, y: o.truediv(x, 2.0**127), {"div"}),
    (lambda o, x, y: o.round(o.add(o.truediv(x, y), 8.0)), {"rounded_quotient", "add", "round"}),
    (lambda o, x, y: o.round(o.truediv(x, 8.0)), {"mul", "round"}),
    (lambda o, x, y: o.add(o.exp(x), o.sqrt(y)), {"exp", "rounded_sqrt", "add"}),
    (lambda o, x, y: o.lt(y, o.exp(x)), {"library_exp"}),
    (lambda o, x, y: o.ge(o.sigmoid(x), y), {"neg", "library_exp", "add", "rounded_quotient"}),
    (lambda o, x, y: halved(o, o.truediv(x, y), y, rounds=64), {"quotient", "add", "select"}),
], ids=[
    "quotient", "constant", "reciprocal", "tiny reciprocal", "rounded sum", "power of two", "exponential",
    "compared exponential", "compared sigmoid", "rounds of a bisection",
])  # fmt: skip
def test_kernels_that_keep_floats_divide_without_branches(record: Any, functions: set[str]) -> None:
    fusion = build(lambda fd, x, y: record(fd.ops, x, y), [(999,), (999,)], D.Float)
    kernel = lower(replace(fusion, keeps_float=True), S.POINTWISE, "cuda", "kernel", {})
    roots = [root for phase in kernel.phases for s in walk(phase.body) for root in terms_of(s)]
    terms = [term for root in roots for term in root.walk()]
    assert {t.fn for t in terms if isinstance(t, Apply) and t.dtype is D.Float} == functions


def inputs_read(kernel: Kernel) -> list[str]:
    """The inputs of vector loads and of single loads, once per place in the source."""
    found = []
    for phase in kernel.phases:
        for statement in walk(phase.body):
            if isinstance(statement, VectorLoad):
                found.append(statement.buffer)
            found += [t.buffer for root in terms_of(statement) for t in root.walk() if isinstance(t, Load)]
    return [b.name for b in found if b.role is Role.INPUT]


def test_a_backward_pass_reads_rows_once() -> None:
    shapes = [(64, 256), (64, 256), (256,), (64, 1)]
    kernel = lower(build(backward, shapes, D.BFloat16), S.INNER_OUTER_PERSISTENT, "cuda", "kernel", {})
    assert [phase.name for phase in kernel.phases] == ["kernel_rows", "kernel_1"]
    assert sorted(inputs_read(kernel)) == ["T0", "T1", "T2", "T3"]


@pytest.mark.parametrize(("columns", "threads"), [(24, (4, 8)), (64, (8, 4)), (256, (32, 1))])
def test_short_rows_that_add_to_column_sums_share_a_warp(columns: int, threads: tuple[int, int]) -> None:
    shapes = [(64, columns), (64, columns), (columns,), (64, 1)]
    kernel = lower(build(backward, shapes, D.BFloat16), S.INNER_OUTER_PERSISTENT, "cuda", "kernel", {})
    assert kernel.phases[0].launch.threads == threads


def test_functions_of_rows_are_computed_once_beside_column_sums() -> None:
    def record(fd: Any, grad: Any, x: Any) -> Any:
        o = fd.ops
        y = o.tanh(x)
        rows = o.sum(o.mul(grad, y), [1], keepdim=True)
        return o.mul(y, o.sub(grad, rows)), o.sum(o.mul(grad, y), [0])

    kernel = lower(build(record, [(64, 256)] * 2, D.Float), S.INNER_OUTER_PERSISTENT, "cuda", "kernel", {})
    terms = [t for s in walk(kernel.phases[0].body) for root in terms_of(s) for t in root.walk()]
    assert sum(isinstance(t, Apply) and t.fn == "tanh" for t in terms) == 1


@pytest.mark.parametrize("columns", [1024, 8192, 32_768, 65_536, 131_072])
def test_a_row_is_read_once_where_there_is_room(columns: int) -> None:
    kernel = lower(build(softmax, [(300, columns)], D.BFloat16), S.INNER_PERSISTENT, "cuda", "kernel", {})
    (phase,) = kernel.phases
    (schedule,) = {phase.schedule}
    assert schedule is not None
    # One place for elements in registers, one for those in shared memory, one for the next row.
    assert len(inputs_read(kernel)) == (schedule.registers > 0) + (schedule.shared > 0) + (schedule.blocks > 0)


def test_the_maximum_and_the_sum_of_a_very_long_row_take_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = lower(build(softmax, [(300, 600_000)], D.BFloat16), S.INNER_PERSISTENT, "cuda", "kernel", {})
    assert kernel.phases[0].schedule is not None
    assert kernel.phases[0].schedule.online
    monkeypatch.setattr(gpu_row_loops, "LONG_ROW", 1 << 30)  # so few rows would be split into parts
    # Or shared by blocks.
    monkeypatch.setattr(gpu_row_loops, "_long_rows", lambda space: gpu_row_loops.in_cluster(space, 1))
    shape = (3, 140_000)
    x = numbers(shape, D.Float)
    x[0, :70_000] = -np.inf
    x[1, 5] = np.inf
    x[2, 100_000] = np.nan
    check(build(softmax, [shape], D.Float), S.INNER_PERSISTENT, [x])


def wide(fd: Any, x: Any) -> Any:
    return fd.ops.cast(x, dtype=D.Float) if x.dtype is D.BFloat16 else x


def moments(fd: Any, x: Any) -> Any:
    """Values per row only: their variance, its root, and the mean."""
    variance, mean = fd.ops.var_mean(wide(fd, x), [1], correction=0)
    return fd.ops.sqrt(variance), mean


def norm_and_moments(fd: Any, x: Any) -> Any:
    """A norm, with the values per row that a backward pass needs, and a result that needs none of them."""
    o, x = fd.ops, wide(fd, x)
    variance, mean = o.var_mean(x, [1], correction=0, keepdim=True)
    scale = o.rsqrt(o.add(variance, 1e-5))
    return o.mul(o.sub(x, mean), scale), o.squeeze(mean, [1]), scale, o.neg(x)


@pytest.mark.parametrize("record", [softmax, norm_and_moments, moments])
@pytest.mark.parametrize(("shape", "dtype"), [((3, 2600), D.Float), ((2, 9001), D.BFloat16), ((2, 8192), D.Double)])
def test_several_passes_over_few_long_rows_are_launches_of_all_blocks(
    record: Any, shape: tuple[int, int], dtype: DataType, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_row_loops, "LONG_ROW", 1 << 10)
    fusion = build(record, [shape], dtype)
    (x,) = [numbers(shape, dtype)]
    kernel = check(fusion, S.INNER_PERSISTENT if record is not moments else S.REDUCTION, [x])
    names = {softmax: ["_parts", "_parts_1", "_parts_2"], norm_and_moments: ["_parts", "_parts_1", "_parts_2"],
             moments: ["_parts", "_total"]}[record]  # fmt: skip
    assert [phase.name.removeprefix("kernel") for phase in kernel.phases] == names
    assert all(phase.launch.blocks > shape[0] for phase in kernel.phases if "_parts" in phase.name)


@pytest.mark.parametrize(("columns", "lanes"), [(256, 8), (8192, 32)])
def test_parts_of_few_columns_are_added_up_by_more_lines(columns: int, lanes: int) -> None:
    kernel = lower(build(column_sums, [(1 << 17, columns)], D.Float), S.REDUCTION, "cuda", "kernel", {})
    parts, total = (phase.launch for phase in kernel.phases)
    assert total.threads == (lanes, 256 // lanes)
    assert total.blocks == columns // lanes
    assert parts.blocks > total.blocks


def test_what_adjacent_columns_share_takes_no_place_among_the_loads_in_flight() -> None:
    def record(fd: Any, x: Any, y: Any, *scales: Any) -> Any:
        for scale in scales:
            x = fd.ops.mul(x, scale)
        return fd.ops.sum(fd.ops.mul(x, y), [0])

    shapes = [(4096, 1001), (4096, 1001), *[(4096, 1)] * 3]
    kernel = lower(build(record, shapes, D.Float), S.REDUCTION, "cuda", "kernel", {})
    (schedule,) = [nest.schedule for nest in kernel.nests]
    assert (schedule.style, schedule.vector, schedule.unroll) == (Style.COLUMNS, 1, 4)


def test_a_warp_reads_several_rows_where_fewer_columns_are_adjacent_than_a_sector_has_elements() -> None:
    def record(fd: Any, x: Any, weight: Any) -> Any:
        return fd.ops.sum(fd.ops.mul(x, fd.ops.broadcast_in_dim(weight, x.shape(), [0, 1])), [1])

    shapes = [(40, 100, 3), (40, 100)]
    kernel = check(build(record, shapes, D.Float), S.REDUCTION, [numbers(shape, D.Float) for shape in shapes])
    (schedule,) = [nest.schedule for nest in kernel.nests]
    assert (schedule.style, schedule.threads[0]) == (Style.COLUMNS, 8)


def column_sums(fd: Any, x: Any) -> Any:
    return fd.ops.sum(x, [0])


def variances(fd: Any, x: Any) -> Any:
    variance, mean = fd.ops.var_mean(x, [1], correction=0, keepdim=True)
    return mean, fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5))), variance


@pytest.mark.parametrize("split", [0, 3])
@pytest.mark.parametrize("columns", [40_960, 50_000, 40_004])
def test_sum_and_squared_deviations_of_few_long_rows_are_found_in_one_pass(
    columns: int, split: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the mean is far from 0, and where it differs between the parts of a row."""
    monkeypatch.setattr(gpu_row_loops, "LONG_ROW", 1 << 10)
    x = np.random.default_rng(0).normal(size=(3, columns)).astype(np.float32)
    x[0] += 1e6
    x[1] += np.linspace(-1e3, 1e3, columns, dtype=np.float32)
    x[2, : columns // 3] = 1e5
    changes = (LoopChange(target="cuda", nest=0, values=(("split", split),)),) if split else ()
    fusion = build(variances, [x.shape], D.Float)
    kernel = generate(fusion, S.INNER_PERSISTENT, "cuda", "kernel", changes=changes).kernel_ir
    assert [phase.name for phase in kernel.phases] == ["kernel_parts", "kernel_parts_2"]
    memory = {"T0": x.reshape(-1)} | {b.name: np.zeros(b.size, np.float32) for b in kernel.outputs}
    evaluate_kernel(kernel, memory)
    _, _, found = (memory[b.name] for b in kernel.outputs)
    np.testing.assert_allclose(found, x.astype(np.float64).var(axis=1), rtol=1e-6)


def test_only_a_mean_of_all_elements_is_found_with_squared_deviations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_row_loops, "LONG_ROW", 1 << 10)

    def record(fd: Any, x: Any, count: float) -> Any:
        origin = fd.ops.div(fd.ops.sum(x, [1], keepdim=True), count)
        apart = fd.ops.sub(x, origin)
        return fd.ops.sum(fd.ops.mul(apart, apart), [1])

    for count, phases in ((9000.0, 2), (8999.0, 3)):
        x = numbers((2, 9000), D.Float)
        fusion = build(partial(record, count=count), [x.shape], D.Float)
        assert len(check(fusion, S.REDUCTION, [x]).phases) == phases


def test_a_kernel_for_many_lengths_of_a_row_finds_squared_deviations_in_a_second_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one pass, the numbers of elements of its parts would be constants of the kernel."""
    monkeypatch.setattr(gpu_row_loops, "LONG_ROW", 1 << 10)
    kernel = check(build(moments, [(1, 8192)], D.Double), S.REDUCTION, [numbers((1, 8192), D.Double)])
    assert [phase.name for phase in kernel.phases] == ["kernel_parts", "kernel_parts_1", "kernel_total"]


def test_passes_over_few_long_rows_alternate_in_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_row_loops, "LONG_ROW", 1 << 10)
    change = LoopChange(target="cuda", nest=0, values=(("split", 3),))
    fusion = build(softmax, [(2, 50_000)], D.Float)
    kernel = generate(fusion, S.INNER_PERSISTENT, "cuda", "kernel", changes=(change,)).kernel_ir
    signs = []
    for phase in kernel.phases:
        (number,) = [s.value for s in walk(phase.body) if isinstance(s, Let) and s.name == "number"]
        (step,) = [step for atom, step in linear(number, {}).parts if isinstance(atom, Var) and atom.name == "turn"]
        signs.append(step > 0)
    assert signs == [False, True, False]


def test_a_single_pass_over_few_long_rows_goes_forwards() -> None:
    kernel = check(build(totals(1), [(2, 100_000)], D.Float), S.REDUCTION, [numbers((2, 100_000), D.Float)])
    assert [phase.name for phase in kernel.phases] == ["kernel_parts", "kernel_total"]
    (number,) = [s.value for s in walk(kernel.phases[0].body) if isinstance(s, Let) and s.name == "number"]
    (step,) = [step for atom, step in linear(number, {}).parts if isinstance(atom, Var) and atom.name == "turn"]
    assert step > 0


def test_rows_that_fill_the_machine_are_not_cut() -> None:
    for rows, phases in ((8, 3), (14, 3), (15, 1), (66, 1), (67, 1)):
        kernel = lower(build(softmax, [(rows, 240_000)], D.Float), S.INNER_PERSISTENT, "cuda", "kernel", {})
        assert len(kernel.phases) == phases
    kernel = lower(build(softmax, [(16, 32_768)], D.Float), S.INNER_PERSISTENT, "cuda", "kernel", {})
    assert len(kernel.phases) == 1


def likelihood(fd: Any, x: Any, scale: Any, target: Any) -> Any:
    """A logarithm of a softmax at one position of each row."""
    f = fd.ops.cast(x, D.Float)
    largest = fd.ops.max(f, [1], keepdim=True)
    total = fd.ops.sum(fd.ops.exp(fd.ops.sub(f, largest)), [1], keepdim=True)
    picked = fd.ops.take_along_axis(f, fd.ops.broadcast(target, [False, True]), 1)
    found = fd.ops.sub(fd.ops.sub(picked, largest), fd.ops.log(total))
    return fd.ops.mul(fd.ops.squeeze(found, [1]), scale)


@pytest.mark.parametrize(("columns", "dtype"), [(32_000, D.BFloat16), (32_003, D.BFloat16), (20_000, D.Float)], ids=str)
def test_a_maximum_and_a_sum_are_all_that_goes_by(columns: int, dtype: DataType) -> None:
    shapes, dtypes = [(3, columns), (3,), (3,)], [dtype, D.Float, D.Int]
    x = numbers(shapes[0], dtype)
    inputs = [x, numbers(shapes[1], D.Float, 1), np.asarray([5, columns - 1, 7])]
    kernel = check(build(likelihood, shapes, dtypes), S.INNER_PERSISTENT, inputs)
    (schedule,) = {phase.schedule for phase in kernel.phases}
    assert schedule is not None
    assert schedule.online
    assert (schedule.persistent, schedule.shared, schedule.registers) == (False, 0, 0)
    statements = list(walk(kernel.phases[0].body))
    loads = [(n, t.buffer.name) for n, s in enumerate(statements) for root in terms_of(s) for t in root.walk()
             if isinstance(t, Load) and t.buffer.role is Role.INPUT]
    first = next(n for n, s in enumerate(statements) if isinstance(s, VectorLoad))
    assert all(n < first for n, name in loads if name in {"T1", "T2"}), "results do not wait for other inputs"


@pytest.mark.sampled(5)
@pytest.mark.parametrize("alignment", [2, 4, 8])
@pytest.mark.parametrize("shape", [(3, 64), (3, 4096), (2, 33_000), (60, 4096)], ids=str)
def test_memory_that_is_not_aligned(shape: tuple[int, int], alignment: int) -> None:
    x = numbers(shape, D.BFloat16)
    for record, scheduler in ((softmax, S.INNER_PERSISTENT), (totals(1), S.REDUCTION), (totals(0), S.REDUCTION)):
        fusion = build(record, [shape], D.BFloat16)
        kernel = check(fusion, scheduler, [x], {fusion.tensor_inputs[0].name: alignment})
        widths = [
            s.width for p in kernel.phases for s in walk(p.body)
            if isinstance(s, VectorLoad) and s.buffer.role is Role.INPUT
        ]
        assert all(2 * width <= alignment for width in widths)


LAYOUTS = {
    "reversed rows": lambda x: x[::-1],
    "reversed columns": lambda x: x[:, ::-1],
    "column-major": np.asfortranarray,
    "every second column": lambda x: np.repeat(x, 2, 1)[:, ::2],
    "one row for all": lambda x: np.broadcast_to(x[:1], x.shape),
    "one column for all": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "rows apart": lambda x: np.concatenate([x, x[:, :3]], 1)[:, : x.shape[1]],
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("shape", [(20, 48), (3, 2048), (2, 20_000)], ids=str)
def test_any_strides(shape: tuple[int, int], layout: Any) -> None:
    x = layout(numbers(shape, D.Float))
    check(build(softmax, [shape], D.Float), S.INNER_PERSISTENT, [x])
    check(build(totals(1), [shape], D.Float), S.REDUCTION, [x])
    check(build(totals(0), [shape], D.Float), S.REDUCTION, [x])
    shapes = [shape, shape, shape[1:], (shape[0], 1)]
    inputs = [x, *(numbers(s, D.Float, n) for n, s in enumerate(shapes[1:]))]
    check(build(backward, shapes, D.Float), S.INNER_OUTER_PERSISTENT, inputs)


@pytest.mark.parametrize("shape", [(300, 96), (5000, 40), (37, 5)], ids=str)
def test_statistics_of_columns_let_them_go_by_side_by_side(shape: tuple[int, int]) -> None:
    fusion = build(lambda fd, x: fd.ops.var_mean(x, [0], correction=0), [shape], D.Float)
    kernel = check(fusion, S.REDUCTION, [numbers(shape, D.Float)])
    assert len(kernel.phases) > 1
    for phase in kernel.phases:
        assert phase.schedule is not None
        assert phase.schedule.style is not Style.ROWS


@pytest.mark.parametrize("dtype", [D.Float, D.Double], ids=lambda d: d.name)
def test_what_the_rows_of_a_column_share_is_computed_once_for_each_thread(dtype: DataType) -> None:
    def record(fd: Any, x: Any, spread: Any, shift: Any) -> Any:
        o = fd.ops
        shifted = o.add(x, o.broadcast(shift, [True, False]))
        return o.sum(o.mul(shifted, o.broadcast(o.sqrt(spread), [True, False])), [0])

    shapes = [(1000, 96), (96,), (96,)]
    inputs = [np.abs(numbers(shape, dtype, n)) for n, shape in enumerate(shapes)]
    kernel = check(build(record, shapes, dtype), S.REDUCTION, inputs)
    (depth,) = {depth for phase in kernel.phases for depth in depths_of_roots(phase.body)}
    assert depth <= 1  # at most inside the loop over a thread's adjacent elements


def depths_of_roots(statements: Sequence[Any], depth: int = 0) -> list[int]:
    """The number of loops around each square root, without those of threads."""
    found = []
    for statement in statements:
        parts = [getattr(statement, name, ()) for name in ("body", "then", "otherwise")]
        inner = isinstance(statement, Loop) and statement.parallel in {ParallelType.serial, ParallelType.vectorize}
        for part in parts:
            found += depths_of_roots(part, depth + inner)
        terms = (t for root in terms_of(statement) for t in root.walk()) if not any(parts) else ()
        found += [depth for term in terms if isinstance(term, Apply) and term.fn == "sqrt"]
    return found


def test_many_sums_of_columns_find_room_to_meet() -> None:
    def record(fd: Any, x: Any) -> Any:
        powers = [x]
        for _ in range(7):
            powers.append(fd.ops.mul(powers[-1], 0.5))
        return [fd.ops.sum(p, [0]) for p in powers]

    kernel = check(build(record, [(5000, 64)], D.Float), S.REDUCTION, [numbers((5000, 64), D.Float)])
    for phase in kernel.phases:
        shared = [s.buffer for s in walk(phase.body) if isinstance(s, Alloc) and s.buffer.role is Role.SHARED]
        assert sum(b.size * b.dtype.itemsize for b in shared) <= 48 << 10


def test_threads_that_walk_several_rows_wait_for_each_other() -> None:
    shapes = [(4000, 8192), (4000, 8192), (8192,), (4000, 1)]
    kernel = lower(build(backward, shapes, D.BFloat16), S.INNER_OUTER_PERSISTENT, "cuda", "kernel", {})
    (rows,) = [s for s in walk(kernel.phases[0].body) if isinstance(s, Loop) and s.var == "i"]
    inside = list(walk(rows.body))
    reductions = [n for n, s in enumerate(inside) if isinstance(s, Reduce)]
    assert len(reductions) == 1
    assert any(isinstance(s, Barrier) for s in inside[reductions[0] :]), "shared memory is overwritten too early"


FORCED = {
    "registers": {"registers": 2, "unroll": 1},
    "registers and shared memory": {"registers": 1, "shared": 1, "unroll": 1},
    "some of it read again": {"registers": 1, "shared": 2, "unroll": 2},
    "nothing kept": {"registers": 0, "shared": 0, "unroll": 2},
    "blocks that walk rows": {"registers": 1, "shared": 1, "unroll": 1, "blocks": 3},
    "blocks that walk rows, much read again": {"registers": 1, "shared": 0, "unroll": 2, "blocks": 2},
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("threads", [32, 64])
@pytest.mark.parametrize("forced", FORCED.values(), ids=FORCED)
def test_rows_are_right_whatever_is_chosen(
    forced: dict[str, int], threads: int, online: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = parameters.choose_loops
    changes: dict[str, Any] = {**forced, "threads": (threads, 1), "values": False, "online": online}

    def choose(space: Space, target: str) -> LoopSchedule | Refused:
        schedule = chosen(space, target)
        return replace(schedule, **changes) if isinstance(schedule, LoopSchedule) and space.passes > 1 else schedule

    monkeypatch.setattr(parameters, "choose_loops", choose)
    for shape in ((7, 520), (9, 77)):
        for dtype in (D.Float, D.BFloat16):
            check(build(softmax, [shape], dtype), S.INNER_PERSISTENT, [numbers(shape, dtype)])
        if not online:
            shapes = [shape, shape, shape[1:]]
            inputs = [numbers(s, D.BFloat16, n) for n, s in enumerate(shapes)]
            check(build(add_norm, shapes, D.BFloat16), S.INNER_PERSISTENT, inputs)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("changes", [
    {"shared": 0}, {"shared": 1}, {"shared": 2}, {"unroll": 2}, {"unroll": 2, "constants": True}, {"blocks": 3},
    {"values": True}, {"values": True, "unroll": 2, "shared": 1},
    {"blocks": 1, "shared": 2, "unroll": 2, "constants": True},
], ids=str)
def test_rows_and_columns_are_right_whatever_is_chosen(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch,
) -> None:
    def choose(space: Space) -> LoopSchedule | Refused:
        schedule = backward_loops(space)
        return replace(schedule, **changes) if isinstance(schedule, LoopSchedule) else schedule

    monkeypatch.setattr(parameters, "backward_loops", choose)
    for shape in ((37, 520), (41, 24), (300, 77)):
        shapes = [shape, shape, shape[1:], (shape[0], 1)]
        for dtype in (D.Float, D.BFloat16):
            inputs = [numbers(s, dtype, n) for n, s in enumerate(shapes)]
            check(build(backward, shapes, dtype), S.INNER_OUTER_PERSISTENT, inputs)


def both_sums(fd: Any, x: Any, weight: Any) -> Any:
    product = fd.ops.mul(fd.ops.cast(x, D.Float), fd.ops.broadcast_in_dim(fd.ops.cast(weight, D.Float), x.shape(), [1]))
    return fd.ops.sum(product, [1]), fd.ops.sum(product, [0])


@pytest.mark.parametrize("shape", [(37, 520), (40, 64), (300, 77), (9, 2048)], ids=str)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16])
def test_rows_and_columns_in_one_pass_have_the_next_row_on_its_way(shape: tuple[int, int], dtype: D) -> None:
    shapes = [shape, shape[1:]]
    inputs = [numbers(s, dtype, n) for n, s in enumerate(shapes)]
    kernel = check(build(both_sums, shapes, dtype), S.INNER_OUTER_PERSISTENT, inputs)
    assert kernel.nests[0].schedule.unroll == 2
    kept = {s.buffer.name for s in walk(kernel.phases[0].body) if isinstance(s, Alloc)}
    assert [name for name in kept if name.endswith("_next_row")] == ["T0_next_row"]


SPACES = st.builds(
    Space,
    kept=st.tuples(st.integers(1, 1 << 17)), reduced=st.tuples(st.integers(1, 1 << 18)),
    kept_run=st.just(1), reduced_run=st.just(1), inner_reduced=st.just(True), passes=st.integers(1, 4),
    reduces=st.just(True), vector=st.just(1), streams=st.integers(1, 5), input_bytes=st.integers(0, 24),
    value_bytes=st.integers(0, 24), constant_bytes=st.integers(0, 12), sum_bytes=st.integers(1, 64),
    online=st.booleans(), reduces_outermost=st.booleans(),
)


@pytest.mark.property
@tries(300)
@given(SPACES, st.sampled_from([1, 2, 4, 8]))
def test_schedules_fit_the_machine(space: Space, vector: int) -> None:
    depth = -(-space.depth // vector) * vector
    space = Space(**{
        **{name: getattr(space, name) for name in Space.__dataclass_fields__}, "vector": vector, "reduced": (depth,),
    })
    rows = row_loops(space)
    lanes, height = rows.threads
    steps = -(-depth // (lanes * vector))
    assert 1 <= lanes * height <= 1024
    assert lanes % 32 == 0 or 32 % lanes == 0
    kept = rows.registers + rows.shared
    # Rows whose number of elements grows with the batch have one of a few numbers of steps, or whole rounds.
    assert kept <= steps or (space.reduces_outermost and (kept in COMMON_STEPS or kept < steps + rows.unroll))
    assert kept <= max(2 * steps, steps + rows.unroll)
    assert rows.shared * lanes * vector * space.input_bytes * max(rows.resident, 1) <= SHARED_OF_A_BLOCK
    assert rows.split == 1 or space.passes == 1
    assert all(reason in describe(rows, space) for reason in rows.reasons)
    assert rows.reasons
    columns = column_loops(space)
    lanes, height = columns.threads
    assert 1 <= lanes * height <= 1024
    assert vector % columns.vector == 0
    assert height == 1 or height * lanes * columns.vector * space.sum_bytes <= MEETING_BYTES
    walk_rows = backward_loops(replace(space, column_sums=(4, 4, 8)))
    if isinstance(walk_rows, LoopSchedule):
        held = walk_rows.registers * walk_rows.vector
        assert walk_rows.threads[0] * held >= depth
        assert sum((4, 4, 8)[: walk_rows.shared]) * held * walk_rows.threads[0] <= SHARED_OF_A_BLOCK


@pytest.mark.parametrize(("record", "scheduler", "grows"), [
    (softmax, S.INNER_PERSISTENT, False), (totals(1), S.REDUCTION, True),
])
def test_rows_grow_with_the_batch_unless_results_have_another_outermost_axis(
    record: Any, scheduler: S, grows: bool,
) -> None:
    (nest,) = lower(build(record, [(2000, 3000)], D.Float), scheduler, "cuda", "kernel", {"T0": (1, 2000)}).nests
    assert nest.space.reduces_outermost is grows


@pytest.mark.parametrize(("dtype", "lanes"), [(D.Float, 32), (D.Double, 64)])
def test_an_element_of_double_takes_two_registers(dtype: DataType, lanes: int) -> None:
    (nest,) = lower(build(softmax, [(9999, 1024)], dtype), S.INNER_PERSISTENT, "cuda", "kernel").nests
    assert nest.schedule.threads[0] == lanes


def test_columns_read_through_a_permutation_are_loaded_ahead() -> None:
    """One element at a time: the loads of a round precede its stores, across which no compiler moves them."""
    def record(fd: Any, x: Any) -> Any:
        rows = fd.ops.reshape(fd.ops.permute(x, [1, 0, 2]), [2056, 1280])
        return rows, fd.ops.sum(rows, [0])

    x = numbers((16, 2056, 80), D.Float)
    kernel = check(build(record, [x.shape], D.Float), S.REDUCTION, [x])
    loads = [s for s in walk(kernel.phases[0].body) if reads_input(s)]
    assert loads
    assert all(isinstance(s, Store) and s.buffer.role is Role.WORDS for s in loads)


def reads_input(statement: Statement) -> bool:
    return any(isinstance(t, Load) and t.buffer.role is Role.INPUT for root in terms_of(statement) for t in root.walk())


@pytest.mark.parametrize("columns", [3, 5, 6, 7, 12, 24, 40, 67])
@pytest.mark.parametrize("dtype", [D.BFloat16, D.Double, D.ComplexDouble], ids=lambda d: d.name)
def test_short_rows_whose_groups_leave_lanes_idle(columns: int, dtype: DataType) -> None:
    x = numbers((5, columns), dtype)
    check(build(totals(1), [x.shape], dtype), S.REDUCTION, [x])


@pytest.mark.parametrize("target", agreement.TARGETS)
def test_a_segment_that_reads_squared_deviations_only_adds_them_up(target: str) -> None:
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([3, 70], [True, True], DataType.Float)
        fd.add_output(fd.ops.var(t0, [1]))
    x = np.linspace(0, 1, 210, dtype=np.float32).reshape(3, 70)
    plan = segment(fd, [x], strategy="unfused")
    (got,) = agreement.lock_step(plan, [x], target)
    np.testing.assert_allclose(got, x.astype(np.float64).var(1, ddof=1), rtol=1e-5)

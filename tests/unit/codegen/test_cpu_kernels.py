"""CPU kernels in lock step: transposes in tiles, rows and columns at once, columns in bands; against float64."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build, close, numbers, one_of_each_kind
from backend.reductions import backward

from fuser_lab.codegen.kernel_eval import evaluate_kernel
from fuser_lab.codegen.kernel_ir import (
    Alloc,
    Kernel,
    Load,
    Loop,
    Store,
    Transpose,
    dense_strides,
    layout_of,
    terms_of,
    walk,
)
from fuser_lab.dtypes import DataType
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion
from fuser_lab.ir.term import Apply
from fuser_lab.runtime.arrays import flat_view, storage_dtype, to_numpy
from fuser_lab.schedule.cpu_loops import CPU_SUMS_BYTES, PARTIAL_ROWS
from fuser_lab.schedule.parameters import choose_loops, describe
from fuser_lab.schedule.state import Space, Style
from tests.kernels import generate, lower, prepare

DTYPES = (D.Double, D.Float, D.Half, D.BFloat16, D.Int, D.Int32, D.Bool, D.ComplexFloat)
FLOATS = (D.Double, D.Float, D.Half, D.BFloat16)


def check(fusion: Fusion, scheduler: S, inputs: Sequence[np.ndarray]) -> Kernel:
    """Run on arrays of any strides with poisoned outputs; each element is written once, and correct up to rounding."""
    strides = {
        tv.name: tuple(s // x.itemsize for s in x.strides) for tv, x in zip(fusion.tensor_inputs, inputs, strict=True)
    }
    kernel = lower(fusion, scheduler, "cpu", "kernel", strides)
    memory: dict[str, Any] = {}
    for tv, x in zip(fusion.tensor_inputs, inputs, strict=True):
        layout = layout_of(tv, strides[tv.name])
        memory[tv.name] = flat_view(x, tv.dtype, layout.size, layout.offset)
    for tv in fusion.outputs:
        memory[tv.name] = np.full(layout_of(tv).size, 77).astype(storage_dtype(tv.dtype))
    writes = evaluate_kernel(kernel, memory).writes
    exact = any(not tv.dtype.is_float for tv in fusion.tensors.values())
    for tv, wanted in zip(fusion.outputs, evaluate(fusion, list(inputs), exact=exact), strict=True):
        assert (writes[tv.name] == 1).all(), f"{tv.name} is not written exactly once"
        steps = [s * tv.dtype.itemsize for s in dense_strides(tv)]
        flat = memory[tv.name]
        got = np.ndarray(tv.shape, tv.dtype.numpy, flat, strides=steps) if flat.size else np.empty(tv.shape, flat.dtype)
        if flat.size:
            close(got, np.asarray(wanted).astype(tv.dtype.numpy), tv.dtype)
    return kernel


def style(kernel: Kernel) -> Style:
    assert kernel.phases[0].schedule is not None
    return kernel.phases[0].schedule.style


# Transposes


def transpose_add(fd: Any, x: Any, y: Any) -> Any:
    return fd.ops.add(fd.ops.permute(x, [1, 0]), y)


def transposed_output(fd: Any, x: Any) -> Any:
    y = fd.ops.mul(x, x)
    return y, fd.ops.permute(y, [1, 0])


def batched(fd: Any, x: Any, y: Any) -> Any:
    return fd.ops.mul(fd.ops.permute(x, [0, 2, 1]), y)


@pytest.mark.parametrize("dtype", one_of_each_kind(DTYPES), ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(16, 16), (17, 70), (65, 33), (64, 129)], ids=str)
def test_transposes_in_tiles(shape: tuple[int, int], dtype: DataType) -> None:
    fusion = build(transpose_add, [shape, shape[::-1]], dtype)
    kernel = check(fusion, S.TRANSPOSE, [numbers(shape, dtype), numbers(shape[::-1], dtype, 1)])
    assert style(kernel) is Style.TILES


@pytest.mark.parametrize("shape", [(1, 70), (70, 1), (3, 70), (15, 100), (0, 20), (20, 0), (1, 1)], ids=str)
def test_what_is_too_narrow_for_tiles(shape: tuple[int, int]) -> None:
    fusion = build(transpose_add, [shape, shape[::-1]], D.Float)
    kernel = check(fusion, S.TRANSPOSE, [numbers(shape, D.Float), numbers(shape[::-1], D.Float)])
    assert {p.schedule.style for p in kernel.phases if p.schedule} <= {Style.ELEMENTS}
    assert bool(kernel.phases) == (0 not in shape)


@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16], ids=lambda d: d.name)
def test_transposed_outputs_and_batches(dtype: DataType) -> None:
    assert style(check(build(transposed_output, [(37, 41)], dtype), S.TRANSPOSE, [numbers((37, 41), dtype)])) is (
        Style.TILES
    )
    inputs = [numbers((3, 20, 70), dtype), numbers((3, 70, 20), dtype)]
    assert style(check(build(batched, [(3, 20, 70), (3, 70, 20)], dtype), S.TRANSPOSE, inputs)) is Style.TILES


VIEWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "reversed rows": lambda x: x[::-1],
    "reversed columns": lambda x: x[:, ::-1],
    "column-major": np.asfortranarray,
    "every second column": lambda x: np.repeat(x, 2, 1)[:, ::2],
    "one row for all": lambda x: np.broadcast_to(x[:1], x.shape),
    "one column for all": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "one element later": lambda x: np.pad(x.ravel(), (1, 0))[1:].reshape(x.shape),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("which", [0, 1])
def test_transposes_of_any_strides(which: int, view: Callable[[np.ndarray], np.ndarray]) -> None:
    inputs = [numbers((35, 70), D.Float), numbers((70, 35), D.Float, 1)]
    inputs[which] = view(inputs[which])
    check(build(transpose_add, [(35, 70), (70, 35)], D.Float), S.TRANSPOSE, inputs)


def test_a_transposed_read_of_part_of_a_tensor() -> None:
    fusion = build(
        lambda fd, x, y: fd.ops.add(fd.ops.permute(fd.ops.slice(x, [3, 5], [43, 75]), [1, 0]), y), [(50, 80), (70, 40)],
        D.Float,
    )
    check(fusion, S.TRANSPOSE, [numbers((50, 80), D.Float), numbers((70, 40), D.Float, 1)])


def test_rows_of_tiles_are_whole_cache_lines() -> None:
    source = generate(build(transpose_add, [(128, 128)] * 2, D.Float), S.TRANSPOSE, "cpu").source
    assert "T0_tile = scratch(" in source
    assert "T0_tile[uintp((i - across) * 68 + (j - along))]" in source


@pytest.mark.parametrize("dtype", [D.BFloat16, D.Half], ids=lambda d: d.name)
def test_tiles_have_16_bits_where_elements_are_only_moved(dtype: DataType) -> None:
    fusion = build(transpose_add, [(96, 72), (72, 96)], dtype)
    inputs = [numbers((96, 72), dtype), numbers((72, 96), dtype, 1)]
    tiles = [s.buffer for s in walk(check(fusion, S.TRANSPOSE, inputs).phases[0].body) if isinstance(s, Alloc)]
    assert {tile.dtype for tile in tiles} == {dtype}
    source = generate(fusion, S.TRANSPOSE, "cpu").source
    assert "T0_tile = scratch(4352, uint16)" in source


def test_tiles_go_through_registers_in_the_order_of_the_shortest_runs() -> None:
    # A tile reads runs of 64 elements of the input, and writes 1,024 adjacent elements of the output.
    x = numbers((1, 2, 16, 2, 64), D.BFloat16)
    fusion = build(lambda fd, x: fd.ops.neg(fd.ops.permute(x, [0, 3, 1, 4, 2])), [x.shape], D.BFloat16)
    moves = [s for s in walk(check(fusion, S.TRANSPOSE, [x]).phases[0].body) if isinstance(s, Transpose)]
    assert [(move.source.name, move.target.name, move.rows, move.columns) for move in moves] == [
        ("rows_bfloat16", "T0_tile", 16, 64),
    ]
    source = generate(fusion, S.TRANSPOSE, "cpu").source
    assert "T0[uintp(unit // 2 * 2048 + j * 128 + unit % 2 * 64 + i)]" in source


# Rows and columns at once


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(9, 13), (17, 40), (300, 11), (513, 9)], ids=str)
def test_rows_and_columns_at_once(shape: tuple[int, int], dtype: DataType) -> None:
    shapes = [shape, shape, shape[1:], (shape[0], 1)]
    fusion = build(backward, shapes, dtype)
    kernel = check(fusion, S.INNER_OUTER_PERSISTENT, [numbers(s, dtype, n) for n, s in enumerate(shapes)])
    assert kernel.phases[0].name == "kernel_rows"
    (band,) = (s for s in kernel.phases[0].body if isinstance(s, Loop)) if shape[0] > PARTIAL_ROWS else (None,)
    if band is not None:
        assert band.var == "band"
        assert [b.size for b in kernel.workspace] == [-(-shape[0] // PARTIAL_ROWS) * shape[1]] * len(kernel.workspace)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_rows_and_columns_of_any_strides(view: Callable[[np.ndarray], np.ndarray]) -> None:
    shapes = [(9, 24), (9, 24), (24,), (9, 1)]
    inputs = [numbers(shape, D.Float, n) for n, shape in enumerate(shapes)]
    inputs[:2] = view(inputs[0]), view(inputs[1])
    check(build(backward, shapes, D.Float), S.INNER_OUTER_PERSISTENT, inputs)


def test_an_operand_of_column_sums_that_is_not_stored_is_computed_again() -> None:
    def centered(fd: Any, x: Any, w: Any) -> Any:
        product = fd.ops.mul(x, w)
        return fd.ops.sum(product, [0]), fd.ops.sub(product, fd.ops.sum(product, [1], keepdim=True))

    shapes = [(40, 200), (200,)]
    fusion = build(centered, shapes, D.Float)
    check(fusion, S.INNER_OUTER_PERSISTENT, [numbers(s, D.Float, n) for n, s in enumerate(shapes)])


def test_inputs_are_read_by_one_phase_only() -> None:
    fusion = build(backward, [(64, 48), (64, 48), (48,), (64, 1)], D.Float)
    kernel = lower(fusion, S.INNER_OUTER_PERSISTENT, "cpu", "kernel", {})
    inputs = {b.name for b in kernel.inputs}
    for phase in kernel.phases[1:]:
        loads = {t.buffer.name for s in walk(phase.body) for r in terms_of(s) for t in r.walk() if isinstance(t, Load)}
        assert not loads & inputs


def test_sums_that_no_cache_holds_have_a_pass_of_their_own() -> None:
    columns = CPU_SUMS_BYTES // 8 + 1  # of two sums in Float
    fusion = build(backward, [(4, columns), (4, columns), (columns,), (4, 1)], D.Float)
    kernel = lower(fusion, S.INNER_OUTER_PERSISTENT, "cpu", "kernel", {})
    assert not kernel.phases[0].name.endswith("_rows")


def normalized_sum(fd: Any, x: Any, y: Any) -> Any:
    o = fd.ops
    total = o.cast(o.add(x, y), x.dtype)
    wide = o.cast(total, D.Float)
    size = o.rsqrt(o.add(o.mean(o.mul(wide, wide), [-1], keepdim=True), 1e-5))
    return total, o.cast(o.mul(wide, size), x.dtype)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", [D.Float, D.Half, D.BFloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(40, 70), (3, 5000), (1, 9), (2, 3, 50)], ids=str)
def test_a_stored_row_is_read_back_rather_than_computed_from_several(shape: tuple[int, ...], dtype: DataType) -> None:
    fusion = build(normalized_sum, [shape] * 2, dtype)
    kernel = check(fusion, S.INNER_PERSISTENT, [numbers(shape, dtype), numbers(shape, dtype, 1)])
    terms = [term for s in walk(kernel.phases[0].body) for root in terms_of(s) for term in root.walk()]
    loads = [term.buffer.name for term in terms if isinstance(term, Load)]
    stored = fusion.outputs[0].name
    assert [loads.count(name) for name in ("T0", "T1", stored)] == [1, 1, 1]


def test_a_row_stored_across_lines_is_computed_again() -> None:
    fusion = build(normalized_sum, [(40, 70)] * 2, D.Float)
    strides = {fusion.outputs[0].name: (1, 40)}
    kernel = lower(fusion, S.INNER_PERSISTENT, "cpu", "kernel", strides)
    terms = [term for s in walk(kernel.phases[0].body) for root in terms_of(s) for term in root.walk()]
    loads = [term.buffer.name for term in terms if isinstance(term, Load)]
    assert [loads.count(name) for name in ("T0", "T1", fusion.outputs[0].name)] == [2, 2, 0]


# Columns


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(1, 1), (40, 7), (600, 3), (17, 300)], ids=str)
def test_sums_of_columns(shape: tuple[int, int], dtype: DataType) -> None:
    check(build(lambda fd, x: fd.ops.sum(x, [0]), [shape], dtype), S.REDUCTION, [numbers(shape, dtype)])


@pytest.mark.parametrize(("itemsize", "rows", "tile"), [(2, 512, 512), (2, 513, 256), (4, 256, 512), (4, 512, 256)])
def test_columns_are_read_together_as_far_as_they_stay_in_the_cache(itemsize: int, rows: int, tile: int) -> None:
    dtype = D.BFloat16 if itemsize == 2 else D.Float
    fusion = build(lambda fd, x: fd.ops.softmax(x, 0), [(rows, 8192)], dtype)
    (phase,) = generate(fusion, S.OUTER_PERSISTENT, "cpu").kernel_ir.phases
    assert phase.schedule is not None
    assert phase.schedule.tile == tile


def test_columns_that_go_by_once_are_cut_into_bands_of_rows() -> None:
    space = Space(
        kept=(4096,), reduced=(4096,), kept_run=4096, reduced_run=4096, inner_reduced=False, passes=1, reduces=True,
    )
    loops = choose_loops(space, "cpu")
    assert (loops.style, loops.tile, loops.split, loops.parallel) == (Style.COLUMNS, 4096, 16, True)
    assert "each in 16 parts" in describe(loops, space)


@pytest.mark.parametrize(("kept", "depth", "tile", "units"), [
    ((4096,), 1024, 256, 16),
    ((4, 2048), 512, 256, 32),
    ((64, 512), 256, 512, 64),  # whole rows
    ((512,), 16384, 64, 8),
    ((40,), 100_000, 32, 2),
    ((1024,), 64, 512, 2),  # too few elements to distribute
], ids=str)
def test_columns_that_are_traversed_again_keep_16_cores_busy(
    kept: tuple[int, ...], depth: int, tile: int, units: int,
) -> None:
    space = Space(
        kept=kept, reduced=(depth,), kept_run=kept[-1], reduced_run=depth, inner_reduced=False, passes=3, reduces=True,
    )
    loops = choose_loops(space, "cpu")
    assert (loops.style, loops.tile) == (Style.COLUMNS, tile)
    assert loops.parallel == (depth * kept[-1] > 1 << 16)
    assert math.prod(kept[:-1]) * -(-kept[-1] // loops.tile) == units


def test_columns_follow_the_input_that_each_pass_reads_and_not_a_result_that_is_written_once() -> None:
    fusion = build(lambda fd, x: fd.ops.softmax(x, 1), [(8, 96, 60)], D.Float)
    strides = {"T0": (96 * 60, 1, 96)}  # along the reduced axis
    along = generate(fusion, S.INNER_PERSISTENT, "cpu", strides=strides | {fusion.outputs[0].name: (96 * 60, 60, 1)})
    strides = {"T0": (96 * 60, 60, 1)}
    across = generate(fusion, S.INNER_PERSISTENT, "cpu", strides=strides | {fusion.outputs[0].name: (96 * 60, 1, 96)})
    styles = [
        phase.schedule.style for kernel in (along, across) for phase in kernel.kernel_ir.phases if phase.schedule
    ]
    assert styles == [Style.ROWS, Style.COLUMNS]


@pytest.mark.parametrize(("sizes", "style"), [
    ((40, 2, 24, 2), Style.COLUMNS), ((40, 4, 8, 4), Style.COLUMNS),
    ((40, 2, 4, 2), Style.ROWS),  # fewer windows in a row than lanes
    ((40, 5, 24, 5), Style.ROWS), ((4, 1, 24, 7), Style.ROWS),
], ids=str)
def test_each_lane_reduces_a_window_of_a_pool(sizes: tuple[int, ...], style: Style) -> None:
    fusion = build(lambda fd, x: fd.ops.max(x, [1, 3]), [sizes], D.Float)
    (phase,) = check(fusion, S.REDUCTION, [numbers(sizes, D.Float)]).phases
    assert phase.schedule is not None
    assert phase.schedule.style is style


@pytest.mark.parametrize(("rows", "split"), [(1, 16), (15, 16), (16, 1)])
def test_the_sums_of_a_few_rows_are_divided(rows: int, split: int) -> None:
    space = Space(
        kept=(rows,), reduced=(1 << 20,), kept_run=rows, reduced_run=1 << 20, inner_reduced=True, passes=1,
        reduces=True,
    )
    assert choose_loops(space, "cpu").split == split


# Scratch memory


def test_rows_are_on_the_stack_while_it_has_room() -> None:
    def softmax(fd: Any, x: Any) -> Any:
        power = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, dims=[1], keepdim=True)))
        return fd.ops.div(power, fd.ops.sum(power, dims=[1], keepdim=True))

    for columns, wanted in ((32768, "scratch(32768, float32)"), (32769, "np.empty(32769, np.float32)")):
        generated = generate(build(softmax, [(4, columns)], D.Float), S.INNER_PERSISTENT, "cpu")
        assert any(isinstance(s, Alloc) for p in generated.kernel_ir.phases for s in walk(p.body))
        assert wanted in generated.source


def test_threads_do_not_share_cache_lines_of_scratch_memory() -> None:
    """Concurrent writes of several threads go to their stacks or to long rows of the workspace."""
    fusion = build(backward, [(4096, 4096), (4096, 4096), (4096,), (4096, 1)], D.Float)
    kernel = lower(fusion, S.INNER_OUTER_PERSISTENT, "cpu", "kernel", {})
    stores = [s for s in walk(kernel.phases[0].body) if isinstance(s, Store) and s.buffer in kernel.workspace]
    assert stores
    assert all(s.buffer.size == 16 * 4096 for s in stores)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_value_moved_out_of_a_loop_has_a_name_of_its_own(target: str) -> None:
    # T0[q] is read before the inner loop, after the pad's branch inside has named another element t0.
    def record(fd: Any, x: Any) -> Any:
        padded = fd.ops.pad(x, [1, -1, 0, 1])
        return fd.ops.where(fd.ops.gt(padded, 0), x, x), fd.ops.sum(padded)

    x = numbers((13, 1, 2), D.Float)
    fusion = build(record, (x.shape,), D.Float)
    memory = {
        tv.name: x.reshape(-1) if tv in fusion.inputs else np.zeros(layout_of(tv).size, np.float32)
        for tv in (*fusion.inputs, *fusion.outputs)
    }
    evaluate_kernel(lower(fusion, S.REDUCTION, target, "kernel", {}), memory)
    repeated, _ = fusion.outputs
    np.testing.assert_array_equal(memory[repeated.name].reshape(13, 2, 2), np.broadcast_to(x, (13, 2, 2)))


def test_what_the_rows_of_a_column_share_is_computed_once_for_each_column() -> None:
    def norm(fd: Any, x: Any) -> Any:
        o = fd.ops
        variance, mean = o.var_mean(x, [0], 0, keepdim=True)
        return o.mul(o.sub(x, mean), o.rsqrt(o.add(variance, 1e-5)))

    source = generate(build(norm, [(300, 700)], D.Float), S.OUTER_PERSISTENT, "cpu").source
    last_pass = source.rindex("for q in range")
    assert source.count("math.sqrt") == 1
    assert "math.sqrt" in source[:last_pass]
    assert "/" not in source[last_pass:], "the mean is also divided only once"


@pytest.mark.parametrize("dtype", [DataType.Float, DataType.BFloat16, DataType.Int])
@pytest.mark.parametrize("op", ["sum", "max", "prod"])
def test_many_short_runs_of_a_row_keep_a_running_value_for_each_element(op: str, dtype: DataType) -> None:
    fusion = build(lambda fd, x: getattr(fd.ops, op)(x, [0, 2, 4]), [(3, 5, 120, 4, 9)], dtype)
    inputs = [numbers((3, 5, 120, 4, 9), dtype)]
    kernel = generate(fusion, S.REDUCTION, "cpu")
    (array,) = [s.buffer for s in walk(kernel.kernel_ir.phases[0].body) if isinstance(s, Alloc)]
    assert array.size == 9
    blocks = [s for s in walk(kernel.kernel_ir.phases[0].body) if isinstance(s, Loop) and s.var.startswith("q_block")]
    assert bool(blocks) == (op != "max" and dtype.is_float), "sums of many numbers are added up in blocks"
    got = to_numpy(prepare(fusion, [(fusion, S.REDUCTION)], "cpu").run(inputs)[0])
    close(got, np.asarray(evaluate(fusion, inputs, exact=False)[0]).astype(got.dtype), dtype)


def scaled_rows(fd: Any, x: Any) -> Any:
    """Rows with a scale that is a power of 2, as in blocks of MX formats, and the scales."""
    o = fd.ops
    wide = o.cast(x, D.Float)
    scale = o.exp2(o.floor(o.log2(o.add(o.max(o.abs(wide), [-1], keepdim=True), 1.0))))
    return o.cast(o.div(wide, scale), x.dtype), o.squeeze(scale, [2])


def shares_and_entropy(fd: Any, x: Any) -> Any:
    """A softmax, whose exponentials are kept between passes, and a result of each row that needs a logarithm."""
    o = fd.ops
    wide = o.cast(x, D.Float)
    centred = o.sub(wide, o.max(wide, [-1], keepdim=True))
    powers = o.exp(centred)
    total = o.sum(powers, [-1], keepdim=True)
    share = o.div(powers, total)
    surprise = o.sub(o.log(total), o.sum(o.mul(share, centred), [-1], keepdim=True))
    return o.cast(share, x.dtype), o.squeeze(surprise, [2])


def rms_rows(fd: Any, x: Any) -> Any:
    o = fd.ops
    wide = o.cast(x, D.Float)
    return o.cast(o.mul(wide, o.rsqrt(o.add(o.mean(o.mul(wide, wide), [-1], keepdim=True), 1.0))), x.dtype)


@pytest.mark.parametrize(("record", "length", "dtype", "staged"), [
    (scaled_rows, 8, D.Float, True), (scaled_rows, 64, D.Float, True), (scaled_rows, 65, D.Float, False),
    (scaled_rows, 7, D.Float, False), (scaled_rows, 65, D.BFloat16, True), (scaled_rows, 513, D.BFloat16, False),
    (shares_and_entropy, 20, D.Float, True), (shares_and_entropy, 33, D.Half, True),
    (rms_rows, 32, D.Float, False), (rms_rows, 32, D.BFloat16, True),
])
def test_functions_of_the_sums_of_short_rows_are_computed_for_many_rows_together(
    record: Callable[..., Any], length: int, dtype: DataType, staged: bool,
) -> None:
    for shape in ((3, 5, length), (193, 1, length))[: 2 if length < 10 else 1]:  # the last group of rows is shorter
        kernel = check(build(record, [shape], dtype), S.INNER_PERSISTENT, [numbers(shape, dtype)])
        (phase,) = kernel.phases
        scratch = [s.buffer.name for s in walk(phase.body) if isinstance(s, Alloc)]
        assert any(name.endswith("_rows") for name in scratch) == staged
        if staged:
            (group,) = (s for s in phase.body if isinstance(s, Loop))
            outside = {t.fn for s in group.body if isinstance(s, Loop) for i in s.body if not isinstance(i, Loop)
                       for r in terms_of(i) for t in r.walk() if isinstance(t, Apply)}
            assert outside & {"log2", "log", "rsqrt"}, "in a loop over rows without a loop over elements"

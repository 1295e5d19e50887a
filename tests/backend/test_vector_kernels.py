"""GPU kernels without reductions in lock step: every dtype, awkward shapes, views and alignments, against float64."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from backend.fusions import TOLERANCE, D, S, build, numbers

from fuser_lab.codegen.index_math import variables
from fuser_lab.codegen.kernel_eval import evaluate_kernel
from fuser_lab.codegen.kernel_ir import Alloc, Kernel, Role, VectorLoad, VectorStore, layout_of, walk
from fuser_lab.dtypes import DataType
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion
from fuser_lab.runtime.arrays import flat_view, storage_dtype
from tests.agreement import logical, near
from tests.kernels import lower

DTYPES = (
    D.Double, D.Float, D.Half, D.BFloat16, D.Int, D.Int32, D.UInt64, D.Bool, D.Float8_e4m3fn, D.Float8_e5m2,
    D.Float8_e8m0fnu, D.ComplexFloat, D.ComplexDouble,
)
# From 4096 elements on, an incomplete last chunk has separate code.
SHAPES = (
    (1,), (7,), (64,), (1000,), (4099,), (1, 1), (1, 24), (33, 1), (5, 16), (16, 48), (37, 41), (67, 65), (3, 5, 32),
    (0, 8),
)


def made(fusion: Fusion, strides: dict[str, tuple[int, ...]] | None = None, **alignment: int) -> Kernel:
    return lower(fusion, S.POINTWISE, "cuda", "kernel", strides or {}, alignment)


def run(fusion: Fusion, kernel: Kernel, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Outputs of a kernel in lock step on arrays of any strides; memory is poisoned and each element written once."""
    memory: dict[str, Any] = {}
    for tv, array in zip(fusion.tensor_inputs, inputs, strict=True):
        layout = layout_of(tv, [s // array.itemsize for s in array.strides])
        memory[tv.name] = flat_view(array, tv.dtype, layout.size, layout.offset)
    for tv in fusion.outputs:
        memory[tv.name] = np.full(layout_of(tv).size, 77).astype(storage_dtype(tv.dtype))
    writes = evaluate_kernel(kernel, memory).writes
    assert all((writes[tv.name] == 1).all() for tv in fusion.outputs)
    return [logical(memory[tv.name], tv) for tv in fusion.outputs]


def check(fusion: Fusion, inputs: Sequence[np.ndarray], kernel: Kernel | None = None) -> Kernel:
    """The kernel's results equal those of the float64 evaluation up to a few roundings; returns the kernel."""
    strides = {
        tv.name: tuple(s // a.itemsize for s in a.strides)
        for tv, a in zip(fusion.tensor_inputs, inputs, strict=True)
    }
    kernel = kernel or made(fusion, strides)
    exact = any(not tv.dtype.is_float and not tv.dtype.is_complex for tv in fusion.tensors.values())
    narrow = any(tv.dtype.itemsize == 1 for tv in fusion.tensors.values())
    wanted = evaluate(fusion, inputs, exact=exact or narrow)
    for tv, got, want in zip(fusion.outputs, run(fusion, kernel, inputs), wanted, strict=True):
        size = float(np.abs(np.asarray(want)).max(initial=1e-3)) if want.size else 1.0
        near(got, want, 2 * TOLERANCE.get(tv.dtype, 0.0) * size, tv.name, dtype=exact)
    return kernel


def accesses(kernel: Kernel) -> set[tuple[str, int]]:
    """Buffers with vector accesses, and their bytes."""
    return {
        (s.buffer.name, s.width * s.buffer.dtype.itemsize)
        for phase in kernel.phases for s in walk(phase.body) if isinstance(s, VectorLoad | VectorStore)
    }


def arithmetic(fd: Any, x: Any, y: Any) -> Any:
    o, dtype = fd.ops, x.dtype
    if dtype is D.Bool:
        return o.logical_or(x, y)
    return o.cast(o.add(o.cast(x, D.Float), o.cast(y, D.Float)), dtype) if dtype.is_reduced_float else o.add(x, y)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_every_dtype_and_shape(dtype: DataType) -> None:
    for shape in SHAPES:
        fusion = build(arithmetic, [shape, shape], dtype)
        kernel = check(fusion, [numbers(shape, dtype, n) for n in range(2)])
        count = int(np.prod(shape))
        if count and dtype is not D.ComplexDouble and count % 16 == 0:
            names = {tv.name for tv in (*fusion.tensor_inputs, *fusion.outputs)}
            assert accesses(kernel) == {(name, 16) for name in names}
        if count in {4099, 67 * 65} and dtype is not D.ComplexDouble:
            assert {size for _, size in accesses(kernel)} == {16}, "the whole chunks"


@pytest.mark.parametrize("dtype", [D.Double, D.Float, D.BFloat16, D.Bool], ids=lambda d: d.name)
def test_operands_that_repeat(dtype: DataType) -> None:
    for shape in ((6, 32), (6, 33), (3, 4, 8), (2, 3, 5), (71, 61)):
        for other in ((1, shape[-1]), (shape[-2], 1), (1, 1)):
            check(
                build(arithmetic, [shape, other], dtype), [numbers(shape, dtype), numbers(other, dtype, 1)],
            )


def views(shape: tuple[int, int], dtype: DataType) -> list[tuple[str, np.ndarray]]:
    """Arrays of one shape in other memory layouts."""
    rows, columns = shape
    big = numbers((rows * 2 + 2, columns * 2 + 3), dtype, 5)
    return [
        ("dense", numbers(shape, dtype, 5)),
        ("part of longer rows", big[:rows, :columns]),
        ("rows of odd length, shifted", big[1 : rows + 1, 1 : columns + 1]),
        ("every second row", big[: 2 * rows : 2, :columns]),
        ("every second column", big[:rows, : 2 * columns : 2]),
        ("transposed", numbers((columns, rows), dtype, 5).T),
        ("backwards", numbers(shape, dtype, 5)[::-1, ::-1]),
        ("one row many times", np.broadcast_to(numbers((1, columns), dtype, 5), shape)),
        ("one column many times", np.broadcast_to(numbers((rows, 1), dtype, 5), shape)),
    ]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [D.Double, D.Float, D.Half, D.BFloat16, D.Int32, D.Bool], ids=lambda d: d.name)
def test_views(dtype: DataType) -> None:
    for shape in ((16, 32), (17, 24), (9, 5), (40, 48)):
        fusion = build(arithmetic, [shape, shape], dtype)
        for _, array in views(shape, dtype):
            check(fusion, [array, numbers(shape, dtype)])
            check(fusion, [numbers(shape, dtype), array])


def test_alignment_decides_how_wide_accesses_are() -> None:
    for dtype, alignment in product((D.Float, D.BFloat16, D.Bool), (16, 8, 4, 2, 1)):
        if alignment < dtype.itemsize:
            continue
        fusion = build(arithmetic, [(8, 32), (8, 32)], dtype)
        kernel = made(fusion, None, T0=alignment)
        check(fusion, [numbers((8, 32), dtype, n) for n in range(2)], kernel)
        sizes = dict(accesses(kernel))
        assert sizes.get("T0", dtype.itemsize) == max(min(alignment, 16), dtype.itemsize)
        assert sizes["T1"] == 16


def test_accesses_at_wrong_places_are_found() -> None:
    fusion = build(arithmetic, [(8, 32), (8, 32)], D.Float)
    told, true = (made(fusion, None, T0=alignment) for alignment in (16, 4))
    buffers = {b.name: b for b in true.inputs}
    assert buffers["T0"].alignment == 4
    inputs = [numbers((8, 32), D.Float, n) for n in range(2)]
    strides = {"T0": (33, 1)}
    padded = np.zeros((8, 33), np.float32)[:, :32]
    with pytest.raises(IndexError):
        # Generated for dense rows and run on longer ones, it accesses positions that rows of 33 do not have.
        run(fusion, made(fusion, {"T0": (64, 1)}), [padded, inputs[1]])
    assert "T0" not in dict(accesses(made(fusion, strides)))
    assert dict(accesses(told))["T0"] == 16


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [D.Double, D.Float, D.Half, D.BFloat16, D.Int32, D.Bool, D.ComplexFloat, D.Int],
                         ids=lambda d: d.name)
def test_transposes(dtype: DataType) -> None:
    for shape, order in (
        ((64, 128), [1, 0]), ((65, 40), [1, 0]), ((16, 17), [1, 0]), ((130, 66), [1, 0]),
        ((3, 40, 5, 20), [0, 2, 3, 1]),
        ((2, 20, 3, 32), [0, 3, 1, 2]), ((24, 3, 32), [2, 1, 0]), ((2, 40, 36), [0, 2, 1]), ((8, 300), [1, 0]),
    ):
        turned = tuple(shape[axis] for axis in order)
        fusion = build(
            lambda fd, x, y, order=order: arithmetic(fd, fd.ops.permute(x, order), y), [shape, turned], dtype,
        )
        check(fusion, [numbers(shape, dtype), numbers(turned, dtype, 1)])


def test_transposes_go_through_shared_memory_in_whole_vectors() -> None:
    fusion = build(lambda fd, x, y: fd.ops.add(fd.ops.permute(x, [1, 0]), y), [(64, 128), (128, 64)], D.Float)
    kernel = made(fusion)
    assert accesses(kernel) == {("T0", 16), ("T0_tile", 16), ("T1", 16), (fusion.outputs[0].name, 16)}
    assert [b.role for b in shared(kernel)] == [Role.SHARED]


def test_results_in_two_orders_are_turned_on_the_way_out() -> None:
    def record(fd: Any, x: Any) -> Any:
        y = fd.ops.neg(x)
        return y, fd.ops.permute(fd.ops.mul(y, y), [1, 0])

    for shape in ((64, 128), (70, 33)):
        fusion = build(record, [shape], D.Float)
        kernel = check(fusion, [numbers(shape, D.Float)])
        assert len(shared(kernel)) == 1


def shared(kernel: Kernel) -> list[Any]:
    return [s.buffer for p in kernel.phases for s in walk(p.body) if isinstance(s, Alloc)
            and s.buffer.role is Role.SHARED]


@pytest.mark.parametrize("dtype", [D.Double, D.Float, D.BFloat16], ids=lambda d: d.name)
def test_slices_pads_and_cats(dtype: DataType) -> None:
    def sliced(fd: Any, x: Any, start: int, stop: int) -> Any:
        return fd.ops.slice(x, [0, start], [6, stop])

    def turned(fd: Any, x: Any) -> Any:
        half = 32
        lower, upper = sliced(fd, x, 0, half), sliced(fd, x, half, 2 * half)
        return arithmetic(fd, fd.ops.cat([fd.ops.cast(fd.ops.neg(upper), dtype), lower], 1), x)

    kernel = check(build(turned, [(6, 64)], dtype), [numbers((6, 64), dtype)])
    assert {size for _, size in accesses(kernel)} == {16}
    for start, stop in ((0, 8), (3, 40), (8, 41), (63, 64)):
        fusion = build(lambda fd, x, a=start, b=stop: fd.ops.neg(sliced(fd, x, a, b)), [(6, 64)], dtype)
        check(fusion, [numbers((6, 64), dtype)])
    for widths in ([3, 5], [8, 0], [16, 16], [0, 1]):
        fusion = build(lambda fd, x, w=widths: fd.ops.pad(fd.ops.neg(x), w), [(6, 64)], dtype)
        check(fusion, [numbers((6, 64), dtype)])
    fusion = build(lambda fd, x, y: fd.ops.cat([x, y], 0), [(3, 24), (2, 24)], dtype)
    assert {size for _, size in accesses(check(fusion, [numbers((3, 24), dtype), numbers((2, 24), dtype, 1)]))} == {16}


def test_dtypes_of_two_sizes() -> None:
    for first, second in product((D.Double, D.Float, D.BFloat16, D.Bool), repeat=2):
        fusion = build(
            lambda fd, x, y: (fd.ops.cast(x, y.dtype), fd.ops.where(fd.ops.cast(y, D.Bool), y, y)), [(9, 16), (9, 16)],
            [first, second],
        )
        check(fusion, [numbers((9, 16), first), numbers((9, 16), second, 1)])


def test_chunks_that_share_an_input_that_repeats() -> None:
    for shape, other in (((4, 33, 1024), (1, 33, 1024)), ((6, 65, 520), (1, 65, 520))):
        fusion = build(arithmetic, [shape, other], D.Float)
        kernel = check(fusion, [numbers(shape, D.Float), numbers(other, D.Float, 1)])
        (phase,) = kernel.phases
        assert phase.schedule is not None
        assert phase.schedule.unroll == 2
        loads = [s for s in walk(phase.body) if isinstance(s, VectorLoad) and s.buffer.name == "T1"]
        assert len(loads) == 1
        # If the halves are whole blocks, the repeated input is read at the same position for both.
        same = "u" not in variables(loads[0].position)
        assert same == (shape == (4, 33, 1024))


def test_axes_that_stay_neighbours_are_turned_as_one() -> None:
    # Channels last to channels first: height and width are one axis, batches another.
    fusion = build(lambda fd, x: fd.ops.neg(fd.ops.permute(x, [0, 3, 1, 2])), [(3, 12, 6, 32)], D.Float)
    kernel = check(fusion, [numbers((3, 12, 6, 32), D.Float)])
    (phase,) = kernel.phases
    tile = phase.schedule.tile if phase.schedule else 0
    assert phase.launch.blocks == 3 * -(-72 // tile) * -(-32 // tile)
    assert {size for _, size in accesses(kernel)} == {16}

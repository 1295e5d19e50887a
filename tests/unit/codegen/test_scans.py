"""Kernels of scans, run by NumPy: rows of every length, columns, dtypes, several scans, surrounding ops."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from backend.fusions import TOLERANCE, D, S, build, close, numbers
from unit.codegen.test_kernels_in_lock_step import run

from fuser_lab.codegen.kernel_eval import evaluate_kernel
from fuser_lab.codegen.kernel_ir import Barrier, Kernel, Scan, Scope, VectorLoad, VectorStore, walk
from fuser_lab.codegen.one_kernel import bytes_moved
from fuser_lab.codegen.pipeline import evaluated_because
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ScheduleError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion
from fuser_lab.plan.planning import segment
from fuser_lab.schedule.parameters import LoopChange
from tests.kernels import generate, lower, prepare

TARGETS = ("cpu", "cuda")
SCANS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
DTYPES = [
    D.Double, D.Float, D.Half, D.BFloat16, D.Int, D.Int32, D.Short, D.Char, D.Byte, D.UInt64, D.Bool, D.ComplexFloat,
    D.ComplexDouble,
]
# Rows of one access, of a warp, of a few warps, of several rounds; with and without a remainder.
ROWS = [(5, 2), (3, 4), (300, 7), (9, 32), (5, 129), (3, 512), (2, 513), (2, 1000), (1, 3000), (2, 4096), (1, 9001)]
COLUMNS = [(2, 5), (33, 8), (40, 1), (100, 70), (1100, 12), (270, 65)]


def scaled(name: str, dim: int) -> Any:
    def record(fd: Any, x: Any) -> Any:
        out = getattr(fd.ops, name)(fd.ops.neg(x) if x.dtype is not D.Bool else fd.ops.logical_not(x), dim)
        return fd.ops.abs(out) if x.dtype not in {D.Bool, D.ComplexFloat, D.ComplexDouble} else out

    return record


def near_one(x: np.ndarray) -> np.ndarray:
    """Numbers whose products stay finite."""
    return x if x.dtype.kind in "biu" else np.where(np.abs(x) < 1.1, 1 + x / 16, 1 / 1.1).astype(x.dtype)


def check(fusion: Fusion, inputs: Sequence[np.ndarray], targets: Sequence[str] = TARGETS) -> dict[str, Kernel]:
    """Compare with the reference in float64; results differ by a few roundings of the largest."""
    assert not evaluated_because(fusion, S.GREEDY)
    found = {}
    for target in targets:
        found[target], got = run(fusion, S.GREEDY, target, list(inputs))
        for tv, a, b in zip(fusion.outputs, got, evaluate(fusion, inputs, exact=False), strict=True):
            wanted = np.asarray(b)
            assert a.shape == wanted.shape
            if tv.dtype not in TOLERANCE:
                close(a, wanted.astype(tv.dtype.numpy), tv.dtype)
                continue
            finite = np.abs(wanted[np.isfinite(wanted)]).max(initial=1e-3)
            wide = np.complex128 if tv.dtype.is_complex else np.float64
            np.testing.assert_allclose(a.astype(wide), wanted.astype(wide), rtol=0, atol=TOLERANCE[tv.dtype] * finite)
    return found


@pytest.mark.sampled(5)
@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_rows_of_every_length(shape: tuple[int, int]) -> None:
    for dtype in (D.Float, D.BFloat16):
        kernels = check(build(scaled("cumsum", 1), [shape], dtype), [numbers(shape, dtype)])
    (scan,) = (s for s in walk(kernels["cuda"].phases[0].body) if isinstance(s, Scan))
    assert (scan.scope is Scope.BLOCK) == (kernels["cuda"].phases[0].launch.threads[0] > 32)


@pytest.mark.parametrize("shape", COLUMNS, ids=str)
def test_columns_of_every_length(shape: tuple[int, int]) -> None:
    # Without threads, each element of a CPU kernel is a separate step here.
    targets = TARGETS if shape[0] * shape[1] < 1000 else ("cuda",)
    for dtype in (D.Float, D.Half):
        check(build(scaled("cumsum", 0), [shape], dtype), [numbers(shape, dtype)], targets)


# Shapes change how a scan is divided, dtypes what a step computes: all shapes in two dtypes, all dtypes in one shape.
SHAPES = [((3, 70), 1), ((70, 6), 0), ((1, 2100), 1), ((2, 17, 3), 1)]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "shape", "dim", "dtype"), [
    pytest.param(
        name, shape, dim, dtype,
        marks=[pytest.mark.matrix] if shape != SHAPES[0][0] and dtype not in {D.Float, D.BFloat16} else [],
    )
    for name in SCANS for shape, dim in SHAPES for dtype in DTYPES
    if not (dtype.is_complex and name in {"cummax", "cummin"}) and (dtype.is_float or name != "logcumsumexp")
])
def test_every_scan_in_every_dtype(name: str, shape: tuple[int, ...], dim: int, dtype: DataType) -> None:
    x = near_one(numbers(shape, dtype)) if name == "cumprod" else numbers(shape, dtype)
    check(build(scaled(name, dim), [shape], dtype), [x])


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_scans_after_and_beside_each_other(dim: int) -> None:
    def record(fd: Any, x: Any, bias: Any) -> Any:
        first = fd.ops.cumsum(fd.ops.add(x, bias), dim)
        second = fd.ops.cummax(fd.ops.mul(first, x), dim)
        third = fd.ops.cumsum(second, dim)
        return fd.ops.sub(third, fd.ops.cummin(x, dim)), first, fd.ops.exp(fd.ops.neg(x))

    for shape, targets in (((5, 10, 6), TARGETS), ((2, 3, 4), TARGETS), ((35, 2, 530), ("cuda",))):
        shapes = [shape, shape[2:]]
        inputs = [numbers(s, D.Double, n) for n, s in enumerate(shapes)]
        kernels = check(build(record, shapes, D.Double), inputs, targets)
        assert all(len(kernel.phases) == 1 for kernel in kernels.values())


def test_each_element_is_read_and_written_once_in_vectors() -> None:
    def record(fd: Any, x: Any) -> Any:
        return fd.ops.mul(fd.ops.cumsum(fd.ops.cumsum(fd.ops.exp(x), 1), 1), x)

    kernel = lower(build(record, [(64, 4096)], D.Float), S.GREEDY, "cuda", "kernel", {})
    statements = list(walk(kernel.phases[0].body))
    (load,) = (s for s in statements if isinstance(s, VectorLoad))
    (store,) = (s for s in statements if isinstance(s, VectorStore))
    assert (load.width, store.width) == (4, 4)


@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16], ids=lambda d: d.name)
def test_rows_that_begin_anywhere_in_an_access_are_read_in_vectors(dtype: DataType) -> None:
    def record(fd: Any, x: Any, y: Any) -> Any:
        first = fd.ops.cumsum(fd.ops.abs(x), 1)
        return fd.ops.cast(fd.ops.sub(first, y), dtype), fd.ops.cummax(fd.ops.cast(fd.ops.mul(first, y), dtype), 1)

    shapes = [(5, 1001)] * 2
    kernels = check(build(record, shapes, dtype), [numbers(s, dtype, n) for n, s in enumerate(shapes)], ("cuda",))
    accesses = [s for s in walk(kernels["cuda"].phases[0].body) if isinstance(s, VectorLoad | VectorStore)]
    assert {access.width * dtype.itemsize for access in accesses} == {16}
    assert len(accesses) == 4


def test_what_is_added_is_carried_as_float64_on_the_cpu() -> None:
    shape = (1, 9000)
    x = np.full(shape, 0.1, np.float32)
    fusion = build(lambda fd, x: fd.ops.mul(fd.ops.cumsum(x, 1), 1.0), [shape], D.Float)
    _, (got,) = run(fusion, S.GREEDY, "cpu", [x])
    wanted = np.cumsum(x.astype(np.float64), 1)
    assert (np.abs(got - wanted) <= 4 * np.spacing(wanted.astype(np.float32))).all()


def test_narrow_floats_are_added_as_float32() -> None:
    x = np.ones((2, 5000), D.BFloat16.numpy)
    fusion = build(lambda fd, x: fd.ops.mul(fd.ops.cumsum(x, 1), 0.5), [x.shape], D.BFloat16)
    for target in TARGETS:
        _, (got,) = run(fusion, S.GREEDY, target, [x])
        # Sums in BFloat16 would saturate at 256.
        np.testing.assert_allclose(got.astype(np.float32)[:, -1], 2500, rtol=2e-2)


@pytest.mark.parametrize("dim", [0, 1])
def test_what_precedes_the_first_element(dim: int) -> None:
    def record(fd: Any, x: Any) -> Any:
        return fd.ops.neg(fd.ops.cumsum(x, dim, fd.define_scalar(2.5))), fd.ops.cummax(x, dim, fd.define_scalar(0.5))

    check(build(record, [(20, 700)], D.Float), [numbers((20, 700), D.Float)])


def test_nan_and_infinities_stay() -> None:
    x = numbers((4, 300), D.Float)
    x[1, 5], x[2, 7], x[3, 200] = np.nan, np.inf, -np.inf
    for name in ("cumsum", "cummax", "cummin"):
        fusion = build(lambda fd, x, name=name: fd.ops.mul(getattr(fd.ops, name)(x, 1), 1.0), [x.shape], D.Float)
        for target in TARGETS:
            _, (got,) = run(fusion, S.GREEDY, target, [x])
            close(got, evaluate(fusion, [x])[0], D.Float)


def test_views_around_scans() -> None:
    def padded(fd: Any, x: Any) -> Any:
        return fd.ops.mul(fd.ops.cumsum(fd.ops.pad(x, [3, 5]), 1), 0.5)

    def split(fd: Any, x: Any) -> Any:
        return fd.ops.neg(fd.ops.reshape(fd.ops.cumsum(fd.ops.reshape(x, [12, 30]), 1), [3, 4, 30]))

    def turned(fd: Any, x: Any) -> Any:
        return fd.ops.neg(fd.ops.permute(fd.ops.cumsum(fd.ops.permute(x, [1, 0]), 1), [1, 0]))

    def expanded(fd: Any, x: Any) -> Any:
        return fd.ops.cumsum(fd.ops.expand(fd.ops.neg(x), [40, 30]), 1)

    for record, shape in ((padded, (7, 90)), (split, (3, 4, 30)), (turned, (60, 50)), (expanded, (40, 1))):
        check(build(record, [shape], D.Float), [numbers(shape, D.Float)])


@pytest.mark.parametrize(
    "view",
    [lambda x: x[:, ::2], lambda x: x[::-1, ::-1], np.asfortranarray, lambda x: np.broadcast_to(x[:1], x.shape)],
)
def test_any_strides(view: Any) -> None:
    x = view(numbers((40, 90), D.Float))
    for dim in (0, 1):
        check(build(scaled("cumsum", dim), [x.shape], D.Float), [x])


@pytest.mark.parametrize("shape", [(5, 60), (3, 1536)], ids=str)
def test_rows_that_begin_anywhere_in_memory_are_scanned_in_groups(shape: tuple[int, int]) -> None:
    x = numbers((shape[0], shape[1] + 5), D.Float)[:, :shape[1]]
    kernel = check(build(scaled("cumsum", 1), [shape], D.Float), [x], ["cuda"])["cuda"]
    (scan,) = (s for s in walk(kernel.phases[0].body) if isinstance(s, Scan))
    assert scan.each == 4


def test_outputs_that_do_not_line_up_have_loops_of_their_own() -> None:
    def record(fd: Any, x: Any, y: Any) -> Any:
        return fd.ops.mul(fd.ops.cumsum(x, 1), 0.5), fd.ops.exp(y)

    shapes = [(6, 50), (6, 1)]
    kernels = check(build(record, shapes, D.Float), [numbers(s, D.Float) for s in shapes])
    assert [len(kernel.phases) for kernel in kernels.values()] == [2, 2]


@pytest.mark.parametrize(
    ("shape", "dim", "values"),
    [
        ((3, 3000), 1, (("threads", (96, 1)), ("unroll", 2))),
        ((3, 3000), 1, (("threads", (1024, 1)), ("unroll", 1), ("vector", 2))),
        ((30, 300), 1, (("threads", (8, 4)), ("unroll", 3))),
        ((300, 30), 0, (("threads", (4, 64)), ("unroll", 2), ("vector", 1))),
        ((300, 30), 0, (("threads", (16, 1)), ("unroll", 5))),
    ],
)
def test_parameters_by_hand(shape: tuple[int, int], dim: int, values: Any) -> None:
    fusion, x = build(scaled("cumsum", dim), [shape], D.Float), numbers(shape, D.Float)
    change = LoopChange(target="cuda", nest=0, values=values)
    kernel = lower(fusion, S.GREEDY, "cuda", "kernel", {}, changes=(change,))
    assert dict(values).items() <= kernel.nests[0].values.items()
    source, target = fusion.inputs[0].name, fusion.outputs[0].name
    memory = {source: x.ravel(), target: np.zeros(x.size, np.float32)}
    assert (evaluate_kernel(kernel, memory).writes[target] == 1).all()
    np.testing.assert_allclose(memory[target].reshape(shape), evaluate(fusion, [x])[0], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("dim", "values", "why"),
    [
        (1, (("threads", (1024, 1)), ("unroll", 2)), "more than the 32 totals"),
        (1, (("threads", (12, 1)),), "power of two"),
        (1, (("threads", (64, 2)),), "one warp"),
        (0, (("threads", (32, 32)), ("vector", 16)), "vector"),
    ],
)
def test_parameters_that_no_kernel_has(dim: int, values: Any, why: str) -> None:
    fusion = build(scaled("cumsum", dim), [(64, 3000)], D.Float)
    with pytest.raises(ScheduleError, match=why):
        lower(
            fusion, S.GREEDY, "cuda", "kernel", {}, changes=(LoopChange(target="cuda", nest=0, values=values),),
        )


def test_barriers_stand_between_what_threads_of_a_column_exchange() -> None:
    kernel = lower(build(scaled("cumsum", 0), [(500, 16384)], D.Float), S.GREEDY, "cuda", "kernel", {})
    assert kernel.phases[0].launch.threads[1] > 1
    assert sum(isinstance(s, Barrier) for s in walk(kernel.phases[0].body)) == 2


def test_another_number_of_rows_is_the_same_kernel() -> None:
    for target, shapes, dim in (
        ("cpu", ((600, 4096), (700, 4096)), 1), ("cuda", ((600, 4096), (701, 4096)), 1),
        ("cuda", ((600, 64), (701, 64)), 1), ("cpu", ((600, 4096), (700, 4096)), 0),
    ):
        sources = {generate(build(scaled("cumsum", dim), [s], D.Float), S.GREEDY, target).source for s in shapes}
        bodies = {"\n".join(line for line in s.splitlines() if not line.lstrip().startswith("#")) for s in sources}
        assert len(bodies) == 1, target


@pytest.mark.parametrize(("shape", "dim"), [((300, 1030), 1), ((1030, 300), 0), ((200, 3), 1), ((200, 21), 1)])
def test_compiled_for_the_cpu(shape: tuple[int, int], dim: int) -> None:
    def record(fd: Any, x: Any) -> Any:
        sums = fd.ops.cumsum(fd.ops.abs(x), dim)
        return fd.ops.mul(sums, 0.5), fd.ops.cummax(fd.ops.mul(x, sums), dim)

    fusion, x = build(record, [shape], D.Float), numbers(shape, D.Float)
    prepared = prepare(fusion, [(fusion, S.GREEDY)], "cpu")
    (step,) = prepared.steps([x])
    assert step.generated is not None
    for got, wanted in zip(prepared.run([x]), evaluate(fusion, [x], exact=False), strict=True):
        np.testing.assert_allclose(got, np.asarray(wanted), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dim", [0, 1])
def test_an_element_that_is_repeated_is_in_no_loop_over_loads(dim: int) -> None:
    def record(fd: Any, x: Any) -> Any:
        return fd.ops.cumsum(fd.ops.expand(x, [40, 30]), dim)

    fusion = build(record, [(1, 1)], D.Float)
    check(fusion, [np.float32([[0.25]])])
    compile(generate(fusion, S.GREEDY, "cuda", "kernel").source, "kernel", "exec")


@pytest.mark.parametrize(("shape", "dim"), [((2, 40000), 1), ((1, 60001), 1), ((5000, 6), 0), ((2100, 33), 0)], ids=str)
@pytest.mark.parametrize("name", ["cumsum", "cummax"])
def test_few_long_rows_and_columns_are_cut_into_parts(name: str, shape: tuple[int, int], dim: int) -> None:
    dtype = D.Float if dim else D.BFloat16
    kernel = check(build(scaled(name, dim), [shape], dtype), [numbers(shape, dtype)], ("cuda",))["cuda"]
    totals, scan = kernel.phases
    assert totals.prepares
    assert totals.launch.blocks == scan.launch.blocks > shape[1 - dim] // 32
    assert bytes_moved(kernel) == scan.nbytes


@pytest.mark.parametrize(("shape", "dim"), [((5, 60), 1), ((3, 1000), 1), ((30, 12), 0), ((3000, 16), 0)], ids=str)
def test_a_scan_backwards_is_one_kernel_with_its_flips(shape: tuple[int, int], dim: int) -> None:
    def record(fd: Any, x: Any) -> Any:
        return fd.ops.flip(fd.ops.cumsum(fd.ops.flip(fd.ops.neg(x), [dim]), dim), [dim])

    fusion = build(record, [shape], D.Float)
    kernels = check(fusion, [numbers(shape, D.Float)], TARGETS if shape[0] * shape[1] < 1000 else ("cuda",))
    assert not any(buffer.role.is_allocated for phase in kernels["cuda"].phases for buffer in phase.buffers)
    assert bytes_moved(kernels["cuda"]) <= 2 * 4 * shape[0] * shape[1] + 8 * 2048
    assert [s.scheduler for s in segment(fusion, strategy="fastest").segments] == [S.GREEDY]


def test_a_scan_alone_is_a_kernel_without_nvfusers_rules() -> None:
    fusion = build(lambda fd, x: fd.ops.cumsum(x, 1), [(64, 100)], D.Float)
    chosen = [segment(fusion, strategy=name).segments[0].scheduler for name in ("bottom_up", "fastest")]
    assert chosen == [S.EXPR_EVAL, S.GREEDY]


@pytest.mark.parametrize("shape", [(5, 7), (9, 40), (3, 1000), (2, 9001)], ids=str)
def test_reductions_of_scanned_rows_share_their_kernel(shape: tuple[int, int]) -> None:
    def record(fd: Any, x: Any) -> Any:
        run = fd.ops.cumsum(fd.ops.mul(x, 0.1), 1)
        return fd.ops.sum(run, [1]), fd.ops.neg(fd.ops.min(fd.ops.exp(run), [1])), fd.ops.relu(run), fd.ops.max(x, [1])

    for dtype in (D.Float, D.BFloat16):
        targets = TARGETS if shape[1] < 1000 else ("cuda",)
        kernels = check(build(record, [shape], dtype), [numbers(shape, dtype)], targets)
        assert all(len(kernel.phases) == 1 for kernel in kernels.values())


def test_reductions_that_the_scanned_rows_need_are_another_kernel() -> None:
    def record(fd: Any, x: Any) -> Any:
        run = fd.ops.cumsum(x, 1)
        return fd.ops.sub(run, fd.ops.broadcast(fd.ops.max(run, [1]), [False, True]))

    plan = segment(build(record, [(64, 100)], D.Float), strategy="fastest")
    assert len(plan.segments) == 2
    assert all(s.kernel("cuda") for s in plan.segments)

"""Kernels on a real GPU: the same segments, all ops and dtypes, layouts, plans of several segments, timing."""

import sys
import threading
from typing import Any

import numpy as np
import pytest
from backend.fusions import CASES, Case, D, S, build, close, numbers
from needs import needs

from fuser_lab.dtypes import DataType
from fuser_lab.errors import FuserLabError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion, OpKind
from fuser_lab.ops import OPS
from fuser_lab.runtime.arrays import from_numpy_as, to_numpy
from fuser_lab.runtime.plan.executor import PreparedPlan
from tests.kernels import prepare

torch = needs("torch")
pytestmark = pytest.mark.gpu


def on_gpu(x: np.ndarray) -> Any:
    return from_numpy_as("torch", np.ascontiguousarray(x).reshape(x.shape)).cuda()


def planned(fusion: Fusion, scheduler: S) -> PreparedPlan:
    return prepare(fusion, [(fusion, scheduler)], "cuda", allow_fallback=False)


def check(fusion: Fusion, scheduler: S, inputs: list[np.ndarray], factor: float = 1.0) -> None:
    got = planned(fusion, scheduler).run([on_gpu(x) for x in inputs])
    for tv, a, b in zip(fusion.outputs, got, evaluate(fusion, inputs), strict=True):
        assert a.is_cuda
        close(to_numpy(a), b, tv.dtype, factor)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_agrees_with_the_reference(case: Case) -> None:
    check(case.fusion(), case.scheduler, case.inputs())


DTYPES = (D.Double, D.Float, D.Half, D.BFloat16, D.Int, D.Int32, D.UInt64, D.Bool)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("arity", [1, 2])
def test_ops(dtype: DataType, arity: int) -> None:
    names = []
    for op in OPS.values():
        if op.kind is not OpKind.POINTWISE or not op.positional_only or op.arity != arity or op.name == "where":
            continue
        if op.name in {"pow", "silu"} and not dtype.is_float:
            continue
        try:
            fusion = build(lambda fd, *xs, n=op.name: getattr(fd.ops, n)(*xs), [(1,)] * arity, dtype)
            evaluate(fusion, [np.ones(1, dtype.numpy)] * arity)
        except (FuserLabError, TypeError):
            continue
        names.append(op.name)
    shape = (301,)
    fusion = build(lambda fd, *xs: [getattr(fd.ops, n)(*xs) for n in names], [shape] * arity, dtype)
    inputs = [numbers(shape, dtype, n) for n in range(arity)]
    if dtype.is_float:
        inputs[0] = np.linspace(0.05, 0.95, 301).astype(dtype.numpy)
    got = planned(fusion, S.POINTWISE).run([on_gpu(x) for x in inputs])
    for name, tv, a, b in zip(names, fusion.outputs, got, evaluate(fusion, inputs), strict=True):
        try:
            close(to_numpy(a), b, tv.dtype, 5)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((4096, 1000), [1]), ((4096, 1000), [0]), ((3000, 1001), [0, 1]), ((64, 32, 500), [0, 2]), ((3, 200_000), [1]),
        ((100_000, 3), [0]),
    ],
)
def test_large_reductions(shape: tuple[int, ...], dims: list[int]) -> None:
    fusion = build(lambda fd, x: [fd.ops.sum(x, dims), fd.ops.max(x, dims)], [shape], D.Float)
    x = numbers(shape, D.Float)
    total, largest = planned(fusion, S.REDUCTION).run([on_gpu(x)])
    wanted = x.astype(np.float64).sum(tuple(dims))
    np.testing.assert_allclose(to_numpy(total), wanted, rtol=1e-4, atol=1e-5 * np.sqrt(x.size))
    np.testing.assert_array_equal(to_numpy(largest), x.max(tuple(dims)))


@pytest.mark.parametrize("columns", [1, 33, 1024, 1025, 8192, 20_000, 70_000])
def test_softmax_rows(columns: int) -> None:
    softmax = next(c for c in CASES if c.name == "softmax")
    x = numbers((37, columns), D.BFloat16)
    fusion = build(softmax.record, [x.shape], D.BFloat16)
    (got,) = planned(fusion, S.INNER_PERSISTENT).run([on_gpu(x)])
    wanted = torch.softmax(on_gpu(x).float(), 1)
    torch.testing.assert_close(got.float(), wanted, rtol=1e-2, atol=1e-6)


def test_strided_inputs() -> None:
    x = torch.randn(64, 48, device="cuda")
    for view in (x.t(), x[:, ::2], x[3:40, 5:], x[:1].expand(20, 48), x[:, :1].expand(64, 30)):
        for record, scheduler, expected in (
            (lambda fd, a: fd.ops.exp(a), S.POINTWISE, torch.exp(view)),
            (lambda fd, a: fd.ops.sum(a, [1]), S.REDUCTION, view.sum(1)),
            (lambda fd, a: fd.ops.sum(a, [0]), S.REDUCTION, view.sum(0)),
        ):
            (got,) = planned(build(record, [tuple(view.shape)], D.Float), scheduler).run([view])
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-4)


def two_segments() -> tuple[Fusion, list[tuple[Fusion, S]]]:
    """sum over rows, then added to another input: a reduction and a pointwise kernel."""

    def record(fd: Any, x: Any, y: Any) -> Any:
        return fd.ops.add(fd.ops.broadcast(fd.ops.sum(x, [1]), [False, True]), y)

    whole = build(record, [(300, 200), (300, 200)], D.Float)
    total, spread, add = whole.exprs
    first = Fusion(inputs=(whole.inputs[0],), exprs=(total,), outputs=(total.out,))
    second = Fusion(inputs=(total.out, whole.inputs[1]), exprs=(spread, add), outputs=(add.out,))
    return whole, [(first, S.REDUCTION), (second, S.POINTWISE)]


def test_a_plan_of_two_segments_on_several_kinds_of_arrays() -> None:
    whole, segments = two_segments()
    plan = prepare(whole, segments, "cuda", allow_fallback=False)
    x, y = numbers((300, 200), D.Float, 1), numbers((300, 200), D.Float, 2)
    wanted = x.sum(1, keepdims=True) + y
    (from_numpy,) = plan.run([x, y])
    assert isinstance(from_numpy, np.ndarray)
    np.testing.assert_allclose(from_numpy, wanted, rtol=1e-5, atol=1e-4)
    a, b = on_gpu(x), on_gpu(y)
    (from_torch,) = plan.run([a, b])
    assert from_torch.is_cuda
    np.testing.assert_allclose(to_numpy(from_torch), wanted, rtol=1e-5, atol=1e-4)
    given = torch.empty_like(a)
    (same,) = plan.run([a, b], [given])
    assert same is given
    torch.testing.assert_close(given, from_torch)
    given_on_host = np.empty_like(x)
    plan.run([x, y], [given_on_host])
    np.testing.assert_array_equal(given_on_host, to_numpy(from_torch))


def test_evaluated_segments_run_on_the_gpu() -> None:
    fusion = build(lambda fd, a, b: fd.ops.matmul(fd.ops.permute(a, [1, 0]), b), [(40, 30), (40, 20)], D.BFloat16)
    a, b = on_gpu(numbers((40, 30), D.BFloat16)), on_gpu(numbers((40, 20), D.BFloat16, 1))
    (got,) = prepare(fusion, [(fusion, S.EXPR_EVAL)], "cuda").run([a, b])
    torch.testing.assert_close(got, a.t() @ b)


def test_two_runs_are_bit_identical() -> None:
    fusion = build(lambda fd, x: fd.ops.sum(x, [0, 1]), [(2000, 3000)], D.Float)
    plan, x = planned(fusion, S.REDUCTION), torch.randn(2000, 3000, device="cuda")
    assert torch.equal(plan.run([x])[0], plan.run([x])[0])


def test_threads_share_a_plan() -> None:
    whole, segments = two_segments()
    plan = prepare(whole, segments, "cuda", allow_fallback=False)
    wrong: list[str] = []

    def work(seed: int) -> None:
        x, y = torch.full((300, 200), float(seed), device="cuda"), torch.zeros(300, 200, device="cuda")
        for _ in range(20):
            (got,) = plan.run([x, y])
            if not bool((got == 200.0 * seed).all()):
                wrong.append(f"thread {seed}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_timing_and_bandwidth(capsys: pytest.CaptureFixture[str]) -> None:
    """Prints the bandwidth for a few shapes; asserts only that there are figures."""
    from fuser_lab.runtime.clocks import DeviceClock

    def record_pointwise(fd: Any, x: Any, y: Any) -> Any:
        return fd.ops.add(fd.ops.mul(x, 2.0), fd.ops.relu(y))

    softmax = next(c for c in CASES if c.name == "softmax")
    shape = (8192, 4096)
    clock = DeviceClock()
    source = torch.empty(shape, device="cuda")
    target = torch.empty_like(source)
    copy = clock.sample(lambda: target.copy_(source), 0.3).quartiles()[1]
    rate = 2 * source.nbytes / copy
    lines = [f"copy {rate / 1e12:.2f} TB/s"]
    for name, record, shapes, dtype, scheduler in (
        ("x*2+relu(y)", record_pointwise, [shape, shape], D.Float, S.POINTWISE),
        ("softmax bf16", softmax.record, [shape], D.BFloat16, S.INNER_PERSISTENT),
        ("row sum", lambda fd, x: fd.ops.sum(x, [1]), [shape], D.Float, S.REDUCTION),
        ("column sum", lambda fd, x: fd.ops.sum(x, [0]), [shape], D.Float, S.REDUCTION),
        ("sum of all", lambda fd, x: fd.ops.sum(x, [0, 1]), [shape], D.Float, S.REDUCTION),
    ):
        fusion = build(record, shapes, dtype)
        plan = planned(fusion, scheduler)
        kind = torch.bfloat16 if dtype is D.BFloat16 else torch.float32
        inputs = [torch.randn(s, device="cuda").to(kind) for s in shapes]
        outputs = plan.run(inputs)
        bound = plan.bind(inputs, outputs)
        median = clock.sample(bound.steps[0], 0.3).quartiles()[1]
        nbytes = sum(t.nbytes for t in (*inputs, *outputs))
        assert median > 0
        lines.append(f"{name}: {median * 1e6:.0f} us, {nbytes / median / rate:.2f} of a copy")
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(lines) + "\n")

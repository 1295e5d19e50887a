"""Results that are views of inputs, results that overwrite inputs, layouts of empty tensors, and too little memory."""

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.dtypes import from_numpy
from fuser_lab.errors import FuserLabError, InputError, OutOfMemoryError
from fuser_lab.process import host_memory
from fuser_lab.process.host_memory import all_bytes_of, free_bytes_of
from fuser_lab.runtime.plan.steps import CancelFlag, Cancelled

torch = needs("torch")

Body = Callable[..., Any]


def defined(body: Body, *inputs: Any) -> FusionDefinition:
    """A definition with inputs laid out like these."""
    with FusionDefinition() as fd:
        tensors = [fd.define_tensor(list(x.shape), contiguity=True, dtype=DataType.Float) for x in inputs]
        result = body(fd, *tensors)
        for output in result if isinstance(result, tuple) else (result,):
            fd.add_output(output)
    return fd


def index(fd: Any, value: int) -> Any:
    return fd.define_scalar(value, DataType.Int)


# Definitions on x of shape [4, 6, 7], and the same in torch.
VIEWS: dict[str, tuple[Body, Callable[[Any], Any]]] = {
    "set": (lambda fd, x: fd.ops.set(x), lambda x: x),
    "input": (lambda fd, x: x, lambda x: x),
    "slice": (lambda fd, x: fd.ops.slice(x, [0, 0, 0], [4, 6, 1]), lambda x: x[:, :, :1]),
    "inner slice": (lambda fd, x: fd.ops.slice(x, [1, 2, 3], [4, 5, 6]), lambda x: x[1:4, 2:5, 3:6]),
    "permute": (lambda fd, x: fd.ops.permute(x, [2, 0, 1]), lambda x: x.permute(2, 0, 1)),
    "select": (lambda fd, x: fd.ops.select(x, index(fd, 3), 1), lambda x: x.select(1, 3)),
    "select twice": (
        lambda fd, x: fd.ops.select(fd.ops.select(x, index(fd, 3), 1), index(fd, 2), -1), lambda x: x[:, 3, 2],
    ),
    "broadcast": (lambda fd, x: fd.ops.broadcast(x, [False, True, False, False]), lambda x: x.unsqueeze(1)),
    "expand": (
        lambda fd, x: fd.ops.expand(fd.ops.broadcast(x, [True, False, False, False]), [5, 4, 6, 7]),
        lambda x: x.expand(5, 4, 6, 7),
    ),
    "reshape": (lambda fd, x: fd.ops.reshape(x, [24, 7]), lambda x: x.reshape(24, 7)),
    "chain": (
        lambda fd, x: fd.ops.permute(
            fd.ops.reshape(fd.ops.slice(x, [0, 0, 0], [4, 4, 7]), [4, 2, 2, 7]), [3, 1, 0, 2],
        ),
        lambda x: x[:, :4].reshape(4, 2, 2, 7).permute(3, 1, 0, 2),
    ),
    "squeeze": (
        lambda fd, x: fd.ops.squeeze(fd.ops.slice(x, [0, 2, 0], [4, 3, 7]), [1]), lambda x: x[:, 2:3].squeeze(1),
    ),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a kernel"])
def test_views_of_torch_tensors(name: str, beside: bool) -> None:
    body, wanted = VIEWS[name]
    x = torch.randn(4, 6, 7)
    fd = defined((lambda fd, t: (body(fd, t), fd.ops.neg(t))) if beside else body, x)
    got = fd.execute([x])[0]
    assert got.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert got.data_ptr() == wanted(x).data_ptr()
    assert got.stride() == wanted(x).stride()
    assert torch.equal(got, wanted(x))
    x.fill_(3)
    assert (got == 3).all()


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_numpy_arrays(name: str) -> None:
    body, wanted = VIEWS[name]
    x = np.random.default_rng(0).standard_normal((4, 6, 7), dtype=np.float32)
    (got,) = defined(body, x).execute([x])
    view = wanted(torch.from_numpy(x))
    assert type(got) is np.ndarray
    assert got.ctypes.data == view.data_ptr()
    # Libraries differ in the strides of axes of size 1.
    walked = [axis for axis, size in enumerate(got.shape) if size > 1]
    assert [got.strides[axis] for axis in walked] == [4 * view.stride(axis) for axis in walked]
    np.testing.assert_array_equal(got, view.numpy())
    assert np.shares_memory(got, x)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int64, np.bool_, np.complex64])
def test_everything_selected_is_an_array(dtype: Any) -> None:
    x = np.arange(3).astype(dtype)
    with FusionDefinition() as fd:
        t = fd.define_tensor([3], contiguity=True, dtype=from_numpy(x.dtype))
        fd.add_output(fd.ops.select(t, index(fd, 1), 0))
        fd.add_output(fd.ops.squeeze(fd.ops.slice(t, [2], [3]), [0]))
    first, second = fd.execute([x])
    assert type(first) is type(second) is np.ndarray
    assert (first.shape, second.shape) == ((), ())
    assert (first[()], second[()]) == (x[1], x[2])
    assert np.shares_memory(first, x)
    assert np.shares_memory(second, x)


def test_no_segment_runs_for_views() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    fd = defined(lambda fd, x: (fd.ops.permute(x, [1, 0]), fd.ops.exp(x)), x)
    prepared = fd.plan_for([x]).prepare()
    prepared.run([x])
    (variant,) = prepared._variants.kept.values()
    assert [bool(calls) for calls in variant.calls].count(True) == 1
    assert prepared.storage_bytes == 0


def test_views_of_any_layout() -> None:
    base = torch.randn(8, 12)
    fd = defined(lambda fd, x: fd.ops.permute(x, [1, 0]), torch.empty(4, 6))
    for x in (base[::2, ::2], base[:6, :4].t(), base[:1, :6].expand(4, 6)):
        (got,) = fd.execute([x])
        assert (got.data_ptr(), got.stride()) == (x.data_ptr(), x.t().stride())
        assert torch.equal(got, x.t())


def test_a_reshape_that_moves_elements_copies() -> None:
    x = torch.randn(6, 4).t()
    fd = defined(lambda fd, x: fd.ops.reshape(x, [24]), torch.empty(4, 6))
    (got,) = fd.execute([x])
    assert got.is_contiguous()
    assert torch.equal(got, x.reshape(24))
    assert got.data_ptr() != x.data_ptr()


def test_what_asks_for_a_layout_is_no_view() -> None:
    x = torch.randn(4, 6)
    (got,) = defined(lambda fd, x: fd.ops.stride_order(x, [0, 1]), x).execute([x])
    assert got.stride() == (1, 4)
    assert got.data_ptr() != x.data_ptr()
    (got,) = defined(lambda fd, x: fd.ops.permute(fd.ops.exp(x), [1, 0]), x).execute([x])
    torch.testing.assert_close(got, x.exp().t())


def test_a_tensor_with_a_gradient_gives_a_view_without() -> None:
    x = torch.randn(4, 6, requires_grad=True)
    for body in (lambda fd, x: x, lambda fd, x: fd.ops.permute(x, [1, 0])):
        (got,) = defined(body, x).execute([x])
        assert not got.requires_grad
        assert got.data_ptr() == x.data_ptr()


def test_views_of_what_another_library_gives_are_copies() -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 3, 4), dtype=np.float32)
    fd = defined(lambda fd, x, y: (fd.ops.permute(x, [1, 0]), fd.ops.permute(y, [1, 0])), x, y)
    tensor = torch.from_numpy(y.copy())
    first, second = fd.execute([x, tensor])
    assert isinstance(first, torch.Tensor)
    np.testing.assert_array_equal(first.numpy(), x.T)
    assert not np.shares_memory(first.numpy(), x)
    assert second.data_ptr() == tensor.data_ptr()


def test_given_arrays_get_copies() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    fd = defined(lambda fd, x: (fd.ops.permute(x, [1, 0]), fd.ops.neg(x), x), x)
    plan = fl.segment(fd, [x])
    out = [np.empty((4, 3), np.float32), np.empty((3, 4), np.float32), np.empty((3, 4), np.float32)]
    same = plan.run([x], out)
    assert all(a is b for a, b in zip(same, out, strict=True))
    for got, wanted in zip(out, (x.T, -x, x), strict=True):
        np.testing.assert_array_equal(got, wanted)
        assert not np.shares_memory(got, x)
    view, given, itself = plan.run([x], [None, out[1], None])
    assert given is out[1]
    assert itself is x
    assert np.shares_memory(view, x)
    before = x.copy()
    plan.run([x], [np.empty((4, 3), np.float32), x, np.empty((3, 4), np.float32)])
    np.testing.assert_array_equal(x, -before)


def test_given_arrays_over_the_input_of_a_view() -> None:
    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    wanted, other = x.T.copy(), np.empty((3, 3), np.float32)
    fd = defined(lambda fd, x: (fd.ops.permute(x, [1, 0]), fd.ops.slice(x, [0, 0], [3, 3])), x)
    before = x.copy()
    fl.segment(fd, [x]).run([x], [x, other])
    np.testing.assert_array_equal(x, wanted)
    np.testing.assert_array_equal(other, before)


def test_bound_runs_and_timing() -> None:
    x = np.random.default_rng(0).standard_normal((32, 16), dtype=np.float32)
    fd = defined(
        lambda fd, x: (
            fd.ops.permute(x, [1, 0]), fd.ops.exp(x), x, fd.ops.slice(x, [0, 0], [4, 4]),
            fd.ops.expand(fd.ops.broadcast(x, [True, False, False]), [3, 32, 16]),
        ), x,
    )
    plans = [fl.segment(fd, [x], strategy=name) for name in ("bottom_up", "unfused")]
    for plan in plans:
        prepared = plan.prepare()
        bound = prepared.bind([x])
        for step in bound.steps:
            step()
        bound.finish()
        view, power, itself, *_ = bound.outputs
        np.testing.assert_allclose(power, np.exp(x), rtol=1e-6)
        assert itself is x
        assert np.shares_memory(view, x)
        assert [array is None for array in prepared.reusable(bound.outputs)] == [True, False, True, True, True]
    rows = fl.time(plans, [x], progress=False, seconds=0.01).rows
    assert all(row.median >= 0 for row in rows)
    assert all(row.error < 1 for row in rows)


def test_a_read_view_is_still_computed_for_its_readers() -> None:
    x = torch.randn(5, 7)
    fd = defined(lambda fd, x: (y := fd.ops.permute(x, [1, 0]), fd.ops.sum(fd.ops.exp(y), [0])), x)
    for strategy in ("bottom_up", "top_down", "unfused"):
        view, total = fl.segment(fd, [x], strategy=strategy).run([x])
        assert (view.data_ptr(), view.stride()) == (x.data_ptr(), (1, 7))
        torch.testing.assert_close(total, x.exp().sum(1))


def test_a_cancelled_run_leaves_nothing() -> None:
    x = torch.randn(5, 7)
    prepared = defined(lambda fd, x: (fd.ops.permute(x, [1, 0]), fd.ops.exp(x)), x).plan_for([x]).prepare()
    flag = CancelFlag()
    flag.set()
    with pytest.raises(Cancelled):
        prepared.run([x], cancel=flag)
    assert prepared.run([x])[0].data_ptr() == x.data_ptr()


# Results over inputs


def given(kind: str, values: Sequence[Any]) -> Any:
    array = np.array(values, np.float32)
    return torch.from_numpy(array) if kind == "torch" else array


def address(x: Any) -> int:
    return x.data_ptr() if isinstance(x, torch.Tensor) else x.ctypes.data


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_results_over_an_input_are_that_input(kind: str) -> None:
    x = given(kind, np.arange(-12, 12).reshape(2, 3, 4))
    wanted = np.maximum(np.asarray(x), 0)
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([-1, -1, -1], contiguity=True)
        t4 = fd.ops.where(fd.ops.gt(t0, 0.0), t0, 0.0)
        fd.add_output(t4)
        fd.add_output(t4, t0)
        fd.add_output(t4)
        fd.add_output(t0)
    outputs = fd.execute([x])
    assert len(outputs) == 3
    for got in (*outputs, x):
        assert address(got) == address(x)
        np.testing.assert_array_equal(np.asarray(got), wanted)
    fd.validate([given(kind, np.arange(-12, 12).reshape(2, 3, 4))])


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_views_of_a_result_over_an_input(kind: str) -> None:
    x = given(kind, [[1, 2, 3], [4, 5, 6]])
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([2, 3], contiguity=True)
        t1 = fd.ops.add(t0, 1.0)
        fd.add_output(t1, t0)
        fd.add_output(t1)
        fd.add_output(fd.ops.permute(t1, [1, 0]))
    whole, turned = fd.execute([x])
    assert np.asarray(x).tolist() == [[2, 3, 4], [5, 6, 7]]
    assert np.asarray(turned).tolist() == [[2, 5], [3, 6], [4, 7]]
    assert address(whole) == address(turned) == address(x)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_views_of_an_overwritten_input_keep_the_old_values(kind: str) -> None:
    x = given(kind, [[1, 2, 3], [4, 5, 6]])
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([2, 3], contiguity=True)
        fd.add_output(fd.ops.permute(t0, [1, 0]))
        fd.add_output(fd.ops.neg(t0), t0)
        fd.add_output(fd.ops.select(t0, index(fd, 1), 1))
    turned, column = fd.execute([x])
    assert np.asarray(turned).tolist() == [[1, 4], [2, 5], [3, 6]]
    assert np.asarray(column).tolist() == [2, 5]
    assert np.asarray(x).tolist() == [[-1, -2, -3], [-4, -5, -6]]
    assert address(turned) != address(x)


def test_hidden_results_stay_hidden() -> None:
    x = np.arange(4, dtype=np.float32)
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([-1], contiguity=True)
        fd.add_output(fd.ops.add(t0, 1.0), t0)
        fd.add_output(t0)
    outputs = fd.execute([x])
    assert len(outputs) == 1
    assert outputs[0] is x
    assert x.tolist() == [1, 2, 3, 4]


def test_an_input_over_another_and_given_arrays() -> None:
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([-1], contiguity=True) for _ in range(2))
        fd.add_output(a, b)
        fd.add_output(b)
        fd.add_output(fd.ops.mul(b, 2.0))
    x, y = np.arange(3, dtype=np.float32), np.full(3, 7, np.float32)
    updated, doubled = fd.execute([x, y])
    assert updated is y
    assert y.tolist() == [0, 1, 2]
    assert doubled.tolist() == [14] * 3
    out = [np.empty(3, np.float32), np.empty(3, np.float32)]
    y[:] = 7
    fl.segment(fd, [x, y]).run([x, y], out)
    assert [array.tolist() for array in out] == [[0, 1, 2], [14] * 3]
    assert y.tolist() == [0, 1, 2]


def test_memory_that_kernels_do_not_take_is_updated_too() -> None:
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([3])
        t1 = fd.ops.add(t0, 1.0)
        fd.add_output(t1, t0)
        fd.add_output(t1)
    memory = np.zeros(13, np.uint8)
    x = memory[1:].view(np.float32)
    assert not x.flags.aligned
    (got,) = fd.execute([x])
    assert got.tolist() == x.tolist() == [1, 1, 1]
    assert np.shares_memory(got, x)


@pytest.mark.parametrize("sizes", [(3, 4), (1, 4), (4, 1)])
def test_updates_in_place_of_other_sizes(sizes: tuple[int, int]) -> None:
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([-1], contiguity=True) for _ in range(2))
        fd.add_output(fd.ops.add(a, 1.0), b)
    x, y = (np.zeros(size, np.float32) for size in sizes)
    with pytest.raises(InputError, match=rf"T2 has the shape \[{sizes[0]}\] .* input T1, .* \[{sizes[1]}\]"):
        fd.execute([x, y])
    assert not y.any()
    z = np.zeros(sizes[0], np.float32)
    fd.execute([x, z])
    assert (z == 1).all()


# Empty and too large


@pytest.mark.parametrize("shape", [(2, 0, 4), (0,), (0, 3), (3, 0), (2, 3, 0)])
def test_results_without_elements_have_the_strides_of_torch(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    first, second = defined(lambda fd, x: (fd.ops.neg(x), fd.ops.set(fd.ops.exp(x))), x).execute([x])
    assert first.stride() == second.stride() == x.stride()
    (got,) = defined(lambda fd, x: fd.ops.neg(x), x).execute([x.numpy()])
    assert got.strides == tuple(4 * step for step in x.stride())


def test_results_without_elements_in_another_order() -> None:
    x = torch.zeros(2, 0, 4)
    (got,) = defined(lambda fd, x: fd.ops.stride_order(fd.ops.neg(x), [0, 1, 2]), x).execute([x])
    assert got.stride() == (1, 2, 2)


def constant(*shape: int) -> Body:
    return lambda fd: fd.ops.full(list(shape), 1.0, DataType.Float)


TOO_LARGE = {
    "result": (constant(1 << 40), 1 << 42),
    "no address": (constant(1 << 62), 1 << 64),
    "between": (lambda fd: fd.ops.sum(constant(1 << 40)(fd), [0]), 1 << 42),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_memory_that_does_not_suffice(name: str) -> None:
    body, nbytes = TOO_LARGE[name]
    fd = defined(body)
    for _ in range(2):
        with pytest.raises(OutOfMemoryError, match=rf"not enough host memory for T\d+, .*: {nbytes} byte"):
            fd.execute([])


@pytest.mark.parametrize("name", TOO_LARGE)
def test_memory_that_does_not_suffice_for_the_reference(name: str) -> None:
    body, nbytes = TOO_LARGE[name]
    said = rf"not enough host memory to evaluate T\d+, float \[\d+\], without a kernel: {nbytes} bytes"
    with pytest.raises(OutOfMemoryError, match=said):
        defined(body).validate([])


def test_memory_that_linux_promises_and_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "_all_bytes", lambda: 1 << 20)
    with pytest.raises(OutOfMemoryError, match=r"not enough host memory for T\d+, .*: 4194304 byte"):
        defined(constant(1 << 20)).execute([])
    with pytest.raises(OutOfMemoryError, match="without a kernel: 4194304 bytes"):
        defined(constant(1 << 20)).reference([])


def test_bytes_that_are_there_and_free(tmp_path: Path) -> None:
    system, group = tmp_path / "meminfo", tmp_path / "group"
    assert free_bytes_of(system, group) is None
    assert all_bytes_of(system, group) is None
    system.write_text("MemTotal:       2000 kB\nMemAvailable:    1000 kB\nSwapTotal:  500 kB\n")
    assert free_bytes_of(system, group) == 1_024_000
    assert all_bytes_of(system, group) == 2_560_000
    group.mkdir()
    (group / "memory.current").write_text("5000\n")
    for most, free, total in (
        ("max", 1_024_000, 2_560_000), ("6000", 1000, 518_000), ("4000", 0, 516_000),
        ("99999999", 1_024_000, 2_560_000),
    ):
        (group / "memory.max").write_text(f"{most}\n")
        assert free_bytes_of(system, group) == free
        assert all_bytes_of(system, group) == total
    (group / "memory.swap.max").write_text("0\n")
    assert all_bytes_of(system, group) == 2_048_000
    system.write_text("MemTotal:       2000 kB\n")
    assert free_bytes_of(system, group) is None


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system as on Linux")
def test_the_sentence_has_the_free_bytes() -> None:
    body, nbytes = TOO_LARGE["result"]
    said = rf"{nbytes} bytes are needed, \d+ are free \(4.40 TB of [\d.]+ [kMGT]B\)"
    with pytest.raises(OutOfMemoryError, match=said):
        defined(body).execute([])


def test_the_next_call_works() -> None:
    with FusionDefinition() as fd:
        size = fd.define_scalar(None, DataType.Int)
        fd.add_output(fd.ops.full([size], 1.0, DataType.Float))
    for error in (FuserLabError, RuntimeError, MemoryError):
        with pytest.raises(error):
            fd.execute([1 << 41])
        assert fd.execute([3])[0].tolist() == [1, 1, 1]


def test_storage_goes_where_memory_does_not_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones((4, 6), np.float32)
    fd = defined(lambda fd, x: fd.ops.neg(fd.ops.exp(x)), x)
    prepared = fl.segment(fd, [x], strategy="unfused").prepare()
    prepared._ready = None  # repeated runs are in test_host_ready.py
    prepared.run([x])
    (variant,) = prepared._variants.kept.values()
    assert len(variant.idle) == 1

    def refused(*_: object) -> Any:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(prepared.memory, "fresh", refused, raising=False)
        with pytest.raises(OutOfMemoryError, match=r"for T2, float \[4, 6\]: 96 bytes") as raised:
            prepared.run([x])
    assert not variant.idle
    assert raised.value.__context__ is None, "nothing references the frames of the allocation"
    np.testing.assert_allclose(prepared.run([x])[0], -np.exp(x), rtol=1e-6)


def test_kernels_and_torch_may_run_out_of_memory() -> None:
    x = np.ones((4, 6), np.float32)
    prepared = defined(lambda fd, x: fd.ops.exp(x), x).plan_for([x]).prepare()
    prepared._ready = None
    prepared.run([x])
    (variant,) = prepared._variants.kept.values()

    def refused(_: object) -> None:
        msg = "CUDA out of memory"
        raise torch.OutOfMemoryError(msg)

    calls, variant.calls = variant.calls, ((refused,),)
    with pytest.raises(OutOfMemoryError, match=r"T\d, float \[4, 6\]: 96 bytes"):
        prepared.run([x])
    variant.calls = calls
    np.testing.assert_allclose(prepared.run([x])[0], np.exp(x), rtol=1e-6)


def test_more_elements_than_can_be_counted() -> None:
    fd = defined(constant(1 << 62, 4))
    with pytest.raises(InputError, match=r"T0 has the shape \[4611686018427387904, 4\]: 18446744073709551616 elements"):
        fd.execute([])
    with FusionDefinition() as fd:
        sizes = fd.define_vector(2)
        fd.add_output(fd.ops.full([sizes[0], sizes[1]], 1.0, DataType.Float))
    with pytest.raises(InputError, match="do not fit in 63 bits"):
        fd.execute([1 << 62, 2])
    assert fd.execute([2, 2])[0].tolist() == [[1, 1], [1, 1]]


def test_freed_memory_is_kept_for_the_next_step() -> None:
    """Blocks of 16 MB in all, each below the largest that the C library has mapped and freed before."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("the limits of glibc")
    program = """
import resource
import numpy as np
from fuser_lab.process.host_memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3):
        step = [np.ones(1 << 20, np.uint8) for _ in range(16)]
        del step
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
given_back = faults()
keep_freed_memory()
faults()
print(given_back, faults())
"""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("GLIBC_", "MALLOC_"))}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=own)
    given_back, kept = map(int, done.stdout.split())
    assert given_back > 100 * (kept + 1)

"""On a GPU: results that are views, results that overwrite inputs, layouts of empty tensors, and too little memory."""

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.errors import OutOfMemoryError

torch = needs("torch")
pytestmark = pytest.mark.gpu


def defined(body: Callable[..., Any], *shapes: tuple[int, ...]) -> FusionDefinition:
    with FusionDefinition() as fd:
        tensors = [fd.define_tensor(list(shape), contiguity=True) for shape in shapes]
        result = body(fd, *tensors)
        for output in result if isinstance(result, tuple) else (result,):
            fd.add_output(output)
    return fd


VIEWS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "input": (lambda fd, x: x, lambda x: x),
    "set": (lambda fd, x: fd.ops.set(x), lambda x: x),
    "slice": (lambda fd, x: fd.ops.slice(x, [0, 1, 0], [4, 6, 1]), lambda x: x[:, 1:, :1]),
    "permute": (lambda fd, x: fd.ops.permute(x, [2, 0, 1]), lambda x: x.permute(2, 0, 1)),
    "select": (lambda fd, x: fd.ops.select(x, fd.define_scalar(3, DataType.Int), 1), lambda x: x.select(1, 3)),
    "expand": (
        lambda fd, x: fd.ops.expand(fd.ops.broadcast(x, [True, False, False, False]), [5, 4, 6, 7]),
        lambda x: x.expand(5, 4, 6, 7),
    ),
    "chain": (
        lambda fd, x: fd.ops.permute(
            fd.ops.reshape(fd.ops.slice(x, [0, 0, 0], [4, 4, 7]), [4, 2, 2, 7]), [3, 1, 0, 2],
        ),
        lambda x: x[:, :4].reshape(4, 2, 2, 7).permute(3, 1, 0, 2),
    ),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a kernel"])
def test_views_of_tensors(name: str, beside: bool) -> None:
    body, wanted = VIEWS[name]
    x = torch.randn(4, 6, 7, device="cuda")
    fd = defined((lambda fd, t: (body(fd, t), fd.ops.neg(t))) if beside else body, x.shape)
    got = fd.execute([x])[0]
    assert got.is_cuda
    assert got.data_ptr() == wanted(x).data_ptr()
    assert got.stride() == wanted(x).stride()
    assert torch.equal(got, wanted(x))
    x.fill_(3)
    assert (got == 3).all()


def test_views_allocate_nothing() -> None:
    x = torch.randn(1024, 1024, device="cuda")
    fd = defined(lambda fd, x: fd.ops.permute(fd.ops.slice(x, [0, 0], [512, 1024]), [1, 0]), x.shape)
    fd.execute([x])
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    (got,) = fd.execute([x])
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    assert got.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_given_tensors_get_copies() -> None:
    x = torch.randn(6, 5, device="cuda")
    fd = defined(lambda fd, x: (fd.ops.permute(x, [1, 0]), fd.ops.neg(x)), x.shape)
    out = [torch.empty(5, 6, device="cuda"), torch.empty(6, 5, device="cuda")]
    same = fl.segment(fd, [x]).run([x], out)
    assert all(a is b for a, b in zip(same, out, strict=True))
    assert torch.equal(out[0], x.t())
    assert torch.equal(out[1], -x)
    assert out[0].data_ptr() != x.data_ptr()


def test_arrays_of_the_host_give_copies() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4), dtype=np.float32)
    fd = defined(lambda fd, x: fd.ops.permute(x, [1, 0]), x.shape)
    (got,) = fd.plan_for([torch.from_numpy(x).cuda()]).prepare("cuda").run([x])
    np.testing.assert_array_equal(got, x.T)


def test_timing_of_views() -> None:
    x = torch.randn(256, 64, device="cuda")
    fd = defined(lambda fd, x: (fd.ops.permute(x, [1, 0]), fd.ops.exp(x), fd.ops.set(x)), x.shape)
    rows = fl.time(fl.segment(fd, [x]), [x], progress=False, seconds=0.01).rows
    assert all(row.median >= 0 for row in rows)
    assert all(row.error < 1 for row in rows)


def test_results_over_an_input_are_that_input() -> None:
    x = torch.randn(2, 3, 4, device="cuda")
    wanted = x.relu()
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([-1, -1, -1], contiguity=True)
        t4 = fd.ops.where(fd.ops.gt(t0, 0.0), t0, 0.0)
        fd.add_output(t4)
        fd.add_output(t4, t0)
        fd.add_output(t4)
        fd.add_output(t0)
    outputs = fd.execute([x])
    assert [got.data_ptr() for got in outputs] == [x.data_ptr()] * 3
    for got in (*outputs, x):
        assert torch.equal(got, wanted)


def test_views_of_an_overwritten_input_keep_the_old_values() -> None:
    x = torch.randn(5, 3, device="cuda")
    before = x.clone()
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([5, 3], contiguity=True)
        fd.add_output(fd.ops.permute(t0, [1, 0]))
        fd.add_output(fd.ops.neg(t0), t0)
    (turned,) = fd.execute([x])
    assert torch.equal(turned, before.t())
    assert torch.equal(x, -before)


@pytest.mark.parametrize("shape", [(2, 0, 4), (0,), (3, 0)])
def test_results_without_elements_have_the_strides_of_torch(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape, device="cuda")
    (got,) = defined(lambda fd, x: fd.ops.neg(x), shape).execute([x])
    assert (tuple(got.shape), got.stride(), got.is_cuda) == (shape, x.stride(), True)


def test_memory_that_does_not_suffice() -> None:
    x = torch.ones(4, device="cuda")
    with FusionDefinition() as fd:
        t0, size = fd.define_tensor([-1], contiguity=True), fd.define_scalar(None, DataType.Int)
        wide = fd.ops.expand(fd.ops.broadcast(t0, [False, True]), [fd.ops.size(t0, 0), size])
        fd.add_output(fd.ops.add(wide, fd.ops.full([4, size], 1.0, DataType.Float)))
    gc.collect()  # so that garbage of earlier tests is not freed in between
    held = torch.cuda.memory_allocated()
    with pytest.raises(OutOfMemoryError, match=r"for T\d+, float \[4, 1099511627776\]: 17592186044416 bytes"):
        fd.execute([x, 1 << 40])
    assert torch.cuda.memory_allocated() == held
    assert fd.execute([x, 3])[0].tolist() == [[2] * 3] * 4

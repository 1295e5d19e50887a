"""Runs on the CPU that are repeated by exchanging addresses: equal to full runs, or left to them."""

import gc
import threading
import weakref

import numpy as np
import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.errors import InputError, OutOfMemoryError
from fuser_lab.runtime.cpu import host_ready

pytestmark = pytest.mark.skipif(not host_ready.can_repoint(), reason="needs CPython, whose arrays can be repointed")
RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def prepared(record, *inputs):
    """The plan of the definition that ``record`` creates for described inputs, and whether its runs are repeated."""
    with FusionDefinition() as fd:
        given = [fd.define_scalar(None, DataType.Double) if isinstance(x, float) else fd.from_array(x) for x in inputs]
        made = record(fd, *given)
        for value in made if isinstance(made, tuple) else (made,):
            fd.add_output(value)
    return fl.segment(fd, list(inputs)).prepare()


def repeats(plan):
    return len(plan._ready._kept)


def two(fd, x, y):
    return fd.ops.add(fd.ops.exp(x), y), fd.ops.sum(x, [1])


def test_other_arrays_give_other_results():
    plan = prepared(two, floats(3, 4), floats(4))
    kept = []
    for _ in range(5):
        x, y = floats(3, 4), floats(4)
        kept.append((x, y, plan.run([x, y])))
    assert repeats(plan) == 1
    for x, y, (first, second) in kept:
        np.testing.assert_allclose(first, np.exp(x) + y, rtol=1e-6)
        np.testing.assert_allclose(second, x.sum(1), rtol=1e-5)
        assert first.flags.writeable


def test_torch_tensors_of_every_kind_of_element():
    torch = needs("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool):
        x, y = (torch.arange(12).reshape(3, 4).add(k).to(dtype) for k in range(2))
        plan = prepared(lambda fd, x: fd.ops.cast(fd.ops.add(x, x), x.dtype), x)
        for value in (x, y, x.clone()):
            result, = plan.run([value])
            assert result.dtype == dtype
            torch.testing.assert_close(result, value | value if dtype is torch.bool else value + value)
        assert repeats(plan) == 1


def test_what_differs_goes_the_long_way():
    torch = needs("torch")
    x, y = torch.rand(3, 4), torch.rand(4)
    plan = prepared(two, x, y)
    plan.run([x, y])
    assert plan._ready.started([x, y], None) is not None
    others = [
        [torch.rand(4, 3).T, y], [x.double(), y], [torch.rand(3, 5), y], [x.numpy(), y], [x], [x, 1.0], (x, None),
        [torch._neg_view(x), y],
    ]
    for other in others:
        assert plan._ready.started(other, None) is None
    turned = torch.rand(4, 3).T
    torch.testing.assert_close(plan.run([turned, y])[0], turned.exp() + y)
    with pytest.raises(InputError, match="size 5 on axis 1"):
        plan.run([torch.rand(3, 5), y])
    # Not part of the comparison of runs: gradients, and addresses.
    wants = torch.rand(3, 4, requires_grad=True)
    torch.testing.assert_close(plan.run([wants, y])[0], (wants.exp() + y).detach())


def test_results_lie_as_they_do_the_long_way():
    def record(fd, x, y):
        return fd.ops.stride_order(fd.ops.exp(x), [0, 1]), fd.ops.expand(fd.ops.exp(y), [3, 5]), fd.ops.sum(x)

    x, y = floats(3, 4), floats(3, 1)
    plan = prepared(record, x, y)
    long = plan.run([x, y])
    again = plan._ready.started([x, y], None)
    for a, b in zip(long, again, strict=True):
        assert (a.shape, a.strides, a.dtype) == (b.shape, b.strides, b.dtype)
        np.testing.assert_array_equal(a, b)


def test_numbers_change_from_run_to_run():
    plan = prepared(lambda fd, x, n: fd.ops.mul(x, n), floats(5), 2.0)
    for n in (2.0, 0.5, -3.25):
        x = floats(5)
        np.testing.assert_allclose(plan.run([x, n])[0], x * np.float32(n), rtol=1e-6)
    assert repeats(plan) == 1
    assert plan._ready.started([floats(5), 3], None) is None


def test_intermediates_views_and_what_the_library_evaluates():
    def record(fd, x, w):
        return fd.ops.permute(x, [1, 0]), fd.ops.exp(fd.ops.matmul(fd.ops.neg(x), w))

    plan = prepared(record, floats(3, 4), floats(4, 2))
    for _ in range(4):
        x, w = floats(3, 4), floats(4, 2)
        view, product = plan.run([x, w])
        assert np.shares_memory(view, x)
        np.testing.assert_array_equal(view, x.T)
        np.testing.assert_allclose(product, np.exp(-x @ w), rtol=1e-5)
    assert repeats(plan) == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_torch_multiplies_what_is_torchs(dtype, monkeypatch):
    torch = needs("torch")
    kind = getattr(torch, dtype)

    def record(fd, x, w, b):
        return fd.ops.cast(fd.ops.neg(fd.ops.linear(fd.ops.cast(fd.ops.neg(x), x.dtype), w, b)), x.dtype)

    def make():
        return [torch.randn(*shape).to(kind) for shape in ((3, 4), (2, 4), (2,))]

    plan = prepared(record, *make())
    asked = []
    plain = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", lambda *a: asked.append(1) or plain(*a))
    for _ in range(3):
        x, w, b = make()
        torch.testing.assert_close(plan.run([x, w, b])[0], -plain(-x, w, b))
    assert len(asked) == 3
    assert repeats(plan) == 1


def test_positions_are_looked_at_in_each_run():
    plan = prepared(lambda fd, x, at: fd.ops.neg(fd.ops.index_select(x, at, 0)), floats(3, 4), np.array([0, 2]))
    for at in ([0, 2], [1, 1], [2, 0]):
        x = floats(3, 4)
        np.testing.assert_array_equal(plan.run([x, np.array(at)])[0], -x[at])
    assert repeats(plan) == 1
    with pytest.raises(InputError, match="out of range"):
        plan.run([floats(3, 4), np.array([0, 3])])


def test_outputs_of_the_callers():
    x, y = floats(3, 4), floats(4)
    plan = prepared(two, x, y)
    out = [np.zeros((3, 4), np.float32), np.zeros(3, np.float32)]
    for _ in range(3):
        x = floats(3, 4)
        assert all(a is b for a, b in zip(plan.run([x, y], out), out, strict=True))
        np.testing.assert_allclose(out[0], np.exp(x) + y, rtol=1e-6)
    # Over the input: everything is read first.
    before = x.copy()
    plan.run([x, y], [x, out[1]])
    np.testing.assert_allclose(x, np.exp(before) + y, rtol=1e-6)
    out[0].flags.writeable = False
    with pytest.raises(InputError, match="cannot be written to"):
        plan.run([floats(3, 4), y], out)


def test_arrays_of_the_caller_are_let_go_of():
    plan = prepared(two, floats(3, 4), floats(4))
    for _ in range(2):
        x = floats(3, 4)
        results = plan.run([x, floats(4)])
        gone = [weakref.ref(x), *map(weakref.ref, results)]
        del x, results
        gc.collect()
        assert all(ref() is None for ref in gone)
    assert repeats(plan) == 1


def test_threads_do_not_share_a_run():
    plan = prepared(lambda fd, x: fd.ops.exp(fd.ops.segment_set(fd.ops.neg(x))), floats(200, 50))
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(60):
            x = rng.normal(size=(200, 50)).astype(np.float32)
            if not np.allclose(plan.run([x])[0], np.exp(-x), rtol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_memory_that_does_not_suffice_is_told_by_the_long_way(monkeypatch):
    plan = prepared(lambda fd, x: fd.ops.exp(x), floats(4, 6))
    plan.run([floats(4, 6)])

    def refused(*_):
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(plan.memory, "fresh", refused, raising=False)
        patched.setattr(host_ready.HostRun, "start", refused)
        with pytest.raises(OutOfMemoryError, match=r"float \[4, 6\]"):
            plan.run([floats(4, 6)])
    x = floats(4, 6)
    np.testing.assert_allclose(plan.run([x])[0], np.exp(x), rtol=1e-6)


def test_plans_that_write_over_inputs_or_draw_numbers_are_not_repeated():
    def over(fd, x):
        fd.add_output(fd.ops.neg(x), x)
        return fd.ops.exp(x)

    assert prepared(over, floats(3))._ready is None
    assert prepared(lambda fd, x: fd.ops.mul(x, fd.ops.rand_like(x)), floats(3))._ready is None


def test_views_of_torch_tensors_are_seen_where_the_tensors_lie_now():
    torch = needs("torch")

    def record(fd, x, nothing):
        part = fd.ops.permute(fd.ops.slice(x, [0, 2], [3, 6]), [1, 0])
        kept = fd.ops.set(part)
        return kept, fd.ops.mul(kept, kept), fd.ops.set(nothing)

    memory, nothing = torch.arange(100.0), torch.empty(0, 3)
    plan = prepared(record, memory[:24].reshape(3, 8), nothing)
    for shift in (0, 5, 40):
        x = memory[shift:][:24].view(3, 8)
        x = torch.nn.Parameter(x) if shift == 5 else x
        kept, squares, empty = plan.run([x, nothing])
        torch.testing.assert_close(kept, x.detach()[:, 2:6].t())
        torch.testing.assert_close(squares, x.detach()[:, 2:6].t() ** 2)
        assert kept.data_ptr() == x.data_ptr() + 2 * x.element_size()
        assert not kept.requires_grad
        assert empty.shape == (0, 3)
    assert repeats(plan) == 1
    assert len(plan._ready._kept[0]._guards) == 2  # of tensors and of parameters

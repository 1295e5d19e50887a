"""Tensors of executed plans are stored in the layouts of the plan: results, and tensors that pass between segments."""

import numpy as np
import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab.examples import layouts as examples
from fuser_lab.interpreter import evaluate
from fuser_lab.runtime.cpu.host import HostMemory
from fuser_lab.segmentation.options import LAYOUT_MODES
from tests.agreement import bound

SMALL = {
    "channels_last_norm": {"batch": 2, "channels": 8, "side": 5},
    "vanishing_transpose": {"rows": 16, "columns": 12},
    "reader_decides": {"rows": 16, "columns": 12},
}


def order_of(strides):
    return tuple(sorted(range(len(strides)), key=lambda axis: -strides[axis]))


def defined(body):
    with fl.FusionDefinition() as fd:
        body(fd, **SMALL.get(body.__name__, {}))
    return fd


@pytest.mark.parametrize("mode", LAYOUT_MODES)
@pytest.mark.parametrize("body", examples.ALL, ids=lambda body: body.__name__)
def test_what_passes_between_segments_lies_as_chosen(body, mode, monkeypatch):
    stored = {}
    logical = HostMemory.logical

    def spied(self, flat, tensor):
        array = logical(self, flat, tensor)
        stored[tensor.name] = array
        return array

    monkeypatch.setattr(HostMemory, "logical", spied)
    fd = defined(body)
    plan = fl.segment(fd, options=fl.SegmenterOptions(layout_mode=mode))
    inputs = examples.inputs_of(plan.fusion)
    outputs = plan.run(inputs)
    for got, wanted in zip(outputs, evaluate(plan.definition, inputs, exact=False), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)
    stored |= dict(zip((tv.name for tv in plan.fusion.outputs), outputs, strict=True))
    checked = [one.tensor for one in plan.layouts() if order_of(stored[one.tensor].strides) == one.chosen]
    assert checked == [one.tensor for one in plan.layouts()]


@pytest.mark.parametrize("order", [[2, 1, 0], [0, 1, 2], [1, 2, 0], [2, 0, 1]])
@pytest.mark.parametrize("mode", LAYOUT_MODES)
def test_what_users_require_is_what_they_get(order, mode):
    def body(fd):
        x = fd.define_tensor([-1, -1, -1], contiguity=True)
        weight = fd.define_tensor([-1, -1], contiguity=True)
        product = fd.ops.linear(x, weight)
        results = [
            product, fd.ops.relu(product), fd.ops.permute(x, [2, 0, 1]), fd.ops.permute(fd.ops.exp(x), [1, 0, 2]),
            fd.ops.slice(fd.ops.neg(x), [0, 0, 0], [2, 3, 4]), fd.ops.set(x),
        ]
        for result in results:
            fd.add_output(result)
            fd.set_output_stride_order(result, order)

    fd = defined(body)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape, dtype=np.float32) for shape in ((2, 3, 4), (5, 4))]
    plan = fl.segment(fd, inputs, options=fl.SegmenterOptions(layout_mode=mode))
    wanted = evaluate(bound(fd, inputs), inputs, exact=False)
    memory_order = tuple(sorted(range(3), key=lambda axis: -order[axis]))
    for outputs in (plan.run(inputs), fd.execute(inputs)):
        for got, right in zip(outputs, wanted, strict=True):
            assert order_of(got.strides) == memory_order
            np.testing.assert_allclose(got, right, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("mode", LAYOUT_MODES)
def test_torch_gets_the_same_layouts(mode):
    torch = needs("torch")
    fd = defined(examples.required_copy)
    plan = fl.segment(fd, options=fl.SegmenterOptions(layout_mode=mode))
    x, weight = map(torch.from_numpy, examples.inputs_of(plan.fusion))
    product, scaled = plan.run([x, weight])
    assert product.stride() == (16, 1, 2)
    torch.testing.assert_close(product, torch.nn.functional.linear(x, weight))
    torch.testing.assert_close(scaled, 2 * torch.nn.functional.linear(x, weight))
    last = defined(examples.channels_last_norm)
    images = examples.inputs_of(fl.segment(last).fusion)
    (out,) = fl.segment(last, options=fl.SegmenterOptions(layout_mode=mode)).run([torch.from_numpy(x) for x in images])
    assert out.is_contiguous(memory_format=torch.channels_last)


def test_a_requirement_holds_for_given_arrays_and_sizes():
    def body(fd):
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.exp(x)
        fd.add_output(y)
        fd.set_output_stride_order(y, [0, 1])

    fd = defined(body)
    for shape in ((3, 4), (5, 2), (1, 6)):
        x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        (out,) = fd.execute([x])
        np.testing.assert_allclose(out, np.exp(x), rtol=1e-6)
        assert out.T.flags.c_contiguous


@pytest.mark.parametrize("dtype", ["bool", "int16", "float32", "float64", "complex128"])
def test_results_are_copied_between_any_layouts(dtype):
    needs("torch")
    memory, x = HostMemory(), np.arange(150 * 120).reshape(150, 120).astype(dtype)
    for source in (x, x[:, ::-1], x[::2], x.T, x[:1, :1]):
        for target in (np.empty_like(source, order="C"), np.empty_like(source, order="F")):
            memory.copy(target, source)
            np.testing.assert_array_equal(target, source)
    expected = x[::-1].copy()
    memory.copy(x, x[::-1])
    np.testing.assert_array_equal(x, expected)


# Arrays given for results

LAYOUTS = {
    "transposed": lambda shape: np.full(shape[::-1], np.nan, np.float32).T,
    "padded": lambda shape: np.full((shape[0], shape[1] + 7), np.nan, np.float32)[:, 3:-4],
    "every other": lambda shape: np.full((shape[0], 2 * shape[1]), np.nan, np.float32)[:, ::2],
    "backwards": lambda shape: np.full(shape, np.nan, np.float32)[::-1],
}


def scaled(fd, x):
    fd.add_output(fd.ops.relu(fd.ops.mul(x, 2.0)))


def normalized(fd, x):
    fd.add_output(fd.ops.softmax(x, 1))


def in_columns(fd, x):
    fd.add_output(fd.ops.softmax(x, 0))


def turned(fd, x):
    fd.add_output(fd.ops.add(x, fd.ops.permute(x, [1, 0])))


def summed(fd, x):
    fd.add_output(fd.ops.mul(fd.ops.cumsum(x, 1), 0.5))


def read_again(fd, x):
    """The first result is stored in one segment and read by another."""
    y = fd.ops.exp(x)
    fd.add_output(y)
    fd.add_output(fd.ops.add(x, fd.ops.sum(fd.ops.segment_set(y), [0], keepdim=True)))


@pytest.fixture
def copies(monkeypatch):
    """The arrays that runs copied results to."""
    found = []
    copy = HostMemory.copy

    def counted(self, target, source):
        found.append(target)
        copy(self, target, source)

    monkeypatch.setattr(HostMemory, "copy", counted)
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("body", [scaled, normalized, in_columns, turned, summed, read_again], ids=lambda b: b.__name__)
def test_kernels_write_results_in_the_layout_of_given_arrays(body, layout, copies):
    x = np.random.default_rng(0).normal(size=(150, 150)).astype(np.float32)
    with fl.FusionDefinition() as fd:
        body(fd, fd.define_tensor([*x.shape], contiguity=True))  # greedy scans constant sizes
    plan = fl.segment(fd, [x])
    wanted, prepared = evaluate(bound(fd, [x]), [x], exact=False), plan.prepare("cpu")
    outs = [LAYOUTS[layout](x.shape) for _ in wanted]
    for given in (x, 0.5 * x, x):
        assert all(a is b for a, b in zip(prepared.run([given], outs), outs, strict=True))
    for got, expected in zip(outs, wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)
        assert got.base is not None
        assert np.isnan(got.base).sum() == got.base.size - got.size  # what is beside the result is not written
    assert bool(copies) is (layout == "backwards")
    for got, expected in zip(prepared.run([x]), wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)
        assert got.flags.c_contiguous
        assert not np.may_share_memory(got, outs[0])


def test_a_given_array_in_another_layout_may_share_memory_with_an_input():
    x = np.random.default_rng(0).normal(size=(150, 150)).astype(np.float32)
    with fl.FusionDefinition() as fd:
        scaled(fd, fd.define_tensor([-1, -1], contiguity=True))
    wanted = np.maximum(2 * x, 0).T.copy()
    fl.segment(fd, [x]).prepare("cpu").run([x], [x.T])
    np.testing.assert_array_equal(x, wanted)


def test_small_results_are_copied_rather_than_compiled_for(copies):
    x = np.ones((100, 100), np.float32)
    with fl.FusionDefinition() as fd:
        scaled(fd, fd.define_tensor([-1, -1], contiguity=True))
    out = np.zeros((100, 100), np.float32).T
    fl.segment(fd, [x]).prepare("cpu").run([x], [out])
    np.testing.assert_array_equal(out, 2 * x)
    assert len(copies) == 1

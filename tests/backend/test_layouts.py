"""Tensors of executed plans are stored in the layouts of the plan: results, and tensors that pass between segments."""

import numpy as np
import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab.examples import layouts as examples
from fuser_lab.interpreter import evaluate
from fuser_lab.runtime.host import HostMemory
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

"""Axes: pairs within one expression, classes over several, coverage, views."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.schedule.asking import example, fusion_of, tensor

from fuser_lab.analysis.aliasing import reshaped_strides
from fuser_lab.analysis.buffer_sizes import buffer_sizes
from fuser_lab.analysis.coverage import Coverage
from fuser_lab.analysis.domain_map import FusionLinks, axis_pairs, exact_map
from fuser_lab.analysis.reductions import ReductionFlow, mixing_reshape, patterns
from fuser_lab.dtypes import DataType


def classes_of(fusion):
    links = FusionLinks(fusion).of(fusion.exprs)
    return exact_map(links), links


def pairs(fusion, number=0):
    return [(p.operand, p.producer.extent, p.consumer.extent) for p in axis_pairs(fusion.exprs[number])]


def test_pairs_by_kind():
    assert pairs(fusion_of(lambda fd: fd.add_output(fd.ops.sum(tensor(fd, 2, 3), dims=[0])))) == [(0, 2, 2), (0, 3, 3)]
    broadcast = fusion_of(lambda fd: fd.add_output(fd.ops.broadcast(tensor(fd, 2, 3), [False, True, False])))
    assert pairs(broadcast) == [(0, 2, 2), (0, 3, 3)]
    squeeze = fusion_of(lambda fd: fd.add_output(fd.ops.squeeze(tensor(fd, 2, 1, 3), dims=[1])))
    assert pairs(squeeze) == [(0, 2, 2), (0, 3, 3)]
    product = fusion_of(lambda fd: fd.add_output(fd.ops.matmul(tensor(fd, 5, 2, 3), tensor(fd, 5, 3, 4))))
    assert pairs(product) == [(0, 5, 5), (0, 2, 2), (1, 5, 5), (1, 4, 4)]
    linear = fusion_of(lambda fd: fd.add_output(fd.ops.linear(tensor(fd, 2, 3), tensor(fd, 4, 3), tensor(fd, 4))))
    assert pairs(linear) == [(0, 2, 2), (1, 4, 4), (2, 4, 4)]
    reshape = fusion_of(lambda fd: fd.add_output(fd.ops.reshape(tensor(fd, 4, 3), new_shape=[12])))
    assert pairs(reshape) == [(0, 4, 4), (0, 3, 3)]
    assert pairs(fusion_of(lambda fd: fd.add_output(fd.ops.full([2], 1.0, fd_float())))) == []


def fd_float():
    from fuser_lab.dtypes import DataType

    return DataType.Float


@pytest.mark.parametrize("name", ["softmax", "layer_norm_backward", "llama3_rope_backward"])
def test_one_class_has_one_extent(name):
    fusion = example(name, "small")
    exact, _ = classes_of(fusion)
    for tv in fusion.tensors.values():
        for number, size in zip(exact.classes[tv.name], tv.shape, strict=True):
            assert exact.broadcast[number] or exact.extent[number] == size


def test_equal_reshapes_of_equal_axes_are_equal():
    def body(fd):
        x, y = tensor(fd, 12), tensor(fd, 12)
        a, b = fd.ops.reshape(x, new_shape=[3, 4]), fd.ops.reshape(fd.ops.add(x, y), new_shape=[3, 4])
        fd.add_output(fd.ops.neg(a))
        fd.add_output(fd.ops.neg(b))

    fusion = fusion_of(body)
    exact, _ = classes_of(fusion)
    first, second = fusion.outputs
    assert exact.classes[first.name] == exact.classes[second.name]


def test_coverage_goes_through_reshapes_both_ways_and_through_resizes_on_request():
    def body(fd):
        x = tensor(fd, 12, 8)
        fd.add_output(fd.ops.reshape(fd.ops.slice(x, [0, 2], [12, 6]), new_shape=[3, 4, 4]))

    fusion = fusion_of(body)
    exact, _ = classes_of(fusion)
    (x,), (out,) = fusion.tensor_inputs, fusion.outputs
    own = exact.concrete(out)
    assert Coverage(exact, own, through_resize=True).missing(exact.concrete(x)) is None
    assert Coverage(exact, own, through_resize=False).missing(exact.concrete(x)) == exact.classes[x.name][1]
    assert Coverage(exact, exact.concrete(x), through_resize=True).missing(own) is None


def flow_of(body):
    exact, links = classes_of(fusion_of(body))
    found = patterns(exact, links)
    return ReductionFlow.of(exact, links, found), found, exact


def test_buffers_and_what_they_are_recomputed_from():
    def softmax(fd):
        x = fd.ops.mul(tensor(fd, 8, 100), 2.0)
        e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, dims=[1], keepdim=True)))
        fd.add_output(fd.ops.div(e, fd.ops.sum(e, dims=[1], keepdim=True)))

    flow, found, _ = flow_of(softmax)
    buffers = flow.buffers()
    assert [b.reduction for b in buffers] == [p.name for p in found]
    sizes = buffer_sizes(flow)
    assert (sizes.kept, sizes.kept_names) == (400, tuple(b.tensor.name for b in buffers))  # never alive together
    assert (sizes.projected, sizes.projected_names) == (400, ("T0",))
    assert (sizes.with_exp, sizes.with_random) == (True, False)


def test_buffers_are_not_recomputed_from_inputs_with_only_some_of_the_reduced_axes():
    def norm(dims, shape):
        def body(fd):
            bias = fd.ops.broadcast(tensor(fd, *shape), [n not in dims for n in range(3)])
            x = fd.ops.add(tensor(fd, 8, 16, 32), bias)
            total = fd.ops.sum(x, dims=[1, 2])
            fd.add_output(fd.ops.div(x, fd.ops.broadcast(total, [False, True, True])))

        flow, _, _ = flow_of(body)
        (buffer,) = flow.buffers()
        sizes = buffer_sizes(flow)
        assert (sizes.kept, sizes.kept_names) == (2048, (buffer.tensor.name,))
        return sizes.projected, sizes.projected_names == sizes.kept_names

    assert norm([2], [32]) == (2048, True)
    assert norm([0], [8]) == (2048, False)
    assert norm([1, 2], [16, 32]) == (4096, False)


def test_each_buffer_is_recomputed_from_its_inputs_if_these_can_be_kept():
    def body(fd):
        bias = fd.ops.broadcast(tensor(fd, 32), [True, True, False])
        operands = (fd.ops.add(tensor(fd, 8, 16, 32), bias), fd.ops.neg(tensor(fd, 8, 16, 32, dtype=DataType.Half)))
        for x in operands:
            wide = fd.ops.cast(x, DataType.Float)
            fd.add_output(fd.ops.div(wide, fd.ops.sum(wide, dims=[1, 2], keepdim=True)))

    flow, _, _ = flow_of(body)
    first, second = (buffer.tensor.name for buffer in flow.buffers())
    sizes = buffer_sizes(flow)
    assert [buffer.name for buffer in sizes.buffers] == [first, second]
    assert [(buffer.name, buffer.bytes, buffer.itemsize) for buffer in sizes.inputs] == [("T4", 1024, 2)]
    assert sizes.projected_names == ("T4", first)


def test_a_new_tensor_after_a_reduction_is_no_buffer():
    def body(fd):
        fd.add_output(fd.ops.add(fd.ops.sum(tensor(fd, 8, 16), dims=[1], keepdim=True), tensor(fd, 8, 16)))

    flow, _, _ = flow_of(body)
    assert not flow.buffers()


def test_splits_do_not_mix_and_merges_may():
    def cut(shape, new, dims):
        def body(fd):
            fd.add_output(fd.ops.sum(fd.ops.reshape(tensor(fd, *shape), new_shape=new), dims=dims))

        _, found, exact = flow_of(body)
        return mixing_reshape(exact, found[0])

    assert cut([2, 12], [2, 3, 4], [1]) is None
    assert cut([2, 3, 4], [2, 12], [1]) is None
    assert cut([6, 4], [8, 3], [1]) is not None
    assert cut([6, 4], [8, 3], [0, 1]) is None


@given(st.data())
def test_strides_of_reshapes_are_numpys(data):
    sizes = st.lists(st.integers(1, 4), min_size=1, max_size=4)
    shape = data.draw(sizes)
    order = data.draw(st.permutations(range(len(shape))))
    x = np.empty(shape, np.int8).transpose(order)
    factors = [f for n in x.shape for f in ((2, 2) if n == 4 else (n,))]
    groups = data.draw(st.lists(st.integers(0, 3), min_size=len(factors), max_size=len(factors)))
    new = [1, 1, 1, 1]
    for factor, group in zip(factors, sorted(groups), strict=True):
        new[group] *= factor
    found = reshaped_strides(x.shape, x.strides, new)
    viewed = np.shares_memory(np.reshape(x, new), x)
    assert (found is not None) is viewed
    if found is not None:
        wanted = np.reshape(x, new).strides
        assert all(a == b for a, b, n in zip(found, wanted, new, strict=True) if n > 1)

"""Ops that PyTorch's users try first: extreme values, additional results, and what a definition records.

Their legal and illegal calls are tested with those of all ops, in test_samples.py and test_misuses.py.
"""

import numpy as np
import pytest
from needs import needs

from fuser_lab.api.functions import FusionDefinition, segment
from fuser_lab.definition.binding import bind
from fuser_lab.dtypes import DataType, from_numpy
from fuser_lab.errors import DefinitionError, InputError
from fuser_lab.interpreter import evaluate
from fuser_lab.runtime.arrays import describe
from tests import agreement


def defined(record, *inputs):
    """A definition over inputs whose outputs are the results of ``record``."""
    with FusionDefinition() as fd:
        tensors = [fd.define_tensor(list(x.shape), True, from_numpy(x.dtype)) for x in inputs]
        result = record(fd, *tensors)
        for value in result if isinstance(result, tuple) else (result,):
            fd.add_output(value)
    return fd


def computed(record, *inputs):
    """Outputs of the reference, which the kernels of both targets give as well."""
    fd = defined(record, *inputs)
    fusion = agreement.bound(fd, inputs)
    wanted = evaluate(fusion, agreement.seeded(fusion, inputs))
    agreement.check_kernels(fd, list(inputs), wanted, max(agreement.tolerance_of(fusion), 1e-5))
    return [np.asarray(x) for x in wanted]


INF, NAN = np.inf, np.nan
EXTREME = np.array([[1e4, 1e4, -INF, 0], [-INF, 3, 2, 1], [INF, 1, 0, -1], [-3e38, 3e38, 0, 1]], np.float32)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_softmaxes_of_extreme_rows_are_torchs(name):
    torch = needs("torch")
    got, = computed(lambda fd, x: getattr(fd.ops, name)(x, -1), EXTREME)
    wanted = getattr(torch, name)(torch.from_numpy(EXTREME), -1).numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_softmax_in_half_precision_adds_up_in_float():
    x = np.zeros((1, 5000), np.float16)
    got, = computed(lambda fd, x: fd.ops.softmax(x), x)
    assert got.dtype == np.float16
    assert set(got.ravel()) == {np.float16(1 / 5000)}


@pytest.mark.parametrize("form", ["none", "tanh"])
def test_gelu_far_from_zero(form):
    got, = computed(lambda fd, x: fd.ops.gelu(x, form), np.array([-INF, -1e4, -30, 30, 1e4, INF, NAN], np.float32))
    np.testing.assert_array_equal(got, [NAN, 0, 0, 30, 1e4, INF, NAN])


def test_softplus_does_not_overflow():
    got, = computed(lambda fd, x: fd.ops.softplus(x), np.array([-INF, -1e4, 0, 19, 1e4, INF], np.float32))
    np.testing.assert_allclose(got, [0, 0, np.log(2), 19, 1e4, INF], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_rms_norm_without_eps_is_torchs(dtype):
    torch = needs("torch")
    x = torch.tensor([[0.0, 0, 0, 0], [1e-4, 2e-4, -1e-4, 0], [1, 2, 3, 4]], dtype=getattr(torch, dtype))
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.rms_norm(fd.from_pytorch(x), [4]))
    fusion = bind(fd.fusion, [describe(x)]).fusion
    array = x.view(torch.uint16).numpy().view(DataType.BFloat16.numpy) if dtype == "bfloat16" else x.numpy()
    got = np.asarray(evaluate(fusion, [array])[0]).astype(np.float64)
    wanted = torch.nn.functional.rms_norm(x, [4]).double().numpy()
    np.testing.assert_allclose(got, wanted, rtol={"float16": 1e-3, "bfloat16": 1e-2}.get(dtype, 1e-6))


def test_cross_entropy_of_ignored_targets():
    x, labels = np.array([[1, 2, -INF], [3, 1, 2]], np.float32), np.array([2, 0])

    def loss(how, ignored):
        return computed(lambda fd, a, b: fd.ops.cross_entropy(a, b, reduction=how, ignore_index=ignored), x, labels)[0]

    # A target whose score is minus infinity adds no loss if it is ignored.
    np.testing.assert_allclose(loss("none", 2), [0, np.log(1 + np.exp(-2) + np.exp(-1))], rtol=1e-6)
    np.testing.assert_allclose(loss("mean", 2), loss("sum", 2), rtol=1e-6)
    assert loss("none", -100)[0] == INF
    both = computed(lambda fd, a, b: fd.ops.cross_entropy(a, b, ignore_index=0), x, np.zeros(2, np.int64))[0]
    assert np.isnan(both)


@pytest.mark.parametrize("label", [3, -1])
def test_cross_entropy_refuses_a_target_that_is_no_class(label):
    x, labels = np.array([[1, 2, 0], [3, 1, 2]], np.float32), np.array([2, label])
    fd = defined(lambda fd, a, b: fd.ops.cross_entropy(a, b, reduction="none"), x, labels)
    plan = segment(fd, [x, labels])
    for run in (plan.run, fd.reference):
        with pytest.raises(InputError, match=rf"index (T\d+ )?has the value {label}, out of range"):
            run([x, labels])


@pytest.mark.parametrize(
    ("record", "shapes"),
    [
        (lambda fd, x, w: fd.ops.batch_norm(x, weight=w, training=True), ([-1, -1, 5], [1])),
        (lambda fd, x, w: fd.ops.batch_norm(x, weight=w, training=True), ([-1, 1, 5], [-1])),
        (lambda fd, x, w: fd.ops.group_norm(x, 1, bias=w), ([-1, -1, 5], [1])),
        (lambda fd, x, w: fd.ops.layer_norm(x, [4], w), ([-1, 4], [1])),
        (lambda fd, x, w: fd.ops.cross_entropy(x, fd.ops.cast(w, DataType.Int)), ([-1, 7], [1])),
        (lambda fd, x, w: fd.ops.cross_entropy(x, w), ([-1, 7], [-1, 1])),
    ],
)
def test_an_operand_of_size_1_is_not_broadcast(record, shapes):
    with FusionDefinition() as fd:
        operands = [fd.define_tensor(shape, True) for shape in shapes]
        with pytest.raises(DefinitionError, match="has .*shape"):
            record(fd, *operands)
        fd.add_output(operands[0])


@pytest.mark.parametrize("shape", [(0, 6), (2, 6, 0)])
def test_group_norm_of_nothing_with_symbolic_sizes(shape):
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.group_norm(fd.define_tensor([-1] * len(shape), True), 3))
    x = np.zeros(shape, np.float32)
    assert fd.reference([x])[0].shape == fd.execute([x])[0].shape == shape


def test_norm_of_nothing():
    empty = np.zeros((0, 2), np.float32)
    for p, wanted in ((2, 0), (1, 0), (0, 0), (INF, 0), (3, 0), (-INF, INF)):
        got, = computed(lambda fd, x, p=p: fd.ops.norm(x, p, 0), empty)
        np.testing.assert_array_equal(got, [wanted, wanted])


def test_batch_norm_in_training_returns_the_new_running_statistics():
    torch = needs("torch")
    rng = np.random.default_rng(0)
    x = rng.normal(2, 3, (6, 3, 5)).astype(np.float32)
    mean, var = rng.normal(size=3).astype(np.float32), rng.uniform(1, 2, 3).astype(np.float32)
    result, *running = computed(lambda fd, *v: fd.ops.batch_norm(*v, training=True, momentum=0.3), x, mean, var)
    kept = [torch.from_numpy(v.copy()) for v in (mean, var)]
    wanted = torch.nn.functional.batch_norm(torch.from_numpy(x), *kept, training=True, momentum=0.3)
    for got, other in zip([result, *running], [wanted, *kept], strict=True):
        np.testing.assert_allclose(got, other.numpy(), rtol=1e-5, atol=1e-6)


def test_batch_norm_may_write_over_its_statistics():
    x, mean, var = np.float32([[1, 2], [3, 6]]), np.zeros(2, np.float32), np.ones(2, np.float32)
    with FusionDefinition() as fd:
        a, b, c = (fd.define_tensor(list(v.shape), True) for v in (x, mean, var))
        result, new_mean, new_var = fd.ops.batch_norm(a, b, c, training=True, momentum=0.5)
        fd.add_output(result)
        fd.add_output(new_mean, b)
        fd.add_output(new_var, c)
    fd.execute([x, mean, var])
    np.testing.assert_allclose(mean, [1, 2])
    np.testing.assert_allclose(var, [1.5, 4.5])


def test_dropout_drops_a_share_and_scales_the_rest():
    x = np.full((60, 60), 3, np.float32)
    got, = computed(lambda fd, x: fd.ops.dropout(x, 0.2), x)
    dropped = float((got == 0).mean())
    assert abs(dropped - 0.2) < 0.02
    np.testing.assert_allclose(got[got != 0], 3 / 0.8, rtol=1e-6)
    assert not computed(lambda fd, x: fd.ops.dropout(x, 1), x)[0].any()
    for call in (lambda fd, x: fd.ops.dropout(x, 0.5, False), lambda fd, x: fd.ops.dropout(x, 0)):
        np.testing.assert_array_equal(computed(call, x)[0], x)


def test_symbolic_sizes():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 6, 5)).astype(np.float32)
    with FusionDefinition() as fd:
        a = fd.define_tensor([-1, -1, -1], True)
        fd.add_output(fd.ops.group_norm(a, 3))
        fd.add_output(fd.ops.batch_norm(a, training=True))
        fd.add_output(fd.ops.layer_norm(a, [5]))
        fd.add_output(fd.ops.std(a, [0, 2], 0.5))
    parted = x.reshape(2, 3, -1)
    wanted = (parted - parted.mean(-1, keepdims=True)) / np.sqrt(parted.var(-1, keepdims=True) + 1e-5)
    got = evaluate(agreement.bound(fd, [x]), [x])
    np.testing.assert_allclose(got[0], wanted.reshape(x.shape), rtol=1e-4, atol=1e-5)
    other = (x - x.mean((0, 2), keepdims=True)) / np.sqrt(x.var((0, 2), keepdims=True) + 1e-5)
    np.testing.assert_allclose(got[1], other, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got[3], np.sqrt(x.var((0, 2)) * 10 / 9.5), rtol=1e-5)


def test_a_printed_definition_has_the_ops_that_nvfuser_has():
    fd = defined(lambda fd, x: fd.ops.softmax(x), np.ones((2, 3), np.float32))
    printed = repr(fd)
    assert "softmax" not in printed
    for name in ("max", "exp", "sum", "truediv"):
        assert f"fd.ops.{name}(" in printed


ROW = np.array([[3, NAN, 1, NAN], [1, 5, 5, 2], [0, -0.0, -1, 0], [-INF, -INF, -INF, -INF]], np.float32)


def test_the_first_extreme_has_a_place_and_nan_is_one():
    torch = needs("torch")
    for name, other in (("max_with_indices", torch.max), ("min_with_indices", torch.min)):
        value, place = computed(lambda fd, x, name=name: getattr(fd.ops, name)(x, 1), ROW)
        wanted = other(torch.from_numpy(ROW), 1)
        np.testing.assert_array_equal(value, wanted.values.numpy())
        np.testing.assert_array_equal(place, wanted.indices.numpy())
    assert computed(lambda fd, x: fd.ops.argmax(x), ROW)[0] == 1


def test_numbers_below_0_count_from_the_end():
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    np.testing.assert_array_equal(computed(lambda fd, x: fd.ops.select(x, -2, 1), x)[0], x[:, -2])
    with FusionDefinition() as fd:
        a = fd.define_tensor([-1, -1], True)
        fd.add_output(fd.ops.select(a, -2, 1))
        fd.add_output(fd.ops.flip(a, [0, 1]))
        fd.add_output(fd.ops.slice(a, [1, 0], [99, fd.ops.size(a, 1)], [2, 4]))
    for wanted, got in zip([x[:, -2], x[::-1, ::-1], x[1::2, ::4]], fd.execute([x]), strict=True):
        np.testing.assert_array_equal(got, wanted)
    at = np.array([[-1, 0], [2, -4]])
    np.testing.assert_array_equal(computed(lambda fd, x, i: fd.ops.index(x, [i]), x, at)[0], x[at])


def test_a_position_outside_its_own_axis_is_none_of_another_row():
    x, rows, columns = np.zeros((3, 4), np.float32), np.array([0, 1]), np.array([3, 4])
    with pytest.raises(InputError, match="out of range"):
        computed(lambda fd, *v: fd.ops.index(v[0], list(v[1:])), x, rows, columns)
    with pytest.raises(InputError, match="out of range"):
        computed(lambda fd, *v: fd.ops.index_put(v[0], list(v[1:]), 1.0), x, rows, columns)


def test_index_put_of_torch_tensors_runs_in_a_plan():
    torch = needs("torch")
    x, at, new = torch.zeros(4, 3, 2), torch.tensor([1, -1, 1]), torch.arange(6.0).reshape(3, 2)
    with FusionDefinition() as fd:
        a, b, c = (fd.from_pytorch(v) for v in (x, at, new))
        put = fd.ops.index_put(fd.ops.exp(a), [b, fd.ops.full([3], 2, DataType.Int)], c, True)
        fd.add_output(fd.ops.neg(put))
    wanted = -torch.exp(x).index_put((at, torch.full((3,), 2)), new, True)
    torch.testing.assert_close(fd.execute([x, at, new])[0], wanted)


def test_as_strided_windows():
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    got, = computed(lambda fd, x: fd.ops.as_strided(x, [9, 3], [2, 1], 1), x)
    np.testing.assert_array_equal(got, np.lib.stride_tricks.sliding_window_view(x.ravel(), 3)[1::2])


def test_steps_and_reversals_join_the_kernel_of_what_reads_them():
    x = np.ones((64, 128), np.float32)
    fd = defined(lambda fd, x: fd.ops.add(fd.ops.slice(x, [0, 0], [64, 128], [1, 2]), 1.0), x)
    assert len(segment(fd, [x]).segments) == 1
    assert len(segment(defined(lambda fd, x: fd.ops.exp(fd.ops.flip(x, [1])), x), [x]).segments) == 1


def test_softmax_is_one_segment():
    x = np.ones((64, 128), np.float32)
    assert len(segment(defined(lambda fd, x: fd.ops.softmax(x), x), [x]).segments) == 1

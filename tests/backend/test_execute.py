"""Definitions executed as users do, on NumPy arrays and torch tensors, and inputs that do not match."""

import time

import numpy as np
import pytest
from machine import allowed
from needs import needs

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.errors import ArgumentTypeError, EmptyDefinitionError, InputError


def definition(body, *shapes, dtype=DataType.Float):
    with FusionDefinition() as fd:
        tensors = [fd.define_tensor(shape=list(shape), dtype=dtype) for shape in shapes]
        result = body(fd, *tensors)
        for output in result if isinstance(result, tuple) else (result,):
            fd.add_output(output)
    return fd


def check(fd, inputs, rtol=1e-5, atol=1e-5):
    for got, want in zip(fd.execute(inputs), fd.reference(inputs), strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol)


def softmax(fd, x):
    power = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, dims=[1], keepdim=True)))
    return fd.ops.truediv(power, fd.ops.sum(power, dims=[1], keepdim=True))


@pytest.mark.parametrize("name", fl.examples.names())
def test_examples(name):
    fd, inputs = fl.example(name)
    assert fl.examples.get(name).max_error(inputs, fd.execute(inputs)) < 1


@pytest.mark.parametrize(("name", "strategy"), [
    *((name, "top_down") for name in ("layer_norm_backward", "dropout_add_layer_norm", "llama3_rope_backward")),
    ("layer_norm_backward", "unfused"),
    *(  # dozens of kernels
        pytest.param(name, "unfused", marks=pytest.mark.matrix)
        for name in ("dropout_add_layer_norm", "llama3_rope_backward")
    ),
])
def test_every_strategy_computes_the_same(name, strategy):
    fd, inputs = fl.example(name)
    plan = fl.segment(fd, inputs, strategy=strategy)
    assert fl.examples.get(name).max_error(inputs, plan.run(inputs)) < 1


@pytest.mark.parametrize("name", ["sum_broadcast_add", "layer_norm", "dropout_add_layer_norm"])
def test_torch_gives_torch_back(name):
    torch = needs("torch")
    fd, arrays = fl.example(name)
    names = {"bfloat16": torch.bfloat16, "float32": torch.float32}
    inputs = [
        torch.from_numpy(x.astype(np.float32)).to(names[str(x.dtype)]) if isinstance(x, np.ndarray) else x
        for x in arrays
    ]
    got, want = fd.execute(inputs), fd.execute(arrays)
    for a, b in zip(got, want, strict=True):
        assert isinstance(a, torch.Tensor)
        assert a.is_contiguous()
        assert str(a.dtype).removeprefix("torch.") == str(b.dtype)
        np.testing.assert_array_equal(a.float().numpy(), b.astype(np.float32))


def test_strides_of_outputs():
    fd = definition(lambda fd, x: fd.ops.stride_order(fd.ops.relu(x), [0, 1]), (-1, -1))
    x = np.random.default_rng(0).standard_normal((3, 5), dtype=np.float32)
    (out,) = fd.execute([x])
    assert out.strides == (4, 12)
    np.testing.assert_array_equal(out, np.maximum(x, 0))


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
def test_zero_size(shape):
    fd = definition(lambda fd, x: (fd.ops.add(x, 1.0), fd.ops.sum(x, dims=[1]), fd.ops.sum(x)), (-1, -1))
    check(fd, [np.zeros(shape, np.float32)])


def test_zero_dim():
    fd = definition(lambda fd, x, y: fd.ops.add(fd.ops.mul(x, y), 1.0), (), ())
    check(fd, [np.array(2.0, np.float32), np.array(3.0, np.float32)])
    check(definition(lambda fd, x, y: fd.ops.mul(x, y), (), (-1,)), [np.array(2.0, np.float32), np.ones(3, np.float32)])


def views(x):
    """Return inputs of shape [6, 8] with every kind of strides."""
    yield "transposed", np.ascontiguousarray(x.T).T
    yield "every second", np.repeat(x, 2, axis=1)[:, ::2]
    yield "negative rows", x[::-1]
    yield "negative columns", x[:, ::-1]
    yield "expanded", np.broadcast_to(x[0], x.shape)
    yield "overlapping", np.lib.stride_tricks.as_strided(x.ravel(), x.shape, (4 * 3, 4))
    yield "offset", np.pad(x, 1)[1:-1, 1:-1]
    yield "read only", np.frombuffer(x.tobytes(), np.float32).reshape(x.shape)


X = np.random.default_rng(1).standard_normal((6, 8), dtype=np.float32)


@pytest.mark.parametrize(("kind", "x"), list(views(X)), ids=[kind for kind, _ in views(X)])
@pytest.mark.parametrize("body", [softmax, lambda fd, x: fd.ops.relu(x), lambda fd, x: fd.ops.sum(x, dims=[0])])
def test_any_strides(kind, x, body):
    del kind
    check(definition(body, (-1, -1)), [x])


def test_large_rows_and_columns():
    rng = np.random.default_rng(2)
    for shape in ((3, 70_001), (70_001, 3), (1, 200_003)):
        check(definition(softmax, (-1, -1)), [rng.standard_normal(shape, dtype=np.float32)], atol=1e-6)


@pytest.mark.parametrize("op", ["div", "mod", "remainder"])
@pytest.mark.parametrize("dtype", [DataType.Int, DataType.Int32])
def test_integer_division_by_zero_is_zero(op, dtype):
    fd = definition(lambda fd, x, y: getattr(fd.ops, op)(x, y), (-1,), (-1,), dtype=dtype)
    x = np.array([7, -7, 0, 5], dtype.numpy)
    y = np.array([0, 0, 0, -2], dtype.numpy)
    check(fd, [x, y])
    assert fd.execute([x, y])[0][:3].tolist() == [0, 0, 0]


def test_nan_and_infinity_survive():
    x = np.array([[1, np.nan, 3], [np.inf, -np.inf, 0], [0, 0, 0]], np.float32)
    fd = definition(lambda fd, x: (fd.ops.max(x, dims=[1]), fd.ops.relu(x), fd.ops.sum(x, dims=[1])), (-1, -1))
    largest, positive, total = fd.execute([x])
    assert np.isnan(largest[0])
    assert largest[1] == np.inf
    assert np.isnan(positive[0, 1])
    assert np.isnan(total[0])
    assert np.isnan(total[1])


def two():
    return definition(lambda fd, x, y: fd.ops.add(x, y), (-1, 4), (-1, 4))


A = np.zeros((3, 4), np.float32)


@pytest.mark.parametrize(
    ("inputs", "error", "text"),
    [
        ([A], InputError, "takes 2 inputs"),
        ([A, A[0]], InputError, "of rank 2, but got a tensor of rank 1"),
        ([A, A.astype(np.float64)], InputError, "of dtype float, but got a tensor of dtype double"),
        ([A, A.astype(np.uint16)], InputError, "dtype uint16 is not a tensor type"),
        ([A, A[:, :3]], InputError, "T1 has size 3 on axis 1; the fusion was defined for 4"),
        ([A, A[:2]], InputError, "operands have sizes 3 and 2 on axis 0"),
        ([A, 1.0], InputError, "to be an at::Tensor but got scalar 1.0"),
        ([A, "x"], InputError, "must be an array or a number, given str"),
        ([A, None], InputError, "must be an array or a number, given NoneType"),
        (A, ArgumentTypeError, "inputs must be a list"),
    ],
)
def test_inputs_that_do_not_fit(inputs, error, text):
    with pytest.raises(error, match=text) as raised:
        two().execute(inputs)
    assert "\n" not in str(raised.value)


def test_torch_tensors_that_do_not_fit():
    torch = needs("torch")
    good = torch.zeros(3, 4)
    for bad, text in (
        (torch.zeros(3, 4, dtype=torch.uint16), "uint16"),
        (torch.zeros(3, 4, device="meta"), "meta"),
        (good.to_sparse(), "strided"),
    ):
        with pytest.raises(InputError, match=text):
            two().execute([good, bad])


def test_outputs_of_the_caller():
    plan = fl.segment(two(), [A, A])
    out = np.empty((3, 4), np.float32)
    (same,) = plan.run([A + 1, A + 2], [out])
    assert same is out
    assert (out == 3).all()
    with pytest.raises(InputError, match="returns 1 outputs, given 2"):
        plan.run([A, A], [out, out])
    with pytest.raises(InputError, match="out for T2 must be float"):
        plan.run([A, A], [out.astype(np.float64)])


def test_nothing_defined():
    with pytest.raises(EmptyDefinitionError, match="Fusion does not exist"):
        FusionDefinition().execute([])
    with FusionDefinition() as fd:
        fd.define_tensor([2])
    with pytest.raises(EmptyDefinitionError, match="no outputs"):
        fd.execute([A])
    assert "nothing" not in repr(fd)
    assert repr(fd).startswith("<FusionDefinition: Fusion is empty!")


def test_an_input_may_be_an_output():
    fd = definition(lambda fd, x: (x, fd.ops.neg(x)), (-1,))
    x = np.arange(3, dtype=np.float32)
    same, negative = fd.execute([x])
    assert same.tolist() == [0, 1, 2]
    assert negative.tolist() == [0, -1, -2]


def test_in_place_outputs():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True)
        fd.add_output(fd.ops.add(x, 1.0), x)
        fd.add_output(fd.ops.mul(x, 2.0))
    x = np.arange(4, dtype=np.float32)
    (doubled,) = fd.execute([x])
    assert doubled.tolist() == [0, 2, 4, 6]
    assert x.tolist() == [1, 2, 3, 4]


def test_nested_and_scalar_inputs():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        fd.add_output(fd.ops.reshape(fd.ops.mul(x, fd.define_scalar(None, DataType.Double)), fd.define_vector(2)))
    (out,) = fd.execute([np.arange(6, dtype=np.float32), 0.5, (2, 3)])
    assert out.tolist() == [[0, 0.5, 1], [1.5, 2, 2.5]]
    (out,) = fd.execute([np.arange(6, dtype=np.float32), 2, (3, 2)])
    assert out.tolist() == [[0, 2], [4, 6], [8, 10]]


@pytest.mark.benchmark
def test_first_result_of_a_new_fusion_takes_less_than_three_seconds(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    fd = definition(lambda fd, x, y: fd.ops.sub(y, fd.ops.sum(x, dims=[1], keepdim=True)), (-1, -1), (-1, -1))
    x = np.ones((33, 65), np.float32)
    start = time.perf_counter()
    (out,) = fd.execute([x, x])
    assert time.perf_counter() - start < allowed(3)
    assert (out == -64).all()


def test_rounding_leaves_integers_alone():
    fd = definition(
        lambda fd, x: tuple(getattr(fd.ops, op)(x) for op in ("round", "ceil", "floor", "trunc", "frac")),
        (-1,), dtype=DataType.Int,
    )
    x = np.array([2**53 + 1, -(2**62) - 1, 7], np.int64)
    for results in (fd.execute([x]), fd.reference([x])):
        assert [r.tolist() for r in results] == [x.tolist()] * 4 + [[0, 0, 0]]


def test_an_output_named_twice_is_returned_twice():
    fd = definition(lambda fd, x: (y := fd.ops.exp(x), y, x, x), (-1, 4))
    outputs = fd.execute([A])
    assert [out.tolist() for out in outputs] == [np.exp(A).tolist()] * 2 + [A.tolist()] * 2
    assert not any(np.shares_memory(out, A) for out in outputs[:2])
    assert all(np.shares_memory(a, A) for a in outputs[2:])


def test_large_integer_scalars_keep_every_bit():
    with FusionDefinition() as fd:
        x, n = fd.define_tensor([-1], dtype=DataType.Int), fd.define_scalar(None, DataType.Int)
        fd.add_output(fd.ops.add(x, n))
    x = np.array([0, 1], np.int64)
    for results in (fd.execute([x, 2**60 + 1]), fd.reference([x, 2**60 + 1])):
        assert results[0].tolist() == [2**60 + 1, 2**60 + 2]
    with pytest.raises(InputError, match="9223372036854775808 is outside the range of int64_t"):
        fd.execute([x, 2**63])


def test_a_floating_scalar_that_is_too_large():
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.mul(fd.define_tensor([-1]), fd.define_scalar(None, DataType.Double)))
    plan = fl.segment(fd, [A[0], 1.0])
    for run in (fd.execute, plan.run, plan.prepare().run):
        with pytest.raises(InputError, match="an int of 1329 bits is outside the range of double"):
            run([A[0], 10**400])


def test_integer_scalars_take_no_fractions():
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.mul(fd.define_tensor([-1]), fd.define_scalar(None, DataType.Int)))
    plan = fl.segment(fd, [A[0], 1])
    for run in (fd.execute, plan.run):
        with pytest.raises(InputError, match="Scalar value 2.5 is not compatible with the expected data type: int64_t"):
            run([A[0], 2.5])


OVERLAPS = {
    "ahead": lambda v: ([v[1:-1], v[:-2]], v[2:]),
    "behind": lambda v: ([v[1:-1], v[2:]], v[:-2]),
    "same": lambda v: ([v[1:-1], v[:-2]], v[1:-1]),
    "reversed": lambda v: ([v[1:-1], v[:-2]], v[1:-1][::-1]),
}


@pytest.mark.parametrize(
    ("library", "kind"),
    [("numpy", kind) for kind in OVERLAPS] + [("torch", kind) for kind in OVERLAPS if kind != "reversed"],
)
def test_outputs_may_lie_over_inputs(library, kind):
    fd = definition(lambda fd, x, y: fd.ops.add(x, y), (-1,), (-1,))
    v = np.arange(1002, dtype=np.float32)
    if library == "torch":
        torch = needs("torch")
        v = torch.from_numpy(v)
    inputs, out = OVERLAPS[kind](v)
    wanted = np.asarray(inputs[0]) + np.asarray(inputs[1])
    fl.segment(fd, inputs).run(inputs, [out])
    np.testing.assert_array_equal(np.asarray(out), wanted)


def test_a_reduction_may_be_written_over_its_input():
    fd = definition(lambda fd, x: fd.ops.sum(x, dims=[0]), (-1, -1))
    x = np.random.default_rng(3).standard_normal((40, 300), dtype=np.float32)
    wanted = x.sum(0)
    fl.segment(fd, [x]).run([x], [x[3]])
    np.testing.assert_allclose(x[3], wanted, rtol=1e-4, atol=1e-4)


def test_outputs_that_are_inputs_are_read_before_anything_is_written():
    fd = definition(lambda fd, x: (fd.ops.neg(x), x), (-1,))
    v = np.arange(6, dtype=np.float32)
    other = np.empty(5, np.float32)
    fl.segment(fd, [v[1:]]).run([v[1:]], [v[:-1], other])
    assert v[:-1].tolist() == [-1, -2, -3, -4, -5]
    assert other.tolist() == [1, 2, 3, 4, 5]


def test_outputs_share_no_memory_with_each_other():
    fd = definition(lambda fd, x: (fd.ops.neg(x), fd.ops.exp(x)), (-1,))
    x = np.zeros(4, np.float32)
    plan, v = fl.segment(fd, [x]), np.empty(8, np.float32)
    for out in ([v[:4], v[:4]], [v[:4], v[3:7]]):
        with pytest.raises(InputError, match="out for T1 and out for T2 share memory"):
            plan.run([x], out)
    plan.run([x], [v[::2], v[1::2]])
    assert v.tolist() == [0, 1] * 4
    with pytest.raises(ArgumentTypeError, match="run: out must be a list of arrays or None, given "):
        plan.run([x], v)
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True)
        fd.add_output(fd.ops.add(x, 1.0), x)
        fd.add_output(fd.ops.mul(x, 2.0))
    with pytest.raises(InputError, match="T0 and out for T2 share memory"):
        fl.segment(fd, [v]).run([v], [v])


WITHIN = {
    "expanded": lambda v: (np.lib.stride_tricks.as_strided(v, (64, 100), (0, 4)), True),
    "one row expanded": lambda v: (np.lib.stride_tricks.as_strided(v, (64, 100), (4, 0)), True),
    "windows": lambda v: (np.lib.stride_tricks.as_strided(v, (64, 100), (200, 4)), True),
    "crossing": lambda v: (np.lib.stride_tricks.as_strided(v, (64, 100), (12, 8)), True),
    "parts of elements": lambda v: (np.lib.stride_tricks.as_strided(v, (64, 100), (400, 3)), True),
    "backwards": lambda v: (np.lib.stride_tricks.as_strided(v[9000:], (64, 100), (-200, 4)), True),
    "every other": lambda v: (v[:12800].reshape(64, 200)[:, ::2], False),
    "reversed": lambda v: (v[:6400].reshape(64, 100)[::-1, ::-1], False),
    "transposed": lambda v: (v[:6400].reshape(100, 64).T, False),
    "interleaved": lambda v: (np.lib.stride_tricks.as_strided(v, (64, 100), (4 * 101, 4 * 64)), False),
}


@pytest.mark.parametrize("kind", WITHIN)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_an_output_shares_no_memory_with_itself(kind, library):
    fd = definition(lambda fd, x: fd.ops.exp(x), (-1, -1))
    x = np.random.default_rng(4).standard_normal((64, 100), dtype=np.float32)
    out, overlaps = WITHIN[kind](np.zeros(20000, np.float32))
    plan, places = fl.segment(fd, [x]), [step // 4 for step in out.strides]
    offsets = np.add.outer(np.arange(64) * out.strides[0], np.arange(100) * out.strides[1])
    assert (np.diff(np.sort(offsets.ravel())).min() < 4) == overlaps, "what the example claims"
    if library == "torch":
        torch = needs("torch")
        if any(step % 4 or step < 0 for step in out.strides):
            return
        x, out = torch.from_numpy(x), torch.zeros(20000).as_strided((64, 100), places)
    if overlaps:
        with pytest.raises(InputError, match="elements that share memory; a run writes to them"):
            plan.run([x], [out])
    else:
        plan.run([x], [out])
        np.testing.assert_allclose(np.asarray(out), np.exp(np.asarray(x)), rtol=1e-5)


def test_an_expanded_input_is_not_written_over():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.add(x, 1.0), x)
    x = np.lib.stride_tricks.as_strided(np.zeros(5, np.float32), (3, 5), (0, 4))
    with pytest.raises(InputError, match="T0 has elements that share memory"):
        fl.segment(fd, [np.zeros((3, 5), np.float32)]).run([x])


def test_an_unaligned_output():
    fd = definition(lambda fd, x: fd.ops.neg(x), (-1,))
    out = np.zeros(17, np.uint8)[1:].view(np.float32)
    assert not out.flags.aligned
    fl.segment(fd, [A[0]]).run([A[0] + 1], [out])
    assert out.tolist() == [-1] * 4


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_subclasses_of_arrays():
    matrix = np.asmatrix(A + 2)
    check(two(), [matrix, A + 1])
    (out,) = two().execute([matrix, matrix])
    assert type(out) is np.ndarray
    given = np.asmatrix(np.zeros((3, 4), np.float32))
    fl.segment(two(), [A, A]).run([A, matrix], [given])
    assert (np.asarray(given) == 2).all()
    check(definition(lambda fd, x: fd.ops.matmul(x, x), (-1, -1)), [np.asmatrix(np.ones((3, 3), np.float32))])
    masked = np.ma.masked_array(A, A == 0)
    for run in (two().execute, two().reference, fl.segment(two(), [A, A]).run):
        with pytest.raises(InputError, match="a masked array cannot be an input"):
            run([A, masked])
    with pytest.raises(InputError, match="a masked array cannot be an input"):
        fl.segment(two(), [A, A]).run([A, A], [masked])

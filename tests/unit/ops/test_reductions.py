"""Reductions: overloads, dtypes, broadcast and expanded axes, empty axes."""

import numpy as np
import pytest

from fuser_lab import FusionDefinition
from fuser_lab.api.functions import segment
from fuser_lab.dtypes import DataType
from fuser_lab.errors import InputError
from tests.agreement import lock_step


def recorded(call, shape=(3, 4), dtype=DataType.Float, flags=True):
    """The fusion of one call on one input, as (names of ops, output)."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(list(shape), flags, dtype)
        fd.add_output(call(fd, x))
    return [e.op.name for e in fd.fusion.exprs], fd.fusion.outputs[0], fd


OVERLOADS = {
    "all axes": lambda ops, x: ops.sum(x),
    "all axes, dtype": lambda ops, x: ops.sum(x, DataType.Double),
    "dtype by name": lambda ops, x: ops.sum(x, dtype=DataType.Double),
    "int": lambda ops, x: ops.sum(x, -1),
    "int by name": lambda ops, x: ops.sum(x, dim=-1),
    "int, all positional": lambda ops, x: ops.sum(x, 1, False, DataType.Double),
    "list": lambda ops, x: ops.sum(x, [-1], False, DataType.Double),
    "list by name": lambda ops, x: ops.sum(x, dims=[0, 1], keepdim=True),
}


@pytest.mark.parametrize("call", OVERLOADS.values(), ids=OVERLOADS)
def test_overloads(call):
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    _, output, fd = recorded(lambda fd, x: call(fd.ops, x))
    (got,) = fd.execute([data])
    wanted = {(): data.sum(), (3,): data.sum(1), (1, 1): data.sum(keepdims=True)}[got.shape]
    np.testing.assert_array_equal(got, wanted)
    assert output.dtype.numpy == got.dtype


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (DataType.Bool, DataType.Int), (DataType.Int32, DataType.Int), (DataType.Int, DataType.Int),
        (DataType.Half, DataType.Half), (DataType.BFloat16, DataType.BFloat16), (DataType.Double, DataType.Double),
        (DataType.ComplexFloat, DataType.ComplexFloat),
    ],
)
def test_dtypes(given, wanted):
    for name in ("sum", "prod"):
        _, output, _ = recorded(lambda fd, x, name=name: getattr(fd.ops, name)(x, [1]), dtype=given)
        assert output.dtype is wanted
    if not given.is_complex:
        _, output, _ = recorded(lambda fd, x: fd.ops.max(x, [1]), dtype=given)
        assert output.dtype is given


def test_keepdim_is_a_broadcast_of_its_own():
    names, _, fd = recorded(lambda fd, x: fd.ops.sum(x, [0], True))
    assert names == ["sum", "broadcast"]
    assert "keepdim" not in repr(fd)


def test_a_broadcast_axis_is_squeezed_and_not_reduced():
    assert recorded(lambda fd, x: fd.ops.sum(x, [0]), (1, 4))[0] == ["squeeze"]
    assert recorded(lambda fd, x: fd.ops.max(x, [0, 1]), (1, 4))[0] == ["squeeze", "max"]
    assert recorded(lambda fd, x: fd.ops.sum(x, [0]), ())[0] == ["set"]


@pytest.mark.parametrize("dtype", [DataType.Float, DataType.Half, DataType.Int])
def test_expanded_axes_count_as_often_as_they_repeat(dtype):
    row = np.array([[1, 2, -1, 3]]).astype(dtype.numpy)
    data = np.broadcast_to(row, (5, 4))
    for name, fold in (("sum", np.sum), ("prod", np.prod), ("max", np.max), ("min", np.min)):
        for dims in ([0], [0, 1]):
            names, _, fd = recorded(
                lambda fd, x, name=name, dims=dims: getattr(fd.ops, name)(x, dims), (5, 4), dtype, [None, True],
            )
            assert "squeeze" in names
            assert (name in names) == (1 in dims)
            (got,) = fd.execute([data])
            np.testing.assert_array_equal(got, fold(data, axis=tuple(dims)).astype(got.dtype))


def test_an_expanded_axis_of_unknown_size():
    with FusionDefinition() as fd:
        x, size = fd.define_tensor([1, -1], [None, True]), fd.define_scalar(DataType.Int)
        fd.add_output(fd.ops.sum(fd.ops.expand(x, [size, -1]), [0, 1]))
    (got,) = fd.execute([np.array([[1.5, 2, 3]], np.float32), 7])
    assert got == 6.5 * 7


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("sum", 0.0), ("prod", 1.0), ("max", -np.inf), ("min", np.inf)],
)
def test_nothing_to_reduce_is_full_of_the_identity(name, wanted):
    names, _, fd = recorded(lambda fd, x: getattr(fd.ops, name)(x, [1]), (3, 0))
    assert names == ["full"]
    np.testing.assert_array_equal(fd.execute([np.zeros((3, 0), np.float32)])[0], np.full(3, wanted))
    # The same if the size is known only with the inputs.
    _, _, fd = recorded(lambda fd, x: getattr(fd.ops, name)(x, [1]), (-1, -1))
    np.testing.assert_array_equal(fd.execute([np.zeros((3, 0), np.float32)])[0], np.full(3, wanted))


@pytest.mark.parametrize(("name", "wanted"), [("sum", 0.0), ("prod", 1.0), ("max", -np.inf), ("var", np.nan)])
def test_nothing_to_reduce_has_the_size_that_inputs_decide(name, wanted):
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([-1, -1]), fd.define_tensor([-1, 0])
        fd.add_output(getattr(fd.ops, name)(fd.ops.add(a, b), dims=[1]))
    for rows in (1, 31):
        inputs = [np.zeros((rows, 0), np.float32), np.zeros((31, 0), np.float32)]
        for (got,) in (fd.reference(inputs), fd.execute(inputs)):
            np.testing.assert_array_equal(got, np.full(31, wanted, np.float32))
    with pytest.raises(InputError, match="these inputs do not fit the fusion at T2"):
        fd.execute([np.zeros((7, 0), np.float32), np.zeros((31, 0), np.float32)])


def test_nan_propagates():
    data = np.array([[1, np.nan, 3], [4, 5, 6]], np.float32)
    for name in ("max", "min"):
        _, _, fd = recorded(lambda fd, x, name=name: getattr(fd.ops, name)(x, [1]), (2, 3))
        (got,) = fd.execute([data])
        assert np.isnan(got[0])
        assert got[1] == (6 if name == "max" else 4)


def test_complex_kernels():
    data = (np.arange(600).reshape(20, 30) % 7 + 1j).astype(np.complex64)
    for name, fold in (("sum", np.sum), ("prod", np.prod)):
        for axis in (0, 1):
            call = lambda fd, x, n=name, a=axis: getattr(fd.ops, n)(x, [a])  # noqa: E731 - recorded once
            _, _, fd = recorded(call, (20, 30), DataType.ComplexFloat)
            np.testing.assert_allclose(fd.execute([data])[0], fold(data, axis=axis), rtol=1e-4)


def test_segments_squeeze_instead_of_reducing():
    _, _, fd = recorded(lambda fd, x: fd.ops.neg(fd.ops.sum(x, [0])), (1, 64))
    plan = segment(fd, [np.ones((1, 64), np.float32)])
    assert len(plan.segments) == 1
    assert plan.segments[0].scheduler.value == "pointwise"


@pytest.mark.parametrize("dtype", [DataType.Float, DataType.BFloat16, DataType.Int32, DataType.Bool])
@pytest.mark.parametrize(("op", "known"), [("max", 0), ("min", 0), ("sum", 0), ("prod", 1)])
@pytest.mark.parametrize("declared", [[-1, -1, -1], [3, 2, 0]])
@pytest.mark.parametrize("dims", [[2], [1, 2], None])
def test_axes_expanded_to_nothing(op, known, dtype, declared, dims):
    # There is no element to repeat: the memory is empty.
    with FusionDefinition() as fd:
        x = fd.define_tensor(declared, [None, False, None], dtype)
        fd.add_output(getattr(fd.ops, op)(x, dims) if dims else getattr(fd.ops, op)(x))
    inputs = [np.broadcast_to(np.zeros((1, 2, 1), dtype.numpy), (3, 2, 1))[:, :, :0]]
    if op in {"max", "min"}:
        sign = -1 if op == "max" else 1
        ends = {DataType.Bool: (False, True), DataType.Int32: (-(2**31), 2**31 - 1)}.get(dtype, (-np.inf, np.inf))
        known = ends[sign > 0]
    plan = segment(fd, inputs)
    for found in (fd.reference(inputs)[0], lock_step(plan, inputs, "cpu")[0]):
        assert found.shape == (3, 2)[: 3 - len(dims or (0, 1, 2))]
        assert (np.asarray(found).astype(np.float64) == known).all()


@pytest.mark.parametrize("declared", [[0, -1], [-1, 3], [-1, -1]])
@pytest.mark.parametrize(("op", "known"), [("max", -np.inf), ("min", np.inf), ("sum", 0), ("prod", 1)])
def test_no_elements_of_an_expanded_axis_beside_a_symbolic_size(op, known, declared):
    with FusionDefinition() as fd:
        x = fd.define_tensor(declared, [None, False], DataType.Float)
        fd.add_output(getattr(fd.ops, op)(x, [0]))
    inputs = [np.zeros((0, 3), np.float32)]
    for found in (fd.reference(inputs)[0], lock_step(segment(fd, inputs), inputs, "cpu")[0]):
        assert found.tolist() == [known] * 3


@pytest.mark.parametrize("declared", [[-1, 2], [-1, -1], [0, -1]])
@pytest.mark.parametrize("dims", [[0], [0, 1]])
def test_the_mean_of_no_elements_of_an_expanded_axis_is_not_a_number(dims, declared):
    with FusionDefinition() as fd:
        x = fd.define_tensor(declared, [None, False], DataType.Float)
        for result in (*fd.ops.welford(x, dims), *fd.ops.var_mean(x, dims, 0)):
            fd.add_output(result)
    inputs = [np.zeros((0, 2), np.float32)]
    for found in (fd.reference(inputs), lock_step(segment(fd, inputs), inputs, "cpu")):
        mean, square, count, variance, same = (np.unique(x) for x in found)
        assert np.isnan([mean, variance, same]).all()
        assert square.tolist() == count.tolist() == [0]


@pytest.mark.parametrize("dtype", [DataType.Char, DataType.Byte, DataType.Short])
@pytest.mark.parametrize("op", ["min", "max"])
def test_extremes_of_no_small_integers_are_limits_of_their_type(op, dtype):
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True, DataType.Float)
        fd.add_output(getattr(fd.ops, op)(fd.ops.cast(x, dtype), [0]))
    nothing = [np.zeros((0, 2), np.float32)]
    limit = dtype.limits[op == "min"]
    for got in (fd.reference(nothing)[0], fd.execute(nothing)[0]):
        assert got.tolist() == [limit, limit]

"""Scalars follow the rules of tensors: division by zero, dtypes, and conversion of floats to integers."""

import numpy as np
import pytest

from fuser_lab.api.functions import FusionDefinition, segment
from fuser_lab.definition.handles import Tensor
from fuser_lab.dtypes import DataType
from fuser_lab.errors import InputError
from tests.agreement import TARGETS, lock_step

D = DataType
LOWEST = -(2**31)
DIVISIONS = {
    ("div", 7, 0): 0, ("mod", 7, 0): 0, ("fmod", -7, 0): 0, ("remainder", 7, 0): 0,
    ("div", -7, 2): -3, ("mod", -7, 2): -1, ("remainder", -7, 2): 1,
    ("div", LOWEST, -1): LOWEST, ("mod", LOWEST, -1): 0, ("remainder", LOWEST, -1): 0,
    ("pow", 0, -1): 0, ("pow", 2, -1): 0, ("pow", -1, -3): -1, ("pow", 2, 40): 0, ("pow", 0, 0): 1,
}  # fmt: skip


def results(fd, inputs):
    """The results of the reference and of the kernels for both targets."""
    plan = segment(fd, inputs)
    ways = [fd.reference(inputs), *(lock_step(plan, inputs, target) for target in TARGETS)]
    return [np.asarray(x) for way in ways for x in way]


@pytest.mark.parametrize(("op", "a", "b"), DIVISIONS, ids=str)
def test_integers_divide_alike_as_constants_scalars_and_tensors(op, a, b):
    wanted = DIVISIONS[op, a, b]
    with FusionDefinition() as fd:
        scalars = [fd.define_scalar(None, D.Int32) for _ in range(2)]
        tensors = [fd.define_tensor([], dtype=D.Int32) for _ in range(2)]
        rows = [fd.define_tensor([2], dtype=D.Int32) for _ in range(2)]
        constants = [fd.define_scalar(x, D.Int32) for x in (a, b)]
        for pair in (constants, scalars):
            fd.add_output(fd.ops.full([2], getattr(fd.ops, op)(*pair), D.Int32))
        for pair in (tensors, rows):
            fd.add_output(getattr(fd.ops, op)(*pair))
    inputs = [a, b, *(np.array(x, np.int32) for x in (a, b)), *(np.full(2, x, np.int32) for x in (a, b))]
    for got in results(fd, inputs):
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", [D.Double, D.Float, D.Half], ids=lambda d: d.name)
@pytest.mark.parametrize(("a", "b"), [(1.0, 0.0), (1, 0), (-1, 0), (0, 0), (0.1, 3)])
def test_numbers_count_in_the_dtype_of_the_scalar_that_they_are_given_for(dtype, a, b):
    with FusionDefinition() as fd:
        scalars = [fd.define_scalar(None, dtype) for _ in range(2)]
        tensors = [fd.define_tensor([], dtype=dtype) for _ in range(2)]
        for x, y in (scalars, tensors):
            for value in (fd.ops.div(x, y), fd.ops.remainder(x, y), fd.ops.reciprocal(y), fd.ops.add(x, y)):
                tensor = value if isinstance(value, Tensor) else fd.ops.full([], value, value.dtype)
                fd.add_output(fd.ops.cast(tensor, D.Double))
    arrays = [np.asarray(x, np.float64).astype(dtype.numpy) for x in (a, b)]
    got = results(fd, [a, b, *arrays])
    for start in range(0, len(got), 8):
        np.testing.assert_allclose(got[start : start + 4], got[start + 4 : start + 8], rtol=1e-6)
        np.testing.assert_allclose(got[start : start + 8], got[:8], rtol=1e-6)


def test_numbers_given_for_scalars_of_16_bits_are_rounded_to_them():
    with FusionDefinition() as fd:
        x, s = fd.define_tensor([2]), fd.define_scalar(None, D.Half)
        fd.add_output(fd.ops.add(x, s))
    inputs = [np.zeros(2, np.float32), 0.1]
    for got in (*results(fd, inputs), *fd.execute(inputs)):
        np.testing.assert_array_equal(got, np.float32(np.float16(0.1)))


@pytest.mark.parametrize("dtype", [D.Float, D.Double, D.Half], ids=lambda d: d.name)
def test_a_scalar_computed_in_floating_point_is_a_size_once_it_is_an_integer(dtype):
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        half = fd.ops.cast(fd.ops.truediv(fd.ops.size(x, 0), 2), D.Int)
        given = fd.ops.cast(fd.ops.sqrt(fd.define_scalar(None, dtype)), D.Int32)
        y = fd.ops.reshape(x, [half, given, -1])
        fd.add_output(fd.ops.add(y, fd.ops.full([half, given, 1], 1.0, D.Float)))
        fd.add_output(fd.ops.iota(given))
    inputs = [np.arange(12, dtype=np.float32).reshape(4, 3), 9.5]
    wanted = [inputs[0].reshape(2, 3, 2) + 1, np.arange(3)]
    for position, got in enumerate(results(fd, inputs)):
        np.testing.assert_array_equal(got, wanted[position % 2])


def test_a_size_that_is_not_a_number_is_refused_in_one_sentence():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        size = fd.ops.cast(fd.ops.truediv(0, fd.define_scalar(None, D.Int)), D.Int)
        fd.add_output(fd.ops.reshape(x, [size]))
    with pytest.raises(InputError, match=r"reshape: new_shape is \[-9223372036854775808\]"):
        fd.execute([np.ones(4, np.float32), 0])

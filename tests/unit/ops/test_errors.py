"""Illegal definitions, and wrong types of ops' arguments: the exception's class, and a sentence that names them.

The illegal calls of each op are in misuses.py (test_misuses.py).
"""

import re

import pytest

from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError, DefinitionError, FuserLabError, StateError, UnsupportedError

CALLS = [
    (lambda fd, x, y: fd.ops.add(x, None), ArgumentTypeError, "add: rhs is None"),
    (lambda fd, x, y: fd.ops.scaled_mm(x, y), UnsupportedError, "scaled_mm"),
    (lambda fd, x, y: fd.define_tensor([-2]), DefinitionError, "the value -2 at index 0 was neither symbolic(-1)"),
    (lambda fd, x, y: fd.define_tensor([2], [True, True]), DefinitionError, "contiguity has 2 entries"),
    (lambda fd, x, y: fd.define_tensor([1], [True]), DefinitionError, "None exactly on broadcast axes"),
    (lambda fd, x, y: fd.define_tensor([2], dtype="f"), ArgumentTypeError, "dtype must be a DataType"),
    (lambda fd, x, y: fd.define_tensor([2, 2], stride_order=[0, 0]), DefinitionError, "is not a permutation"),
    (lambda fd, x, y: fd.define_tensor(sizes=[2], strides=[-1]), DefinitionError, "has a negative entry"),
    (lambda fd, x, y: fd.add_output(3.0), ArgumentTypeError, "add_output: output must be a tensor"),
    (lambda fd, x, y: fd.add_output(x, fd.ops.neg(x)), DefinitionError, "is not an input of the fusion"),
    (lambda fd, x, y: fd.add_output(x, stride_order="a"), ArgumentTypeError, "stride_order must be a list of ints"),
    (lambda fd, x, y: fd.define_tensor(shape=5), ArgumentTypeError, "shape must be a list of ints, given 5"),
    (lambda fd, x, y: fd.define_tensor("ab"), ArgumentTypeError, "shape must be a list of ints, given 'ab'"),
    (lambda fd, x, y: fd.define_tensor([2.0]), ArgumentTypeError, "shape[0] must be an int, given 2.0"),
    (lambda fd, x, y: fd.define_tensor([True]), ArgumentTypeError, "shape[0] must be an int, given True"),
    (lambda fd, x, y: fd.define_tensor([2], contiguity=1), ArgumentTypeError, "contiguity must be a list of True"),
    (lambda fd, x, y: fd.define_tensor([2], contiguity=["a"]), ArgumentTypeError, "contiguity[0] must be one of"),
    (lambda fd, x, y: fd.define_tensor([2], stride_order=5), ArgumentTypeError, "stride_order must be a list of ints"),
    (lambda fd, x, y: fd.define_tensor(sizes="a", strides="b"), ArgumentTypeError, "sizes must be a list of ints"),
    (lambda fd, x, y: fd.define_tensor(sizes=[2], strides="b"), ArgumentTypeError, "strides must be a list of ints"),
    (lambda fd, x, y: fd.define_tensor(sizes=[-2], strides=[1]), DefinitionError, "sizes=[-2] has a negative entry"),
    (lambda fd, x, y: fd.define_tensor([2], dtype=DataType.Null), DefinitionError, "dtype is DataType.Null"),
    (lambda fd, x, y: fd.define_scalar(None, "x"), ArgumentTypeError, "define_scalar: dtype must be a DataType"),
    (lambda fd, x, y: fd.define_scalar("x"), ArgumentTypeError, "define_scalar: value must be a number, given 'x'"),
    (lambda fd, x, y: fd.define_scalar(2**63), DefinitionError, "define_scalar: value is 9223372036854775808, outside"),
    (lambda fd, x, y: fd.define_scalar(-1, DataType.UInt64), DefinitionError, "value is -1, outside DataType.UInt64"),
    (
        lambda fd, x, y: fd.define_vector("a"), ArgumentTypeError,
        "define_vector: size must be an int, or a list of ints and integer scalars, given 'a'",
    ),
    (lambda fd, x, y: fd.define_vector(2, DataType.Int32), ArgumentTypeError, "dtype must be DataType.Int"),
    (
        lambda fd, x, y: fd.define_vector(-1), DefinitionError,
        "define_vector: size must be a whole number from 0 to 65,536, given -1",
    ),
    (lambda fd, x, y: fd.ops.sum(x, dims=[0.5]), ArgumentTypeError, "sum: dims must be an int, given 0.5"),
    (lambda fd, x, y: fd.ops.permute(x, "ab"), ArgumentTypeError, "permute: dims must be a list of ints, given 'ab'"),
    (lambda fd, x, y: fd.ops.permute(x, None), ArgumentTypeError, "permute: dims must be a list of ints, given None"),
    (lambda fd, x, y: fd.ops.squeeze(x, "a"), ArgumentTypeError, "squeeze: dims must be a list of ints, given 'a'"),
    (lambda fd, x, y: fd.ops.broadcast(x, 3), ArgumentTypeError, "is_broadcast_dim must be a list of True and False"),
    (lambda fd, x, y: fd.ops.broadcast(x, "abc"), ArgumentTypeError, "is_broadcast_dim must be a list of True"),
    (
        lambda fd, x, y: fd.ops.broadcast_in_dim(x, [3, 4], ["a"]),
        ArgumentTypeError, "broadcast_in_dim: broadcast_dims must be an int, given 'a'",
    ),
    (lambda fd, x, y: fd.ops.full([2], float("inf"), DataType.Int), DefinitionError, "full: fill_value is inf"),
    (lambda fd, x, y: fd.ops.iota(4, dtype=3), ArgumentTypeError, "iota: dtype must be a DataType, given 3"),
    (lambda fd, x, y: fd.ops.add(x, 10**6000), DefinitionError, "add: rhs is an int of 19932 bits, outside"),
    (lambda fd, x, y: fd.ops.reshape(x, [2**70]), DefinitionError, "new_shape[0] is 1180591620717411303424, outside"),
]


@pytest.mark.parametrize(("call", "error", "text"), CALLS, ids=[text for *_, text in CALLS])
def test_illegal_calls(call, error, text):
    with FusionBuilder() as fd:
        x = fd.define_tensor([3, 4], contiguity=True)
        y = fd.define_tensor([3, 5], contiguity=True)
        with pytest.raises(error, match=re.escape(text)) as raised:
            call(fd, x, y)
    assert isinstance(raised.value, FuserLabError)
    assert "\n" not in str(raised.value)


def test_values_of_another_definition_are_refused():
    with FusionBuilder() as other:
        stranger = other.define_tensor([3])
    with FusionBuilder() as fd, pytest.raises(DefinitionError, match="belongs to another definition"):
        fd.ops.neg(stranger)


def test_ops_belong_inside_the_with_block():
    fd = FusionBuilder()
    with pytest.raises(StateError, match="which is not open"):
        fd.define_tensor([3])
    with fd:
        x = fd.define_tensor([3])
    with pytest.raises(StateError, match="which is not open"):
        fd.ops.neg(x)
    with pytest.raises(StateError, match="already been opened"), fd:
        pass

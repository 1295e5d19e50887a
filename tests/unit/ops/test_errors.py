"""Illegal calls of ops: the exception's class and a sentence that names op, argument and value."""

import re

import pytest

from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError, DefinitionError, FuserLabError, StateError, UnsupportedError

CALLS = [
    (lambda fd, x, y: fd.ops.add(x), ArgumentTypeError, "add(lhs, rhs, /): missing a required argument: 'rhs'"),
    (lambda fd, x, y: fd.ops.add(lhs=x, rhs=x), ArgumentTypeError, "add(lhs, rhs, /)"),
    (lambda fd, x, y: fd.ops.add(x, "a"), ArgumentTypeError, "add: rhs must be a tensor, scalar or number, given str"),
    (lambda fd, x, y: fd.ops.add(x, None), ArgumentTypeError, "add: rhs is None"),
    (lambda fd, x, y: fd.ops.add(x, y), DefinitionError, "add: operands have sizes 4 and 5 on axis 1"),
    (lambda fd, x, y: fd.ops.bitwise_and(x, x), DefinitionError, "bitwise_and: integer or boolean input is required"),
    (lambda fd, x, y: fd.ops.where(x, x, x), DefinitionError, "where: condition should be of DataType.Bool"),
    (lambda fd, x, y: fd.ops.cast(x, "float"), ArgumentTypeError, "cast: dtype must be a DataType, given 'float'"),
    (lambda fd, x, y: fd.ops.sum(x, [2]), DefinitionError, "sum: dims=2 is outside [-2, 2)"),
    (lambda fd, x, y: fd.ops.sum(x, [0, -2]), DefinitionError, "sum: dims=[0, -2] names an axis twice"),
    (lambda fd, x, y: fd.ops.sum(x, []), DefinitionError, "sum: dims is empty"),
    (lambda fd, x, y: fd.ops.max(x, [0], dtype=DataType.Float), DefinitionError, "max: dtype must be left out"),
    (lambda fd, x, y: fd.ops.var_mean(x), ArgumentTypeError, "missing a required argument: 'dims'"),
    (lambda fd, x, y: fd.ops.var(x, [0], correction=-1), DefinitionError, "var: correction is -1"),
    (lambda fd, x, y: fd.ops.broadcast(x, [True, False]), DefinitionError, "broadcast: is_broadcast_dim="),
    (lambda fd, x, y: fd.ops.squeeze(x, [0]), DefinitionError, "squeeze: axis 0 has size 3"),
    (lambda fd, x, y: fd.ops.expand(x, [3, 8]), DefinitionError, "expand: invalid expand size 8 for axis 1"),
    (lambda fd, x, y: fd.ops.expand(x, [3]), DefinitionError, "expand: shape has 1 entries"),
    (lambda fd, x, y: fd.ops.permute(x, [0]), DefinitionError, "permute: dims=[0] has 1 entries"),
    (lambda fd, x, y: fd.ops.permute(x, [0, 0]), DefinitionError, "permute: dims=[0, 0] names an axis twice"),
    (lambda fd, x, y: fd.ops.reshape(x, [-1, -1]), DefinitionError, "reshape: a maximum of one value of -1"),
    (lambda fd, x, y: fd.ops.reshape(x, [5, 5]), DefinitionError, "reshape: total element counts must match"),
    (lambda fd, x, y: fd.ops.reshape(x, 12), ArgumentTypeError, "reshape: new_shape must be a list"),
    (lambda fd, x, y: fd.ops.slice(x, [0], [1]), DefinitionError, "slice: start_indices has 1 entries"),
    (lambda fd, x, y: fd.ops.slice(x, [2, 0], [1, 1]), DefinitionError, "slice: axis 0 has bounds [2, 1)"),
    (lambda fd, x, y: fd.ops.slice(x, [0, 0], [1, 1], [2, 1]), DefinitionError, "nvFuser Limitation: strides are all 1, given 2 for axis 0"),
    (lambda fd, x, y: fd.ops.pad(x, [1]), DefinitionError, "pad: pad_widths has 1 entries"),
    (lambda fd, x, y: fd.ops.pad(x, [-3, -3]), DefinitionError, "pad: axis 1 of size 4 cannot be padded by (-3, -3)"),
    (lambda fd, x, y: fd.ops.cat([]), DefinitionError, "cat: tensors is empty"),
    (lambda fd, x, y: fd.ops.cat([x, y]), DefinitionError, "cat: sizes 4 and 5 differ on axis 1"),
    (lambda fd, x, y: fd.ops.cat([x, fd.ops.sum(y, [0])]), DefinitionError, "cat: tensors have 2 and 1 axes"),
    (lambda fd, x, y: fd.ops.cat([x, fd.ops.lt(x, 1)]), DefinitionError, "can't concatenate tensors with different"),
    (lambda fd, x, y: fd.ops.cat(x), ArgumentTypeError, "cat: tensors must be a list of tensors"),
    (lambda fd, x, y: fd.ops.iota(4, step=0), DefinitionError, "iota: step is 0"),
    (lambda fd, x, y: fd.ops.full([-2], 0, DataType.Float), DefinitionError, "full: shape has the entry -2"),
    (lambda fd, x, y: fd.ops.uniform(0, 1, [4], rng_seed=fd.define_scalar(1)), DefinitionError, "uniform: rng_seed and"),
    (lambda fd, x, y: fd.ops.matmul(x, y), DefinitionError, "matmul: contracted sizes 4 and 3 differ"),
    (lambda fd, x, y: fd.ops.linear(x, y), DefinitionError, "linear: contracted sizes 4 and 5 differ"),
    (lambda fd, x, y: fd.ops.scaled_mm(x, y), UnsupportedError, "scaled_mm"),
    (lambda fd, x, y: fd.define_tensor([-2]), DefinitionError, "the value -2 at index 0 was neither symbolic(-1)"),
    (lambda fd, x, y: fd.define_tensor([2], [True, True]), DefinitionError, "contiguity has 2 entries"),
    (lambda fd, x, y: fd.define_tensor([1], [True]), DefinitionError, "None exactly on broadcast axes"),
    (lambda fd, x, y: fd.define_tensor([2], dtype="f"), ArgumentTypeError, "dtype must be a DataType"),
    (lambda fd, x, y: fd.define_tensor([2, 2], stride_order=[0, 0]), DefinitionError, "is no permutation"),
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
    (lambda fd, x, y: fd.define_vector("a"), ArgumentTypeError, "define_vector: size must be an int, given 'a'"),
    (lambda fd, x, y: fd.define_vector(-1), DefinitionError, "define_vector: size is -1"),
    (lambda fd, x, y: fd.ops.sum(x, dims="a"), ArgumentTypeError, "sum: dims must be a list of ints, given 'a'"),
    (lambda fd, x, y: fd.ops.sum(x, dims=[0.5]), ArgumentTypeError, "sum: dims must be an int, given 0.5"),
    (lambda fd, x, y: fd.ops.sum(x, keepdim="a"), ArgumentTypeError, "sum: keepdim must be True or False, given 'a'"),
    (lambda fd, x, y: fd.ops.sum(x, dtype="a"), ArgumentTypeError, "sum: dtype must be a DataType, given 'a'"),
    (lambda fd, x, y: fd.ops.permute(x, "ab"), ArgumentTypeError, "permute: dims must be a list of ints, given 'ab'"),
    (lambda fd, x, y: fd.ops.permute(x, None), ArgumentTypeError, "permute: dims must be a list of ints, given None"),
    (lambda fd, x, y: fd.ops.stride_order(x, 3), ArgumentTypeError, "stride_order must be a list of ints, given 3"),
    (lambda fd, x, y: fd.ops.squeeze(x, "a"), ArgumentTypeError, "squeeze: dims must be a list of ints, given 'a'"),
    (lambda fd, x, y: fd.ops.cat([x], "a"), ArgumentTypeError, "cat: dim must be an int, given 'a'"),
    (lambda fd, x, y: fd.ops.broadcast(x, 3), ArgumentTypeError, "is_broadcast_dim must be a list of True and False"),
    (lambda fd, x, y: fd.ops.broadcast(x, "abc"), ArgumentTypeError, "is_broadcast_dim must be a list of True"),
    (
        lambda fd, x, y: fd.ops.broadcast_in_dim(x, [3, 4], ["a"]),
        ArgumentTypeError, "broadcast_in_dim: broadcast_dims must be an int, given 'a'",
    ),
    (lambda fd, x, y: fd.ops.var(x, [0], correction="a"), ArgumentTypeError, "var: correction must be an int"),
    (lambda fd, x, y: fd.ops.slice(x, 1, 2), ArgumentTypeError, "slice: start_indices must be a list of ints"),
    (
        lambda fd, x, y: fd.ops.full(shape=[2], fill_value=0, dtype="float"),
        ArgumentTypeError, "full: dtype must be a DataType, given 'float'",
    ),
    (lambda fd, x, y: fd.ops.full([2], 2**40, DataType.Int32), DefinitionError, "full: fill_value is 1099511627776"),
    (lambda fd, x, y: fd.ops.full([2], float("inf"), DataType.Int), DefinitionError, "full: fill_value is inf"),
    (lambda fd, x, y: fd.ops.iota(4, dtype=3), ArgumentTypeError, "iota: dtype must be a DataType, given 3"),
    (lambda fd, x, y: fd.ops.uniform(0, 1, [4], dtype="f"), ArgumentTypeError, "uniform: dtype must be a DataType"),
    (lambda fd, x, y: fd.ops.add(x, 2**70), DefinitionError, "add: rhs is 1180591620717411303424, outside"),
    (lambda fd, x, y: fd.ops.add(x, 10**6000), DefinitionError, "add: rhs is an int of 19932 bits, outside"),
    (lambda fd, x, y: fd.ops.reshape(x, [2**70]), DefinitionError, "new_shape[0] is 1180591620717411303424, outside"),
    (lambda fd, x, y: fd.ops.silu(fd.ops.lt(x, 1)), DefinitionError, "silu: floating point input is required"),
    (
        lambda fd, x, y: fd.ops.silu(fd.ops.cast(x, DataType.Int)),
        DefinitionError, "silu: floating point input is required, given DataType.Int",
    ),
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
    with pytest.raises(StateError, match="opened already"), fd:
        pass

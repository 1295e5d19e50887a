"""Of tests/cpp/test_preseg_passes.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_preseg_passes.cpp")

FILE.known_answer(806, "repeat_as_cat", schedulers="pointwise")
FILE.known_answer(886, "repeat_two_axes", schedulers="pointwise")


def dense(fd, *shape):
    """Return a dense input of constant sizes."""
    return fd.define_tensor(list(shape), contiguity=[None if n == 1 else True for n in shape])


@FILE.asserts(846, schedulers="pointwise")
def cat_twice(fd, ops):
    x = dense(fd, 32)
    y = ops.cat([x, x], -1)
    fd.add_output(ops.cat([y, y], -1))


@FILE.asserts(934, schedulers="pointwise pointwise")
def two_equal_cats(fd, ops):
    x = dense(fd, 4, 8)
    a, b = ops.cat([x, x], 1), ops.cat([x, x], 1)
    fd.add_output(a)
    fd.add_output(b)


@FILE.asserts(972, schedulers="pointwise")
def cat_of_four(fd, ops):
    x = dense(fd, 32)
    fd.add_output(ops.cat([x, x, x, x], -1))


@FILE.asserts(1019, schedulers="pointwise")
def cat_of_size_1(fd, ops):
    x = dense(fd, 32, 1)
    fd.add_output(ops.cat([x, x], -1))


def merged_double(fd, ops):
    """Return a matrix cast to Double and merged."""
    return ops.reshape(ops.cast(dense(fd, 2, 4), DataType.Double), [8])


@FILE.asserts(1082, segments=1)
def casts_around_output(fd, ops):
    x = merged_double(fd, ops)
    fd.add_output(x)
    fd.add_output(ops.cast(x, DataType.Float))


@FILE.asserts(1109, segments=1)
def cast_back_and_relu(fd, ops):
    x = merged_double(fd, ops)
    y = ops.relu(x)
    fd.add_output(ops.cast(x, DataType.Float))
    fd.add_output(y)


@FILE.asserts(1510, schedulers="expr_eval pointwise", values=((8, 1), (1, 16)))
@FILE.asserts(1510, schedulers="expr_eval pointwise", values=((8, 1), (1,)))
@FILE.asserts(1510, schedulers="expr_eval pointwise", values=((1,), (1, 8)))
@FILE.asserts(1510, schedulers="expr_eval pointwise", values=((2, 3, 1), (2, 1, 4)))
@FILE.asserts(1510, schedulers="expr_eval pointwise", values=((2, 3, 4, 1), (2, 3, 1, 5)))
@FILE.asserts(1510, schedulers="expr_eval pointwise", values=((4, 1), (2, 1, 5)))
@FILE.asserts(1510, schedulers="expr_eval pointwise", values=((4, 1), (2, 3, 1, 5)))
@FILE.asserts(1510, schedulers="expr_eval pointwise", values=((1,), (2, 3, 1, 5)))
@FILE.asserts(1510, schedulers="expr_eval pointwise", values=((3, 4, 1), (1,)))
@FILE.asserts(1510, schedulers="expr_eval pointwise", values=((2, 3, 4, 1), (1,)))
def matmul_without_reduction(fd, ops, first, second):
    fd.add_output(ops.matmul(dense(fd, *first), dense(fd, *second)))

"""Of tests/cpp/test_gather.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_gather.cpp")
FILE.known_answer(1102, "cross_entropy_tail")
FILE.inexpressible("nvFuser has disabled the test", 699, 783)

PROMOTED = {"enable": ["memory_promotion"]}
MULTIPROCESSORS = 132  # of an H200


def tensor(fd, axes):
    return fd.define_tensor([-1] * axes)


def index(fd, axes):
    return fd.define_tensor([-1] * axes, dtype=DataType.Int)


def taken_rows(fd, ops, arg):
    return ops.take_along_axis(arg, ops.broadcast(index(fd, 1), [False, True]), 1)


def normalized(ops, arg):
    return ops.div(arg, ops.broadcast(ops.sum(arg, [1]), [False, True]))


@FILE.asserts(550, schedulers="pointwise", inputs=[[99, 101], ([99], "int64")], options=PROMOTED)
def take_from_sum_of_two(fd, ops):
    fd.add_output(taken_rows(fd, ops, ops.add(tensor(fd, 2), 1.0)))


@FILE.asserts(583, schedulers="reduction expr_eval", inputs=[[100, 1000], ([2], "int64")])
def take_from_reduction(fd, ops):
    fd.add_output(ops.take_along_axis(ops.sum(tensor(fd, 2), [1]), index(fd, 1), 0))


@FILE.asserts(621, schedulers="pointwise reduction", inputs=[[100, 100], ([100], "int64")], options=PROMOTED)
def take_squeeze_and_reduce(fd, ops):
    taken = taken_rows(fd, ops, ops.add(tensor(fd, 2), 1.0))
    fd.add_output(ops.sum(ops.squeeze(taken, [1]), [0]))


@FILE.asserts(658, schedulers="reduction", inputs=[[100, 100], ([100, 120], "int64")], options=PROMOTED)
def take_and_reduce(fd, ops):
    fd.add_output(ops.sum(ops.take_along_axis(ops.add(tensor(fd, 2), 1.0), index(fd, 2), 1), [1]))


@FILE.asserts(737, schedulers="inner_persistent", inputs=[[32, 1024], ([32], "int64")], options=PROMOTED)
def normalize_and_take(fd, ops):
    fd.add_output(taken_rows(fd, ops, normalized(ops, tensor(fd, 2))))


@FILE.asserts(826, schedulers="inner_persistent", inputs=[[100, 100], ([100, 120], "int64")], options=PROMOTED)
def take_and_normalize(fd, ops):
    taken = ops.take_along_axis(ops.add(tensor(fd, 2), 1.0), index(fd, 2), 1)
    fd.add_output(normalized(ops, taken))


@FILE.asserts(867, schedulers="inner_persistent reduction", inputs=[[32, 1024], ([32, 1], "int64")])
def normalize_take_and_reduce(fd, ops):
    taken = ops.take_along_axis(normalized(ops, tensor(fd, 2)), index(fd, 2), 1)
    fd.add_output(ops.sum(taken, [0, 1]))


@FILE.asserts(913, schedulers="inner_persistent", inputs=[[32, 1024], ([32], "int64")], options=PROMOTED)
def normalize_take_and_reduce_rows(fd, ops):
    a = tensor(fd, 2)
    fd.add_output(ops.sum(ops.add(a, taken_rows(fd, ops, normalized(ops, a))), [1]))


@FILE.asserts(
    962, schedulers="transpose", inputs=[[MULTIPROCESSORS, 32, 32], ([32, 32], "int64")], options=PROMOTED,
)
def take_and_transpose(fd, ops):
    a, positions = tensor(fd, 3), ops.broadcast(index(fd, 2), [True, False, False])
    moved = ops.permute(ops.take_along_axis(ops.add(a, 1.0), positions, 0), [0, 2, 1])
    fd.add_output(moved, stride_order=[2, 1, 0])


@FILE.asserts(
    1003, schedulers="pointwise", inputs=[[MULTIPROCESSORS, 32, 32], ([10, 32, 32], "int64")], options=PROMOTED,
)
def transpose_and_take(fd, ops):
    moved = ops.permute(tensor(fd, 3), [0, 2, 1])
    fd.add_output(ops.take_along_axis(moved, index(fd, 3), 0))


@FILE.asserts(
    1048, schedulers="pointwise", inputs=[[MULTIPROCESSORS, 32, 32], ([32, 31], "int64")], options=PROMOTED,
)
def transpose_taken_axis(fd, ops):
    a, positions = tensor(fd, 3), ops.broadcast(index(fd, 2), [True, False, False])
    moved = ops.permute(ops.take_along_axis(ops.add(a, 1.0), positions, 2), [0, 2, 1])
    fd.add_output(ops.add(moved, moved))

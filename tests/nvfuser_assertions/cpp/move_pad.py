"""Of tests/cpp/test_move_pad.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_move_pad.cpp")

# MovePadTest runs without the Resize scheduler (lines 20-25).
PLAIN = {"disable": ["resize_scheduler"]}

FILE.known_answer(152, "cat_after_broadcast_cat_dim")


def dense(fd, *shape, dtype=DataType.Float):
    """Return a dense input of constant sizes."""
    return fd.define_tensor(list(shape), contiguity=[None if n == 1 else True for n in shape], dtype=dtype)


@FILE.asserts(49, segments=1, options=PLAIN)
def cat_with_relu(fd, ops):
    a, b = dense(fd, 4, 10), dense(fd, 2, 10)
    fd.add_output(ops.cat([b, ops.relu(a)], 0))


@FILE.asserts(79, segments=1, options=PLAIN)
def cat_with_sum(fd, ops):
    a, b, c = dense(fd, 4, 10), dense(fd, 4, 10), dense(fd, 2, 10)
    fd.add_output(ops.cat([c, ops.add(a, b)], 0))


@FILE.asserts(115, schedulers="expr_eval pointwise", options=PLAIN)
def cat_of_broadcast_sum(fd, ops):
    a, b, c = dense(fd, 4, 10), dense(fd, 10), dense(fd, 4, 5)
    fd.add_output(ops.cat([c, ops.add(a, ops.broadcast(b, [True, False]))], 1))


@FILE.asserts(187, segments=1, options=PLAIN)
def cat_of_two_readers(fd, ops):
    a, b = dense(fd, 4, 10), dense(fd, 1, 10)
    x = ops.relu(a)
    fd.add_output(ops.cat([ops.add(ops.neg(x), ops.sin(x)), b], 0))


@FILE.asserts(422, segments=1, options=PLAIN)
def cat_of_bools(fd, ops):
    a, b, c = (dense(fd, n, 10, dtype=DataType.Bool) for n in (4, 4, 2))
    fd.add_output(ops.cat([ops.logical_and(a, b), c], 0))

"""Of tests/cpp/test_indexing_advanced.cpp."""

from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_indexing_advanced.cpp")


@FILE.asserts(179, can="pointwise", inputs=[[4, 7, 8], [3, 4, 7, 8]])
def implicit_broadcast(fd, ops):
    a, b = fd.define_tensor([-1] * 3), fd.define_tensor([-1] * 4)
    fd.add_output(ops.add(ops.add(a, 1.0), b))


@FILE.asserts(264, can="reduction", inputs=[[7, 4, 7], [4, 7]])
def sum_of_implicit_broadcast(fd, ops):
    a, b = fd.define_tensor([-1] * 3), fd.define_tensor([-1] * 2)
    fd.add_output(ops.sum(ops.add(a, b), [0, 1]))


@FILE.asserts(398, can="pointwise", inputs=[[300], [200, 300, 400]])
def broadcast_is_output(fd, ops):
    wide = ops.mul(ops.broadcast(fd.define_tensor([-1]), [False, True]), 2.0)
    fd.add_output(wide)
    fd.add_output(ops.add(fd.define_tensor([-1] * 3), wide))

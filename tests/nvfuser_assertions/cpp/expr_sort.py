"""Of tests/cpp/test_expr_sort.cpp."""

from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_expr_sort.cpp")


@FILE.asserts(200, segments=1, inputs=[[5]])
def unary(fd, ops):
    a = ops.neg(fd.define_tensor([-1]))
    fd.add_output(ops.sin(a))
    fd.add_output(ops.cos(a))


@FILE.asserts(233, segments=1, inputs=[[5]])
def binary_of_one_operand(fd, ops):
    a = ops.neg(fd.define_tensor([-1]))
    fd.add_output(ops.add(a, a))

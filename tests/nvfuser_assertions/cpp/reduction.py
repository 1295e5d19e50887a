"""Of tests/cpp/test_reduction.cpp."""

from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_reduction.cpp")


@FILE.asserts(2538, can="reduction", inputs=[[4, 128], [4, 128]])
def gelu_gradient_and_its_sums(fd, ops):
    grad, x = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1])
    cube = ops.mul(ops.mul(x, 0.044715), x)
    curve = ops.tanh(ops.mul(ops.mul(x, 0.79788456), ops.add(cube, 1)))
    slope = ops.add(ops.mul(ops.mul(x, 0.1070322243), x), 0.79788456)
    inner = ops.mul(ops.mul(x, 0.5), ops.mul(ops.add(ops.neg(ops.mul(curve, curve)), 1), slope))
    whole = ops.mul(ops.add(inner, ops.mul(ops.add(curve, 1), 0.5)), grad)
    fd.add_output(whole)
    fd.add_output(ops.sum(whole, [0]))

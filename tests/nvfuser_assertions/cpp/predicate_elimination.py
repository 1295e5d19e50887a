"""Of tests/cpp/test_predicate_elimination.cpp."""

from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_predicate_elimination.cpp")

IMAGES = [8, 16, 56, 56]


@FILE.asserts(388, segments=1, times={"expr_eval": 0})
def sums_of_gradient(fd, ops):
    gain, slope = (fd.define_tensor([8, 16, 1, 1], contiguity=[True, True, None, None]) for _ in range(2))
    grad, x = (fd.define_tensor(IMAGES, contiguity=True) for _ in range(2))
    mean = fd.define_tensor([16], contiguity=True)
    whole = ops.add(ops.mul(grad, gain), ops.div(ops.expand(slope, IMAGES), 3136.0))
    apart = ops.sub(x, ops.broadcast(mean, [True, False, True, True]))
    total = ops.sum(ops.mul(whole, apart), [0, 2, 3])
    for result in (ops.sum(whole, [0, 2, 3]), total, whole, ops.mul(total, 1 / (8 * 56 * 56)), apart):
        fd.add_output(result)

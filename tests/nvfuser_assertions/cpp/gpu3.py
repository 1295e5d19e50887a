"""Of tests/cpp/test_gpu3.cpp."""

from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_gpu3.cpp")

FILE.known_answer(7272, "back_to_back_inner_sums")


@FILE.asserts(1464, can="pointwise", inputs=[[100, 14, 2, 14], [100, 2, 14]])
def vectorize_contiguous_index(fd, ops):
    a, b = fd.define_tensor([-1] * 4, contiguity=True), fd.define_tensor([-1] * 3, contiguity=True)
    fd.add_output(ops.add(a, ops.broadcast(b, [False, True, False, False])))


@FILE.asserts(3815, segments=2, inputs=[[8, 5], [5], [8, 5]])
def asynchronous_compilation(fd, ops):
    a, b, c = fd.define_tensor([-1, -1]), fd.define_tensor([-1]), fd.define_tensor([-1, -1])
    fd.add_output(ops.add(ops.add(ops.max(ops.add(a, 1.0), [0]), b), c))

"""Of tests/cpp/test_vectorization.cpp."""

from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_vectorization.cpp")


@FILE.asserts(291, schedulers="pointwise", inputs=[[40960], [40960]])
@FILE.asserts(305, schedulers="pointwise", inputs=[[40964], [40964]])
@FILE.asserts(319, schedulers="pointwise", inputs=[[40962], [40962]])
def sum_of_vectors(fd, ops):
    a, b = fd.define_tensor([-1], contiguity=True), fd.define_tensor([-1], contiguity=True)
    fd.add_output(ops.add(a, b))

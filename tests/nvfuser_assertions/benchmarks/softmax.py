"""Of benchmarks/cpp/softmax.cpp."""

from tests.nvfuser_assertions.assertion import Assertions
from tests.nvfuser_assertions.normalization import softmax

FILE = Assertions("benchmarks/cpp/softmax.cpp")


@FILE.asserts(100, can="inner_persistent", inputs=[[8, 16 * 197]])
@FILE.asserts(136, can="inner_persistent", inputs=[[8, 16 * 197]])
def softmax_of_rows(fd, ops):
    fd.add_output(softmax(ops, fd.define_tensor([-1, -1], contiguity=True), 2, 1))

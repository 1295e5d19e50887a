"""Of tests/cpp/test_fusion_profiler.cpp."""

from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_fusion_profiler.cpp")


@FILE.asserts(87, segments=1)
@FILE.asserts(139, segments=1)
def one_segment(fd, ops):
    fd.add_output(ops.add(fd.define_tensor([4, 4]), fd.define_tensor([4, 4])))


@FILE.asserts(190, segments=3)
def three_segments(fd, ops):
    for size in (11, 13, 17):
        fd.add_output(ops.mul(fd.define_tensor([size]), 2.0))

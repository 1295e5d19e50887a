"""Of tests/cpp/test_host_ir_integration.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_host_ir_integration.cpp")


@FILE.asserts(207, segments=3, inputs=[([8, 8], "float64")])
def two_tensors_between_segments(fd, ops):
    """Record the fusion whose two crossing tensors are freed."""
    a = fd.define_tensor([-1, -1], dtype=DataType.Double)
    first = ops.segment_set(ops.add(a, a))
    second = ops.sin(ops.segment_set(ops.add(first, first)))
    fd.add_output(ops.add(second, second))

"""Of tests/python/direct/test_python_direct.py."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/python/direct/test_python_direct.py")


@FILE.asserts(504, segments=2, inputs=[[2, 5], [2, 5]])
def sum_of_sum(fd, ops):
    a, b = (fd.define_tensor([-1, -1], contiguity=True) for _ in range(2))
    fd.add_output(ops.sum(ops.sum(ops.add(a, b), dims=[-1]), dims=[-1]))


@FILE.asserts(562, segments=2, inputs=[*2 * [([2, 4, 16], "bfloat16")], ([16, 16], "bfloat16")])
def linear_and_add(fd, ops):
    a, b, weight = (
        fd.define_tensor([-1] * axes, contiguity=True, dtype=DataType.BFloat16) for axes in (3, 3, 2)
    )
    fd.add_output(ops.add(ops.linear(a, weight), b))

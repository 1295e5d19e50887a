"""Of tests/cpp/test_reduction.cpp."""

from fuser_lab.dtypes import DataType
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


def sums(fd, ops, dtype, axis):
    """The sums of rows or columns in Float."""
    x = fd.define_tensor([-1, -1], contiguity=True, dtype=dtype)
    fd.add_output(ops.sum(x if dtype is DataType.Float else ops.cast(x, DataType.Float), [axis]))


# Parameters of kernels with TMA are those of Reduction (lines 2790-2801). Rows have at least 16 KiB, and at most the
# shared memory of a block.
for _dtype, _sizes in ((DataType.Float, range(12, 16)), (DataType.BFloat16, range(13, 17))):
    for _size in _sizes:
        FILE.asserts(2877, times={"reduction": 1}, inputs=[([1024, 2**_size], _dtype)], values=(_dtype, 1))(sums)
for _rows in (4096, 16384, 65536):
    for _columns in (256, 1024, 4096, 16384, 65536):
        FILE.asserts(3166, times={"reduction": 1}, inputs=[[_rows, _columns]], values=(DataType.Float, 0))(sums)

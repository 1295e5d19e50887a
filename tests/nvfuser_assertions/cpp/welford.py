"""Of tests/cpp/test_welford.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_welford.cpp")

ROW = [False, True]

FILE.known_answer(774, "welford_twice")
FILE.known_answer(823, "welford_var_and_sum")


@FILE.asserts(526, can="reduction", inputs=[[64, 128]])
def welford_of_rows(fd, ops):
    for result in ops.welford(ops.mul(fd.define_tensor([-1, -1]), 1.0), [1]):
        fd.add_output(result)


@FILE.asserts(709, segments=1, inputs=[[128, 64]])
def plus_mean(fd, ops):
    x = fd.define_tensor([-1, -1])
    fd.add_output(ops.add(x, ops.broadcast(ops.welford(x, [1])[0], ROW)))


@FILE.asserts(861, segments=1, inputs=[[128, 4096]])
@FILE.asserts(861, segments=1, inputs=[[128, 8192]])
@FILE.asserts(861, segments=1, inputs=[[128, 32768]])
def plus_mean_and_plus_sum(fd, ops):
    x = fd.define_tensor([-1, -1])
    mean, _, _ = ops.welford(x, [1])
    total = ops.broadcast(ops.sum(x, [1]), ROW)
    fd.add_output(ops.add(x, total))
    fd.add_output(ops.add(x, ops.broadcast(mean, ROW)))


def welford_in_dtype(fd, ops, dtype, axis):
    """The three results of a Welford, in the dtype of the input where they are of floats."""
    x = fd.define_tensor([-1, -1], dtype=dtype)
    narrow = dtype in {DataType.Half, DataType.BFloat16}
    wide = ops.mul(ops.cast(x, DataType.Float) if narrow else x, 1.0)
    mean, squares, count = ops.welford(wide, [axis])
    for result in (mean, squares):
        fd.add_output(ops.cast(result, dtype) if narrow else result)
    fd.add_output(count)


# nvFuser also takes complex numbers, which fd.ops.welford has not.
for _dtype in (DataType.Float, DataType.Double, DataType.Half, DataType.BFloat16):
    for _reduced in (1, 32, 1024, 32768, 2**20):
        for _axis, _kept in ((0, 160), (1, 320)):
            if _reduced <= 32768 or _dtype.itemsize > 2:
                _shape = [_kept, _reduced] if _axis else [_reduced, _kept]
                FILE.asserts(933, can="reduction", inputs=[(_shape, _dtype)], values=(_dtype, _axis))(welford_in_dtype)

"""Of tests/cpp/test_index_select.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_index_select.cpp")
FILE.inexpressible("index_select with an index of two axes", 735)


def dense(fd, axes=2):
    return fd.define_tensor([-1] * axes, contiguity=True)


def index(fd):
    return fd.define_tensor([-1], contiguity=True, dtype=DataType.Int)


@FILE.asserts(257, cannot="pointwise", inputs=[[31, 64], [46, 64], [31, 64], ([46], "int64")], values=(False,))
@FILE.asserts(284, cannot="reduction", inputs=[[31, 64], [46, 64], [31, 64], ([46], "int64")], values=(True,))
def computed_look_up(fd, ops, reduced):
    before, factor, a = dense(fd), dense(fd), dense(fd)
    rows = ops.index_select(ops.mul(a, before), index(fd), 0)
    result = ops.add(17.0, ops.mul(factor, rows))
    fd.add_output(ops.sum(result, [1]) if reduced else result)


@FILE.asserts(304, can="pointwise", inputs=[[46, 64], [31, 64], ([46], "int64")], values=(False,))
@FILE.asserts(339, can="reduction", inputs=[[1138, 128], [1023, 128], ([1138], "int64")], values=(True,))
def look_up_of_input(fd, ops, reduced):
    factor, a = dense(fd), dense(fd)
    result = ops.add(17.0, ops.mul(factor, ops.index_select(a, index(fd), 0)))
    fd.add_output(ops.sum(result, [1]) if reduced else result)


@FILE.asserts(595, segments=1, inputs=[[17, 19], [17, 19], ([3], "int64")])
def two_look_ups(fd, ops):
    a, b, rows = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1]), index(fd)
    fd.add_output(ops.add(ops.index_select(a, rows, 0), ops.index_select(b, rows, 0)))


@FILE.asserts(630, schedulers="pointwise", inputs=[[1029, 1023], ([1025], "int64")], values=(0, ()))
@FILE.asserts(663, schedulers="pointwise", inputs=[[1029, 1024], ([1025], "int64")], values=(0, ()))
@FILE.asserts(699, schedulers="pointwise", inputs=[[1028, 1024], ([512], "int64")], values=(1, ()))
@FILE.asserts(776, schedulers="pointwise", inputs=[[1024, 1024], ([768], "int64")], values=(0, (0, 1)))
def look_up_alone(fd, ops, dim, order):
    fd.add_output(ops.index_select(dense(fd), index(fd), dim), stride_order=order)


@FILE.asserts(811, schedulers="pointwise", inputs=[[1024, 256, 4], ([768], "int64")], values=((),))
@FILE.asserts(
    850, schedulers="pointwise", inputs=[([1024, 256, 4], "float32", [1024, 1, 256]), ([768], "int64")],
    values=((2, 0, 1),),
)
def look_up_of_three_axes(fd, ops, order):
    a = fd.define_tensor([-1, -1, -1], contiguity=True, stride_order=order)
    fd.add_output(ops.index_select(a, index(fd), 0), stride_order=(2, 0, 1))

"""Of tests/cpp/test_gpu1.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions
from tests.nvfuser_assertions.normalization import layer_norm, rms_norm, softmax

FILE = Assertions("tests/cpp/test_gpu1.cpp")

NAMES = {
    DataType.Double: "float64", DataType.Float: "float32", DataType.Half: "float16", DataType.BFloat16: "bfloat16",
    DataType.ComplexFloat: "complex64", DataType.ComplexDouble: "complex128",
}
SMALL = (DataType.Half, DataType.BFloat16)
FLOAT8 = (DataType.Float8_e4m3fn, DataType.Float8_e5m2)


def for_float8(define):
    for dtype in (DataType.Double, DataType.Float, DataType.BFloat16, DataType.Half):
        for narrow in FLOAT8:
            inputs = [([1000, 4], NAMES[dtype])]
            FILE.asserts(2725, can="pointwise", inputs=inputs, values=(dtype, narrow))(define)
    return define


@for_float8
def cast_to_float8(fd, ops, dtype, narrow):
    fd.add_output(ops.cast(ops.cast(fd.define_tensor([-1, -1], dtype=dtype), narrow), dtype))


@FILE.asserts(5529, can="reduction")
def sum_keeps_axes(fd, ops):
    fd.add_output(ops.sum(fd.define_tensor([80, 4096]), [1], keepdim=True))


@FILE.asserts(5648, can="reduction", inputs=[[80, 4096]], values=([1],))
@FILE.asserts(5803, can="reduction", inputs=[[5, 10, 15, 20]], values=([0, 2],))
@FILE.asserts(5842, can="reduction", inputs=[[5, 10, 15, 20]], values=([1, 3],))
def sum_of(fd, ops, axes):
    fd.add_output(ops.sum(fd.define_tensor([-1] * (2 if axes == [1] else 4)), axes))


def for_dtypes(define):
    """Add every dtype and every fourth size of nvFuser's parameters."""
    for dtype, name in NAMES.items():
        for size in (1, 16, 256, 4096, 65536, 1048576):
            FILE.asserts(5900, can="reduction", inputs=[([size], name)], values=(dtype, 0, 1))(define)
            for other, axis in ((160, 0), (320, 1)):
                shape = [other, size] if axis else [size, other]
                FILE.asserts(5974, can="reduction", inputs=[(shape, name)], values=(dtype, axis, 2))(define)
    return define


@for_dtypes
def sum_of_dtype(fd, ops, dtype, axis, axes):
    a = fd.define_tensor([-1] * axes, dtype=dtype)
    if dtype not in SMALL:
        fd.add_output(ops.sum(a, [axis]))
    else:
        fd.add_output(ops.cast(ops.sum(ops.cast(a, DataType.Float), [axis]), dtype))


def for_features(define):
    for dtype in (DataType.Float, DataType.Half):
        for features in (8, 9, 128, 256, 2753, 11012, 22024, 32768):
            inputs = [([132, features], NAMES[dtype])]  # rows: multiprocessors of an H200
            FILE.asserts(6622, can="inner_persistent", inputs=inputs, values=(dtype,))(define)
    return define


@for_features
def softmax_of_rows(fd, ops, dtype):
    a = fd.define_tensor([-1, -1], dtype=dtype)
    if dtype is DataType.Float:
        fd.add_output(softmax(ops, a, 2, 1))
    else:
        fd.add_output(ops.cast(softmax(ops, ops.cast(a, DataType.Float), 2, 1), dtype))


@FILE.asserts(6680, can="inner_persistent", inputs=[[256, 16, 128, 128], [256, 16, 128, 128]])
def softmax_with_mask(fd, ops):
    a, mask = fd.define_tensor([-1] * 4), fd.define_tensor([-1] * 4)
    fd.add_output(softmax(ops, ops.add(a, mask), 4, 3))


@FILE.asserts(6861, can="inner_persistent", inputs=[[20, 100, 35, 67]])
def layer_norm_of_four_axes(fd, ops):
    for result in layer_norm(ops, fd.define_tensor([-1] * 4), 4, 67):
        fd.add_output(result)


@FILE.asserts(6912, can="inner_persistent", inputs=[[8, 56, 1024]])
def rms_norm_of_three_axes(fd, ops):
    for result in rms_norm(ops, fd.define_tensor([-1] * 3, contiguity=True), 3, 1024):
        fd.add_output(result)

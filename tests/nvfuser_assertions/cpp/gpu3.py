"""Of tests/cpp/test_gpu3.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions
from tests.nvfuser_assertions.normalization import layer_norm

FILE = Assertions("tests/cpp/test_gpu3.cpp")

FILE.known_answer(6081, "multi_concretization_reduce")
FILE.known_answer(7272, "back_to_back_inner_sums")


def tensor(fd, axes):
    return fd.define_tensor([-1] * axes)


def dense(fd, axes):
    return fd.define_tensor([-1] * axes, contiguity=True)


@FILE.asserts(1464, can="pointwise", inputs=[[100, 14, 2, 14], [100, 2, 14]])
def vectorize_contiguous_index(fd, ops):
    a, b = dense(fd, 4), dense(fd, 3)
    fd.add_output(ops.add(a, ops.broadcast(b, [False, True, False, False])))


@FILE.asserts(3587, can="pointwise", inputs=[[100, 100, 10], [10, 20]])
def broadcast_and_trivial_reduction(fd, ops):
    a, b = dense(fd, 3), dense(fd, 2)
    wide = ops.sin(ops.broadcast(a, [False, True, False, True, False, True]))
    fd.add_output(ops.sum(ops.add(wide, b), [1]))


@FILE.asserts(3815, segments=2, inputs=[[8, 5], [5], [8, 5]])
def asynchronous_compilation(fd, ops):
    a, b, c = tensor(fd, 2), tensor(fd, 1), tensor(fd, 2)
    fd.add_output(ops.add(ops.add(ops.max(ops.add(a, 1.0), [0]), b), c))


@FILE.asserts(4575, can="pointwise", inputs=[[1, 5, 5, 5, 2], [2], [2], 1e-5])
def statistics_are_outputs(fd, ops):
    x, mean, variance = dense(fd, 5), dense(fd, 1), dense(fd, 1)
    epsilon = fd.define_scalar(dtype=DataType.Double)
    mask, shape = [True, True, True, True, False], x.shape()
    centered = ops.sub(x, ops.expand(ops.broadcast(mean, mask), shape))
    inverse = ops.rsqrt(ops.add(variance, epsilon))
    fd.add_output(ops.mul(centered, ops.expand(ops.broadcast(inverse, mask), shape)))
    fd.add_output(mean)
    fd.add_output(inverse)


@FILE.asserts(5278, can="pointwise", inputs=[([4], "bool")])
def where_of_constants(fd, ops):
    fd.add_output(ops.where(fd.define_tensor([-1], dtype=DataType.Bool), 3.0, 5.0))


@FILE.asserts(6853, can="inner_persistent", inputs=[[2048, 10240]])
@FILE.asserts(7071, can="inner_persistent", inputs=[[2048, 10240]])
def layer_norm_of_long_rows(fd, ops):
    for result in layer_norm(ops, tensor(fd, 2), 2, 10240):
        fd.add_output(result)


def for_sizes(define):
    for m in (3, 6, 12, 24):
        for k in (10, 20, 40):
            FILE.asserts(7029, can="pointwise", values=(10240, m, k))(define)
    return define


@for_sizes
def reshapes_of_expanded(fd, ops, n, m, k):
    a = fd.define_tensor([n, m], contiguity=True, dtype=DataType.Half)
    wide = ops.expand(ops.broadcast(a, [False, True, False]), [n, k, m])
    pairs = ops.reshape(ops.reshape(wide, [n, k * m]), [n, m, k])
    fd.add_output(ops.reshape(ops.permute(pairs, [1, 0, 2]), [m * n, k]))


@FILE.asserts(7630, can="reduction", inputs=[([8, 7, 5, 1], "float64")])
def sum_beside_broadcast(fd, ops):
    a = fd.define_tensor([-1, -1, -1, 1], contiguity=[True, True, True, None], dtype=DataType.Double)
    fd.add_output(ops.sum(a, [2, 0]))


@FILE.asserts(7731, can="outer_persistent", inputs=[[8192, 1024]])
def two_welfords(fd, ops):
    a = ops.set(dense(fd, 2))
    for change in (lambda x: ops.add(x, x), ops.exp):
        a = change(a)
        mean, _, _ = ops.welford(a, [0])
        a = ops.div(a, ops.broadcast(mean, [True, False]))
        fd.add_output(a)


@FILE.asserts(8275, can="inner_persistent", inputs=[[128, 1024]])
def unused_broadcast_in_norm(fd, ops):
    a = tensor(fd, 2)
    total = ops.add(ops.broadcast(ops.sum(a, [1]), [True, False]), 1)
    total = ops.add(ops.squeeze(total, [0]), 2)
    fd.add_output(ops.add(a, ops.broadcast(total, [False, True])))


@FILE.asserts(8335, can="pointwise", inputs=[[1024], [1024]])
def unused_broadcast_in_pointwise(fd, ops):
    a, b = tensor(fd, 1), tensor(fd, 1)
    wide = ops.add(ops.broadcast(a, [True, True, False]), 1)
    fd.add_output(ops.add(ops.squeeze(wide, [0, 1]), b))


@FILE.asserts(8398, can="reduction", inputs=[[32, 1024], [32, 1024]])
def unused_broadcast_in_reduction(fd, ops):
    a, b = tensor(fd, 2), tensor(fd, 2)
    wide = ops.add(ops.broadcast(a, [True, False, False]), 1)
    fd.add_output(ops.sum(ops.add(ops.squeeze(wide, [0]), b), [1]))


@FILE.asserts(8499, can="inner_persistent", inputs=[[2, 288, 30, 80], [288], [288], [2, 288, 30, 80, 1]])
def group_norm_backward(fd, ops):
    a, b, c = dense(fd, 4), dense(fd, 1), dense(fd, 1)
    d = ops.squeeze(fd.define_tensor([-1, -1, -1, -1, 1], contiguity=[True] * 4 + [None]), [4])
    mask, shape = [True, False, True, True], [2, 288, 30, 80]
    copy, first = ops.set(d), ops.set(d)
    total = ops.set(ops.set(ops.set(ops.broadcast(ops.sum(first, [0, 2, 3]), mask))))
    mean = ops.mul(2.60417e-05, ops.expand(total, shape))
    again = ops.set(ops.broadcast(ops.sum(ops.set(d), [0, 2, 3]), mask))
    factor = ops.mul(ops.mul(0.5, ops.squeeze(again, [0, 2, 3])), ops.add(c, 3))
    factor = ops.set(ops.set(ops.broadcast(factor, mask)))
    factor = ops.mul(2, ops.expand(factor, shape))
    centered = ops.sub(a, ops.set(ops.broadcast(b, mask)))
    scaled = ops.set(ops.mul(factor, centered))
    fd.add_output(ops.cast(ops.add(copy, ops.add(mean, scaled)), DataType.Half))

"""Of tests/cpp/test_greedy.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_greedy.cpp")
FILE.known_answer(403, "topk_with_adds")

SIZES = (1024, 2048, 4096)


def tensor(fd, *shape, dtype=DataType.Int):
    return fd.define_tensor(list(shape), contiguity=True, dtype=dtype)


def constant(fd, value):
    return fd.define_scalar(value, dtype=DataType.Int)


def scan_and_pad(fd, ops, *shape):
    return ops.pad(ops.cumsum(ops.set(tensor(fd, *shape)), -1), [1, 0])


@FILE.asserts(69, segments=1, values=(128,))
@FILE.asserts(98, segments=1, values=(3, 4, 128))
def scan_pad(fd, ops, *shape):
    fd.add_output(scan_and_pad(fd, ops, *shape))


@FILE.asserts(131, segments=1, values=([4, 3, 129],))
@FILE.asserts(163, least=2, values=([3 * 4 * 129],))
def scan_pad_reshape(fd, ops, shape):
    fd.add_output(ops.add(ops.reshape(scan_and_pad(fd, ops, 3, 4, 128), shape), 1))


@FILE.asserts(203, least=2)
def reshape_beside_scan(fd, ops):
    a = ops.set(tensor(fd, 3, 4, 128))
    fd.add_output(ops.pad(ops.cumsum(ops.add(a, 1), -1), [1, 0]))
    fd.add_output(ops.add(ops.reshape(a, [3, 4 * 128]), 1))


@FILE.asserts(240, least=2)
def scan_pad_conflicting_reshapes(fd, ops):
    padded = scan_and_pad(fd, ops, 3, 4, 128)
    for shape in ([4, 3, 129], [2, 6, 129]):
        fd.add_output(ops.add(ops.reshape(padded, shape), 1))


@FILE.asserts(266, segments=1)
def argsort_and_mul(fd, ops):
    flat = ops.reshape(tensor(fd, 4, 128), [512])
    fd.add_output(ops.mul(ops.argsort(flat, -1, descending=True, stable=True), 100))


@FILE.asserts(292, segments=1)
def argsort_pad_scan(fd, ops):
    order = ops.argsort(tensor(fd, 128), -1, descending=True, stable=True)
    fd.add_output(ops.cumsum(ops.pad(order, [1, 0]), -1))


@FILE.asserts(316, segments=1)
def argsort_is_output(fd, ops):
    fd.add_output(ops.argsort(ops.add(tensor(fd, 128), 1), -1, descending=True, stable=True))


@FILE.asserts(340, segments=1)
def scan_is_output(fd, ops):
    fd.add_output(ops.cumsum(ops.add(tensor(fd, 128), 1), -1))


@FILE.asserts(369, segments=1)
def scatter(fd, ops):
    index = tensor(fd, 128)
    zeros = ops.full([128], 0, DataType.Int)
    fd.add_output(ops.scatter(zeros, index, ops.iota(128, 0, 1, DataType.Int), 0))


@FILE.asserts(434, segments=1, values=(3,))
@FILE.asserts(472, segments=1, values=(7,))
def topk_and_pad(fd, ops, k):
    _, indices = ops.topk(ops.add(tensor(fd, 4, 8), 1), constant(fd, k), 1, largest=True, sorted=True)
    fd.add_output(ops.pad(indices, [1, 0]))


@FILE.asserts(550, schedulers="expr_eval greedy")
def topk_of_router(fd, ops):
    scores = tensor(fd, 2048, 128, dtype=DataType.BFloat16)
    values, indices = ops.topk(scores, constant(fd, 1), 1, largest=True, sorted=True)
    fd.add_output(ops.scatter(ops.full([2048, 128], 0, DataType.Int), indices, constant(fd, 1), 1))
    exp = ops.exp(ops.neg(ops.cast(values, DataType.Float)))
    fd.add_output(ops.set(ops.cast(ops.reciprocal(ops.add(1.0, exp)), DataType.BFloat16)))


@FILE.asserts(583, segments=1)
def broadcast_to_sorted_axis(fd, ops):
    a, b = tensor(fd, 4, dtype=DataType.Float), tensor(fd, 4, 128, dtype=DataType.Float)
    flat = ops.reshape(ops.add(ops.broadcast(a, [False, True]), b), [512])
    fd.add_output(ops.mul(ops.argsort(flat, -1, descending=True, stable=True), 100))


@FILE.asserts(607, segments=1)
def squeeze_before_argsort(fd, ops):
    fd.add_output(ops.argsort(ops.squeeze(tensor(fd, 4, 128, 1, dtype=DataType.Float), [-1]), -1))


@FILE.asserts(637, segments=1)
def broadcast_to_other_axis(fd, ops):
    a, b = tensor(fd, 4, 128, dtype=DataType.Float), tensor(fd, 4, 8, 128, dtype=DataType.Float)
    flat = ops.reshape(ops.add(ops.broadcast(a, [False, True, False]), b), [32, 128])
    fd.add_output(ops.mul(ops.argsort(flat, -1, descending=True, stable=True), 100))


@FILE.asserts(662, segments=1)
def squeeze_after_argsort(fd, ops):
    order = ops.argsort(tensor(fd, 1, 128, dtype=DataType.Float), -1)
    fd.add_output(ops.cumsum(ops.squeeze(order, [0]), -1))


@FILE.asserts(700, schedulers="expr_eval greedy", values=(DataType.Int,))
@FILE.asserts(743, schedulers="expr_eval greedy", values=(DataType.Int32,))
def scatter_and_sum(fd, ops, dtype):
    index = tensor(fd, 1024, 1, dtype=dtype)
    marked = ops.scatter(ops.full([1024, 128], 0, dtype), ops.set(index), constant(fd, 1), 1)
    fd.add_output(ops.sum(marked if dtype is DataType.Int else ops.cast(marked, DataType.Int), [0]))
    fd.add_output(ops.segment_set(index))


def for_sizes(line):
    def add(define):
        for size in SIZES:
            FILE.asserts(line, segments=1, values=(size,))(define)
        return define

    return add


@for_sizes(769)
def argsort_of_long_rows(fd, ops, size):
    fd.add_output(ops.add(ops.argsort(tensor(fd, 10, size, dtype=DataType.Float), -1), 1.0))


@for_sizes(823)
def scan_of_long_rows(fd, ops, size):
    fd.add_output(ops.add(ops.cumsum(tensor(fd, 10, size, dtype=DataType.Float), -1), 1.0))


@for_sizes(882)
def scatter_add_of_many(fd, ops, size):
    a, index = tensor(fd, 128), tensor(fd, size)
    fd.add_output(ops.add(ops.scatter_add(a, index, constant(fd, 1), 0), 1.0))


@for_sizes(934)
def argsort_of_argsort(fd, ops, size):
    order = ops.argsort(tensor(fd, size), 0, descending=False, stable=True)
    fd.add_output(order)
    fd.add_output(ops.argsort(order, 0, descending=False, stable=True))


@for_sizes(957)
def topk_of_long_rows(fd, ops, size):
    values, _ = ops.topk(tensor(fd, 10, size, dtype=DataType.Float), constant(fd, 1), 1)
    fd.add_output(ops.add(values, 1.0))

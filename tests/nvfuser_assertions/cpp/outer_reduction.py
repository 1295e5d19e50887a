"""Of tests/cpp/test_outer_reduction.cpp."""

from math import ceil

from fuser_lab.dtypes import DataType
from fuser_lab.plan.planning import device_of
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_outer_reduction.cpp")
FILE.inexpressible("nvFuser does not compile the test", 1414, 1887, 2059)

MASK = [True, True, True, False]
NAMES = {DataType.Half: "float16", DataType.Float: "float32"}
DEVICES = ("A100", "H200", "B200")


def stays_persistent(size, dtype, widest, target):
    """Return shouldBePersistent of a forward norm (test_outer_reduction.cpp:1322-1352)."""
    steps = ceil(256 * size * size / 32)
    factor = ceil(steps / (device_of(target).sms // 2))
    registers = factor * (16 // widest) * (2 if dtype is DataType.Half else 4) // 4
    return registers <= 255 - (factor + 35)


def for_sizes(segmented, whole, weights):
    """Return a decorator that adds the sizes, dtypes and weights of nvFuser's tests, on several devices."""

    def add(define):
        for target in DEVICES:
            for size in (7, 14, 28):
                for dtype, weighted in weights:
                    widest = 4 if weighted else 2 if dtype is DataType.Half else 4
                    shapes = [([256, size, size, 512], NAMES[dtype])]
                    stated = {"values": (dtype, weighted), "inputs": shapes, "target": target}
                    if define is batch_norm:
                        stated["inputs"] = [*shapes, *2 * [([512], NAMES[dtype])], [512], [512]]
                    elif weighted:
                        stated["inputs"] = [*shapes, [512]]
                    if stays_persistent(size, dtype, widest, target):
                        FILE.asserts(whole, schedulers="outer_persistent", **stated)(define)
                    else:
                        FILE.asserts(segmented, least=2, **stated)(define)
        return define

    return add


def wide(ops, tensor):
    return ops.cast(tensor, DataType.Float) if tensor.dtype is DataType.Half else tensor


def dense(fd, axes, dtype=DataType.Float):
    return fd.define_tensor([-1] * axes, contiguity=True, dtype=dtype)


def add_result(fd, ops, result, dtype):
    fd.add_output(ops.cast(result, dtype) if dtype is DataType.Half else result)


def mean_of_columns(fd, ops, dtype, weighted):
    x = dense(fd, 4, dtype)
    weight = dense(fd, 1) if weighted else None
    x = wide(ops, x)
    mean, _, _ = ops.welford(x, [2, 1, 0])
    result = ops.sub(x, ops.broadcast(mean, MASK))
    if weighted:
        result = ops.add(result, ops.broadcast(weight, MASK))
    add_result(fd, ops, result, dtype)


def batch_norm(fd, ops, dtype, _):
    """Record the training of batch_norm with channels last (csrc/ops/normalization.cpp:537-679)."""
    x, weight, bias = dense(fd, 4, dtype), dense(fd, 1, dtype), dense(fd, 1, dtype)
    running = dense(fd, 1), dense(fd, 1)
    rows = fd.ops.size(x, 0)
    count = ops.cast(ops.mul(ops.mul(rows, ops.size(x, 1)), ops.size(x, 2)), DataType.Double)
    x, weight, bias = (wide(ops, tensor) for tensor in (x, weight, bias))
    mean, squares, _ = ops.welford(x, [0, 1, 2])
    unbiased = ops.mul(squares, ops.reciprocal(ops.sub(count, 1.0)))
    for old, new in zip(running, (mean, unbiased), strict=True):
        fd.add_output(ops.add(ops.mul(old, 0.9), ops.mul(new, 0.1)), old)
    centered = ops.sub(x, ops.broadcast(mean, MASK))
    inverse = ops.rsqrt(ops.add(ops.mul(squares, ops.reciprocal(count)), 1e-5))
    y = ops.mul(centered, ops.broadcast(inverse, MASK))
    y = ops.add(ops.mul(y, ops.broadcast(weight, MASK)), ops.broadcast(bias, MASK))
    add_result(fd, ops, y, dtype)


for_sizes(1572, 1575, [(DataType.Half, False), (DataType.Float, False), (DataType.Half, True)])(mean_of_columns)
for_sizes(1751, 1753, [(DataType.Half, True), (DataType.Float, True)])(batch_norm)


@FILE.asserts(2167, can="reduction", inputs=[([32, 2048], "float16")])
def grouped_block_reduction(fd, ops):
    a = dense(fd, 2, DataType.Half)
    fd.add_output(ops.cast(ops.sum(wide(ops, a), [0]), DataType.Half))

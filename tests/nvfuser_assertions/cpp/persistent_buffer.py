"""Of tests/cpp/test_persistent_buffer.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions import normalization
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_persistent_buffer.cpp")
FILE.inexpressible("nvFuser skips the test", 1810)

FILE.known_answer(1184, "norm_with_new_input_first")
FILE.known_answer(1223, "norm_with_new_input_first_3d")
FILE.known_answer(1258, "norm_too_big_3d")

HALF, BFLOAT16, FLOAT = DataType.Half, DataType.BFloat16, DataType.Float
ROW = [False, True]


def matrix(fd, dtype=FLOAT, rank=2):
    """Return a dense input without constant sizes."""
    return fd.define_tensor([-1] * rank, contiguity=True, dtype=dtype)


def plus_row_sum(ops, x):
    """Return x plus the sums of its rows."""
    return ops.add(x, ops.broadcast(ops.sum(x, [1]), ROW))


def over_row_sum(ops, x):
    """Return x over the sums of its rows."""
    return ops.div(x, ops.broadcast(ops.sum(x, [1]), ROW))


def layer_norm(fd, ops, dtype, size, welford):
    """A layer norm with its mean and inverse deviation, by a Welford or, as the tests rewrite it, by sums."""
    inputs = (matrix(fd, dtype), matrix(fd, dtype, 1), matrix(fd, dtype, 1))
    x, weight, bias = inputs if dtype is FLOAT else (ops.cast(one, FLOAT) for one in inputs)
    if welford:
        mean, squares, _ = ops.welford(x, [1])
        mean = ops.broadcast(mean, ROW)
    else:
        mean = ops.broadcast(ops.div(ops.sum(x, [1]), float(size)), ROW)
        apart = ops.sub(x, mean)
        squares = ops.sum(ops.mul(apart, apart), [1])
    invstd = ops.rsqrt(ops.add(ops.broadcast(ops.div(squares, float(size)), ROW), 1e-5))
    y = ops.mul(ops.mul(ops.sub(x, mean), invstd), ops.broadcast(weight, [True, False]))
    y = ops.add(y, ops.broadcast(bias, [True, False]))
    fd.add_output(y if dtype is FLOAT else ops.cast(y, dtype))
    fd.add_output(mean)
    fd.add_output(invstd)


FILE.asserts(
    503,
    can="inner_persistent",
    inputs=[([2048, 10240], HALF), ([10240], HALF), ([10240], HALF)],
    values=(HALF, 10240, False),
)(layer_norm)
# Shared memory of an A100 keeps 150 or 158 KiB, which depends on the rounds of all threads.
for _dtype, _most in ((HALF, 73728), (FLOAT, 36864)):
    for _size in range(32768, 81921, 4096):
        _inputs = [([2048, _size], _dtype), ([_size], _dtype), ([_size], _dtype)]
        if _size <= _most:
            FILE.asserts(
                1546,
                schedulers="inner_persistent",
                inputs=_inputs,
                values=(_dtype, _size, False),
                target="A100",
            )(layer_norm)
        else:
            FILE.asserts(
                1566,
                times={"reduction": 1},
                inputs=_inputs,
                values=(_dtype, _size, True),
                target="A100",
            )(layer_norm)


@FILE.asserts(754, can="inner_persistent", inputs=[[2048, 10240]] * 3)
def buffers_of_two_scopes(fd, ops):
    a, b, c = (matrix(fd) for _ in range(3))
    twice = ops.add(a, a)
    fd.add_output(plus_row_sum(ops, twice))
    fd.add_output(plus_row_sum(ops, ops.add(twice, twice)))
    both = ops.add(a, b)
    square = ops.mul(both, both)
    fd.add_output(plus_row_sum(ops, square))
    third = ops.add(square, c)
    fd.add_output(plus_row_sum(ops, ops.mul(third, third)))


@FILE.asserts(839, can="inner_persistent", inputs=[([2048, 10240], HALF)] * 3)
def chain_of_buffers(fd, ops):
    a, b, c = (ops.cast(x, FLOAT) for x in [matrix(fd, HALF) for _ in range(3)])
    x = ops.add(ops.add(a, b), c)
    y = ops.add(x, x)
    for each in (x, y, ops.add(y, y)):
        fd.add_output(plus_row_sum(ops, each))


@FILE.asserts(886, can="inner_persistent", inputs=[([2048, 6144], HALF)])
@FILE.asserts(886, can="inner_persistent", inputs=[([2048, 10240], HALF)])
def softmax(fd, ops):
    fd.add_output(ops.cast(ops.softmax(ops.cast(matrix(fd, HALF), FLOAT), 1), HALF))


@FILE.asserts(958, can="inner_persistent", inputs=[([128, 10240], HALF)])
def three_quotients(fd, ops):
    x = ops.cast(matrix(fd, HALF), FLOAT)
    for _ in range(3):
        x = over_row_sum(ops, ops.add(x, x))
        fd.add_output(x)


@FILE.asserts(1014, can="inner_persistent", inputs=[([128, 8192], HALF)])
def buffer_with_new_broadcast_axis(fd, ops):
    x = plus_row_sum(ops, ops.exp(ops.cast(matrix(fd, HALF), FLOAT)))
    fd.add_output(x)
    y = ops.broadcast(x, [True, False, False])
    fd.add_output(ops.add(y, ops.broadcast(ops.sum(y, [-1]), [False, False, True])))


@FILE.asserts(1104, can="inner_persistent", inputs=[([128, 32, 256], HALF)])
def sums_of_two_axes(fd, ops):
    x = ops.cast(matrix(fd, HALF, 3), FLOAT)
    total = ops.broadcast(ops.broadcast(ops.sum(x, [1, 2]), ROW), [False, False, True])
    x = ops.add(x, total)
    fd.add_output(x)
    y = ops.mul(x, x)
    for _ in range(2):
        y = ops.add(y, ops.broadcast(ops.sum(y, [1, 2]), [False, True, True]))
        fd.add_output(y)
        y = ops.add(x, y)


@FILE.asserts(1136, can="inner_persistent", inputs=[([1024, 10240], HALF)])
def layer_norm_of_dropout(fd, ops):
    x = ops.cast(matrix(fd, HALF), FLOAT)
    kept = ops.mul(ops.mul(x, ops.lt(ops.rand_like(x), 0.1)), 10.0)
    mean, squares, _ = ops.welford(kept, [1])
    apart = ops.sub(kept, ops.broadcast(mean, ROW))
    variance = ops.broadcast(ops.mul(squares, 1 / 10240), ROW)
    fd.add_output(ops.mul(apart, ops.rsqrt(ops.add(variance, 1e-5))))


@FILE.asserts(1302, can="inner_persistent", inputs=[[64, 2, 2, 8448]])
def inner_sums_beyond_registers(fd, ops):
    x = matrix(fd, rank=4)
    fd.add_output(ops.div(x, ops.broadcast(ops.sum(x, [1, 2, 3]), [False, True, True, True])))


@FILE.asserts(
    1456,
    least=2,
    target="A100",
    inputs=[([2048, 81920], HALF), ([81920], HALF), ([81920], HALF)],
)
def norm_beyond_shared_memory(fd, ops):
    rows, weight, bias = matrix(fd, HALF), matrix(fd, HALF, 1), matrix(fd, HALF, 1)
    mean, squares, _ = ops.welford(ops.cast(rows, FLOAT), [1])
    mean = ops.broadcast(mean, ROW)
    apart = ops.sub(ops.cast(rows, FLOAT), mean)
    invstd = ops.rsqrt(ops.add(ops.broadcast(squares, ROW), 0.001))
    y = ops.mul(ops.mul(apart, invstd), ops.broadcast(ops.cast(weight, FLOAT), [True, False]))
    y = ops.add(y, ops.broadcast(ops.cast(bias, FLOAT), [True, False]))
    fd.add_output(ops.cast(y, HALF))
    fd.add_output(mean)
    fd.add_output(invstd)


@FILE.asserts(1718, can="inner_persistent", inputs=[([64], BFLOAT16), ([64, 16], BFLOAT16)])
def total_of_sum_computed_twice(fd, ops):
    a, b = fd.define_tensor([-1], dtype=BFLOAT16), fd.define_tensor([-1, -1], dtype=BFLOAT16)

    def both():
        return ops.add(ops.cast(ops.broadcast(a, ROW), FLOAT), ops.cast(b, FLOAT))

    total = ops.broadcast(ops.sum(both(), [0, 1]), [True, True])
    fd.add_output(ops.cast(ops.add(both(), total), BFLOAT16))


@FILE.asserts(1774, cannot="inner_persistent", inputs=[([64], BFLOAT16), ([64, 16], BFLOAT16)])
def total_added_to_part_of_it(fd, ops):
    a, b = fd.define_tensor([-1], dtype=BFLOAT16), fd.define_tensor([-1, -1], dtype=BFLOAT16)
    both = ops.add(ops.cast(ops.broadcast(a, ROW), FLOAT), ops.cast(b, FLOAT))
    total = ops.broadcast(ops.sum(both, [0, 1]), [True])
    fd.add_output(ops.cast(ops.add(ops.cast(a, FLOAT), total), BFLOAT16))


@FILE.asserts(1850, can="inner_persistent", inputs=[([64], BFLOAT16), ([64, 16], BFLOAT16)])
def total_added_to_sum(fd, ops):
    a, b = fd.define_tensor([-1], dtype=BFLOAT16), fd.define_tensor([-1, -1], dtype=BFLOAT16)
    both = ops.add(ops.cast(ops.broadcast(a, ROW), FLOAT), ops.cast(b, FLOAT))
    fd.add_output(ops.add(both, ops.broadcast(ops.sum(both, [0, 1]), [True, True])))


@FILE.asserts(1918, can="inner_persistent", inputs=[([64, 1], BFLOAT16), ([64, 16], BFLOAT16)])
def input_with_broadcast_axis(fd, ops):
    a = fd.define_tensor([-1, 1], contiguity=[True, None], dtype=BFLOAT16)
    b = fd.define_tensor([-1, -1], dtype=BFLOAT16)
    fd.add_output(plus_row_sum(ops, ops.add(ops.cast(ops.set(a), FLOAT), ops.cast(b, FLOAT))))


def llm_norm(fd, ops, kind, rows, size):
    """An RMS norm, a layer norm or a softmax of bfloat16 rows."""
    constant = kind != "rms_norm"
    weights = {"rms_norm": 1, "layer_norm": 2, "softmax": 0}[kind]
    x = fd.define_tensor([rows, size] if constant else [-1, -1], contiguity=True, dtype=BFLOAT16)
    vectors = [fd.define_tensor([size] if constant else [-1], contiguity=True, dtype=BFLOAT16) for _ in range(weights)]
    wide, *vectors = (ops.cast(value, FLOAT) for value in (x, *vectors))
    if kind == "softmax":
        fd.add_output(ops.cast(normalization.softmax(ops, wide, 2, 1), BFLOAT16))
        return
    y, *statistics = getattr(normalization, kind)(ops, wide, 2, size, *vectors)
    fd.add_output(ops.cast(y, BFLOAT16))
    for statistic in statistics if kind == "layer_norm" else ():
        fd.add_output(statistic)


# Parameters of the kernel with TMA are those of InnerPersistent (lines 2009-2013).
for _line, _kind, _vectors in ((2233, "rms_norm", 1), (2274, "layer_norm", 2), (2304, "softmax", 0)):
    for _rows in (66, 2048):
        for _size in (1024, 1280, 1536, 1600, 2048, 2560, 4096, 5120, 6656, 8192, 12288, 18432):
            FILE.asserts(
                _line,
                times={"inner_persistent": 1},
                values=(_kind, _rows, _size),
                inputs=[([_rows, _size], BFLOAT16)] + [([_size], BFLOAT16)] * _vectors,
            )(llm_norm)

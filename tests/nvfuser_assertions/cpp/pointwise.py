"""Of tests/cpp/test_pointwise.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_pointwise.cpp")

WITHOUT_ALIASES = {"disable_preseg": ["MarkAliasesPreparePass"]}
SMS, THREADS = 132, 2048  # multiprocessors of an H200, and threads of each

FILE.known_answer(1093, "factory_blocks_reference")
FILE.known_answer(1372, "broadcast_output_and_reshape_add")


def dense(fd, rank=2):
    """Return a dense input without constant sizes."""
    return fd.define_tensor([-1] * rank, contiguity=True)


def twice(fd, ops, contiguity):
    """Twice an input that is not dense."""
    x = fd.define_tensor([-1] * len(contiguity), contiguity=list(contiguity))
    fd.add_output(ops.add(x, x))


# getVecSizeForPointwise (lines 39-47) asserts that there is one segment with parameters of PointWise.
for _size in (17, 18, 32):
    FILE.asserts(
        96,
        schedulers="pointwise",
        values=((False, True),),
        inputs=[([10**6, 16], DataType.Float, [_size, 1])],
    )(twice)
for _size in (17, 10, 16):
    FILE.asserts(
        122,
        schedulers="pointwise",
        values=((False, True, True),),
        inputs=[([10**6, 8, 3], DataType.Float, [3 * _size, 3, 1])],
    )(twice)
    FILE.asserts(
        157,
        schedulers="pointwise",
        values=((False, True, False, True, True),),
        inputs=[
            ([4, 8, 12345, 4, 3], DataType.Float, [9 * 12345 * 3 * _size, 12345 * 3 * _size, 3 * _size, 3, 1]),
        ],
    )(twice)


MISALIGNED = ((4, 4, 4), (4, 4, 2), (4, 2, 4), (2, 4, 4), (2, 2, 2))
OVERLAPPING = (*MISALIGNED, (4, 4, 1), (4, 1, 4), (1, 4, 4), (2, 2, 1), (2, 1, 2), (1, 2, 2))
for _line, _cases in ((216, MISALIGNED), (262, OVERLAPPING)):
    for _size, _first, _second in _cases:
        FILE.asserts(
            _line,
            schedulers="pointwise",
            values=((False, True, False, True, True),),
            inputs=[([4, 4, 12345, _size, 3], DataType.Float, [_first, _second * 12345, _second, 3, 1])],
        )(twice)


@FILE.asserts(288, schedulers="pointwise", inputs=[([1024, 128, 25], DataType.Float, [128 * 25, 1, 128])])
def permuted_input_and_output(fd, ops):
    x = fd.define_tensor([-1, -1, -1], contiguity=True, stride_order=[2, 0, 1])
    fd.add_output(ops.add(x, 1.0), stride_order=[2, 0, 1])


@FILE.asserts(
    326,
    can="pointwise",
    inputs=[([1024, 128, 25], DataType.Float, [128 * 25, 1, 128]), ([1, 128, 1], DataType.Float, [128, 1, 128])],
)
def permuted_input_and_vector(fd, ops):
    a = fd.define_tensor([-1, -1, -1], contiguity=True, stride_order=[2, 0, 1])
    b = fd.define_tensor([1, -1, 1], contiguity=[None, None, True], stride_order=[2, 0, 1])
    fd.add_output(ops.add(ops.add(a, b), 1.0), stride_order=[2, 0, 1])


@FILE.asserts(391, can="pointwise", inputs=[[1024, 1, 2], [1024, 512, 2]])
def broadcast_in_the_middle(fd, ops):
    a, b = fd.define_tensor([-1, 1, -1], contiguity=[True, None, True]), dense(fd, 3)
    fd.add_output(ops.add(a, b))


@FILE.asserts(429, can="pointwise", inputs=[[1024, 1, 2], ([1024, 512, 2], DataType.Float, [2, 2048, 1])])
def permute_of_permuted_sum(fd, ops):
    a = fd.define_tensor([-1, 1, -1], contiguity=[True, None, True])
    b = fd.define_tensor([-1, -1, -1], contiguity=True, stride_order=[1, 2, 0])
    fd.add_output(ops.permute(ops.add(a, b), [1, 0, 2]))


@FILE.asserts(464, can="pointwise", inputs=[[1, 1024, 2], [512, 1024, 2]])
def permute_of_sum_with_outer_broadcast(fd, ops):
    a, b = fd.define_tensor([1, -1, -1], contiguity=[None, True, True]), dense(fd, 3)
    fd.add_output(ops.permute(ops.add(a, b), [1, 0, 2]))


@FILE.asserts(599, schedulers="pointwise", options=WITHOUT_ALIASES)
def broadcast_output_and_merged_sum(fd, ops):
    a, b = fd.define_tensor([1024, 1024], contiguity=True), fd.define_tensor([1024, 1024, 4], contiguity=True)
    wide = ops.broadcast(a, [False, False, True])
    fd.add_output(wide)
    fd.add_output(ops.reshape(ops.add(b, wide), [1024 * 1024 * 4]))


@FILE.asserts(644, schedulers="pointwise", options=WITHOUT_ALIASES)
def two_broadcasts_and_merged_sum(fd, ops):
    a, b = (fd.define_tensor([1024, 1024], contiguity=True) for _ in range(2))
    c = fd.define_tensor([1024, 1024, 4], contiguity=True)
    wide = ops.broadcast(a, [False, False, True])
    fd.add_output(wide)
    x = ops.add(ops.add(wide, c), ops.broadcast(b, [False, False, True]))
    fd.add_output(ops.reshape(x, [1024 * 1024 * 4]))


@FILE.asserts(671, schedulers="pointwise", inputs=[([2, 65536], DataType.Half, [0, 1])])
def expanded_input(fd, ops):
    x = fd.define_tensor([2, 65536], contiguity=[True, None], dtype=DataType.Half, stride_order=[0, 1])
    fd.add_output(ops.add(x, x))


def blocks(factor):
    """Return the rows and columns of the tests of unrolling."""
    return [SMS * 8 * THREADS // 128, 4 * 128 * factor]


@FILE.asserts(780, can="pointwise", inputs=[blocks(2)])
def doubled(fd, ops):
    x = dense(fd)
    fd.add_output(ops.add(x, x))


@FILE.asserts(815, can="pointwise", inputs=[blocks(4), [4 * 128 * 4]])
def sigmoid_like(fd, ops):
    a, b = dense(fd), dense(fd, 1)
    fd.add_output(ops.reciprocal(ops.exp(ops.add(a, ops.broadcast(b, [True, False])))))


@FILE.asserts(846, can="pointwise", inputs=[blocks(4), blocks(4)])
def tanh_of_sum(fd, ops):
    a, b = dense(fd), dense(fd)
    fd.add_output(ops.tanh(ops.add(a, b)))


@FILE.asserts(881, can="pointwise", inputs=[([1024, 1024], DataType.Float, [1, 1024])])
def pad_of_permuted_input(fd, ops):
    x = fd.define_tensor([1024, 1024], contiguity=True, stride_order=[0, 1])
    fd.add_output(ops.relu(ops.pad(x, [4, 4])), stride_order=[0, 1])


@FILE.asserts(942, can="pointwise", inputs=[[4, 7]])
def expanded_and_merged(fd, ops):
    x = ops.relu(dense(fd))
    fd.add_output(x)
    y = ops.expand(ops.broadcast(x, [False, True, False]), [4, 4, 7])
    fd.add_output(ops.reshape(y, [4, 28]))


@FILE.asserts(985, can="pointwise", inputs=[[2, 4], [3, 2, 4]])
def merged_input_and_larger_sum(fd, ops):
    a, b = dense(fd), dense(fd, 3)
    fd.add_output(ops.reshape(a, [8]))
    fd.add_output(ops.add(b, ops.broadcast(a, [True, False, False])))


@FILE.asserts(1028, can="pointwise", inputs=[[4, 7]])
def expanded_output(fd, ops):
    x = ops.relu(dense(fd))
    fd.add_output(x)
    fd.add_output(ops.expand(ops.broadcast(x, [False, True, False]), [4, 4, 7]))


@FILE.asserts(1192, can="pointwise", inputs=[[1, 5], [7, 1, 5]])
def padded_broadcast_axis_merged(fd, ops):
    a = fd.define_tensor([1, -1], contiguity=[None, False])
    b = fd.define_tensor([-1, 1, -1], contiguity=[False, None, False])
    fd.add_output(ops.add(b, a))
    fd.add_output(ops.reshape(ops.pad(a, [0, 0, 4, 4]), [45]))


@FILE.asserts(1241, can="pointwise", inputs=[[1, 5], ([2, 3, 4, 1], DataType.Float, [12, 4, 1, 1])])
def padded_broadcast_axis(fd, ops):
    a = fd.define_tensor([1, -1], contiguity=[None, False])
    b = fd.define_tensor([-1, -1, -1, 1], contiguity=[False, False, False, None])
    fd.add_output(ops.add(b, ops.broadcast(a, [True, True, False, False])))
    fd.add_output(ops.pad(a, [0, 0, 4, 4]))


@FILE.asserts(1288, can="pointwise", inputs=[[2, 4], [2, 4]])
def slice_and_merged_sum(fd, ops):
    a, b = dense(fd), fd.define_tensor([2, 4], contiguity=True)
    fd.add_output(ops.slice(b, [0, 0], [2, 1]))
    fd.add_output(ops.reshape(ops.add(a, b), [8]))


@FILE.asserts(1335, can="pointwise", inputs=[[2, 2, 4], [2, 4]])
def slice_and_merged_larger_sum(fd, ops):
    a, b = dense(fd, 3), fd.define_tensor([2, 4], contiguity=True)
    fd.add_output(ops.slice(b, [0, 0], [2, 1]))
    fd.add_output(ops.reshape(ops.add(a, b), [2, 8]))


@FILE.asserts(2126, can="pointwise", values=((1, 8192), (1, 8192)))
@FILE.asserts(2151, can="pointwise", values=((8192, 1), (8192, 1)))
@FILE.asserts(2177, can="pointwise", values=((8192, 1, 1024), (8192, 1, 1024)))
@FILE.asserts(2203, can="pointwise", values=((8192, 1, 1024), (8192, 2, 1024)))
def sum_with_size_1(fd, ops, first, second):
    a, b = (
        fd.define_tensor(list(shape), contiguity=[None if n == 1 else True for n in shape]) for shape in (first, second)
    )
    fd.add_output(ops.add(a, b))


# Lines 1443-1472 read the parameters of the first segment as those of PointWise.
PARAMETERS = {"times": {"pointwise": 1}}


def doubled_of_rank(fd, ops, rank):
    """Twice an input of a rank."""
    x = dense(fd, rank)
    fd.add_output(ops.add(x, x))


for _first in (*(2**n for n in range(21)), 2**20 + 8):
    for _rank in (1, 2, 3):
        _shape = [_first, 2, 4][:_rank]
        _count = _first * 2 * 4 if _rank == 3 else _first * _rank
        if _count % 8 == 0 and _count > 8:
            FILE.asserts(1556, **PARAMETERS, inputs=[_shape], values=(_rank,))(doubled_of_rank)
FILE.asserts(2034, **PARAMETERS, inputs=[[32768, 32768]], values=(2,))(doubled_of_rank)


@FILE.asserts(1773, **PARAMETERS, inputs=[[1024, 2048], [1024], [2048]])
def plus_column_and_row(fd, ops):
    a, b, c = dense(fd), dense(fd, 1), dense(fd, 1)
    fd.add_output(ops.add(ops.add(a, ops.broadcast(b, [False, True])), ops.broadcast(c, [True, False])))


@FILE.asserts(1943, **PARAMETERS, inputs=[[1024, 64], [1024]])
@FILE.asserts(1974, **PARAMETERS, inputs=[[8192, 8191], [8192]])
def plus_column(fd, ops):
    a, b = dense(fd), dense(fd, 1)
    fd.add_output(ops.add(a, ops.broadcast(b, [False, True])))


@FILE.asserts(2011, **PARAMETERS, inputs=[[16384, 16384], [16384], ([16384], DataType.BFloat16)])
def plus_two_columns(fd, ops):
    a, b = dense(fd), dense(fd, 1)
    c = fd.define_tensor([-1], contiguity=True, dtype=DataType.BFloat16)
    column = ops.cast(ops.broadcast(c, [False, True]), DataType.Float)
    fd.add_output(ops.add(ops.add(a, ops.broadcast(b, [False, True])), column))


@FILE.asserts(
    2073,
    **PARAMETERS,
    inputs=[([65535 * 20, 16], DataType.BFloat16), ([16], DataType.BFloat16), ([65535 * 20], DataType.BFloat16)],
)
def plus_row_and_column(fd, ops):
    inputs = [fd.define_tensor([-1] * n, contiguity=True, dtype=DataType.BFloat16) for n in (2, 1, 1)]
    row, column = ops.broadcast(inputs[1], [True, False]), ops.broadcast(inputs[2], [False, True])
    x, row, column = (ops.cast(value, DataType.Float) for value in (inputs[0], row, column))
    fd.add_output(ops.cast(ops.add(ops.add(x, row), column), DataType.BFloat16))


@FILE.asserts(2102, **PARAMETERS, inputs=[([16392], DataType.BFloat16), [16392]])
def sum_of_two_dtypes(fd, ops):
    a = fd.define_tensor([-1], contiguity=True, dtype=DataType.BFloat16)
    fd.add_output(ops.add(ops.cast(a, DataType.Float), dense(fd, 1)))

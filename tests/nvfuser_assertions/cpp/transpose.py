"""Of tests/cpp/test_transpose.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_transpose.cpp")

# TransposeTest runs without these passes (lines 54-69).
PLAIN = {"disable_preseg": ["MarkAliasesPreparePass", "AllocationDomainPass"]}
CUBE = [256, 1024, 1024]
SLAB = [32, 1024, 1024]

FILE.known_answer(1126, "view_permute_view")
FILE.known_answer(1242, "small_transpose_after_merge")
FILE.known_answer(1310, "permute_3d_ends")
FILE.known_answer(1360, "reduce_and_squeeze_join", times={"reduction": 1, "pointwise": 1})


def dense(fd, rank=3):
    """Return a dense input without constant sizes."""
    return fd.define_tensor([-1] * rank, contiguity=True)


def swap(ops, x, first, second, rank=3):
    """Return x with two axes exchanged."""
    order = list(range(rank))
    order[first], order[second] = order[second], order[first]
    return ops.permute(x, order)


@FILE.asserts(88, can="transpose", inputs=[CUBE])
def between_sin_and_cos(fd, ops):
    fd.add_output(ops.cos(swap(ops, ops.sin(dense(fd)), 1, 2)))


@FILE.asserts(114, can="transpose", inputs=[CUBE])
def two_permutes(fd, ops):
    x = ops.sin(swap(ops, dense(fd), 0, 2))
    fd.add_output(ops.cos(swap(ops, x, 1, 2)))


@FILE.asserts(144, can="transpose", inputs=[CUBE, CUBE])
def two_permuted_inputs(fd, ops):
    a, b = (swap(ops, x, 0, 2) for x in (dense(fd), dense(fd)))
    fd.add_output(ops.sin(ops.add(a, b)))


@FILE.asserts(169, can="transpose", inputs=[SLAB])
def two_permuted_outputs(fd, ops):
    x = dense(fd)
    a, b = ops.sin(x), ops.cos(x)
    fd.add_output(swap(ops, a, 0, 2))
    fd.add_output(swap(ops, b, 0, 2))


@FILE.asserts(204, can="transpose", inputs=[SLAB, SLAB])
def permuted_and_plain_output(fd, ops):
    a, b = dense(fd), dense(fd)
    fd.add_output(ops.sin(swap(ops, a, 0, 2)))
    fd.add_output(ops.cos(ops.add(a, b)))


@FILE.asserts(231, can="transpose", inputs=[SLAB])
def permute_and_back(fd, ops):
    x = dense(fd)
    y = swap(ops, x, 0, 2)
    fd.add_output(ops.add(x, swap(ops, y, 0, 2)))
    fd.add_output(ops.sin(y))


@FILE.asserts(255, can="transpose", inputs=[[1024, 256, 1024], [1024, 1024]])
def permuted_plus_broadcast(fd, ops):
    a, b = dense(fd), dense(fd, 2)
    fd.add_output(ops.add(swap(ops, a, 1, 2), ops.broadcast(b, [False, False, True])))


@FILE.asserts(281, cannot="transpose", inputs=[[1024, 256], [1024, 1024]])
def broadcasts_without_reference(fd, ops):
    a, b = dense(fd, 2), dense(fd, 2)
    fd.add_output(ops.add(ops.broadcast(a, [False, True, False]), ops.broadcast(b, [False, False, True])))


@FILE.asserts(320, schedulers="pointwise", inputs=[[1024, 1, 256], [1024, 1024, 1]], options=PLAIN, values=(True, True))
@FILE.asserts(
    320, schedulers="pointwise", inputs=[[1024, 1, 256], [1024, 1024, 1]], options=PLAIN, values=(True, False)
)
@FILE.asserts(
    320, schedulers="pointwise", inputs=[[1024, 1, 256], [1024, 1024, 1]], options=PLAIN, values=(False, True)
)
@FILE.asserts(
    320, schedulers="pointwise", inputs=[[1024, 1, 256], [1024, 1024, 1]], options=PLAIN, values=(False, False)
)
def two_broadcast_inputs(fd, ops, first, second):
    a = fd.define_tensor([-1, 1, -1], contiguity=[first, None, first])
    b = fd.define_tensor([-1, -1, 1], contiguity=[second, second, None])
    fd.add_output(ops.add(a, b))


@FILE.asserts(393, can="transpose", inputs=[[512, 1024, 256], [1024, 512, 256], [512, 256, 1024]])
def permutes_in_a_graph(fd, ops):
    a, b, c = (dense(fd) for _ in range(3))
    sum_c = ops.add(c, swap(ops, a, 1, 2))
    turned = swap(ops, ops.sigmoid(b), 0, 2)
    fd.add_output(ops.relu(ops.add(swap(ops, b, 0, 1), a)))
    fd.add_output(ops.sin(sum_c))
    fd.add_output(ops.add(turned, swap(ops, sum_c, 0, 1)))


@FILE.asserts(680, schedulers="pointwise", inputs=[[256, 512, 256], [1, 512, 1], [512]], options=PLAIN)
def inputs_without_axes_of_others(fd, ops):
    a, c = dense(fd), fd.define_tensor([1, -1, 1], contiguity=[None, True, None])
    b = dense(fd, 1)
    x = ops.sub(a, ops.broadcast(b, [True, False, True]))
    fd.add_output(ops.relu(ops.mul(x, c)))


@FILE.asserts(1056, segments=1, inputs=[[2, 7, 102400, 4, 5]], options=PLAIN)
def permute_of_five_axes(fd, ops):
    x = swap(ops, dense(fd, 5), 1, 4, 5)
    fd.add_output(swap(ops, x, 0, 3, 5))


@FILE.asserts(1085, schedulers="transpose", inputs=[[2, 7, 102400, 4, 9]], options=PLAIN)
def reversal_of_five_axes(fd, ops):
    x = swap(ops, dense(fd, 5), 0, 4, 5)
    fd.add_output(swap(ops, x, 1, 3, 5))


def split_and_permuted(fd, ops):
    """Return an input, and it with its last axis split and permuted."""
    x = fd.define_tensor([-1, -1, -1])
    y = swap(ops, ops.reshape(x, [8, 1024, 16, 64]), 1, 2, 4)
    return x, swap(ops, y, 2, 3, 4)


@FILE.asserts(1158, schedulers="transpose", inputs=[[8, 1024, 1024]], options=PLAIN)
def permute_of_split_axis(fd, ops):
    fd.add_output(split_and_permuted(fd, ops)[1])


@FILE.asserts(1201, segments=1, times={"transpose": 0}, inputs=[[8, 1024, 1024]], options=PLAIN)
def permute_of_split_axis_and_sum(fd, ops):
    x, y = split_and_permuted(fd, ops)
    fd.add_output(y)
    fd.add_output(ops.add(x, 1.0))


@FILE.asserts(1276, segments=1, inputs=[[8, 64, 1024]], options=PLAIN)
def two_permutes_of_split_axis(fd, ops):
    x = ops.reshape(dense(fd), [8, 64, 64, 16])
    fd.add_output(ops.reshape(swap(ops, x, 1, 2, 4), [8, 64, 1024]))
    fd.add_output(swap(ops, x, 0, 3, 4))


@FILE.asserts(1473, schedulers="pointwise", options=PLAIN)
def rows_times_column(fd, ops):
    a = fd.define_tensor([262144, 5120], contiguity=True, dtype=DataType.BFloat16)
    b = fd.define_tensor([262144, 1], contiguity=[True, None], dtype=DataType.BFloat16)
    x = ops.mul(ops.cast(a, DataType.Float), ops.cast(b, DataType.Float))
    fd.add_output(ops.cast(x, DataType.BFloat16))

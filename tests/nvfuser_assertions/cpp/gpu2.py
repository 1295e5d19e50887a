"""Of tests/cpp/test_gpu2.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions
from tests.nvfuser_assertions.normalization import softmax

FILE = Assertions("tests/cpp/test_gpu2.cpp")

FILE.known_answer(2645, "reduce_then_softmax")
FILE.known_answer(3303, "reduction_chain_and_late_join")
FILE.known_answer(3578, "combine_vertical")
FILE.known_answer(3618, "combine_horizontal")

ALONE = {"segmenter": {"run_herrmann_merge": False, "run_final_merge": False}, "entry": "segmenter_only"}
CHUNK = ([64, 512], "float32", [2048, 1])


def tensor(fd, axes, dtype=DataType.Float):
    return fd.define_tensor([-1] * axes, dtype=dtype)


@FILE.asserts(687, can="pointwise", inputs=[CHUNK] * 16 + [[64, 512]])
def lstm_cell(fd, ops):
    parts = [tensor(fd, 2) for _ in range(16)]
    state = fd.define_tensor([-1, -1], contiguity=True)
    sums = [ops.add(ops.add(ops.add(a, b), c), d) for a, b, c, d in (parts[i : i + 4] for i in range(0, 16, 4))]
    entry, forget = ops.sigmoid(sums[0]), ops.sigmoid(sums[1])
    cell, out = ops.tanh(sums[2]), ops.sigmoid(sums[3])
    new = ops.add(ops.mul(forget, state), ops.mul(entry, cell))
    fd.add_output(new)
    fd.add_output(ops.mul(out, ops.tanh(new)))


@FILE.asserts(710, can="reduction", inputs=[([8, 8, 16], "float16")])
def sum_of_half(fd, ops):
    wide = ops.add(ops.cast(tensor(fd, 3, DataType.Half), DataType.Float), 1.0)
    fd.add_output(ops.cast(ops.sum(wide, [2]), DataType.Half))


@FILE.asserts(767, can="reduction", values=(0,))
@FILE.asserts(804, can="reduction", values=(1,))
@FILE.asserts(838, can="reduction", values=(2,))
def sum_with_broadcast_axis(fd, ops, case):
    a = fd.define_tensor([80, 4096, 1])
    if case == 0:
        fd.add_output(ops.sum(a, [1, 2]))
    elif case == 1:
        fd.add_output(ops.sum(ops.sum(a, [2]), [1]))
    else:
        fd.add_output(ops.squeeze(ops.sum(a, [1]), [1]))


@FILE.asserts(899, can="pointwise", inputs=[[7, 8], [1, 1, 7, 8]], values=(2,))
@FILE.asserts(923, can="pointwise", inputs=[[7, 8], [1, 1, 1, 7, 8]], values=(3,))
def trivial_reduction(fd, ops, ones):
    a = tensor(fd, 2)
    b = fd.define_tensor([1] * ones + [7, 8])
    total = ops.sum(ops.sum(b, [0]), [0]) if ones == 2 else ops.sum(b, [0, 1, 2])
    fd.add_output(ops.add(total, a))


@FILE.asserts(1150, can="pointwise", inputs=[([4096], "float16"), ([6, 512, 4096], "float16")])
def bias_gelu(fd, ops):
    bias = ops.cast(tensor(fd, 1, DataType.Half), DataType.Float)
    x = ops.cast(tensor(fd, 3, DataType.Half), DataType.Float)
    x = ops.add(ops.broadcast(bias, [True, True, False]), x)
    cubic = ops.add(ops.mul(ops.mul(x, 0.044715), x), 1)
    gate = ops.add(ops.tanh(ops.mul(ops.mul(x, 0.79788456), cubic)), 1)
    fd.add_output(ops.cast(ops.mul(ops.mul(x, 0.5), gate), DataType.Half))


@FILE.asserts(
    1215, can="pointwise", inputs=[([6, 512, 4096], "float16"), ([4096], "float16"), ([6, 512, 4096], "float16")],
)
def bias_gelu_backward(fd, ops):
    grad = ops.cast(tensor(fd, 3, DataType.Half), DataType.Float)
    bias = ops.cast(tensor(fd, 1, DataType.Half), DataType.Float)
    x = ops.cast(tensor(fd, 3, DataType.Half), DataType.Float)
    x = ops.add(ops.broadcast(bias, [True, True, False]), x)
    cubic = ops.add(ops.mul(ops.mul(x, 0.044715), x), 1)
    tanh = ops.tanh(ops.mul(ops.mul(x, 0.79788456), cubic))
    slope = ops.add(ops.neg(ops.mul(tanh, tanh)), 1)
    inner = ops.add(ops.mul(ops.mul(x, 0.1070322243), x), 0.79788456)
    first = ops.mul(ops.mul(x, 0.5), ops.mul(slope, inner))
    result = ops.mul(ops.add(first, ops.mul(ops.add(tanh, 1), 0.5)), grad)
    fd.add_output(result)
    fd.add_output(ops.cast(result, DataType.Half))


@FILE.asserts(2604, segments=2, inputs=[[128, 65], [65], [128, 65]])
def reduce_then_pointwise(fd, ops):
    a, b, c = tensor(fd, 2), tensor(fd, 1), tensor(fd, 2)
    fd.add_output(ops.add(ops.add(ops.max(ops.add(a, 1.0), [0]), b), c))


@FILE.asserts(3340, segments=2, inputs=[[16, 16, 16], 0.5])
def scalars_of_two_segments(fd, ops):
    a, scalar = tensor(fd, 3), fd.define_scalar(dtype=DataType.Double)
    first = ops.add(scalar, 1.0)
    square = ops.mul(first, first)
    last = ops.add(square, first)
    total = ops.sum(ops.add(ops.sum(a, [0]), square), [0])
    fd.add_output(ops.add(ops.add(total, last), scalar))


@FILE.asserts(3657, most=2, inputs=[[2, 2, 2]], options=ALONE)
def mixed_reductions(fd, ops):
    a = tensor(fd, 3)
    first = ops.sum(a, [0, 1])
    rows = ops.broadcast(ops.sum(a, [2]), [False, False, True])
    second = ops.sum(ops.add(a, rows), [2])
    roots = ops.rsqrt(a)
    for result in (first, second, ops.sum(roots, [0, 1]), ops.sum(roots, [0, 1])):
        fd.add_output(result)


@FILE.asserts(3703, can="pointwise", inputs=[[656, 7, 7, 64], [656, 7, 7, 64], [64], [64]])
def scale_bias_add_relu(fd, ops):
    x, y, weight, bias = (fd.define_tensor([-1] * axes, contiguity=True) for axes in (4, 4, 1, 1))
    mask = [True, True, True, False]
    scaled = ops.add(ops.mul(x, ops.broadcast(weight, mask)), ops.broadcast(bias, mask))
    fd.add_output(ops.relu(ops.add(scaled, y)))


@FILE.asserts(3722, can="pointwise", inputs=[[]])
def single_element(fd, ops):
    fd.add_output(ops.add(ops.add(tensor(fd, 0), 2.5), 3.5))


@FILE.asserts(4016, cannot="pointwise", inputs=[[2], [0]])
def pointwise_of_empty(fd, ops):
    a, b = tensor(fd, 1), fd.define_tensor([0])
    fd.add_output(ops.add(a, 2.5))
    fd.add_output(ops.set(b))


@FILE.asserts(5634, can="pointwise", inputs=[[3, 17, 80], [3, 17, 80]])
def pointwise_broadcast(fd, ops):
    x = ops.broadcast(ops.add(tensor(fd, 3), tensor(fd, 3)), [False, False, True, False])
    fd.add_output(ops.mul(x, ops.mul(0.5, ops.add(1.0, ops.erf(ops.mul(x, 0.5**0.5))))))


@FILE.asserts(5656, can="pointwise", inputs=[[1024 * 64]])
def vectorized(fd, ops):
    fd.add_output(ops.sin(fd.define_tensor([-1], contiguity=True)))


@FILE.asserts(6142, can="inner_persistent", inputs=[[8, 16 * 197]])
def warp_softmax(fd, ops):
    fd.add_output(softmax(ops, fd.define_tensor([-1, -1], contiguity=True), 2, 1))

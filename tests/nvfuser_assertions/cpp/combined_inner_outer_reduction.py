"""Of tests/cpp/test_combined_inner_outer_reduction.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions
from tests.nvfuser_assertions.normalization import layer_norm_backward, rms_norm_backward

FILE = Assertions("tests/cpp/test_combined_inner_outer_reduction.cpp")

SPECIALIZED = {"enable": ["warp_specialized_normalization"]}


def tensor(fd, *shape, dtype=DataType.Float):
    return fd.define_tensor(list(shape), contiguity=True, dtype=dtype)


def maybe_cast(ops, dtype, *args):
    """Return the tensors in a dtype, without an op for those that have it."""
    cast = [arg if arg.dtype is dtype else ops.cast(arg, dtype) for arg in args]
    return cast if len(cast) > 1 else cast[0]


def rows(ops, arg):
    return ops.broadcast(ops.sum(arg, [1]), [False, True])


def layer_norm_inputs(fd, batch):
    grad, x = tensor(fd, -1, -1), tensor(fd, -1, -1)
    mean, inverse = fd.define_tensor([batch, 1]), fd.define_tensor([batch, 1])
    return grad, x, mean, inverse, tensor(fd, -1), tensor(fd, -1)


def shapes(batch, features):
    return [[batch, features], [batch, features], [batch, 1], [batch, 1], [features], [features]]


@FILE.asserts(303, least=2, inputs=shapes(8192, 2048), values=(True,))
@FILE.asserts(303, least=2, inputs=shapes(8192, 2048), values=(False,))
def shared_consumer(fd, ops, inner_and_outer):
    grad, x, mean, inverse, weight, _ = layer_norm_inputs(fd, 8192)
    first, of_weight, of_bias = layer_norm_backward(ops, grad, x, mean, inverse, weight, 2, 2048)
    if inner_and_outer:
        fd.add_output(ops.add(first, of_weight))
    else:
        fd.add_output(ops.mul(ops.add(of_bias, of_weight), 0.5))
    for result in (first, of_weight, of_bias):
        fd.add_output(result)


@FILE.asserts(473, least=2, inputs=shapes(64, 32), values=(0,))
@FILE.asserts(473, least=2, inputs=shapes(64, 32), values=(1,))
@FILE.asserts(476, segments=1, inputs=shapes(64, 32), values=(2,))
@FILE.asserts(473, least=2, inputs=shapes(64, 32), values=(3,))
def shared_producer(fd, ops, case):
    grad, x, mean, inverse, weight, bias = layer_norm_inputs(fd, 64)
    first, of_weight, of_bias = layer_norm_backward(ops, grad, x, mean, inverse, weight, 2, 32)
    if case == 0:
        others = ops.add(first, x), ops.add(of_weight, x)
    elif case == 1:
        others = ops.sum(ops.add(bias, mean), [-1]), ops.add(of_weight, bias)
    elif case == 2:
        biased = ops.add(bias, mean)
        others = ops.add(first, biased), ops.sum(biased, [0])
    else:
        more = ops.add(of_weight, 1.0), ops.add(of_bias, 1.0)
        others = ops.add(more[0], bias), ops.add(more[1], bias)
    for result in (*others, first, of_weight, of_bias):
        fd.add_output(result)


@FILE.asserts(870, segments=1, inputs=[[8, 16, 32]], values=([0, 1],))
@FILE.asserts(872, least=2, inputs=[[8, 16, 32]], values=([0],))
def other_axes(fd, ops, axes):
    a = tensor(fd, -1, -1, -1)
    fd.add_output(ops.add(ops.broadcast(ops.sum(a, [-1]), [False, False, True]), a))
    fd.add_output(ops.sum(a, axes))


@FILE.asserts(918, can="inner_outer_persistent", inputs=[[1024, 2048]])
def no_outer_broadcast(fd, ops):
    a = tensor(fd, -1, -1)
    fd.add_output(ops.add(rows(ops, a), a))
    fd.add_output(ops.sum(a, [0]))


@FILE.asserts(974, can="inner_outer_persistent", inputs=[([1024, 4096], "float16")])
def half_in_shared_memory(fd, ops):
    a = ops.cast(tensor(fd, -1, -1, dtype=DataType.Half), DataType.Float)
    fd.add_output(ops.cast(ops.add(rows(ops, a), a), DataType.Half))
    fd.add_output(ops.cast(ops.sum(a, [0]), DataType.Half))


@FILE.asserts(1044, can="inner_outer_persistent", inputs=[([4, 1024, 4096], "float16")])
@FILE.asserts(1044, can="inner_outer_persistent", inputs=[([4096, 4, 1024], "float16")])
def reshaped(fd, ops):
    wide = ops.cast(tensor(fd, -1, -1, -1, dtype=DataType.Half), DataType.Float)
    a = ops.reshape(wide, [4096, 4096])
    fd.add_output(ops.cast(ops.add(rows(ops, a), a), DataType.Half))
    fd.add_output(ops.cast(ops.sum(a, [0]), DataType.Half))


def for_sizes(line):
    """Return a decorator that adds every fourth size and both dtypes of nvFuser's parameters."""

    def add(define):
        for features in (*range(1024, 8192, 1024), 8192):
            for dtype in (DataType.Float, DataType.BFloat16):
                for contiguous in (True, False) if features == 1024 else (True,):
                    FILE.asserts(
                        line, schedulers="inner_outer_persistent", values=(contiguous, dtype, features),
                        options=SPECIALIZED,
                    )(define)
        return define

    return add


def two_sums(fd, ops, dtype, batch, features):
    inputs = (tensor(fd, batch, features, dtype=dtype), tensor(fd, batch, features, dtype=dtype))
    a, b = maybe_cast(ops, DataType.Float, *inputs)
    both = ops.add(a, b)
    fd.add_output(maybe_cast(ops, dtype, ops.add(both, rows(ops, both))))
    fd.add_output(ops.sum(b, [0]))


@for_sizes(1064)
def simple(fd, ops, _, dtype, features):
    two_sums(fd, ops, dtype, 2048, features)


def norm_inputs(fd, ops, contiguous, dtype, features):
    grad, x = (tensor(fd, 2048, features, dtype=dtype) for _ in range(2))
    scale = fd.define_tensor([2048, 1], contiguity=[contiguous, None])
    weight = tensor(fd, features, dtype=dtype)
    return *maybe_cast(ops, DataType.Float, grad, x), scale, maybe_cast(ops, DataType.Float, weight)


@for_sizes(1166)
def gradient_of_rms_norm(fd, ops, contiguous, dtype, features):
    grad, x, inverse, weight = norm_inputs(fd, ops, contiguous, dtype, features)
    for result in rms_norm_backward(ops, grad, x, inverse, weight, 2, features):
        fd.add_output(maybe_cast(ops, dtype, result))


@for_sizes(1223)
def gradient_of_thunder_rms_norm(fd, ops, contiguous, dtype, features):
    """Record thunder_rms_norm_backward (csrc/ops/normalization.cpp:498-535)."""
    grad, x, rms, weight = norm_inputs(fd, ops, contiguous, dtype, features)
    scaled = ops.mul(grad, ops.broadcast(weight, [True, False]))
    total = rows(ops, ops.mul(ops.mul(ops.neg(scaled), x), ops.reciprocal(ops.mul(rms, rms))))
    factor = ops.mul(x, ops.mul(ops.reciprocal(ops.mul(rms, 2.0)), 1 / features))
    inverse = ops.reciprocal(rms)
    fd.add_output(maybe_cast(ops, dtype, ops.add(ops.mul(total, factor), ops.mul(scaled, inverse))))
    fd.add_output(maybe_cast(ops, dtype, ops.sum(ops.mul(grad, ops.mul(x, inverse)), [0])))


@FILE.asserts(1365, can="inner_outer_persistent", options=SPECIALIZED)
def static_warp_reduction(fd, ops):
    two_sums(fd, ops, DataType.Float, 2048, 4096)


@FILE.asserts(1552, times={"inner_outer_persistent": 1}, options=SPECIALIZED)
def reshaped_to_three_axes(fd, ops):
    a, b = (ops.reshape(tensor(fd, 512, 32), [128, 4, 32]) for _ in range(2))
    both = ops.add(ops.set(a), ops.set(b))
    fd.add_output(ops.add(both, ops.broadcast(ops.sum(both, [2]), [False, False, True])))
    fd.add_output(ops.sum(both, [0, 1]))


@FILE.asserts(1625, times={"inner_outer_persistent": 1}, values=(0,), options=SPECIALIZED)
@FILE.asserts(1625, times={"inner_outer_persistent": 1}, values=(1,), options=SPECIALIZED)
@FILE.asserts(1625, times={"inner_outer_persistent": 1}, values=(2,), options=SPECIALIZED)
def other_tensor_has_more_axes(fd, ops, position):
    a = tensor(fd, 2048, 32)
    shape = [2048, 32]
    shape.insert(position, 1)
    b = tensor(fd, *shape)
    wide = ops.broadcast(ops.add(a, rows(ops, a)), [size == 1 for size in shape])
    fd.add_output(ops.sum(a, [0]))
    fd.add_output(ops.add(b, wide))

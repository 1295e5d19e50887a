"""Of tests/python/direct/test_tutorial.py, which also asserts that no other scheduler accepts the fusion."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/python/direct/test_tutorial.py")

ALL = (
    "expr_eval", "no_op", "matmul", "reduction", "resize", "transpose", "pointwise", "inner_persistent",
    "outer_persistent", "inner_outer_persistent", "greedy",
)


def others(name):
    return " ".join(other for other in ALL if other != name)


def square(fd):
    return fd.define_tensor([-1, -1], contiguity=True)


@FILE.asserts(1589, can="pointwise", cannot=others("pointwise"), inputs=[[4, 4], [4, 4]])
def pointwise(fd, ops):
    fd.add_output(ops.exp(ops.add(square(fd), square(fd))))


@FILE.asserts(1615, cannot="pointwise", inputs=[[4, 4]])
@FILE.asserts(1625, can="reduction", cannot=others("reduction"), inputs=[[4, 4]])
def reduction(fd, ops):
    fd.add_output(ops.exp(ops.sum(square(fd), dims=[1])))


@FILE.asserts(1661, can="inner_persistent", cannot=others("inner_persistent"), inputs=[[4, 4]])
def inner_persistent(fd, ops):
    a = square(fd)
    epsilon, size = fd.define_scalar(1e-6, dtype=DataType.Double), fd.define_scalar(4, dtype=DataType.Int)
    mean = ops.div(ops.sum(a, dims=[-1], keepdim=True), size)
    centered = ops.sub(a, mean)
    variance = ops.div(ops.sum(ops.mul(centered, centered), dims=[-1], keepdim=True), size)
    fd.add_output(ops.div(ops.sub(a, mean), ops.sqrt(ops.add(variance, epsilon))))


@FILE.asserts(1947, can="inner_persistent", cannot=others("inner_persistent"))
def rms_norm_of_one_row(fd, ops):
    bf16 = DataType.BFloat16
    a, residual = (fd.define_tensor([1, 2880], contiguity=[None, True], dtype=bf16) for _ in range(2))
    weight = fd.define_tensor([2880], contiguity=True, dtype=bf16)
    size, epsilon = fd.define_scalar(2880), fd.define_scalar(1e-5)
    x = ops.add(a, residual)
    variance = ops.div(ops.sum(ops.mul(x, x), dims=[-1], keepdim=True), size)
    normalized = ops.mul(x, ops.rsqrt(ops.add(variance, epsilon)))
    wide = ops.broadcast_in_dim(weight, shape=[1, 2880], broadcast_dims=[1])
    fd.add_output(ops.cast(ops.mul(normalized, wide), dtype=bf16), a)

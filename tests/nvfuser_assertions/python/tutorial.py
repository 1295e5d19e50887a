"""Of tests/python/direct/test_tutorial.py."""

from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/python/direct/test_tutorial.py")


TOKENS, HIDDEN = 1, 2880


def only(scheduler):
    """Return what check_auto_schedule (lines 37-83) asserts: one scheduler accepts and no other one."""
    return {"can": scheduler, "cannot": " ".join(kind.value for kind in SchedulerType if kind.value != scheduler)}


@FILE.asserts(1589, **only("pointwise"), inputs=[[4, 4], [4, 4]])
def exp_of_sum(fd, ops):
    a, b = (fd.define_tensor([-1, -1], contiguity=True) for _ in range(2))
    fd.add_output(ops.exp(ops.add(a, b)))


@FILE.asserts(1618, cannot="pointwise", inputs=[[4, 4]])
@FILE.asserts(1625, **only("reduction"), inputs=[[4, 4]])
def exp_of_row_sums(fd, ops):
    fd.add_output(ops.exp(ops.sum(fd.define_tensor([-1, -1], contiguity=True), [1])))


@FILE.asserts(1661, **only("inner_persistent"), inputs=[[4, 4]])
def layer_norm(fd, ops):
    x = fd.define_tensor([-1, -1], contiguity=True)
    size = fd.define_scalar(4, dtype=DataType.Int)
    mean = ops.div(ops.sum(x, [-1], keepdim=True), size)
    apart = ops.sub(x, mean)
    variance = ops.div(ops.sum(ops.mul(apart, apart), [-1], keepdim=True), size)
    spread = ops.sqrt(ops.add(variance, fd.define_scalar(1e-6, dtype=DataType.Double)))
    fd.add_output(ops.div(ops.sub(x, mean), spread))


@FILE.asserts(1947, **only("inner_persistent"))
def rms_norm_of_sum(fd, ops):
    x, residual = (
        fd.define_tensor([TOKENS, HIDDEN], contiguity=[None if TOKENS == 1 else True, True], dtype=DataType.BFloat16)
        for _ in range(2)
    )
    weight = fd.define_tensor([HIDDEN], contiguity=True, dtype=DataType.BFloat16)
    both = ops.add(x, residual)
    mean = ops.div(ops.sum(ops.mul(both, both), [-1], keepdim=True), fd.define_scalar(HIDDEN))
    scaled = ops.mul(both, ops.rsqrt(ops.add(mean, fd.define_scalar(1e-6))))
    whole = ops.mul(scaled, ops.broadcast_in_dim(weight, [TOKENS, HIDDEN], [1]))
    fd.add_output(ops.cast(whole, DataType.BFloat16), alias_input=x)

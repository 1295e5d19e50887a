"""Of tests/cpp/test_reduction_pointwise.cpp."""

from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_reduction_pointwise.cpp")


def dense(fd, rank=2):
    """Return a dense input without constant sizes."""
    return fd.define_tensor([-1] * rank, contiguity=True)


@FILE.asserts(51, cannot="reduction", inputs=[[8192, 1024], [8192]], values=(1,))
@FILE.asserts(53, can="reduction", inputs=[[8192, 1024], [1024]], values=(0,))
def sums_plus_vector(fd, ops, axis):
    a, b = dense(fd), dense(fd, 1)
    fd.add_output(ops.add(ops.sum(a, [axis]), b))


@FILE.asserts(107, cannot="reduction", inputs=[[8192, 1024], [8192, 1024]], values=(0,))
@FILE.asserts(107, cannot="reduction", inputs=[[8192, 1024], [8192, 1024]], values=(1,))
def broadcast_sums_plus_matrix(fd, ops, axis):
    a, b = dense(fd), dense(fd)
    fd.add_output(ops.add(ops.broadcast(ops.sum(a, [axis]), [axis == 0, axis == 1]), b))


@FILE.asserts(193, least=2, inputs=[[1, 100], [5, 100]])
def sum_beside_larger_sum(fd, ops):
    a, b = fd.define_tensor([1, -1], contiguity=[None, True]), dense(fd)
    fd.add_output(ops.sum(a, [0, 1]))
    fd.add_output(ops.add(a, b))


@FILE.asserts(224, least=2, inputs=[[100, 20, 1], [100, 20, 128]])
def inner_norm_beside_larger_sum(fd, ops):
    a, b = fd.define_tensor([-1, -1, 1], contiguity=[True, True, None]), dense(fd, 3)
    fd.add_output(ops.add(a, ops.sum(a, [1, 2], keepdim=True)))
    fd.add_output(ops.add(a, b))


@FILE.asserts(255, least=2, inputs=[[1, 20, 100], [128, 20, 100]])
def outer_norm_beside_larger_sum(fd, ops):
    a, b = fd.define_tensor([1, -1, -1], contiguity=[None, True, True]), dense(fd, 3)
    fd.add_output(ops.add(a, ops.sum(a, [0, 1], keepdim=True)))
    fd.add_output(ops.add(a, b))

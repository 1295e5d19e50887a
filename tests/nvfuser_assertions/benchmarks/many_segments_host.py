"""Of benchmarks/python/host/test_many_segments_host.py."""

from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("benchmarks/python/host/test_many_segments_host.py")


def for_sizes(define):
    for size in (5, 7, 9, 11):
        FILE.asserts(67, segments=12, inputs=[[size, size], [size, size]])(define)
    return define


@for_sizes
def many_products(fd, ops):
    x, y = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1, -1], contiguity=True)
    a = ops.add(x, y)
    for _ in range(5):
        moved = ops.permute(a, [1, 0])
        product = ops.matmul(moved, y)
        a = ops.add(product, ops.add(moved, y))
    fd.add_output(a)

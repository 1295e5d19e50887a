"""Of tests/cpp/test_cluster.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions
from tests.nvfuser_assertions.normalization import softmax

FILE = Assertions("tests/cpp/test_cluster.cpp")

ROWS = 16  # an eighth of an H200's multiprocessors
CLUSTER_BITS = 16 * 8 * 128 * 1024  # of 16 blocks that each keep half of a register file


def for_sizes(define):
    """Add nvFuser's parameters for which it asserts one segment (test_cluster.cpp:179)."""
    for size in (129280, 128256, 202048, 256000, 131072, 152064, 100352, 1024 * 1024):
        for dtype, name, bits in ((DataType.BFloat16, "bfloat16", 16), (DataType.Float, "float32", 32)):
            if size * bits <= CLUSTER_BITS:
                inputs = [([ROWS, size], name)]
                FILE.asserts(182, schedulers="inner_persistent", inputs=inputs, values=(dtype,))(define)
    return define


@for_sizes
def softmax_of_vocabulary(fd, ops, dtype):
    a = fd.define_tensor([-1, -1], contiguity=True, dtype=dtype)
    wide = a if dtype is DataType.Float else ops.cast(a, DataType.Float)
    fd.add_output(ops.cast(softmax(ops, wide, 2, 1), DataType.BFloat16))

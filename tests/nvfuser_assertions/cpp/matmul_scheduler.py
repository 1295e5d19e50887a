"""Of tests/cpp/test_matmul_scheduler.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_matmul_scheduler.cpp")
FILE.inexpressible(
    "fusedMultiplySum is not an op of the Python API",
    227, 315, 419, 510, 623, 713, 802, 908, 1018, 1071, 1125, 1173, 1222, 1275, 1331, 1389, 1458, 1534, 1617, 1704,
    1756, 1832, 1914, 1975, 2038, 2139, 2336, 2538, 2545,
)
FILE.inexpressible("fuse_multiple_matmuls is not an option here", 2875)

LAYOUT_PASS_OFF = {"disable_preseg": ["AllocationDomainPass"]}
FUSED = {"enable": ["fuse_matmul"], **LAYOUT_PASS_OFF}


@FILE.asserts(2685, least=2, inputs=[[504, 248], [248, 136]], options=FUSED, target="A100")
def product_of_floats(fd, ops):
    a, b = (fd.define_tensor([-1, -1], contiguity=True) for _ in range(2))
    fd.add_output(ops.matmul(a, ops.set(ops.sin(b))))


SHAPES = [([504, 248], "float16"), ([248, 136], "float16"), ([248, 136], "float16")]


@FILE.asserts(2874, segments=3, inputs=SHAPES, options=LAYOUT_PASS_OFF, target="A100")
@FILE.asserts(2874, segments=2, inputs=SHAPES, options=FUSED, target="A100")
def feed_forward(fd, ops):
    x, gate, up = (fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Half) for _ in range(3))
    first, second = ops.matmul(x, gate), ops.matmul(x, up)
    fd.add_output(ops.mul(ops.mul(ops.sigmoid(first), first), second))

"""Of tests/cpp/test_matmul_scheduler.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_matmul_scheduler.cpp")

PLAIN = {"disable_preseg": ["AllocationDomainPass"]}
FUSED = {"enable": ["fuse_matmul"], **PLAIN}

FILE.inexpressible(
    "products made by fusedMultiplySum",
    227,
    315,
    419,
    510,
    623,
    713,
    802,
    908,
    1018,
    1071,
    1125,
    1173,
    1222,
    1275,
    1331,
    1389,
    1458,
    1534,
    1617,
    1704,
    1756,
    1832,
    1914,
    1975,
    2038,
    2139,
    2336,
    2538,
    2544,
)


def matrices(fd, count, dtype):
    """Return dense inputs without constant sizes."""
    return [fd.define_tensor([-1, -1], contiguity=True, dtype=dtype) for _ in range(count)]


@FILE.asserts(2685, least=2, inputs=[[504, 248], [248, 136]], options=FUSED, target="A100")
def matmul_of_floats(fd, ops):
    a, b = matrices(fd, 2, DataType.Float)
    fd.add_output(ops.matmul(a, ops.sin(b)))


SIZES = [([504, 248], DataType.Half), ([248, 136], DataType.Half), ([248, 136], DataType.Half)]


@FILE.asserts(2874, segments=3, inputs=SIZES, options=PLAIN, target="A100")
@FILE.asserts(2874, segments=2, inputs=SIZES, options=FUSED, target="A100")
def gated_product(fd, ops):
    a, b, c = matrices(fd, 3, DataType.Half)
    x, y = ops.matmul(a, b), ops.matmul(a, c)
    fd.add_output(ops.mul(ops.mul(ops.sigmoid(x), x), y))

"""Of tests/cpp/test_translate_mma.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_translate_mma.cpp")

HALF = DataType.Half
M, N, K, BATCH = 504, 136, 248, 3
PLAIN = {"disable_preseg": ["AllocationDomainPass"]}
FUSED = {"enable": ["fuse_matmul"], **PLAIN}
EVALUATED = {"least": 2, "times": {"expr_eval": 1}}  # the product; other segments are kernels

FILE.inexpressible("two guards allow no device: lines 254 and 66-82", 290)


def matrix(fd, rank, transposed):
    """Return a dense input of half precision, whose last axis is not the fastest if it is transposed."""
    order = [*reversed(range(2, rank)), 0, 1] if transposed else []
    return fd.define_tensor([-1] * rank, contiguity=True, dtype=HALF, stride_order=order)


def shape(rank, *last):
    """Return a shape with these last sizes, or the last of them."""
    return [BATCH] * (rank - 2) + list(last)[-rank:] if rank > 1 else [K]


def sin_of_matmul(fd, ops, first, second, transposed):
    a, b = matrix(fd, first, transposed), matrix(fd, second, transposed=False)
    fd.add_output(ops.cast(ops.sin(ops.matmul(a, b)), HALF))


def sin_of_linear(fd, ops, first, second, bias, transposed):
    a, b = matrix(fd, first, transposed), matrix(fd, second, transposed=False)
    operands = (a, b) if bias < 0 else (a, b, matrix(fd, bias, transposed=False))
    fd.add_output(ops.cast(ops.sin(ops.linear(*operands)), HALF))


for _first, _second, _fuse, _transposed, _stated in (
    (2, 2, False, False, EVALUATED),
    (2, 2, False, True, EVALUATED),
    (2, 2, True, False, {"schedulers": "matmul"}),
    (2, 2, True, True, {"schedulers": "matmul"}),
    (1, 2, True, False, EVALUATED),
    (2, 1, True, False, EVALUATED),
    (1, 1, True, False, EVALUATED),
    (3, 1, True, False, EVALUATED),
    (3, 3, True, False, {"schedulers": "matmul"}),
    (4, 4, True, False, {"schedulers": "matmul"}),
    (2, 3, True, False, EVALUATED),
    (3, 4, True, False, EVALUATED),
):
    FILE.asserts(
        397,
        **_stated,
        options=FUSED if _fuse else PLAIN,
        values=(_first, _second, _transposed),
        inputs=[
            (shape(_first, M, K), HALF, [1, M] if _transposed else None),
            (shape(_second, K, N), HALF),
        ],
    )(sin_of_matmul)

# Linears with more axes are not run where this test is (lines 492-495).
for _first, _second, _bias, _fuse, _transposed, _stated in (
    (2, 2, -1, False, False, EVALUATED),
    (2, 2, -1, False, True, EVALUATED),
    (1, 2, -1, False, False, EVALUATED),
    (2, 2, 1, False, False, EVALUATED),
    (3, 2, 1, False, False, EVALUATED),
    (4, 2, 1, False, False, EVALUATED),
    (2, 2, -1, True, False, {"schedulers": "matmul"}),
    (2, 2, -1, True, True, {"schedulers": "matmul"}),
    (2, 2, 1, True, False, {"schedulers": "matmul"}),
):
    _inputs = [
        (shape(_first, M, K), HALF, [1, M] if _transposed else None),
        (shape(_second, N, K), HALF),
        ([N], HALF),
    ]
    FILE.asserts(
        579,
        **_stated,
        options=FUSED if _fuse else PLAIN,
        values=(_first, _second, _bias, _transposed),
        inputs=_inputs[: 2 if _bias < 0 else 3],
    )(sin_of_linear)

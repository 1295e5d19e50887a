"""Of tests/cpp/test_matmul_aten_evaluation.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_matmul_aten_evaluation.cpp")

B, M, K, N = 128, 64, 32, 16


def linear(fd, ops, shapes, constant):
    """A linear without other ops, of constant or open sizes."""
    operands = [
        fd.define_tensor(
            list(shape) if constant else [-1] * len(shape),
            dtype=DataType.Half,
            contiguity=[None if constant and n == 1 else False for n in shape],
        )
        for shape in shapes
    ]
    fd.add_output(ops.linear(*operands))


def rows(size):
    """Return the shapes of the first operand for a number of columns."""
    return (size,), (M, size), (B, M, size), (1, size), (B, 1, size)


SHAPES = [
    *((rows_, (n, K)) for rows_ in rows(K) for n in (N, 1)),
    *((rows_, (N, K), (N,)) for rows_ in rows(K)),
    *((rows_, (N, 1), (N,)) for rows_ in rows(1)),
]
for _shapes in SHAPES:
    for _line, _constant in (244, True), (293, False):
        FILE.asserts(
            _line,
            schedulers="expr_eval",
            values=(_shapes, _constant),
            inputs=[(list(shape), DataType.Half) for shape in _shapes],
        )(linear)

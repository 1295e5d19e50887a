"""Of tests/python/direct/test_python_direct.py."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/python/direct/test_python_direct.py")

BFLOAT16 = DataType.BFloat16

FILE.inexpressible("the option matmul_expr_eval", 425)


@FILE.asserts(504, segments=2, inputs=[[2, 5], [2, 5]])
def sum_of_row_sums(fd, ops):
    a, b = (fd.define_tensor([-1, -1], contiguity=True) for _ in range(2))
    fd.add_output(ops.sum(ops.sum(ops.add(a, b), [-1]), [-1]))


@FILE.asserts(562, segments=2, inputs=[([2, 4, 16], BFLOAT16), ([2, 4, 16], BFLOAT16), ([16, 16], BFLOAT16)])
def linear_plus_input(fd, ops):
    a, b, c = (fd.define_tensor([-1] * rank, contiguity=True, dtype=BFLOAT16) for rank in (3, 3, 2))
    fd.add_output(ops.add(ops.linear(a, c), b))

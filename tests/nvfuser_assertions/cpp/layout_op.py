"""Of tests/cpp/test_layout_op.cpp."""

from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_layout_op.cpp")
FILE.inexpressible("preprocessGroupedMatmulInputSf is not an op of the Python API", 337)
FILE.inexpressible("groupedBlockQuantize is not an op of the Python API", 441)

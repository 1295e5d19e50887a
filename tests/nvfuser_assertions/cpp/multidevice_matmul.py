"""Of tests/cpp/test_multidevice_matmul.cpp."""

from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_multidevice_matmul.cpp")

FILE.inexpressible("several devices", 121, 182, 240, 291, 353)

"""Of tests/python/multidevice/test_matmul.py."""

from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/python/multidevice/test_matmul.py")

FILE.inexpressible("several devices", 191)

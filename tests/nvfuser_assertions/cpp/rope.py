"""Of tests/cpp/test_rope.cpp."""

from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_rope.cpp")

FILE.inexpressible("skipped in nvFuser", 1681, 1769)

"""Of tests/cpp/test_runtime.cpp."""

from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_runtime.cpp")

FILE.known_answer(55, "lifetime_three_sums")

"""Of tests/cpp/test_allocation_domain.cpp."""

from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_allocation_domain.cpp")
FILE.known_answer(1257, "permute_and_add_strided")

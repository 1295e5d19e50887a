"""Of tests/cpp/test_cutlass_scheduler.cpp."""

from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_cutlass_scheduler.cpp")
FILE.inexpressible("scaled_mm and the Cutlass scheduler are not part of fuser_lab", 405, 482, 646)

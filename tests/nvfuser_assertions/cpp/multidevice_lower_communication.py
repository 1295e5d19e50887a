"""Of tests/cpp/test_multidevice_lower_communication.cpp."""

from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_multidevice_lower_communication.cpp")

FILE.inexpressible("several devices", 463, 542, 623, 660, 700, 742, 783)

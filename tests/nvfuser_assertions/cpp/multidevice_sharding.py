"""Of tests/cpp/test_multidevice_sharding.cpp."""

from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_multidevice_sharding.cpp")

FILE.inexpressible("several devices", 372, 594, 636, 826, 927, 1076, 1119)

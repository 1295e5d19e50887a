"""Of tests/cpp/test_low_precision_recipe.cpp."""

from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_low_precision_recipe.cpp")
FILE.inexpressible("values of Float4_e2m1fn are not supported", 466)
FILE.inexpressible("blockQuantize is not an op of the Python API", 1300, 1304)
FILE.inexpressible("the scales are swizzled by transforms of their axes", 1366)

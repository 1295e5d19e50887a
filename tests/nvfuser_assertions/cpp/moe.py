"""Of tests/cpp/test_moe.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_moe.cpp")

INT = DataType.Int
EXPERTS, ROUNDING = 16, 128
SIZES = [(tokens, best) for tokens in (32, 1) for best in (4, 1)]


def dense(fd, *shape):
    """Return a dense input of integers of constant sizes."""
    return fd.define_tensor(list(shape), contiguity=[None if n == 1 else True for n in shape], dtype=INT)


def problem_sizes(fd, ops, tokens, best):
    """The number of rows of each expert."""
    experts = ops.reshape(dense(fd, tokens, best), [tokens * best])
    zeros, ones = ops.full([EXPERTS], 0, INT), ops.full([tokens * best], 1, INT)
    fd.add_output(ops.scatter_add(zeros, experts, ones, 0))


@FILE.asserts(149, segments=1)
def expert_offsets(fd, ops):
    fd.add_output(ops.pad(ops.cumsum(dense(fd, EXPERTS), 0), [1, 0]))


@FILE.asserts(212, segments=1)
def block_scale_offsets(fd, ops):
    x = dense(fd, EXPERTS)
    first = ops.pad(ops.cumsum(x, 0), [1, 0])
    whole = ops.mul(ops.div(ops.add(x, ROUNDING - 1), ROUNDING), ROUNDING)  # ceilDiv
    fd.add_output(first)
    fd.add_output(ops.pad(ops.cumsum(whole, 0), [1, 0]))


def sorted_places(fd, ops, tokens, best):
    """The places of sorted experts, and their inverse."""
    places = ops.argsort(ops.reshape(dense(fd, tokens, best), [tokens * best]), 0, descending=True, stable=True)
    zeros = ops.full([tokens * best], 0, INT)
    numbers = ops.iota(tokens * best, 0, 1, INT)
    fd.add_output(ops.div(places, best))
    fd.add_output(ops.scatter(zeros, places, numbers, 0))


for _values in SIZES:
    FILE.asserts(105, segments=1, values=_values)(problem_sizes)
    FILE.asserts(269, segments=1, values=_values)(sorted_places)

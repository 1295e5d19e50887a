"""Of tests/cpp/test_scatter.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_scatter.cpp")

INT = DataType.Int


def ones_at(fd, ops, shape, places):
    """Return zeros of a shape with ones at the places that an input of another shape gives along the last axis."""
    index = ops.set(fd.define_tensor(places, contiguity=True, dtype=INT))
    return ops.scatter(ops.full(shape, 0, INT), index, ops.full(places, 1, INT), len(shape) - 1)


@FILE.asserts(102, segments=1)
def ones_at_places(fd, ops):
    fd.add_output(ones_at(fd, ops, [64], [5]))


@FILE.asserts(151, schedulers="expr_eval greedy", values=([64], [5]))
@FILE.asserts(248, schedulers="expr_eval greedy", values=([4, 100], [4, 10]))
def copy_of_ones(fd, ops, shape, places):
    fd.add_output(ops.set(ones_at(fd, ops, shape, places)))

"""Of tests/cpp/test_no_op.cpp."""

from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_no_op.cpp")

FILE.known_answer(113, "zero_dim_add")
FILE.known_answer(162, "reshape_only")

MOST = 2**63 - 1  # of an extent


@FILE.asserts(53, schedulers="expr_eval")
def sum_of_one_element(fd, ops):
    fd.add_output(ops.sum(fd.define_tensor([1, 1, 1]), [0, 1, 2]))


@FILE.asserts(82, schedulers="no_op")
def sum_to_no_elements(fd, ops):
    fd.add_output(ops.sum(fd.define_tensor([0, 1, MOST]), [1, 2]))


@FILE.asserts(190, schedulers="no_op", inputs=[([2, 3], "float32", [0, 0])])
def sum_of_expanded_input(fd, ops):
    x = fd.define_tensor([2, 3], contiguity=[None, None])
    fd.add_output(ops.segment_set(ops.sum(x, [0])))

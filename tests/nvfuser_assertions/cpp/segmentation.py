"""Of tests/cpp/test_segmentation.cpp."""

from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_segmentation.cpp")

FILE.known_answer(51, "disconnected_pair")
FILE.known_answer(116, "segment_set_chain")
FILE.known_answer(268, "forward_until_binary")
FILE.known_answer(606, "three_sums_mixed_axes")
FILE.known_answer(674, "two_hints_one_segment")
FILE.known_answer(731, "privatize_upcast", times={"expr_eval": 1})
FILE.known_answer(777, "privatize_upcast_and_squeeze", times={"expr_eval": 1})
FILE.known_answer(826, "revert_privatized_upcast", times={"expr_eval": 1})
FILE.known_answer(907, "revert_privatized_upcast_and_squeeze")
FILE.known_answer(963, "forward_full", times={"expr_eval": 0})
FILE.known_answer(1031, "reshape_cross_segment_extent")


@FILE.asserts(88, segments=2, inputs=[[4, 4], [3, 4, 4], [2, 8, 4, 4]])
def one_matrix_in_two_sums(fd, ops):
    a, b, c = (fd.define_tensor([-1] * n) for n in (2, 3, 4))
    fd.add_output(ops.add(a, b))
    fd.add_output(ops.add(a, c))


@FILE.asserts(155, segments=2)
def hint_on_output_that_is_read(fd, ops):
    x = fd.define_tensor([2, 3], contiguity=True)
    y = ops.segment_set(ops.add(x, x))
    fd.add_output(y)
    fd.add_output(ops.mul(y, y))


@FILE.asserts(207, segments=2, inputs=[[2, 3]])
def hint_after_sum(fd, ops):
    x = fd.define_tensor([-1, -1], contiguity=True)
    fd.add_output(ops.div(x, ops.segment_set(ops.sum(x, [0]))))

"""Of tests/cpp/test_alias.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_alias.cpp")

FILE.known_answer(204, "duplicate_outputs")
FILE.known_answer(398, "reshape_alias_and_compute")
FILE.known_answer(476, "set_alias_and_compute")
FILE.known_answer(721, "reshape_between_computes")
FILE.known_answer(784, "no_oversegment_line")
FILE.known_answer(1045, "inplace_across_segments")
FILE.known_answer(1127, "compute_then_permute_outputs")
FILE.known_answer(1213, "copy_input_into_input")
FILE.known_answer(1270, "bookend_input_side")
FILE.known_answer(1302, "bookend_output_side")
FILE.known_answer(1530, "inplace_no_split")
FILE.inexpressible("an intermediate tensor has an allocation domain without an op that makes it", 1634)


def tensor(fd, *shape):
    return fd.define_tensor(list(shape), contiguity=True)


@FILE.asserts(346, segments=2)
def duplicate_outputs_of_segments(fd, ops):
    mid = ops.segment_set(ops.add(tensor(fd, 2, 3, 4), 3.141))
    out = ops.mul(mid, 2.0)
    for result in (mid, mid, out, out):
        fd.add_output(result)


@FILE.asserts(760, segments=2)
def many_aliases_between_outputs(fd, ops):
    a = tensor(fd, 2, 3, 5)
    twice = ops.add(a, a)
    moved = ops.permute(twice, [1, 2, 0])
    flat = ops.reshape(moved, [15, 2])
    part = ops.slice(moved, [0, 0, 0], [2, 4, 1])
    for result in (part, flat, moved, twice):
        fd.add_output(result)


@FILE.asserts(817, times={"pointwise": 1})
def no_oversegment_forks(fd, ops):
    a = tensor(fd, 2, 3)
    twice = ops.add(a, a)
    flat = ops.reshape(twice, [6])
    fd.add_output(ops.permute(twice, [1, 0]))
    fd.add_output(ops.reshape(flat, [3, 2]))
    fd.add_output(ops.mul(flat, flat))


@FILE.asserts(956, schedulers="expr_eval")
def input_is_output_and_aliased(fd, ops):
    a = tensor(fd, 2, 3)
    fd.add_output(a)
    fd.add_output(ops.permute(a, [1, 0]))


@FILE.asserts(1094, schedulers="expr_eval pointwise")
def alias_without_kernel(fd, ops):
    a = tensor(fd, 2, 3)
    twice = ops.add(a, a)
    fd.add_output(twice)
    fd.add_output(ops.permute(twice, [1, 0]))


@FILE.asserts(1164, schedulers="expr_eval")
def no_kernels(fd, ops):
    fd.add_output(ops.permute(tensor(fd, 2, 3), [1, 0]))


@FILE.asserts(1344, times={"pointwise": 1})
def bookend_aliases_of_one_tensor(fd, ops):
    a = tensor(fd, 2, 3)
    twice = ops.add(a, a)
    fd.add_output(ops.reshape(twice, [6]))
    fd.add_output(ops.reshape(twice, [3, 2]))
    fd.add_output(ops.permute(twice, [1, 0]))


@FILE.asserts(1381, schedulers="pointwise expr_eval")
def bookend_reused_hint(fd, ops):
    a = tensor(fd, 2, 3, 5)
    flat = ops.reshape(ops.add(a, a), [30])
    fd.add_output(ops.reshape(flat, [6, 5]))
    fd.add_output(ops.reshape(flat, [2, 15]))


@FILE.asserts(1459, schedulers="expr_eval inner_persistent", inputs=[([2, 32, 4, 16, 16], "float16")])
def bookend_group_norm(fd, ops):
    a = fd.define_tensor([-1] * 5, contiguity=True, dtype=DataType.Half)
    wide = ops.set(ops.cast(a, DataType.Float))
    total = ops.broadcast(ops.sum(wide, [-1, -2, -3]), [False, False, True, True, True])
    fd.add_output(ops.reshape(ops.cast(ops.div(wide, total), DataType.Half), [2, 128, 16, 16]))


@FILE.asserts(1573, segments=1)
def reshape_in_place(fd, ops):
    a = tensor(fd, 2, 3, 4)
    out = ops.add(ops.reshape(a, [24]), 3.141)
    fd.add_output(out)
    fd.add_output(ops.set(ops.reshape(out, [2, 3, 4])), a)


@FILE.asserts(1607, schedulers="expr_eval")
def returned_inputs(fd, ops):
    a, b = fd.define_tensor([10, 10, 10]), fd.define_tensor([10, 10, 10])
    fd.add_output(a)
    fd.add_output(b)

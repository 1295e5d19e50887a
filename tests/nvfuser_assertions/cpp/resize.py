"""Of tests/cpp/test_resize.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_resize.cpp")

FILE.known_answer(1930, "chunk_and_reshape")
FILE.known_answer(2981, "dynamic_reshape_pad")
FILE.known_answer(3024, "dynamic_reshape_slice")
FILE.known_answer(3939, "slice_after_sin")
FILE.known_answer(4337, "two_different_slices")
FILE.known_answer(4628, "slice_branch_and_full_branch")
FILE.known_answer(4747, "rotate_halves")
FILE.known_answer(4879, "rotate_halves_residual")
FILE.known_answer(5060, "pad_after_sin")
FILE.known_answer(5530, "slices_pointwise_only")
FILE.known_answer(5666, "slice_and_gather")
FILE.known_answer(5823, "softmaxlike_with_two_slices")

PROMOTED = {"enable": ["memory_promotion"]}
MILLION = 2**20


def dense(fd, *shape, dtype=DataType.Float):
    """Return a dense input of constant sizes."""
    return fd.define_tensor(list(shape), contiguity=[None if n == 1 else True for n in shape], dtype=dtype)


def rows(fd):
    """Return an input with any number of rows of 100."""
    return fd.define_tensor([-1, 100])


def columns(ops, x, start, stop):
    """Return columns of 16 rows."""
    return ops.slice(x, [0, start], [16, stop])


@FILE.asserts(1771, segments=1, times={"expr_eval": 0}, inputs=[[1, 1, 1024, 1024], [32, 16, 128, 128]])
def two_equal_slices_of_input(fd, ops):
    a, b = fd.define_tensor([1, 1, -1, -1], contiguity=[None, None, True, True]), fd.define_tensor([-1] * 4)
    first = ops.slice(a, [0, 0, 0, 0], [1, 1, 128, 128])
    fd.add_output(ops.add(first, b))
    fd.add_output(ops.add(ops.slice(a, [0, 0, 0, 0], [1, 1, 128, 128]), b))


@FILE.asserts(1833, segments=1, times={"expr_eval": 0}, inputs=[[100, 100], [32, 32]], options=PROMOTED)
def two_equal_slices_of_sum(fd, ops):
    a, b = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1])
    x = ops.add(a, 1.0)
    fd.add_output(ops.add(ops.slice(x, [0, 0], [32, 32]), b))
    fd.add_output(ops.add(ops.slice(x, [0, 0], [32, 32]), b))
    fd.add_output(ops.add(x, 1.0))


@FILE.asserts(1964, segments=1, inputs=[[4, 8]], options=PROMOTED)
def slice_of_reshape(fd, ops):
    x = ops.slice(ops.reshape(fd.define_tensor([-1, -1]), [8, 4]), [0, 0], [2, 2])
    fd.add_output(ops.add(x, x))


FILE.inexpressible("disabled in nvFuser", 2006, 5909)


@FILE.asserts(2246, can="pointwise")
def slice_and_add(fd, ops):
    n = 64 * MILLION
    a, b = dense(fd, n + 8), dense(fd, n)
    fd.add_output(ops.add(ops.slice(a, [4], [n + 4]), b))


@FILE.asserts(2526, can="pointwise")
def slice_of_vector(fd, ops):
    fd.add_output(ops.slice(dense(fd, MILLION), [4], [MILLION - 4]))


@FILE.asserts(2568, can="pointwise")
def two_slices_of_vector(fd, ops):
    x = dense(fd, MILLION)
    fd.add_output(ops.slice(x, [4], [MILLION - 4]))
    fd.add_output(ops.slice(x, [8], [MILLION - 8]))


@FILE.asserts(2660, can="pointwise")
def slice_and_copy(fd, ops):
    x = dense(fd, MILLION)
    fd.add_output(ops.slice(x, [4], [MILLION - 4]))
    fd.add_output(ops.set(x))


@FILE.asserts(2786, can="pointwise")
def slice_of_narrow_rows(fd, ops):
    fd.add_output(ops.slice(dense(fd, MILLION, 2), [4, 0], [MILLION - 4, 2]))


@FILE.asserts(2821, can="pointwise")
def slice_in_the_middle(fd, ops):
    fd.add_output(ops.slice(dense(fd, 1024, 1025, 3), [0, 4, 0], [1024, 1024, 3]))


@FILE.asserts(2853, can="pointwise")
def slice_behind_size_1(fd, ops):
    fd.add_output(ops.slice(dense(fd, 1024, 1, 1025, 3), [0, 0, 0, 0], [1024, 1, 1024, 3]))


@FILE.asserts(3306, can="pointwise")
def copy_of_pad(fd, ops):
    fd.add_output(ops.set(ops.pad(dense(fd, 2, 128000), [0, 0, 1, 1])))


@FILE.asserts(4027, schedulers="resize")
def slice_of_split_sin(fd, ops):
    x = ops.reshape(ops.sin(fd.define_tensor([16, 100])), [16, 5, 20])
    fd.add_output(ops.cos(ops.slice(x, [0, 0, 1], [16, 5, 10])))


@FILE.asserts(4111, schedulers="resize")
def merged_slice_of_sin(fd, ops):
    x = columns(ops, ops.sin(fd.define_tensor([16, 100])), 1, 50)
    fd.add_output(ops.cos(ops.reshape(x, [16 * 49])))


@FILE.asserts(4219, schedulers="resize", inputs=[[16, 100]], values=(1,))
@FILE.asserts(4561, schedulers="resize", inputs=[[16, 100]], values=(3,))
def slice_of_slice(fd, ops, start):
    x = columns(ops, ops.sin(rows(fd)), 1, 100)
    fd.add_output(ops.cos(columns(ops, x, start, 99)))


FILE.inexpressible("skipped in nvFuser", 4419)


@FILE.asserts(4980, schedulers="resize", inputs=[[16, 100]])
def halves_rotated_twice(fd, ops):
    x = ops.sin(rows(fd))
    for _ in range(2):
        left, right = columns(ops, x, 0, 50), columns(ops, x, 50, 100)
        x = ops.cat([right, left], -1)
    fd.add_output(x)


@FILE.asserts(5160, schedulers="resize", inputs=[[16, 100], [16, 100]])
def cos_of_cat(fd, ops):
    a, b = rows(fd), rows(fd)
    fd.add_output(ops.cos(ops.cat([ops.sin(a), ops.sin(b)], -1)))


@FILE.asserts(5256, can="pointwise", values=(4, 4))
@FILE.asserts(5294, can="pointwise", values=(2, 2))
@FILE.asserts(5331, can="pointwise", values=(0, 2))
def pad_of_vector(fd, ops, left, right):
    fd.add_output(ops.pad(dense(fd, MILLION), [left, right]))


@FILE.asserts(5373, can="pointwise")
def pad_in_the_middle(fd, ops):
    fd.add_output(ops.pad(dense(fd, 1024, 1024, 2), [0, 0, 4, 4, 0, 0]))


@FILE.asserts(5410, can="pointwise")
def pad_and_relu(fd, ops):
    x = dense(fd, MILLION)
    fd.add_output(ops.pad(x, [4, 4]))
    fd.add_output(ops.relu(x))


@FILE.asserts(5712, can="resize")
def slice_of_pairs(fd, ops):
    fd.add_output(ops.slice(ops.reshape(ops.sin(dense(fd, 2048)), [1024, 2]), [0, 0], [2, 2]))


@FILE.asserts(5754, can="resize")
def slice_of_merged_pairs(fd, ops):
    fd.add_output(ops.slice(ops.reshape(ops.sin(dense(fd, 16, 1024, 2)), [16, 2048]), [0, 0], [2, 2048]))


@FILE.asserts(5869, can="resize")
def sum_of_three_slices(fd, ops):
    x = ops.sin(dense(fd, 128))
    a, b, c = (ops.slice(x, [start], [start + 124]) for start in (4, 2, 0))
    fd.add_output(ops.add(ops.add(a, b), c))


@FILE.asserts(5955, can="resize")
def sum_of_two_pads(fd, ops):
    a, b = dense(fd, 16), dense(fd, 16)
    zeros = ops.full([16], 0, DataType.Float)
    left = ops.pad(ops.add(ops.sin(a), zeros), [16, 0])
    fd.add_output(ops.add(left, ops.pad(ops.add(ops.sin(b), zeros), [0, 16])))


@FILE.asserts(5989, can="pointwise")
def merged_permute_of_cat(fd, ops):
    parts = [dense(fd, 1, 8, n, 8192, 128, dtype=DataType.BFloat16) for n in (4, 1, 1)]
    x = ops.permute(ops.cat(parts, 2), [0, 3, 1, 2, 4])
    fd.add_output(ops.reshape(x, [1, 8192, 6144]))


@FILE.asserts(6043, can="resize")
def rotation_and_merged_permute(fd, ops):
    x = fd.define_tensor([2, 16, 100])
    left = ops.slice(ops.sin(x), [0, 0, 0], [2, 16, 50])
    right = ops.slice(ops.sin(x), [0, 0, 50], [2, 16, 100])
    y = ops.add(x, ops.cat([right, left], 2))
    fd.add_output(y)
    fd.add_output(ops.reshape(ops.permute(y, [1, 0, 2]), [-1]))


@FILE.asserts(6078, can="resize")
def repeated_slice(fd, ops):
    x = ops.slice(ops.sin(dense(fd, 8, 128)), [0, 0], [8, 64])
    x = ops.expand(ops.broadcast(x, [False, True, False]), [8, 2, 64])
    fd.add_output(ops.reshape(x, [8, 128]))

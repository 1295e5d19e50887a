"""Of tests/cpp/test_move_repeat_forward.cpp."""

from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_move_repeat_forward.cpp")

FILE.inexpressible("disabled in nvFuser", 143)


def dense(fd, *shape):
    """Return a dense input of constant sizes."""
    return fd.define_tensor(list(shape), contiguity=[None if n == 1 else True for n in shape])


def repeated(ops, x, shape):
    """Return x twice along its first axis, whose extent with the others is ``shape`` (csrc/ops/alias.cpp:1211-1267)."""
    y = ops.broadcast(x, [True] + [False] * len(shape))
    return ops.reshape(ops.expand(y, [2, *shape]), [2 * shape[0], *shape[1:]])


@FILE.asserts(46, schedulers="pointwise")
def sin_of_repeat(fd, ops):
    fd.add_output(ops.sin(repeated(ops, dense(fd, 8, 128), [8, 128])))


@FILE.asserts(92, schedulers="resize")
def slice_of_repeat(fd, ops):
    x = repeated(ops, dense(fd, 8, 128), [8, 128])
    fd.add_output(ops.sin(ops.slice(x, [0, 0], [16, 64])))


@FILE.asserts(221, schedulers="resize")
def rotation_of_repeat(fd, ops):
    x = repeated(ops, dense(fd, 8, 128), [8, 128])
    left, right = ops.slice(x, [0, 0], [16, 64]), ops.slice(x, [0, 64], [16, 128])
    fd.add_output(ops.sin(ops.cat([right, left], 1)))


@FILE.asserts(280, schedulers="pointwise")
def repeat_with_other_inputs(fd, ops):
    a, b, c = dense(fd, 8), dense(fd, 1), dense(fd, 16)
    x = ops.sin(ops.add(repeated(ops, a, [8]), b))
    fd.add_output(ops.cos(ops.add(x, c)))

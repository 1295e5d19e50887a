"""Of tests/cpp/test_reshape.cpp."""

from math import prod

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_reshape.cpp")

FILE.inexpressible("a tensor reinterpreted in another dtype", 77)
FILE.known_answer(1475, "reshape_magic_1")
FILE.known_answer(1669, "reshape_magic_5", schedulers="pointwise")
FILE.known_answer(1750, "reshape_magic_7", schedulers="reduction")
FILE.known_answer(2293, "reshape_of_reshape")
FILE.known_answer(2579, "group_norm_reshape_last", schedulers="inner_persistent expr_eval")

HALF, FLOAT = DataType.Half, DataType.Float

# Input and output shapes of lines 295-342.
SHAPES = (
    ((1, 19, 1, 12, 7, 1, 99), (1, 19, -1, 3, 2772)),
    ((1, 19, 1, 12, 7, 1, 99), (1, 19, 1, 3, 2772)),
    ((19, 12, 7, 99), (19, 3, 2772)),
    ((3, 17, 80, 1), (51, 1, 2, 4, -1)),
    ((3, 17, 80, 1), (51, 1, 2, 4, 10)),
    ((3, 17, 80, 1), (51, 2, 4, 1, 10)),
    ((3, 17, 80, 1, 9), (-1, 1, 2, 4, 10, 9)),
    ((3, 17, 80, 1, 9), (51, 1, 2, 4, 10, 9)),
    ((3, 17, 80, 1, 9), (51, 2, 4, 1, 10, 9)),
    ((2, 3, 4, 5), (1, 6, 1, -1, 2, 5, 1)),
    ((22, 22, 2), (22, -1, 1, 1, 4)),
    ((22, 1, 22, 1), (-1,)),
    ((22, 22, 2), (22, 11, 1, 1, 4)),
    ((22, 1, 22, 1), (484,)),
    ((37, 9, 7, 6, 10), (333, 2, -1, 3, 35)),
    ((37, 9, 7, 6, 10), (333, 2, 2, 3, 35)),
    ((1, 1, 3333, 1), (1, 1, -1, 1)),
    ((1, 3333, 1), (-1,)),
    ((1, 1, 3333, 1), (1, 1, 3333, 1)),
    ((1, 3333, 1), (1, 303, -1, 1)),
    ((1, 3333, 1), (1, 303, 11, 1)),
    ((1, 3333, 1), (3333,)),
    ((1, 27454, 1, 2), (1, 7844, 1, -1)),
    ((1, 7844, 1, 7), (1, -1, 2)),
    ((1, 27454, 2), (1, 7844, 7)),
    ((1, 7844, 1, 7), (1, 27454, 2)),
    ((1, 27454, 1, 2), (1, 7844, 1, 7)),
    ((8, 1, 1, 8, 1, 8), (8, 2, 4, 1, -1)),
    ((8, 1, 1, 8, 1, 8), (8, 2, 4, 1, 8)),
    ((2, 3, 4, 5), (1, 6, 1, 2, 2, 5, 1)),
    ((2, 3, 0, 5), (6, 0, 5)),
    ((2, 3, 0, 5), (0, 7, 0)),
    ((2, 3, 0, 5), (0, -1, 0)),
)


def sized(fd, *shape, contiguity=False):
    """Return an input of constant sizes."""
    flags = [None if n == 1 else contiguity for n in shape]
    return fd.define_tensor(list(shape), contiguity=flags)


def open_or_sized(fd, shape, constant):
    """Return an input with axes of size 1 as broadcasts, or without constant sizes."""
    return sized(fd, *shape) if constant else fd.define_tensor([-1] * len(shape))


def inferred(shape, new_shape):
    """Return the new shape without -1."""
    rest = prod(n for n in new_shape if n != -1)
    return [prod(shape) // rest if n == -1 and rest else max(n, 0) for n in new_shape]


@FILE.asserts(191, can="pointwise", inputs=[[2, 10, 40], [2, 10, 40]])
def split_sum(fd, ops):
    a, b = fd.define_tensor([-1] * 3), fd.define_tensor([-1] * 3)
    fd.add_output(ops.reshape(ops.add(a, b), [2, 10, 4, 10]))


def gelu_after_reshape(fd, ops, shape, new_shape, constant):
    a, b = open_or_sized(fd, shape, constant), open_or_sized(fd, shape, constant)
    fd.add_output(ops.gelu(ops.reshape(ops.add(a, b), list(new_shape))))


def sum_after_gelu_and_reshape(fd, ops, shape, new_shape, constant):
    a, b = open_or_sized(fd, shape, constant), open_or_sized(fd, new_shape, constant)
    fd.add_output(ops.add(ops.reshape(ops.gelu(a), list(new_shape)), b))


for _constant in (False, True):
    for _shape, _new_shape in ((80,), (2, 4, 10)), ((80,), (1, 80)), ((2, 40, 7), (560,)), *SHAPES:
        FILE.asserts(503, can="pointwise", inputs=[list(_shape)] * 2, values=(_shape, _new_shape, _constant))(
            gelu_after_reshape,
        )
    for _shape, _new_shape in SHAPES:
        _result = inferred(_shape, _new_shape)
        FILE.asserts(569, can="pointwise", inputs=[list(_shape), _result], values=(_shape, tuple(_result), _constant))(
            sum_after_gelu_and_reshape,
        )


@FILE.asserts(609, can="pointwise", inputs=[[27454, 2], [54908]], values=(False,))
@FILE.asserts(609, can="pointwise", inputs=[[27454, 2], [54908]], values=(True,))
def sum_of_two_reshapes(fd, ops, constant):
    a, b = open_or_sized(fd, (27454, 2), constant), open_or_sized(fd, (54908,), constant)
    x = ops.reshape(ops.gelu(a), [7844, 7])
    fd.add_output(ops.add(x, ops.reshape(b, [7844, 7])))


@FILE.asserts(1210, can="pointwise", inputs=[[256, 256, 256]])
def two_equal_reshapes(fd, ops):
    x = fd.define_tensor([-1] * 3, contiguity=True)
    a, b = ops.reshape(x, [256, 65536]), ops.reshape(x, [256, 65536])
    fd.add_output(ops.sin(a))
    fd.add_output(ops.sin(b))


@FILE.asserts(1570, schedulers="pointwise")
def merged_and_wider_outputs(fd, ops):
    w, x, y, z = 15, 31, 49, 65
    a = sized(fd, x, y, z)
    merged = ops.reshape(ops.sin(a), [x, y * z])
    fd.add_output(ops.add(merged, merged))
    b = sized(fd, x, y, z)
    fd.add_output(ops.reshape(b, [x, y * z]))
    fd.add_output(ops.add(a, b))
    c = sized(fd, w, x, y, z)
    fd.add_output(ops.add(c, ops.broadcast(a, [True, False, False, False])))


@FILE.asserts(1626, schedulers="pointwise")
def merged_outputs_of_broadcast_sum(fd, ops):
    x, y, z = 31, 49, 65
    a = sized(fd, x, y, z)
    merged = ops.reshape(ops.sin(a), [x, y * z])
    fd.add_output(ops.add(merged, merged))
    b, c = sized(fd, x, y, z), sized(fd, x, 1, 1)
    merged = ops.reshape(ops.add(c, b), [x, y * z])
    fd.add_output(ops.add(merged, merged))
    fd.add_output(ops.add(a, b))


@FILE.asserts(1707, schedulers="pointwise", inputs=[[1024, 1024], [512, 1024, 2]])
def split_permuted_and_added(fd, ops):
    a, b = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1] * 3, contiguity=True)
    x = ops.permute(ops.reshape(a, [1024, 512, 2]), [1, 0, 2])
    fd.add_output(ops.add(x, b))


@FILE.asserts(1792, segments=1, times={"pointwise": 0, "expr_eval": 0})
def norm_of_two_merged_inputs(fd, ops):
    v, w, x, y, z = 3, 5, 42, 7, 9
    a, b = sized(fd, w, v, x, y, z), sized(fd, v, w, x, z, y)
    merged = ops.reshape(ops.sin(a), [v * w, x, y * z])
    both = ops.add(merged, ops.reshape(ops.cos(b), [v * w, x, y * z]))
    fd.add_output(ops.add(both, ops.broadcast(ops.sum(both, [0, 2]), [True, False, True])))


@FILE.asserts(2205, can="pointwise", inputs=[[], [2, 3, 4]])
def reshape_of_no_axes(fd, ops):
    a, b = fd.define_tensor([]), fd.define_tensor([-1] * 3)
    fd.add_output(ops.mul(ops.reshape(a, [1, 1, 1]), b))


@FILE.asserts(2238, can="pointwise", inputs=[[1, 1, 1], [1, 1], []])
def reshapes_to_no_axes(fd, ops):
    a, b = sized(fd, 1, 1, 1), sized(fd, 1, 1)
    c = fd.define_tensor([])
    x, y = ops.reshape(a, []), ops.reshape(ops.reshape(b, [1, 1, 1]), [])
    fd.add_output(ops.mul(ops.add(x, y), c))


@FILE.asserts(2268, can="pointwise", inputs=[[], []])
def reshape_of_no_axes_and_back(fd, ops):
    a, b = fd.define_tensor([]), fd.define_tensor([])
    fd.add_output(ops.mul(ops.reshape(ops.reshape(a, [1, 1, 1]), []), b))


GROUPED = [2, 32, 4, 16, 16]
AXES = ((0,), (0, 1), (0, 1, 2), (-1,), (-1, -2), (-1, -2, -3), (0, 2, 4), (1, 3))


@FILE.asserts(2409, schedulers="pointwise reduction", inputs=[([2, 128, 16, 16], HALF), [128], [128]])
def group_norm(fd, ops):
    x = fd.define_tensor([-1] * 4, contiguity=True, dtype=HALF)
    weight, bias = fd.define_tensor([-1], contiguity=True), fd.define_tensor([-1], contiguity=True)
    groups = ops.reshape(ops.cast(x, FLOAT), GROUPED)
    total = ops.broadcast(ops.sum(groups, [-1, -2, -3]), [False, False, True, True, True])
    y = ops.reshape(ops.div(groups, total), [2, 128, 16, 16])
    y = ops.mul(y, ops.broadcast(weight, [True, False, True, True]))
    fd.add_output(ops.cast(ops.add(y, ops.broadcast(bias, [True, False, True, True])), HALF))


def grouped(fd, ops):
    """Return an input cast to Float, its second axis split."""
    x = fd.define_tensor([-1] * 4, contiguity=True, dtype=HALF)
    return ops.reshape(ops.cast(x, FLOAT), GROUPED)


def sums_of_split(fd, ops, axes):
    fd.add_output(ops.sum(grouped(fd, ops), list(axes)))


def norm_of_split(fd, ops, axes):
    x = grouped(fd, ops)
    flags = [axis in axes or axis - 5 in axes for axis in range(5)]
    fd.add_output(ops.cast(ops.div(x, ops.broadcast(ops.sum(x, list(axes)), flags)), HALF))


for _axes in AXES:
    FILE.asserts(2448, segments=1, inputs=[([2, 128, 16, 16], HALF)], values=(_axes,))(sums_of_split)
    FILE.asserts(2509, segments=1, inputs=[([2, 128, 16, 16], HALF)], values=(_axes,))(norm_of_split)


def sin_and_cos_of_reshapes(fd, ops, shape, parts, new_shapes):
    """The sine and the cosine of reshapes of two slices or copies of one input, or of the input itself."""
    x = sized(fd, *shape)
    made = []
    for part in parts:
        if part is None:
            made.append(x)
        elif part == "copy":
            made.append(ops.set(x))
        else:
            made.append(ops.slice(x, *map(list, part)))
    first, second = (ops.reshape(one, list(new)) for one, new in zip(made, new_shapes, strict=True))
    a, b = ops.sin(first), ops.cos(second)
    fd.add_output(a)
    fd.add_output(b)


HEAD, TAIL, MIDDLE = ((0,), (24,)), ((12,), (36,)), ((12,), (24,))
COPIES = ("copy", "copy")

for _line, _one, _shape, _parts, _new_shapes in (
    (2838, False, (24,), COPIES, ((6, 4), (3, 8))),
    (2862, True, (36,), (HEAD, TAIL), ((6, 4), (6, 4))),
    (2887, True, (4, 5, 6), (((0, 0, 0), (3, 4, 5)), ((1, 1, 1), (4, 5, 6))), ((5, 3, 4), (5, 3, 4))),
    (2909, True, (24,), (None, None), ((2, 12), (2, 2, 6))),
    (2933, True, (36,), (HEAD, "copy"), ((2, 12), (2, 18))),
    (2957, False, (24,), COPIES, ((2, 3, 4), (2, 2, 6))),
    (2981, False, (36,), (HEAD, TAIL), ((6, 4), (3, 8))),
    (3005, False, (36,), (HEAD, TAIL), ((2, 3, 4), (2, 2, 6))),
    (3029, True, (36,), (HEAD, TAIL), ((2, 12), (2, 2, 6))),
    (3053, True, (36,), (HEAD, MIDDLE), ((2, 12), (2, 6))),
    (3077, False, (36,), (HEAD, "copy"), ((2, 12), (4, 9))),
):
    FILE.asserts(_line, **({"segments": 1} if _one else {"least": 2}), values=(_shape, _parts, _new_shapes))(
        sin_and_cos_of_reshapes,
    )


@FILE.asserts(2811, least=2)
def cyclic_reshape(fd, ops):
    """Record a fusion of which no segment has a cycle, although it has one (lines 2795-2816)."""
    x = fd.define_tensor([4, 8], contiguity=True)
    fd.add_output(ops.add(x, ops.reshape(ops.reshape(x, [32]), [4, 8])))

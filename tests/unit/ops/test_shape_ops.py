"""Sizes that are known only when inputs are bound: one definition, many shapes; legal and illegal ones."""

import re
from itertools import product
from math import prod

import numpy as np
import pytest

from fuser_lab.definition.binding import bind
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.spec import spec
from fuser_lab.dtypes import DataType
from fuser_lab.errors import InputError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion, IterType
from tests.unit.builders import record


def run(fusion: Fusion, *inputs):
    """Return the first result for arrays and numbers."""
    described = [spec(x.shape, x.dtype) if isinstance(x, np.ndarray) else x for x in inputs]
    return evaluate(bind(fusion, described).fusion, inputs)[0]


def counting(*shape, dtype=np.float32):
    return np.arange(1, 1 + int(np.prod(shape))).astype(dtype).reshape(shape)


def test_slices_between_scalars_clamp_and_wrap():
    def body(fd):
        x = fd.define_tensor([-1])
        start, end = fd.define_vector(2)
        fd.add_output(fd.ops.slice(x, [start], [end]))

    fusion = record(body)
    x = counting(7)
    for start in range(-9, 10):
        for end in range(-9, 10):
            np.testing.assert_array_equal(run(fusion, x, start, end), x[start:end])


def test_exact_slices_must_fit():
    def body(fd):
        x = fd.define_tensor([-1])
        start, end = fd.define_vector(2)
        fd.add_output(fd.ops.slice(x, [start], [end], None, True))

    fusion = record(body)
    assert run(fusion, counting(7), 2, 5).tolist() == [3, 4, 5]
    for start, end in ((-1, 3), (3, 2), (0, 8)):
        with pytest.raises(InputError, match=re.escape(f"axis 0 of size 7 has bounds [{start}, {end})")):
            run(fusion, counting(7), start, end)


@pytest.mark.parametrize("left", range(-4, 4))
@pytest.mark.parametrize("right", range(-4, 4))
def test_pads_between_scalars(left, right):
    def body(fd):
        x = fd.define_tensor([-1])
        fd.add_output(fd.ops.pad(x, fd.define_vector(2), 9.0))

    fusion, x = record(body), counting(3)
    if 3 + left + right < 0:
        with pytest.raises(InputError, match=re.escape(f"axis 0 of size 3 cannot be padded by ({left}, {right})")):
            run(fusion, x, left, right)
        return
    wanted = [x[i] if 0 <= i < 3 else 9.0 for i in range(-left, 3 + right)]
    np.testing.assert_array_equal(run(fusion, x, left, right), np.array(wanted, np.float32))


def test_cats_of_symbolic_sizes():
    def body(fd):
        x, y, z = (fd.define_tensor([-1, -1], dtype=DataType.Int) for _ in range(3))
        fd.add_output(fd.ops.cat([x, y, z], dim=1))

    fusion = record(body)
    assert [e.op.name for e in fusion.exprs].count("pad") == 3
    for sizes in ((1, 2, 3), (0, 4, 1), (5, 0, 0), (1, 1, 1)):
        parts = [counting(2, n, dtype=np.int64) for n in sizes]
        np.testing.assert_array_equal(run(fusion, *parts), np.concatenate(parts, 1))
    with pytest.raises(InputError, match="on axis 0"):
        run(fusion, *(counting(n, 2, dtype=np.int64) for n in (2, 3, 2)))


def test_cats_keep_every_bit():
    def body(fd):
        x, y = fd.define_tensor([2]), fd.define_tensor([3])
        fd.add_output(fd.ops.cat([x, y]))

    x, y = np.array([-0.0, np.nan], np.float32), np.array([np.inf, -0.0, 1e-45], np.float32)
    np.testing.assert_array_equal(run(record(body), x, y).view(np.uint32), np.concatenate([x, y]).view(np.uint32))


def test_open_sizes_of_1_are_reshaped_to_every_shape():
    shapes = [shape for rank in range(4) for shape in product((1, 2), repeat=rank)]
    for old, new in product(shapes, shapes):
        if prod(old) == prod(new):
            x = counting(*old)
            fusion = record(lambda fd, old=old, new=new: fd.add_output(
                fd.ops.neg(fd.ops.reshape(fd.define_tensor([-1] * len(old)), list(new))),
            ))
            np.testing.assert_array_equal(run(fusion, x), -x.reshape(new))


def test_reshapes_to_shapes_of_others():
    def body(fd):
        x, y = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1, -1])
        fd.add_output(fd.ops.add(fd.ops.reshape(x, y.shape()), y))

    fusion = record(body)
    for old, new in (((2, 6), (3, 2, 2)), ((1, 4), (4, 1, 1)), ((0, 3), (5, 0, 2))):
        x, y = counting(*old), counting(*new)
        np.testing.assert_array_equal(run(fusion, x, y), x.reshape(new) + y)
    with pytest.raises(InputError, match="total element counts must match"):
        run(fusion, counting(2, 5), counting(3, 2, 2))


@pytest.mark.parametrize("shape", [(6, 1, 2), (1, 6, 2), (6, 2, 1)])
def test_axes_whose_size_is_1_only_in_a_call_are_merged(shape):
    def body(fd):
        x = fd.ops.neg(fd.define_tensor([-1, -1, -1]))
        fd.add_output(fd.ops.reshape(x, [12]))

    bound = bind(record(body), [spec(shape)]).fusion
    assert [expr.op.name for expr in bound.exprs] == ["neg", "reshape"]
    assert len(bound.outputs[0].domain.transforms) == 2


def test_a_reshape_of_no_elements_is_full():
    def body(fd):
        x = fd.define_tensor([-1, -1, -1])
        fd.add_output(fd.ops.reshape(x, [0, -1, 5]))

    bound = bind(record(body), [spec((2, 0, 7))]).fusion
    assert [expr.op.name for expr in bound.exprs] == ["full"]
    assert bound.outputs[0].shape == (0, 0, 5)


def test_one_size_may_be_left_to_be_found_when_bound():
    def body(fd):
        x = fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.reshape(x, fd.define_vector(3)))

    fusion = record(body)
    assert run(fusion, counting(4, 6), 2, -1, 3).shape == (2, 4, 3)
    with pytest.raises(InputError, match="a maximum of one value of -1"):
        run(fusion, counting(4, 6), -1, -1, 3)
    with pytest.raises(InputError, match="its entries are sizes, 0 or more"):
        run(fusion, counting(4, 6), -2, -4, 3)


def test_axes_that_turn_out_to_be_1_broadcast():
    def body(fd):
        x, y = fd.define_tensor([-1]), fd.define_tensor([-1, -1])
        rows = fd.define_scalar(DataType.Int)
        wide = fd.ops.reshape(x, [rows, -1])
        total = fd.ops.add(wide, y)
        fd.add_output(fd.ops.mul(total, fd.ops.size(total, 0)))

    fusion = record(body)
    assert fusion.exprs[0].out.domain.axes[0].kind is IterType.SYMBOLIC
    x, y = counting(4), counting(3, 4)
    np.testing.assert_array_equal(run(fusion, x, y, 1), (x + y) * 3)
    x = counting(12)
    np.testing.assert_array_equal(run(fusion, x, y, 3), (x.reshape(3, 4) + y) * 3)


def test_undecided_axes_meet():
    def body(fd):
        x, y = fd.define_tensor([-1]), fd.define_tensor([-1])
        n, m = fd.define_vector(2)
        a, b = fd.ops.slice(x, [0], [n]), fd.ops.slice(y, [0], [m])
        total = fd.ops.add(a, b)
        fd.add_output(fd.ops.mul(total, fd.ops.size(total, 0)))

    fusion, x, y = record(body), counting(5), 10 * counting(5)
    for n, m in ((3, 3), (1, 4), (4, 1), (1, 1), (0, 1)):
        wanted = x[:n] + y[:m]
        np.testing.assert_array_equal(run(fusion, x, y, n, m), wanted * len(wanted))
    with pytest.raises(InputError, match="operands have sizes"):
        run(fusion, x, y, 2, 3)


def test_squeezes_are_checked_when_bound():
    def body(fd):
        x, n = fd.define_tensor([-1, -1]), fd.define_scalar(DataType.Int)
        fd.add_output(fd.ops.squeeze(fd.ops.slice(x, [0, 0], [n, 99]), [0]))

    fusion, x = record(body), counting(3, 4)
    np.testing.assert_array_equal(run(fusion, x, 1), x[0])
    with pytest.raises(InputError, match="squeeze: axis 0 has size 2; only axes of size 1"):
        run(fusion, x, 2)


def test_sizes_may_be_computed():
    def body(fd):
        x, n = fd.define_tensor([-1]), fd.define_scalar(DataType.Int)
        half = fd.ops.cast(fd.ops.mul(fd.ops.cast(n, DataType.Double), 0.5), DataType.Int)
        fd.add_output(fd.ops.full([half, x.size(0) // 2 + 1], 1.0, DataType.Float))

    fusion = record(body)
    assert fusion.deciding_scalars == {"i1"}
    bound = bind(fusion, [spec((7,)), 5]).fusion
    assert bound.outputs[0].shape == (2, 4)
    assert [e.op.name for e in bound.exprs] == ["full"], "arithmetic used only for sizes is gone"
    with pytest.raises(InputError, match="an extent is 0 or more"):
        bind(fusion, [spec((7,)), -4])


def test_scalars_of_arithmetic_stay_symbols():
    def body(fd):
        x, n, s = fd.define_tensor([-1]), fd.define_scalar(DataType.Int), fd.define_scalar(DataType.Int)
        grown = fd.ops.pad(fd.ops.mul(x, fd.ops.add(s, 1)), [0, fd.ops.add(n, 1)])
        fd.add_output(grown)

    fusion = record(body)
    assert fusion.deciding_scalars == {"i1"}
    bound = bind(fusion, [spec((3,)), 1, 5]).fusion
    assert [e.op.name for e in bound.exprs] == ["add", "cast", "mul", "pad"]
    x = counting(3)
    for s in (5, 6):
        np.testing.assert_array_equal(evaluate(bound, [x, 1, s])[0], [*(x * (s + 1)), 0, 0])


def test_a_size_keeps_alive_what_decides_it():
    def body(fd):
        x = fd.define_tensor([-1, -1])
        flat = fd.ops.reshape(x, [-1])
        fd.add_output(fd.ops.full([fd.ops.size(flat, 0)], 1.0, DataType.Float))

    assert run(record(body), counting(2, 3)).shape == (6,)


def test_expansions_to_sizes_of_others():
    def body(fd):
        x, y = fd.define_tensor([1, -1]), fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.sum(fd.ops.expand(x, y.shape()), [0]))

    fusion = record(body)
    for rows in (1, 3, 0):
        x, y = counting(1, 4), counting(rows, 4)
        np.testing.assert_array_equal(run(fusion, x, y), rows * x[0])
    with pytest.raises(InputError, match="expand: invalid expand size 5 for axis 1, which has size 4"):
        run(fusion, counting(1, 4), counting(3, 5))


@pytest.mark.parametrize("sizes", [(1, 5), (5, 1), (5, 5), (1, 1)])
@pytest.mark.parametrize("other", [
    lambda fd, x: fd.define_tensor([2, -1], [False, None]), lambda fd, x: fd.define_tensor([2, -1]),
    lambda fd, x: fd.ops.expand(x, [-1, 5]),
], ids=["expanded", "plain", "expand"])
def test_a_symbolic_expanded_axis_of_size_1_goes_with_any_size(sizes, other):
    def body(fd):
        x = fd.define_tensor([2, -1], [False, None])
        y = other(fd, x)
        fd.add_output(fd.ops.sum(fd.ops.add(x, y), [1]))
        fd.add_output(fd.ops.add(y, fd.ops.size(fd.ops.add(x, y), 1)))

    fusion = record(body)
    a, b = (np.broadcast_to(counting(2, 1), (2, n)) for n in sizes)
    inputs = [a, b][: len(fusion.inputs)]
    wide = np.broadcast_to(a, (2, 5)) if len(inputs) == 1 else b
    if len(inputs) == 2 and sizes[1] == 1 and not fusion.inputs[1].domain.axes[1].is_broadcast and sizes[0] == 5:
        with pytest.raises(InputError, match="has to be declared 1"):
            run(fusion, *inputs)
        return
    described = [spec(x.shape, x.dtype) for x in inputs]
    total, counted = evaluate(bind(fusion, described).fusion, inputs)
    np.testing.assert_array_equal(total, (a + wide).sum(1))
    np.testing.assert_array_equal(counted, wide + (a + wide).shape[1])


def test_calls_that_change_nothing_make_tensors_of_their_own():
    with FusionBuilder() as fd:
        x = fd.define_tensor([2, 3])
        for y in (
            fd.ops.permute(x, [0, 1]), fd.ops.squeeze(x, []), fd.ops.broadcast(x, [False, False]),
            fd.ops.stride_order(x, []), fd.ops.cat([x]),
        ):
            assert y.name != x.name
            fd.add_output(y)
    assert [e.op.name for e in fd.fusion.exprs] == ["set"] * 5


def test_permutations_of_nothing():
    def body(fd):
        fd.add_output(fd.ops.permute(fd.define_tensor([]), []))

    assert run(record(body), np.full((), 3.0, np.float32)).tolist() == 3.0

"""Forms of define_tensor and its companions, outputs, and Python operators on handles."""

import re

import numpy as np
import pytest

from fuser_lab.definition.binding import bind
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.spec import spec
from fuser_lab.definition.strides import describe_strides
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError, DefinitionError, UnknownNameError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Scalar
from tests.unit.builders import record


def defined(call):
    """Return the tensor that a call defines."""
    with FusionBuilder() as fd:
        return call(fd).val


@pytest.mark.parametrize(
    "call",
    [
        lambda fd: fd.define_tensor([2, 3], [1, 2], DataType.Half, True),
        lambda fd: fd.define_tensor((2, 3), (1, 2), DataType.Half, static_sizes=True, is_cpu=False),
        lambda fd: fd.define_tensor(sizes=[2, 3], strides=[1, 2], dtype=DataType.Half, static_sizes=True),
        lambda fd: fd.define_tensor([2, 3], [True, True], DataType.Half, False, [0, 1]),
        lambda fd: fd.define_tensor([2, 3], True, DataType.Half, stride_order=[0, 1]),
        lambda fd: fd.define_from_spec(spec((2, 3), "float16", (1, 2)), static_sizes=True),
    ],
)
def test_forms_of_the_same_tensor(call):
    tensor = defined(call)
    assert str(tensor) == "T0_g___half[iS0{2}, iS1{3}]"
    assert tensor.domain.allocation == (1, 0)
    assert tensor.domain.contiguity == (True, True)


def test_sizes_of_an_example_become_symbols():
    tensor = defined(lambda fd: fd.define_tensor([2, 1, 0, 3], [3, 3, 3, 1]))
    assert [e.name if isinstance(e, Scalar) else e for e in tensor.extents] == ["i0", 1, 0, "i1"]
    expanded = defined(lambda fd: fd.define_from_spec(spec((4, 3), strides=(0, 1))))
    assert str(expanded) == "T0_g_float[bS0{1 ex i0}, iS1{i1}]"


def test_axes_that_run_backwards_are_not_contiguous():
    flipped = defined(lambda fd: fd.define_from_spec(spec((2, 3), strides=(-3, 1))))
    assert flipped.domain.contiguity == (False, True)
    turned = defined(lambda fd: fd.define_from_spec(spec((2, 3), strides=(1, -2))))
    assert turned.domain.allocation == (1, 0)
    assert turned.domain.contiguity == (False, True)


def test_cpu_scalars():
    assert defined(lambda fd: fd.define_from_spec(spec(()), is_cpu=True)).is_cpu
    assert defined(lambda fd: fd.define_tensor([], [], DataType.Double, True)).is_cpu
    assert defined(lambda fd: fd.define_tensor(sizes=[], strides=[], is_cpu=True)).is_cpu


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda fd: fd.define_tensor(), ArgumentTypeError, "define_tensor(shape, contiguity=False"),
        (lambda fd: fd.define_tensor([2], sizes=[2]), ArgumentTypeError, "define_tensor(sizes, strides"),
        (lambda fd: fd.define_tensor(sizes=[2]), ArgumentTypeError, "missing a required argument: 'strides'"),
        (lambda fd: fd.define_tensor([2], [1], is_cpu=True), DefinitionError, "is_cpu is for 0-d tensors; shape has 1"),
        (lambda fd: fd.define_tensor([2], True, rank=1), ArgumentTypeError, "unexpected keyword argument 'rank'"),
        (lambda fd: fd.define_tensor([2, 2], [1]), DefinitionError, "sizes has 2 entries and strides 1"),
        (lambda fd: fd.define_tensor([2], [-1]), DefinitionError, "strides=[-1] has a negative entry"),
        (lambda fd: fd.define_tensor([3, -2]), DefinitionError, "the value -2 at index 1 was neither symbolic(-1)"),
        (lambda fd: fd.define_tensor([1], [True]), DefinitionError, "None exactly on broadcast axes"),
        (lambda fd: fd.define_tensor([2], is_cpu="a"), ArgumentTypeError, "is_cpu must be True or False"),
        (lambda fd: fd.define_from_spec([2]), ArgumentTypeError, "described must be a TensorSpec"),
        (lambda fd: fd.define_scalar("a"), ArgumentTypeError, "value must be a number"),
        (lambda fd: fd.define_scalar(DataType.Int, DataType.Int), ArgumentTypeError, "value must be a number"),
        (lambda fd: fd.define_scalar(float("nan"), DataType.Int), DefinitionError, "value is nan"),
        (lambda fd: fd.define_scalar(DataType.Null), DefinitionError, "dtype is DataType.Null"),
        (lambda fd: fd.define_vector(-1), DefinitionError, "size must be a whole number from 0 to 65,536, given -1"),
        (lambda fd: fd.define_vector(1.5), ArgumentTypeError, "size must be an int, or a list of ints"),
        (lambda fd: fd.add_output(fd.define_scalar()), DefinitionError, "output must be a tensor, given the scalar d0"),
        (lambda fd: fd.add_output(2.0), ArgumentTypeError, "output must be a tensor"),
        (lambda fd: fd.add_output(fd.define_tensor([2]), fd.ops.neg(fd.define_tensor([2]))), DefinitionError, "no"),
        (
            lambda fd: fd.add_output(fd.define_tensor([2]), fd.define_tensor([2, 2])),
            DefinitionError, "an in-place update needs the same number",
        ),
        (lambda fd: bool(fd.define_tensor([2])), DefinitionError, "cannot be a condition"),
        (lambda fd: fd.ops.nothing_like_this, UnknownNameError, "fd.ops has no op nothing_like_this; dir"),
        (lambda fd: fd.ops.rsqr, UnknownNameError, "fd.ops has no op rsqr; did you mean rsqrt?"),
    ],
)
def test_what_cannot_be_defined(call, error, text):
    with FusionBuilder() as fd, pytest.raises(error, match=re.escape(text)) as raised:
        call(fd)
    assert "\n" not in str(raised.value)


def test_forms_of_scalars():
    with FusionBuilder() as fd:
        inputs = [fd.define_scalar(), fd.define_scalar(DataType.Int), fd.define_scalar(None, DataType.Half)]
        inputs += fd.define_vector(2, dtype=DataType.Int)
        constants = [
            fd.define_scalar(2.0), fd.define_scalar(2, DataType.Float), fd.define_scalar(value=True),
            fd.define_scalar(np.float32(0.5)), fd.define_scalar(1 + 2j), fd.define_scalar(3, dtype=DataType.Int32),
        ]
        fd.add_output(fd.ops.full([1], 0, DataType.Int))
    assert [str(v) for v in inputs] == ["d0", "i1", "f2", "i3", "i4"]
    assert [v.val for v in inputs] == list(fd.fusion.inputs)
    assert [str(v) for v in constants] == [
        "double(2)", "float(2)", "true", "double(0.5)", "std::complex<double>(1,2)", "int(3)",
    ]


# Derived by hand from the rule: non-zero strides descending and stable, stride-0 axes restored to their positions.
@pytest.mark.parametrize(
    ("sizes", "strides", "contiguity", "order"),
    [
        ([2, 3, 4], [12, 4, 1], (True, True, True), (2, 1, 0)),
        ([2, 3, 4], [1, 8, 2], (True, True, True), (0, 2, 1)),
        ([2, 3], [4, 1], (False, True), (1, 0)),
        ([2, 3], [6, 2], (True, False), (1, 0)),
        ([2, 1, 3], [3, 3, 1], (True, None, True), (2, 1, 0)),
        ([2, 5, 3], [3, 0, 1], (True, None, True), (2, 1, 0)),
        ([5, 2, 3], [0, 1, 2], (None, True, True), (2, 0, 1)),
        ([3, 3], [3, 3], (False, False), (1, 0)),
        ([], [], (), ()),
    ],
)
def test_layouts_from_strides(sizes, strides, contiguity, order):
    assert describe_strides(sizes, strides) == (contiguity, order)


def evaluated(body, *inputs):
    fusion = record(body)
    described = [spec(x.shape, x.dtype) if isinstance(x, np.ndarray) else x for x in inputs]
    return evaluate(bind(fusion, described).fusion, inputs)


OPERATORS = [
    lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x / y, lambda x, y: x // y,
    lambda x, y: x % y, lambda x, y: abs(x) ** y, lambda x, y: x < y, lambda x, y: x <= y, lambda x, y: x > y,
    lambda x, y: x >= y, lambda x, y: x == y, lambda x, y: x != y, lambda x, y: -x + +y, lambda x, y: abs(x - y),
    lambda x, y: 2.0 - x, lambda x, y: 1 / y, lambda x, y: 7.5 // y, lambda x, y: 7.5 % y, lambda x, y: 2.0**y,
    lambda x, y: x * 2 + 3 * y, lambda x, y: (x < y) & (y > 1) | ~(x == y), lambda x, y: (x < y) ^ (y > 1),
    lambda x, y: np.float32(2) * x, lambda x, y: (0.5 - y) < x, lambda x, y: x != 1.5, lambda x, y: x + np.int64(3),
]


@pytest.mark.parametrize("number", range(len(OPERATORS)))
def test_operators_mean_what_they_do_on_arrays(number):
    formula = OPERATORS[number]
    x = np.array([-3.5, -1.0, 0.0, 1.5, 2.0, 5.0], np.float32)
    y = np.array([2.0, -1.0, 3.0, 1.5, -0.5, 2.0], np.float32)

    def body(fd):
        fd.add_output(formula(fd.define_tensor([-1]), fd.define_tensor([-1])))

    np.testing.assert_allclose(evaluated(body, x, y)[0], formula(x, y), rtol=2e-6)


def test_operators_on_integers():
    x, y = np.array([-7, 7, -7, 7]), np.array([2, 2, -2, -2])

    def body(fd):
        a, b = (fd.define_tensor([4], dtype=DataType.Int) for _ in range(2))
        for value in (a // b, a % b, a & b, a | 1, 1 ^ b, ~a, 20 // b):
            fd.add_output(value)

    wanted = (x // y, x % y, x & y, x | 1, 1 ^ y, ~x, 20 // y)
    for got, expected in zip(evaluated(body, x, y), wanted, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_products_of_matrices():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)

    def body(fd):
        fd.add_output(fd.define_tensor([-1, -1]) @ fd.define_tensor([-1, -1]))

    np.testing.assert_array_equal(evaluated(body, x, x.T.copy())[0], x @ x.T)


def test_sizes_are_scalars_to_compute_with():
    with FusionBuilder() as fd:
        x = fd.define_tensor([-1, 4, 1])
        assert x.ndim == 3
        assert x.size(1) == 4
        assert x.shape()[1:] == [4, 1]
        assert str(x.size(0) * 2 + 1) == "i2"
        fd.add_output(x)
    assert hash(x) == hash(x)
    assert (x == "a") is False


def test_updates_in_place_take_the_type_of_the_input():
    with FusionBuilder() as fd:
        x = fd.define_tensor([4], dtype=DataType.Half)
        fd.add_output(fd.ops.exp(x), x)
    (output, target), = fd.fusion.aliases
    assert output.dtype is target.dtype is DataType.Half
    assert fd.fusion.hidden == {output}

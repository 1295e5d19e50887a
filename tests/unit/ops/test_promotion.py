"""Type promotion: nvFuser's three categories, widening of reduced precision, explicit casts."""

import numpy as np
import pytest

from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.dtypes import Category, DataType, promote
from fuser_lab.errors import DefinitionError

TENSORS = [
    ("add", "Half", "Half", "Float"),
    ("add", "BFloat16", "Half", "Float"),
    ("add", "Float", "Double", "Double"),
    ("add", "Int32", "Int", "Int"),
    ("add", "Bool", "Int32", "Int32"),
    ("add", "Int", "Half", "Float"),
    ("truediv", "Int", "Int", "Float"),
    ("lt", "Half", "Double", "Bool"),
    ("mul", "Float", "ComplexFloat", "ComplexFloat"),
    ("mul", "Double", "ComplexFloat", "ComplexDouble"),
    ("mul", "Half", "ComplexFloat", "ComplexFloat"),
    ("sub", "Float8_e4m3fn", "Float8_e4m3fn", "Float"),
    ("maximum", "BFloat16", "BFloat16", "Float"),
    ("atan2", "Bool", "Int32", "Float"),
    ("nextafter", "Half", "Half", "Float"),
    ("nextafter", "Float", "Double", "Double"),
    ("gcd", "Int32", "Int", "Int"),
    ("bitwise_left_shift", "Int32", "Int32", "Int32"),
    ("bitwise_and", "Bool", "Int32", "Int32"),
    ("logical_or", "Half", "Int", "Bool"),
    ("eq", "ComplexFloat", "Float", "Bool"),
    ("pow", "UInt64", "Float", "Float"),
    ("add", "UInt64", "UInt64", "UInt64"),
]
SCALARS = [
    ("add", "Float", 2.0, "Float"),
    ("add", "Half", 2, "Float"),
    ("add", "Int32", 2, "Int32"),
    ("add", "Int32", 2.0, "Double"),
    ("add", "Bool", 2, "Int"),
    ("mul", "Float", 1j, "ComplexFloat"),
    ("maximum", "BFloat16", 0.0, "Float"),
    ("mul", "Double", 1j, "ComplexDouble"),
    ("mul", "Int", 1j, "ComplexDouble"),
    ("add", "UInt64", 2, "UInt64"),
    ("add", "Float8_e5m2", 1.0, "Float"),
    ("add", "ComplexFloat", 1.0, "ComplexFloat"),
    ("truediv", "Int", 2, "Float"),
    ("bitwise_right_shift", "Int32", 2, "Int32"),
]
# Result of an op on one tensor.
UNARY = [
    *((name, dtype, "Float") for name in ("sin", "reciprocal", "erfinv") for dtype in ("Int", "Bool", "Half")),
    ("sin", "Double", "Double"),
    ("sigmoid", "ComplexFloat", "ComplexFloat"),
    ("exp", "Float8_e4m3fn", "Float"),
    *((name, dtype, dtype) for name in ("floor", "relu", "round") for dtype in ("Half", "Int32", "Bool", "Double")),
    *(("silu", dtype, dtype) for dtype in ("Half", "BFloat16", "Float", "ComplexFloat")),
    ("neg", "Half", "Float"),
    ("neg", "Int32", "Int32"),
    ("abs", "Half", "Half"),
    ("abs", "ComplexFloat", "Float"),
    ("abs", "ComplexDouble", "Double"),
    *((name, "Half", "Bool") for name in ("isfinite", "isneginf", "isreal", "signbit", "logical_not")),
    ("bitwise_not", "Bool", "Bool"),
    ("bitwise_not", "Int32", "Int32"),
    ("sign", "Half", "Half"),
    ("real", "ComplexDouble", "Double"),
    ("real", "Half", "Half"),
    ("imag", "ComplexFloat", "Float"),
]
WITHOUT_COMMON = [("UInt64", "Int"), ("UInt64", "Bool"), ("Float8_e4m3fn", "Half"), ("Float8_e5m2", "Float8_e4m3fn")]


@pytest.mark.parametrize(("op", "a", "b", "result"), TENSORS)
def test_tensor_pairs(op, a, b, result):
    with FusionBuilder() as fd:
        x = fd.define_tensor([4], dtype=DataType[a])
        y = fd.define_tensor([4], dtype=DataType[b])
        assert getattr(fd.ops, op)(x, y).dtype is DataType[result]
        assert getattr(fd.ops, op)(y, x).dtype is DataType[result]


@pytest.mark.parametrize(("op", "a", "scalar", "result"), SCALARS)
def test_tensor_with_scalar(op, a, scalar, result):
    with FusionBuilder() as fd:
        x = fd.define_tensor([4], dtype=DataType[a])
        assert getattr(fd.ops, op)(x, scalar).dtype is DataType[result]
        assert getattr(fd.ops, op)(scalar, x).dtype is DataType[result]


@pytest.mark.parametrize(("op", "dtype", "result"), UNARY)
def test_one_tensor(op, dtype, result):
    with FusionBuilder() as fd:
        x = fd.define_tensor([4], dtype=DataType[dtype])
        assert getattr(fd.ops, op)(x).dtype is DataType[result]


@pytest.mark.parametrize(("a", "b"), WITHOUT_COMMON)
def test_dtypes_without_a_common_one(a, b):
    with FusionBuilder() as fd:
        x, y = fd.define_tensor([4], dtype=DataType[a]), fd.define_tensor([4], dtype=DataType[b])
        for left, right in ((x, y), (y, x)):
            with pytest.raises(DefinitionError, match=r"^add: .* have no common dtype; cast one of them first\.$"):
                fd.ops.add(left, right)


def test_scalars_alone_give_scalars():
    with FusionBuilder() as fd:
        d, i, h = (fd.define_scalar(dtype) for dtype in (DataType.Double, DataType.Int, DataType.Half))
        for value, dtype in (
            (fd.ops.add(d, i), DataType.Double),
            (fd.ops.add(h, h), DataType.Float),
            (fd.ops.sin(i), DataType.Float),
            (fd.ops.sin(2.0), DataType.Double),
            (fd.ops.lt(2, i), DataType.Bool),
            (fd.ops.where(True, 2, d), DataType.Double),
            (fd.ops.clamp(h, 0, 1), DataType.Half),
            (fd.ops.complex(d, d), DataType.ComplexDouble),
            (fd.ops.addcmul(i, i, i, 2), DataType.Int),
            (fd.ops.logical_right_shift(i, 3), DataType.Int),
        ):
            assert not hasattr(value, "ndim")
            assert value.dtype is dtype


def test_equal_dtypes_meet_no_promotion_in_where():
    with FusionBuilder() as fd:
        half = fd.define_scalar(DataType.Half)
        assert fd.ops.where(True, half, half).dtype is DataType.Half
        tensor = fd.define_tensor([4], dtype=DataType.Half)
        other = fd.define_tensor([4], dtype=DataType.BFloat16)
        assert fd.ops.where(True, tensor, half).dtype is DataType.Half
        assert fd.ops.where(True, tensor, other).dtype is DataType.Float


def test_a_cast_to_real_says_what_it_drops():
    with FusionBuilder() as fd:
        z = fd.define_tensor([4], dtype=DataType.ComplexFloat)
        with pytest.warns(np.exceptions.ComplexWarning, match="DataType.ComplexFloat to DataType.Int drops"):
            assert fd.ops.cast(z, DataType.Int).dtype is DataType.Int
        assert fd.ops.cast(z, DataType.Bool).dtype is DataType.Bool


def test_addcmul_multiplies_from_the_right():
    with FusionBuilder() as fd:
        x, y, z = (fd.define_tensor([4]) for _ in range(3))
        fd.add_output(fd.ops.addcmul(x, y, z, 0.5))
    first, second, last = fd.fusion.exprs
    assert [e.op.name for e in (first, second, last)] == ["mul", "mul", "add"]
    assert [v.name for v in first.inputs[:1]] == ["T2"]
    assert [v.name for v in second.inputs] == ["T1", first.name]
    assert [v.name for v in last.inputs] == ["T0", second.name]


def test_zero_dim_tensors_matter_only_by_kind():
    assert promote([(DataType.Float, Category.TENSOR), (DataType.Double, Category.ZERO_DIM)]) is DataType.Float
    assert promote([(DataType.Int, Category.TENSOR), (DataType.Double, Category.ZERO_DIM)]) is DataType.Double


def test_where_keeps_half():
    with FusionBuilder() as fd:
        x = fd.define_tensor([4], dtype=DataType.Half)
        assert fd.ops.where(fd.ops.lt(x, 0), x, 0.0).dtype is DataType.Half


def test_casts_are_explicit():
    with FusionBuilder() as fd:
        x = fd.define_tensor([4], dtype=DataType.Half)
        fd.add_output(fd.ops.add(x, x))
    assert [e.op.name for e in fd.fusion.exprs] == ["cast", "cast", "add"]

"""Type promotion: nvFuser's three categories, widening of reduced precision, explicit casts."""

import pytest

from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.dtypes import Category, DataType, promote

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
]
SCALARS = [
    ("add", "Float", 2.0, "Float"),
    ("add", "Half", 2, "Float"),
    ("add", "Int32", 2, "Int32"),
    ("add", "Int32", 2.0, "Double"),
    ("add", "Bool", 2, "Int"),
    ("mul", "Float", 1j, "ComplexFloat"),
    ("maximum", "BFloat16", 0.0, "Float"),
]


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

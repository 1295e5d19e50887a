"""Every op that torch has, against torch on the CPU."""

import inspect

import numpy as np
import pytest
from needs import needs

from fuser_lab.dtypes import DataType
from fuser_lab.ir import OpKind
from fuser_lab.ops import OPS
from tests.unit.builders import apply
from tests.unit.ops.torch_meaning import function_of

torch = needs("torch")

NOT_OF_FLOATS = {"bitwise_not", "real", "imag"}
UNARY = {
    "sign",
    *(n for n, op in OPS.items() if op.kind is OpKind.POINTWISE and op.arity == 1 and function_of(n)),
} - NOT_OF_FLOATS
# Ops for which torch accepts complex numbers.
COMPLEX_UNARY = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "exp2", "expm1", "log", "log10", "log1p",
    "log2", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh", "reciprocal", "sigmoid", "silu", "neg", "abs", "isfinite",
    "isinf", "isnan", "isreal", "logical_not", "real", "imag",
)
COMPLEX_BINARY = ("add", "sub", "mul", "truediv", "pow", "eq", "ne", "logical_and", "logical_or")
BINARY = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "truediv": "true_divide",
    "floor_divide": "floor_divide",
    "fmod": "fmod",
    "remainder": "remainder",
    "pow": "pow",
    "maximum": "maximum",
    "minimum": "minimum",
    "atan2": "atan2",
    **{n: n for n in ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or")},
}
INTEGER_BINARY = ("bitwise_and", "bitwise_or", "bitwise_xor")
SHIFTS = ("bitwise_left_shift", "bitwise_right_shift", "gcd")
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, np.inf, -np.inf, np.nan], np.float32)


def close(got, wanted, dtype=np.float32):
    wanted = wanted.numpy()
    assert got.shape == wanted.shape
    tolerance = 1e-12 if dtype == np.float64 else 2e-6
    np.testing.assert_allclose(got, wanted.astype(got.dtype), rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", sorted(UNARY))
def test_unary(name, dtype):
    x = np.concatenate([SPECIAL, np.linspace(-0.99, 0.99, 14, dtype=np.float32)]).astype(dtype)
    close(apply(name, x), function_of(name)(torch.from_numpy(x)), dtype)


@pytest.mark.parametrize("name", sorted(BINARY))
def test_binary_broadcasts(name):
    rng = np.random.default_rng(0)
    x, y = rng.uniform(0.5, 3, (4, 1, 5)).astype(np.float32), rng.uniform(0.5, 3, (3, 1)).astype(np.float32)
    close(apply(name, x, y), function_of(BINARY[name])(torch.from_numpy(x), torch.from_numpy(y)))


@pytest.mark.parametrize("name", ["add", "mul", "maximum", "minimum", "lt", "floor_divide", "fmod", "remainder", "pow"])
def test_binary_on_special_values(name):
    x, y = (a.ravel() for a in np.meshgrid(SPECIAL, SPECIAL))
    close(apply(name, x, y), function_of(BINARY[name])(torch.from_numpy(x), torch.from_numpy(y)))


@pytest.mark.parametrize("name", INTEGER_BINARY)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.bool_])
def test_bitwise(name, dtype):
    x, y = np.array([1, 6, 12, 0]).astype(dtype), np.array([3, 5, 0, 0]).astype(dtype)
    got = apply(name, x, y)
    assert got.dtype == dtype
    close(got, function_of(name)(torch.from_numpy(x), torch.from_numpy(y)))


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_unary(dtype):
    rng = np.random.default_rng(5)
    x = (rng.standard_normal(40) + 1j * rng.standard_normal(40)).astype(dtype)
    x.imag[:3] = 0
    for name in COMPLEX_UNARY:
        got, wanted = apply(name, x), function_of(name)(torch.from_numpy(x)).resolve_conj().numpy()
        assert got.dtype == wanted.dtype, name
        tolerance = 1e-5 if dtype == np.complex64 else 1e-12
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("other", [np.complex64, np.float32])
def test_complex_binary(other):
    rng = np.random.default_rng(6)
    x = (rng.standard_normal((4, 5)) + 1j * rng.standard_normal((4, 5))).astype(np.complex64)
    y = np.asarray(x[::-1] if other is np.complex64 else x.real + 3).astype(other)
    for name in COMPLEX_BINARY:
        got, wanted = apply(name, x, y), function_of(BINARY[name])(torch.from_numpy(x), torch.from_numpy(y)).numpy()
        assert got.dtype == wanted.dtype, name
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5, err_msg=name)


def test_parts_make_a_complex_number():
    x, y = np.array([1, np.inf, np.nan, 0.0]), np.array([np.inf, 2, -0.0, np.nan])
    got = apply("complex", x, y)
    assert got.dtype == np.complex128
    np.testing.assert_array_equal(got.real, x)
    np.testing.assert_array_equal(got.imag, y)


@pytest.mark.parametrize("name", SHIFTS)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_shifts_and_divisors(name, dtype):
    x, y = (v.ravel() for v in np.meshgrid(np.array([0, 1, -1, 12, -18, 2**30], dtype), np.arange(-2, 70, 3, dtype)))
    got = apply(name, x, y)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, function_of(name)(torch.from_numpy(x), torch.from_numpy(y)))


def test_logical_right_shift_brings_in_zeros():
    x = np.array([-1, -8, 8, 7, -(2**31)], np.int32)
    assert apply("logical_right_shift", x, 1).tolist() == [2**31 - 1, 2**31 - 4, 4, 3, 2**30]
    assert apply("logical_right_shift", x, 0).tolist() == x.tolist()
    assert apply("logical_right_shift", x, np.array([31, 32, 33, -1, 31], np.int32)).tolist() == [1, 0, 0, 0, 1]
    assert apply("logical_right_shift", x.astype(np.int64), 60).tolist() == [15, 15, 0, 0, 15]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_next_numbers(dtype):
    x, y = (v.ravel().astype(dtype) for v in np.meshgrid(SPECIAL, SPECIAL))
    got, wanted = apply("nextafter", x, y), torch.nextafter(torch.from_numpy(x), torch.from_numpy(y)).numpy()
    np.testing.assert_array_equal(got, wanted)


def test_inverse_of_the_complementary_error_function():
    y = np.array([0.0, 1e-300, 1e-5, 0.3, 1.0, 1.5, 2.0, -1.0, np.nan])
    got = apply("erfcinv", y)
    np.testing.assert_array_equal(got[[0, 4, 6]], [np.inf, 0, -np.inf])
    np.testing.assert_allclose(torch.special.erfc(torch.from_numpy(got[1:6])), y[1:6], rtol=1e-10)
    assert np.isnan(got[7:]).all()


@pytest.mark.parametrize("name", ["neg", "sub", "abs", "mul", "pow"])
def test_truth_values_are_computed_with_as_in_c(name):
    x, y = np.array([False, False, True, True]), np.array([False, True, False, True])
    operands = [x] if name in {"neg", "abs"} else [x, y]
    wanted = function_of(name)(*(torch.from_numpy(v.astype(np.int64)) for v in operands)) != 0
    got = apply(name, *operands)
    assert got.dtype == np.bool_
    assert got.tolist() == wanted.tolist()


def test_integer_powers_truncate():
    x, y = (v.ravel() for v in np.meshgrid(np.array([-3, -1, 0, 1, 2]), np.array([-3, -2, 0, 1, 5])))
    wanted = torch.pow(torch.from_numpy(x), torch.from_numpy(y))
    assert apply("pow", x, y).tolist() == wanted.tolist()


@pytest.mark.parametrize("name", ["floor", "ceil", "round", "trunc", "relu", "abs", "silu", "isnan", "signbit", "neg"])
@pytest.mark.parametrize("dtype", ["Half", "BFloat16"])
def test_reduced_precision(name, dtype):
    x = np.concatenate([SPECIAL, np.linspace(-3, 3, 25)]).astype(DataType[dtype].numpy)
    wide = torch.from_numpy(x.astype(np.float32))
    got = apply(name, x)
    wanted = function_of(name)(wide).numpy()
    assert got.dtype == (np.bool_ if wanted.dtype == np.bool_ else np.float32 if name == "neg" else x.dtype)
    np.testing.assert_array_equal(got.astype(np.float32), wanted.astype(got.dtype).astype(np.float32))


def test_integer_division_truncates_toward_zero():
    x, y = np.array([7, -7, 7, -7, -6]), np.array([2, 2, -2, -2, 3])
    want = torch.div(torch.from_numpy(x), torch.from_numpy(y), rounding_mode="trunc")
    close(apply("div", x, y), want)
    close(apply("mod", x, y), torch.fmod(torch.from_numpy(x), torch.from_numpy(y)))
    close(apply("remainder", x, y), torch.remainder(torch.from_numpy(x), torch.from_numpy(y)))


@pytest.mark.parametrize("name", ["div", "mod", "remainder", "fmod"])
def test_integer_division_by_zero_is_zero(name):
    assert apply(name, np.array([5, -5, 0]), np.array([0, 0, 0])).tolist() == [0, 0, 0]


@pytest.mark.parametrize("dims", [[0], [1], [2], [0, 2], [-1, 0], [0, 1, 2]])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize(("name", "path"), [("sum", "sum"), ("max", "amax"), ("min", "amin")])
def test_reductions(name, path, dims, keepdim):
    x = np.random.default_rng(1).standard_normal((3, 4, 5), dtype=np.float32)
    want = function_of(path)(torch.from_numpy(x), dim=dims, keepdim=keepdim)
    close(apply(name, x, dims=dims, keepdim=keepdim), want)


def test_prod_and_integer_sums():
    x = np.arange(1, 7, dtype=np.int32).reshape(2, 3)
    got = apply("prod", x, dims=[1])
    assert got.dtype == np.int64
    assert got.tolist() == [6, 120]
    assert apply("sum", x > 2, dims=[0]).tolist() == [1, 1, 2]


@pytest.mark.parametrize("correction", [0, 1])
@pytest.mark.parametrize("keepdim", [False, True])
def test_variance(correction, keepdim):
    x = np.random.default_rng(2).standard_normal((4, 9), dtype=np.float32) + 100
    variance, mean = apply("var_mean", x, dims=[1], correction=correction, keepdim=keepdim)
    want = torch.var_mean(torch.from_numpy(x), dim=1, correction=correction, keepdim=keepdim)
    np.testing.assert_allclose(variance, want[0], rtol=1e-5)
    np.testing.assert_allclose(mean, want[1], rtol=1e-6)


def test_ternary():
    rng = np.random.default_rng(3)
    x, y, z = (rng.standard_normal((2, 3), dtype=np.float32) for _ in range(3))
    a, b, c = map(torch.from_numpy, (x, y, z))
    close(apply("where", x > 0, y, z), torch.where(a > 0, b, c))
    close(apply("lerp", x, y, z), torch.lerp(a, b, c))
    close(apply("clamp", x, -0.5, 0.5), torch.clamp(a, -0.5, 0.5))
    close(apply("clamp", x, None, 0.5), torch.clamp(a, None, 0.5))
    close(apply("threshold", x, 0.1, -2.0), torch.nn.functional.threshold(a, 0.1, -2.0))
    close(apply("addcmul", x, y, z, 0.5), torch.addcmul(a, b, c, value=0.5))
    close(apply("clamp", x, 0.5, -0.5), torch.clamp(a, 0.5, -0.5))
    close(apply("lerp", x, y, 0.7), torch.lerp(a, b, 0.7))
    special = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32)
    close(apply("clamp", special, -1.0, 1.0), torch.clamp(torch.from_numpy(special), -1, 1))
    close(apply("threshold", special, 0.0, 9.0), torch.nn.functional.threshold(torch.from_numpy(special), 0.0, 9.0))
    whole = np.array([-7, -1, 0, 3, 9])
    close(apply("clamp", whole, None, 2), torch.clamp(torch.from_numpy(whole), None, 2))
    close(apply("addcmul", whole, whole, 2, 3), torch.from_numpy(whole + whole * 6))


def test_views():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    a = torch.from_numpy(x)
    close(apply("permute", x, dims=[2, 0, 1]), a.permute(2, 0, 1))
    close(apply("reshape", x, new_shape=[4, -1]), a.reshape(4, -1))
    close(apply("reshape", x, new_shape=[2, 1, 12]), a.reshape(2, 1, 12))
    close(apply("slice", x, start_indices=[0, 1, 1], end_indices=[2, 3, 9]), a[:, 1:, 1:])
    close(apply("pad", x, [1, 2, 0, 1], 7.0), torch.nn.functional.pad(a, (1, 2, 0, 1), value=7.0))
    close(apply("pad", x, [-1, 2]), torch.nn.functional.pad(a, (-1, 2)))
    close(apply("broadcast_in_dim", x[0, 0], shape=[3, 4, 2], broadcast_dims=[1]), a[0, 0][:, None].expand(3, 4, 2))


def test_cat():
    with_sizes = [np.full((2, n), n, np.float32) for n in (1, 3, 2)]
    from fuser_lab.definition.builder import FusionBuilder
    from fuser_lab.interpreter import evaluate

    with FusionBuilder() as fd:
        tensors = [fd.define_tensor(shape=list(x.shape), contiguity=True) for x in with_sizes]
        fd.add_output(fd.ops.cat(tensors, dim=-1))
    close(evaluate(fd.fusion, with_sizes)[0], torch.cat([torch.from_numpy(x) for x in with_sizes], dim=-1))


def test_matmul_and_linear():
    rng = np.random.default_rng(4)
    x, w, bias = (rng.standard_normal(s, dtype=np.float32) for s in ((2, 3, 4), (5, 4), (5,)))
    y = np.ascontiguousarray(w.T)
    a, b, c, d = map(torch.from_numpy, (x, w, bias, y))
    np.testing.assert_allclose(apply("linear", x, w, bias), torch.nn.functional.linear(a, b, c), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(apply("matmul", x, y), torch.matmul(a, d), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("source", [np.float32, np.float64, np.int32, np.int64, np.bool_])
@pytest.mark.parametrize(
    "target",
    ["Float", "Double", "Half", "BFloat16", "Int", "Int32", "Bool", "ComplexFloat", "Float8_e4m3fn", "Float8_e5m2"],
)
def test_cast(source, target):
    x = np.array([0, 1, 2, 3, 100]).astype(source)
    got = apply("cast", x, dtype=DataType[target])
    assert got.dtype == DataType[target].numpy
    names = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16"}
    names |= {"Int": "int64", "Int32": "int32", "Bool": "bool", "ComplexFloat": "complex64"}
    names |= {"Float8_e4m3fn": "float8_e4m3fn", "Float8_e5m2": "float8_e5m2"}
    want = torch.from_numpy(x).to(getattr(torch, names[target]))
    want = want.real.to(torch.float64) if want.is_complex() else want.to(torch.float64)
    got = got.real
    np.testing.assert_array_equal(got.astype(np.float64), want)


def test_every_op_is_documented():
    for op in OPS.values():
        assert op.doc.endswith(".")
        assert sum(x is not None for x in (op.scalar, op.element, op.combine)) <= 1
        assert isinstance(op.signature, inspect.Signature)

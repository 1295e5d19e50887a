"""Element types: names, storage, rounding to few bits, and arrays of other libraries."""

import ml_dtypes
import numpy as np
import pytest
from needs import needs

from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.dtypes import Category, DataType, from_numpy, narrow, number_of, parse_dtype, promote
from fuser_lab.errors import ArgumentTypeError, DefinitionError, UnsupportedError
from fuser_lab.interpreter import evaluate
from fuser_lab.runtime.arrays import TORCH_OF, describe, from_numpy_as, storage_dtype, to_numpy
from tests.unit.builders import apply

D = DataType
FLOAT8 = (D.Float8_e4m3fn, D.Float8_e5m2, D.Float8_e8m0fnu)
FLOAT4 = (D.Float4_e2m1fn, D.Float4_e2m1fn_x2)
IR_NAMES = {
    D.Double: "double", D.Float: "float", D.Half: "__half", D.BFloat16: "__bfloat", D.Int: "int64_t", D.Int32: "int",
    D.UInt64: "uint64_t", D.Bool: "bool", D.Index: "nvfuser_index_t", D.Float8_e4m3fn: "__e4m3",
    D.Float8_e5m2: "__e5m2", D.Float8_e8m0fnu: "__e8m0", D.Float4_e2m1fn: "__e2m1", D.Float4_e2m1fn_x2: "__e2m1_x2",
    D.Short: "int16_t", D.Char: "int8_t", D.Byte: "uint8_t",
    D.ComplexFloat: "std::complex<float>", D.ComplexDouble: "std::complex<double>", D.Null: "null",
}
NUMBERS = np.array(
    [0.0, -0.0, 1.0, -1.5, 0.3, 3.3, 100.0, 250.0, 448.0, 463.9, 464.0, 465.0, 1e4, 57344.0, 61439.0, 61440.0, 1e9,
     -1e9, 2.0**-6, 2.0**-9, 2.0**-10, 1.01 * 2.0**-10, 2.0**-16, 2.0**-17, 1e-30, np.inf, -np.inf],
    np.float32,
)


def test_names():
    assert set(IR_NAMES) == set(DataType)
    for dtype, name in IR_NAMES.items():
        assert dtype.ir_name == name
        assert repr(dtype) == f"DataType.{dtype.name}"


@pytest.mark.parametrize("dtype", [d for d in DataType if d not in {*FLOAT4, D.Null, D.Index}], ids=lambda d: d.name)
def test_storage_and_the_way_back(dtype):
    assert from_numpy(dtype.numpy) is dtype
    assert parse_dtype(dtype) is parse_dtype(dtype.name) is parse_dtype(str(dtype.numpy)) is dtype
    assert storage_dtype(dtype).itemsize == dtype.itemsize == dtype.numpy.itemsize
    assert (storage_dtype(dtype).kind == "u") == (dtype.is_reduced_float or dtype in {D.UInt64, D.Byte})


@pytest.mark.parametrize("dtype", FLOAT8, ids=lambda d: d.name)
def test_floats_of_8_bits_are_computed_with_as_float(dtype):
    assert dtype.is_float
    assert dtype.is_reduced_float
    assert dtype.compute is D.Float
    assert dtype.itemsize == 1


SMALL = (D.Short, D.Char, D.Byte)


@pytest.mark.parametrize("dtype", SMALL, ids=lambda d: d.name)
def test_integers_of_few_bits_are_computed_with_as_int32(dtype):
    assert dtype.is_integral
    assert dtype.compute is D.Int32
    assert promote([(dtype, Category.TENSOR)] * 2) is D.Int32
    assert promote([(dtype, Category.TENSOR), (D.Int, Category.SCALAR)]) is D.Int32
    assert promote([(dtype, Category.TENSOR), (D.Int, Category.SCALAR)], widen=False) is dtype
    info = np.iinfo(str(dtype.numpy))
    assert dtype.limits == (info.min, info.max)


def test_integers_of_few_bits_have_torchs_common_type():
    torch = needs("torch")
    for a in (*SMALL, D.Int32, D.Half):
        for b in SMALL:
            common = promote([(a, Category.TENSOR), (b, Category.TENSOR)], widen=False)
            wanted = torch.promote_types(*(getattr(torch, TORCH_OF[d]) for d in (a, b)))
            assert getattr(torch, TORCH_OF[common]) is wanted


@pytest.mark.parametrize("dtype", SMALL, ids=lambda d: d.name)
def test_numbers_outside_integers_of_few_bits_lose_bits_as_in_torch(dtype):
    torch = needs("torch")
    for source in (np.arange(-400, 400, dtype=np.int32), np.arange(-70000, 70000, 997, dtype=np.int64),
                   np.linspace(-300.9, 300.9, 50, dtype=np.float32)):
        with FusionBuilder() as fd:
            x = fd.define_tensor([source.size], True, from_numpy(source.dtype))
            fd.add_output(fd.ops.cast(x, dtype))
        got, = evaluate(fd.fusion, [source])
        assert got.dtype == dtype.numpy
        np.testing.assert_array_equal(got, torch.from_numpy(source).to(getattr(torch, TORCH_OF[dtype])).numpy())


@pytest.mark.parametrize("dtype", FLOAT4, ids=lambda d: d.name)
def test_floats_of_4_bits_are_names_only(dtype):
    with FusionBuilder() as fd:
        x = fd.define_tensor([4])
        for call in (
            lambda: fd.define_tensor([4], dtype=dtype),
            lambda: fd.define_scalar(dtype),
            lambda: fd.ops.cast(x, dtype),
            lambda: fd.ops.full([4], 0.0, dtype),
            lambda: dtype.kind,
            lambda: dtype.numpy,
        ):
            with pytest.raises(UnsupportedError, match=f"DataType.{dtype.name}"):
                call()


def test_null_has_no_values():
    with pytest.raises(DefinitionError, match=r"DataType.Null has no storage"):
        _ = D.Null.kind
    with pytest.raises(ArgumentTypeError, match="dtype uint16 is not a tensor type"):
        from_numpy(np.uint16)


@pytest.mark.parametrize("dtype", [D.Float8_e4m3fn, D.Float8_e5m2, D.Half, D.BFloat16], ids=lambda d: d.name)
def test_rounding_is_to_the_nearest_number(dtype):
    every = np.arange(1 << 8 * dtype.itemsize).astype(storage_dtype(dtype)).view(dtype.numpy)
    with np.errstate(invalid="ignore"):
        every = every.astype(np.float64)
    finite = np.unique(every[np.isfinite(every)])
    inside = NUMBERS[np.abs(NUMBERS) <= finite.max()]
    got = narrow(inside, dtype).astype(np.float64)
    nearest = np.abs(finite[None, :] - inside.astype(np.float64)[:, None]).min(1)
    np.testing.assert_array_equal(np.abs(got - inside), nearest)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(inside))


INTEGERS_OF = {
    #       Float to Int32, Double to Int32, Float and Double to Int, to UInt64
    np.nan: (0, -(2**31), -(2**63), 2**63),
    np.inf: (2**31 - 1, 2**31 - 1, 2**63 - 1, 2**64 - 1),
    -np.inf: (-(2**31), -(2**31), -(2**63), 0),
    1e10: (2**31 - 1, 2**31 - 1, 10**10, 10**10),
    -1e10: (-(2**31), -(2**31), -(10**10), 0),
    2.0**31: (2**31 - 1, 2**31 - 1, 2**31, 2**31),
    -(2.0**31): (-(2**31), -(2**31), -(2**31), 0),
    2.0**63: (2**31 - 1, 2**31 - 1, 2**63 - 1, 2**63),
    2.0**64: (2**31 - 1, 2**31 - 1, 2**63 - 1, 2**64 - 1),
    -0.75: (0, 0, 0, 0),
    -0.0: (0, 0, 0, 0),
    2.75: (2, 2, 2, 2),
    -2.75: (-2, -2, -2, 0),
}


@pytest.mark.parametrize("value", INTEGERS_OF, ids=str)
def test_integers_of_floats_are_those_of_cuda(value):
    of_float, of_double, signed, unsigned = INTEGERS_OF[value]
    with np.errstate(all="raise"):
        for source, wanted in ((np.float32, of_float), (np.float64, of_double)):
            x = np.array([value], source)
            assert narrow(x, D.Int32).tolist() == [wanted]
            assert narrow(x, D.Int).tolist() == [signed]
            assert narrow(x, D.UInt64).tolist() == [unsigned]
            assert narrow(x[0], D.Int32) == wanted
        assert number_of(value, D.Int32) == of_double


def test_integers_keep_their_low_bits():
    assert narrow(np.array([2**31, -1, 2**40 + 5]), D.Int32).tolist() == [-(2**31), -1, 5]
    assert narrow(np.array([-1]), D.UInt64).tolist() == [2**64 - 1]


def test_numbers_too_large_for_8_bits():
    huge = np.array([465.0, 1e9, np.inf, -np.inf, np.nan])
    got = narrow(huge, D.Float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(got, [448, 448, 448, -448, np.nan])
    got = narrow(np.array([61439.0, 61440.0, -1e9, np.nan]), D.Float8_e5m2).astype(np.float32)
    np.testing.assert_array_equal(got, [57344, np.inf, -np.inf, np.nan])
    got = narrow(np.array([0.0, -4.0, 3.0, 1.4, np.inf, np.nan]), D.Float8_e8m0fnu).astype(np.float32)
    np.testing.assert_array_equal(got, [2.0**-127, 4, 4, 1, np.nan, np.nan])


@pytest.mark.parametrize(
    "source", [np.float64, np.float32, np.float16, np.int64, np.int32, np.bool_, ml_dtypes.bfloat16],
)
@pytest.mark.parametrize("target", [*FLOAT8, D.Half, D.BFloat16], ids=lambda d: d.name)
def test_casts_to_few_bits_agree_with_torch(source, target):
    torch = needs("torch")
    with np.errstate(all="ignore"):
        x = NUMBERS[np.isfinite(NUMBERS) | (np.dtype(source).kind in "fV")].astype(source)
    if source is np.float64:
        x = np.concatenate([x, [1 + 2.0**-4 + 2.0**-40, 1 + 2.0**-11 + 2.0**-40]])
    got = apply("cast", x, dtype=target)
    assert got.dtype == target.numpy
    names = {D.Half: "float16", D.BFloat16: "bfloat16"}
    wanted = from_numpy_as("torch", x).to(getattr(torch, names.get(target, target.name.lower()))).to(torch.float32)
    if target is D.Float8_e4m3fn:
        # Older versions of torch give NaN if a number is too large.
        wanted = torch.where(wanted.isnan(), 448 * torch.sign(from_numpy_as("torch", x.astype(np.float32))), wanted)
    np.testing.assert_array_equal(got.astype(np.float32), wanted.numpy())


@pytest.mark.parametrize("dtype", FLOAT8, ids=lambda d: d.name)
def test_arrays_of_8_bit_floats_go_to_torch_and_back(dtype):
    torch = needs("torch")
    kind = getattr(torch, dtype.name.lower())
    tensor = torch.arange(1, 13, dtype=torch.float32).reshape(3, 4).to(kind)
    spec = describe(tensor.t())
    assert (spec.shape, spec.dtype, spec.strides) == ((4, 3), dtype, (1, 4))
    array = to_numpy(tensor)
    assert array.dtype == dtype.numpy
    np.testing.assert_array_equal(array.astype(np.float32), tensor.to(torch.float32).numpy())
    back = from_numpy_as("torch", array)
    assert back.dtype is kind
    back.view(torch.uint8)[0, 0] = 1
    assert array.view(np.uint8)[0, 0] == 1, "memory is shared"


def test_constants_are_rounded_to_their_dtype():
    x = np.array([0.3, 0.30004883], np.float16)
    assert apply("threshold", x, 0.3, 9.0).tolist() == [9.0, 9.0]


def test_only_integers_have_limits_and_all_real_types_have_bounds():
    assert (D.Byte.limits, D.Byte.bounds) == ((0, 255), (0, 255))
    assert (D.Half.bounds, D.Bool.bounds) == ((-np.inf, np.inf), (False, True))
    for dtype in (D.Float, D.Bool, D.ComplexFloat):
        with pytest.raises(TypeError, match=rf"limits: {dtype!r} is not an integer type\."):
            dtype.limits  # noqa: B018 - the property raises

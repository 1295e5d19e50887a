"""The output of the rules of device functions, computed by NumPy: 8-bit floats for devices without instructions."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fuser_lab.ops.random import philox
from fuser_lab.runtime.cuda_compilers.building import BITS, Builder, Kind, Operand, Pointer
from fuser_lab.runtime.cuda_compilers.float8_functions import E4M3, E5M2, Float8
from fuser_lab.runtime.cuda_compilers.random_functions import philox_words

FORMATS = {"e4m3": (E4M3, ml_dtypes.float8_e4m3fn), "e5m2": (E5M2, ml_dtypes.float8_e5m2)}
KINDS = {
    "i1": np.bool_, "i8": np.uint8, "i16": np.uint16, "i32": np.uint32, "i64": np.uint64, "f32": np.float32,
    "f64": np.float64,
}
INSTRUCTIONS = {
    "cvt.f32.f16 $0, $1;": lambda half: half.view(np.float16).astype(np.float32),
    "cvt.rni.u32.f32 $0, $1;": lambda x: np.clip(np.nan_to_num(np.rint(x), posinf=2**31), 0, 2**31).astype(np.uint32),
    "mul.wide.u32 $0, $1, $2;": lambda a, b: a.astype(np.uint64) * b.astype(np.uint64),
}
BINARY = {
    "add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": np.left_shift, "lshr": np.right_shift, "fmul": np.multiply,
}
SIGNS = {"<": np.less, "<=": np.less_equal, ">=": np.greater_equal, "!=": np.not_equal}


class Computing(Builder):
    """Computes expressions instead of writing them; values are NumPy arrays."""

    capability = (8, 0)

    def constant(self, kind: Kind, value: float) -> Any:
        return np.array(value).astype(KINDS[kind])

    def int64(self, operand: Operand) -> Any:
        return operand.value.astype(np.uint64)

    def assembly(
        self, text: str, results: Sequence[Kind], constraints: str, operands: Sequence[Any], *, pure: bool = False,
    ) -> list[Any]:
        (kind,) = results
        found = INSTRUCTIONS[text](*operands)
        assert found.dtype == KINDS[kind]
        assert constraints.count(",") == len(operands)
        return [found]

    def widened(self, value: Any, kind: Kind) -> Any:
        assert value.dtype.itemsize * 8 < BITS[kind]
        return value.astype(KINDS[kind])

    def truncated(self, value: Any, kind: Kind) -> Any:
        return (value & ((1 << BITS[kind]) - 1)).astype(KINDS[kind])

    def reinterpreted(self, value: Any, kind: Kind) -> Any:
        return value.view(KINDS[kind])

    def binary(self, op: str, a: Any, b: Any) -> Any:
        with np.errstate(all="ignore"):
            return BINARY[op](a, np.asarray(b).astype(a.dtype))

    def compared(self, sign: str, a: Any, b: Any) -> Any:
        return SIGNS[sign](a, b)

    def below(self, a: Any, b: Any) -> Any:
        return a < b

    def equal(self, a: Any, b: Any) -> Any:
        return a == b

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        kind = a.dtype if hasattr(a, "dtype") else b.dtype
        return np.where(condition, a, b).astype(kind)

    def place(self, memory: Operand, position: Any, kind: Kind, lanes: int = 1) -> Pointer:
        raise NotImplementedError

    def moved(self, memory: Operand, position: Any) -> Any:
        raise NotImplementedError

    def step(self, pointer: Pointer, count: int) -> Pointer:
        raise NotImplementedError

    def address(self, pointer: Pointer) -> Any:
        raise NotImplementedError

    def load(self, pointer: Pointer, align: int | None = None) -> list[Any]:
        raise NotImplementedError

    def store(self, pointer: Pointer, values: Sequence[Any], align: int | None = None) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(("form", "dtype"), FORMATS.values(), ids=FORMATS)
def test_each_byte_is_widened_by_arithmetic(form: Float8, dtype: Any) -> None:
    first = np.arange(256, dtype=np.uint16)
    second = first[::-1].copy()
    pair = first | (second << np.uint16(8))
    for place, byte in enumerate((first, second)):
        expected = byte.astype(np.uint8).view(dtype).astype(np.float32)
        np.testing.assert_array_equal(form.wide(Computing(), pair, np.bool_(place)), expected)


@pytest.mark.parametrize(("form", "dtype"), FORMATS.values(), ids=FORMATS)
def test_floats_are_rounded_by_arithmetic(form: Float8, dtype: Any) -> None:
    every = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    known = np.sort(every[np.isfinite(every)])
    between = (known[1:] + known[:-1]) / 2  # ties, and the adjacent numbers
    random = np.random.default_rng(0)
    numbers = np.concatenate(
        [
            every, between, np.nextafter(between, np.float32(np.inf)), np.nextafter(between, np.float32(-np.inf)),
            random.standard_normal(10_000).astype(np.float32) * np.exp2(random.integers(-24, 18, 10_000)).astype("f4"),
            np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, 65536.0, 61440.0, 61439.9]),
        ],
    )
    with np.errstate(over="ignore"):
        expected = numbers.astype(dtype)
    if form is E4M3:  # numbers that are too large become the largest one
        large = ~np.isnan(numbers) & (np.abs(numbers) > 448)
        expected[large] = np.copysign(np.float32(448), numbers[large]).astype(dtype)
    found = form.narrow(Computing(), [numbers])
    both = form.narrow(Computing(), [numbers, -numbers])
    assert found.dtype == both.dtype == np.uint16
    number = ~np.isnan(numbers)
    np.testing.assert_array_equal(found[number], expected.view(np.uint8)[number])
    assert np.isnan(found[~number].astype(np.uint8).view(dtype).astype(np.float32)).all()
    np.testing.assert_array_equal(both & 0xFF, found)
    np.testing.assert_array_equal((both >> 8)[number], (-expected).view(np.uint8)[number])


def test_random_words_are_those_of_the_definition() -> None:
    given = [np.uint64([3, 2**40 + 5]), np.uint64([7, 2**63]), np.uint64([0, 2**33 + 1])]
    found = philox_words(Computing(), *(Operand(value=value, type=None) for value in given))
    for at in range(2):
        seed, offset, group = (value[at : at + 1] for value in given)
        expected = philox(int(seed[0]), int(offset[0]), group)
        assert [int(word[at]) for word in found] == expected[0].tolist()

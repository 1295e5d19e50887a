"""Functions that generated CPU kernels call, because Numba lacks them or does not vectorize them.

LLVM inlines all of them. None uses fast-math beyond contraction, so that rounding tricks stay exact.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32, float64, int64, types, uint32, uint64
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

from fuser_lab.codegen.kernel_ir import TRANSPOSED
from fuser_lab.dtypes import DataType, integer_of_nan
from fuser_lab.ops.random import PHILOX_KEY_STEPS, PHILOX_MULTIPLIERS, PHILOX_ROUNDS
from fuser_lab.runtime.complex_functions import complex_div as complex_quotient
from fuser_lab.runtime.complex_functions import complex_functions
from fuser_lab.runtime.cpu.bits import bits_of_double, bits_of_float, double_of_bits, float_of_bits
from fuser_lab.runtime.cpu.pipelines import njit
from fuser_lab.runtime.integer_functions import integer_functions

_CACHE_LINE = 64  # bytes
_SHORT = 16  # bits
_KEY_0, _KEY_1 = PHILOX_KEY_STEPS
_MULTIPLIER_0, _MULTIPLIER_1 = PHILOX_MULTIPLIERS


class _Exact(ir.instructions.FastMathFlags):  # type: ignore[misc]
    """The flags of a call, always empty: Numba would add those of the kernel, such as "nsz", to every call."""

    def add(self, name: str) -> None:
        """Ignore a flag."""


def _llvm(name: str, arity: int, *, exact: bool = False) -> Any:
    """Return an intrinsic that is one LLVM instruction on floats, so that it vectorizes.

    It gets the flags of the kernel unless it is ``exact``.
    """

    def unary(context: Any, x: Any) -> Any:
        return x(x), generate

    def binary(context: Any, x: Any, y: Any) -> Any:
        return x(x, x), generate

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = args[0].type
        function = builder.module.declare_intrinsic(name, [kind], ir.FunctionType(kind, [kind] * arity))
        call = builder.call(function, args)
        if exact:
            call.fastmath = _Exact()
        return call

    return intrinsic(unary if arity == 1 else binary)


# NaN propagates, and the signs of zeros are kept.
maximum = _llvm("llvm.maximum", 2, exact=True)
minimum = _llvm("llvm.minimum", 2, exact=True)
# NaN propagates. For numbers without a minus sign, for which it takes half the instructions.
maximum_unsigned = _llvm("llvm.maximum", 2)
floor = _llvm("llvm.floor", 1)
ceil = _llvm("llvm.ceil", 1)
trunc = _llvm("llvm.trunc", 1)
rint = _llvm("llvm.rint", 1)


@intrinsic
def where(context: Any, condition: Any, first: Any, second: Any) -> Any:
    """Return one number or the other, without the branches that a conditional expression is typed and lowered with."""
    kind = context.unify_types(types.unliteral(first), types.unliteral(second))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(*args)

    return kind(types.boolean, kind, kind), generate


@intrinsic
def opaque(context: Any, x: Any) -> Any:
    """Return a number whose value LLVM does not use.

    ``maximum(total, x if c else -inf)`` would become ``maximum(total, x) if c else total``: a conditional step, which
    LLVM vectorizes for sums and products only.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = args[0].type
        return builder.call(
            builder.module.declare_intrinsic("llvm.arithmetic.fence", [kind], ir.FunctionType(kind, [kind])), args,
        )

    return x(x), generate


def _running(name: str, identity: float) -> Any:
    """Return one step of a reduction that ignores NaN: ``fmax(total, x)``, where the total is never NaN.

    The operand, which may be NaN, is first combined with the identity: that is one instruction and gives a number, so
    that the step itself need not handle NaN. Otherwise LLVM 22 vectorizes the reduction with an exit at the first NaN.
    Only one of its two cost models counts the exit: for many constant trip counts they choose different widths, and an
    assertion ends the process.
    """

    def typed(context: Any, total: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = args[0].type
            function = builder.module.declare_intrinsic(name, [kind], ir.FunctionType(kind, [kind] * 2))
            number = builder.call(function, [args[1], kind(identity)])
            return builder.call(function, [args[0], number], fastmath=("nnan", "nsz"))

        return x(x, x), generate

    return intrinsic(typed)


def _reorderable(operation: str) -> Any:
    """Return one step of a sum or product that may be reordered, as vectorization requires.

    The flag "nsz" is not set: with both flags, LLVM also decomposes operands, whatever their flags, and adds 0 for x -
    x.
    """

    def typed(context: Any, total: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return getattr(builder, operation)(*args, flags=("contract", "reassoc"))

        return x(x, x), generate

    return intrinsic(typed)


running_sum = _reorderable("fadd")
running_product = _reorderable("fmul")
fmax = _running("llvm.maxnum", -math.inf)
fmin = _running("llvm.minnum", math.inf)


def _truncation(dtype: DataType) -> Any:
    """Return a function that converts floats to integers as `fuser_lab.dtypes.truncate` does, without a branch."""
    bits, (low, high) = ir.IntType(8 * dtype.itemsize), dtype.limits

    def rule(context: Any, x: Any) -> Any:
        of_double = x == float64

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            (number,) = args

            def limit(value: int) -> Any:
                return ir.Constant(number.type, float(value))

            # Out of range this value is undefined; the selections below then never use it.
            inside = (builder.fptosi if low else builder.fptoui)(number, bits)
            clamped = builder.select(builder.fcmp_ordered("<=", number, limit(low)), ir.Constant(bits, low), inside)
            clamped = builder.select(
                builder.fcmp_ordered(">=", number, limit(high + 1)), ir.Constant(bits, high), clamped,
            )
            nan = ir.Constant(bits, integer_of_nan(dtype, of_double=of_double))
            return builder.select(builder.fcmp_unordered("uno", number, number), nan, clamped)

        return getattr(types, str(dtype.numpy))(x), generate

    return intrinsic(rule)


float_to_int32 = _truncation(DataType.Int32)
float_to_int64 = _truncation(DataType.Int)
float_to_uint64 = _truncation(DataType.UInt64)


@intrinsic(prefer_literal=True)
def scratch(context: Any, size: Any, kind: Any) -> Any:
    """Return an array of constant size on the stack: it is not allocated by a call, and threads do not share it.

    It lives as long as the calling function; a loop gets the same memory in every iteration.
    """
    array = types.Array(kind.dtype, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element, count = context.get_data_type(kind.dtype), size.literal_value
        with builder.goto_entry_block():  # not cgutils.alloca_once, which sets every element to zero, one by one
            memory = builder.alloca(ir.ArrayType(element, count))
        memory.align = _CACHE_LINE
        result = context.make_array(array)(context, builder)
        itemsize = context.get_abi_sizeof(element)
        arrayobj.populate_array(  # type: ignore[no-untyped-call]
            result, data=builder.bitcast(memory, element.as_pointer()), shape=[context.get_constant(types.intp, count)],
            strides=[context.get_constant(types.intp, itemsize)], itemsize=context.get_constant(types.intp, itemsize),
            meminfo=None,
        )
        return result._getvalue()  # noqa: SLF001 - how Numba's own code does it

    return array(size, kind), generate


@intrinsic
def note_missed(context: Any, status: Any) -> Any:
    """Set the word at an address to 1."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        builder.store(ir.Constant(word, 1), builder.inttoptr(args[0], word.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic(prefer_literal=True)
def transpose(
    context: Any, source: Any, target: Any, start: Any, rows: Any, columns: Any, pitch: Any, target_pitch: Any,
) -> Any:
    """Set ``target[start + column * target_pitch + row] = source[row * pitch + column]`` for all rows and columns.

    The numbers of rows and columns and the pitches are constants.

    Blocks of 8 x 8 elements are transposed in vector registers, in three rounds in which pairs of rows exchange half of
    their elements (the recursive transposition of 2 x 2 blocks; Eklundh 1972). In loops over elements, one of the two
    sides would be accessed element by element. Blocks of elements of two bytes have twice as many rows and columns.
    """
    is_short = getattr(source.dtype, "bitwidth", None) == _SHORT  # Numba's Boolean has no bit width
    doubles = is_short and not (rows.literal_value | columns.literal_value) % (2 * TRANSPOSED)
    side = 2 * TRANSPOSED if doubles else TRANSPOSED

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(context.get_data_type(source.dtype), side)
        itemsize = context.get_abi_sizeof(vector.element)
        kinds = zip((source, target), args[:2], strict=True)
        memory = [context.make_array(kind)(context, builder, array).data for kind, array in kinds]
        index = context.get_value_type(types.intp)

        def constant(value: int) -> Any:
            return ir.Constant(index, value)

        def pointer(base: Any, row: Any, number: int, pitch: Any, column: Any) -> Any:
            first = builder.mul(builder.add(row, constant(number)), constant(pitch.literal_value))
            return builder.bitcast(builder.gep(base, [builder.add(first, column)]), vector.as_pointer())

        def over(count: Any) -> Any:
            return cgutils.for_range_slice(
                builder, constant(0), constant(count.literal_value), constant(side), intp=index,
            )

        with over(rows) as (row, _), over(columns) as (column, _):
            block = [builder.load(pointer(memory[0], row, n, pitch, column), align=itemsize) for n in range(side)]
            place = builder.add(args[2], row)
            for n, line in enumerate(_exchange(builder, block)):
                builder.store(line, pointer(memory[1], column, n, target_pitch, place), align=itemsize)
        return context.get_dummy_value()

    return types.void(source, target, types.uintp, rows, columns, pitch, target_pitch), generate


def _exchange(builder: Any, block: list[Any]) -> list[Any]:
    """Return the rows of the transposed block, given the rows of a block as vectors."""
    side = len(block)
    distance = 1
    while distance < side:
        mask = ir.VectorType(ir.IntType(32), side)
        upper = ir.Constant(mask, [k if not k & distance else side + k - distance for k in range(side)])
        lower = ir.Constant(mask, [k + distance if not k & distance else side + k for k in range(side)])
        for n in (n for n in range(side) if not n & distance):
            a, b = block[n], block[n + distance]
            block[n] = builder.shuffle_vector(a, b, upper)
            block[n + distance] = builder.shuffle_vector(a, b, lower)
        distance *= 2
    return block


@njit(error_model="numpy")
def _quantile(half: Any, center: Any) -> Any:
    """Return the normal quantile of a probability by Wichura's AS 241 (1988), with an error of 1e-15.

    ``half`` is the smaller of the probability and its complement; ``center`` is exactly the probability minus 1/2.
    """
    if abs(center) <= 0.425:
        r = 0.180625 - center * center
        p = 2.5090809287301226727e3
        p = p * r + 3.3430575583588128105e4
        p = p * r + 6.7265770927008700853e4
        p = p * r + 4.5921953931549871457e4
        p = p * r + 1.3731693765509461125e4
        p = p * r + 1.9715909503065514427e3
        p = p * r + 1.3314166789178437745e2
        p = p * r + 3.3871328727963666080
        q = 5.2264952788528545610e3
        q = q * r + 2.8729085735721942674e4
        q = q * r + 3.9307895800092710610e4
        q = q * r + 2.1213794301586595867e4
        q = q * r + 5.3941960214247511077e3
        q = q * r + 6.8718700749205790830e2
        q = q * r + 4.2313330701600911252e1
        q = q * r + 1.0
        return center * p / q
    r = math.sqrt(-math.log(half))
    if r <= 5.0:
        r = r - 1.6
        p = 7.74545014278341407640e-4
        p = p * r + 2.27238449892691845833e-2
        p = p * r + 2.41780725177450611770e-1
        p = p * r + 1.27045825245236838258
        p = p * r + 3.64784832476320460504
        p = p * r + 5.76949722146069140550
        p = p * r + 4.63033784615654529590
        p = p * r + 1.42343711074968357734
        q = 1.05075007164441684324e-9
        q = q * r + 5.47593808499534494600e-4
        q = q * r + 1.51986665636164571966e-2
        q = q * r + 1.48103976427480074590e-1
        q = q * r + 6.89767334985100004550e-1
        q = q * r + 1.67638483018380384940
        q = q * r + 2.05319162663775882187
    else:
        r = r - 5.0
        p = 2.01033439929228813265e-7
        p = p * r + 2.71155556874348757815e-5
        p = p * r + 1.24266094738807843860e-3
        p = p * r + 2.65321895265761230930e-2
        p = p * r + 2.96560571828504891230e-1
        p = p * r + 1.78482653991729133580
        p = p * r + 5.46378491116411436990
        p = p * r + 6.65790464350110377720
        q = 2.04426310338993978564e-15
        q = q * r + 1.42151175831644588870e-7
        q = q * r + 1.84631831751005468180e-5
        q = q * r + 7.86869131145613259100e-4
        q = q * r + 1.48753612908506148525e-2
        q = q * r + 1.36929880922735805310e-1
        q = q * r + 5.99832206555887937690e-1
    quantile = p / (q * r + 1.0)
    return -quantile if center < 0.0 else quantile


@njit(error_model="numpy")
def erfinv(x: Any) -> Any:
    """Return the inverse of erf, as float64."""
    wide = float64(x)
    size = abs(wide)
    if size >= 1.0 or size != size:  # noqa: PLR0124
        return wide / 0.0 if size == 1.0 else math.nan
    return _quantile((1.0 - size) * 0.5, wide * 0.5) * 0.70710678118654752440


@njit(error_model="numpy")
def erfcinv(x: Any) -> Any:
    """Return the inverse of erfc, as float64."""
    wide = float64(x)
    if not 0.0 < wide < 2.0:
        return math.inf if wide == 0.0 else -math.inf if wide == 2.0 else math.nan
    smaller = wide if wide < 1.0 else 2.0 - wide
    return _quantile(smaller * 0.5, (1.0 - wide) * 0.5) * 0.70710678118654752440


@njit
def nextafter32(x: Any, y: Any) -> Any:
    """Return the float32 next to ``x`` toward ``y``."""
    if x != x or y != y:  # noqa: PLR0124
        return x + y
    if x == y:
        return y
    if x == float32(0.0):
        tiny = float_of_bits(uint32(1))
        return tiny if y > x else -tiny
    bits = bits_of_float(x)
    outward = (x < y) == (x > float32(0.0))
    return float_of_bits(uint32(bits + uint32(1)) if outward else uint32(bits - uint32(1)))


@njit
def nextafter64(x: Any, y: Any) -> Any:
    """Return the float64 next to ``x`` toward ``y``."""
    if x != x or y != y:  # noqa: PLR0124
        return x + y
    if x == y:
        return y
    if x == 0.0:
        tiny = double_of_bits(int64(1))
        return tiny if y > x else -tiny
    bits = bits_of_double(x)
    return double_of_bits(bits + int64(1) if (x < y) == (x > 0.0) else bits - int64(1))


complex_div = njit(error_model="numpy")(complex_quotient)  # Numba's division raises if the divisor is 0

# Flags are given explicitly, because these functions would otherwise get the fast-math flags of their callers.
_COMPLEX = complex_functions(njit(error_model="numpy", fastmath=False), float64, np.arccos)
complex_exp, complex_exp2, complex_expm1 = _COMPLEX["exp"], _COMPLEX["exp2"], _COMPLEX["expm1"]
complex_log, complex_log10 = _COMPLEX["log"], _COMPLEX["log10"]
complex_log1p, complex_log2 = _COMPLEX["log1p"], _COMPLEX["log2"]
complex_cosh, complex_sinh, complex_tanh = _COMPLEX["cosh"], _COMPLEX["sinh"], _COMPLEX["tanh"]
complex_cos, complex_sin, complex_tan = _COMPLEX["cos"], _COMPLEX["sin"], _COMPLEX["tan"]
complex_acosh, complex_pow = _COMPLEX["acosh"], _COMPLEX["pow"]
_INTEGERS = integer_functions(njit(error_model="numpy"), uint64)
shift_left, shift_right, common_divisor = _INTEGERS["shift_left"], _INTEGERS["shift_right"], _INTEGERS["common_divisor"]
divide_int, modulo_int, remainder_int = _INTEGERS["divide_int"], _INTEGERS["modulo_int"], _INTEGERS["remainder_int"]
divide_uint, modulo_uint = _INTEGERS["divide_uint"], _INTEGERS["modulo_uint"]
power_int, power_uint = _INTEGERS["power_int"], _INTEGERS["power_uint"]


@njit
def philox_uniform(seed: Any, offset: Any, position: Any) -> Any:
    """Return a float64 in [0, 1) with 24 random bits from Philox 4x32-10, as `fuser_lab.ops.random.philox` does."""
    mask = uint64(0xFFFFFFFF)
    group = uint64(position) >> uint64(2)
    c0, c1 = uint64(offset) & mask, (uint64(offset) >> uint64(32)) & mask
    c2, c3 = group & mask, group >> uint64(32)
    k0, k1 = uint64(seed) & mask, (uint64(seed) >> uint64(32)) & mask
    for _ in range(PHILOX_ROUNDS):
        first = c0 * uint64(_MULTIPLIER_0)
        second = c2 * uint64(_MULTIPLIER_1)
        c0, c1, c2, c3 = (
            (second >> uint64(32)) ^ c1 ^ k0,
            second & mask,
            (first >> uint64(32)) ^ c3 ^ k1,
            first & mask,
        )
        k0 = (k0 + uint64(_KEY_0)) & mask
        k1 = (k1 + uint64(_KEY_1)) & mask
    word = uint64(position) & uint64(3)
    chosen = c0 if word == 0 else c1 if word == 1 else c2 if word == 2 else c3
    return float64(chosen >> uint64(8)) * 5.9604644775390625e-08

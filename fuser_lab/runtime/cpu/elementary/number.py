"""Numbers in generated code, of which the rules of mathematical functions are written."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from fuser_lab.runtime.cpu_kernels import cpu_has

FLOAT, DOUBLE = ir.FloatType(), ir.DoubleType()
INT, LONG = ir.IntType(32), ir.IntType(64)
_FLAGS = ("contract",)  # Numba adds those of the kernel to instructions without flags
_ROUNDED = ("arcp",)  # means nothing for a product, which is rounded before it is added to something
_MANTISSA = {FLOAT: 23, DOUBLE: 52}  # bits
_BIAS = {FLOAT: 127, DOUBLE: 1023}  # of exponents
_PRESERVING = "preserve_allcc"  # the calling convention of functions that restore all registers
_HALF = {FLOAT: 4097.0, DOUBLE: 134217729.0}  # 2**12 + 1 and 2**27 + 1, which split a number into two halves


class Word:
    """An integer in generated code, or a vector of them, with Python's operators."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.value = value

    def __add__(self, other: "Word | int") -> "Word":
        return Word(self.builder, self.builder.add(self.value, self._like(other)))

    def __sub__(self, other: "Word | int") -> "Word":
        return Word(self.builder, self.builder.sub(self.value, self._like(other)))

    def __and__(self, other: "Word | int") -> "Word":
        return Word(self.builder, self.builder.and_(self.value, self._like(other)))

    def __or__(self, other: "Word | int") -> "Word":
        return Word(self.builder, self.builder.or_(self.value, self._like(other)))

    def __xor__(self, other: "Word | int") -> "Word":
        return Word(self.builder, self.builder.xor(self.value, self._like(other)))

    def __lshift__(self, bits: int) -> "Word":
        return Word(self.builder, self.builder.shl(self.value, self._like(bits)))

    def __rshift__(self, bits: int) -> "Word":
        """Return the integer shifted right, filled with its sign."""
        return Word(self.builder, self.builder.ashr(self.value, self._like(bits)))

    def unsigned_shift(self, bits: int) -> "Word":
        """Return the integer shifted right, filled with zeros."""
        return Word(self.builder, self.builder.lshr(self.value, self._like(bits)))

    @property
    def negative(self) -> Any:
        """Whether the integer is negative."""
        return self.builder.icmp_signed("<", self.value, self._like(0))

    @property
    def odd(self) -> Any:
        """Whether the integer is odd."""
        return self.builder.trunc(self.value, type_like(ir.IntType(1), self.value.type))

    def to(self, element: Any) -> "Word":
        """Return the lowest bits as another type of integers."""
        return Word(self.builder, self.builder.trunc(self.value, type_like(element, self.value.type)))

    @property
    def number(self) -> "Number":
        """The number with these bits."""
        element = FLOAT if element_of(self.value.type) == INT else DOUBLE
        return Number(self.builder, self.builder.bitcast(self.value, type_like(element, self.value.type)))

    def to_number(self, element: Any) -> "Number":
        """Return the number next to a signed integer."""
        return Number(self.builder, self.builder.sitofp(self.value, type_like(element, self.value.type)))

    def _like(self, other: "Word | int") -> Any:
        return other.value if isinstance(other, Word) else constant(self.value.type, other)


class Number:
    """A float32 or float64 in generated code, or a vector of them, with Python's operators."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.value = value

    def __add__(self, other: "Number | float") -> "Number":
        return Number(self.builder, self.builder.fadd(self.value, self._like(other), flags=_FLAGS))

    def __sub__(self, other: "Number | float") -> "Number":
        return Number(self.builder, self.builder.fsub(self.value, self._like(other), flags=_FLAGS))

    def __mul__(self, other: "Number | float") -> "Number":
        return Number(self.builder, self.builder.fmul(self.value, self._like(other), flags=_FLAGS))

    def __truediv__(self, other: "Number | float") -> "Number":
        return Number(self.builder, self.builder.fdiv(self.value, self._like(other), flags=_FLAGS))

    def __neg__(self) -> "Number":
        return Number(self.builder, self.builder.fneg(self.value))

    def __lt__(self, other: "Number | float") -> Any:
        return self.builder.fcmp_ordered("<", self.value, self._like(other), flags=_FLAGS)

    def __gt__(self, other: "Number | float") -> Any:
        return self.builder.fcmp_ordered(">", self.value, self._like(other), flags=_FLAGS)

    def __ge__(self, other: "Number | float") -> Any:
        return self.builder.fcmp_ordered(">=", self.value, self._like(other), flags=_FLAGS)

    def equals(self, other: "Number | float") -> Any:
        """Whether two numbers are equal; NaN is not."""
        return self.builder.fcmp_ordered("==", self.value, self._like(other), flags=_FLAGS)

    def where(self, condition: Any, other: "Number | float") -> "Number":
        """Return ``other`` if a condition holds, else this number."""
        return Number(self.builder, self.builder.select(condition, self._like(other), self.value))

    def polynomial(self, *coefficients: float) -> "Number":
        """Return a polynomial of this number by Horner's rule, with coefficients from the highest power down."""
        total = self.like(coefficients[0])
        for coefficient in coefficients[1:]:
            total = total * self + coefficient
        return total

    @property
    def is_double(self) -> bool:
        """Whether the number is a float64."""
        return bool(self.element == DOUBLE)

    @property
    def element(self) -> Any:
        """The type of one number."""
        return element_of(self.value.type)

    @property
    def is_zero(self) -> Any:
        """Whether this is a zero of either sign."""
        return self.equals(0.0)

    @property
    def is_nan(self) -> Any:
        """Whether this is not a number."""
        return self.builder.fcmp_unordered("uno", self.value, self.value)

    @property
    def bits(self) -> Word:
        """The bits as an integer."""
        element = LONG if self.is_double else INT
        return Word(self.builder, self.builder.bitcast(self.value, type_like(element, self.value.type)))

    @property
    def sign(self) -> Word:
        """The bit of the sign."""
        return self.bits & (-1 << (63 if self.is_double else 31))

    @property
    def size(self) -> "Number":
        """The magnitude."""
        return self.intrinsic("llvm.fabs")

    def signed(self, sign: Word) -> "Number":
        """Return this number with its sign changed where a bit is set."""
        return (self.bits ^ sign).number

    def to(self, element: Any) -> "Number":
        """Return this number as a float32 or float64, rounded or widened."""
        convert = self.builder.fpext if element == DOUBLE else self.builder.fptrunc
        return Number(self.builder, convert(self.value, type_like(element, self.value.type)))

    def like(self, number: float) -> "Number":
        """Return a constant of this number's type."""
        return Number(self.builder, constant(self.value.type, number))

    def whole(self, number: int) -> Word:
        """Return a constant integer with as many bits as this number."""
        element = LONG if self.is_double else INT
        return Word(self.builder, constant(type_like(element, self.value.type), number))

    def intrinsic(self, name: str, *others: "Number") -> "Number":
        """Return the result of one of LLVM's functions of numbers."""
        kind, count = self.value.type, 1 + len(others)
        suffix = f"v{kind.count}" if isinstance(kind, ir.VectorType) else ""
        full = f"{name}.{suffix}{self.element.intrinsic_name}"
        module = self.builder.module
        function = module.globals.get(full) or ir.Function(module, ir.FunctionType(kind, [kind] * count), full)
        return Number(self.builder, self.builder.call(function, [self.value, *(other.value for other in others)]))

    def by_library(self, name: str) -> "Number":
        """Return the result of a function of LLVM, which calls the C library, or of C, for a path that is rarely taken.

        The call preserves all registers. Otherwise a loop around it would load its constants in each iteration.
        """
        module, kind = self.builder.module, self.value.type
        full = f"rare.{name}.{kind.count if isinstance(kind, ir.VectorType) else 1}.{self.element.intrinsic_name}"
        function = module.globals.get(full)
        if function is None:
            function = ir.Function(module, ir.FunctionType(kind, [kind]), full)
            function.linkage, function.calling_convention = "internal", _PRESERVING
            function.attributes.add("noinline")
            function.attributes.add("cold")
            inside = ir.IRBuilder(function.append_basic_block())
            x = Number(inside, function.args[0])
            inside.ret(x.intrinsic(name).value if name.startswith("llvm.") else _by_c(x, name))
        return Number(self.builder, self.builder.call(function, [self.value], cconv=_PRESERVING))

    @property
    def root(self) -> "Number":
        """The square root."""
        return self.intrinsic("llvm.sqrt")

    def plus_product(self, a: "Number", b: "Number | float") -> "Number":
        """Return this number plus a product, rounded once; for processors with fused multiply-add."""
        return a.intrinsic("llvm.fma", b if isinstance(b, Number) else a.like(b), self)

    def product(self, other: "Number | float") -> "tuple[Number, Number]":
        """Return the product with another number, and its rounding error."""
        second = other if isinstance(other, Number) else self.like(other)
        high = Number(self.builder, self.builder.fmul(self.value, second.value, flags=_ROUNDED))
        if cpu_has("fma"):
            return high, (-high).plus_product(self, second)
        (a, b), (c, d) = self.halves(), second.halves()
        return high, ((a * c - high) + a * d + b * c) + b * d

    def halves(self) -> "tuple[Number, Number]":
        """Return two numbers with half as many digits, of which this one is the sum (Veltkamp)."""
        large = self * _HALF[self.element]
        high = large - (large - self)
        return high, self - high

    def sum_from_larger(self, smaller: "Number") -> "tuple[Number, Number]":
        """Return the sum with a number that is not larger in magnitude, and its rounding error (Dekker)."""
        total = self + smaller
        return total, smaller - (total - self)

    def sum(self, other: "Number") -> "tuple[Number, Number]":
        """Return the sum with a number, and its rounding error (Knuth)."""
        total = self + other
        part = total - self
        return total, (self - (total - part)) + (other - part)

    def nearest_whole(self) -> "tuple[Number, Word]":
        """Return the nearest integer of a number of magnitude below 2**21 or 2**50, as a number and as a word."""
        large = 1.5 * 2.0 ** _MANTISSA[self.element]  # adding it leaves an integer in the lowest bits
        shifted = self + large
        return shifted - large, shifted.bits - self.like(large).bits

    def power_of_two(self, exponent: Word) -> "Number":
        """Return 2 to a power between the smallest and the largest normal number, as a number of this type."""
        return ((exponent + _BIAS[self.element]) << _MANTISSA[self.element]).number

    def with_rare_path(self, condition: Any, path: "Callable[[], Number]") -> "Number":
        """Return the result of a path where a condition holds, which is computed only if it holds for some element."""
        before = self.builder.block
        with self.builder.if_then(any_of(self.builder, condition), likely=False):
            mixed = self.where(condition, path())
            inside = self.builder.block
        joined = self.builder.phi(self.value.type)
        joined.add_incoming(self.value, before)
        joined.add_incoming(mixed.value, inside)
        return Number(self.builder, joined)

    def iterate_while(self, condition: "Callable[[Number], Any]", step: "Callable[[Number], Number]") -> "Number":
        """Return the number after as many steps as any element needs; others keep theirs."""
        builder, before = self.builder, self.builder.block
        head, body, end = (builder.append_basic_block() for _ in range(3))
        builder.branch(head)
        builder.position_at_end(head)
        running = Number(builder, builder.phi(self.value.type))
        running.value.add_incoming(self.value, before)
        unfinished = condition(running)
        builder.cbranch(any_of(builder, unfinished), body, end)
        builder.position_at_end(body)
        following = running.where(unfinished, step(running))
        running.value.add_incoming(following.value, builder.block)
        builder.branch(head)
        builder.position_at_end(end)
        return running

    def _like(self, number: "Number | float") -> Any:
        return number.value if isinstance(number, Number) else constant(self.value.type, number)


def _by_c(x: Number, name: str) -> Any:
    """Return what a function of C computes of a number, or of each element of a vector."""
    builder, module, result = x.builder, x.builder.module, x.value
    function = module.globals.get(name) or ir.Function(module, ir.FunctionType(x.element, [x.element]), name)
    if not isinstance(result.type, ir.VectorType):
        return builder.call(function, [result])
    for place in (ir.Constant(INT, lane) for lane in range(result.type.count)):
        element = builder.call(function, [builder.extract_element(x.value, place)])
        result = builder.insert_element(result, element, place)
    return result


def element_of(kind: Any) -> Any:
    """Return the type of the elements of a vector, or of a number."""
    return kind.element if isinstance(kind, ir.VectorType) else kind


def type_like(element: Any, like: Any) -> Any:
    """Return a type of elements as a vector, if another type is one."""
    return ir.VectorType(element, like.count) if isinstance(like, ir.VectorType) else element


def constant(kind: Any, value: float) -> Any:
    """Return a constant of a type, with equal elements if it is a vector."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def any_of(builder: Any, condition: Any) -> Any:
    """Return whether a condition holds for some element."""
    if not isinstance(condition.type, ir.VectorType):
        return condition
    mask = ir.IntType(condition.type.count)
    return builder.icmp_unsigned("!=", builder.bitcast(condition, mask), ir.Constant(mask, 0))

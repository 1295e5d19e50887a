"""The instructions from which functions of CUDA kernels are built; each compiler writes them in its own IR.

A `Rule` describes the call of a function for given types; its ``generate`` writes the call's instructions with a
`Builder`. Values belong to the compiler and are only passed on.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["i1", "i8", "i16", "i32", "i64", "f32", "f64"]
BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "f32": 32, "f64": 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """An argument of a call: its value and its type, as the compiler represents them."""

    value: Any
    type: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """An address of vectors, each with ``lanes`` numbers of one kind."""

    value: Any
    kind: Kind
    lanes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a function for given types.

    ``generate`` takes a `Builder` and the operands; it returns the result, a tuple of results, or None.
    """

    result: Any
    arguments: tuple[Any, ...]
    generate: Callable[..., Any]


# Takes the types of the arguments; returns None to request literal types instead of the given ones.
Rule = Callable[..., Call | None]


def rule_of(result: Any, arguments: Sequence[Any], generate: Callable[..., Any]) -> Rule:
    """Return the rule of a function that always has these types."""
    call = Call(result=result, arguments=tuple(arguments), generate=generate)

    # Compilers inspect the parameters of a rule.
    def of_none() -> Call:
        return call

    def of_one(x: Any) -> Call:
        return call

    def of_two(x: Any, y: Any) -> Call:
        return call

    def of_three(x: Any, y: Any, z: Any) -> Call:
        return call

    return (of_none, of_one, of_two, of_three)[len(arguments)]


class Builder(ABC):
    """Writes the instructions of one call; a Python number as an operand is a constant of the other operand's kind."""

    @property
    @abstractmethod
    def capability(self) -> tuple[int, int]:
        """The compute capability of the device that the kernel is compiled for."""

    @abstractmethod
    def constant(self, kind: Kind, value: float) -> Any:
        """Return a number."""

    @abstractmethod
    def int64(self, operand: Operand) -> Any:
        """Return an integer of any type as an int64."""

    @abstractmethod
    def assembly(
        self, text: str, results: Sequence[Kind], constraints: str, operands: Sequence[Any], *, pure: bool = False,
        ordered: bool = False,
    ) -> list[Any]:
        """Return the results of PTX without other effects; results and then operands are $0, $1, ... in it.

        ``pure`` PTX depends on its operands alone, so repeated uses may be computed once. ``ordered`` PTX has effects:
        it is never removed, and no memory access is moved across it.
        """

    @abstractmethod
    def widened(self, value: Any, kind: Kind) -> Any:
        """Return an integer extended with zeros."""

    @abstractmethod
    def truncated(self, value: Any, kind: Kind) -> Any:
        """Return the lower bits of an integer."""

    @abstractmethod
    def reinterpreted(self, value: Any, kind: Kind) -> Any:
        """Return the number of another kind with the same bits."""

    @abstractmethod
    def binary(self, op: str, a: Any, b: Any) -> Any:
        """Return the result of an operation of two numbers, named as in LLVM: add, fadd, and, shl, lshr, ..."""

    @abstractmethod
    def compared(self, sign: str, a: Any, b: Any) -> Any:
        """Return whether a comparison of two floats holds; if one is NaN, only "!=" does."""

    @abstractmethod
    def below(self, a: Any, b: Any) -> Any:
        """Return whether one unsigned integer is less than another."""

    @abstractmethod
    def equal(self, a: Any, b: Any) -> Any:
        """Return whether two integers are equal."""

    @abstractmethod
    def select(self, condition: Any, a: Any, b: Any) -> Any:
        """Return one value or the other; at most one of them is a Python number."""

    @abstractmethod
    def place(self, memory: Operand, position: Any, kind: Kind, lanes: int = 1) -> Pointer:
        """Return the address of an element of global memory (a pointer), or of an array of the thread or the block."""

    @abstractmethod
    def moved(self, memory: Operand, position: Any) -> Any:
        """Return a pointer to global memory that begins at an element."""

    @abstractmethod
    def step(self, pointer: Pointer, count: int) -> Pointer:
        """Return the address ``count`` vectors further on."""

    @abstractmethod
    def address(self, pointer: Pointer) -> Any:
        """Return an address as an int64."""

    @abstractmethod
    def load(self, pointer: Pointer, align: int | None = None) -> list[Any]:
        """Return the numbers of a vector in memory."""

    @abstractmethod
    def store(self, pointer: Pointer, values: Sequence[Any], align: int | None = None) -> None:
        """Write the numbers of a vector to memory."""

    def moved_right(self, value: Any, count: Any) -> Any:
        """Return an unsigned integer shifted right."""
        return self.binary("lshr", value, count)

    def moved_left(self, value: Any, count: Any) -> Any:
        """Return an integer shifted left."""
        return self.binary("shl", value, count)

"""A walk over Kernel IR at sampled indices: what is known of each value, and which samples reach each statement.

A few samples go through the statements of a phase side by side, as an array with one number per sample. Index
arithmetic is evaluated, and values that depend on data are not: integers from memory count as scattered numbers, which
are within an axis if they are positions on it. Integers in the arrays of a thread are those that it put there. Nothing
is run. A subclass decides how samples are spread over the iterations of loops, and records what it counts: a GPU's
warps and their sectors (`kernel_profile`), a CPU's loops as a tree (`loop_tree`), or the bytes of each statement
(`statement_traffic`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fuser_lab.codegen import kernel_ir as ir
from fuser_lab.codegen.rewrites import checked_positions
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Const, Term, Var

# Memory that outlives a phase.
GLOBAL: Final = frozenset({ir.Role.INPUT, ir.Role.OUTPUT, ir.Role.UPDATED, ir.Role.WORKSPACE})
Whole = npt.NDArray[np.int64]
Numbers = npt.NDArray[Any]
Known = Whole | None  # one number per sample; None for values that depend on data
_RANDOM: Final = 2654435761  # Knuth's multiplicative hash
_TABLE: Final = 1 << 12  # assumed bound of an integer from memory


class Value(NamedTuple):
    """What is known of a value.

    ``inside`` is the place of the innermost loop that it depends on, in the unit of the walk: the depth of the loop, or
    how often its body is executed. ``gathered`` says that it depends on integers from memory.
    """

    numbers: Known
    inside: float
    gathered: bool = False


class Samples:
    """The samples of one phase during a walk."""

    def __init__(self, phase: ir.Phase, shape: tuple[int, ...], mask: npt.NDArray[np.bool_]) -> None:
        self._shape = shape  # of a number that is the same for all samples
        self._mask = mask  # of the samples that reach the current statement
        self._seen: dict[Term, Value] = {}  # values of terms, until a variable changes
        self._body = phase.body
        # Integers in arrays of a thread: by their positions, and how far those that a vector brings are from these.
        self._kept: dict[tuple[ir.Buffer, bytes], Value] = {}
        self._moved_words: dict[ir.Buffer, Whole] = {}
        self._env: dict[str, Value] = {
            size.name: Value(None if size.dtype.is_float else self._all(int(size.value)), 0) for size in phase.sizes
        }
        self._env |= {scalar.name: Value(None, 0) for scalar in phase.scalars}

    @property
    def _inside(self) -> float:
        """The place of the current statement, in the unit of the walk."""
        raise NotImplementedError

    def _loop(self, loop: ir.Loop) -> None:
        """Walk a loop."""
        raise NotImplementedError

    def _if(self, statement: ir.If) -> None:
        """Walk the sides of a condition."""
        raise NotImplementedError

    def _access(self, buffer: ir.Buffer, position: Term, count: int, width: int, *, stored: bool) -> Value:
        """Record an access to ``count`` elements, ``width`` at a time, and return the position."""
        raise NotImplementedError

    def _count_operation(self, term: Apply, inside: float) -> None:
        """Record an operation."""

    def _chose(self, term: Apply, condition: Value, chosen: Value) -> None:
        """Record the choice between two values by a condition."""

    def _other(self, statement: ir.Statement) -> None:
        """Record a statement that neither computes values nor accesses elements in memory one by one."""

    def _count_conversion(self, buffer: ir.Buffer, inside: float) -> None:
        """Record the conversion of an element between its dtype in memory and that of arithmetic."""

    def _all(self, value: int) -> Whole:
        return np.full(self._shape, value, np.int64)

    def _block(self, statements: tuple[ir.Statement, ...]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, statement: ir.Statement) -> None:
        match statement:
            case ir.Loop():
                self._loop(statement)
            case ir.If():
                self._if(statement)
            case ir.Let():
                self._assign(statement)
            case ir.VectorLoad(buffer=buffer) | ir.VectorStore(buffer=buffer):
                self._other(statement)
                stored = isinstance(statement, ir.VectorStore)
                place = self._access(buffer, statement.position, statement.count, statement.width, stored=stored)
                slot = self._term(statement.slot).numbers if buffer.dtype.is_integral and not stored else None
                if place.numbers is not None and slot is not None:
                    self._moved_words[statement.words] = place.numbers - slot
            case ir.Store(buffer=buffer, position=position, value=value) | ir.Send(
                buffer=buffer, position=position, value=value,
            ):
                element, place = self._term(value), self._access(buffer, position, 1, 1, stored=True)
                if element.gathered and place.numbers is not None and buffer.role in ir.OF_A_THREAD:
                    self._kept[buffer, place.numbers.tobytes()] = element
                self._count_conversion(buffer, self._inside)
            case ir.Reduce(name=name, value=value):
                self._term(value)
                self._env[name] = Value(None, self._inside)
                self._other(statement)
            case ir.Scan(carry=carry):
                self._env[carry.name] = Value(None, self._inside)
                self._other(statement)
            case _:
                self._other(statement)

    def _ends(self, loop: ir.Loop) -> tuple[Whole, Whole, bool]:
        """Return the first index of a loop, 0 if unknown, its turns, 1 if unknown, and whether its end is known."""
        start, stop = self._term(loop.start).numbers, self._term(loop.stop).numbers
        first = self._all(0) if start is None else start
        return first, self._all(1) if stop is None else np.maximum(stop - first, 0), stop is not None

    def _assign(self, statement: ir.Let) -> None:
        if statement.name in self._env:
            self._forget()
        value = self._term(statement.value)
        if value.gathered and value.numbers is not None and statement.name in self._axes:
            value = value._replace(numbers=value.numbers % self._axes[statement.name])
        self._env[statement.name] = Value(None, self._inside) if statement.update else value

    @cached_property
    def _axes(self) -> Mapping[str, int]:
        """The size of the axis of each position that is data; almost all positions are within their axes."""
        sizes: dict[str, int] = {}
        for name, size, _ in checked_positions(self._body):
            numbers = self._term(size).numbers
            if numbers is not None and numbers.max() > 0:
                sizes[name] = min(int(numbers.max()), sizes.get(name, int(numbers.max())))
        return sizes

    def _forget(self) -> None:
        """Forget the values of terms, because a variable has another value."""
        self._seen.clear()

    def _term(self, term: Term) -> Value:
        match term:
            case Const():
                whole = term.dtype.is_integral or term.dtype is DataType.Bool
                return Value(self._all(int(term.value.real)) if whole else None, 0)
            case Var():
                return self._env.get(term.name, Value(None, self._inside))
        value = self._seen.get(term)
        if value is None:
            value = self._load_value(term) if isinstance(term, ir.Load) else self._operation_value(term)
            self._seen[term] = value
        return value

    def _load_value(self, load: ir.Load) -> Value:
        place = self._access(load.buffer, load.position, 1, 1, stored=False)
        self._count_conversion(load.buffer, place.inside)
        return self._element(load, place)

    def _element(self, load: ir.Load, place: Value) -> Value:
        """Return what is known of an element of a buffer."""
        if place.numbers is None or not load.dtype.is_integral:
            return Value(None, place.inside)
        is_own, moved = load.buffer.role in ir.OF_A_THREAD, self._moved_words.get(load.buffer)
        if is_own and (stored := self._kept.get((load.buffer, place.numbers.tobytes()))) is not None:
            return stored
        position = place.numbers if moved is None else place.numbers + moved
        return Value(from_memory(position), place.inside, load.buffer.role in GLOBAL or moved is not None)

    def _operation_value(self, term: Term) -> Value:
        assert isinstance(term, Apply)
        if term.fn == "select":
            return self._selection(term)
        parts = [self._term(arg) for arg in term.args]
        inside = max((part.inside for part in parts), default=0)
        self._count_operation(term, inside)
        numbers = [part.numbers for part in parts]
        made = None if any(value is None for value in numbers) else whole_value(term, numbers)
        return Value(made, inside, any(part.gathered for part in parts))

    def _selection(self, term: Apply) -> Value:
        condition = self._term(term.args[0])
        sides: list[Value | None] = []  # None for a side that no sample takes
        for holds, arg in ((True, term.args[1]), (False, term.args[2])):
            with self._where(condition, holds=holds) as any_left:
                sides.append(self._term(arg) if any_left else None)
        chosen = self._chosen_of(condition, *sides)
        self._chose(term, condition, chosen)
        return chosen

    @contextmanager
    def _where(self, condition: Value, *, holds: bool) -> Iterator[bool]:
        """Return a context for the samples in which a condition is fulfilled, or is not; and whether there are any.

        One that depends on data is both.
        """
        outer = self._mask
        if condition.numbers is not None and not condition.gathered:
            self._mask = outer & (condition.numbers.astype(bool) == holds)
        yield bool(self._mask.any())
        self._mask = outer

    def _chosen_of(self, condition: Value, first: Value | None, second: Value | None) -> Value:
        """Return the first value where a condition is fulfilled, and the second where it is not."""
        a, b = first or Value(None, 0), second or Value(None, 0)
        numbers = a.numbers if second is None else b.numbers if first is None else None
        both = first is not None and second is not None
        if both and condition.numbers is not None and a.numbers is not None and b.numbers is not None:
            numbers = np.where(condition.numbers.astype(bool), a.numbers, b.numbers)
        return Value(numbers, max(condition.inside, a.inside, b.inside), a.gathered or b.gathered)


def from_memory(position: Whole) -> Whole:
    """Return unknown integers at positions: scattered, and equal for equal positions."""
    return np.asarray((position * _RANDOM >> 8) % _TABLE)


def whole_value(term: Apply, values: list[Any]) -> Known:
    """Return the integer value of a term for values of its arguments; None for other types and functions."""
    is_whole = term.dtype.is_integral or term.dtype is DataType.Bool
    return number_value(term, values) if is_whole and term.fn in _MEANINGS else None


def number_value(term: Apply, values: list[Any]) -> Numbers:
    """Return the real value of a term for values of its arguments; other functions have scattered values."""
    make = _MEANINGS.get(term.fn)
    with np.errstate(all="ignore"):
        made = from_memory(np.sum(values, axis=0).astype(np.int64)) if make is None else np.asarray(make(*values))
        return made if term.dtype.is_float else made.astype(np.int64)


_MEANINGS: Mapping[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative,
    "floordiv": lambda a, b: a // np.where(b == 0, 1, b), "mod": lambda a, b: a % np.where(b == 0, 1, b),
    "min": np.minimum, "max": np.maximum, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal, "cast": lambda a: a,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": lambda a: a == 0,
    "shl": lambda a, b: a << (b & 63), "shr": lambda a, b: a >> (b & 63),
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint,
}

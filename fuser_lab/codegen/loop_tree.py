"""The loops of a phase of a CPU kernel as a tree: how often each turns, what it computes, and how it walks memory.

A few samples go through the Kernel IR side by side, each in a round of its own of every loop, so that a condition which
only some rounds fulfil holds for as large a part of the samples. Index arithmetic is evaluated, and values that depend
on data are not; integers from memory count as scattered numbers. How an access moves with a loop is the difference
between the positions of two rounds. Where a position divides a loop's variable, as tiles and reshapes do, the loop
counts as several, one in the other, one for each digit.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fuser_lab.codegen.kernel_ir import (
    Buffer,
    If,
    Let,
    Load,
    Loop,
    Phase,
    Scan,
    Statement,
    Store,
    Transpose,
)
from fuser_lab.codegen.kernel_profile import from_memory, whole_value
from fuser_lab.cost.work import function_class
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Const, Term, Var
from fuser_lab.ir.transform import ParallelType

VECTOR: Final = 16  # elements that a vector loop takes together
_SAMPLES: Final = 16
_SPREAD: Final = (0.6180339887498949, 0.7548776662466927, 0.5698402909980532, 0.3819660112501051)  # of loops in loops
_ALL_LOOPS: Final = "*"  # in place of the name of one
# Time of a function of float32 in a vector loop over that of the exponential, measured on an AMD EPYC.
_FUNCTIONS: Final = {
    "exp": 1.0, "exp2": 1.0, "expm1": 1.0, "tanh": 1.0, "one_plus_tanh": 1.0, "erf": 1.0, "sigmoid": 1.3, "log": 2.0,
    "log2": 2.0, "log10": 2.0, "log1p": 2.0, "sin": 7.0, "cos": 7.0, "cos_turns": 7.0, "pow": 8.0,
}
_CALLED: Final = {"philox_uniform": 3.0}  # time of a function of the library over that of a typical one
_ROUNDING: Final = {DataType.BFloat16: 6, DataType.Float8_e4m3fn: 30, DataType.Float8_e5m2: 30}  # integer operations
_WIDENING: Final = {DataType.BFloat16: 1, DataType.Float8_e4m3fn: 15, DataType.Float8_e5m2: 15}
_DIVISION: Final = 5.0  # divisions by a constant that take as long as one by another number
_COMPLEX: Final = 4.0  # operations of a complex one

Whole = npt.NDArray[np.int64]
Known = Whole | None  # one number for each sample; None depends on data
Steps = tuple[tuple[int, int], ...]  # for each digit of a loop, fast ones first: elements apart, and turns
STILL: Final[Steps] = ((0, 1),)


class Operation(NamedTuple):
    """A class of operations and the bytes of an element.

    The classes are ``simple``, ``dividing``, ``function`` (in exponentials) and ``functions`` (the same, in numbers of
    them), ``called`` (a function of the library), ``whole`` (division of integers), ``converted`` (to or from Half),
    ``index``, ``turned`` (an element transposed in registers) and ``scanned``.
    """

    name: str
    size: int


@dataclass(slots=True, eq=False, kw_only=True)
class Access:
    """A load or store of one element per round of the loop that it stands in, or of the one that it is moved out to.

    Attributes
    ----------
    steps
        How it moves with each loop around it, by depth.
    times
        Part of the rounds in which it is made.
    chosen
        Whether a condition on the variable of its loop decides that.
    place
        The position in the first turn of all loops: accesses that move alike and begin near each other share lines.
    """

    buffer: Buffer
    stored: bool
    steps: Mapping[int, Steps]
    times: float
    chosen: bool
    place: int

    def step(self, depth: int) -> Steps:
        """Return how it moves with the loop at a depth."""
        return self.steps.get(depth, STILL)


@dataclass(slots=True)
class Amount:
    """How many operations a round computes: those that conditions let it, and with both sides of its conditions."""

    taken: float = 0.0
    both: float = 0.0


@dataclass(slots=True, eq=False, kw_only=True)
class Rounds:
    """A loop: its mean number of turns, and what one of its rounds does. The root is the phase, at depth 0.

    Attributes
    ----------
    times
        How often it runs in a round of the loop around it.
    left
        Mean number of turns that are left after whole vectors.
    share
        Part of the samples that reach it.
    is_shared, is_constant, accumulates
        Whether cores share it, whether the compiler knows the turns, and whether rounds add to a value.
    work
        Operations of each class that a round computes and no loop inside.
    """

    depth: int
    turns: float = 1.0
    times: float = 1.0
    left: float = 0.0
    share: float = 1.0
    is_shared: bool = False
    is_constant: bool = True
    accumulates: bool = False
    inner: list["Rounds"] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    work: dict[Operation, Amount] = field(default_factory=dict)


def loop_tree(phase: Phase) -> Rounds:
    """Return the tree of a phase of a kernel for the CPU."""
    return _Walk(phase).root


class _Found(NamedTuple):
    """A value, and the depth of the innermost loop that it depends on."""

    value: Known
    depth: int


class _Turning(NamedTuple):
    """A loop around the current statement: where it starts, how far from there each sample is, turns, and depth."""

    start: Term
    place: Whole
    turns: Whole
    depth: int


class _Walk:
    """The samples while a phase is evaluated."""

    def __init__(self, phase: Phase) -> None:
        self.root = Rounds(depth=0)
        self._stack = [self.root]
        self._mask: npt.NDArray[np.bool_] = np.ones(_SAMPLES, bool)
        self._loops: dict[str, _Turning] = {}
        self._lets: dict[str, Term] = {}
        self._chosen: list[int] = []  # depths that the conditions around the current statement depend on
        self._env: dict[str, _Found] = {
            **{size.name: _Found(None if size.dtype.is_float else _all(int(size.value)), 0) for size in phase.sizes},
            **{scalar.name: _Found(None, 0) for scalar in phase.scalars},
        }
        self._seen: dict[Term, _Found] = {}
        self._moved: dict[tuple[str, int], dict[Term, Whole]] = {}
        self._block(phase.body)

    @property
    def _depth(self) -> int:
        return len(self._stack) - 1

    def _forget(self) -> None:
        self._seen.clear()
        self._moved.clear()

    def _block(self, statements: tuple[Statement, ...]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, statement: Statement) -> None:
        match statement:
            case Loop():
                self._loop(statement)
            case If(condition=condition, then=then, otherwise=otherwise):
                self._if(self._term(condition), then, otherwise)
            case Let(name=name, value=value, update=update):
                if name in self._env:
                    self._forget()
                found = self._term(value)
                self._env[name] = _Found(None, self._depth) if update else found
                self._stack[-1].accumulates |= update
                if value.dtype.is_integral and not update:
                    self._lets[name] = value
            case Store(buffer=buffer, position=position, value=value):
                self._term(value)
                self._access(buffer, position, stored=True)
                self._convert(buffer.dtype, self._depth)
            case Transpose(rows=rows, columns=columns, source=source):
                self._count("turned", rows * columns, source.dtype.itemsize, self._depth)
            case Scan(parts=parts, each=each, buffer=buffer, carry=carry):
                self._count("scanned", parts * each, buffer.dtype.itemsize, self._depth)
                self._env[carry.name] = _Found(None, self._depth)
            case _:
                pass

    def _loop(self, loop: Loop) -> None:
        start, stop = self._term(loop.start).value, self._term(loop.stop).value
        first = _all(0) if start is None else start
        turns = _all(1) if stop is None else np.maximum(stop - first, 0)
        live = turns[self._mask]
        mean, share = float(live.mean()) if live.size else 0.0, self._share
        outside = self._stack[-1]
        rounds = Rounds(
            depth=self._depth + 1, turns=mean, times=share / max(outside.share, 1e-9), share=share,
            left=float((live % VECTOR).mean()) if live.size else 0.0,
            is_shared=loop.parallel is ParallelType.grid_x,
            is_constant=isinstance(loop.start, Const) and isinstance(loop.stop, Const),
        )
        outside.inner.append(rounds)
        if not mean:
            return
        spread = _SPREAD[min(self._depth, len(_SPREAD) - 1)]
        place = (turns * ((np.arange(_SAMPLES) * spread + 0.5) % 1)).astype(np.int64)
        saved = dict(self._env), self._mask, dict(self._loops)
        self._stack.append(rounds)
        self._env[loop.var] = _Found(first + place, self._depth)
        self._loops[loop.var] = _Turning(loop.start, place, turns, self._depth)
        self._mask = self._mask & (turns > 0)
        self._forget()
        self._block(loop.body)
        self._stack.pop()
        self._env, self._mask, self._loops = saved
        self._forget()

    def _if(self, condition: _Found, then: tuple[Statement, ...], otherwise: tuple[Statement, ...]) -> None:
        """Walk both sides; what either of them names depends on the condition afterwards."""
        before, after = dict(self._env), list[dict[str, _Found]]()
        for side, body in ((True, then), (False, otherwise)):
            self._env = dict(before)
            self._forget()
            with self._where(condition, side) as any_left:
                if body and any_left:
                    self._block(body)
            after.append(self._env)
        first, second = after
        self._env = dict(before)
        for name in {**first, **second}:
            a, b = first.get(name), second.get(name)
            one, other = a or b, b or a
            assert one is not None
            assert other is not None
            if one is not before.get(name) or other is not before.get(name):
                self._env[name] = self._chosen_of(condition, one, other)
        self._forget()

    @staticmethod
    def _chosen_of(condition: _Found, one: _Found, other: _Found) -> _Found:
        """Return the first value where a condition is fulfilled, and the second where it is not."""
        depth = max(condition.depth, one.depth, other.depth)
        if condition.value is None or one.value is None or other.value is None:
            return _Found(None, depth)
        return _Found(np.where(condition.value.astype(bool), one.value, other.value), depth)

    @property
    def _share(self) -> float:
        """The part of the samples that reach the current statement."""
        return float(self._mask.mean())

    @contextmanager
    def _where(self, condition: _Found, side: bool) -> Iterator[bool]:
        """Return a context in which a condition is fulfilled, or is not; and whether some sample is left there.

        One that depends on data is both.
        """
        outer = self._mask
        if condition.value is not None:
            self._mask = outer & (condition.value.astype(bool) == side)
        is_certain = condition.value is not None and bool((self._mask == outer).all())
        self._chosen.append(0 if is_certain else condition.depth)
        yield bool(self._mask.any())
        self._chosen.pop()
        self._mask = outer

    def _count(self, name: str, amount: float, size: int, depth: int) -> None:
        rounds = self._stack[min(depth, self._depth)]
        operation = Operation(name, size)
        part = min(self._share / max(rounds.share, 1e-9), 1.0)
        found = rounds.work.setdefault(operation, Amount())
        found.taken += amount * part
        found.both += amount * (1.0 if self._is_chosen(rounds.depth) else part)

    def _is_chosen(self, depth: int) -> bool:
        """Whether a condition on the variable of the loop at a depth decides if the current statement is executed."""
        return depth > 0 and any(one >= depth for one in self._chosen)

    def _convert(self, dtype: DataType, depth: int) -> None:
        """Count the conversion of an element between its dtype in memory and that of arithmetic."""
        if dtype is DataType.Half:
            self._count("converted", 1, 4, depth)
        elif dtype in _WIDENING:
            self._count("simple", _WIDENING[dtype], 4, depth)

    def _term(self, term: Term) -> _Found:
        match term:
            case Const():
                whole = term.dtype.is_integral or term.dtype is DataType.Bool
                return _Found(_all(int(term.value.real)) if whole else None, 0)
            case Var():
                return self._env.get(term.name, _Found(None, self._depth))
        known = self._seen.get(term)
        if known is None:
            known = self._seen[term] = self._loaded(term) if isinstance(term, Load) else self._applied(term)
        return known

    def _loaded(self, load: Load) -> _Found:
        found = self._access(load.buffer, load.position, stored=False)
        self._convert(load.buffer.dtype, found.depth)
        if found.value is None or not load.dtype.is_integral:
            return _Found(None, found.depth)
        return _Found(from_memory(found.value), found.depth)

    def _applied(self, term: Term) -> _Found:
        assert isinstance(term, Apply)
        if term.fn == "select":
            return self._selected(term)
        parts = [self._term(arg) for arg in term.args]
        depth = max((part.depth for part in parts), default=0)
        operation, amount = _operation(term)
        if amount:
            self._count(operation.name, amount, operation.size, depth)
        if operation.name == "function":
            self._count("functions", 1.0, operation.size, depth)
        values = [part.value for part in parts]
        return _Found(None if any(value is None for value in values) else whole_value(term, values), depth)

    def _selected(self, term: Apply) -> _Found:
        condition = self._term(term.args[0])
        sides = []
        for side, arg in ((True, term.args[1]), (False, term.args[2])):
            with self._where(condition, side) as any_left:
                sides.append(self._term(arg) if any_left else _Found(None, 0))
        found = self._chosen_of(condition, *sides)
        self._count("simple", 1, term.args[1].dtype.compute.itemsize, found.depth)
        return found

    def _access(self, buffer: Buffer, position: Term, *, stored: bool) -> _Found:
        """Note an access; a load stands in the innermost loop with which its position moves."""
        value = self._term(position).value
        steps = {
            turning.depth: self._steps(position, name, turning) for name, turning in self._loops.items()
        }
        moving = [depth for depth, digits in steps.items() if any(step for step, _ in digits)]
        depth = self._depth if stored else max(moving, default=0)
        rounds = self._stack[depth]
        rounds.accesses.append(Access(
            buffer=buffer, stored=stored, steps=steps, times=min(self._share / max(rounds.share, 1e-9), 1.0),
            chosen=self._is_chosen(depth),
            place=int(self._at(position, _ALL_LOOPS, 0)[int(np.argmax(self._mask))]),
        ))
        return _Found(value, depth)

    def _steps(self, position: Term, name: str, turning: _Turning) -> Steps:
        """Return how a position moves with a loop, digit by digit."""
        turns = int(turning.turns[self._mask].mean())
        if turns <= 1:
            return STILL
        sizes = [1]
        for divisor in sorted(self._divisors(position, name)):
            if sizes[-1] < divisor < turns and divisor % sizes[-1] == 0:
                sizes.append(divisor)
        first = self._at(position, name, 0)
        found = []
        for size, above in zip(sizes, [*sizes[1:], turns], strict=True):
            moved = np.abs(self._at(position, name, size) - first)[self._mask]
            found.append((int(np.median(moved)), -(-above // size)))
        return tuple(found)

    def _divisors(self, position: Term, name: str) -> set[int]:
        """Return after how many turns of a loop some quotient in a position changes, or some remainder begins again."""
        found = set()
        starts = {loop: turning.start for loop, turning in self._loops.items()}
        for term in _walked(position, {**starts, **self._lets}):
            if isinstance(term, Apply) and term.fn in {"floordiv", "mod"}:
                step = self._step_of(term.args[0], name)
                period = Fraction(self._divisor(term)) / step if step else Fraction(0)
                if period > 1 and period.denominator == 1:
                    found.add(int(period))
        return found

    def _step_of(self, term: Term, name: str) -> Fraction:
        """Return by how much an index grows with a turn of a loop; a quotient grows by a fraction."""
        if isinstance(term, Var) and term.name in self._lets:
            return self._step_of(self._lets[term.name], name)
        if isinstance(term, Apply) and term.fn == "floordiv":
            return self._step_of(term.args[0], name) / max(self._divisor(term), 1)
        moved = self._at(term, name, 1) - self._at(term, name, 0)
        return Fraction(abs(int(np.median(moved))))

    def _divisor(self, term: Apply) -> int:
        """Return by what a quotient or remainder divides: a constant, or a size that the kernel takes."""
        return int(self._at(term.args[1], _ALL_LOOPS, 0)[0])

    def _at(self, term: Term, name: str, turn: int) -> Whole:
        """Return the value of an index in a turn of the loop over ``name``, and in the current turns of the others."""
        memo = self._moved.setdefault((name, turn), {})
        known = memo.get(term)
        if known is None:
            known = memo[term] = self._evaluated(term, name, turn)
        return known

    def _evaluated(self, term: Term, name: str, turn: int) -> Whole:
        match term:
            case Const():
                return _all(int(term.value.real))
            case Var(name=variable) if variable in self._loops:
                loop = self._loops[variable]
                return self._at(loop.start, name, turn) + (turn if name in {variable, _ALL_LOOPS} else loop.place)
            case Var(name=variable) if variable in self._lets:
                return self._at(self._lets[variable], name, turn)
            case Load(position=position):
                return from_memory(self._at(position, name, turn))
            case Apply(fn=fn, args=args):
                values = [self._at(arg, name, turn) for arg in args]
                if fn == "select":
                    return np.where(values[0].astype(bool), values[1], values[2])
                made = whole_value(term, values)
                return _all(0) if made is None else made
        found = self._env[term.name].value if isinstance(term, Var) and term.name in self._env else None
        return _all(0) if found is None else found


def _all(value: int) -> Whole:
    return np.full(_SAMPLES, value, np.int64)


def _walked(term: Term, known: Mapping[str, Term]) -> Iterator[Term]:
    """Yield a term and all below it, through the variables that stand for terms or start from them."""
    for one in term.walk():
        yield one
        if isinstance(one, Var) and one.name in known:
            yield from _walked(known[one.name], {name: value for name, value in known.items() if name != one.name})


def _operation(term: Apply) -> tuple[Operation, float]:
    """Return the class of an operation, and how many of the class it takes."""
    operand = term.args[0].dtype if term.args else term.dtype
    size = max(operand.compute.itemsize, term.dtype.compute.itemsize)
    if term.fn in {"floordiv", "mod", "div", "quotient", "remainder", "fmod"} and operand.is_integral:
        divisor = term.args[1]
        if not isinstance(divisor, Const):
            return Operation("whole", 8), _DIVISION
        value = int(divisor.value.real)
        return (Operation("index", 8) if value > 0 and value & (value - 1) == 0 else Operation("whole", 8)), 1.0
    if DataType.Index in {operand, term.dtype}:
        return Operation("index", 8), 1.0
    if term.fn == "cast":
        if term.dtype is DataType.Half:
            return Operation("converted", 4), 1.0
        return Operation("simple", size), float(_ROUNDING.get(term.dtype, term.dtype is not operand))
    if operand.is_complex:
        return Operation("simple", 8), 0.0 if term.fn in {"real", "imag"} else _COMPLEX
    kind = function_class(term.fn)
    if kind != "special":
        return Operation(kind, size), 0.0 if term.fn == "complex" else 1.0
    if term.fn in _FUNCTIONS and operand.compute is DataType.Float:
        return Operation("function", 4), _FUNCTIONS[term.fn]
    return Operation("called", size), _CALLED.get(term.fn, 1.0)

"""The loops of a phase of a CPU kernel as a tree: how often each turns, what it computes, and how it walks memory.

A few samples go through the Kernel IR side by side. In every loop, the samples are in different rounds, so a condition
that holds in a third of the rounds holds for about a third of the samples. Index arithmetic is evaluated. Values that
depend on data are not; integers from memory count as scattered numbers. The step of an access along a loop is the
difference between its positions in two rounds, which is known if the position is computed from loops, also by
arithmetic of floating-point numbers. If a position divides the variable of a loop, as in tiles and reshapes,
the loop counts as several nested loops, one for each digit of the variable.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from fuser_lab.codegen import kernel_ir as ir
from fuser_lab.codegen.samples import Numbers, Samples, Value, Whole, from_memory, number_value
from fuser_lab.cost.work import function_class
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Const, Term, Var
from fuser_lab.ir.transform import ParallelType

VECTOR: Final = 16  # elements that one round of a vector loop computes
_SAMPLES: Final = 16  # iterations of each loop that are sampled
_SPREAD: Final = (0.6180339887498949, 0.7548776662466927, 0.5698402909980532, 0.3819660112501051)  # of loops in loops
_ALL_LOOPS: Final = "*"  # in place of the name of a loop
# Time of a function of float32 in a vector loop, in exponentials, measured on an AMD EPYC.
_FUNCTIONS: Final = {
    "exp": 1.0, "exp2": 1.0, "expm1": 1.0, "tanh": 1.0, "one_plus_tanh": 1.0, "erf": 1.0, "sigmoid": 1.3, "log": 2.0,
    "log2": 2.0, "log10": 2.0, "log1p": 2.0, "logaddexp": 3.0, "sin": 7.0, "cos": 7.0, "cos_turns": 7.0, "pow": 8.0,
}
_CALLED: Final = {"philox_uniform": 3.0}  # time of a library function, in typical library functions
_ROUNDING: Final = {DataType.BFloat16: 6, DataType.Float8_e4m3fn: 30, DataType.Float8_e5m2: 30}  # integer operations
_WIDENING: Final = {DataType.BFloat16: 1, DataType.Float8_e4m3fn: 15, DataType.Float8_e5m2: 15}
_DIVISION: Final = 5.0  # divisions by a constant that take as long as a division by a variable
_COMPLEX: Final = 4.0  # real operations in an operation of complex numbers

Steps = tuple[tuple[int, int], ...]  # for each digit of a loop, the fastest first: step in elements, and turns
STILL: Final[Steps] = ((0, 1),)  # the steps of an access whose position a loop does not change


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
    """A load or store of one element per round of a loop: the innermost loop with which its position changes.

    Attributes
    ----------
    steps
        The steps of the position along each loop around the access, by the loop's depth.
    times
        Fraction of the rounds that make the access.
    chosen
        Whether a condition on the variable of the loop decides which rounds make the access.
    place
        The position in the first turn of all loops. Accesses with equal steps and neighbouring places share lines.
    rounded
        Depth of the innermost loop on which the position depends through other numbers than indices, such as a rounded
        one, whose step no compiler knows; 0 if there is no such loop.
    """

    buffer: ir.Buffer
    stored: bool
    steps: Mapping[int, Steps]
    times: float
    chosen: bool
    place: int
    rounded: int = 0

    def step(self, depth: int) -> Steps:
        """Return the steps of the position along the loop at a depth."""
        return self.steps.get(depth, STILL)


@dataclass(slots=True)
class Amount:
    """Operations of a round: ``taken`` counts the side that a condition selects, ``both`` counts both sides."""

    taken: float = 0.0
    both: float = 0.0


@dataclass(slots=True, eq=False, kw_only=True)
class Rounds:
    """A loop: its mean number of turns, and the work of one round. The root is the phase, at depth 0.

    Attributes
    ----------
    times
        Number of times that the loop runs in a round of the loop around it.
    left
        Mean number of turns after the last whole vector.
    share
        Fraction of the samples that reach the loop.
    is_shared, is_constant, accumulates
        Whether cores share the loop, whether its number of turns is a constant, and whether its rounds add to a value.
    work
        Operations of each class in a round, without the operations of inner loops.
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


def loop_tree(phase: ir.Phase) -> Rounds:
    """Return the tree of a phase of a kernel for the CPU."""
    return _Walk(phase).root


class _Turning(NamedTuple):
    """A loop around the current statement: its start, the round of each sample, its turns and its depth."""

    start: Term
    place: Whole
    turns: Whole
    depth: int


class _Walk(Samples):
    """The samples while a phase is evaluated."""

    def __init__(self, phase: ir.Phase) -> None:
        self.root = Rounds(depth=0)
        self._stack = [self.root]
        super().__init__(phase, (_SAMPLES,), np.ones(_SAMPLES, bool))
        self._loops: dict[str, _Turning] = {}
        self._lets: dict[str, Term] = {}
        self._chosen: list[int] = []  # depths of the loops on which conditions around the statement depend
        self._moved: dict[tuple[str, int], dict[Term, Numbers]] = {}
        self._block(phase.body)

    @property
    def _depth(self) -> int:
        return len(self._stack) - 1

    @property
    def _inside(self) -> int:
        return self._depth

    def _forget(self) -> None:
        super()._forget()
        self._moved.clear()

    def _assign(self, statement: ir.Let) -> None:
        super()._assign(statement)
        self._stack[-1].accumulates |= statement.update
        if not (statement.value.dtype.is_complex or statement.update):
            self._lets[statement.name] = statement.value

    def _other(self, statement: ir.Statement) -> None:
        match statement:
            case ir.Transpose(rows=rows, columns=columns, source=source):
                self._count("turned", rows * columns, source.dtype.itemsize, self._depth)
            case ir.Scan(parts=parts, each=each, buffer=buffer):
                self._count("scanned", parts * each, buffer.dtype.itemsize, self._depth)
            case _:
                pass

    def _loop(self, loop: ir.Loop) -> None:
        first, turns, _ = self._ends(loop)
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
        self._env[loop.var] = Value(first + place, self._depth)
        self._loops[loop.var] = _Turning(loop.start, place, turns, self._depth)
        self._mask = self._mask & (turns > 0)
        self._forget()
        self._block(loop.body)
        self._stack.pop()
        self._env, self._mask, self._loops = saved
        self._forget()

    def _if(self, statement: ir.If) -> None:
        """Walk both sides; afterwards, a variable that either side assigns depends on the condition."""
        condition = self._term(statement.condition)
        before, after = dict(self._env), list[dict[str, Value]]()
        for side, body in ((True, statement.then), (False, statement.otherwise)):
            self._env = dict(before)
            self._forget()
            with self._where(condition, holds=side) as any_left:
                if body and any_left:
                    self._block(body)
            after.append(self._env)
        first, second = after
        self._env = dict(before)
        for name in {**first, **second}:
            a, b = first.get(name), second.get(name)
            value, other = a or b, b or a
            assert value is not None
            assert other is not None
            if value is not before.get(name) or other is not before.get(name):
                self._env[name] = self._chosen_of(condition, value, other)
        self._forget()

    def _chosen_of(self, condition: Value, first: Value | None, second: Value | None) -> Value:
        """Return the selected value, or an unknown one if no sample takes one of the sides."""
        return super()._chosen_of(condition, first or Value(None, 0), second or Value(None, 0))

    @property
    def _share(self) -> float:
        """The fraction of the samples that reach the current statement."""
        return float(self._mask.mean())

    @contextmanager
    def _where(self, condition: Value, *, holds: bool) -> Iterator[bool]:
        outer = self._mask
        with super()._where(condition, holds=holds) as any_left:
            is_known = condition.numbers is not None and not condition.gathered
            is_certain = is_known and bool((self._mask == outer).all())
            self._chosen.append(0 if is_certain else int(condition.inside))
            yield any_left
            self._chosen.pop()

    def _count(self, name: str, amount: float, size: int, depth: float) -> None:
        rounds = self._stack[min(int(depth), self._depth)]
        operation = Operation(name, size)
        part = min(self._share / max(rounds.share, 1e-9), 1.0)
        total = rounds.work.setdefault(operation, Amount())
        total.taken += amount * part
        total.both += amount * (1.0 if self._is_chosen(rounds.depth) else part)

    def _is_chosen(self, depth: int) -> bool:
        """Whether a condition on the variable of the loop at a depth decides if the current statement is executed."""
        return depth > 0 and any(chosen >= depth for chosen in self._chosen)

    def _count_conversion(self, buffer: ir.Buffer, inside: float) -> None:
        if buffer.dtype is DataType.Half:
            self._count("converted", 1, 4, inside)
        elif buffer.dtype in _WIDENING:
            self._count("simple", _WIDENING[buffer.dtype], 4, inside)

    def _count_operation(self, term: Apply, inside: float) -> None:
        operation, amount = _operation(term)
        if amount:
            self._count(operation.name, amount, operation.size, inside)
        if operation.name == "function":
            self._count("functions", 1.0, operation.size, inside)

    def _chose(self, term: Apply, condition: Value, chosen: Value) -> None:
        self._count("simple", 1, term.args[1].dtype.compute.itemsize, chosen.inside)

    def _access(self, buffer: ir.Buffer, position: Term, count: int, width: int, *, stored: bool) -> Value:
        """Record an access; a load belongs to the innermost loop with which its position changes."""
        numbers, inside, _ = self._term(position)
        steps = {
            turning.depth: self._steps(position, name, turning) for name, turning in self._loops.items()
        }
        moving = [depth for depth, digits in steps.items() if any(step for step, _ in digits)]
        rounded = int(inside) if numbers is None else 0
        depth = self._depth if stored else max((rounded, *moving))
        rounds = self._stack[depth]
        rounds.accesses.append(Access(
            buffer=buffer, stored=stored, steps=steps, times=min(self._share / max(rounds.share, 1e-9), 1.0),
            chosen=self._is_chosen(depth),
            place=int(self._at(position, _ALL_LOOPS, 0)[int(np.argmax(self._mask))]), rounded=rounded,
        ))
        return Value(numbers, depth)

    def _steps(self, position: Term, name: str, turning: _Turning) -> Steps:
        """Return the steps of a position along a loop, digit by digit."""
        turns = int(turning.turns[self._mask].mean())
        if turns <= 1:
            return STILL
        sizes = [1]
        for divisor in sorted(self._divisors(position, name)):
            if sizes[-1] < divisor < turns and divisor % sizes[-1] == 0:
                sizes.append(divisor)
        first = self._at(position, name, 0)
        steps = []
        for size, above in zip(sizes, [*sizes[1:], turns], strict=True):
            moved = np.abs(self._at(position, name, size) - first)[self._mask]
            steps.append((int(np.median(moved)), -(-above // size)))
        return tuple(steps)

    def _divisors(self, position: Term, name: str) -> set[int]:
        """Return the numbers of turns after which a quotient in a position changes, or a remainder returns to zero."""
        periods = set()
        starts = {loop: turning.start for loop, turning in self._loops.items()}
        for term in _walk_definitions(position, {**starts, **self._lets}):
            if isinstance(term, Apply) and term.fn in {"floordiv", "mod"}:
                divisor, step = self._divisor(term), self._step_of(term.args[0], name)
                if step and divisor % step == 0 and divisor > step:
                    periods.add(divisor // step)
        return periods

    def _step_of(self, term: Term, name: str) -> int:
        """Return the difference of an index between two turns of a loop."""
        moved = self._at(term, name, 1) - self._at(term, name, 0)
        return abs(int(np.median(moved)))

    def _divisor(self, term: Apply) -> int:
        """Return by what a quotient or remainder divides: a constant, or a size that the kernel takes."""
        return int(self._at(term.args[1], _ALL_LOOPS, 0)[0])

    def _at(self, term: Term, name: str, turn: int) -> Numbers:
        """Return the value of an index, or of a number in it, in a turn of the loop over ``name``.

        Other loops are in their current turns.
        """
        memo = self._moved.setdefault((name, turn), {})
        value = memo.get(term)
        if value is None:
            value = memo[term] = self._evaluate(term, name, turn)
        return value

    def _evaluate(self, term: Term, name: str, turn: int) -> Numbers:
        match term:
            case Const():
                return np.full(self._shape, term.value.real, np.float64 if term.dtype.is_float else np.int64)
            case Var(name=variable) if variable in self._loops:
                loop = self._loops[variable]
                return self._at(loop.start, name, turn) + (turn if name in {variable, _ALL_LOOPS} else loop.place)
            case Var(name=variable) if variable in self._lets:
                return self._at(self._lets[variable], name, turn)
            case ir.Load(position=position):
                return from_memory(self._at(position, name, turn))
            case Apply(fn=fn, args=args):
                values = [self._at(arg, name, turn) for arg in args]
                if fn == "select":
                    return np.where(values[0].astype(bool), values[1], values[2])
                return number_value(term, values)
        numbers = self._env[term.name].numbers if isinstance(term, Var) and term.name in self._env else None
        return self._all(0) if numbers is None else numbers


def _walk_definitions(term: Term, terms: Mapping[str, Term]) -> Iterator[Term]:
    """Yield a term and all below it, through the variables that stand for terms or start from them."""
    for part in term.walk():
        yield part
        if isinstance(part, Var) and part.name in terms:
            yield from _walk_definitions(terms[part.name], {n: value for n, value in terms.items() if n != part.name})


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

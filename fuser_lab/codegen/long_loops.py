"""Splitting of long innermost loops of CPU kernels, because LLVM's vectorizer takes time quadratic in the body.

    for j in range(n):               for j_block in range((n + 255) // 256):
        t2 = exp(T0[j])                  j_first = j_block * 256
        t3 = t2 + T1[j]                  j_last = min(j_first + 256, n)
        ...                              for j in range(j_first, j_last):
        t9 = t8 * T0[j]        ->            t2 = exp(T0[j])
        T9[j] = t9                           kept0[j - j_first] = t2
                                         for j in range(j_first, j_last):
                                             t2 = kept0[j - j_first]
                                             t3 = t2 + T1[j]
                                             ...

The body is cut into parts where few values cross. For each block of iterations, the parts run one after another, and
values that cross a cut are kept in scratch arrays, which fit in the L1 cache. Indices and loads of inputs are repeated
instead of kept. Each iteration executes the same statements in the same order as before, and loop-carried values, such
as a running sum, stay in one part.

If there are many parts, each is a function that the kernel calls (``Loop.called``), because Numba and LLVM take time
that is quadratic in the number of loops of a function. Parts with the same code, except for names, are one function, so
the operations that a chain repeats are compiled a few times in total.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, groupby, pairwise

from fuser_lab.codegen import kernel_ir as ir
from fuser_lab.codegen.cpu_functions import are_called, is_vectorized
from fuser_lab.codegen.index_math import access_of, negate, simplify
from fuser_lab.cost.crossovers import crossover
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import MATH, Apply, Const, Term, Var, apply, index, variables_in
from fuser_lab.ir.transform import ParallelType

LONG = crossover("cpu.long_loops.from")
PART = crossover("cpu.long_loops.part")
MANY = crossover("cpu.long_loops.parts")
ROUNDS = crossover("cpu.long_loops.rounds")

_UNEVEN = 1.15  # maximum length of a part, as a multiple of the average
_REPEATED = 6  # instructions of an index or a load up to which it is repeated
_PRODUCT = 3  # cost of a cut between a product and a sum that would be one instruction
# Of a function of a Float, written into the code or called, of other functions, and of a random number.
_FUNCTION, _CALL, _OTHER, _RANDOM = 40, 15, 5, 100
_LOADED, _STORED = {DataType.Half: 1, DataType.BFloat16: 2}, {DataType.Half: 1, DataType.BFloat16: 8}
_EIGHT_BITS = 40  # instructions of a conversion to or from eight bits, which LLVM writes out

Names = frozenset[str]

EXAMPLE = """
loop(c, 64, serial, let(t0, T0[c]), let(t1, t0 * 0.5), let(t2, t1 + t0), store(T1, c, t2 * 0.5))
"""


def divide_long_loops(body: ir.Block) -> ir.Block:
    """Return a phase's body in which each long innermost loop is split into several loops over blocks of iterations."""
    weights = Weights(calls=are_called(body))
    if sum(map(weights.outer_weight, ir.walk(body))) <= LONG:
        return body
    divider = _Divider(body, weights)
    return tuple(new for statement in body for new in divider.outermost(statement))


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The approximate numbers of LLVM instructions; ``calls`` says whether functions of a Float are calls."""

    calls: bool = False

    def whole(self, statement: ir.Statement) -> int:
        """Return the number of instructions of a statement and of those inside it."""
        return sum(map(self.outer_weight, ir.walk((statement,))))

    def outer_weight(self, statement: ir.Statement) -> int:
        """Return the number of instructions of a statement without those inside it."""
        stored = 1 + _conversion(statement.buffer, _STORED) if isinstance(statement, ir.Store) else 0
        return stored + sum(self._term(term) for term in ir.every_term(statement))

    def _term(self, term: Term) -> int:
        match term:
            case ir.Load(buffer=buffer):
                return 1 + _conversion(buffer, _LOADED)
            case Apply(fn="philox_uniform"):
                return _RANDOM
            case Apply() if is_vectorized(term):
                return _CALL if self.calls else _FUNCTION
            case Apply(fn=fn) if fn in MATH:
                return _OTHER
            case Apply():
                return 1
            case _:
                return 0


def _conversion(buffer: ir.Buffer, instructions: Mapping[DataType, int]) -> int:
    if buffer.role is ir.Role.SCRATCH or not buffer.dtype.is_reduced_float:
        return 0
    return instructions.get(buffer.dtype, _EIGHT_BITS)


# Units


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A statement that is not cut.

    It is executed if the conditions of all ``guards`` hold. ``sets`` are the first assignments of the names that it
    assigns, ``reads`` the names whose values it needs from before, and ``weight`` counts instructions.
    """

    statement: ir.Statement
    guards: tuple[Term, ...]
    sets: Mapping[str, ir.Let]
    reads: Names
    weight: int


def units_of(statements: ir.Block, weights: Weights, guards: tuple[Term, ...] = ()) -> Iterator[Unit]:
    """Yield the units of a body; a conditional that is longer than a part is cut as well."""
    for statement in statements:
        weight = weights.whole(statement)
        if isinstance(statement, ir.If) and weight > PART and not _loads(statement.condition):
            yield from units_of(statement.then, weights, (*guards, statement.condition))
            yield from units_of(statement.otherwise, weights, (*guards, negate(statement.condition)))
        else:
            yield _unit(statement, guards, weight)


def _unit(statement: ir.Statement, guards: tuple[Term, ...], weight: int) -> Unit:
    lets = [inside for inside in ir.walk((statement,)) if isinstance(inside, ir.Let)]
    reads, _ = _read((statement,), frozenset())
    return Unit(
        statement=statement, guards=guards, sets={let.name: let for let in reversed(lets)},
        reads=reads | variables_in(guards), weight=weight,
    )


def _read(statements: ir.Block, assigned: Names) -> tuple[Names, Names]:
    """Return the names that statements read before assigning them, and the names assigned afterwards."""
    read = frozenset[str]()
    for statement in statements:
        read |= variables_in(ir.terms_of(statement)) - assigned
        if isinstance(statement, ir.Let):
            assigned |= {statement.name}
        elif isinstance(statement, ir.If):
            before, then = _read(statement.then, assigned)
            other, otherwise = _read(statement.otherwise, assigned)
            read |= before | other
            assigned = then & otherwise
    return read, assigned


def _loads(term: Term) -> list[ir.Load]:
    return [part for part in term.walk() if isinstance(part, ir.Load)]


def statements_of(units: Iterable[Unit], depth: int = 0) -> ir.Block:
    """Return the statements of units, with adjacent ones under one condition, or its opposite, in one conditional."""
    statements: list[ir.Statement] = []
    before: Term | None = None
    for guard, neighbours in groupby(units, lambda unit: unit.guards[depth] if depth < len(unit.guards) else None):
        members = list(neighbours)
        if guard is None:
            statements += [unit.statement for unit in members]
        else:
            inner = statements_of(members, depth + 1)
            opposite = statements[-1] if before is not None and guard == negate(before) else None
            if isinstance(opposite, ir.If) and not opposite.otherwise:
                # A name that both branches define exists after the conditional.
                statements[-1] = replace(opposite, otherwise=inner)
            else:
                statements.append(ir.If(condition=guard, then=inner, origin=members[0].statement.origin))
        before = guard
    return tuple(statements)


# Where to cut


class Body:
    """The units of a loop's body, and their dependences.

    ``repeated`` has the names that every part computes itself, ``ties`` the first and last of units that stay in one
    part, and ``spans`` maps every other name to the unit that assigns it and the last one that reads it.
    """

    def __init__(self, units: Sequence[Unit], var: str) -> None:
        self.units = units
        self._var = var
        self._setters: dict[str, list[int]] = {}
        self._readers: dict[str, list[int]] = {}
        self._accesses: dict[ir.Buffer, list[tuple[int, Term]]] = {}
        self._loaded, self._stored = set[ir.Buffer](), set[ir.Buffer]()
        for number, unit in enumerate(units):
            for name in unit.sets:
                self._setters.setdefault(name, []).append(number)
            for name in unit.reads:
                self._readers.setdefault(name, []).append(number)
            for inside in ir.walk((unit.statement,)):
                self._note_accesses(number, inside)
        self.repeated = self._repeatable_units()
        self.ties = (*self._tied_names(), *self._tied_accesses())
        self.spans = {
            name: (setters[-1], max(self._readers.get(name, setters)))
            for name, setters in self._setters.items() if name not in self.repeated
        }

    def _note_accesses(self, number: int, statement: ir.Statement) -> None:
        if isinstance(statement, ir.Store):
            self._stored.add(statement.buffer)
            self._accesses.setdefault(statement.buffer, []).append((number, statement.position))
        for load in (load for root in ir.terms_of(statement) for load in _loads(root)):
            self._loaded.add(load.buffer)
            self._accesses.setdefault(load.buffer, []).append((number, load.position))

    def _repeatable_units(self) -> dict[str, int]:
        repeated: dict[str, int] = {}
        for number, unit in enumerate(self.units):
            match unit.statement:
                case ir.Let(name=name, value=value, update=False) if len(self._setters[name]) == 1:
                    is_available = all(read in repeated or read not in self._setters for read in unit.reads)
                    simple = value.dtype is DataType.Index or isinstance(value, ir.Load)
                    changed = any(load.buffer in self._stored for load in _loads(value))
                    if is_available and simple and not changed and unit.weight <= _REPEATED:
                        repeated[name] = number
        return repeated

    def _tied_names(self) -> Iterator[tuple[int, int]]:
        """Yield the units that use a loop-carried value, and those that assign the same name."""
        for name, setters in self._setters.items():
            readers = self._readers.get(name, [])
            is_older = bool(readers) and readers[0] <= setters[0]
            tied = [*setters, *readers] if is_older or self.units[setters[0]].sets[name].update else setters
            if min(tied) < max(tied):
                yield min(tied), max(tied)

    def _tied_accesses(self) -> Iterator[tuple[int, int]]:
        """Yield the units that access an array that is read and written, unless iterations access distinct elements."""
        for buffer in self._loaded & self._stored:
            accesses = self._accesses[buffer]
            places = {position for _, position in accesses}
            if len(places) > 1 or not self._is_apart(buffer, *places):
                yield accesses[0][0], accesses[-1][0]

    def _is_apart(self, buffer: ir.Buffer, position: Term) -> bool:
        moves = bool(access_of(buffer, position, self._var).step)
        return moves and self._setters.keys().isdisjoint(variables_in([position]))

    def crossing(self) -> list[int]:
        """Return the cost of values that cross a cut before each unit; expensive ones count several times."""
        changes = [0] * (len(self.units) + 1)
        for name, (setter, reader) in self.spans.items():
            count = _PRODUCT if self._is_fused(name) else 1
            changes[setter + 1] += count
            changes[max(reader, setter) + 1] -= count
        return list(accumulate(changes))[: len(self.units)]

    def _is_fused(self, name: str) -> bool:
        readers = self._readers.get(name, [])
        if len(readers) != 1:
            return False
        match self.units[self._setters[name][-1]].statement, self.units[readers[0]].statement:
            case ir.Let(value=Apply(dtype, "mul", _)), ir.Let(value=Apply(_, "add" | "sub", _)):
                return dtype.is_float
            case _:
                return False

    def entering(self, begin: int, end: int) -> set[str]:
        """Return the names that units read from units before them, and the statements to repeat for them."""
        waiting = [name for unit in self.units[begin:end] for name in unit.reads]
        names = set[str]()
        while waiting:
            name = waiting.pop()
            if name in self._setters and self._setters[name][0] < begin and name not in names:
                names.add(name)
                if name in self.repeated:
                    waiting += self.units[self.repeated[name]].reads
        return names

    def leaving(self, number: int, end: int) -> Iterator[tuple[ir.Let, tuple[Term, ...]]]:
        """Yield the values that a unit is the last to assign and that units from ``end`` on read.

        Each has the conditions under which it is assigned, which are common to all units that assign it.
        """
        for name, let in self.units[number].sets.items():
            setter, reader = self.spans.get(name, (-1, -1))
            if setter == number and reader >= end:
                around = [self.units[other].guards for other in self._setters[name]]
                shared = itertools.takewhile(lambda guards: len(set(guards)) == 1, zip(*around, strict=False))
                yield let, tuple(guard for guard, *_ in shared)

    def cuts(self) -> tuple[int, ...]:
        """Return the first unit of each part, followed by the number of units."""
        count = len(self.units)
        allowed = [True] * (count + 1)
        for first, last in self.ties:
            allowed[first + 1 : last + 1] = [False] * (last - first)
        return best_cuts([unit.weight for unit in self.units], self.crossing(), allowed)


def best_cuts(weights: Sequence[int], crossing: Sequence[int], allowed: Sequence[bool]) -> tuple[int, ...]:
    """Return the cuts at which the fewest values cross, as 0 < ... < len(weights).

    There are about as few parts as `PART` allows, and none is much longer than others where cuts are allowed; each cut
    counts as one more value. The minimal cost up to a position extends the cheapest position within a window before it.
    """
    count = len(weights)
    before = [0, *accumulate(weights)]
    most = _UNEVEN * before[-1] / max(-(-before[-1] // PART), 1)
    cost, previous = {0: 0}, dict[int, int]()
    window = deque([0])  # of increasing positions and costs
    for place in range(1, count + 1):
        if place < count and not allowed[place]:
            continue
        while len(window) > 1 and before[place] - before[window[0]] > most:
            window.popleft()
        previous[place] = window[0]
        cost[place] = cost[window[0]] + (crossing[place] + 1 if place < count else 0)
        while window and cost[window[-1]] >= cost[place]:
            window.pop()
        window.append(place)
    cuts = [count]
    while cuts[-1]:
        cuts.append(previous[cuts[-1]])
    return tuple(reversed(cuts))


# Writing


class _Divider:
    def __init__(self, body: ir.Block, weights: Weights) -> None:
        self._weights = weights
        self._names = {name for statement in ir.walk(body) for name in _names(statement)}
        self._numbers: dict[str, int] = {}  # the next number of a fresh name, by its beginning
        self._kept: list[ir.Buffer] = []  # of the outermost statement that is being split
        self._free: list[ir.Buffer] = []

    def outermost(self, statement: ir.Statement) -> ir.Block:
        """Return the statements that replace an outermost statement; arrays are allocated inside a parallel loop."""
        self._kept, self._free = [], []
        result = self._statement(statement)
        allocated = tuple(ir.Alloc(buffer=buffer) for buffer in self._kept)
        match result:
            case (ir.Loop(body=body) as loop,):
                return (replace(loop, body=(*allocated, *body)),)
            case _:
                return (*allocated, *result)

    def _statement(self, statement: ir.Statement) -> ir.Block:
        match statement:
            case ir.Loop(body=body) if not any(isinstance(inside, ir.Loop) for inside in ir.walk(body)):
                return self._loop(statement)
            case _:
                return (ir.map_blocks(statement, self._block),)

    def _block(self, statements: ir.Block) -> ir.Block:
        return tuple(new for statement in statements for new in self._statement(statement))

    def _loop(self, loop: ir.Loop) -> ir.Block:
        simple = all(isinstance(inside, ir.Let | ir.Store | ir.If) for inside in ir.walk(loop.body))
        if not simple or sum(map(self._weights.whole, loop.body)) <= LONG:
            return (loop,)
        body = Body(tuple(units_of(loop.body, self._weights)), loop.var)
        cuts = body.cuts()
        rounds = _most_rounds(loop)
        shared = loop.parallel is ParallelType.grid_x
        if rounds is not None and rounds <= ROUNDS and not shared:
            return self._parts(loop, body, cuts)
        names = [self._fresh(f"{loop.var}_{name}") for name in ("block", "first", "last")]
        block, first, last = (Var(DataType.Index, name) for name in names)
        begin = simplify(loop.start + block * ROUNDS, {})
        count = index(-(-rounds // ROUNDS)) if rounds is not None else _blocks(loop.stop - loop.start)
        lets = (
            ir.Let(name=first.name, value=begin), ir.Let(name=last.name, value=apply("min", first + ROUNDS, loop.stop)),
        )
        kind = ParallelType.vectorize if shared else loop.parallel
        parts = self._parts(replace(loop, start=first, stop=last, parallel=kind), body, cuts)
        return (replace(
            loop, var=block.name, start=index(0), stop=count, body=(*lets, *parts),
            parallel=loop.parallel if shared else ParallelType.serial,
        ),)

    def _parts(self, loop: ir.Loop, body: Body, cuts: Sequence[int]) -> ir.Block:
        """Return a loop over at most `ROUNDS` iterations for each part.

        A name that several parts assign is renamed in each, because Numba would otherwise search the assignments of
        each use.
        """
        slot = simplify(Var(DataType.Index, loop.var) - loop.start, {})
        loads: dict[str, ir.Load] = {}  # the values that the next parts read
        loops = []
        for begin, end in pairwise(cuts):
            entering = body.entering(begin, end)
            units = [_unit(ir.Let(name=name, value=load), (), 0) for name, load in loads.items() if name in entering]
            again = sorted(body.repeated[name] for name in entering if name in body.repeated)
            units += [_without_note(body.units[number]) for number in again]
            names = {name: self._fresh(name) for name in (loop.var, *entering)} if begin else {}
            for number in range(begin, end):
                unit = body.units[number]
                units.append(unit)
                for let, guards in body.leaving(number, end):
                    buffer = self._take_array(let.value.dtype.compute)
                    loads[let.name] = ir.Load(let.value.dtype, buffer, slot)
                    store = ir.Store(buffer=buffer, position=slot, value=let.var, origin=unit.statement.origin)
                    units.append(_unit(store, guards, 0))
            inner = _with_new_names(statements_of(units), names)
            called = len(cuts) - 1 > MANY and not _updates(inner)
            loops.append(replace(loop, var=names.get(loop.var, loop.var), body=inner, called=called))
            for name in [name for name in loads if body.spans[name][1] < end]:
                self._free.append(loads.pop(name).buffer)
        return tuple(loops)

    def _take_array(self, dtype: DataType) -> ir.Buffer:
        """Return an array for the values of a block of iterations, which is reserved until it is freed."""
        for buffer in self._free:
            if buffer.dtype is dtype:
                self._free.remove(buffer)
                return buffer
        buffer = ir.Buffer(name=self._fresh("kept"), dtype=dtype, size=ROUNDS, role=ir.Role.SCRATCH)
        self._kept.append(buffer)
        return buffer

    def _fresh(self, base: str) -> str:
        number = self._numbers.get(base, 0)
        while (name := f"{base}_{number}" if number else base) in self._names:
            number += 1
        self._numbers[base] = number + 1
        self._names.add(name)
        return name


def _names(statement: ir.Statement) -> Iterator[str]:
    """Yield the names that a statement uses, without nested statements."""
    match statement:
        case ir.Let(name=name) | ir.Loop(var=name):
            yield name
        case ir.Alloc(buffer=buffer):
            yield buffer.name
    yield from (buffer.name for buffer, _ in ir.accesses_of(statement))
    yield from variables_in(ir.terms_of(statement))


def _without_note(unit: Unit) -> Unit:
    return replace(unit, statement=replace(unit.statement, note=""))


def _with_new_names(statements: ir.Block, names: Mapping[str, str]) -> ir.Block:
    """Return statements of a part with some variables renamed."""
    def renamed(term: Term) -> Term | None:
        return Var(term.dtype, names[term.name]) if isinstance(term, Var) and term.name in names else None

    def with_new_name(statement: ir.Statement) -> ir.Statement:
        if isinstance(statement, ir.Let):
            statement = replace(statement, name=names.get(statement.name, statement.name))
        renamed_terms = ir.map_terms(statement, partial(ir.replace_terms, replaced=renamed))
        return ir.map_blocks(renamed_terms, partial(_with_new_names, names=names))

    return tuple(map(with_new_name, statements))


def _updates(body: ir.Block) -> bool:
    """Whether a body assigns names from outside of it."""
    return any(isinstance(inside, ir.Let) and inside.update for inside in ir.walk(body))


def _most_rounds(loop: ir.Loop) -> int | None:
    """Return the number of iterations of a loop or its smallest known bound; None if unknown."""
    stops = loop.stop.args if isinstance(loop.stop, Apply) and loop.stop.fn == "min" else (loop.stop,)
    counts = [simplify(stop - loop.start, {}) for stop in stops]
    return min((int(count.value.real) for count in counts if isinstance(count, Const)), default=None)


def _blocks(rounds: Term) -> Term:
    return simplify(apply("floordiv", rounds + (ROUNDS - 1), ROUNDS), {})

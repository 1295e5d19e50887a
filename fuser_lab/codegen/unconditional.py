"""Unconditional loads at data-dependent positions, so that on GPUs no branch waits for the positions.

    if (t1_at >= 0) & (t1_at < 1024):           t0 = T0[512 * row + t1_at if (t1_at >= 0) & (t1_at < 1024) else 0]
        t0 = T0[512 * row + t1_at]       ->     t2 = t0 if (t1_at >= 0) & (t1_at < 1024) else 0.0
        t2 = t0
    else:
        t2 = 0.0

Almost all positions are in range. A branch on a position has to wait for it, as do all loads after the branch, which
serializes them; without branches, they are in flight at once. If a position is out of range, the first element of the
tensor is loaded and discarded.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from fuser_lab.codegen.index_math import negate
from fuser_lab.codegen.kernel_ir import If, Let, Load, Loop, Role, Statement, walk
from fuser_lab.cost.crossovers import crossover
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import COMPARISONS, Apply, Term, Var, index

MOST_VALUES = crossover("branches.values")
_REGISTERS = frozenset({Role.SCRATCH, Role.WORDS})
_CHEAP = frozenset({"add", "sub", "mul", "neg", "cast", "select", "and", "or", "not"}) | COMPARISONS

Block = tuple[Statement, ...]


def made_of_data(body: Block) -> frozenset[str]:
    """Return the names of index variables whose values are loaded, or computed from loaded values."""
    names: set[str] = set()
    for statement in walk(body):
        if isinstance(statement, Let) and statement.value.dtype is DataType.Index:
            parts = list(statement.value.walk())
            loaded = any(isinstance(t, Load) or (isinstance(t, Var) and t.dtype is not DataType.Index) for t in parts)
            if loaded or any(isinstance(t, Var) and t.name in names for t in parts):
                names.add(statement.name)
    return frozenset(names)


def depends_on(condition: Term, names: Iterable[str]) -> bool:
    """Whether a condition depends on some variables."""
    name_set = set(names)
    return any(isinstance(term, Var) and term.name in name_set for term in condition.walk())


def unconditional(body: Block) -> Block:
    """Return statements without branches on data-dependent positions, if both sides only load and select."""
    data = made_of_data(body)
    names = Counter(s.name for s in walk(body) if isinstance(s, Let) and not s.update)
    return _block(body, data, names) if data else body


def _block(body: Block, data: frozenset[str], names: Counter[str]) -> Block:
    return tuple(new for statement in body for new in _statement(statement, data, names))


def _statement(statement: Statement, data: frozenset[str], names: Counter[str]) -> Iterator[Statement]:
    match statement:
        case Loop(body=body):
            yield replace(statement, body=_block(body, data, names))
        case If(condition=condition, then=then, otherwise=otherwise):
            sides = _block(then, data, names), _block(otherwise, data, names)
            if depends_on(condition, data) and (chosen := _selection(statement, *sides, names)):
                yield from chosen
            else:
                yield replace(statement, then=sides[0], otherwise=sides[1])
        case _:
            yield statement


def _selection(choice: If, then: Block, otherwise: Block, names: Counter[str]) -> Block:
    """Return a branch-free selection between two values; empty if the branches do anything else.

    ``names`` counts the definitions of each name: values of a branch that share theirs with others get new ones,
    because they are now defined in the block around the branch.
    """
    both = (*then, *otherwise)
    values = [s for s in both if isinstance(s, Let) and not s.update]
    if len(values) < len(both) or not then or not otherwise or len(both) > MOST_VALUES + 2:
        return ()
    last, other = values[len(then) - 1], values[-1]
    if last.name != other.name or not all(_is_cheap(s.value) for s in values):
        return ()
    result: list[Statement] = []
    sides = []
    for block, condition in ((values[: len(then)], choice.condition), (values[len(then) :], negate(choice.condition))):
        renamed: dict[str, str] = {}
        for value in block[:-1]:
            inside = _within(value.value, condition, renamed)
            if names[value.name] > 1:
                renamed[value.name] = _fresh(value.name, names)
            result.append(replace(value, name=renamed.get(value.name, value.name), value=inside))
        sides.append(_within(block[-1].value, condition, renamed))
    if result:
        result[0] = replace(result[0], note=choice.note)
    made = Apply(last.value.dtype, "select", (choice.condition, *sides))
    result.append(replace(last, value=made, note="" if result else choice.note))
    return tuple(result)


def _is_cheap(value: Term) -> bool:
    """Whether a value may be computed and discarded: it is cheap, and each of its loads can be made safe."""
    loads = [term for term in value.walk() if isinstance(term, Load)]
    functions = {term.fn for term in value.walk() if isinstance(term, Apply) and term.dtype is not DataType.Index}
    return functions <= _CHEAP and all(load.buffer.role in _REGISTERS or load.buffer.size for load in loads)


def _fresh(base: str, names: Counter[str]) -> str:
    """Return a new name, and count it."""
    name = next(name for number in itertools.count(1) if not names[name := f"{base}_{number}"])
    names[name] += 1
    return name


def _within(value: Term, condition: Term, renamed: Mapping[str, str]) -> Term:
    """Return a value that loads the first element if a condition does not hold, with some variables renamed."""
    match value:
        case Var(dtype, name):
            return Var(dtype, renamed.get(name, name))
        case Load(dtype, buffer, position):
            place = _within(position, condition, renamed)
            if buffer.role not in _REGISTERS:
                place = Apply(DataType.Index, "select", (condition, place, index(0)))
            return Load(dtype, buffer, place)
        case Apply(dtype, fn, args):
            return Apply(dtype, fn, tuple(_within(arg, condition, renamed) for arg in args))
        case _:
            return value

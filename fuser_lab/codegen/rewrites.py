"""Cheaper forms of values and loads for GPUs.

`rewrite` combines consecutive expressions.

``1 + tanh(x)``, as in the tanh form of GELU, is ``2 / (1 + exp(-2 x))``, with half the instructions and without
cancellation where tanh is near -1. ``1 / (1 + exp(-x))``, the logistic function, multiplies by an approximate
reciprocal, which is as accurate as the exponential; ``x / (1 + exp(-x))``, SiLU, is x times that. ``cos(2 pi x)``, as
in normal numbers by Box and Muller, needs no reduction by an inexact pi. A bound at or beyond the largest ``e4m3``
number has no effect before a conversion to e4m3, which saturates anyway.

`unconditional` makes loads at data-dependent positions unconditional, so that no branch waits for the positions.

    if (t1_at >= 0) & (t1_at < 1024):           t0 = T0[512 * row + t1_at if (t1_at >= 0) & (t1_at < 1024) else 0]
        t0 = T0[512 * row + t1_at]       ->     t2 = t0 if (t1_at >= 0) & (t1_at < 1024) else 0.0
        t2 = t0
    else:
        t2 = 0.0

Almost all positions are in range. A branch on a position has to wait for it, as do all loads after the branch, which
serializes them; without branches, they are in flight at once. If a position is out of range, the first element of the
tensor is loaded and discarded.

`without_equal_branches` removes branches whose two sides have the same value, as when each side reads the words that a
branch before it has loaded from one of several tensors.

    if g < 2:                       t24 = T0_v[v]
        t0 = T0_v[v]
        t24 = t0               ->
    else:
        t1 = T0_v[v]
        t24 = t1

`narrow_values` finds values of reduced floats that are only stored: a rounding or a conversion can be omitted.

    t6 = round_e4m3(t5)            t6 = t5                          (the store rounds)
    T6[i] = float_to_e4m3(t6)  ->  T6[i] = float_to_e4m3(t6)

    t0 = e4m3_to_float(T0[i])      t0 = T0[i]                       (a word, copied as it is)
    T9[j] = float_to_e4m3(t0)  ->  T9[j] = t0

This does not change Kernel IR, in which a value of a reduced dtype is exact, so both forms mean the same. Printers that
convert by instructions choose the cheaper form; statements are given by their positions in the order of `walk`.
"""

import itertools
import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from fuser_lab.codegen import kernel_ir as ir
from fuser_lab.codegen.index_math import negate, variables
from fuser_lab.cost.crossovers import crossover
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import COMPARISONS, Apply, Const, Term, Var, index, variables_in

_LARGEST_E4M3 = 448.0  # largest number of Float8_e4m3fn (OCP 8-bit floating point, E4M3)

LOGISTIC = """
loop(c, 64, block_x, let(t0, T0[c]), let(t1, 1.0 / (1.0 + apply("exp", -t0))), store(T1, c, t1))
"""
EQUAL_BRANCHES = """
loop(
    c, 16, block_x,
    choose(c < 4, then=[let(t0, T0[c]), let(t2, t0)], otherwise=[let(t2, T0[c])]),
    choose(c < 8, then=[let(t3, T0[c])], otherwise=[let(t3, -T0[c])]),
    store(T1, c, t2 * t3),
)
"""
LOOKED_UP = """
loop(
    c, 64, block_x,
    let(at, cast(T0[c] * 32.0, Index)),
    choose(
        apply("and", at >= 0, at < 64),
        then=[let(t0, T0[at]), let(t1, t0)], otherwise=[let(t1, number(0.0))],
    ),
    store(T1, c, t1),
)
"""


def rewrite(body: ir.Block) -> ir.Block:
    """Return statements with cheaper values, and without values that are no longer used."""
    return without_unread(body, _block(body, {}))


def without_unread(body: ir.Block, replaced: ir.Block) -> ir.Block:
    """Return the statements that replace a body, without the values that only the body reads."""
    return body if replaced == body else without(replaced, variables_read(body) - variables_read(replaced))


def _block(body: ir.Block, definitions: Mapping[str, Term]) -> ir.Block:
    inner = dict(definitions)
    result: list[ir.Statement] = []
    for statement in body:
        match statement:
            case ir.Let(name=name, value=value) if not statement.update:
                inner[name] = value
                result.append(replace(statement, value=_cheaper(value, inner)))
            case _:
                result.append(ir.map_blocks(statement, partial(_block, definitions=inner)))
    return tuple(result)


def _cheaper(value: Term, definitions: Mapping[str, Term]) -> Term:
    match value:
        case (
            Apply(DataType.Float, "add", (Const(_, number), Var(_, name)))
            | Apply(DataType.Float, "add", (Var(_, name), Const(_, number)))
        ) if number == 1:
            inner = definitions.get(name)
            if isinstance(inner, Apply) and inner.fn == "tanh" and inner.dtype is DataType.Float:
                return Apply(DataType.Float, "one_plus_tanh", inner.args)
        case Apply(
            DataType.Float, "div",
            (Const(_, unit), Apply(_, "add", (Const(_, other), Apply(_, "exp", (Apply(_, "neg", (x,)),))))),
        ) if unit == other == 1:
            return Apply(DataType.Float, "sigmoid", (_cheaper(x, definitions),))
        case Apply(
            DataType.Float, "div",
            (x, Apply(_, "add", (Const(_, unit), Apply(_, "exp", (Apply(_, "neg", (other,)),))))),
        ) if unit == 1 and x == other:
            argument = _cheaper(x, definitions)
            return Apply(DataType.Float, "mul", (argument, Apply(DataType.Float, "sigmoid", (argument,))))
        case Apply(dtype, "cos", (Apply(_, "mul", (turns, Const(_, number))),)) if number == 2 * math.pi:
            return Apply(dtype, "cos_turns", (_cheaper(turns, definitions),))
        case Apply(DataType.Float8_e4m3fn as dtype, "cast", (x,)):
            return Apply(dtype, "cast", (_without_bounds(_cheaper(x, definitions), definitions),))
        case Apply(dtype, fn, args):
            return Apply(dtype, fn, tuple(_cheaper(arg, definitions) for arg in args))
        case _:
            pass
    return value


def _without_bounds(value: Term, definitions: Mapping[str, Term]) -> Term:
    """Return a value to be converted to e4m3 without bounds that the conversion applies anyway; both preserve NaN."""
    form = definitions.get(value.name) if isinstance(value, Var) else value
    match form:
        case Apply(DataType.Float, "select", (Apply(_, "lt", (x, Const(_, bound))), Const(_, end), other)) if (
            x == other and bound == end and bound.real <= -_LARGEST_E4M3
        ):
            return _without_bounds(x, definitions)
        case Apply(DataType.Float, "select", (Apply(_, "gt", (x, Const(_, bound))), Const(_, end), other)) if (
            x == other and bound == end and bound.real >= _LARGEST_E4M3
        ):
            return _without_bounds(x, definitions)
        case _:
            return value


def without(body: ir.Block, names: Container[str]) -> ir.Block:
    """Return statements without the assignments to some variables."""
    return tuple(
        ir.map_blocks(statement, partial(without, names=names)) for statement in body
        if not isinstance(statement, ir.Let) or statement.name not in names
    )


def without_equal_branches(body: ir.Block) -> ir.Block:
    """Return statements without branches of which both sides assign the same value to the same name."""
    return tuple(new for statement in body for new in _without_equal(statement))


def _without_equal(statement: ir.Statement) -> ir.Block:
    inner = ir.map_blocks(statement, without_equal_branches)
    if not isinstance(inner, ir.If):
        return (inner,)
    last, other = _in_one(inner.then), _in_one(inner.otherwise)
    if last is None or other is None or (last.name, last.value) != (other.name, other.value):
        return (inner,)
    return (replace(last, note=inner.note),)


def _in_one(block: ir.Block) -> ir.Let | None:
    """Return the last assignment of a block, with its value in terms of the names before the block.

    None is returned for a block with other statements than assignments, or with a value that is used twice.
    """
    values: dict[str, Term] = {}
    uses = Counter(t.name for s in block for t in ir.every_term(s) if isinstance(t, Var))
    for statement in block:
        if not isinstance(statement, ir.Let) or statement.update or uses[statement.name] > 1:
            return None
        values[statement.name] = ir.replace_terms(
            statement.value, lambda term: values.get(term.name) if isinstance(term, Var) else None,
        )
    last = block[-1] if block else None
    return replace(last, value=values[last.name]) if isinstance(last, ir.Let) else None


MOST_VALUES = crossover("branches.values")
_CHEAP = frozenset({"add", "sub", "mul", "neg", "cast", "select", "and", "or", "not"}) | COMPARISONS


def made_of_data(body: ir.Block) -> frozenset[str]:
    """Return the names of index variables whose values are loaded, or computed from loaded values."""
    names: set[str] = set()
    for statement in ir.walk(body):
        if isinstance(statement, ir.Let) and statement.value.dtype is DataType.Index:
            parts = list(statement.value.walk())
            of_values = any(isinstance(t, Var) and (t.dtype is not DataType.Index or t.name in names) for t in parts)
            if of_values or any(isinstance(t, ir.Load) for t in parts):
                names.add(statement.name)
    return frozenset(names)


def variables_read(statements: ir.Block) -> frozenset[str]:
    """Return the names of the variables that statements read, nested ones included."""
    return variables_in(term for statement in ir.walk(statements) for term in ir.terms_of(statement))


def depends_on(condition: Term, names: Iterable[str]) -> bool:
    """Whether a condition depends on some variables."""
    return not variables_in([condition]).isdisjoint(names)


def checked_positions(body: ir.Block) -> Iterator[tuple[str, Term, Term]]:
    """Yield positions that are data, each with the size of an axis and the condition that it is within the axis."""
    data = made_of_data(body)
    for term in (term for statement in ir.walk(body) if data for term in ir.every_term(statement)):
        match term:
            case Apply(_, "and", (Apply(_, "ge", (Var(_, name), Const(_, 0))), Apply(_, "lt", (Var(_, other), size)))):
                if name == other and name in data:
                    yield name, size, term
            case _:
                pass


def unconditional(body: ir.Block) -> ir.Block:
    """Return statements without branches on data-dependent positions, if both sides only load and select."""
    data = made_of_data(body)
    names = Counter(s.name for s in ir.walk(body) if isinstance(s, ir.Let) and not s.update)
    return _with_unconditional(body, data, names) if data else body


def indexes_registers(loop: ir.Loop) -> bool:
    """Whether the variable of a loop indexes an array that a thread keeps."""
    statements = list(ir.walk(loop.body))
    accesses = (*statements, *(term for statement in statements for term in ir.every_term(statement)))
    return any(
        isinstance(access, ir.Load | ir.Store)
        and access.buffer.role in ir.OF_A_THREAD
        and loop.var in variables(access.position)
        for access in accesses
    )


def _with_unconditional(body: ir.Block, data: frozenset[str], names: Counter[str]) -> ir.Block:
    return tuple(new for statement in body for new in _statement(statement, data, names))


def _statement(statement: ir.Statement, data: frozenset[str], names: Counter[str]) -> ir.Block:
    inner = ir.map_blocks(statement, partial(_with_unconditional, data=data, names=names))
    if isinstance(inner, ir.If) and depends_on(inner.condition, data):
        return _selection(inner, names) or (inner,)
    return (inner,)


def _selection(choice: ir.If, names: Counter[str]) -> ir.Block:
    """Return a branch-free selection between two values; empty if the branches do anything else.

    ``names`` counts the definitions of each name: values of a branch that share theirs with others get new ones,
    because they are now defined in the block around the branch.
    """
    then, otherwise = choice.then, choice.otherwise
    both = (*then, *otherwise)
    values = [s for s in both if isinstance(s, ir.Let) and not s.update]
    if len(values) < len(both) or not then or not otherwise or len(both) > MOST_VALUES + 2:
        return ()
    last, other = values[len(then) - 1], values[-1]
    if last.name != other.name or not all(_is_cheap(s.value) for s in values):
        return ()
    result: list[ir.Statement] = []
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
    loads = [term for term in value.walk() if isinstance(term, ir.Load)]
    functions = {term.fn for term in value.walk() if isinstance(term, Apply) and term.dtype is not DataType.Index}
    return functions <= _CHEAP and all(load.buffer.role in ir.OF_A_THREAD or load.buffer.size for load in loads)


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
        case ir.Load(dtype, buffer, position):
            place = _within(position, condition, renamed)
            if buffer.role not in ir.OF_A_THREAD:
                place = Apply(DataType.Index, "select", (condition, place, index(0)))
            return ir.Load(dtype, buffer, place)
        case Apply(dtype, fn, args):
            return Apply(dtype, fn, tuple(_within(arg, condition, renamed) for arg in args))
        case _:
            return value


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowValues:
    """``unrounded`` are Lets and the Stores that round their values, ``copied`` the Lets and Stores that move words.

    ``wide`` are the Role.WORDS buffers that a thread fills element by element and stores as vectors, so that they can
    hold float32 until then.
    """

    unrounded: frozenset[int] = frozenset()
    copied: frozenset[int] = frozenset()
    wide: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A statement, its position, and the end of its block."""

    place: int
    end: int
    statement: ir.Statement


def narrow_values(body: tuple[ir.Statement, ...], paired: frozenset[DataType]) -> NarrowValues:
    """Return the values of reduced floats that a phase need not round or widen.

    ``paired`` are the dtypes that vector stores convert several elements at a time to.
    """
    placed = sorted(_placements(body, 0)[0], key=lambda p: p.place)
    statements = [p.statement for p in placed]
    names = {s.name for s in statements if isinstance(s, ir.Let) and s.value.dtype.is_reduced_float}
    unrounded, copied = set[int](), set[int]()
    for name in names:
        lets = [p for p in placed if name_set_by(p.statement) == name]
        if any(not any(let.place < place < let.end for let in lets) for place in _uses(name, statements)):
            continue  # assigned in a branch and used after it
        for let in lets:
            stores = _stored_only(let, lets, statements)
            if stores is not None and isinstance(let.statement, ir.Let):
                group = copied if isinstance(let.statement.value, ir.Load) else unrounded
                group |= {let.place, *stores}
    return NarrowValues(
        unrounded=frozenset(unrounded), copied=frozenset(copied), wide=frozenset(_wide(statements, copied, paired)),
    )


def _placements(body: tuple[ir.Statement, ...], first: int) -> tuple[list[_Placed], int]:
    """Return the statements of a block with their positions, and the position after it."""
    placements: list[_Placed] = []
    starts: list[tuple[int, ir.Statement]] = []
    for statement in body:
        starts.append((first, statement))
        first += 1
        blocks = {ir.Loop: ("body",), ir.If: ("then", "otherwise")}.get(type(statement), ())
        for block in blocks:
            inner, first = _placements(getattr(statement, block), first)
            placements += inner
    placements += [_Placed(place=place, end=first, statement=statement) for place, statement in starts]
    return placements, first


def name_set_by(statement: ir.Statement) -> str | None:
    """Return the name that a statement assigns."""
    match statement:
        case ir.Let(name=name) | ir.Reduce(name=name) | ir.Loop(var=name):
            return name
        case _:
            return None


def _stored_only(let: _Placed, lets: list[_Placed], statements: list[ir.Statement]) -> list[int] | None:
    """Return the positions of the stores after a Let in its block, if nothing else uses its value; else None."""
    statement = let.statement
    if not isinstance(statement, ir.Let) or statement.update or not _is_narrow(statement):
        return None
    if any(let.place < other.place < let.end or other.place < let.place < other.end for other in lets):
        return None
    places = [place for place in _uses(statement.name, statements) if let.place < place < let.end]
    return places if places and all(_is_stored(statement, statements[place]) for place in places) else None


def _is_narrow(let: ir.Let) -> bool:
    """Whether a Let rounds to a reduced float or reads one from memory."""
    match let.value:
        case Apply(dtype, "cast", (operand,)):
            return dtype.is_reduced_float and operand.dtype.is_float and not operand.dtype.is_complex
        case ir.Load(dtype, buffer):
            return dtype.is_reduced_float and buffer.dtype is dtype and buffer.role is not ir.Role.SCRATCH
        case _:
            return False


def _is_stored(let: ir.Let, statement: ir.Statement) -> bool:
    """Whether a statement stores the value of a Let in the Let's dtype, and does nothing else with it."""
    match statement:
        case ir.Store(buffer=buffer, position=position, value=Var(_, name)) if name == let.name:
            positioned = any(isinstance(t, Var) and t.name == name for t in position.walk())
            return buffer.dtype is let.value.dtype and buffer.role is not ir.Role.SCRATCH and not positioned
        case _:
            return False


def _uses(name: str, statements: list[ir.Statement]) -> list[int]:
    """Return the positions of the statements that use a name."""
    return [
        place for place, statement in enumerate(statements)
        if any(isinstance(t, Var) and t.name == name for t in ir.every_term(statement))
    ]


def _wide(statements: list[ir.Statement], copied: set[int], paired: frozenset[DataType]) -> Iterator[str]:
    """Yield the words that are written one by one, all as numbers, and read only by vector stores."""
    written = dict[ir.Buffer, None]()
    excluded = set[ir.Buffer]()
    for place, statement in enumerate(statements):
        match statement:
            case ir.Store(buffer=buffer) if place not in copied:
                written[buffer] = None
            case ir.Store(buffer=buffer):
                excluded.add(buffer)
            case ir.VectorLoad(buffer=buffer, words=words):
                excluded |= {buffer, words}
            case ir.VectorStore(buffer=buffer):
                excluded.add(buffer)
        excluded |= {t.buffer for t in ir.every_term(statement) if isinstance(t, ir.Load)}
    for buffer in written:
        if buffer.role is ir.Role.WORDS and buffer.dtype in paired and buffer not in excluded:
            yield buffer.name

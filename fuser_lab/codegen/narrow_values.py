"""Values of reduced floats that are only stored, for which a rounding or a conversion can be omitted.

    t6 = round_e4m3(t5)            t6 = t5                          (the store rounds)
    T6[i] = float_to_e4m3(t6)  ->  T6[i] = float_to_e4m3(t6)

    t0 = e4m3_to_float(T0[i])      t0 = T0[i]                       (a word, copied as it is)
    T9[j] = float_to_e4m3(t0)  ->  T9[j] = t0

This does not change Kernel IR, in which a value of a reduced dtype is exact, so both forms mean the same. Printers that
convert by instructions choose the cheaper form; statements are given by their positions in the order of `walk`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from fuser_lab.codegen.kernel_ir import (
    Buffer,
    If,
    Let,
    Load,
    Loop,
    Reduce,
    Role,
    Statement,
    Store,
    VectorLoad,
    VectorStore,
    every_term,
)
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Var


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
    statement: Statement


def narrow_values(body: tuple[Statement, ...], paired: frozenset[DataType]) -> NarrowValues:
    """Return the values of reduced floats that a phase need not round or widen.

    ``paired`` are the dtypes that vector stores convert several elements at a time to.
    """
    placed = sorted(_placements(body, 0)[0], key=lambda p: p.place)
    statements = [p.statement for p in placed]
    names = {s.name for s in statements if isinstance(s, Let) and s.value.dtype.is_reduced_float}
    unrounded, copied = set[int](), set[int]()
    for name in names:
        lets = [p for p in placed if _sets(p.statement) == name]
        if any(not any(let.place < place < let.end for let in lets) for place in _uses(name, statements)):
            continue  # assigned in a branch and used after it
        for let in lets:
            stores = _stored_only(let, lets, statements)
            if stores is not None and isinstance(let.statement, Let):
                group = copied if isinstance(let.statement.value, Load) else unrounded
                group |= {let.place, *stores}
    return NarrowValues(
        unrounded=frozenset(unrounded), copied=frozenset(copied), wide=frozenset(_wide(statements, copied, paired)),
    )


def _placements(body: tuple[Statement, ...], first: int) -> tuple[list[_Placed], int]:
    """Return the statements of a block with their positions, and the position after it."""
    placements: list[_Placed] = []
    starts: list[tuple[int, Statement]] = []
    for statement in body:
        starts.append((first, statement))
        first += 1
        blocks = {Loop: ("body",), If: ("then", "otherwise")}.get(type(statement), ())
        for block in blocks:
            inner, first = _placements(getattr(statement, block), first)
            placements += inner
    placements += [_Placed(place=place, end=first, statement=statement) for place, statement in starts]
    return placements, first


def _sets(statement: Statement) -> str | None:
    """Return the name that a statement assigns."""
    match statement:
        case Let(name=name) | Reduce(name=name) | Loop(var=name):
            return name
        case _:
            return None


def _stored_only(let: _Placed, lets: list[_Placed], statements: list[Statement]) -> list[int] | None:
    """Return the positions of the stores after a Let in its block, if nothing else uses its value; else None."""
    statement = let.statement
    if not isinstance(statement, Let) or statement.update or not _is_narrow(statement):
        return None
    if any(let.place < other.place < let.end or other.place < let.place < other.end for other in lets):
        return None
    places = [place for place in _uses(statement.name, statements) if let.place < place < let.end]
    return places if places and all(_is_stored(statement, statements[place]) for place in places) else None


def _is_narrow(let: Let) -> bool:
    """Whether a Let rounds to a reduced float or reads one from memory."""
    match let.value:
        case Apply(dtype, "cast", (operand,)):
            return dtype.is_reduced_float and operand.dtype.is_float and not operand.dtype.is_complex
        case Load(dtype, buffer):
            return dtype.is_reduced_float and buffer.dtype is dtype and buffer.role is not Role.SCRATCH
        case _:
            return False


def _is_stored(let: Let, statement: Statement) -> bool:
    """Whether a statement stores the value of a Let in the Let's dtype, and does nothing else with it."""
    match statement:
        case Store(buffer=buffer, position=position, value=Var(_, name)) if name == let.name:
            positioned = any(isinstance(t, Var) and t.name == name for t in position.walk())
            return buffer.dtype is let.value.dtype and buffer.role is not Role.SCRATCH and not positioned
        case _:
            return False


def _uses(name: str, statements: list[Statement]) -> list[int]:
    """Return the positions of the statements that use a name."""
    return [
        place for place, statement in enumerate(statements)
        if any(isinstance(t, Var) and t.name == name for t in every_term(statement))
    ]


def _wide(statements: list[Statement], copied: set[int], paired: frozenset[DataType]) -> Iterator[str]:
    """Yield the words that are written one by one, all as numbers, and read only by vector stores."""
    written = dict[Buffer, None]()
    excluded = set[Buffer]()
    for place, statement in enumerate(statements):
        match statement:
            case Store(buffer=buffer) if place not in copied:
                written[buffer] = None
            case Store(buffer=buffer):
                excluded.add(buffer)
            case VectorLoad(buffer=buffer, words=words):
                excluded |= {buffer, words}
            case VectorStore(buffer=buffer):
                excluded.add(buffer)
        excluded |= {t.buffer for t in every_term(statement) if isinstance(t, Load)}
    for buffer in written:
        if buffer.role is Role.WORDS and buffer.dtype in paired and buffer not in excluded:
            yield buffer.name

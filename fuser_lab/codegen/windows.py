"""Windows: adjacent elements that the iterations of a short loop read in another order than their own.

    for v in range(8):                              load_vector(T0, 16 * c, T0_v, 0, 16, 8)
        t0 = T0[16 * c + 2 * v]             ->      for v in range(8):
        t0_1 = T0[16 * c + 2 * v + 1]                   t0 = T0_v[2 * v]
        T1[8 * c + v] = t0 * t0_1                       t0_1 = T0_v[2 * v + 1]

Pairs of neighbours, elements that are repeated, and elements in reverse order have such positions: a term without v,
plus a number for each v. All loads of one buffer whose positions have the same term share a window. It is worthwhile if
fewer vector accesses load it than its elements one by one.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from fuser_lab.codegen.index_math import Linear, linear, simplify, substitute, to_term, variables
from fuser_lab.codegen.kernel_ir import Buffer, If, Let, Load, Role, Statement, terms_of
from fuser_lab.codegen.progressions import ACCESS_BYTES, access_of, divisor, resolved
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Const, Term, Var, index

_OUTSIDE = frozenset({Role.INPUT, Role.OUTPUT, Role.WORKSPACE})
_SPARSEST = 2  # elements of a window for each one that is read

Block = tuple[Statement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loops:
    """What is known about positions: the loop's variable, names set inside the loop, values of index variables.

    ``written`` are names of buffers that the loop writes, which have no windows.
    """

    name: str
    inside: Container[str]
    known: Mapping[str, Term]
    written: Container[str] = ()

    def inner(self) -> dict[str, Term]:
        """Return the index variables that are set inside the loop, which are unknown outside it."""
        return {name: value for name, value in self.known.items() if name in self.inside}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """``count`` elements from ``base + low`` on, ``width`` of them for each memory access."""

    buffer: Buffer
    base: Term
    low: int
    count: int
    width: int

    @property
    def accesses(self) -> int:
        """Return the number of memory accesses."""
        return self.count // self.width


def place_of(load: Load, loops: Loops) -> tuple[Term, Term] | None:
    """Return a load's position as a term without the loop's variable and one of it alone; None if it is another."""
    if load.buffer.role not in _OUTSIDE or load.buffer.name in loops.written or _has_loads(load.position):
        return None
    form = linear(resolved(load.position, loops.inner()), {})
    fixed: list[tuple[Term, int]] = []
    varying: list[tuple[Term, int]] = []
    for atom, coefficient in form.parts:
        names = {atom.name} if isinstance(atom, Var) else variables(atom)
        if names == {loops.name}:
            varying.append((atom, coefficient))
        elif loops.name in names or any(name in loops.inside for name in names):
            return None
        else:
            fixed.append((atom, coefficient))
    return to_term(Linear(0, tuple(fixed))), to_term(Linear(form.constant, tuple(varying)))


def holds_for(condition: Term, values: Sequence[int], loops: Loops) -> tuple[int, ...] | None:
    """Return the values of the loop's variable for which a condition holds; None if it depends on anything else."""
    names = {t.name for t in condition.walk() if isinstance(t, Var)}
    if not names <= {loops.name, *loops.inner()} or _has_loads(condition):
        return None
    found = []
    term = substitute(condition, loops.inner())
    for value in values:
        decided = simplify(substitute(term, {loops.name: index(value)}), {})
        if not isinstance(decided, Const):
            return None
        if decided.value:
            found.append(value)
    return tuple(found)


def windows_of(body: Block, count: int, loops: Loops) -> dict[tuple[Buffer, Term], Window]:
    """Return the windows of a block in a loop of ``count`` iterations, by buffer and term without the variable."""
    read: dict[tuple[Buffer, Term], set[int]] = {}
    for load, values in _loads_of(body, tuple(range(count)), loops):
        place = place_of(load, loops)
        if place is None or (len(values) == count and _is_vector(load, loops, count)):
            continue
        base, offset = place
        found = [simplify(substitute(offset, {loops.name: index(v)}), {}) for v in values]
        if all(isinstance(o, Const) for o in found):
            read.setdefault((load.buffer, base), set()).update(int(o.value.real) for o in found if isinstance(o, Const))
    made = {key: _window(*key, places, loops) for key, places in read.items() if len(places) > 1}
    return {key: window for key, window in made.items() if window is not None}


def _window(buffer: Buffer, base: Term, places: set[int], loops: Loops) -> Window | None:
    low, count = min(places), max(places) - min(places) + 1
    if count > _SPARSEST * len(places):
        return None
    size = buffer.dtype.itemsize
    whole = linear(resolved(base, loops.known), {})
    width = gcd(count, divisor(whole), low, max(ACCESS_BYTES // size, 1))
    while width > 1 and buffer.alignment % (width * size):
        width //= 2
    if width < 2 or count // width >= len(places):
        return None
    return Window(buffer=buffer, base=base, low=low, count=count, width=width)


def _is_vector(load: Load, loops: Loops, count: int) -> bool:
    """Whether one access is the same element in all iterations, or adjacent elements in their order."""
    access = access_of(load.buffer, load.position, loops.name, loops.known)
    return access.step == 0 or access.width(count) > 1


def _loads_of(body: Block, values: tuple[int, ...], loops: Loops) -> Iterator[tuple[Load, tuple[int, ...]]]:
    """Yield loads that certainly run, with the values of the loop's variable for which they do."""
    known = dict(loops.known)
    loops = Loops(name=loops.name, inside=loops.inside, known=known, written=loops.written)
    for statement in body:
        match statement:
            case Let(name=name, value=value) if value.dtype is DataType.Index and not _has_loads(value):
                known[name] = resolved(value, known)
            case If(condition=condition, then=then, otherwise=otherwise):
                chosen = holds_for(condition, values, loops)
                if chosen is not None:
                    yield from _loads_of(then, chosen, loops)
                    yield from _loads_of(otherwise, tuple(v for v in values if v not in chosen), loops)
            case _:
                for root in terms_of(statement):
                    yield from ((load, values) for load in _certain(root) if values)


def _certain(term: Term) -> Iterator[Load]:
    """Yield the loads of a term, except in branches of a selection, which may not run."""
    match term:
        case Load():
            yield term
        case Apply(_, "select", (condition, *_)):
            yield from _certain(condition)
        case _:
            for child in term.children:
                yield from _certain(child)


def _has_loads(term: Term) -> bool:
    return any(isinstance(t, Load) for t in term.walk())

"""How many elements a thread should move at a time: the accesses to memory that vectors of a size would make."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property

from fuser_lab.codegen.index_math import ACCESS_BYTES, Access, access_of, linear, resolve, variables
from fuser_lab.codegen.kernel_ir import Block, Buffer, Let, Load, Store, every_term, walk
from fuser_lab.codegen.rewrites import made_of_data
from fuser_lab.codegen.windows import OUTSIDE, Key, Loops, Window, has_loads, window_of, windows_of
from fuser_lab.cost.crossovers import crossover
from fuser_lab.cost.device import LINE_BYTES, WARP
from fuser_lab.ir.term import Term, index

SMALL = crossover("vectors.small")
_LINES = crossover("vectors.lines")
_STARTING = crossover("vectors.starting")


def accesses(statements: Block, name: str, among: frozenset[str] | None = None) -> Iterator[Access]:
    """Yield the memory accesses of some statements, as progressions with an index variable.

    ``among`` excludes accesses whose position depends on variables other than these.
    """
    for buffer, position, _ in tensor_accesses(statements):
        if among is None or variables(position) <= among:
            yield access_of(buffer, position, name)


def tensor_accesses(statements: Block) -> Iterator[tuple[Buffer, Term, Load | None]]:
    """Yield the accesses to tensors: buffer, position, and the load if it is one."""
    for statement in walk(statements):
        if isinstance(statement, Store) and statement.buffer.role in OUTSIDE:
            yield statement.buffer, statement.position, None
        loads = (t for t in every_term(statement) if isinstance(t, Load) and t.buffer.role in OUTSIDE)
        yield from ((load.buffer, load.position, load) for load in loads)


def best_width(trial: Callable[[int], Block], name: str, bytes_per_cycle: float) -> int:
    """Return the number of elements per thread with the fewest memory accesses; the largest one among equals.

    ``trial(size)`` returns the statements for one element, with the variable ``name`` as its position in a chunk of
    ``size``. Accesses are weighted by the bytes of their buffer, because a small buffer is in the cache. The number is
    reduced if a multiprocessor would spend more cycles on the lines of its cache than memory, which moves
    ``bytes_per_cycle``, spends on the large buffers. That is so where several accesses load adjacent elements, or
    elements a few apart, as of a small matrix whose rows are the elements of the result.
    """
    looked_at = cache(lambda size: _Accesses(statements=trial(size), name=name, size=size))
    single = [access for access, _, _ in looked_at(1).each]
    largest = max((a.buffer.nbytes for a in single), default=0)
    large = [a for a in single if a.buffer.nbytes * SMALL >= largest]
    # An access of the widest dtype fills one hardware access; small buffers may need several. An element that a whole
    # chunk needs is one access, however wide the chunk is.
    best, least, size, widest = 1, float("inf"), 1, 1
    while size * widest <= ACCESS_BYTES:  # a larger chunk has the accesses of a smaller one
        read = looked_at(size)
        apart = (a.buffer for a, _, _ in read.each if a.step != 0)
        if size > 1:
            widest = max((b.dtype.itemsize for b in apart if b.nbytes * SMALL >= largest), default=ACCESS_BYTES)
        if size * widest > ACCESS_BYTES:
            break
        cost = _cost(read)
        if cost <= least:
            best, least = size, cost
        size *= 2
    # Memory moves an element once, however many accesses near each other read it.
    moving = sum(b.dtype.itemsize for b in {a.buffer for a in large if a.step != 0}) / bytes_per_cycle

    def cycles(size: int) -> float:
        lines = sum(_lines(access, step, size) for access, step in _distances(looked_at(size)))
        return max(moving, lines / _LINES / size, _STARTING / (WARP * size))

    return min((1 << n for n in reversed(range(best.bit_length()))), key=cycles)


def stores_singly(statements: Block, name: str, size: int) -> bool:
    """Whether some store of ``size`` adjacent elements is one access per element, as at rows that begin anywhere.

    Loads for the next element wait for it, because they may be from the same memory.
    """
    return any(
        access.step and access.width(size) <= 1 for access in (
            access_of(buffer, position, name) for buffer, position, load in tensor_accesses(statements) if load is None)
    )


@dataclass(frozen=True, kw_only=True)
class _Accesses:
    """The accesses of statements to tensors, as progressions with the variable ``name`` of ``size`` elements."""

    statements: Block
    name: str
    size: int

    @cached_property
    def each(self) -> tuple[tuple[Access, Term, Load | None], ...]:
        """Each access, its position, and the load if it is one."""
        accessed = tensor_accesses(self.statements)
        return tuple((access_of(buffer, position, self.name), position, load) for buffer, position, load in accessed)

    @cached_property
    def windows(self) -> tuple[dict[Key, tuple[Window, ...]], Loops]:
        """The windows that the statements read."""
        lets = frozenset(s.name for s in walk(self.statements) if isinstance(s, Let))
        loops = Loops(name=self.name, inside=lets, definitions={}, data=made_of_data(self.statements))
        return windows_of(self.statements, self.size, loops), loops

    def is_in_window(self, load: Load | None, values: Iterable[int]) -> bool:
        """Whether a window has the element of a load in the iteration with some value of the variable."""
        windows, loops = self.windows
        return load is not None and bool(windows) and any(window_of(load, value, windows, loops) for value in values)


def _distances(read: _Accesses) -> Iterator[tuple[Access, int]]:
    """Yield accesses whose elements have constant distances, and the distances, without accesses by windows."""
    name = read.name
    positions = Counter(buffer for buffer, _ in {(access.buffer, at) for access, at, _ in read.each})
    for access, position, load in read.each:
        if has_loads(position) or read.is_in_window(load, (0,)):
            continue
        zeros = dict.fromkeys(variables(position), index(0))
        first, second = (linear(resolve(position, {**zeros, name: index(n)}), {}).constant for n in range(2))
        distance = abs(second - first)
        # One access to adjacent elements may be whole where they are aligned. Of several at other positions, some never
        # are.
        if distance > 1 or access.step == 1 or (distance and positions[access.buffer] > 1):
            yield access, distance


def _lines(access: Access, step: int, size: int) -> float:
    """Return the cache lines that a warp looks up for ``size`` adjacent elements of each thread, per thread."""
    lines = min(max(size * step * access.buffer.dtype.itemsize * WARP / LINE_BYTES, 1.0), WARP)
    return size // max(access.width(size), 1) * lines / WARP


def _cost(read: _Accesses) -> float:
    """Return the memory accesses for each element, weighted by the bytes of their buffers."""
    windows, size = read.windows[0].values(), read.size
    cost = float(sum(window.buffer.nbytes * window.accesses for group in windows for window in group))
    for access, _, load in read.each:
        if not read.is_in_window(load, range(size)):
            cost += access.buffer.nbytes * (1 if access.step == 0 else size // max(access.width(size), 1))
    return cost / size

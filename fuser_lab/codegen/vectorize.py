"""Vector accesses: the element accesses of a VECTORIZE loop are combined, as in `EXAMPLE`.

An access is combined if its position is a term without v, divisible by the number of elements, plus v. Accesses at
other positions, under conditions on v, and at data-dependent positions are unchanged, unless their elements are next to
each other in another order: such a `Window` is loaded as a whole. In an enclosing UNROLL loop, the loads of all
iterations come first, so that several are in flight before any is used.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from fuser_lab.codegen import kernel_ir as ir
from fuser_lab.codegen.index_math import (
    UNBOUNDED,
    Access,
    Linear,
    Range,
    Ranges,
    access_of,
    divisor,
    linear,
    narrow,
    range_of,
    resolve,
    simplify,
    substitute,
    to_term,
    variables,
)
from fuser_lab.codegen.rewrites import depends_on, made_of_data, variables_read
from fuser_lab.codegen.windows import OUTSIDE, Key, Loops, Window, has_loads, holds_for, place_of, window_of, windows_of
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Const, Term, Var, cast, index, variables_in
from fuser_lab.ir.transform import ParallelType

EXAMPLE = """
loop(c, 16, block_x, loop(v, 4, vectorize, let(t0, T0[c * 4 + v]), store(T1, c * 4 + v, t0 * 2.0)))
"""


def with_vectors(body: ir.Block) -> ir.Block:
    """Return a phase's body with vector accesses around its VECTORIZE loops and loads ahead in its UNROLL loops."""
    return _Vectorizer(body).run()


@dataclass(slots=True)
class _Moves:
    """The accesses that move out of one VECTORIZE loop."""

    before: list[ir.Statement] = field(default_factory=list)
    after: list[ir.Statement] = field(default_factory=list)
    drawn: dict[tuple[Term, ...], tuple[ir.Buffer, Term]] = field(default_factory=dict)
    windows: dict[Key, tuple[Window, ...]] = field(default_factory=dict)
    rooms: dict[Window, tuple[ir.Buffer, Term]] = field(default_factory=dict)  # words and slot of each window


class _Vectorizer:
    def __init__(self, body: ir.Block) -> None:
        self._body = body
        self._names = {b.name for s in ir.walk(body) for b in _buffers(s)}
        self._allocs: list[ir.Alloc] = []
        self._spare: list[ir.Buffer] = []  # words that are unused at the current statement
        self._definitions: dict[str, Term] = {}
        self._ranges: Ranges = {}  # of index variables
        self._data = made_of_data(body)
        self._slot: Term = index(0)  # slot of the first word in this iteration of the enclosing UNROLL loop
        self._rounds = 1
        self._varying: frozenset[str] = frozenset()  # names with another value in each iteration of an UNROLL loop
        self._diverges = False  # whether a branch is taken in some iterations only

    def _learn(self, name: str, value: Term) -> None:
        """Record the definition of an index variable, because names may be reused in the next block."""
        self._ranges = {**self._ranges, name: range_of(linear(value, self._ranges), self._ranges)}
        self._definitions[name] = resolve(value, self._definitions)

    def run(self) -> ir.Block:
        """Return the new body, allocations first."""
        body = self._block(self._body)
        return (*self._allocs, *body)

    def _block(self, statements: ir.Block) -> ir.Block:
        return _before_barriers(tuple(new for statement in statements for new in self._statement(statement)))

    def _statement(self, statement: ir.Statement) -> Iterator[ir.Statement]:
        if isinstance(statement, ir.Loop):
            self._definitions.pop(statement.var, None)
            self._ranges = {**self._ranges, statement.var: _bounds(statement)}
        match statement:
            case ir.Let(name=name, value=value) if value.dtype is DataType.Index and not has_loads(value):
                self._learn(name, value)
                yield statement
            case ir.If(condition=condition, then=then, otherwise=otherwise):
                outer, diverges = self._ranges, self._diverges
                self._diverges |= self._varies(condition)
                self._ranges = narrow(condition, outer, holds=True)
                first = self._block(then)
                self._ranges = narrow(condition, outer, holds=False)
                second = self._block(otherwise)
                self._ranges, self._diverges = outer, diverges
                yield replace(statement, then=first, otherwise=second)
            case ir.Loop(parallel=ParallelType.vectorize, start=Const(_, 0), stop=Const()):
                yield from self._vector_loop(statement)
            case ir.Loop(parallel=ParallelType.unroll, start=Const(_, 0), stop=Const()):
                yield from self._unroll(statement)
            case ir.Loop(body=body, parallel=parallel):
                inner = self._block(body)
                innermost = not any(isinstance(s, ir.Loop) and _is_mapped(s.parallel) for s in ir.walk(body))
                if _is_mapped(parallel) and innermost:
                    # The work of one thread begins here; the words are private to it.
                    inner, self._allocs = (*self._allocs, *inner), []
                yield replace(statement, body=inner)
            case _:
                yield statement

    # One loop over the elements of a vector

    def _vector_loop(self, loop: ir.Loop) -> Iterator[ir.Statement]:
        count = loop.rounds or 0
        stored = {s.buffer.name for s in ir.walk(loop.body) if isinstance(s, ir.Store)}
        moves = _Moves()
        inside = {loop.var} | {s.name for s in ir.walk(loop.body) if isinstance(s, ir.Let | ir.Reduce)}
        around = _Around(loop=loop, count=count, written=stored, inside=inside)
        self._load_windows(loop.body, around, moves)
        body = self._move(loop.body, around, moves)
        yield from moves.before
        yield replace(loop, body=body)
        yield from moves.after

    def _move(self, statements: ir.Block, around: "_Around", moves: _Moves) -> ir.Block:
        """Return the statements with words instead of memory; collect the moves in the order of the statements."""
        result: list[ir.Statement] = []
        for statement in statements:
            match statement:
                case ir.Let(name=name, value=value) if value.dtype is DataType.Index and not has_loads(value):
                    self._learn(name, value)
                    result.append(statement)
                case ir.Let(value=value):
                    result.append(replace(statement, value=self._read(value, around, moves, statement.origin)))
                case ir.Store():
                    value = self._read(statement.value, around, moves, statement.origin)
                    result.append(self._write(replace(statement, value=value), around, moves))
                case ir.If(condition=condition, then=then, otherwise=otherwise) if self._is_outside(condition, around):
                    branches = []
                    sides = tuple(_Moves(windows=dict(moves.windows), rooms=dict(moves.rooms)) for _ in range(2))
                    first, spare, left, diverges = len(self._allocs), self._spare, [], self._diverges
                    self._diverges |= self._varies(condition)
                    for side, inner in zip(sides, (then, otherwise), strict=True):
                        # Only one branch runs, so both may use the same words.
                        self._spare = [*spare, *(a.buffer for a in self._allocs[first:])]
                        if depends_on(condition, self._data):
                            self._load_windows(inner, around, side)
                        branches.append(self._move(inner, around, side))
                        left.append(self._spare)
                    self._diverges = diverges
                    self._spare = [words for words in spare if all(words in unused for unused in left)]
                    result.append(replace(statement, then=branches[0], otherwise=branches[1]))
                    for target, (a, b) in (
                        (moves.before, (sides[0].before, sides[1].before)),
                        (moves.after, (sides[0].after, sides[1].after)),
                    ):
                        if a or b:
                            least = 1 if depends_on(condition, self._data) else 2
                            target.extend(_moves_of(condition, tuple(a), tuple(b), least))
                case ir.If():
                    result.append(self._partial(statement, tuple(range(around.count)), around, moves))
                case _:
                    result.append(statement)
        return tuple(result)

    # Windows

    def _loops(self, around: "_Around") -> Loops:
        return Loops(
            name=around.loop.var, inside=around.inside, definitions=self._definitions,
            written=around.written, data=self._data, ranges=self._ranges,
        )

    def _load_windows(self, statements: ir.Block, around: "_Around", moves: _Moves) -> None:
        """Load the windows of a block before its loop."""
        window_groups = windows_of(statements, around.count, self._loops(around))
        for window in (window for windows in window_groups.values() for window in windows):
            words, slot = self._words(window.buffer, window.count)
            for piece in window.pieces:
                position = simplify(window.base + piece.low, {})
                if piece.condition is not None:
                    # Without a branch, as in `_moves_of`: other threads load the first elements, and use none.
                    position = Apply(DataType.Index, "select", (piece.condition, position, index(0)))
                moves.before.append(ir.VectorLoad(
                    buffer=window.buffer, position=position, words=words,
                    slot=simplify(slot + (piece.low - window.low), {}), count=piece.count, width=piece.width,
                ))
            moves.rooms[window] = words, slot
        moves.windows |= window_groups

    def _partial(
        self, statement: ir.Statement, values: tuple[int, ...], around: "_Around", moves: _Moves
    ) -> ir.Statement:
        """Return a statement that may not run for all elements, and reads windows where it does."""
        match statement:
            case ir.If(condition=condition, then=then, otherwise=otherwise):
                chosen = holds_for(condition, values, self._loops(around))
                if chosen is None:
                    both = (tuple(self._partial(s, values, around, moves) for s in side) for side in (then, otherwise))
                    return replace(statement, then=next(both), otherwise=next(both))
                others = tuple(value for value in values if value not in chosen)
                sides = ((then, chosen), (otherwise, others))
                first, second = (tuple(self._partial(s, v, around, moves) for s in b) if v else b for b, v in sides)
                return replace(statement, then=first, otherwise=second)
            case ir.Let(name=name, value=value) if value.dtype is DataType.Index and not has_loads(value):
                self._learn(name, value)
                return statement
            case ir.Let(value=value) | ir.Store(value=value):
                return replace(statement, value=self._from_windows(value, values, around, moves))
            case _:
                return statement

    def _from_windows(self, value: Term, values: tuple[int, ...], around: "_Around", moves: _Moves) -> Term:
        match value:
            case ir.Load():
                return self._in_window(value, values, around, moves)
            case Apply(dtype, "select", (condition, *sides)):
                return Apply(dtype, "select", (self._from_windows(condition, values, around, moves), *sides))
            case Apply(dtype, fn, args):
                return Apply(dtype, fn, tuple(self._from_windows(arg, values, around, moves) for arg in args))
            case _:
                return value

    def _in_window(self, load: ir.Load, values: tuple[int, ...], around: "_Around", moves: _Moves) -> ir.Load:
        """Return a load from a window's words, the load itself if no window has its elements."""
        loops = self._loops(around)
        windows = {window_of(load, value, moves.windows, loops) for value in values}
        window, place = windows.pop(), place_of(load, loops)
        if window is None or windows or place is None:
            return load
        words, slot = moves.rooms[window]
        return ir.Load(load.dtype, words, simplify(slot + (place[1] - window.low), {}))

    def _is_outside(self, condition: Term, around: "_Around") -> bool:
        """Whether a condition is loop-invariant and known before the loop."""
        names = variables_in([condition]) | variables(resolve(condition, self._definitions))
        return not has_loads(condition) and names.isdisjoint(around.inside)

    def _read(self, value: Term, around: "_Around", moves: _Moves, origin: str | None) -> Term:
        """Return a value that reads words instead of memory, except in branches of a selection, which may not run."""
        match value:
            case ir.Load(dtype, buffer, position) if buffer.role in OUTSIDE and buffer.name not in around.written:
                access = self._access(buffer, position, around)
                width = access.width(around.count) if access else 0
                if width < 2:
                    return self._in_window(value, tuple(range(around.count)), around, moves)
                start = substitute(resolve(position, self._inner(around)), {around.loop.var: index(0)})
                once = not self._diverges and not self._varies(start)
                words, slot = self._words(buffer, around.count, 1 if once else self._rounds)
                moves.before.append(ir.VectorLoad(
                    buffer=buffer, position=simplify(start, {}), words=words, slot=slot, count=around.count,
                    width=width, origin=origin,
                ))
                return ir.Load(dtype, words, simplify(slot + Var(DataType.Index, around.loop.var), {}))
            case Apply(DataType.Float | DataType.Double as dtype, "philox_uniform", (seed, offset, position)):
                drawn = self._random_number(seed, offset, position, around, moves, origin)
                return value if drawn is None else cast(drawn, dtype)
            case Apply(dtype, "select", (condition, *sides)):
                return Apply(dtype, "select", (self._read(condition, around, moves, origin), *sides))
            case Apply(dtype, fn, args):
                return Apply(dtype, fn, tuple(self._read(arg, around, moves, origin) for arg in args))
            case _:
                return value

    def _random_number(
        self, seed: Term, offset: Term, position: Term, around: "_Around", moves: _Moves, origin: str | None,
    ) -> Term | None:
        """Return a random number from those drawn together before the loop; None if they are not consecutive."""
        outside = variables_in([seed, offset])
        form = linear(resolve(position, self._inner(around)), {})
        inside = [part for part in form.parts if around.loop.var in variables(part[0])]
        base = to_term(Linear(form.constant // 4 * 4, tuple(part for part in form.parts if part not in inside)))
        place = to_term(Linear(form.constant % 4, tuple(inside)))
        whole = divisor(linear(resolve(base, self._definitions), {})) % 4 == 0 and around.count % 4 == 0
        rounds = [simplify(substitute(place, {around.loop.var: index(v)}), {}) for v in range(around.count)]
        within = all(isinstance(r, Const) and 0 <= r.value.real < around.count for r in rounds)
        if not whole or not within or not (variables(base) | outside).isdisjoint(around.inside):
            return None
        key = (seed, offset, base)
        if key not in moves.drawn:
            size = around.count * self._rounds
            numbers = ir.Buffer(name=self._fresh("random"), dtype=DataType.Float, size=size, role=ir.Role.SCRATCH)
            self._allocs.append(ir.Alloc(buffer=numbers))
            slot = simplify(self._slot * around.count, {})
            moves.before.append(ir.Uniforms(
                numbers=numbers, slot=slot, seed=seed, offset=offset, position=base, count=around.count,
                origin=origin,
            ))
            moves.drawn[key] = numbers, slot
        numbers, slot = moves.drawn[key]
        return ir.Load(DataType.Float, numbers, simplify(slot + place, {}))

    def _write(self, store: ir.Store, around: "_Around", moves: _Moves) -> ir.Store:
        if store.buffer.role not in OUTSIDE:
            return store
        access = self._access(store.buffer, store.position, around)
        width = access.width(around.count) if access else 0
        if width < 2:
            return store
        words, _ = self._words(store.buffer, around.count, rounds=1)
        start = substitute(resolve(store.position, self._inner(around)), {around.loop.var: index(0)})
        moves.after.append(ir.VectorStore(
            buffer=store.buffer, position=simplify(start, {}), words=words, slot=index(0), count=around.count,
            width=width, origin=store.origin,
        ))
        return replace(store, buffer=words, position=Var(DataType.Index, around.loop.var))

    def _inner(self, around: "_Around") -> dict[str, Term]:
        """Return the index variables that are set inside a loop, which are unknown outside it."""
        return {name: value for name, value in self._definitions.items() if name in around.inside}

    def _access(self, buffer: ir.Buffer, position: Term, around: "_Around") -> Access | None:
        """Return the progression of an access with the loop; None if its position is unknown before the loop."""
        names = variables(resolve(position, self._inner(around)))
        if has_loads(position) or not (names - {around.loop.var}).isdisjoint(around.inside):
            return None
        return access_of(buffer, position, around.loop.var, self._definitions)

    def _varies(self, value: Term) -> bool:
        """Whether a value differs between iterations of an UNROLL loop."""
        return depends_on(resolve(value, self._definitions), self._varying | self._data)

    def _words(self, buffer: ir.Buffer, count: int, rounds: int | None = None) -> tuple[ir.Buffer, Term]:
        """Allocate words for an access; return them and the slot of this iteration's first word."""
        rounds = self._rounds if rounds is None else rounds
        slot = simplify(self._slot * count, {}) if rounds > 1 else index(0)
        for words in self._spare:
            if words.role is ir.Role.WORDS and words.dtype is buffer.dtype and words.size == count * rounds:
                self._spare.remove(words)
                return words, slot
        name = self._fresh(f"{buffer.name}_v")
        words = ir.Buffer(name=name, dtype=buffer.dtype, size=count * rounds, role=ir.Role.WORDS)
        self._allocs.append(ir.Alloc(buffer=words))
        return words, slot

    def _fresh(self, base: str) -> str:
        name, number = base, 1
        while name in self._names:
            name, number = f"{base}{number}", number + 1
        self._names.add(name)
        return name

    # Several iterations, loads first

    def _unroll(self, loop: ir.Loop) -> Iterator[ir.Statement]:
        outer = self._slot, self._rounds, self._varying
        rounds = loop.rounds or 0
        self._slot = simplify(self._slot * rounds + Var(DataType.Index, loop.var), {})
        self._rounds *= rounds
        inside = {s.name for s in ir.walk(loop.body) if isinstance(s, ir.Let | ir.Reduce)}
        self._varying |= {loop.var, *inside, *(s.var for s in ir.walk(loop.body) if isinstance(s, ir.Loop))}
        body = self._block(loop.body)
        self._slot, self._rounds, self._varying = outer
        ahead = _loads_ahead(body)
        if ahead:
            alone = (s for s in ahead if isinstance(s, ir.VectorLoad) and rounds > 1)
            once = tuple(s for s in alone if not variables_read((s,)) & {loop.var, *inside})
            yield from once
            if rest := tuple(s for s in ahead if s not in once):
                yield replace(loop, body=rest)
            body = _without(body)
        yield replace(loop, body=body)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Around:
    """A VECTORIZE loop whose accesses are being moved: the buffers it writes and the names it sets."""

    loop: ir.Loop
    count: int
    written: set[str]
    inside: set[str]


def _moves_of(condition: Term, then: ir.Block, otherwise: ir.Block, least: int) -> ir.Block:
    """Return the accesses of two branches.

    LLVM keeps words that only one of two branches fills in local memory. Therefore, if a branch has several loads, all
    threads fill their words, some with unused elements from the beginning of the buffer. With data-dependent positions,
    one load (``least``) is enough to do so, because a branch would have to wait for the positions.
    """
    loads = [s for s in then if isinstance(s, ir.VectorLoad) and s.buffer.role in OUTSIDE and s.buffer.size >= s.count]
    if otherwise or len(loads) < max(len(then), least):
        return (_choice(condition, then, otherwise),)
    return tuple(
        replace(s, position=Apply(DataType.Index, "select", (condition, s.position, index(0)))) for s in loads
    )


def _choice(condition: Term, then: ir.Block, otherwise: ir.Block) -> ir.Statement:
    match then, otherwise:
        case (ir.VectorLoad() as a,), (ir.VectorLoad() as b,) if replace(a, position=b.position, origin=b.origin) == b:
            # Both branches read the same number of adjacent elements to the same words, from different positions.
            return replace(a, position=Apply(DataType.Index, "select", (condition, a.position, b.position)))
        case _:
            pass
    if then:
        return ir.If(condition=condition, then=then, otherwise=otherwise)
    return ir.If(condition=Apply(DataType.Bool, "not", (condition,)), then=otherwise)


def _loads_ahead(body: ir.Block) -> ir.Block:
    """Return a block's vector loads with the conditions and variables they need; () if other statements occur."""
    needed: set[str] = set()
    loads = _slice(body, needed)
    assigned = {s.name for s in ir.walk(loads) if isinstance(s, ir.Let)}
    made = {s.name for s in ir.walk(body) if isinstance(s, ir.Let | ir.Reduce)}
    written = {s.buffer for s in ir.walk(body) if isinstance(s, ir.Store | ir.VectorStore)}
    early = any(isinstance(s, ir.VectorLoad) and s.buffer in written for s in ir.walk(loads))
    return () if early or needed & made - assigned else loads


def _slice(body: ir.Block, needed: set[str]) -> ir.Block:
    statements: list[ir.Statement] = []
    for statement in reversed(body):
        match statement:
            case ir.VectorLoad() if statement.buffer.role in OUTSIDE:
                statements.append(statement)
            case ir.Let(name=name) if name in needed:
                statements.append(statement)
            case ir.If(condition=condition, then=then, otherwise=otherwise):
                branches = _slice(then, needed), _slice(otherwise, needed)
                if not any(branches):
                    continue
                statements.append(_choice(condition, *branches))
            case _:
                continue
        needed |= variables_in(ir.terms_of(statements[-1]))
    return tuple(reversed(statements))


def _without(body: ir.Block) -> ir.Block:
    """Return a block without its vector loads from memory, and without branches that become empty."""
    result: list[ir.Statement] = []
    for statement in body:
        match statement:
            case ir.VectorLoad() if statement.buffer.role in OUTSIDE:
                continue
            case ir.If(then=then, otherwise=otherwise):
                branches = _without(then), _without(otherwise)
                if branches[0] or branches[1]:
                    chosen = _choice(statement.condition, *branches)
                    result.append(replace(chosen, origin=statement.origin, note=statement.note))
            case _:
                result.append(statement)
    return tuple(result)


def _before_barriers(body: ir.Block) -> ir.Block:
    """Return a block in which loads of inputs do not wait for a barrier or for results of other loads.

    They follow the loads before it.
    """
    result: list[ir.Statement] = []
    for number, statement in enumerate(body):
        before = body[number - 1] if number else None
        waits = isinstance(before, ir.Barrier) or (_is_unrolled(statement) and _is_unrolled(before) and _keeps(before))
        waiting = waits and _only_loads(statement)
        first = next((n for n, s in enumerate(result) if waiting and _only_loads(s)), None)
        made = {s.name for s in result[first + 1 :] if isinstance(s, ir.Let)} if first is not None else set()
        if first is None or not made.isdisjoint(variables_read((statement,))):
            result.append(statement)
        else:
            result.insert(first + 1, statement)
    return tuple(result)


def _is_unrolled(statement: ir.Statement | None) -> bool:
    return isinstance(statement, ir.Loop) and statement.parallel is ParallelType.unroll


def _keeps(statement: ir.Statement | None) -> bool:
    """Whether a loop stores only to the thread's own memory."""
    inside = () if statement is None else ir.walk((statement,))
    stores = [s for s in inside if isinstance(s, ir.Store | ir.VectorStore)]
    return bool(stores) and all(s.buffer.role is ir.Role.SCRATCH for s in stores)


def _only_loads(statement: ir.Statement) -> bool:
    """Whether a loop contains only loads of inputs and index variables that they need."""
    if not isinstance(statement, ir.Loop):
        return False
    inside = list(ir.walk(statement.body))
    assigned = {s.name for s in inside if isinstance(s, ir.Let)}
    return any(isinstance(s, ir.VectorLoad) for s in inside) and all(
        isinstance(s, ir.If)
        or (isinstance(s, ir.VectorLoad) and s.buffer.role is ir.Role.INPUT)
        or (isinstance(s, ir.Let) and _is_in_registers(s.value) and s.name in assigned)
        for s in inside
    )


def _is_in_registers(value: Term) -> bool:
    """Whether a value is an index, or is already kept by the thread."""
    return value.dtype is DataType.Index or (isinstance(value, ir.Load) and value.buffer.role is ir.Role.SCRATCH)


def _is_mapped(kind: ParallelType) -> bool:
    """Whether blocks or threads run the iterations of a loop."""
    return kind.is_block or kind.is_thread


def _bounds(loop: ir.Loop) -> Range:
    """Return the smallest and the largest value of a loop's variable, as far as they are constants."""
    first = int(loop.start.value.real) if isinstance(loop.start, Const) else UNBOUNDED[0]
    last = int(loop.stop.value.real) - 1 if isinstance(loop.stop, Const) else UNBOUNDED[1]
    return first, max(first, last)


def _buffers(statement: ir.Statement) -> Iterator[ir.Buffer]:
    if isinstance(statement, ir.Store | ir.Alloc):
        yield statement.buffer
    yield from (t.buffer for t in ir.every_term(statement) if isinstance(t, ir.Load))

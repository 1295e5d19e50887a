"""Emission of values on demand: requesting an element of a tensor emits its computation, each value once.

A value is named after its tensor (``t3`` is an element of T3). It is emitted in the outermost open scope in which all
variables exist that it is computed from, so that loop-invariant values precede the loop. These are the variables of its
index, and of the addresses of values known from outside, which may have more: a thread that keeps a value for each of
its columns keeps it at the number of the column, also if the value is equal for all of them. A selection by an index
condition (pad, cat) becomes an `If` whose branches compute only their own side, so that guarded loads stay in range.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

from fuser_lab.codegen.index_map import (
    Index,
    Read,
    ReadScalar,
    counted_position,
    element_term,
    index_var,
    operand_index,
)
from fuser_lab.codegen.index_math import FixedRanges, Ranges, is_index, narrow, negate, range_key, simplify, variables
from fuser_lab.codegen.kernel_ir import Alloc, Buffer, If, Layout, Let, Load, Loop, Role, Statement, Store
from fuser_lab.cost.crossovers import crossover
from fuser_lab.dtypes import DataType
from fuser_lab.errors import CodegenError
from fuser_lab.ir import Expr, Fusion, OpKind, Scalar, TensorView, Val
from fuser_lab.ir.term import Apply, Const, Term, Var, apply, cast
from fuser_lab.ir.transform import ParallelType
from fuser_lab.ops import OPS
from fuser_lab.process.ending import check_time

Key = tuple[str, Index]

# Functions whose result is one of their operands or has no more digits, so that no rounding to 16 bits is needed.
_EXACT = {"select", "max", "min", "fmax", "fmin", "neg", "abs", "floor", "ceil", "trunc", "round"}

_WHOLE = frozenset({OpKind.REDUCTION, OpKind.SCAN})  # ops whose results are always known from outside
_KEPT = 1024  # indices
_DEEP = 64  # maximum depth of nested calls for one value
REPEATED = crossover("values.repeated")
REPEATED_ELEMENTS, REPEATED_PARTS = crossover("values.elements"), crossover("values.parts_of_rows")


@dataclass(slots=True)
class Scope:
    """An open block: its statements, the variables it binds and the values computed in it."""

    parent: "Scope | None"
    binds: frozenset[str]
    pinned: bool  # values requested inside are never emitted in an outer scope
    ranges: Ranges
    body: list[Statement] = field(default_factory=list)
    values: dict[Key, Term] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    reserved: set[str] = field(default_factory=set)  # names of inner blocks, while values are emitted here for them
    within: set[str] = field(default_factory=set)  # tensors whose values are computed here or in inner blocks
    inlined: bool = False  # whether the statements were appended to those of the parent when it was closed
    closed: set[str] = field(default_factory=set)  # names in closed inner blocks
    facts: frozenset[Term] = frozenset()  # conditions that hold inside, in addition to those of outer scopes

    def outward(self) -> "Iterator[Scope]":
        """Yield this scope and its enclosing scopes."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent


@dataclass(frozen=True, slots=True)
class _Known:
    """An element known from outside, as a term that can be read in a scope."""

    term: Term
    scope: Scope


class Values:
    """Emits statements into nested scopes; one instance per phase."""

    def __init__(self, fusion: Fusion, buffers: Mapping[str, Buffer], layouts: Mapping[TensorView, Layout]) -> None:
        self.fusion = fusion
        self._buffers = buffers
        self._layouts = layouts
        self.given: dict[Key, _Known] = {}  # values known from outside: accumulators, buffered rows
        self.asked: set[Key] = set()
        self._nested = 0
        each = REPEATED_PARTS if any(expr.kind in _WHOLE for expr in fusion.exprs) else REPEATED_ELEMENTS
        self._most = REPEATED + each * len(fusion.exprs)  # values that loops over the same elements compute
        self._left = self._most  # values that may still be computed
        self._readers: dict[str, frozenset[str]] = {}  # the tensors that are computed from a tensor, and itself
        self._broadcast: dict[str, bool] = {}  # whether a tensor has axes of one element
        self.scope = Scope(None, frozenset(), pinned=True, ranges={})

    # Blocks

    @contextmanager
    def block(self, binds: Mapping[str, tuple[int, int]], *, pinned: bool = False) -> "Iterator[Scope]":
        """Open a block that binds variables with the given ranges; the caller uses its body after it is closed."""
        outer = self.scope
        self.scope = inner = Scope(outer, frozenset(binds), pinned, range_key({**outer.ranges, **binds}))
        try:
            yield inner
        finally:
            outer.closed |= inner.names | inner.binds | inner.closed
            self.scope = outer

    @contextmanager
    def inlined(self, binds: Mapping[str, tuple[int, int]], *, pinned: bool = False) -> "Iterator[None]":
        """Open a block whose statements are appended to the enclosing block when it is closed."""
        with self.block(binds, pinned=pinned) as inner:
            yield
        inner.inlined = True
        # Names of loops that are closed are free again.
        self.scope.names |= inner.names.difference(s.var for s in inner.body if isinstance(s, Loop))
        self.scope.body.extend(inner.body)

    @contextmanager
    def loop(
        self, var: str, stop: int | Term, parallel: ParallelType, *, start: Term | None = None,
        smallest: int = 0, largest: int | None = None, pinned: bool = False,
    ) -> "Iterator[Var]":
        """Open a loop and append it to the current block when it is closed, unless it is empty.

        ``smallest`` and ``largest`` bound the variable if start and stop are computed (``largest`` is exclusive).
        """
        first = start if start is not None else Const(DataType.Index, 0)
        last = stop if isinstance(stop, Term) else Const(DataType.Index, stop)
        bound = largest if largest is not None else stop
        if not isinstance(bound, int):
            raise CodegenError(f"the loop over {var} has no bound.")
        # Nothing may be hoisted out of a loop that never runs, because it could read an array without elements.
        with self.block({var: (smallest, max(bound - 1, smallest))}, pinned=pinned or bound == 0) as inner:
            yield index_var(var)
        if inner.body:
            self.emit(Loop(var=var, start=first, stop=last, parallel=parallel, body=tuple(inner.body)))

    @contextmanager
    def guard(self, condition: Term) -> "Iterator[None]":
        """Open an If and append it unless it is empty; a condition that always holds is dropped."""
        simple = simplify(condition, self.scope.ranges)
        if isinstance(simple, Const) and simple.value:
            yield
            return
        outer = self.scope
        with self.block({}, pinned=True) as inner:
            inner.ranges = range_key(narrow(simple, outer.ranges, holds=True))
            yield
        if inner.body:
            self.emit(If(condition=simple, then=tuple(inner.body)))

    @contextmanager
    def moved(self, buffers: Mapping[str, Buffer], layouts: Mapping[TensorView, Layout]) -> "Iterator[None]":
        """Read and write tensors in other buffers."""
        before = self._buffers, self._layouts
        self._buffers, self._layouts = buffers, layouts
        yield
        self._buffers, self._layouts = before

    def begin_section(self) -> None:
        """Allow as many values as before: a loop over other elements computes all ops again."""
        self._left = self._most

    def emit(self, statement: Statement) -> None:
        """Append a statement to the current block."""
        self.scope.body.append(statement)

    def put(self, buffer: Buffer, position: Term, value: Term, origin: str | None = None) -> None:
        """Emit the store of a value at a position in memory."""
        self.emit(Store(buffer=buffer, position=self.simplify(position), value=value, origin=origin))

    def allocate(
        self, name: str, dtype: DataType, size: int, role: Role = Role.SCRATCH, *, origin: str | None = None,
    ) -> Buffer:
        """Emit the allocation of memory for a number of elements, and return it."""
        buffer = Buffer(name=name, dtype=dtype, size=size, role=role)
        self.emit(Alloc(buffer=buffer, origin=origin))
        return buffer

    def fresh(self, base: str) -> str:
        """Return a name that no open block uses."""
        blocks = (names for scope in self.scope.outward() for names in (scope.names, scope.binds, scope.reserved))
        used = tuple(filter(None, blocks))
        name, number = base, 1
        while any(name in names for names in used):
            name, number = f"{base}_{number}", number + 1
        self.scope.names.add(name)
        return name

    def pin(self, names: Iterable[str]) -> None:
        """Restrict subsequent values to the blocks that define variables with these names, and to inner blocks.

        A value is emitted in the outermost block that defines the variables of its index. In a block over a single
        position the index has no variables, but values that depend on these names must stay inside it.
        """
        pinned = set(names)
        for scope in self.scope.outward():
            if pinned & scope.names:
                scope.pinned = True

    def let(self, base: str, value: Term, *, origin: str | None = None, note: str = "", update: bool = False) -> Var:
        """Emit ``name = value`` in the current block and return the variable."""
        name = base if update else self.fresh(base)
        statement = Let(name=name, value=value, origin=origin, note=note, update=update)
        self.emit(statement)
        return statement.var

    # Terms of indices

    def simplify(self, term: Term) -> Term:
        """Return a term in its simplest form for the current ranges."""
        return simplify(term, self.scope.ranges)

    def quotient(self, term: Term, divisor: int) -> Term:
        """Return a term divided by a number and rounded down."""
        return self.simplify(apply("floordiv", term, divisor))

    def remainder(self, term: Term, divisor: int) -> Term:
        """Return the remainder of a term divided by a number."""
        return self.simplify(apply("mod", term, divisor))

    # Values

    def know(self, tensor: TensorView, index: Sequence[Term], term: Term) -> None:
        """Make an element available as a term, where the variables of the term and of the index exist."""
        at = self.simplified(index)
        scope = self._home(tensor.name, _index_variables(at) | variables(term))
        self.given[tensor.name, at] = _Known(term, scope)
        if scope is not self._home(tensor.name, _index_variables(at)):
            scope.within |= self._computed_from(tensor)

    def _outside_term(self, key: Key) -> Term | None:
        """Return the term of an element known from outside; None if there is none, or its variables do not exist."""
        element = self.given.get(key)
        if element is None:
            return None
        scope = element.scope
        while scope.inlined and scope.parent is not None:
            scope = scope.parent
        return element.term if any(scope is other for other in self.scope.outward()) else None

    def _computed_from(self, tensor: TensorView) -> frozenset[str]:
        """Return the names of the tensors that are computed from elements of a tensor, and its own."""
        if tensor.name not in self._readers:
            names = {tensor.name}
            for expr in self.fusion.exprs:
                if expr.kind not in _WHOLE and any(value.name in names for value in expr.inputs):
                    names.update(value.name for value in expr.outputs)
            self._readers[tensor.name] = frozenset(names)
        return self._readers[tensor.name]

    def simplified(self, index: Sequence[Term]) -> Index:
        """Return an index in its simplest form for the current ranges."""
        return _simplify_index(tuple(index), range_key(self.scope.ranges))

    def value(self, tensor: TensorView, index: Sequence[Term]) -> Term:
        """Return the element ``tensor[index]`` as a constant or variable, emitting its computation if needed."""
        at = self.simplified(index)
        key = (tensor.name, at)
        self.asked.add(key)
        scope: Scope | None = self.scope
        while scope is not None:  # without a generator: most of the time of planning is spent here
            if key in scope.values:
                return scope.values[key]
            scope = scope.parent
        check_time()
        self._left -= 1
        if self._left < 0:
            msg = f"{tensor.name} is needed at so many positions that computing it for each of them has no end."
            raise CodegenError(msg)
        expr = self.fusion.producers.get(tensor)
        given_term = self._outside_term(key)
        if given_term is not None:
            result = self._variable_of(tensor, at, given_term, expr)
        elif expr is None:
            result = self._input(tensor, at)
        elif expr.kind is OpKind.REDUCTION:
            msg = f"{tensor.name} is needed at index {_text(at)}, where the result of its reduction is not available."
            raise CodegenError(msg)
        elif OPS[expr.op.name].scalar is not None:
            result = self._pointwise(expr, tensor, at)
        elif OPS[expr.op.name].element is not None:
            result = self._element(expr, tensor, at)
        else:
            raise CodegenError(f"{expr.op.name} ({tensor.name}) has no rule for one element; no kernel can compute it.")
        return result

    def scalar(self, value: Scalar) -> Term:
        """Return a scalar as a constant, a parameter or a computed variable."""
        if value.value is not None:
            return Const(_not_index(value.dtype), value.value)
        expr = self.fusion.producers.get(value)
        if expr is None:
            return Var(_not_index(value.dtype), value.name)
        key = (value.name, ())
        outermost = list(self.scope.outward())[-1]
        if key not in outermost.values:
            with self._at(outermost):
                operands = [self.scalar(v) for v in expr.inputs if isinstance(v, Scalar)]
                term = result_element(expr, operands)
                outermost.values[key] = self.let(value.name, term, origin=expr.name, note=call_text(expr))
        return outermost.values[key]

    @contextmanager
    def _at(self, scope: Scope) -> "Iterator[None]":
        """Emit into ``scope`` temporarily, with names that are unused in every open block.

        Emitted statements precede the open blocks inside ``scope``, so their names must not occur in closed blocks
        there either.
        """
        outer = self.scope
        if scope is outer:
            yield
            return
        before = scope.reserved
        scope.reserved = before.union(*(s.names | s.binds | s.reserved for s in outer.outward()))
        for inside in itertools.takewhile(lambda s: s is not scope, outer.outward()):
            scope.reserved |= inside.closed
        self.scope = scope
        try:
            yield
        finally:
            self.scope = outer
            scope.reserved = before

    def _home(self, name: str, used: frozenset[str]) -> Scope:
        """Return the outermost block in which a value of a tensor or scalar, computed from some variables, may be."""
        scope = self.scope
        while scope.parent is not None and not (
            scope.pinned or name in scope.within or not used.isdisjoint(scope.binds)
            or not used.isdisjoint(scope.names)
        ):
            scope = scope.parent
        return scope

    def _variable_of(self, tensor: TensorView, at: Index, term: Term, expr: Expr | None = None) -> Term:
        if isinstance(term, Var | Const):
            return term
        home = self._home(tensor.name, _index_variables(at) | variables(term))
        with self._at(home):
            result = self.let(tensor.name.lower(), term, origin=None if expr is None else expr.name)
        home.values[tensor.name, at] = result
        return result

    def _input(self, tensor: TensorView, at: Index) -> Term:
        buffer = self._buffers[tensor.name]
        position = simplify(self._layouts[tensor].position(at), self.scope.ranges)
        return self._variable_of(tensor, at, Load(tensor.dtype, buffer, position))

    def _pointwise(self, expr: Expr, tensor: TensorView, at: Index) -> Term:
        self._nested += 1
        try:
            if self._nested > _DEEP:
                self._begin(expr, at)
            return self._compute(expr, tensor, at)
        finally:
            self._nested -= 1

    def _begin(self, expr: Expr, at: Index) -> None:
        """Compute a long chain of pointwise expressions from its beginning, to limit the depth of Python calls."""
        waiting = [(expr, at)]
        entered: set[Key] = set()
        while waiting:
            current, index = waiting[-1]
            if (current.name, index) in entered:
                waiting.pop()
                if current is not expr:
                    self.value(current.out, index)
                continue
            entered.add((current.name, index))
            for operand in reversed(current.tensor_inputs):
                producer = self.fusion.producers.get(operand)
                place = self._place(operand, index)
                if producer is not None and OPS[producer.op.name].scalar and not self._is_known((operand.name, place)):
                    waiting.append((producer, place))

    def _place(self, operand: TensorView, index: Index) -> Index:
        """Return the index of an operand of a pointwise expression, simplified."""
        if operand.name not in self._broadcast:
            self._broadcast[operand.name] = 1 in operand.shape
        return self.simplified(operand_index(operand, index) if self._broadcast[operand.name] else index)

    def _is_known(self, key: Key) -> bool:
        return self._outside_term(key) is not None or any(key in scope.values for scope in self.scope.outward())

    def _compute(self, expr: Expr, tensor: TensorView, at: Index) -> Term:
        home = self._home(tensor.name, _index_variables(at))
        with self._at(home):
            operands = [
                self.scalar(v) if isinstance(v, Scalar) else self.value(v, self._place(v, at)) for v in expr.inputs
            ]
            term = result_element(expr, operands)
            result: Term = term
            if not isinstance(term, Const):
                result = self.let(tensor.name.lower(), term, origin=expr.name, note=call_text(expr))
        home.values[tensor.name, at] = result
        return result

    def _element(self, expr: Expr, tensor: TensorView, at: Index) -> Term:
        term = element_term(expr, at)
        if isinstance(term, Read):
            return self.value(term.tensor, term.index)
        home = self._home(tensor.name, _index_variables(at))
        with self._at(home):
            if expr.kind is OpKind.INDEXING:
                term = self._with_positions(term, expr)
            result = self._resolve(term, expr, tensor.name.lower())
            if not isinstance(result, Var | Const):
                result = self.let(tensor.name.lower(), result, origin=expr.name, note=call_text(expr))
        home.values[tensor.name, at] = result
        return result

    def _with_positions(self, term: Term, expr: Expr) -> Term:
        """Return a term in which data-dependent positions are index variables, so that conditions can guard them."""
        match term:
            case Apply(DataType.Index, "cast", (Read() | ReadScalar() as source,)):
                position = counted_position(source, self.fusion.producers) if isinstance(source, Read) else None
                return self._position(source, expr) if position is None else simplify(position, self.scope.ranges)
            case Apply(dtype, fn, args):
                return simplify(Apply(dtype, fn, tuple(self._with_positions(a, expr) for a in args)), self.scope.ranges)
            case Read(dtype, tensor, index):
                return Read(dtype, tensor, tuple(self._with_positions(i, expr) for i in index))
            case _:
                return term

    def _position(self, source: Read | ReadScalar, expr: Expr) -> Term:
        """Return a value as an index variable, named in the outermost scope in which the value is known."""
        if isinstance(source, Read):
            name, at = source.tensor.name, self.simplified(source.index)
            value = self.value(source.tensor, at)
        else:
            name, at = source.scalar.name, ()
            value = self.scalar(source.scalar)
        if isinstance(value, Const):
            return Const(DataType.Index, int(value.value.real))
        key = (f"{name} as a position", at)
        for scope in self.scope.outward():
            if key in scope.values:
                return scope.values[key]
        home = self._home(name, _index_variables(at))
        with self._at(home):
            result = self.let(f"{name.lower()}_at", Apply(DataType.Index, "cast", (value,)), origin=expr.name)
        home.values[key] = result
        return result

    def _resolve(self, term: Term, expr: Expr, name: str) -> Term:
        """Return a term with its reads computed; selections by index become an If."""
        if isinstance(term, Read):
            return self.value(term.tensor, term.index)
        if isinstance(term, ReadScalar):
            return self.scalar(term.scalar)
        if not isinstance(term, Apply) or is_index(term):
            return simplify(term, self.scope.ranges)
        if term.fn == "select":
            condition = self._decide(simplify(term.args[0], self.scope.ranges))
            if isinstance(condition, Const):
                return self._resolve(term.args[1 if condition.value else 2], expr, name)
            if is_index(condition):
                return self._choice(condition, term, expr, name)
        return Apply(term.dtype, term.fn, tuple(self._resolve(arg, expr, name) for arg in term.args))

    def _decide(self, condition: Term) -> Term:
        """Return a condition, or a constant inside a branch on the same condition."""
        for scope in self.scope.outward():
            if condition in scope.facts:
                return Const(DataType.Bool, value=True)
            if negate(condition) in scope.facts:
                return Const(DataType.Bool, value=False)
        return condition

    def _choice(self, condition: Term, term: Apply, expr: Expr, name: str) -> Term:
        chosen = Var(term.dtype, self.fresh(name))
        branches = []
        for holds, side in ((True, term.args[1]), (False, term.args[2])):
            with self.block({}, pinned=True) as inner:
                inner.ranges = narrow(condition, inner.ranges, holds=holds)
                inner.facts = frozenset({condition if holds else negate(condition)})
                value = self._resolve(side, expr, name)
                self.emit(Let(name=chosen.name, value=value, origin=expr.name))
            branches.append(tuple(inner.body))
        self.emit(
            If(condition=condition, then=branches[0], otherwise=branches[1], origin=expr.name, note=call_text(expr)),
        )
        return chosen

    def store(self, tensor: TensorView, index: Sequence[Term], layout: Layout) -> None:
        """Emit the store of an element of an output."""
        value = self.value(tensor, index)
        position = layout.position(self.simplified(index))
        expr = self.fusion.producers.get(tensor)
        origin = None if expr is None else expr.name
        self.put(self._buffers[tensor.name], position, value, origin)


def result_element(expr: Expr, operands: Sequence[Term]) -> Term:
    """Return one element of a result, given one of each operand."""
    rule = OPS[expr.op.name].scalar
    if rule is None:
        raise CodegenError(f"{expr.op.name} has no rule for one element.")
    out = expr.outputs[0].dtype
    # As in the reference, narrow operands are widened, and the result of the whole expression is rounded once.
    term = rule(*(operands if OPS[expr.op.name].reads_bits else map(_widen, operands)), **dict(expr.attrs))
    if out.is_narrow and term.dtype is not out:
        if _exact(term, out, operands):
            return Apply(out, "cast", (term,)) if isinstance(term, Const) else _retype(term, out)
        return cast(term, out)
    return term


@lru_cache(_KEPT)
def _simplify_index(index: Index, ranges: FixedRanges) -> Index:
    """Return an index in simplest form; a long chain of pointwise ops has few different ones."""
    return tuple(simplify(i, ranges) for i in index)


@lru_cache(_KEPT)
def _index_variables(index: Index) -> frozenset[str]:
    return frozenset().union(*(variables(i) for i in index))


def _not_index(dtype: DataType) -> DataType:
    """Return an Index value as an Int, because only loop variables and terms of them are index arithmetic."""
    return DataType.Int if dtype is DataType.Index else dtype


def _widen(term: Term) -> Term:
    return _retype(term, term.dtype.compute) if term.dtype.is_narrow else term


def _retype(term: Term, dtype: DataType) -> Term:
    match term:
        case Const(_, value):
            return Const(dtype, value)
        case Var(_, name):
            return Var(dtype, name)
        case Apply(_, fn, args):
            return Apply(dtype, fn, args)
        case _:
            return term


def _exact(term: Term, out: DataType, operands: Sequence[Term]) -> bool:
    """Whether a term only selects among operands of ``out``'s precision and small integer constants."""
    if isinstance(term, Apply):
        parts = term.args[1:] if term.fn == "select" else term.args
        return term.fn in _EXACT and all(_exact(arg, out, operands) for arg in parts)
    if isinstance(term, Const):
        return isinstance(term.value, int) or term.value in (0.0, 1.0)
    names = {o.name for o in operands if isinstance(o, Var) and o.dtype is out}
    return isinstance(term, Var) and term.name in names


def call_text(expr: Expr) -> str:
    """Return an expression as text, ``T3 = add(T1, T2)``."""
    parts = [str(v.name) if isinstance(v, TensorView) else str(v) for v in expr.inputs]
    parts += [f"{key}={_attr(value)}" for key, value in expr.attrs]
    return f"{expr.name} = {expr.op.name}({', '.join(parts)})"


def _attr(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_attr(v) for v in value) + "]"
    return value.name if isinstance(value, DataType) else str(value)


def _text(index: Index) -> str:
    return ", ".join(str(i) for i in index)


def level_of(fusion: Fusion, *, scans: bool = False) -> dict[Val, int]:
    """Return the number of reductions, and with ``scans`` of scans, before each value on its longest path."""
    levels: dict[Val, int] = {}
    counted = _WHOLE if scans else {OpKind.REDUCTION}
    for expr in fusion.exprs:
        level = max((levels.get(v, 0) for v in expr.inputs), default=0)
        if expr.kind in counted:
            level += 1
        levels.update((out, level) for out in expr.outputs)
    return levels

"""The element of each tensor that belongs to a point of an iteration space.

Starting from one tensor whose axes are the loop variables, indices propagate through the fusion along expressions that
map elements one to one: pointwise ops, permutations, broadcasts, squeezes, reshapes, scans, the kept axes of
reductions, and the other axes of reads at data-dependent positions. A component that is not determined is None. Indices
propagate through slices to an operand that nothing else reads, and not through pads and cats; through flips only if
asked to: elements in descending order are read and written one by one, which pays for a scan but not for what could as
well be another nest.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fuser_lab.codegen.index_math import Ranges, simplify
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, Fusion, OpKind, Scalar, TensorView, Val
from fuser_lab.ir.term import Const, Term, Var, apply
from fuser_lab.ops import OPS, Element
from fuser_lab.ops.rules import Positions

Components = tuple[Term | None, ...]
Index = tuple[Term, ...]

ZERO = Const(DataType.Index, 0)


@dataclass(frozen=True, slots=True)
class Read(Term):
    """The element ``index`` of operand ``tensor``, not yet computed."""

    tensor: TensorView
    index: Index


@dataclass(frozen=True, slots=True)
class ReadScalar(Term):
    """A scalar operand, not yet computed."""

    scalar: Scalar


def index_var(name: str) -> Var:
    """Return an index variable."""
    return Var(DataType.Index, name)


def view_index(expr: Expr, index: Index) -> Index | None:
    """Return the operand's index for an element of a view, or None if the op does more than move elements."""
    term = element_term(expr, index)
    return term.index if isinstance(term, Read) else None


def element_term(expr: Expr, index: Index) -> Term:
    """Return an element of a view or factory, with operands as `Read`."""
    entry = OPS[expr.op.name]
    if entry.element is None:
        raise TypeError(f"{expr.op.name} has no rule for one element.")

    def read(position: int, at: Index) -> Term:
        value = expr.inputs[position]
        # An Index used as a value is an Int: only loop variables and terms of them are index arithmetic.
        dtype = DataType.Int if value.dtype is DataType.Index else value.dtype
        if isinstance(value, TensorView):
            return Read(dtype, value, tuple(at))
        return ReadScalar(dtype, value)

    return entry.element(
        Element(index=index, read=read, inputs=expr.inputs, out=expr.out, attrs=dict(expr.attrs)),
    )


def counted_position(read: Read, producers: Mapping[Val, Expr]) -> Term | None:
    """Return an element that is computed from iotas and numbers as index arithmetic; None for other elements.

    The steps of a slice and of a roll, the places of a reflecting pad and the distances of positions are such elements:
    they are known where the kernel is written, unlike positions that are data.
    """
    counted = _arithmetic(read, producers)
    return None if counted is None else counted.term


@dataclass(frozen=True, slots=True)
class _Counted:
    """An element as index arithmetic, with the least and the largest number that it may be."""

    term: Term
    least: int
    most: int


def _arithmetic(read: Read, producers: Mapping[Val, Expr]) -> _Counted | None:
    expr = producers.get(read.tensor)
    if expr is None or not read.dtype.is_integral:
        return None
    name = expr.op.name
    if name == "iota":
        start, step = (operand.value if isinstance(operand, Scalar) else None for operand in expr.inputs)
        if not isinstance(start, int) or not isinstance(step, int):
            return None
        last = start + step * max(read.tensor.numel - 1, 0)
        made: _Counted | None = _Counted(read.index[0] * step + start, min(start, last), max(start, last))
    elif name == "where":
        made = _choice(expr, read, producers)
    elif name in _COUNTED:
        operands = [counted for value in expr.inputs if (counted := _operand(value, read.index, producers))]
        made = _COUNTED[name](*operands) if len(operands) == len(expr.inputs) else None
    else:
        inner = element_term(expr, read.index) if expr.kind in _MOVES else None
        return _arithmetic(inner, producers) if isinstance(inner, Read) else None
    limits = np.iinfo(str(expr.out.dtype.numpy))
    # Other numbers would wrap around.
    return made if made and limits.min <= made.least and made.most <= limits.max else None


def _operand(value: Val, index: Sequence[Term], producers: Mapping[Val, Expr]) -> _Counted | None:
    """Return an operand of a pointwise expression."""
    if isinstance(value, TensorView):
        return _arithmetic(Read(value.dtype, value, operand_index(value, index)), producers)
    number = value.value if isinstance(value, Scalar) else None
    if not isinstance(number, int) or isinstance(number, bool):
        return None
    return _Counted(Const(DataType.Index, number), number, number)


def _choice(expr: Expr, read: Read, producers: Mapping[Val, Expr]) -> _Counted | None:
    """Return the operand that a selection by a comparison always returns."""
    condition, *sides = expr.inputs
    compared = producers.get(condition)
    if compared is None or compared.op.name not in _COMPARED:
        return None
    at = operand_index(condition, read.index) if isinstance(condition, TensorView) else ()
    left, right = (_operand(value, at, producers) for value in compared.inputs)
    if left is None or right is None:
        return None
    results = {_COMPARED[compared.op.name](*pair) for pair in ((left.least, right.most), (left.most, right.least))}
    return _operand(sides[0 if results.pop() else 1], read.index, producers) if len(results) == 1 else None


def _sum(a: _Counted, b: _Counted) -> _Counted:
    return _Counted(apply("add", a.term, b.term), a.least + b.least, a.most + b.most)


def _difference(a: _Counted, b: _Counted) -> _Counted:
    return _Counted(apply("sub", a.term, b.term), a.least - b.most, a.most - b.least)


def _product(a: _Counted, b: _Counted) -> _Counted | None:
    if a.least != a.most and b.least != b.most:
        return None
    ends = [x * y for x in (a.least, a.most) for y in (b.least, b.most)]
    return _Counted(apply("mul", a.term, b.term), min(ends), max(ends))


def _remainder(a: _Counted, b: _Counted) -> _Counted | None:
    if a.least < 0 or b.least != b.most or b.least < 1:
        return None  # remainders of other numbers differ
    return _Counted(apply("mod", a.term, b.least), 0, min(a.most, b.least - 1))


def _larger(a: _Counted, b: _Counted) -> _Counted:
    return _Counted(apply("max", a.term, b.term), max(a.least, b.least), max(a.most, b.most))


def _smaller(a: _Counted, b: _Counted) -> _Counted:
    return _Counted(apply("min", a.term, b.term), min(a.least, b.least), min(a.most, b.most))


def _negative(a: _Counted) -> _Counted:
    return _Counted(a.term * -1, -a.most, -a.least)


def _distance(a: _Counted) -> _Counted:
    either = _larger(a, _negative(a))
    return _Counted(either.term, max(either.least, 0), either.most)


_COUNTED: Mapping[str, Callable[..., _Counted | None]] = {
    "add": _sum, "sub": _difference, "mul": _product, "mod": _remainder, "fmod": _remainder, "remainder": _remainder,
    "maximum": _larger, "minimum": _smaller, "neg": _negative, "abs": _distance, "cast": lambda a: a,
}
_COMPARED: Mapping[str, Callable[[int, int], bool]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}


def shared_axes(expr: Expr) -> tuple[Positions, ...]:
    """Return the axes of the operands of an indexed read that are axes of its result."""
    rule = OPS[expr.op.name].axes
    if rule is None:
        raise TypeError(f"{expr.op.name} has no rule for its axes.")
    return rule(expr, 0)


def operand_index(operand: TensorView, index: Sequence[Term]) -> Index:
    """Return the operand's index in a pointwise expression, with 0 on axes of size 1."""
    return tuple(ZERO if n == 1 else i for n, i in zip(operand.shape, index, strict=True))


def mirrored_axis(expr: Expr, producers: Mapping[Val, Expr]) -> int | None:
    """Return the axis along which an indexed read reverses its operand, as a flip does, or None."""
    if expr.op.name != "index_select":
        return None
    (source, places), dim = expr.tensor_inputs, expr.attr("dim")
    assert isinstance(dim, int)
    if places.ndim != 1 or source.shape[dim] != expr.out.shape[dim]:
        return None
    count, place = source.shape[dim], index_var("place")
    counted = counted_position(Read(places.dtype, places, (place,)), producers)
    ranges = {place.name: (0, count - 1)}
    if counted is None or simplify(counted, ranges) != simplify(place * -1 + (count - 1), ranges):
        return None
    return dim


class IndexMap:
    """Indices of all tensors that are reached from given ones, with ``mirrors`` also through flips."""

    def __init__(
        self, fusion: Fusion, start: Mapping[TensorView, Components], ranges: Ranges, *, mirrors: bool = False,
    ) -> None:
        self._fusion = fusion
        self._ranges = ranges
        self._mirrors = mirrors
        # An expression is visited again only if a component of one of its tensors became known since its last visit.
        self._visits = 0
        self._visited: dict[str, int] = {}  # number of the last visit of each expression
        self._learned: dict[str, int] = {}  # number of visits when the index of each tensor last changed
        self._known_components = 0
        self.components: dict[TensorView, Components] = {}
        for tensor, components in start.items():
            self._learn(tensor, components)
        self._spread()

    def add(self, tensor: TensorView, components: Components) -> None:
        """Fill in components of one more tensor and propagate them."""
        before = self.components.get(tensor)
        self._learn(tensor, components)
        if self.components[tensor] != before:
            self._spread()

    def complete(self, tensor: TensorView) -> Index | None:
        """Return the index of a tensor if every component is known."""
        components = self.components.get(tensor)
        if components is None:
            return None
        place = tuple(c for c in components if c is not None)
        return place if len(place) == len(components) else None

    def _spread(self) -> None:
        before = -1
        while before != self._known_components:
            before = self._known_components
            for expr in (*self._fusion.tensor_exprs, *reversed(self._fusion.tensor_exprs)):
                self._visit(expr)

    def _learn(self, tensor: TensorView, components: Components) -> None:
        before = self.components.get(tensor)
        if before is not None and None not in before:
            return
        old = (None,) * tensor.ndim if before is None else before
        merged = tuple([
            ZERO if n == 1 else a if a is not None else b if b is None else simplify(b, self._ranges)
            for n, a, b in zip(tensor.shape, old, components, strict=True)
        ])
        if merged != before:
            self._known_components += old.count(None) - merged.count(None)
            self._learned[tensor.name] = self._visits
            self.components[tensor] = merged

    def _visit(self, expr: Expr) -> None:
        tensors, learned = expr.tensor_inputs, self._learned
        if not tensors:
            return
        last = max([learned.get(tv.name, -1) for tv in (*tensors, *expr.tensor_outputs)])
        if last < self._visited.get(expr.name, 0):
            return
        self._visits += 1
        self._visited[expr.name] = self._visits
        kind = expr.kind
        if kind in {OpKind.POINTWISE, OpKind.SCAN}:
            self._pointwise(expr.out, tensors)
        elif kind is OpKind.REDUCTION:
            self._reduction(tensors[0], expr.out)
        elif kind is OpKind.RESHAPE:
            self._reshape(expr)
        elif kind is OpKind.INDEXING:
            self._indexing(expr)
        elif kind in _PLAIN_VIEWS:
            self._view(expr)
        elif expr.op.name == "slice" and self._fusion.users[tensors[0]] == (expr,):
            self._window(expr)

    def _pointwise(self, out: TensorView, operands: Sequence[TensorView]) -> None:
        index: list[Term | None] = list(self.components.get(out, (None,) * out.ndim))
        for tensor in operands:
            for axis, component in enumerate(self.components.get(tensor, ())):
                if tensor.shape[axis] == out.shape[axis] and index[axis] is None:
                    index[axis] = component
        self._learn(out, tuple(index))
        for tensor in operands:
            self._learn(tensor, self.components[out])

    def _reduction(self, source: TensorView, out: TensorView) -> None:
        kept_axes = [i for i, axis in enumerate(out.domain.logical) if not axis.is_reduction]
        if source in self.components:
            self._learn(out, tuple(self.components[source][i] for i in kept_axes))
        if out in self.components:
            back: list[Term | None] = [None] * source.ndim
            for position, axis in enumerate(kept_axes):
                back[axis] = self.components[out][position]
            self._learn(source, tuple(back))

    def _reshape(self, expr: Expr) -> None:
        source, out = expr.tensor_inputs[0], expr.out
        forward = self.complete(out)
        if forward is not None:
            index = view_index(expr, forward)
            if index is not None:
                self._learn(source, index)
        backward = self.complete(source)
        if backward is not None:
            # The inverse of a reshape is the reshape in the other direction.
            inverse = Expr(op=expr.op, inputs=(out,), outputs=(source,), attrs=expr.attrs)
            index = view_index(inverse, backward)
            if index is not None:
                self._learn(out, index)

    def _window(self, expr: Expr) -> None:
        """Propagate to the operand of a slice, which nothing else reads."""
        index = self.complete(expr.out)
        read = None if index is None else view_index(expr, index)
        if read is not None:
            self._learn(expr.tensor_inputs[0], read)

    def _indexing(self, expr: Expr) -> None:
        """Propagate along the axes that an operand shares with the result."""
        out = expr.out
        index: list[Term | None] = list(self.components.get(out, (None,) * out.ndim))
        shared = [
            (tensor, tuple((a, b) for a, b in pairs if tensor.shape[a] == out.shape[b]))
            for tensor, pairs in zip(expr.tensor_inputs, shared_axes(expr), strict=True)
        ]
        axis = mirrored_axis(expr, self._fusion.producers) if self._mirrors else None
        source = expr.tensor_inputs[0]
        if axis is not None and index[axis] is None and source in self.components:
            index[axis] = self._mirror(self.components[source][axis], out.shape[axis])
        for tensor, pairs in shared:
            for a, b in pairs if tensor in self.components else ():
                index[b] = self.components[tensor][a] if index[b] is None else index[b]
        self._learn(out, tuple(index))
        for tensor, pairs in shared:
            back: list[Term | None] = [None] * tensor.ndim
            for a, b in pairs:
                back[a] = self.components[out][b]
            if axis is not None and tensor is source:
                back[axis] = self._mirror(self.components[out][axis], out.shape[axis])
            self._learn(tensor, tuple(back))

    def _mirror(self, component: Term | None, count: int) -> Term | None:
        return None if component is None else simplify(component * -1 + (count - 1), self._ranges)

    def _view(self, expr: Expr) -> None:
        source, out = expr.tensor_inputs[0], expr.out
        names = tuple(index_var(f"?{axis}") for axis in range(out.ndim))
        index = view_index(expr, names)
        if index is None:
            return
        places = {term.name: axis for axis, term in enumerate(names)}
        components = self.components.get(out, (None,) * out.ndim)
        back: list[Term | None] = []
        forward: list[Term | None] = [None] * out.ndim
        for axis, term in enumerate(index):
            place = places.get(term.name) if isinstance(term, Var) else None
            back.append(ZERO if place is None else components[place])
            if place is not None and source in self.components:
                forward[place] = self.components[source][axis]
        self._learn(source, tuple(back))
        if source in self.components:
            self._learn(out, tuple(forward))


_PLAIN_VIEWS = frozenset({OpKind.COPY, OpKind.BROADCAST, OpKind.SQUEEZE, OpKind.EXPAND})
_MOVES = _PLAIN_VIEWS | {OpKind.RESHAPE}

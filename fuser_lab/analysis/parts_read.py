"""Which elements of its operands a segment reads: of a look-up's table only the rows, of a slice's operand the slice.

Parts are followed from the results of a segment back to what it reads. A part is a box of positions and a bound on the
number of elements, which is smaller than the box for look-ups at positions that are data. Both bound from above:
several parts of a tensor are joined to the box around them, with the elements that two boxes share counted once, and
two look-ups may read the same row.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, OpKind, TensorView
from fuser_lab.ir.term import Apply, Const, Term, Var
from fuser_lab.ops import OPS, Element

Interval = tuple[int, int]  # the first position, and the one after the last
_CHOOSING = frozenset({OpKind.RESIZE, OpKind.INDEXING})  # ops that may read a part of an operand for a whole result
_MOVING = frozenset({
    OpKind.COPY, OpKind.BROADCAST, OpKind.SQUEEZE, OpKind.EXPAND, OpKind.RESHAPE, OpKind.RESIZE,
})


@dataclass(frozen=True, slots=True)
class Part:
    """The box that a part of a tensor is in, one interval for each axis, and the most elements that it has."""

    box: tuple[Interval, ...]
    most: int

    @classmethod
    def of(cls, tensor: TensorView) -> "Part":
        """Return all elements of a tensor."""
        return cls(tuple([(0, size) for size in tensor.shape]), tensor.numel)

    @classmethod
    def none_of(cls, tensor: TensorView) -> "Part":
        """Return no element of a tensor."""
        return cls(((0, 0),) * tensor.ndim, 0)

    @property
    def elements(self) -> int:
        """The most elements that it has, repeated ones included."""
        return min(prod([high - low for low, high in self.box]), self.most)

    @property
    def is_box(self) -> bool:
        """Whether it has every element of its box."""
        return self.most >= prod([high - low for low, high in self.box])

    def joined(self, other: "Part") -> "Part":
        """Return the part that contains both."""
        if not self.elements or not other.elements:
            return self if self.elements else other
        pairs = list(zip(self.box, other.box, strict=True))
        box = tuple([(min(a, c), max(b, d)) for (a, b), (c, d) in pairs])
        shared = prod([max(0, min(b, d) - max(a, c)) for (a, b), (c, d) in pairs])
        return Part(box, self.most + other.most - (shared if self.is_box and other.is_box else 0))

    def stored(self, tensor: TensorView) -> int:
        """Return the most bytes in memory that it has of its tensor: an expanded axis has one element."""
        sizes = zip(self.box, tensor.domain.axes, strict=True)
        inside = prod([min(high - low, 1) if axis.expanded is not None else high - low for (low, high), axis in sizes])
        return min(min(inside, self.most) * tensor.dtype.itemsize, tensor.nbytes)


Reads = Mapping[TensorView, Mapping[str, Part]]


def chooses(exprs: Iterable[Expr]) -> bool:
    """Return whether some expression may read only a part of an operand; otherwise every operand is read completely.

    For a result without elements nothing is read.
    """
    return any(expr.kind in _CHOOSING or 0 in tensor.shape for expr in exprs for tensor in expr.tensor_outputs)


def parts_read(exprs: Sequence[Expr], results: Iterable[TensorView]) -> Reads:
    """Return the parts of tensors that expressions, in order, read to compute results: by tensor, then by reader."""
    needed: dict[TensorView, Part] = {tensor: Part.of(tensor) for tensor in results}
    reads: dict[TensorView, dict[str, Part]] = {}
    for expr in reversed(exprs):
        parts = [needed[tensor] for tensor in expr.tensor_outputs if tensor in needed]
        if not parts:
            continue
        part = parts[0] if len(expr.tensor_outputs) == 1 else None
        for tensor, read in _operands(expr, part):
            by_reader = reads.setdefault(tensor, {})
            by_reader[expr.name] = by_reader[expr.name].joined(read) if expr.name in by_reader else read
            needed[tensor] = needed[tensor].joined(read) if tensor in needed else read
    return reads


def _operands(expr: Expr, part: Part | None) -> list[tuple[TensorView, Part]]:
    """Return the operands that an expression reads for a part of its result, and which part; None for all results."""
    tensors = expr.tensor_inputs
    if part is None:
        return [(tensor, Part.of(tensor)) for tensor in tensors]
    if not part.elements:
        return [(tensor, Part.none_of(tensor)) for tensor in tensors]
    match expr.kind:
        case OpKind.POINTWISE if all(tensor.ndim == len(part.box) for tensor in tensors):
            return [(tensor, _fitting(tensor, part)) for tensor in tensors]
        case OpKind.REDUCTION:
            return [(tensor, _part_of_sum(tensor, expr.out, part)) for tensor in tensors]
        case OpKind.INDEXING if OPS[expr.op.name].axes is not None:
            return _looked_up(expr, part)
        case kind if kind in _MOVING and OPS[expr.op.name].element is not None:
            return _parts_of_move(expr, part)
    return [(tensor, Part.of(tensor)) for tensor in tensors]


def _fitting(tensor: TensorView, part: Part) -> Part:
    """Return the elements of an operand that is broadcast to a part of a result."""
    sizes = zip(part.box, tensor.shape, strict=True)
    return Part(tuple([(0, 1) if size == 1 and high > low else (low, high) for (low, high), size in sizes]), part.most)


def _part_of_sum(tensor: TensorView, out: TensorView, part: Part) -> Part:
    """Return the elements that a reduction reads for a part of its result."""
    places = [n for n, axis in enumerate(out.domain.logical) if not axis.is_reduction]
    if len(places) != len(part.box) or len(out.domain.logical) != tensor.ndim:
        return Part.of(tensor)
    box = [(0, size) for size in tensor.shape]
    for place, axis in enumerate(places):
        box[axis] = part.box[place]
    each = prod([size for axis, size in enumerate(tensor.shape) if axis not in places])
    return Part(tuple(box), part.most * each)


def _looked_up(expr: Expr, part: Part) -> list[tuple[TensorView, Part]]:
    """Return what a look-up reads: an element of each operand for each element of its result, in the shared axes."""
    rule = OPS[expr.op.name].axes
    assert rule is not None
    parts = []
    for tensor, pairs in zip(expr.tensor_inputs, rule(expr, 0), strict=True):
        box = [(0, size) for size in tensor.shape]
        for axis, place in pairs:
            box[axis] = (0, 1) if tensor.shape[axis] == 1 else part.box[place]
        parts.append((tensor, Part(tuple(box), part.elements)))
    return parts


def _parts_of_move(expr: Expr, part: Part) -> list[tuple[TensorView, Part]]:
    """Return what an op that moves elements reads: for each axis of an operand, the range of its positions."""
    rule = OPS[expr.op.name].element
    assert rule is not None
    names = [f"i{axis}" for axis in range(len(part.box))]
    whole = {name: (low, high - 1) for name, (low, high) in zip(names, part.box, strict=True)}
    reads: dict[str, tuple[TensorView, tuple[Term, ...]]] = {}

    def read(position: int, at: tuple[Term, ...]) -> Term:
        value, name = expr.inputs[position], f"operand {len(reads)}"
        if isinstance(value, TensorView):
            reads[name] = value, at
        return Var(DataType.Int if value.dtype is DataType.Index else value.dtype, name)

    index = tuple([Var(DataType.Index, name) for name in names])
    element = rule(Element(index=index, read=read, inputs=expr.inputs, out=expr.out, attrs=dict(expr.attrs)))
    parts: list[tuple[TensorView, Part]] = []
    for name, ranges in _reach(element, whole):
        tensor, at = reads.get(name, (None, ()))
        if tensor is not None:
            box = tuple([_clip(term, ranges, size) for term, size in zip(at, tensor.shape, strict=True)])
            parts.append((tensor, Part(box, part.elements)))
    return parts


def _reach(term: Term, ranges: Mapping[str, Interval]) -> Iterator[tuple[str, Mapping[str, Interval]]]:
    """Yield the variables of a term, each with the ranges of indices in which it counts."""
    if any(low > high for low, high in ranges.values()):
        return
    match term:
        case Var(name=name):
            yield name, ranges
        case Apply(fn="select", args=(condition, first, second)):
            yield from _reach(condition, ranges)
            yield from _reach(first, _narrow(condition, ranges))
            yield from _reach(second, _narrow(condition, ranges, holds=False))
        case _:
            for child in term.children:
                yield from _reach(child, ranges)


def _narrow(condition: Term, ranges: Mapping[str, Interval], *, holds: bool = True) -> Mapping[str, Interval]:
    """Return the ranges of indices in which a condition holds, or does not."""
    match condition:
        case Apply(fn="and", args=(first, second)) if holds:
            return _narrow(second, _narrow(first, ranges))
        case Apply(fn="lt" | "ge", args=(Var(name=name), Const() as limit)) if name in ranges:
            (low, high), bound = ranges[name], int(limit.value.real)
            is_below = (condition.fn == "lt") == holds
            return {**ranges, name: (low, min(high, bound - 1)) if is_below else (max(low, bound), high)}
    return ranges


def _clip(term: Term, ranges: Mapping[str, Interval], size: int) -> Interval:
    """Return the positions on an axis that a term may have: those within the axis, all if they are not bounded."""
    bounds = _bounds(term, ranges)
    if bounds is None:
        return 0, size
    low, high = max(bounds[0], 0), min(bounds[1] + 1, size)
    return (low, high) if low < high else (0, 0)


def _bounds(term: Term, ranges: Mapping[str, Interval]) -> Interval | None:
    """Return the smallest and the largest value of an index, None if they are unknown."""
    match term:
        case Const():
            return int(term.value.real), int(term.value.real)
        case Var(name=name):
            return ranges.get(name)
        case Apply(fn="add" | "sub" | "mul" | "floordiv" | "mod", args=(x, y)):
            first, second = _bounds(x, ranges), _bounds(y, ranges)
            return None if first is None or second is None else _combine(term.fn, first, second)
    return None


def _combine(fn: str, first: Interval, second: Interval) -> Interval | None:
    (a, b), (c, d) = first, second
    match fn:
        case "add":
            return a + c, b + d
        case "sub":
            return a - d, b - c
        case "mul":
            products = a * c, a * d, b * c, b * d
            return min(products), max(products)
    if c != d or c <= 0:
        return None
    if fn == "floordiv":
        return a // c, b // c
    return (a % c, b % c) if a // c == b // c else (0, c - 1)

"""Which extents of a dumped fusion are equal: those of the operands and results of one pointwise expression."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fuser_lab.definition.dump.calls import Context, call_of
from fuser_lab.definition.dump.terms import Axis, Constant, Statement, Symbol, Value
from fuser_lab.errors import FuserLabError
from fuser_lab.ir import OpKind
from fuser_lab.ops import OPS


@dataclass(slots=True)
class EqualExtents:
    """Classes of symbols of equal size, as a forest, with the sizes that are constants of the text."""

    parents: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def size(self, name: str) -> int | None:
        """Return the size of a symbol, if the text has a constant for it."""
        return self.sizes.get(self._root(name))

    def classes(self) -> dict[str, frozenset[str]]:
        """Return the symbols that have the size of each symbol, itself included."""
        by_root: dict[str, list[str]] = {}
        for name in list(self.parents):
            by_root.setdefault(self._root(name), []).append(name)
        return {name: alike for names in by_root.values() for alike in [frozenset(names)] for name in names}

    def join(self, names: Iterable[str], sizes: Iterable[int]) -> None:
        """Record that symbols and sizes are equal; of sizes that differ, the first one stays."""
        roots = list(dict.fromkeys(self._root(name) for name in names))
        if not roots:
            return
        every = [*(self.sizes[root] for root in roots if root in self.sizes), *sizes]
        for root in roots[1:]:
            self.parents[root] = roots[0]
        if every:
            self.sizes.setdefault(roots[0], every[0])

    def _root(self, name: str) -> str:
        while (parent := self.parents.setdefault(name, name)) != name:
            name = parent
        return name


def equal_extents(statements: Sequence[Statement], sizes: Mapping[str, int]) -> EqualExtents:
    """Return which symbols of extents are equal, and to which constants; ``sizes`` are sizes of symbols."""
    equal = EqualExtents(sizes=dict(sizes))
    for statement in statements:
        for axes in _aligned_axes(statement):
            extents = [axis.visible for axis in axes if axis.kind != "b" or axis.expanded is not None]
            equal.join(
                [extent.name for extent in extents if isinstance(extent, Symbol)],
                [e.value for e in extents if isinstance(e, Constant) and type(e.value) is int],
            )
    return equal


def _aligned_axes(statement: Statement) -> Iterator[tuple[Axis, ...]]:
    """Yield the axes at each position of the operands and results of an expression that computes element by element."""
    try:
        call = call_of(Context(statement=statement, sizes={}, axes={}, shapes={}))
    except FuserLabError:
        return
    if call.op not in OPS or OPS[call.op].kind is not OpKind.POINTWISE:
        return
    values = [v for v in (*statement.results, *call.operands) if isinstance(v, Value) and v.axes is not None]
    ranks = {len(value.kept_axes) for value in values}
    if len(ranks) == 1:
        yield from zip(*(value.kept_axes for value in values), strict=True)

"""Which axes of a definition are mapped to each other, as in nvFuser's IdModel."""

from collections.abc import Iterable
from typing import Any

from fuser_lab.analysis.domain_map import axis_pairs
from fuser_lab.arguments import instance, short_text, takes
from fuser_lab.bindings.enums import IdMappingMode
from fuser_lab.errors import ArgumentTypeError, UnsupportedError
from fuser_lab.ir import Expr, IterDomain
from fuser_lab.nvfuser_direct import values
from fuser_lab.nvfuser_direct.recording import RecordedFusion

_MODES = {IdMappingMode.exact: False, IdMappingMode.broadcast: True, IdMappingMode.permissive: True}


class DisjointSets:
    """Axes in classes; an axis is in one class."""

    def __init__(self) -> None:
        self._parent: dict[int, int] = {}

    def add(self, axis: IterDomain) -> None:
        """Add an axis as a separate class, unless it is known."""
        self._parent.setdefault(axis.id, axis.id)

    def join(self, a: IterDomain, b: IterDomain) -> None:
        """Join the classes of two axes."""
        first, second = sorted((self._find(a.id), self._find(b.id)))
        self._parent[second] = first

    def _find(self, axis: int) -> int:
        while self._parent[axis] != axis:
            self._parent[axis] = self._parent[self._parent[axis]]
            axis = self._parent[axis]
        return axis

    def check(self, caller: str, *axes: object) -> None:
        """Raise ArgumentTypeError if the argument is not an axis of the fusion."""
        for axis in axes:
            if not isinstance(axis, values.IterDomain) or axis.axis.id not in self._parent:
                raise ArgumentTypeError(f"{caller}: {short_text(axis)} is not an axis of this fusion.")

    def strict_are_mapped(self, a: values.IterDomain, b: values.IterDomain) -> bool:
        """Whether two axes are in one class."""
        self.check("strict_are_mapped", a, b)
        return self._find(a.axis.id) == self._find(b.axis.id)

    def size(self) -> int:
        """Return the number of classes."""
        return len(self._classes())

    def _classes(self) -> dict[int, list[int]]:
        members: dict[int, list[int]] = {}
        for axis in sorted(self._parent):
            members.setdefault(self._find(axis), []).append(axis)
        return members

    def __str__(self) -> str:
        """Return the classes as numbers of axes."""
        lines = [f"  {{ {' '.join(map(str, members))} }}" for members in self._classes().values()]
        return "\n".join(["disjoint sets {", *lines, "}"])

    __repr__ = __str__


class ValGraph:
    """The classes of one mapping."""

    def __init__(self, sets: DisjointSets) -> None:
        self._sets = sets

    def disjoint_val_sets(self) -> DisjointSets:
        """Return the classes."""
        return self._sets

    def map_vals(self, a: values.IterDomain, b: values.IterDomain) -> None:
        """Join the classes of two axes.

        Raises
        ------
        ArgumentTypeError
            If one of them is not an axis of the fusion.
        """
        self._sets.check("map_vals", a, b)
        self._sets.join(a.axis, b.axis)

    def __str__(self) -> str:
        """Return the classes as numbers of axes."""
        return str(self._sets)

    __repr__ = __str__


class IdModel:
    """The mappings of a fusion's axes.

    ``exact`` joins axes that one loop runs over; ``broadcast`` and ``permissive`` also join a broadcast axis with the
    axis that it meets. The other modes raise UnsupportedError.
    """

    def __init__(self, fusion: object, **_: Any) -> None:
        fusion = getattr(fusion, "fusion", fusion)
        if not isinstance(fusion, RecordedFusion):
            raise ArgumentTypeError(f"IdModel: fusion must be a Fusion, given {type(fusion).__name__}.")
        self._fusion = fusion.recorder.snapshot(everything=True)
        self._graphs: dict[IdMappingMode, ValGraph] = {}

    @takes("IdModel", mode=instance(IdMappingMode))
    def maybe_build_graph(self, mode: IdMappingMode) -> ValGraph:
        """Return the graph of a mode, built once."""
        if mode not in self._graphs:
            self._graphs[mode] = ValGraph(self._sets(mode))
        return self._graphs[mode]

    id_graph = maybe_build_graph

    def _sets(self, mode: IdMappingMode) -> DisjointSets:
        if mode not in _MODES:
            raise UnsupportedError(f"IdModel: the mode {mode} is not supported; exact, broadcast and permissive are.")
        sets = DisjointSets()
        for tensor in self._fusion.tensors.values():
            for axis in (*(tensor.domain.root or ()), *tensor.domain.logical):
                sets.add(axis)
        for producer, consumer in self._pairs(self._fusion.exprs):
            if _MODES[mode] or producer.is_broadcast is consumer.is_broadcast:
                sets.join(producer, consumer)
        return sets

    @staticmethod
    def _pairs(exprs: Iterable[Expr]) -> Iterable[tuple[IterDomain, IterDomain]]:
        for expr in exprs:
            if not expr.tensor_outputs:
                continue
            for pair in axis_pairs(expr):
                yield pair.producer, pair.consumer
            # Results of one expression, such as Welford, have the same axes.
            first, *others = expr.tensor_outputs
            for other in others:
                if len(other.domain.logical) == len(first.domain.logical):
                    yield from zip(first.domain.logical, other.domain.logical, strict=True)

    def __str__(self) -> str:
        """Return the exact classes."""
        return str(self.maybe_build_graph(IdMappingMode.exact))

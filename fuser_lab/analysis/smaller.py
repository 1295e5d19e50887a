"""The same fusion with smaller extents: small enough to follow element by element."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import prod
from typing import Final

from fuser_lab.errors import FuserLabError, UnsupportedError, VerificationError
from fuser_lab.ir import AttrValue, Expr, Extent, Fusion, IterDomain, IterType, Scalar, TensorDomain, TensorView, Val
from fuser_lab.ops import OPS

_SHAPES: Final = frozenset({"shape", "new_shape"})
_PLACES: Final = frozenset({"start_indices", "end_indices", "pad_widths"})
_MOST_RELATED: Final = 6  # extents that are products or doubles of others
_KEPT: Final = 4  # extents up to this one are unchanged
# The new values of extents that must shrink: the first for the fastest axes, the rest for the others.
_SIZES: Final = ((16, 6, 5, 3, 7), (8, 4, 3, 5, 6), (8, 2, 3, 4, 5), (4, 2, 3, 4, 5))


def smaller(fusion: Fusion, most: int) -> tuple[Fusion, dict[int, int]]:
    """Return a fusion of the same ops without tensors of more than ``most`` elements, and the new value of each extent.

    Names do not change. Equal extents remain equal; a product of two extents remains a product, and twice an extent
    remains twice that extent. Constants keep their values, so the divisor of a mean is that of the large fusion: the
    result shows accesses, not values.

    Raises
    ------
    UnsupportedError
        If no choice of extents fits the ops.
    """
    largest = max((prod(tv.shape) for tv in fusion.tensors.values()), default=0)
    if largest <= most:
        return fusion, {}
    for sizes in _SIZES:
        for extents in _choices(fusion, sizes):
            try:
                resized = _Resizing(extents).run(fusion)
            except (FuserLabError, LookupError, ValueError):
                continue
            if max(prod(tv.shape) for tv in resized.tensors.values()) <= most:
                return resized, {old: new for old, new in extents.items() if old != new}
    raise UnsupportedError(
        f"the largest tensor of the segment has {largest} elements, and no smaller sizes fit its ops; "
        f"give inputs of at most {most} elements."
    )


def _choices(fusion: Fusion, sizes: Sequence[int]) -> Iterator[dict[int, int]]:
    """Yield candidates for the new extents: first with all products and doubles preserved, then with fewer."""
    there = {n for tv in fusion.tensors.values() for n in tv.shape}
    extents = sorted(n for n in there if n > _KEPT)
    largest = sorted((tv.shape for tv in fusion.tensors.values() if tv.ndim), key=prod, reverse=True)
    fastest = list(dict.fromkeys(shape[-1] for shape in largest))
    parts = {n: pair for n in extents if (pair := _parts(n, extents))}
    if len(parts) > _MOST_RELATED:
        return
    for count in range(len(parts), -1, -1):
        for derived in combinations(parts, count):
            free = [n for n in extents if n not in derived]
            base = [*(n for n in fastest if n in free), *(n for n in reversed(free) if n not in fastest)]
            if len(base) > len(sizes):
                continue
            choice = {n: n for n in there if n <= _KEPT}
            choice |= {n: min(n, size) for n, size in zip(base, sizes, strict=False)}
            for n in derived:
                choice[n] = prod(choice.get(part, part) for part in parts[n])
            yield choice


def _parts(extent: int, extents: Sequence[int]) -> tuple[int, int] | None:
    """Return two extents, or an extent and 2, whose product is this one."""
    pairs = ((a, extent // a) for a in sorted(extents, reverse=True) if 1 < a < extent and extent % a == 0)
    return next(((a, b) for a, b in pairs if b in extents or b == 2), None)


class _Resizing:
    def __init__(self, extents: Mapping[int, int]) -> None:
        self._extents = extents
        self._new: dict[Val, Val] = {}
        self._count = 0

    def run(self, fusion: Fusion) -> Fusion:
        inputs = tuple(self._input(value) for value in fusion.inputs)
        exprs = tuple(map(self._expr, fusion.exprs))

        def tensor(old: TensorView) -> TensorView:
            new = self._new[old]
            if not isinstance(new, TensorView):
                raise TypeError(new)
            return new

        return Fusion(
            inputs=inputs, exprs=exprs, outputs=tuple(map(tensor, fusion.outputs)), keeps_float=fusion.keeps_float,
        )

    def fresh(
        self, extent: Extent, kind: IterType = IterType.ITERATION, expanded: Extent | None = None,
    ) -> IterDomain:
        """Return a new axis, as shape rules request it."""
        self._count += 1
        return IterDomain(id=self._count, extent=extent, kind=kind, expanded=expanded)

    def copy(self, axis: IterDomain) -> IterDomain:
        """Return a new axis like another."""
        self._count += 1
        return replace(axis, id=self._count)

    def symbol(self) -> Scalar:
        """Raise: no rule needs an unknown size."""
        raise VerificationError("all sizes are known.")

    def _size(self, extent: object) -> int:
        return self._extents.get(extent, extent) if isinstance(extent, int) else int(str(extent))

    def _input(self, value: Val) -> Val:
        if isinstance(value, TensorView):
            self._new[value] = self._resize(value)
            return self._new[value]
        self._new[value] = value
        return value

    def _resize(self, tensor: TensorView) -> TensorView:
        axes = tuple(
            self.fresh(
                self._size(axis.extent), axis.kind, None if axis.expanded is None else self._size(axis.expanded),
            )
            for axis in tensor.domain.axes
        )
        domain = TensorDomain(
            logical=axes, allocation=tensor.domain.allocation, contiguity=tensor.domain.contiguity,
        )
        return replace(tensor, domain=domain)

    def _expr(self, expr: Expr) -> Expr:
        inputs = tuple(self._new.get(v, v) for v in expr.inputs)
        attrs = {name: self._attr(name, value) for name, value in expr.attrs}
        results = OPS[expr.op.name].infer(inputs, attrs, self)
        outputs: list[Val] = []
        for old, result in zip(expr.outputs, results, strict=True):
            new = old
            if isinstance(old, TensorView) and result.domain is not None:
                order = old.domain.allocation
                domain = result.domain if order is None else replace(result.domain, allocation=order, contiguity=None)
                new = TensorView(name=old.name, dtype=result.dtype, domain=domain)
            self._new[old] = new
            outputs.append(new)
        return Expr(op=expr.op, inputs=inputs, outputs=tuple(outputs), attrs=tuple(attrs.items()))

    def _attr(self, name: str, value: AttrValue) -> AttrValue:
        if name in _SHAPES and isinstance(value, tuple):
            return tuple(self._size(n) for n in value)
        if name in _PLACES and isinstance(value, tuple):
            return tuple(self._place(n) for n in value)
        return value

    def _place(self, value: object) -> int:
        """Return the begin or end of a slice, or the width of a pad: an extent, half of one, or a few elements."""
        if not isinstance(value, int) or value <= _KEPT:
            return int(str(value))
        return self._extents[value] if value in self._extents else self._extents[2 * value] // 2

"""Which axes of a fusion have a size that its definition leaves open."""

from dataclasses import dataclass
from functools import cached_property

from fuser_lab.analysis.domain_map import ExactMap, FusionLinks, exact_map
from fuser_lab.ir import Fusion, Scalar, TensorView


@dataclass(frozen=True, kw_only=True, eq=False)
class SymbolicAxes:
    """The axes of a definition without a constant size, computed when they are first asked for.

    A size that inputs have is constant if it is that of an axis mapped to one of constant size (nvFuser:
    preseg_passes/exact_mapped_extent_substitution.cpp:17-128); a size that is computed remains open. ``bound`` is the
    definition with all sizes known.
    """

    definition: Fusion
    bound: Fusion

    def has(self, tensor: TensorView, axis: int, exact: ExactMap) -> bool:
        """Return whether the size of an axis is open.

        A tensor that the definition does not have was made by a pass: its axes are open if those are that ``exact``, a
        map of some expressions around it, maps to them.
        """
        flags = self._flags
        if not flags or tensor.name in flags:
            return bool(flags) and flags[tensor.name][axis]
        number = exact.classes[tensor.name][axis]
        return any(
            flag and number == other
            for name in flags.keys() & exact.classes.keys()
            for flag, other in zip(flags[name], exact.classes[name], strict=True)
        )

    @cached_property
    def _flags(self) -> dict[str, tuple[bool, ...]]:
        definition = self.definition
        if definition.is_concrete:
            return {}
        exact = exact_map(FusionLinks(self.bound).of(self.bound.exprs))
        inputs = {v.name for v in definition.inputs}
        inputs |= {e.name for tv in definition.tensor_inputs for e in tv.extents if isinstance(e, Scalar)}
        sizes: dict[int, set[str]] = {}  # of each class: names of the sizes of its axes, "" if one is constant
        for name in definition.tensors.keys() & exact.classes.keys():  # sizes may have added tensors
            for number, extent in zip(exact.classes[name], definition.tensors[name].extents, strict=True):
                if not isinstance(extent, Scalar) or extent.name in inputs:
                    sizes.setdefault(number, set()).add(extent.name if isinstance(extent, Scalar) else "")
        constant: set[str] = set()
        joined = {""}
        while joined - constant:
            constant |= joined
            joined = set().union(*(names for names in sizes.values() if not constant.isdisjoint(names)))
        return {
            name: tuple(isinstance(extent, Scalar) and extent.name not in constant for extent in tensor.extents)
            for name, tensor in definition.tensors.items()
        }

"""Sizes for the inputs of a definition without inputs: from its own constants, and assumed where it has none."""

from collections.abc import Iterator, Mapping

from fuser_lab.analysis.domain_map import axis_pairs
from fuser_lab.definition.binding import Described, bind, described_as_defined
from fuser_lab.errors import FuserLabError
from fuser_lab.ir import Extent, Fusion, Scalar, TensorView

# Sizes in elements that are tried in turn where the definition has no constant: a small one, one with a factor of 3,
# and one that is longer than most slices.
_TRIED = (64, 96, 1024)


def assumed_inputs(fusion: Fusion) -> tuple[list[Described], tuple[str, ...]]:
    """Return inputs that a definition accepts, and which sizes were chosen, as sentences.

    Both are empty if a scalar is among the inputs or no sizes are found.
    """
    tensors = [value for value in fusion.inputs if isinstance(value, TensorView)]
    if len(tensors) < len(fusion.inputs):
        return [], ()
    constants = _constants(fusion)
    for size in _TRIED:
        shapes = [tuple(_size(extent, constants, size) for extent in tensor.extents) for tensor in tensors]
        found: list[Described] = [described_as_defined(t, shape) for t, shape in zip(tensors, shapes, strict=True)]
        chosen = ", ".join(
            f"{tensor.name} {list(shape)}" for tensor, shape in zip(tensors, shapes, strict=True)
            if tensor.extents != shape
        )
        if not chosen:
            return found, ()
        try:
            is_empty = bind(fusion, found).fusion.has_empty_tensor  # as the result of a slice beyond the end is
        except FuserLabError:
            continue
        if not is_empty:
            says = f"the script has no inputs; these sizes are assumed, as its constants require: {chosen}"
            return found, (says,)
    return [], ()


def _size(extent: Extent, constants: Mapping[str, int], usual: int) -> int:
    return constants.get(extent.name, usual) if isinstance(extent, Scalar) else extent


def _constants(fusion: Fusion) -> dict[str, int]:
    """Return the sizes that are equal to a constant, by name: those of axes that an op maps to one of constant size."""
    parents: dict[Extent, Extent] = {}

    def root(extent: Extent) -> Extent:
        while (parent := parents.setdefault(extent, extent)) != extent:
            extent = parent
        return extent

    for first, second in _equal(fusion):
        a, b = root(first), root(second)
        if a != b:
            # A constant stays the root of its class; of two that differ, the first does.
            parents[b if isinstance(a, int) else a] = a if isinstance(a, int) else b
    return {
        extent.name: size for extent in list(parents)
        if isinstance(extent, Scalar) and isinstance(size := root(extent), int)
    }


def _equal(fusion: Fusion) -> Iterator[tuple[Extent, Extent]]:
    for expr in fusion.tensor_exprs:
        for pair in axis_pairs(expr):
            if not pair.producer.is_broadcast and not pair.consumer.is_broadcast:
                yield pair.producer.extent, pair.consumer.extent

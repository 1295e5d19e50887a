"""Sizes for the inputs of a definition without inputs: from its own constants, and assumed where it has none."""

from collections.abc import Iterator, Mapping

from fuser_lab.analysis.domain_map import axis_pairs
from fuser_lab.definition.binding import Described, bind, described_as_defined
from fuser_lab.dtypes import DataType
from fuser_lab.errors import FuserLabError
from fuser_lab.ir import Extent, Fusion, Number, Scalar, TensorView

# Sizes in elements that are tried in turn where the definition has no constant: some with a factor of 3 or longer than
# most slices, then ever smaller ones.
_TRIED = (256, 96, 1024, 64, 16, 8, 4, 2, 1)


def assumed_inputs(fusion: Fusion) -> tuple[tuple[Described, ...], str] | None:
    """Return inputs that a definition accepts, and a sentence that says which sizes were chosen, or None.

    An open size is that of an axis of constant size to which an op maps it; all others are equal. Scalars are 1.
    """
    constants = _constants(fusion)
    for size in _TRIED:
        inputs = tuple(
            described_as_defined(value, [_size(extent, constants, size) for extent in value.extents])
            if isinstance(value, TensorView) else _number(value.dtype)
            for value in fusion.inputs
        )
        try:
            is_empty = bind(fusion, inputs).fusion.has_empty_tensor  # as the result of a slice beyond the end is
        except FuserLabError:
            continue
        if not is_empty or size == _TRIED[-1]:
            return inputs, _reason(fusion, constants, size)
    return None


def _reason(fusion: Fusion, constants: Mapping[str, int], size: int) -> str:
    extents = [extent for tensor in fusion.tensor_inputs for extent in tensor.extents if isinstance(extent, Scalar)]
    assumed = {_size(extent, constants, size) for extent in extents}
    fixed = sorted(assumed & set(constants.values()))
    says = f"No inputs are given, so open sizes are assumed to be {size}"
    if not fixed:
        return says
    shapes = ", ".join(
        f"{tensor.name} {[_size(extent, constants, size) for extent in tensor.extents]}"
        for tensor in fusion.tensor_inputs
    )
    return f"{says}, or what constants of the definition require: {shapes}"


def _number(dtype: DataType) -> Number:
    if dtype is DataType.Bool:
        return True
    return 1 if dtype.is_integral else 1.0


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

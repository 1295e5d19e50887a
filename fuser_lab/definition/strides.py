"""Strides of arrays as contiguity and stride order of nvFuser's tensors."""

from fuser_lab.errors import DefinitionError
from fuser_lab.ir import stride_order_of
from fuser_lab.ops.arguments import wholes


def describe_strides(
    sizes: object, strides: object, caller: str = "define_tensor",
) -> tuple[tuple[bool | None, ...], tuple[int, ...]]:
    """Return (contiguity, stride_order) of a tensor with these sizes and strides, both lists of ints, in elements.

    Stride-0 axes stay at their logical position; contiguity is None on axes of size 1 or stride 0.

    Raises
    ------
    ArgumentTypeError
        If they are not lists of ints.
    DefinitionError
        If the lengths differ or an entry is negative.
    """
    sizes = wholes(sizes, caller, "sizes")
    strides = wholes(strides, caller, "strides")
    if len(sizes) != len(strides):
        raise DefinitionError(f"{caller}: sizes has {len(sizes)} entries and strides {len(strides)}; they must agree.")
    for name, entries in (("sizes", sizes), ("strides", strides)):
        if any(n < 0 for n in entries):
            raise DefinitionError(f"{caller}: {name}={entries} has a negative entry; {name} are 0 or more.")
    order = sorted((i for i in range(len(sizes)) if strides[i]), key=lambda i: -strides[i])
    for axis in (i for i in range(len(sizes)) if not strides[i]):
        order.insert(axis, axis)
    flags: list[bool | None] = []
    expected = 1
    for axis in reversed(order):
        if sizes[axis] == 1 or not strides[axis]:
            flags.append(None)
            continue
        flags.append(strides[axis] == expected)
        expected = strides[axis] * sizes[axis]
    return tuple(reversed(flags)), stride_order_of(order)

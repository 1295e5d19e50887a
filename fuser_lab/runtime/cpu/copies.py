"""Copies in host memory between arrays whose fastest axes differ, by generated kernels.

Kernels transpose tiles and take a third to a tenth of the time of NumPy and torch, which are as fast as kernels where
the fastest axis is the same.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

from fuser_lab.codegen.kernel_ir import layout_of
from fuser_lab.codegen.pipeline import generate
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.dtypes import DataType
from fuser_lab.ops.rules import Array
from fuser_lab.runtime.arrays import flat_view
from fuser_lab.runtime.cpu.launcher import HostCall, host_calls
from fuser_lab.runtime.interrupts import interrupts_deferred

LEAST_TRANSPOSED = 1 << 16  # bytes; for fewer, a kernel saves less than 50 us, and compiling it takes 150 ms
_KEPT = 64  # the kernels of the most recent copies
# Kernels move elements of one size, whatever they mean.
_WORDS = {
    word.itemsize: word
    for word in (DataType.Char, DataType.Short, DataType.Int32, DataType.Int, DataType.ComplexDouble)
}


class _Axis(NamedTuple):
    """An axis of a copy, with the steps of both arrays in elements."""

    target: int
    source: int
    extent: int


class _Copy(NamedTuple):
    """A kernel that copies the elements in one range of memory to another range."""

    word: DataType
    source_size: int
    target_size: int
    call: HostCall
    source_is_first: bool  # of the arguments

    def __call__(self, target: Array, source: Array) -> None:
        """Copy the elements of arrays with the strides that the kernel is for."""
        read = flat_view(source, self.word, self.source_size, 0)
        written = flat_view(target, self.word, self.target_size, 0)
        self.call.on([read, written] if self.source_is_first else [written, read])


def copy_transposed(target: Array, source: Array) -> bool:
    """Copy elements with a kernel if that is faster than with the array library; return whether they were copied.

    Both arrays have the same shape and dtype, strides that are multiples of the size of an element, and no memory in
    common.
    """
    word = _WORDS.get(target.itemsize)
    if word is None or target.nbytes < LEAST_TRANSPOSED:
        return False
    axes = _axes(target, source)
    copy = _compiled_copy(word, axes) if _crosses(axes) and _is_simple(axes) else None
    if copy is not None:
        copy(target, source)
    return copy is not None


def _axes(target: Array, source: Array) -> tuple[_Axis, ...]:
    """Return the axes of a copy, the slowest of the target first; two that are one in both arrays are merged."""
    size = target.itemsize
    steps = zip(target.strides, source.strides, target.shape, strict=True)
    merged: list[_Axis] = []
    for axis in sorted((_Axis(t // size, s // size, n) for t, s, n in steps if n > 1), reverse=True):
        outer = merged[-1] if merged else None
        if outer is not None and (outer.target, outer.source) == (axis.target * axis.extent, axis.source * axis.extent):
            merged[-1] = axis._replace(extent=axis.extent * outer.extent)
        else:
            merged.append(axis)
    return tuple(merged)


def _crosses(axes: Sequence[_Axis]) -> bool:
    """Whether the fastest axis of the target is not that of the source; repeated elements have no fastest axis."""
    moving = [axis.source for axis in axes if axis.source]
    return bool(moving) and axes[-1].source > min(moving)


def _is_simple(axes: Sequence[_Axis]) -> bool:
    """Whether steps are forward, and each axis of the target steps over all elements of the faster ones."""
    least = 1
    for axis in reversed(axes):
        if axis.target < least or axis.source < 0:
            return False
        least = axis.target * axis.extent
    return True


@functools.lru_cache(maxsize=_KEPT)
def _compiled_copy(word: DataType, axes: tuple[_Axis, ...]) -> _Copy | None:
    """Return the compiled kernel of a copy; None if there is none, so that the array library copies."""
    with FusionBuilder() as fd:
        x = fd.define_tensor([axis.extent for axis in axes], dtype=word)
        fd.add_output(fd.ops.set(x))
    source, target = fd.fusion.tensor_inputs[0], fd.fusion.outputs[0]
    strides = {source.name: [axis.source for axis in axes], target.name: [axis.target for axis in axes]}
    try:
        kernel = generate(
            KernelRequest(fusion=fd.fusion, scheduler=SchedulerType.POINTWISE, name="copy", strides=strides),
        )
        with interrupts_deferred():
            (call,) = host_calls(kernel)
    except Exception:  # noqa: BLE001 - whatever is wrong with the kernel, the array library can copy
        return None
    sizes = {tensor.name: layout_of(tensor, strides[tensor.name]).size for tensor in (source, target)}
    return _Copy(word, sizes[source.name], sizes[target.name], call, call.arguments[0] == source.name)

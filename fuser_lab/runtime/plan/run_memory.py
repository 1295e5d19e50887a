"""The memory of a plan's runs: arrays of inputs and outputs for kernels, and storage for intermediates."""

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from fuser_lab.codegen.kernel_ir import ALIGNED, Layout, layout_of
from fuser_lab.cost.amounts import bytes_label
from fuser_lab.definition.binding import check_count
from fuser_lab.errors import InputError, OutOfMemoryError
from fuser_lab.ir import TensorView
from fuser_lab.runtime.arrays import is_torch, may_overlap
from fuser_lab.runtime.binding import (
    Slot,
    check_disjoint,
    check_outs,
    check_places,
    check_writable,
    checked_array,
    checked_scalar,
    itself,
    library_of,
    without_expansion,
)
from fuser_lab.runtime.environment import Environment
from fuser_lab.runtime.evaluate import Origin, apply_views
from fuser_lab.runtime.plan.generator import with_seeds
from fuser_lab.runtime.plan.memory import Memory
from fuser_lab.runtime.plan.parts import PlanParts
from fuser_lab.runtime.plan.variants import InputLayouts, ResultLayouts, Variant
from fuser_lab.targets import target_of

_NO_MEMORY = ("can't allocate memory", "out of memory", "OUT_OF_MEMORY", "ALLOC_FAILED")
_MOST_BYTES = (1 << 63) - (1 << 12)  # of one allocation, with padding for alignment
LEAST_PLACED = 1 << 16  # bytes of a result; copying fewer takes less time than compiling a kernel


def is_exhausted(error: Exception) -> bool:
    """Whether NumPy, torch, CuPy or the CUDA driver reports that memory is exhausted."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


class RunMemory:
    """Makes the environments of a plan's runs."""

    def __init__(
        self, parts: PlanParts, memory: Memory, release: Callable[[], None], *, keeps_layouts: bool = False,
    ) -> None:
        """Take the parts of a plan.

        ``release`` frees what is kept for later runs. ``keeps_layouts`` says that kernels write every result as in a
        new array.
        """
        self._parts, self._memory, self._release = parts, memory, release
        self._on_host = target_of(memory.target).on_host
        self._in_any_layout = _in_any_layout(parts) if self._on_host and not keeps_layouts else frozenset()

    # Inputs

    def imported(self, inputs: Sequence[Any]) -> list[Any]:
        """Return inputs as arrays of the memory and as Python numbers, checked against the fusion."""
        parts = self._parts
        inputs = with_seeds(parts.fusion, inputs) if parts.draws else inputs
        check_count(parts.fusion.inputs, inputs)
        load = self._memory.import_input
        try:
            imported = [
                load(checked_array(number, slot, value), slot.tensor) if isinstance(slot, Slot)
                else checked_scalar(number, slot, value)
                for number, (slot, value) in enumerate(zip(parts.inputs, inputs, strict=True))
            ]
        except Exception as error:
            if not is_exhausted(error):
                raise
        else:
            check_places(parts.indices, inputs, imported)
            return imported
        raise self.exhausted(max(parts.fusion.tensor_inputs, key=lambda tv: tv.nbytes))

    def layouts(self, arrays: Sequence[Any]) -> InputLayouts:
        """Return the layouts of imported inputs."""
        memory = self._memory
        return tuple((memory.element_strides(array), memory.alignment(array)) for array in self._tensors(arrays))

    def _tensors(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the inputs that are arrays of tensors."""
        return [array for slot, array in zip(self._parts.inputs, inputs, strict=True) if isinstance(slot, Slot)]

    def result_layouts(self, out: Sequence[Any] | None, arrays: Sequence[Any]) -> ResultLayouts:
        """Return the strides of arrays given for results that kernels write in another layout than in new arrays.

        Kernels write into new arrays instead if the given ones share memory with imported inputs.
        """
        if out is None or not self._in_any_layout:
            return ()
        check_outs(self._parts.returned, out)
        memory, layouts = self._memory, []
        for slot, value in zip(self._parts.returned, out, strict=True):
            if slot.name not in self._in_any_layout or not memory.is_writable(value) or not memory.is_native(value):
                continue
            array = memory.import_input(value, slot.tensor)
            strides = slot.normal(memory.element_strides(array))
            is_other = strides != slot.dense and _is_ordered(slot.shape, strides)
            if is_other and not any(may_overlap(array, x) for x in self._tensors(arrays)):
                layouts.append((slot.name, strides))
        return tuple(layouts)

    # Storage

    def environment(self, variant: Variant) -> Environment:
        """Return an environment with storage: an idle one, or a new one."""
        memory, tensors = self._memory, self._parts.fusion.tensors
        queue = memory.queue()
        for _ in range(len(variant.idle)):
            try:
                idle = variant.idle.pop()
            except IndexError:  # another thread took it
                break
            if idle.queue == queue:
                return idle
            # A run on another stream may still be using it.
            variant.idle.appendleft(idle)
        blocks: list[Any] = []
        for number, nbytes in enumerate(variant.storage.blocks):
            try:
                blocks.append(self._allocate(
                    self._largest_in(variant, number), functools.partial(memory.block, nbytes), nbytes,
                ))
            except OutOfMemoryError:
                # A reference to the error keeps this frame alive.
                blocks.clear()
                raise
        env = Environment(queue=queue)
        for name, (dtype, size) in variant.sizes.items():
            env.arguments[name] = memory.typed(blocks[variant.storage.block_of[name]], dtype, size)
            if name in tensors:
                env.arrays[name] = memory.logical(env.arguments[name], tensors[name])
        return env

    def without_callers(self, env: Environment, variant: Variant) -> None:
        """Drop the caller's arrays, and keep storage for the next run."""
        for name in self._parts.unstored:
            env.drop(name)
        for view in variant.views:
            env.drop(view.name)

    def _largest_in(self, variant: Variant, block: int) -> TensorView:
        """Return the largest tensor in a block; a workspace counts as the output of its kernel."""
        fusion = self._parts.fusion
        names = [name for name in variant.sizes if variant.storage.block_of[name] == block]
        tensors = [tv for name in names if (tv := fusion.tensors.get(name)) is not None]
        return max(tensors or fusion.outputs, key=lambda tv: tv.nbytes)

    def _fresh(self, slot: Slot) -> tuple[Any, Any]:
        """Return new memory for an output, and an array of it."""
        make = functools.partial(self._memory.fresh, slot.tensor.dtype, slot.layout.size)
        flat = self._allocate(slot.tensor, make, slot.nbytes)
        return flat, self._memory.logical(flat, slot.tensor)

    def _allocate(self, tensor: TensorView, make: Callable[[], Any], nbytes: int | None = None) -> Any:
        """Return new memory, or raise an OutOfMemoryError that names the tensor."""
        if nbytes is None or nbytes <= _MOST_BYTES:
            try:
                return make()
            except Exception as error:
                if not is_exhausted(error):
                    raise
        raise self.exhausted(tensor, nbytes)

    def exhausted(self, tensor: TensorView, nbytes: int | None = None) -> OutOfMemoryError:
        """Return the error for exhausted memory, after freeing storage kept for later runs."""
        self._release()
        free = self._memory.free_bytes()
        where = "host" if target_of(self._memory.target).on_host else self._memory.label()
        needed = tensor.nbytes if nbytes is None else nbytes
        amounts = bytes_label(needed) if free is None else f"{bytes_label(needed)} of {bytes_label(free)}"
        return OutOfMemoryError(
            f"not enough {where} memory for {tensor.name}, {tensor.dtype.ir_name} "
            f"{list(tensor.shape)}: {needed} bytes are needed{'' if free is None else f', {free} are free'} "
            f"({amounts}).",
        )

    # Outputs

    def filled(
        self, env: Environment, variant: Variant, inputs: Sequence[Any], arrays: Sequence[Any],
        out: Sequence[Any] | None,
    ) -> tuple[list[Any], Callable[[], None]]:
        """Put inputs and outputs into an environment; return the outputs and the actions to take after the run."""
        parts, memory = self._parts, self._memory
        env.library = library_of(inputs)[0]
        for slot, array in zip(parts.inputs, arrays, strict=True):
            if isinstance(slot, Slot):
                env.put(slot.name, memory.flat(array, slot.tensor.dtype, variant.layouts[slot.name]), array)
            else:
                env.arguments[slot.name] = array
        copies: list[tuple[Any, Slot]] = []
        written: dict[str, Any] = {}
        over: list[tuple[Any, TensorView]] = []
        for tensor, source in parts.fusion.aliases:
            written[source.name] = self._overwritten(source, inputs, arrays)
            over.append((written[source.name], tensor))
        outputs: list[Any] = [None] * len(parts.returned)
        if out is not None:
            check_outs(parts.returned, out)
            outputs = list(out)
            outs = [(slot, array) for slot, array in zip(parts.returned, out, strict=True) if array is not None]
            written.update((f"out for {slot.name}", without_expansion(slot.tensor, array)) for slot, array in outs)
            read = self._tensors(arrays)
            for slot, array in outs:
                self._place(env, slot, array, variant.layouts.get(slot.name, slot.layout), read, copies)
        check_disjoint(written)
        for slot in parts.computed:
            if slot.name not in env.arguments:
                env.put(slot.name, *self._fresh(slot))
        for alias in parts.result_aliases:
            flat = env.arguments[alias.result.name]
            env.put(alias.intermediate.name, flat, memory.logical(flat, alias.intermediate))
        for view in variant.views:
            env.put(view.name, env.arguments[view.base], apply_views(env.arrays[view.base], view.exprs, env.arguments))
        left = [place for place, array in enumerate(outputs) if array is None]

        def finish() -> None:
            kind, like = library_of(inputs) if left else ("", None)
            later: list[tuple[int, Slot, Origin]] = []
            for place in left:
                slot, origin = parts.returned[place], parts.returned_from[place]
                if origin is None:
                    outputs[place] = memory.export(env.arrays[slot.name], kind, like)
                elif origin.updated:
                    later.append((place, slot, origin))
                else:
                    base = None if origin.overwritten else itself(inputs[origin.number], kind, like)
                    outputs[place] = self._view(env, slot, origin, base, arrays[origin.number], kind, like)
            # Everything is read before anything is overwritten.
            sources = [
                *((target, self._result(env, slot, written.values())) for target, slot in copies),
                *((target, self._values_to_write(env, tensor)) for target, tensor in over),
            ]
            for target, array in sources:
                memory.copy(target, array)
            for place, slot, origin in later:
                base = itself(inputs[origin.number], kind, like)
                outputs[place] = self._view(env, slot, origin, base, env.arrays[origin.base.name], kind, like)

        return outputs, finish

    def _view(
        self, env: Environment, slot: Slot, origin: Origin, base: Any, array: Any, kind: str, like: Any,
    ) -> Any:
        """Return a result as a view of the caller's array, or as a copy if it is a view of another array."""
        if base is not None:
            # If the strides of the given array make a reshape copy, the copy needs memory.
            return self._allocate(slot.tensor, functools.partial(apply_views, base, origin.exprs, env.arguments))
        return self._memory.export(self._copy(slot, apply_views(array, origin.exprs, env.arguments)), kind, like)

    def _copy(self, slot: Slot, array: Any) -> Any:
        _, target = self._fresh(slot)
        self._memory.copy(target, array)
        return target

    def _place(
        self, env: Environment, slot: Slot, target: Any, layout: Layout, read: Sequence[Any],
        copies: list[tuple[Any, Slot]],
    ) -> None:
        """Let kernels write into an array of the caller, or schedule a copy if they cannot.

        They cannot if no kernel computes the output, if layout, device or alignment do not fit, or if kernels may read
        an input from the same memory.
        """
        memory, tensor = self._memory, slot.tensor
        if not memory.is_writable(target):
            raise InputError(f"out for {tensor.name}, of type {type(target).__name__}, cannot be written to.")
        if not memory.is_native(target) or self._parts.is_seen(tensor):
            copies.append((target, slot))
            return
        array = memory.import_input(target, tensor)
        strides = slot.normal(memory.element_strides(array))
        fits = layout_of(tensor, strides) == layout and memory.alignment(array) == ALIGNED
        if slot.name in env.arguments or not fits or any(may_overlap(array, x) for x in read):
            copies.append((array, slot))
            return
        env.put(slot.name, memory.flat(array, tensor.dtype, layout), array)

    def _result(self, env: Environment, slot: Slot, written: Collection[Any]) -> Any:
        """Return a computed result; a view of a tensor whose memory may be written is copied first."""
        origin = self._parts.origins.get(slot.tensor)
        if origin is None or not self._parts.is_seen(slot.tensor):
            return self._values_to_write(env, slot.tensor)
        view = apply_views(env.arrays[origin.base.name], origin.exprs, env.arguments)
        # On a GPU, the memory of arrays of every library is not known.
        apart = self._on_host and not any(may_overlap(view, array) for array in written)
        return view if apart else self._copy(slot, view)

    def _values_to_write(self, env: Environment, tensor: TensorView) -> Any:
        """Return the values to write over an input; an input is copied, because it may be overwritten as well."""
        array = env.arrays[tensor.name]
        return self._copy(self._parts.outputs[tensor.name], array) if tensor in self._parts.fusion.inputs else array

    def _overwritten(self, source: TensorView, inputs: Sequence[Any], arrays: Sequence[Any]) -> Any:
        """Return the array to write to for an input: the caller's array if the run computes with a copy of it."""
        number = self._parts.fusion.inputs.index(source)
        array, argument = arrays[number], inputs[number]
        check_writable(source.name, argument)
        if (is_torch(argument) or isinstance(argument, np.ndarray)) and not may_overlap(array, argument):
            array = argument
        return array


def _in_any_layout(parts: PlanParts) -> frozenset[str]:
    """Return the results that kernels may write in any layout, because no other tensor is in their memory."""
    if parts.fusion.aliases:
        return frozenset()
    shared = {alias.result.name for alias in parts.result_aliases}
    shared |= {origin.base.name for origin in parts.origins.values()} | {tv.name for tv in parts.origins}
    names = [slot.name for slot in parts.returned]
    computed = {slot.name for slot in parts.computed if slot.nbytes >= LEAST_PLACED}
    return frozenset(
        slot.name for slot in parts.returned
        if slot.name in computed - shared and names.count(slot.name) == 1 and slot.layout.size == slot.tensor.numel
    )


def _is_ordered(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether each axis with more than one element steps over all elements of the axes with shorter steps."""
    least = 1
    for step, extent in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if step < least:
            return False
        least = step * extent
    return True

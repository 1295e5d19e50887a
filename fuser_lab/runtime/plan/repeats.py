"""Runs of a plan that can be repeated with other arrays, made from a run that took the slow path."""

import ctypes
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fuser_lab.codegen.kernel_ir import ALIGNED
from fuser_lab.ir import Scalar
from fuser_lab.runtime.binding import Slot
from fuser_lab.runtime.environment import Environment
from fuser_lab.runtime.evaluate import needs_scalars, view_of
from fuser_lab.runtime.gpu.driver import Launches
from fuser_lab.runtime.gpu.ready import Block, Evaluated, ReadyRun, ReadyRuns, takes
from fuser_lab.runtime.plan.memory import Call, Memory
from fuser_lab.runtime.plan.parts import PlanParts
from fuser_lab.runtime.plan.variants import Variant
from fuser_lab.targets import target_of

if TYPE_CHECKING:
    from fuser_lab.runtime.cpu.host_ready import HostRun, HostRuns


def ready_runs_of(parts: PlanParts, memory: Memory) -> "ReadyRuns | HostRuns | None":
    """Return a store of runs that can be repeated with other arrays; None if a run is more than its calls.

    Each result has to be computed into a separate array or be a view of an input.
    """
    views = [origin for origin in parts.returned_from if origin is not None]
    returned = {slot.name for slot in parts.returned}
    seen = {s.name for s, origin in zip(parts.returned, parts.returned_from, strict=True) if origin is not None}
    # A segment may also compute a result that is a view of an input, for other segments to read.
    exact = {slot.name for slot in parts.computed} - seen == returned - seen
    distinct = len(returned) == len(parts.returned) and exact
    fusion = parts.fusion
    if not distinct or fusion.aliases or parts.draws or not takes(fusion.inputs):
        return None
    if any(origin.updated or origin.overwritten for origin in views):
        return None
    computed = [s for s, origin in zip(parts.returned, parts.returned_from, strict=True) if origin is None]
    if not target_of(memory.target).on_host:
        # Positions in a tensor are not checked on a GPU; positions that are numbers are.
        numbers = any(isinstance(fusion.inputs[index.number], Scalar) for index in parts.indices)
        return None if numbers else memory.ready_runs(computed)
    return memory.ready_runs(computed)


def repeatable_run(
    ready: "ReadyRuns | HostRuns", parts: PlanParts, memory: Memory, variant: Variant, env: Environment,
    inputs: Sequence[Any], outputs: Sequence[Any],
) -> "ReadyRun | HostRun | None":
    """Return a completed run for repetition; None if it was more than launches that wrote into the outputs.

    Parameters
    ----------
    ready
        The store of such runs.
    parts, memory, variant
        The plan's parts, its memory, and the variant that ran.
    env, inputs, outputs
        The memory and the values of the run.
    """
    aliases: dict[str, list[str]] = {alias.result.name: [alias.intermediate.name] for alias in parts.result_aliases}
    for view in variant.views:
        aliases.setdefault(view.base, []).append(view.name)
    if isinstance(ready, ReadyRuns):
        return _repeatable_launches(ready, parts, memory, variant, env, inputs, outputs, aliases)
    views = {view.name for view in variant.views}
    for step in variant.steps:
        if step.runs and step.generated is None and not views.isdisjoint(tv.name for tv in step.fusion.tensor_inputs):
            return None  # arrays of views do not begin at the address of their base
    calls = [call for calls in variant.calls for call in calls]
    return ready.again(
        calls, env, parts.inputs, parts.returned, parts.returned_from, inputs, outputs, aliases,
        makes_results=not variant.results,
    )


def _repeatable_launches(
    ready: ReadyRuns, parts: PlanParts, memory: Memory, variant: Variant, env: Environment, inputs: Sequence[Any],
    outputs: Sequence[Any], aliases: Mapping[str, Sequence[str]],
) -> ReadyRun | None:
    """Return a repeatable run on a GPU; ``aliases`` names intermediates in the memory of an input or a result."""
    origins = parts.returned_from
    computed = [slot for slot, origin in zip(parts.returned, origins, strict=True) if origin is None]
    made = [value for value, origin in zip(outputs, origins, strict=True) if origin is None]
    values, slots = [*inputs, *made], (*parts.inputs, *computed)
    if any(map(needs_scalars, origins)):
        return None
    for value, slot in zip(values, slots, strict=True):
        argument = env.arguments[slot.name]
        if not isinstance(slot, Slot):
            is_given = type(value) is type(argument)
        else:
            is_given = type(value) in ready.kinds and value.data_ptr() == argument.data_ptr()
        if not is_given:
            return None
    names = [(slot.name, *aliases.get(slot.name, ())) for slot in slots]
    calls = [call for calls in variant.calls for call in calls]
    is_launched = memory.launches(calls, env) is not None
    run_env = env.copy()  # keeps storage alive for the array library, but nothing of the caller
    for name in itertools.chain.from_iterable(names):
        run_env.drop(name)
    # Kernels that take the same tensor share one word, and the words of all tensors are in one block.
    block = bytearray(8 * len(slots)) if all(isinstance(slot, Slot) for slot in slots) else None
    words: dict[str, tuple[Any, ...]] = {}
    for place, tensor_names in enumerate(names if block is not None else ()):
        word = ctypes.c_uint64.from_buffer(block or bytearray(), 8 * place)
        word.value = values[place].data_ptr()
        words.update(dict.fromkeys(tensor_names, (word,)))
    blocks = _blocks(variant, memory, env, words) if is_launched else ()
    starts: list[Callable[[int], None]] = []
    for is_launch, group in itertools.groupby(calls, key=lambda call: memory.launches([call], env) is not None):
        if is_launch:
            starts.append(Launches(memory.launches(list(group), env, words) or ()))
        else:
            starts += [functools.partial(_evaluate, call, run_env) for call in group]
    evaluated = None
    if not all(isinstance(start, Launches) for start in starts):
        tensors = [(place, n) for place, slot in enumerate(slots) if isinstance(slot, Slot) for n in names[place]]
        evaluated = Evaluated(
            env=run_env, arrays=tuple((place, name, _form(env, slots[place].name, name)) for place, name in tensors),
            numbers=tuple((place, slot.name) for place, slot in enumerate(slots) if not isinstance(slot, Slot)),
        )
    run = ReadyRun(
        ready.kinds, memory.queue(), inputs, made,
        [
            tuple(word for name in (group if block is None else group[:1]) for word in words.get(name, ()))
            for group in names
        ],
        starts, blocks,
        alignments=[
            memory.alignment(x) if isinstance(slot, Slot) else ALIGNED
            for x, slot in zip(inputs, parts.inputs, strict=True)
        ],
        views=[None if o is None else view_of(o, inputs, x) for o, x in zip(origins, outputs, strict=True)],
        evaluated=evaluated,
        block=block,
    )
    return run if run.is_sound(values) else None


def _blocks(
    variant: Variant, memory: Memory, env: Environment, words: dict[str, tuple[Any, ...]],
) -> tuple[Block, ...]:
    """Return the memory of intermediates and workspaces; ``words`` gets its words by the names of values in it."""
    storage = variant.storage
    blocks = tuple(
        Block(nbytes=nbytes, word=ctypes.c_uint64(), new=functools.partial(memory.block, nbytes))
        for nbytes in storage.blocks
    )
    for name, number in storage.block_of.items():
        blocks[number].word.value = env.arguments[name].data_ptr()
        names = (name, *(view.name for view in variant.views if view.base == name))
        words.update(dict.fromkeys(names, (blocks[number].word,)))
    return blocks


def _evaluate(call: Call, env: Environment, stream: int) -> None:
    """Let the array library evaluate a segment; it uses the current stream."""
    del stream
    call(env)


def _form(env: Environment, base: str, name: str) -> tuple[Any, Any, int] | None:
    """Return the shape, strides and first element of a tensor in the memory of another; None for the tensor itself."""
    if name == base:
        return None
    array = env.arrays[name]
    return array.shape, array.stride(), array.storage_offset() - env.arrays[base].storage_offset()

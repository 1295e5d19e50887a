"""Runs of several plans as one launch, if each of them is one launch of independent blocks."""

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fuser_lab.codegen.kernel_list import ListPhase, list_kernel, may_be_listed
from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.runtime.environment import Environment
from fuser_lab.runtime.gpu.device import DeviceCall
from fuser_lab.runtime.gpu.driver import Launches
from fuser_lab.runtime.gpu.ready import DirectRun, ReadyRun


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRun:
    """One launch for a list of runs: ``put`` takes the addresses of the tensors at ``places``, then ``call`` launches.

    A place is the number of a run and the position of a tensor among its inputs and results.
    """

    generated: GeneratedKernel
    places: tuple[tuple[int, int], ...]
    put: Callable[..., None]
    call: Callable[[], None]


def listed_kernel(run: DirectRun) -> GeneratedKernel | None:
    """Return the kernel of a run that may be an entry of a list; None for other runs."""
    launch = run.launch if isinstance(run, ReadyRun) else None
    if launch is None or launch.generated is None or not may_be_listed(launch.generated):
        return None
    words = {id(word) for _, word in run.words}
    are_tensors = all(id(launch.words[b.name][0]) in words for b in launch.generated.kernel_ir.phases[0].buffers)
    return launch.generated if are_tensors else None


def list_run(runs: Sequence[DirectRun], load: Callable[[GeneratedKernel], Sequence[Any]]) -> ListRun:
    """Return runs that `listed_kernel` accepts as one launch; equal runs may be the same object.

    ``load`` returns the launches of a kernel, as `DeviceMemory.calls` does.

    Raises
    ------
    CompilationError
        If the compiler refuses the kernel of the list.
    """
    taken = [run for run in runs if isinstance(run, ReadyRun)]
    launches = [launch for run in taken if (launch := run.launch) is not None]
    generated, order = list_kernel([launch.generated for launch in launches if launch.generated is not None])
    (call,) = load(generated)
    phase = generated.kernel_ir.phases[0]
    assert isinstance(call, DeviceCall)
    assert isinstance(phase, ListPhase)
    block = bytearray(8 * len(phase.buffers))
    words: dict[str, tuple[ctypes.c_uint64]] = {}
    places: list[tuple[int, int]] = []
    for entry, number in enumerate(order):
        place_of = {id(word): place for place, word in taken[number].words}
        for buffer in phase.entries[entry].buffers:
            words[phase.listed(buffer.name, entry)] = (ctypes.c_uint64.from_buffer(block, 8 * len(places)),)
            places.append((number, place_of[id(launches[number].words[buffer.name][0])]))
    start = Launches((call.launch(Environment(), words),))
    return ListRun(
        generated=generated, places=tuple(places), call=functools.partial(start, taken[0].stream),
        put=functools.partial(struct.Struct(f"={len(places)}Q").pack_into, block, 0),
    )

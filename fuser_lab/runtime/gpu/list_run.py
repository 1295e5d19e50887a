"""Kernels of several plans as one launch, with its arguments in place."""

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fuser_lab.codegen.kernel_list import ListPhase, list_kernel
from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.runtime.environment import Environment
from fuser_lab.runtime.gpu.device import DeviceCall
from fuser_lab.runtime.gpu.driver import Launches
from fuser_lab.runtime.gpu.ready import DirectKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRun:
    """One launch for a list: ``put`` takes the addresses of the tensors at ``places``, then ``call`` launches.

    A place is the number of an entry's kernel and the position of a tensor among its inputs and results.
    """

    generated: GeneratedKernel
    places: tuple[tuple[int, int], ...]
    put: Callable[..., None]
    call: Callable[[], None]


def list_run(
    kernels: Sequence[DirectKernel], stream: int, load: Callable[[GeneratedKernel], Sequence[Any]],
) -> ListRun:
    """Return kernels that `may_be_listed` accepts as one launch on a stream.

    ``load`` returns the launches of a kernel, as `DeviceMemory.calls` does.

    Raises
    ------
    CompilationError
        If the compiler refuses the kernel of the list.
    """
    generated, order = list_kernel([kernel.generated for kernel in kernels])
    (call,) = load(generated)
    phase = generated.kernel_ir.phases[0]
    assert isinstance(call, DeviceCall)
    assert isinstance(phase, ListPhase)
    block = bytearray(8 * len(phase.buffers))
    words: dict[str, tuple[ctypes.c_uint64]] = {}
    places: list[tuple[int, int]] = []
    for entry, number in enumerate(order):
        for place, name in kernels[number].buffers.items():
            words[phase.listed(name, entry)] = (ctypes.c_uint64.from_buffer(block, 8 * len(places)),)
            places.append((number, place))
    start = Launches((call.launch(Environment(), words),))
    return ListRun(
        generated=generated, places=tuple(places), call=functools.partial(start, stream),
        put=functools.partial(struct.Struct(f"={len(places)}Q").pack_into, block, 0),
    )

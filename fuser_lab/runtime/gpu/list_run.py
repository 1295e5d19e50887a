"""Kernels of several plans as one launch, with its arguments in place."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fuser_lab.codegen.kernel_list import ListPhase, list_kernel
from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.runtime.gpu.address_words import address_words
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
    (phase,) = generated.kernel_ir.phases
    assert isinstance(phase, ListPhase)
    names: dict[str, tuple[int, int]] = {}  # with the places of their tensors
    for entry, number in enumerate(order):
        names |= {phase.listed(name, entry): (number, place) for place, name in kernels[number].buffers.items()}
    put, start = address_words(load(generated), list(names))
    return ListRun(
        generated=generated, places=tuple(names.values()), put=put, call=functools.partial(start, stream),
    )

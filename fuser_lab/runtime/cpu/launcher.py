"""Calls of compiled kernels with prepared argument lists."""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fuser_lab.codegen.kernel_ir import Kernel, Loop, Phase, Role, rewrite_statements, walk
from fuser_lab.codegen.pipeline import GeneratedKernel, generated_from
from fuser_lab.errors import MissingCompilerError, PositionError
from fuser_lab.ir.transform import ParallelType
from fuser_lab.runtime.environment import Environment

if TYPE_CHECKING:
    from fuser_lab.runtime.numba_compat import ParallelRegions


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCall:
    """One CPU function and the names of its arguments, followed by `sizes`; `regions` are those of a parallel one.

    It is a phase of a kernel. ``of_tensors`` is the same function of tensors of torch, and addresses as integers; None
    if there is none. The word ``missed``, whose address is the last of the sizes, is not 0 after a position was outside
    of its axis; None if the kernel looks at no positions.
    """

    kernel: Kernel
    phase: Phase
    function: Callable[..., None]
    of_tensors: Callable[..., None] | None
    arguments: tuple[str, ...]
    sizes: tuple[int | float, ...]
    regions: "ParallelRegions | None"
    missed: ctypes.c_int64 | None

    def __call__(self, env: Environment) -> None:
        """Run with arguments looked up by name, and check the positions."""
        values = env.arguments
        self.on([values[name] for name in self.arguments])
        self.check()

    def check(self) -> None:
        """Raise PositionError if a position was outside of its axis in the last run."""
        if self.missed is not None and self.missed.value:
            self.missed.value = 0
            raise PositionError(f"{self.kernel.name}: an index that it looks up is outside of its axis.")

    def on(self, values: list[Any]) -> None:
        """Run with arguments in order."""
        if self.regions is not None and not self.regions.free:
            self.regions.call(self.function, [*values, *self.sizes])
        else:
            self.function(*values, *self.sizes)

    def over(self, memory: Mapping[str, str]) -> "HostCall":
        """Return the call whose results are written to the memory of other arguments; ``memory`` has their names.

        The function still takes the argument of such a result, but neither reads nor writes it.
        """
        buffers = {buffer.name: buffer for buffer in self.phase.buffers}
        updated = {name: replace(buffers[name], role=Role.UPDATED) for name in memory.values()}
        moved = updated | {name: updated[source] for name, source in memory.items()}
        body = rewrite_statements(self.phase.body, lambda _: None, lambda buffer: moved.get(buffer.name, buffer))
        phase = replace(self.phase, body=body, buffers=tuple(updated.get(b.name, b) for b in self.phase.buffers))
        inputs = tuple(updated.get(buffer.name, buffer) for buffer in self.kernel.inputs)
        (call,) = host_calls(generated_from(replace(self.kernel, inputs=inputs, phases=(phase,))))
        return call


def host_calls(generated: GeneratedKernel) -> tuple[HostCall, ...]:
    """Return the calls of a compiled CPU kernel; arguments have the names of its buffers and scalars.

    Raises
    ------
    MissingCompilerError
        If Numba is not installed.
    """
    phases = generated.kernel_ir.phases
    if not phases:
        return ()
    try:
        from fuser_lab.runtime.cpu_kernels import entries_of
        from fuser_lab.runtime.numba_compat import PARALLEL
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"numba", "llvmlite"}:
            raise
        raise MissingCompilerError("CPU kernels are compiled by Numba, which is not installed.") from None
    functions = entries_of(generated.source, tuple(phase.name for phase in phases))
    words = [ctypes.c_int64() if phase.has_status else None for phase in phases]
    return tuple(
        HostCall(
            kernel=generated.kernel_ir, phase=phase, function=function, of_tensors=of_tensors,
            arguments=arguments_of(phase),
            sizes=(*(size.word for size in phase.sizes), *([] if word is None else [ctypes.addressof(word)])),
            regions=PARALLEL if _is_parallel(phase) else None, missed=word,
        )
        for (function, of_tensors), phase, word in zip(functions, phases, words, strict=True)
    )


def arguments_of(phase: Phase) -> tuple[str, ...]:
    """Return the names of a phase's buffers and scalars, in the order of its parameters."""
    return (*(b.name for b in phase.buffers), *(v.name for v in phase.scalars))


def _is_parallel(phase: Phase) -> bool:
    return any(isinstance(s, Loop) and s.parallel is ParallelType.grid_x for s in walk(phase.body))

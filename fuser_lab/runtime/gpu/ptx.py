"""Generated CUDA source as PTX, and PTX as machine code; neither needs a device."""

import importlib
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fuser_lab.codegen.emitter import TYPE_NAMES
from fuser_lab.codegen.kernel_ir import Phase
from fuser_lab.codegen.numba_cuda import pointed_name
from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.dtypes import DataType
from fuser_lab.errors import FuserLabError
from fuser_lab.runtime.compile import content_key, functions_of, refusal_error
from fuser_lab.runtime.cuda_compilers import compiler_named
from fuser_lab.runtime.interrupts import interrupts_deferred

_LONGEST_NAME = 1000  # letters: the name of an entry has the types of all parameters, and is in the name of each
HOPPER = (9, 0)  # compute capability that kernels are compiled for without a device


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledPhase:
    """One launch as PTX."""

    phase: Phase
    ptx: str
    entry: str


def listing(generated: GeneratedKernel) -> tuple[str, ...]:
    """Return the PTX of each phase with the source's lines, without its header comment and its tables for debuggers.

    Raises
    ------
    CompilationError, UnsupportedError
        As `compile_phases`.
    """
    return tuple(_shorten(phase.ptx) for phase in compile_phases(generated, lineinfo=True))


def _shorten(text: str) -> str:
    start = text.find(".visible")
    end = text.find(".section\t.debug")
    return text[max(start, 0): end if end > 0 else len(text)].rstrip()


def kernel_key(generated: GeneratedKernel) -> tuple[object, ...]:
    """Return a key of everything that determines the machine code of a kernel; kernels with equal keys may share it.

    The text is not enough, because element types and the shape of a block appear only in its comments. The number of
    blocks and the size of dynamic shared memory are arguments of the launch, like sizes.
    """
    return (
        content_key(generated.source),
        *(
            (replace(phase.launch, blocks=0, shared=0), tuple(map(pointed_name, phase.buffers)), _words(phase))
            for phase in generated.kernel_ir.phases
        ),
    )


def _words(phase: Phase) -> tuple[DataType, ...]:
    """Return the types of the parameters that are numbers."""
    return (*(v.dtype for v in phase.scalars), *(size.dtype for size in phase.sizes))


def compile_phases(
    generated: GeneratedKernel, cc: tuple[int, int] = HOPPER, *, lineinfo: bool = False,
) -> tuple[CompiledPhase, ...]:
    """Return the phases of a CUDA kernel as PTX for a compute capability; ``lineinfo`` adds the source's line numbers.

    Raises
    ------
    CompilationError
        If the compiler of kernels or NVVM refuses the source; the message names its file.
    UnsupportedError
        If the source's compiler is not installed.
    """
    if not generated.kernel_ir.phases:
        return ()
    with interrupts_deferred():
        # Loaded only now, because kernels whose machine code is on disk do not need it.
        compiler_named(generated.compiler).require()
        try:
            return _compile(generated, cc, lineinfo=lineinfo)
        except FuserLabError:
            raise
        except Exception as error:
            raise refusal_error(generated, f"cc {cc[0]}.{cc[1]}", error) from error


def _compile(generated: GeneratedKernel, cc: tuple[int, int], *, lineinfo: bool) -> tuple[CompiledPhase, ...]:
    compiler = compiler_named(generated.compiler)
    phases = generated.kernel_ir.phases
    functions = functions_of(generated.source, tuple(phase.name for phase in phases))
    compiled = []
    for phase, function in zip(phases, functions, strict=True):
        x, y = phase.launch.threads
        types = [pointed_name(b) for b in phase.buffers], [TYPE_NAMES[dtype] for dtype in _words(phase)]
        resident = phase.launch.resident
        compile_for = partial(
            compiler.compile_ptx, function, *types, cc=cc, threads=x * y, cluster=phase.launch.cluster,
            lineinfo=lineinfo,
        )
        ptx, entry = compile_for(resident=resident)
        while resident and spills(machine_code(ptx, cc)[1]):
            # Fewer blocks at a time are slower, and spilled registers are slower still.
            resident = (resident + 1) // 2 if resident > 1 else 0
            ptx, entry = compile_for(resident=resident)
        if len(entry) > _LONGEST_NAME:
            ptx, entry = ptx.replace(entry, phase.name), phase.name
        compiled.append(CompiledPhase(phase=phase, ptx=ptx, entry=entry))
    return tuple(compiled)


def spills(log: str) -> bool:
    """Whether the linker reports spilled registers."""
    return any(int(number) for number in re.findall(r"(\d+) bytes spill", log))


def machine_code(ptx: str, cc: tuple[int, int]) -> tuple[bytes, str]:
    """Return a cubin and the linker's report of registers and spills; with its cache, the linker reports nothing."""
    core: Any = importlib.import_module("cuda.core")
    options = core.LinkerOptions(arch=f"sm_{cc[0]}{cc[1]}", ptxas_options=["-v"], no_cache=True)
    linker = core.Linker(core.ObjectCode.from_ptx(ptx.encode()), options=options)
    code = linker.link("cubin")
    return bytes(code.code), str(linker.get_info_log())

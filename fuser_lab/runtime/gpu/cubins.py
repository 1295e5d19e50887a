"""Machine code of CUDA kernels, cached on disk by its source, so that a second process does not compile.

Reading it needs neither Numba nor a linker. A damaged or unreadable file is replaced.
"""

import base64
import contextlib
import functools
import hashlib
import importlib.metadata
import json
from dataclasses import dataclass

from fuser_lab.codegen.kernel_ir import Phase
from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.files.json_text import json_text
from fuser_lab.runtime import store
from fuser_lab.runtime.compile import refusal_error
from fuser_lab.runtime.cuda_compilers import distributions_of
from fuser_lab.runtime.gpu.ptx import CompiledPhase, compile_phases, kernel_key, machine_code
from fuser_lab.runtime.interrupts import interrupts_deferred
from fuser_lab.runtime.waiting import WAITING

_FORMAT = 3  # version of the files; part of their names, so that other versions are compiled again


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadablePhase:
    """One launch as machine code: a cubin, its entry, its PTX and the linker's report."""

    phase: Phase
    entry: str
    ptx: str
    cubin: bytes
    log: str


def machine_code_of(generated: GeneratedKernel, cc: tuple[int, int]) -> tuple[LoadablePhase, ...]:
    """Return the launches of a kernel as machine code for a compute capability, compiled if not on disk.

    Raises
    ------
    CompilationError
        If a compiler refuses the source.
    UnsupportedError
        If it has to be compiled and the source's compiler is not installed.
    """
    phases = generated.kernel_ir.phases
    place = _place(generated, cc)
    WAITING.claim(generated.source)
    loadable = _read(place, phases)
    if loadable is None:
        with interrupts_deferred():
            loadable = tuple(_link(generated, compiled, cc) for compiled in compile_phases(generated, cc))
        _write(place, loadable)
    return loadable


def is_cached(generated: GeneratedKernel, cc: tuple[int, int]) -> bool:
    """Whether the machine code of a kernel is on disk."""
    return store.has(_place(generated, cc))


def _link(generated: GeneratedKernel, compiled: CompiledPhase, cc: tuple[int, int]) -> LoadablePhase:
    try:
        cubin, log = machine_code(compiled.ptx, cc)
    except Exception as error:
        raise refusal_error(generated, f"sm_{cc[0]}{cc[1]}", error) from error
    return LoadablePhase(phase=compiled.phase, entry=compiled.entry, ptx=compiled.ptx, cubin=cubin, log=log)


@functools.cache
def _compilers(compiler: str) -> str:
    """Return a compiler and the versions that its machine code depends on, in addition to those in a kernel's key."""
    versions = [compiler]
    for name in distributions_of(compiler):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join(versions)


def _place(generated: GeneratedKernel, cc: tuple[int, int]) -> str:
    content = f"{_FORMAT}\n{_compilers(generated.compiler)}\n{kernel_key(generated)!r}"
    name = hashlib.sha256(content.encode()).hexdigest()[:32]
    return f"gpu_{name}.sm_{cc[0]}{cc[1]}.json"


def _read(place: str, phases: tuple[Phase, ...]) -> tuple[LoadablePhase, ...] | None:
    content = store.read(place)
    if content is None:
        return None
    try:
        return tuple(
            LoadablePhase(
                phase=phase, entry=record["entry"], ptx=record["ptx"], log=record["log"],
                cubin=base64.b64decode(record["cubin"], validate=True),
            )
            for phase, record in zip(phases, json.loads(content), strict=True)
        )
    except (ValueError, KeyError, TypeError):
        return None


def _write(place: str, loadable: tuple[LoadablePhase, ...]) -> None:
    launches = [
        {"entry": x.entry, "ptx": x.ptx, "log": x.log, "cubin": base64.b64encode(x.cubin).decode()} for x in loadable
    ]
    store.write(place, json_text(launches).encode())

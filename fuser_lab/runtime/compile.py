"""Generated source: its key, a file for readers, and the functions that it defines.

The generated source is executed directly, never read from the file.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fuser_lab.codegen.pipeline import GeneratedKernel, without_comments
from fuser_lab.errors import CompilationError
from fuser_lab.process.forks import new_lock
from fuser_lab.runtime import store
from fuser_lab.runtime.recent import Recent

# The modules of this package that machine code depends on.
_MACHINE_CODE = (
    "called_functions.py", "called_loops.py", "complex_functions.py", "cpu_kernels.py", "integer_functions.py",
    "intrinsics_cpu.py", "narrow_floats_cpu.py", "polynomials.py", "threads.py", "cpu/bits.py", "cpu/llvm_worker.py",
    "cpu/pipelines.py",
    *(f"cpu/elementary/{name}.py" for name in (
        "error_functions", "exponentials", "logarithms", "number", "remainders", "trigonometry",
    )),
    "cuda_compilers/*.py",
)
_MOST_SOURCES = 256  # sources whose functions stay in memory, the most recent ones

_DEFINED: Recent[str, Mapping[str, Any]] = Recent(_MOST_SOURCES)
_LOCK = new_lock()


@functools.cache
def _fingerprint() -> str:
    """Return a hash of everything, except the source, that the machine code depends on."""
    # This does not import Numba, which is not needed for machine code for a GPU from disk.
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("numba", "numpy")]
    digest = hashlib.sha256(", ".join(versions).encode())
    for pattern in _MACHINE_CODE:
        for place in sorted(Path(__file__).parent.glob(pattern)):
            digest.update(place.read_bytes())
    return digest.hexdigest()


def content_key(source: str) -> str:
    """Return the key of a kernel, which ignores comments."""
    return hashlib.sha256(f"{_fingerprint()}\n{without_comments(source)}".encode()).hexdigest()[:32]


def source_path(source: str) -> Path | None:
    """Return the file that generated source is written to, for users and profilers; None without a directory."""
    name = f"seg_{content_key(source)}.py"
    path = store.write_text(name, source)
    with contextlib.suppress(OSError):
        if path is None:
            path = _private() / name
            path.write_text(source, encoding="utf-8")
        return path
    return None


def refusal_error(generated: GeneratedKernel, target: str, error: Exception) -> CompilationError:
    """Return the error to raise if a compiler refuses a kernel; the message names the file of its source."""
    said = str(error).strip().partition("\n")[0] or type(error).__name__
    place = source_path(generated.source)
    location = f" (its source is in {place})" if place is not None else ""
    return CompilationError(f"the kernel {generated.kernel_ir.name} does not compile for {target}: {said}{location}.")


@functools.cache
def _private() -> Path:
    return Path(tempfile.mkdtemp(prefix="fuser_lab_"))


def defined_in(source: str, file: str = "") -> dict[str, Any]:
    """Return the names that generated source defines; its functions report ``file`` as their file."""
    names: dict[str, Any] = {}
    exec(compile(source, file or f"seg_{content_key(source)}.py", "exec"), names)  # noqa: S102 - our own source
    return names


def functions_of(source: str, names: tuple[str, ...]) -> tuple[Callable[..., Any], ...]:
    """Return the named functions of generated CUDA source; the same source gives the same functions while in use."""
    key = content_key(source)
    functions = _DEFINED.get(key)
    if functions is None:
        with _LOCK:
            functions = _DEFINED.get(key) or _DEFINED.keep(key, defined_in(source, str(source_path(source) or "")))
    return tuple(functions[name] for name in names)

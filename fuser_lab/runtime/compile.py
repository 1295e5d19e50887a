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

from fuser_lab.codegen.pipeline import without_comments
from fuser_lab.forks import new_lock
from fuser_lab.runtime import store
from fuser_lab.runtime.cuda_compilers import function_sources
from fuser_lab.runtime.recent import Recent

_MACHINE_CODE = (
    "bits_cpu.py", "called_functions.py", "called_loops.py", "complex_functions.py", "cpu_kernels.py",
    "intrinsics_cpu.py", "llvm_worker.py", "narrow_floats_cpu.py", "pipelines.py", "polynomials.py", "threads.py",
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
    for name in _MACHINE_CODE:
        digest.update((Path(__file__).parent / name).read_bytes())
    for text in function_sources().values():
        digest.update(text.encode())
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

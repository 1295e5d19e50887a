"""Generated source becomes functions: written to a file named by its content, imported, kept.

Numba's own on-disk cache then works as for any module, so that a second process compiles nothing.

Kernels lie in ``kernels`` below the directory that the environment variable ``FUSER_LAB_CACHE`` names, or else below
the user's cache directory (``~/.cache/fuser_lab`` on Linux); in a temporary directory if neither can be written. The
first kernel of a process removes the oldest ones where there are more than `MOST_FILES` files or `MOST_BYTES` bytes.
Any of the files may be deleted, cut short or written over at any time: what is not as it was made is made again.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from fuser_lab.runtime.compiled_files import note_compiled, remove_compiled, sound_files

MOST_BYTES = 512 << 20
MOST_FILES = 10_000
_KEPT_SHARE = 0.8  # of the limits, so that not every process has something to remove
_MACHINE_CODE = (
    "intrinsics_cpu.py", "intrinsics_cuda.py", "llvm_worker.py", "pipelines.py", "polynomials.py", "threads.py",
)
_YOUNG = 600  # seconds in which another process may just be writing or reading what it wrote

_MODULES: dict[str, ModuleType] = {}
_LOCK = threading.Lock()
_KEY_LOCKS: dict[str, threading.Lock] = {}


def cache_directory() -> Path:
    """Return the directory of generated kernels; a temporary one if the configured one cannot be written."""
    return _writable(os.environ.get("FUSER_LAB_CACHE") or str(_user_cache()))


@functools.cache
def _writable(configured: str) -> Path:
    place = Path(configured).expanduser() / "kernels"
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            return place
    except OSError:
        return Path(tempfile.mkdtemp(prefix="fuser_lab_"))


def _user_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", "~")) / "fuser_lab"
    if sys.platform == "darwin":
        return Path("~/Library/Caches/fuser_lab")
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "fuser_lab"


@functools.cache
def _fingerprint() -> str:
    """Return a hash of what the machine code depends on besides the source."""
    # Numba is not imported to be asked: what is on disk as machine code for a GPU needs no Numba.
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("numba", "numpy")]
    digest = hashlib.sha256(", ".join(versions).encode())
    for name in _MACHINE_CODE:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()


def content_key(source: str) -> str:
    """Return the name of a kernel file; comments do not count."""
    code = "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("#"))
    return hashlib.sha256(f"{_fingerprint()}\n{code}".encode()).hexdigest()[:32]


def load_source(source: str) -> ModuleType:
    """Return the module made of generated source, the same one for the same content."""
    key = content_key(source)
    module = _MODULES.get(key)
    if module is not None:
        return module
    with _LOCK:
        lock = _KEY_LOCKS.setdefault(key, threading.Lock())
    with lock:
        if key not in _MODULES:
            _MODULES[key] = _loaded(key, source)
        return _MODULES[key]


def _loaded(key: str, source: str) -> ModuleType:
    path = _written(key, source)
    compiled = sound_files(path)
    try:
        return _import(key, path, compiled)
    except OSError:
        # Another process has removed or changed the file between the two steps, or the disk is full.
        remove_compiled(path)
    except Exception:
        if path.exists() and not compiled:
            raise
        # What was compiled before is whole and cannot be read: before the source is blamed, it is compiled again.
        remove_compiled(path)
    try:
        return _import(key, _written(key, source), ())
    except OSError:
        return _import(key, _placed(_private(), key, source), ())


@functools.cache
def _bounded(place: Path) -> Path:
    """Return a directory of kernels after bounding it, once per process."""
    remove_oldest(place)
    return place


def remove_oldest(place: Path, most_bytes: int = MOST_BYTES, most_files: int = MOST_FILES) -> None:
    """Remove the oldest kernels of a directory, with what was compiled from them, if there are too many.

    Parameters
    ----------
    place
        A directory of kernels; other processes may write to it, read it or remove from it at the same time.
    most_bytes, most_files
        More than one of these, and kernels are removed until a fifth of both is free.
    """
    kernels: dict[str, list[tuple[Path, float, int]]] = {}
    for folder in (place, place / "__pycache__"):
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_file(follow_symlinks=False):
                        stat = entry.stat(follow_symlinks=False)
                        name = entry.name.partition(".")[0]
                        kernels.setdefault(name, []).append((Path(entry.path), stat.st_mtime, stat.st_size))
    files = sum(len(found) for found in kernels.values())
    size = sum(n for found in kernels.values() for _, _, n in found)
    if files <= most_files and size <= most_bytes:
        return
    now = time.time()
    ages = sorted((max(changed for _, changed, _ in found), name) for name, found in kernels.items())
    for changed, name in ages:
        if changed > now - _YOUNG or (files <= _KEPT_SHARE * most_files and size <= _KEPT_SHARE * most_bytes):
            return
        # The source last: without it, nothing would lead to the rest.
        for path, _, nbytes in sorted(kernels[name], key=lambda file: file[0].parent == place):
            with contextlib.suppress(OSError):
                path.unlink()
            files, size = files - 1, size - nbytes


def functions_of(source: str, names: tuple[str, ...]) -> tuple[Callable[..., Any], ...]:
    """Return the named functions of generated source, compiled."""
    module = load_source(source)
    return tuple(getattr(module, name) for name in names)


def is_compiled(source: str) -> bool:
    """Whether a CPU kernel is loaded, or its machine code on disk."""
    key = content_key(source)
    return key in _MODULES or any((cache_directory() / "__pycache__").glob(f"seg_{key}.*.nbc"))


def source_path(source: str) -> Path:
    """Return the file that generated source is kept in, written if need be."""
    return _written(content_key(source), source)


def _written(key: str, source: str) -> Path:
    """Return the file that holds a source, in a directory of this process where the common one does not take it."""
    try:
        return _placed(_bounded(cache_directory()), key, source)
    except OSError:
        return _placed(_private(), key, source)


@functools.cache
def _private() -> Path:
    return Path(tempfile.mkdtemp(prefix="fuser_lab_"))


def _placed(folder: Path, key: str, source: str) -> Path:
    """Return the file; it appears whole or not at all, and is not touched again while its content is what it was."""
    place = folder / f"seg_{key}.py"
    if not _holds(place, key):
        handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(source)
            # The file that another process has written meanwhile stays: its time is part of Numba's key.
            if not _holds(place, key):
                Path(temporary).replace(place)
        finally:
            Path(temporary).unlink(missing_ok=True)
    return place


def _holds(place: Path, key: str) -> bool:
    """Whether a file holds the source that it is named by, comments aside."""
    try:
        return content_key(place.read_text(encoding="utf-8")) == key
    except (OSError, ValueError):
        return False


def _import(key: str, path: Path, compiled: tuple[Path, ...]) -> ModuleType:
    """Return the module made of a file; what is compiled beyond ``compiled`` is noted."""
    text = path.read_text(encoding="utf-8")
    if content_key(text) != key:
        msg = f"{path} has been changed."
        raise OSError(msg)
    name = f"fuser_lab_kernel_{key}"
    module = ModuleType(name)
    module.__file__ = str(path)
    # Numba finds the module by name when it reads its cache: it must be known before it runs.
    sys.modules[name] = module
    try:
        # Not by Python's loader, whose bytecode on disk might be that of something else.
        exec(compile(text, path, "exec"), vars(module))  # noqa: S102 - generated source, compared with its name
    except BaseException:
        del sys.modules[name]
        raise
    note_compiled(path, compiled)
    return module

"""What Numba has compiled of a kernel, on disk: noted with its checksums, and removed where it is something else.

Numba reads its files without looking at them: one that is cut short ends in an exception of some kind, machine code
with other bytes in a crash or in wrong values. Files are noted after they are written and compared before they are
read. Where several processes write at once a note may be older than a file, which then is made again.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path

_SUFFIXES = (".nbi", ".nbc")


def sound_files(source: Path) -> tuple[Path, ...]:
    """Return the files compiled from a source that are as they were written; if one of them is not, all are removed.

    Parameters
    ----------
    source
        The file with the source; what is compiled from it lies in ``__pycache__`` beside it.
    """
    files = _files(source)
    if not files:
        return ()
    try:
        noted = json.loads(_note(source).read_text(encoding="utf-8"))
        sound = {file.name: _checksum(file) for file in files} == noted
    except (OSError, ValueError):
        sound = False
    if sound:
        return files
    remove_compiled(source)
    return ()


def remove_compiled(source: Path) -> None:
    """Remove what was compiled from a source; other processes may be reading it or removing it as well."""
    for file in (*_files(source), _note(source)):
        with contextlib.suppress(OSError):
            file.unlink()


def note_compiled(source: Path, known: tuple[Path, ...]) -> None:
    """Note the files compiled from a source, if they are others than those known; a full disk costs time, no more."""
    files = _files(source)
    if files == known:
        return
    with contextlib.suppress(OSError):
        text = json.dumps({file.name: _checksum(file) for file in files})
        handle, temporary = tempfile.mkstemp(dir=source.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(temporary).replace(_note(source))
        finally:
            Path(temporary).unlink(missing_ok=True)


def _note(source: Path) -> Path:
    return source.with_suffix(".sums")


def _files(source: Path) -> tuple[Path, ...]:
    with contextlib.suppress(OSError), os.scandir(source.parent / "__pycache__") as entries:
        start = f"{source.stem}."
        names = (entry.name for entry in entries if entry.name.startswith(start))
        return tuple(source.parent / "__pycache__" / name for name in sorted(names) if name.endswith(_SUFFIXES))
    return ()


def _checksum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()

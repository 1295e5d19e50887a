"""A bound on a directory of kernels: the oldest files are removed if there are too many."""

import contextlib
import os
import time
from pathlib import Path

MOST_BYTES = 512 << 20  # bytes of a directory
MOST_FILES = 10_000  # files of a directory
_KEPT_SHARE = 0.8  # of the limits, so that not every process has to remove files
_YOUNG = 600  # seconds in which another process may still be writing or reading a file


def remove_oldest(place: Path, most_bytes: int = MOST_BYTES, most_files: int = MOST_FILES) -> None:
    """Remove the oldest files of a directory if there are too many.

    Parameters
    ----------
    place
        A directory; other processes may write to it, read it or remove from it at the same time.
    most_bytes, most_files
        Limits; if one is exceeded, files are removed until a fifth of both is free.
    """
    cached_files: list[tuple[float, str, int]] = []
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_file(follow_symlinks=False):
                    stat = entry.stat(follow_symlinks=False)
                    cached_files.append((stat.st_mtime, entry.path, stat.st_size))
    files, size = len(cached_files), sum(nbytes for _, _, nbytes in cached_files)
    if files <= most_files and size <= most_bytes:
        return
    now = time.time()
    for changed, path, nbytes in sorted(cached_files):
        if changed > now - _YOUNG or (files <= _KEPT_SHARE * most_files and size <= _KEPT_SHARE * most_bytes):
            return
        with contextlib.suppress(OSError):
            Path(path).unlink()
        files, size = files - 1, size - nbytes

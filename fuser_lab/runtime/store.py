"""Files that are kept on disk between processes: owned by this user, authenticated, and read without blocking.

Files are in ``kernels`` below the directory that the environment variable ``FUSER_LAB_CACHE`` names, or below the
user's cache directory by default (``~/.cache/fuser_lab`` on Linux). Anyone who can write there could have machine code
run, so:

* A directory is used only if it belongs to this user and no one else may write to it; new directories are accessible to
  the user only (mode 0700). Otherwise a `CacheWarning` is issued once, and nothing is stored.
* Each file begins with an HMAC of its name and content, under a secret of the user that is stored elsewhere (`secret`).
  Content with a different HMAC counts as missing.
* Directories are opened and checked first, and files are opened relative to them. Links are not followed, opening a
  FIFO does not block, and the opened file itself is checked, so nothing can be exchanged between the check and the use.

No function here raises an error: content that cannot be read or written is simply made again.
"""

import contextlib
import functools
import hashlib
import hmac
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fuser_lab.errors import CacheWarning, warn
from fuser_lab.process.forks import new_lock
from fuser_lab.runtime.oldest import remove_oldest

MOST_FILE_BYTES = 64 << 20  # bytes of the largest file that is read
_FOLDER = "kernels"
_MAGIC = b"fuser_lab 1\n"
_DIGEST = 32  # bytes
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_POSIX = os.name == "posix"
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_OPEN_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)

_WARNED: set[str] = set()
_LOCK = new_lock()


class _UntrustedError(Exception):
    """Another user may write to a directory."""


class _Folder:
    """An open directory that belongs to this user; files are named relative to it."""

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.path, self.descriptor = path, descriptor

    def read(self, name: str, most: int = MOST_FILE_BYTES) -> bytes | None:
        """Return the content of a regular file of limited size; None for anything else."""
        try:
            descriptor = os.open(self._name(name), _READ, dir_fd=self.descriptor)
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > most:
                return None
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return file.read(most)
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def write(self, name: str, content: bytes, *, keep: bool = False) -> None:
        """Write a file atomically; raise OSError if it cannot be written.

        With ``keep``, a file that another process has written meanwhile stays.
        """
        temporary = f"{secrets.token_hex(8)}.tmp"
        try:
            with os.fdopen(os.open(self._name(temporary), _WRITE, 0o600, dir_fd=self.descriptor), "wb") as file:
                file.write(content)
            move = os.link if keep and _POSIX else os.replace
            with contextlib.suppress(FileExistsError):
                move(self._name(temporary), self._name(name), src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(self._name(temporary), dir_fd=self.descriptor)

    def _name(self, name: str) -> str:
        return name if self.descriptor is not None else str(self.path / name)


def read(name: str) -> bytes | None:
    """Return what `write` stored under a name, ``"file"`` or ``"folder/file"``; None if missing or changed."""
    key = secret()
    if key is None:
        return None
    with _open(name) as (folder, file):
        content = folder.read(file) if folder is not None else None
    start = len(_MAGIC) + _DIGEST
    if content is None or not content.startswith(_MAGIC):
        return None
    sealed = hmac.compare_digest(content[len(_MAGIC) : start], _seal(key, name, content[start:]))
    return content[start:] if sealed else None


def write(name: str, content: bytes) -> None:
    """Store content under a name for `read`, if a directory is available."""
    key = secret()
    if key is None or len(content) + len(_MAGIC) + _DIGEST > MOST_FILE_BYTES:
        return
    with _open(name) as (folder, file), contextlib.suppress(OSError):
        if folder is not None:
            _bound(folder.path)
            folder.write(file, _MAGIC + _seal(key, name, content) + content)


def write_text(name: str, text: str) -> Path | None:
    """Write a file for people to read, which is never read back; return its path, or None without a directory."""
    with _open(name) as (folder, file), contextlib.suppress(OSError):
        if folder is not None:
            _bound(folder.path)
            folder.write(file, text.encode("utf-8"))
            return folder.path / file
    return None


def is_usable() -> bool:
    """Whether another process of this user can read what is written."""
    if secret() is None:
        return False
    with _open("file") as (folder, _):
        return folder is not None and os.access(folder.path, os.W_OK)


def has(name: str) -> bool:
    """Whether a file exists under a name; its content is not checked."""
    with _open(name) as (folder, file):
        return folder is not None and (folder.path / file).is_file()


@functools.cache
def _bound(place: Path) -> None:
    """Bound the size of a directory, once per process."""
    remove_oldest(place)


def _seal(key: bytes, name: str, content: bytes) -> bytes:
    return hmac.digest(key, hashlib.sha256(name.encode()).digest() + content, "sha256")


# Directories


def configured_folder() -> Path:
    """Return the directory that the user names, or the system's default; it need not exist."""
    return Path(os.environ.get("FUSER_LAB_CACHE") or _usual("cache")).expanduser()


def _usual(kind: str) -> Path:
    """Return the system's directory for a user's caches, or for other data."""
    windows, mac, variable, linux = {
        "cache": ("LOCALAPPDATA", "Caches", "XDG_CACHE_HOME", "~/.cache"),
        "data": ("APPDATA", "Application Support", "XDG_DATA_HOME", "~/.local/share"),
    }[kind]
    if sys.platform == "win32":
        return Path(os.environ.get(windows, "~")) / "fuser_lab"
    if sys.platform == "darwin":
        return Path("~/Library") / mac / "fuser_lab"
    return Path(os.environ.get(variable) or linux) / "fuser_lab"


def directory() -> Path | None:
    """Return the directory of the files, created if necessary; None if there is no trusted directory."""
    with _open("file") as (folder, _):
        return None if folder is None else folder.path


@contextmanager
def _open(name: str) -> Iterator[tuple[_Folder | None, str]]:
    """Return the opened directory of a name, or None, and the name in it."""
    *folders, file = name.split("/")
    with contextlib.ExitStack() as stack:
        folder: _Folder | None = None
        try:
            base = configured_folder()
            str(base).encode("utf-8")  # messages and compilers need a printable path
            folder = stack.enter_context(_walk(base, (_FOLDER, *folders)))
        except _UntrustedError as error:
            _tell(str(error))
        except (OSError, RuntimeError, ValueError):
            pass  # no home, no permission, a file instead of a directory, or an unprintable path
        yield folder, file


@contextmanager
def _walk(base: Path, inner: tuple[str, ...]) -> Iterator[_Folder]:
    """Return a directory below another one, both created if necessary, after checking each directory on the path."""
    _make(base)
    path = base.joinpath(*inner)
    if not _POSIX:
        path.mkdir(parents=True, exist_ok=True)
        yield _Folder(path, None)
        return
    link = base.lstat()
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in {os.geteuid(), 0}:
        raise _UntrustedError(f"{base} is a link that belongs to another user")
    descriptor = os.open(base, _OPEN_FOLDER)
    try:
        _check(base, descriptor)
        here = base
        for name in inner:
            here /= name
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=descriptor)
            outer, descriptor = descriptor, os.open(name, _OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(outer)
            _check(here, descriptor)
            if os.fstat(descriptor).st_mode & _OTHERS:  # created by an earlier version
                os.fchmod(descriptor, 0o700)
        yield _Folder(path, descriptor)
    finally:
        os.close(descriptor)


def _make(folder: Path) -> None:
    """Create a directory and its parents, each accessible to this user only."""
    if not folder.is_dir():
        if folder.parent != folder:
            _make(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)


def _check(path: Path, descriptor: int) -> None:
    """Raise if an open directory belongs to another user, or others may write to it."""
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        raise _UntrustedError(f"{path} belongs to another user")
    if status.st_mode & _OTHERS_WRITE:
        raise _UntrustedError(f"users other than its owner may write to {path} (chmod go-w changes that)")


def _tell(why: str) -> None:
    with _LOCK:
        if why in _WARNED:
            return
        _WARNED.add(why)
    msg = f"Compiled kernels are not cached on disk: {why}; set FUSER_LAB_CACHE to a directory of your own."
    warn(msg, CacheWarning)


# The secret


def secret() -> bytes | None:
    """Return the bytes that only this user knows, created at the first call; None if they cannot be stored.

    They are in ``fuser_lab/cache_key`` below the user's data directory (``~/.local/share`` on Linux), readable by the
    user only.
    """
    try:
        return _secret(_usual("data").expanduser())
    except _UntrustedError as error:
        _tell(str(error))
    except (OSError, RuntimeError, ValueError):
        pass
    return None


@functools.lru_cache(maxsize=4)
def _secret(place: Path) -> bytes:
    with _walk(place, ()) as folder:
        shared_secret = _known_secret(folder)
        if shared_secret is None:
            # Of processes that create one at the same time, the first one's secret is that of all.
            with contextlib.suppress(OSError):  # a file system may have no links
                folder.write("cache_key", secrets.token_bytes(_DIGEST), keep=True)
            shared_secret = _known_secret(folder)
        if shared_secret is None:  # the file is not a valid secret
            folder.write("cache_key", secrets.token_bytes(_DIGEST))
            shared_secret = _known_secret(folder)
    if shared_secret is None:
        raise OSError(f"the secret in {place} differs from the one that was written.")
    return shared_secret


def _known_secret(folder: _Folder) -> bytes | None:
    """Return the secret in a directory; None if there is none or others may have read it."""
    if folder.descriptor is not None:
        try:
            status = os.stat("cache_key", dir_fd=folder.descriptor, follow_symlinks=False)
        except OSError:
            return None
        if status.st_uid != os.geteuid() or status.st_mode & _OTHERS:
            return None
    content = folder.read("cache_key", most=_DIGEST + 1)
    return content if content is not None and len(content) == _DIGEST else None

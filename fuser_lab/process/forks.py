"""What a forked process makes new: locks, and what belongs to threads and processes that only its parent has.

The child of a fork has one thread, a copy of the one that forked. A lock that another thread held would stay locked for
ever, a queue would wait for threads that do not exist, and a pipe leads to a process that answers the parent. Only this
module calls ``os.register_at_fork``:

* `renew_in_forks` and `new_lock` register a lock, condition or event, which is free in a child.
* `after_fork` registers a function that drops what only the parent has.
* `fork_waits_for` registers a lock of code that must not be copied half-way, such as LLVM, which has locks of its own.
  A fork also waits for the imports of other threads, because the import system's locks would stay locked.

Code that holds a lock calls no function that may fork, so the thread that forks holds none that is renewed.
"""

import _imp
import concurrent.futures.thread  # noqa: F401 - see `_before`
import functools
import importlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any, TypeVar

LONGEST_WAIT = 60.0  # seconds that a fork waits for others; by then, a thread waits for the one that forks
LONGEST_IMPORT = 20.0  # seconds; a longer import runs a program: torch takes 1.4, and 13 with four processes per core
_POLL = 0.001  # seconds between two looks at the imports of other threads

T = TypeVar("T", bound=threading.Condition | threading.Event | Any)  # the types of locks are private to `_thread`

_RENEWED: weakref.WeakSet[Any] = weakref.WeakSet()
_RESETS: "list[Callable[[], Callable[[], object] | None]]" = []  # weak if they are bound methods
_AWAITED: list[weakref.ref[Any]] = []  # a copy of a list is made at once, while other threads register locks
_MODULE_LOCKS: "dict[str, Callable[[], Any]]" = getattr(importlib._bootstrap, "_module_locks", {})  # noqa: SLF001
_HELD: dict[int, list[Any]] = {}  # what was acquired for a fork, by the thread that forks


def renew_in_forks(primitive: T) -> T:
    """Return a lock, condition or event that is free in a child, even if threads of the parent hold or await it."""
    _RENEWED.add(primitive)
    return primitive


def new_lock() -> threading.Lock:
    """Return a lock that is free in a child."""
    return renew_in_forks(threading.Lock())


def after_fork(reset: Callable[[], object]) -> None:
    """Call a function in each child, after its locks are free; a bound method only as long as its object exists."""
    _RESETS.append(weakref.WeakMethod(reset) if isinstance(reset, MethodType) else lambda: reset)


def fork_waits_for(lock: Any) -> None:
    """Make forks wait until no other thread holds a lock, which is free in a child."""
    _AWAITED.append(weakref.ref(lock, _AWAITED.remove))


def _awaited_locks() -> list[Any]:
    return [lock for each in tuple(_AWAITED) if (lock := each()) is not None]


def _foreign_imports() -> list[Any]:
    """Return the locks of modules that other threads import, or are about to: they hold a lock before they own it.

    A lock exists as long as a thread refers to it, so a caller that keeps this list keeps imports from ending.
    """
    locks = [made() for made in tuple(_MODULE_LOCKS.values())]
    return [lock for lock in locks if lock is not None and lock.owner != threading.get_ident()]


class _Imports:
    """The import system as a lock that no other thread holds while none of them imports a module."""

    def __init__(self) -> None:
        self._in_vain: weakref.WeakSet[Any] = weakref.WeakSet()  # imports that are not awaited again

    def acquire(self, *, timeout: float) -> bool:
        """Wait until the other threads have imported their modules, and let none begin to import another one."""
        start = time.monotonic()
        while True:
            _imp.acquire_lock()
            if self._in_vain.issuperset(_foreign_imports()):
                return True
            waited = time.monotonic() - start
            if waited >= LONGEST_IMPORT:
                self._in_vain.update(_foreign_imports())
            _imp.release_lock()
            if waited >= timeout:
                return False
            time.sleep(_POLL)

    def release(self) -> None:
        """Let other threads import modules."""
        _imp.release_lock()

    def _at_fork_reinit(self) -> None:
        """Leave the lock itself to CPython, which renews it in each child."""

    def forget(self) -> None:
        """Forget the imports of threads that a child does not have."""
        foreign = _foreign_imports()
        for name in [name for name, made in _MODULE_LOCKS.items() if made() in foreign]:
            del _MODULE_LOCKS[name]


_IMPORTS = _Imports()
fork_waits_for(_IMPORTS)
after_fork(_IMPORTS.forget)


def _before() -> None:
    """Wait for the other threads, in the thread that forks.

    Modules that register functions for forks both before and after are imported earlier, at the top of this file: if
    another thread imported them during the wait, only those of after the fork would be called.
    """
    held = _HELD[threading.get_ident()] = []
    _acquire(held, time.monotonic() + LONGEST_WAIT)


def _acquire(held: list[Any], end: float) -> None:
    """Acquire locks in any order; after ``end``, those that are free.

    While a thread waits for one, it holds no other, so threads that acquire several of them in another order finish.
    An import for which it waits may register locks, such as that of a compiler, which another thread then holds.
    """
    busy: list[Any] = []
    while True:
        left = max(end - time.monotonic(), 0)
        locks = [*busy, *(lock for lock in _awaited_locks() if lock not in busy)]
        for place, lock in enumerate(locks):
            if lock.acquire(timeout=0 if place else left):
                held.append(lock)
        busy = [lock for lock in _awaited_locks() if lock not in held]
        if not busy or not left:
            return
        while held:
            held.pop().release()


def _in_parent() -> None:
    for lock in reversed(_HELD.pop(threading.get_ident(), [])):
        lock.release()


def _in_child() -> None:
    """Make everything new that is registered."""
    held = _HELD.pop(threading.get_ident(), [])
    _HELD.clear()
    for lock in reversed(held):
        lock.release()
    for primitive in (*(lock for lock in _awaited_locks() if lock not in held), *_RENEWED, *_property_locks()):
        primitive._at_fork_reinit()  # noqa: SLF001 - as the standard library does, which has no public name for it
    for reset in tuple(_RESETS):
        call = reset()
        if call is None:
            _RESETS.remove(reset)
        else:
            call()


def _property_locks() -> list[Any]:
    """Return the locks of the package's cached properties, which Python 3.11 has, one per property."""
    if sys.version_info >= (3, 12):
        return []
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] in _PACKAGES]
    classes = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    properties: list[Any] = [
        value for made in classes for value in vars(made).values() if isinstance(value, functools.cached_property)
    ]
    return [value.lock for value in properties]


_PACKAGES = frozenset({"fuser_lab", "fuser_lab_widgets"})

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)

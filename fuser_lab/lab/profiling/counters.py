"""Bytes that a CPU reads from memory, by its hardware counters (Linux)."""

import contextlib
import ctypes
import fcntl
import os
import platform
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fuser_lab.errors import UnsupportedError

LINE: Final = 64  # bytes of a cache line
CACHE_MISSES: Final = (0, 3)  # PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_MISSES
PAGE_FAULTS: Final = (1, 2)  # PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS
_CALLS: Final = {"x86_64": 298, "aarch64": 241}  # numbers of perf_event_open
_SIZE: Final = 128  # bytes of perf_event_attr
_FLAGS: Final = 1 << 0 | 1 << 5 | 1 << 6  # initially disabled, without the kernel and the hypervisor
_ENABLE, _DISABLE = 0x2400, 0x2401


@contextmanager
def count_events(event: tuple[int, int] = CACHE_MISSES) -> Iterator[Callable[[], int]]:
    """Count an event of all current threads of the process; yield a function that reads the count.

    Raises
    ------
    UnsupportedError
        If the system does not count it: not Linux, no such counter, as in most virtual machines, or no permission
        (``/proc/sys/kernel/perf_event_paranoid``).
    """
    files: list[int] = []
    try:
        files += [_open_counter(int(thread), event) for thread in _threads()]
        for file in files:
            fcntl.ioctl(file, _ENABLE, 0)
        yield lambda: sum(struct.unpack("q", os.read(file, 8))[0] for file in files)
    finally:
        for file in files:
            with contextlib.suppress(OSError):
                fcntl.ioctl(file, _DISABLE, 0)
            os.close(file)


def _threads() -> list[str]:
    try:
        return [thread.name for thread in Path("/proc/self/task").iterdir()]
    except OSError:
        raise UnsupportedError(f"hardware counters are read on Linux only; this is {platform.system()}.") from None


def _open_counter(thread: int, event: tuple[int, int]) -> int:
    call = _CALLS.get(platform.machine())
    if call is None:
        msg = f"hardware counters: the number of perf_event_open is not known for {platform.machine()}."
        raise UnsupportedError(msg)
    attributes = bytearray(_SIZE)
    struct.pack_into("IIQ", attributes, 0, event[0], _SIZE, event[1])
    struct.pack_into("Q", attributes, 40, _FLAGS)
    libc = ctypes.CDLL(None, use_errno=True)
    held = (ctypes.c_char * _SIZE).from_buffer(attributes)
    file = int(libc.syscall(call, held, thread, -1, -1, 0))
    if file < 0:
        why = os.strerror(ctypes.get_errno())
        raise UnsupportedError(f"hardware counters: the system does not count this event ({why}).")
    return file

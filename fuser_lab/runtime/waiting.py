"""The queue of kernels that other processes compile; a caller that needs a kernel earlier removes it."""

import threading
from dataclasses import dataclass, field

from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.process.forks import renew_in_forks

Capability = tuple[int, int] | None  # None for the CPU
Compilation = tuple[GeneratedKernel, Capability]

_ALIVE_SECONDS = 0.5  # interval for checking that the thread that waits for a process is alive


@dataclass(slots=True, eq=False)
class Running:
    """A kernel that a process is compiling."""

    thread: threading.Thread = field(default_factory=threading.current_thread)
    done: threading.Event = field(default_factory=lambda: renew_in_forks(threading.Event()))


class Waiting:
    """Kernels in groups, by their source, and those being compiled; ``changed`` guards both."""

    def __init__(self) -> None:
        self.groups: list[dict[str, Compilation]] = []
        self.running: dict[str, Running] = {}
        self.changed = renew_in_forks(threading.Condition())

    def forget(self) -> None:
        """Drop everything, as the child of a fork must."""
        self.groups, self.running = [], {}

    def __contains__(self, source: object) -> bool:
        """Whether a kernel is waiting or being compiled."""
        with self.changed:
            return source in self.running or any(source in group for group in self.groups)

    def claim(self, source: str) -> None:
        """Take a kernel from the queue, or wait until the process that is compiling it has finished."""
        with self.changed:
            for group in self.groups:
                group.pop(source, None)
            running = self.running.get(source)
        while running is not None and running.thread.is_alive() and not running.done.wait(_ALIVE_SECONDS):
            pass


WAITING = Waiting()

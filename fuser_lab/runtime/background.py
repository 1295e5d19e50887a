"""Kernels that other processes compile while this one does something else.

Whoever captures a model knows all of its kernels long before the first of them runs. `IN_BACKGROUND` hands them to
processes that leave machine code on disk. A kernel that is needed earlier is taken back, or waited for if a process is
compiling it.
"""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from fuser_lab.codegen.generate import GeneratedKernel
from fuser_lab.runtime import ahead, store

IDLE_SECONDS = 5.0  # after which a process without work ends
_ALIVE_SECONDS = 0.5  # between two questions whether the thread that waits for a process is still there


@dataclass(slots=True, eq=False)
class _Running:
    """A kernel that a process is compiling."""

    thread: threading.Thread = field(default_factory=threading.current_thread)
    done: threading.Event = field(default_factory=threading.Event)


class Background:
    """CPU kernels in groups, in the order in which they will run.

    Processes take from the end of the first group, because the process that needs them begins at its front.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._groups: list[dict[str, GeneratedKernel]] = []
        self._running: dict[str, _Running] = {}
        self._workers = 0
        self._changed = threading.Condition()

    def add(self, kernels: Sequence[GeneratedKernel]) -> None:
        """Have kernels compiled; nothing happens if they are few, or if there is no cache or second processor."""
        if not store.is_usable() or ahead.processors() < 2:
            return
        from fuser_lab.runtime.cpu_kernels import is_compiled

        group = {
            kernel.source: kernel for kernel in kernels
            if kernel.kernel_ir.phases and kernel.source not in self and not is_compiled(kernel.source)
        }
        with self._changed:
            if group:
                self._groups.append(group)
            waiting = sum(map(len, self._groups))
            wanted = min(ahead.processors() - 1, waiting // ahead.EACH, ahead.MOST_WORKERS) - self._workers
            if waiting < ahead.SHARED_FROM:
                wanted = 0
            for _ in range(wanted):
                self._workers += 1
                threading.Thread(target=self._serve, name="kernels in the background", daemon=True).start()
            self._changed.notify_all()

    def __contains__(self, source: object) -> bool:
        """Whether a kernel is waiting or being compiled."""
        with self._changed:
            return source in self._running or any(source in group for group in self._groups)

    def claim(self, source: str) -> None:
        """Take a kernel out of what is waiting, or wait until the process that is compiling it is done."""
        with self._changed:
            for group in self._groups:
                group.pop(source, None)
            running = self._running.get(source)
        while running is not None and running.thread.is_alive() and not running.done.wait(_ALIVE_SECONDS):
            pass

    def _taken(self) -> GeneratedKernel | None:
        """Return the next kernel, waiting for it; None if there is none for a while."""
        with self._changed:
            self._changed.wait_for(lambda: any(self._groups), IDLE_SECONDS)
            self._groups = [group for group in self._groups if group]
            if not self._groups:
                self._workers -= 1
                return None
            source, kernel = self._groups[0].popitem()
            self._running[source] = _Running()
            return kernel

    def _serve(self) -> None:
        """Give a process kernels until there are none, or until it has ended."""
        with ahead.processes(1) as started:
            while (kernel := self._taken()) is not None:
                is_answered = bool(started) and ahead.asked(started[0], kernel, None)
                with self._changed:
                    self._running.pop(kernel.source).done.set()
                    if not is_answered:  # whoever needs the others compiles them
                        self._workers -= 1
                        self._groups = self._groups if self._workers else []
                        return


IN_BACKGROUND = Background()
if hasattr(os, "register_at_fork"):  # a child has neither the threads nor their locks in a known state
    os.register_at_fork(after_in_child=IN_BACKGROUND._reset)  # noqa: SLF001

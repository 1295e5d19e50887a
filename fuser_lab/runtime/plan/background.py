"""Background compilation of kernels in other processes.

The kernels of a captured model are known before the first of them runs. `IN_BACKGROUND` passes them, while others are
still generated, to processes that write machine code to disk. A kernel that is needed earlier is removed from the
queue, or awaited if a process is compiling it.
"""

import threading
from collections.abc import Iterable

from fuser_lab.process.forks import after_fork
from fuser_lab.runtime import store
from fuser_lab.runtime.plan import ahead
from fuser_lab.runtime.processors import processors
from fuser_lab.runtime.waiting import WAITING, Compilation, Running, Waiting

IDLE_SECONDS = 5.0  # idle time after which a process ends


class Background:
    """Kernels in groups, in the order in which they will run.

    Compiler processes take kernels from the end of the first group, because the process that needs them starts at its
    front.
    """

    def __init__(self, waiting: Waiting | None = None) -> None:
        self._waiting = Waiting() if waiting is None else waiting
        self._workers = 0

    def forget(self) -> None:
        """Drop all kernels, as the child of a fork must, which has no threads that feed processes."""
        self._waiting.forget()
        self._workers = 0

    def add(self, kernels: Iterable[Compilation]) -> None:
        """Queue kernels as one group, each as soon as it is generated.

        Do nothing without a cache or a second processor, and compile nothing if few kernels wait.
        """
        if not store.is_usable() or processors() < 2:
            return
        group: dict[str, Compilation] = {}
        seen: set[str] = set()  # equal kernels are looked for once
        for kernel, cc in kernels:
            if kernel.source in seen or not kernel.kernel_ir.phases:
                continue
            seen.add(kernel.source)
            if kernel.source in self or ahead.is_compiled(kernel, cc):
                continue
            with self._waiting.changed:
                if not group:  # processes may have taken all earlier kernels, and dropped the group
                    self._waiting.groups = [*filter(None, self._waiting.groups), group]
                group[kernel.source] = kernel, cc
                self._start()

    def _start(self) -> None:
        """Start processes for the waiting kernels, and wake those that are idle."""
        waiting = sum(map(len, self._waiting.groups))
        if waiting >= ahead.SHARED_FROM:
            for _ in range(min(processors() - 1, waiting // ahead.EACH, ahead.MOST_WORKERS) - self._workers):
                self._workers += 1
                threading.Thread(target=self._serve, name="kernels in the background", daemon=True).start()
        self._waiting.changed.notify()

    def __contains__(self, source: object) -> bool:
        """Whether a kernel is waiting or being compiled."""
        return source in self._waiting

    def claim(self, source: str) -> None:
        """Take a kernel from the queue, or wait until the process that is compiling it has finished."""
        self._waiting.claim(source)

    def _take(self) -> Compilation | None:
        """Wait for the next kernel and return it; None after a timeout."""
        with self._waiting.changed:
            self._waiting.changed.wait_for(lambda: any(self._waiting.groups), IDLE_SECONDS)
            self._waiting.groups = [group for group in self._waiting.groups if group]
            if not self._waiting.groups:
                self._workers -= 1
                return None
            source, taken = self._waiting.groups[0].popitem()
            self._waiting.running[source] = Running()
            return taken

    def _serve(self) -> None:
        """Feed kernels to a process until none remains or it has ended."""
        with ahead.processes(1) as started:
            while (taken := self._take()) is not None:
                kernel, cc = taken
                is_answered = bool(started) and ahead.ask(started[0], kernel, cc)
                with self._waiting.changed:
                    self._waiting.running.pop(kernel.source).done.set()
                    if not is_answered:  # callers compile the remaining kernels when they need them
                        self._workers -= 1
                        self._waiting.groups = self._waiting.groups if self._workers else []
                        return


IN_BACKGROUND = Background(WAITING)
after_fork(IN_BACKGROUND.forget)

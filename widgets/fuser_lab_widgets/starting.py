"""Work beside the kernel's loop: in a thread, or where there are none, as in a browser's Python, between two events."""

import asyncio
import threading
from collections.abc import Callable


class Postponed:
    """Work that runs when the running event loop is next idle, or when it is waited for."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work
        try:
            asyncio.get_running_loop().call_soon(self.join)
        except RuntimeError:  # without a loop, only `join` runs it
            return

    def is_alive(self) -> bool:
        """Whether the work has not run yet."""
        return self._work is not None

    def join(self, timeout: float | None = None) -> None:
        """Run the work unless it has run; ``timeout`` cannot end it."""
        del timeout
        work, self._work = self._work, None
        if work is not None:
            work()


def start_work(work: Callable[[], None], pause: Callable[[], object] = lambda: None) -> threading.Thread | Postponed:
    """Return a daemon thread that runs a function after a pause, or if no thread can start, postponed work."""
    def run() -> None:
        pause()
        work()

    thread = threading.Thread(target=run, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return Postponed(work)
    return thread

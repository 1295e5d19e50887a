"""Long computations, one at a time beside the kernel's loop, so that the kernel stays responsive."""

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from fuser_lab.errors import FuserLabError
from fuser_lab.process.ending import ending_when
from fuser_lab.process.forks import renew_in_forks
from fuser_lab_widgets.starting import Postponed, start_work

PAUSE: Final = 0.3  # seconds, in which a page of 60 ops is painted: Python's threads would keep it waiting


class Background:
    """Runs a function beside the kernel's loop and passes its result, or the sentence of an error, to a callback.

    The function begins after a ``pause`` in seconds, or as soon as its result is waited for.
    """

    def __init__(self, *, pause: float = 0.0) -> None:
        self._thread: threading.Thread | Postponed | None = None
        self._pause = pause
        self._stop = renew_in_forks(threading.Event())
        self._begin = renew_in_forks(threading.Event())
        self.is_closed = False

    @property
    def busy(self) -> bool:
        """Whether a computation is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(
        self, find: Callable[[], Any], tell: Callable[[Any, str], None], *, seconds: float | None = None,
    ) -> bool:
        """Start and return True, or return False while busy or once closed; ``seconds`` limit a search."""
        if self.busy or self.is_closed:
            return False
        self._stop = stop = renew_in_forks(threading.Event())
        self._begin = begin = renew_in_forks(threading.Event())
        self._thread = start_work(lambda: self._run(find, tell, seconds, stop), lambda: begin.wait(self._pause))
        return True

    def cancel(self) -> None:
        """Abandon the computation: its result is not reported, and another may start at once."""
        self._stop.set()
        self._begin.set()
        self._thread = None

    def close(self) -> None:
        """Abandon the computation, and start no other."""
        self.is_closed = True
        self.cancel()

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the result."""
        self._begin.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(
        self, find: Callable[[], Any], tell: Callable[[Any, str], None], seconds: float | None, stop: threading.Event,
    ) -> None:
        if stop.is_set():
            return
        end = None if seconds is None else time.monotonic() + seconds
        answer, problem = None, ""
        try:
            with ending_when(lambda: stop.is_set() or (end is not None and time.monotonic() >= end)):
                answer = find()
        except FuserLabError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is shown, not lost in a thread
            problem = f"The search failed: {type(error).__name__}: {error}"
        if not stop.is_set():
            tell(answer, problem)

"""Long questions, one at a time, answered by a thread, so that the kernel stays free."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from fuser_lab.errors import FuserLabError

if TYPE_CHECKING:
    from collections.abc import Callable


class Background:
    """Runs a function in a daemon thread and tells somebody what came out, or the sentence of what went wrong."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether a question is open."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, find: Callable[[], Any], tell: Callable[[Any, str], None]) -> bool:
        """Start and return True, or return False while another question is open."""
        if self.busy:
            return False
        self._thread = threading.Thread(target=self._run, args=(find, tell), daemon=True)
        self._thread.start()
        return True

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the answer."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self, find: Callable[[], Any], tell: Callable[[Any, str], None]) -> None:
        try:
            found = find()
        except FuserLabError as error:
            tell(None, str(error))
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is shown, not lost in a thread
            tell(None, f"The search failed: {type(error).__name__}: {error}")
        else:
            tell(found, "")

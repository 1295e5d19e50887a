"""Work that Ctrl-C must not interrupt midway: imports, and compilation by Numba and LLVM.

An interrupted import leaves a package partially loaded, and its next import fails. Interrupts are raised only in the
main thread, so an import in another thread completes. Compilers fill process-wide tables lazily, and a half-filled
table breaks every later compilation, so an interrupt waits until the compiler has finished the current kernel.
"""

import contextlib
import importlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


class _Pending:
    """A handler that records the last signal for later."""

    def __init__(self) -> None:
        self.received: tuple[int, FrameType | None] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.received = number, frame


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Return a context in which SIGINT is deferred: its handler, by default KeyboardInterrupt, runs at the end.

    The installed handler runs, for example that of ipykernel or of the user, and an exception from it replaces an
    exception of the body. Signals are handled only in the main thread, so other threads have nothing to defer. Contexts
    nest: the outermost one delivers the signal. If SIGINT is ignored, or ends the process at once, that does not
    change.
    """
    handler = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(handler) or isinstance(handler, _Pending):
        yield
        return
    pending = _Pending()
    try:
        signal.signal(signal.SIGINT, pending)
    except ValueError:  # the main thread of a subinterpreter does not receive signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if pending.received is not None:
            handler(*pending.received)


def import_whole(name: str) -> None:
    """Import a module in a separate thread, which completes the import even if waiting for it is interrupted.

    Errors are not raised here; the caller's import statement, which follows, raises them.
    """
    if name in sys.modules:
        return

    def imported() -> None:
        with contextlib.suppress(Exception):
            importlib.import_module(name)

    # Not a daemon, because a process that ends during an import of compiled modules may crash.
    thread = threading.Thread(target=imported, name=f"import of {name}")
    try:
        thread.start()
    except RuntimeError:  # a browser's Python has no threads, and no interrupts either
        imported()
        return
    thread.join()


class _NoBar:
    """A substitute for a progress bar that cannot be shown."""

    n = 0
    total: int | None = None

    def update(self, count: int) -> None:
        """Count."""
        self.n += count

    def set_postfix_str(self, text: str, *, refresh: bool) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Do nothing."""


def progress_bar(title: str, total: int | None = None, *, hidden: bool = False) -> Any:
    """Return a progress bar of tqdm, shown in a terminal or notebook; an invisible one if tqdm cannot be imported."""
    import_whole("tqdm.auto")
    try:
        from tqdm.auto import tqdm
    except Exception:  # noqa: BLE001 - whatever is wrong with it, work goes on
        return _NoBar()
    # Without tqdm's monitor, which is a thread. disable=None: no bar if the output is not a terminal.
    bar = type("Bar", (tqdm,), {"monitor_interval": 0})
    return bar(total=total, desc=title, leave=False, disable=True if hidden else None)

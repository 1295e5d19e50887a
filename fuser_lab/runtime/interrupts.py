"""Imports that Ctrl-C does not cut in half, and the progress bars that they are for.

An interrupt that falls into an import leaves some modules of a package behind and others not, and the next import of it
fails. Interrupts are raised in the main thread only: what is imported by another one is imported as a whole.
"""

import contextlib
import importlib
import sys
import threading
from typing import Any


def import_whole(name: str) -> None:
    """Import a module in a thread of its own; it is finished there if waiting for it is interrupted.

    What goes wrong is not raised: the caller's own import statement, which follows, says it.
    """
    if name in sys.modules:
        return

    def imported() -> None:
        with contextlib.suppress(Exception):
            importlib.import_module(name)

    thread = threading.Thread(target=imported, name=f"import of {name}", daemon=True)
    thread.start()
    thread.join()


class _NoBar:
    """What takes the place of a bar that cannot be shown."""

    n = 0
    total: int | None = None

    def update(self, count: int) -> None:
        """Count."""
        self.n += count

    def set_postfix_str(self, text: str, *, refresh: bool) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Do nothing."""


def progress_bar(what: str, total: int | None = None, *, hidden: bool = False) -> Any:
    """Return a bar of tqdm's, shown in a terminal or notebook; one that shows nothing where tqdm cannot be imported."""
    import_whole("tqdm.auto")
    try:
        from tqdm.auto import tqdm
    except Exception:  # noqa: BLE001 - whatever is wrong with it, work goes on
        return _NoBar()
    # disable=None: no bar where the output is no terminal.
    return tqdm(total=total, desc=what, leave=False, disable=True if hidden else None)

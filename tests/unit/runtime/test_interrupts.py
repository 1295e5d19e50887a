"""Interrupts while something is imported: it is imported as a whole; bars that cannot be shown stop nothing."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from fuser_lab.runtime.interrupts import import_whole, progress_bar


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as on POSIX")
def test_an_import_is_finished_though_waiting_for_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = tmp_path / "slow_to_import"
    package.mkdir()
    # As asyncio: once ``part`` is known and ``slow_to_import`` is not, the name ``part`` is never bound again.
    (package / "__init__.py").write_text("from .part import *\nimport time\ntime.sleep(0.5)\nFOUND = part.VALUE\n")
    (package / "part.py").write_text("VALUE = 5\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def waiting() -> None:
        import_whole("slow_to_import")
        time.sleep(5)

    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        waiting()
    timer.join()
    import_whole("slow_to_import")
    import slow_to_import  # type: ignore[import-not-found]

    assert slow_to_import.FOUND == 5


def test_what_cannot_be_imported_is_told_by_the_import_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_at_import.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import_whole("broken_at_import")
    with pytest.raises(ZeroDivisionError):
        import broken_at_import  # type: ignore[import-not-found]  # noqa: F401


def test_a_bar_that_cannot_be_shown_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    bar = progress_bar("working", 3)
    bar.update(2)
    bar.total = 7
    bar.set_postfix_str("more", refresh=False)
    assert bar.n == 2
    bar.close()

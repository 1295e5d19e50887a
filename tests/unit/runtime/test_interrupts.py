"""Interrupts: imports finish, compilers are not interrupted midway; a progress bar that fails stops nothing."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuser_lab.runtime.interrupts import import_whole, interrupts_deferred, progress_bar
from tests.interrupts import in_a_process

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as on POSIX")


@pytest.fixture(autouse=True)
def _sigint_is_handled() -> Iterator[None]:
    """SIGINT is ignored if the tests were started in the background or with nohup."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_waits_for_the_end_and_takes_the_place_of_an_error() -> None:
    reached = []

    def body() -> None:
        with interrupts_deferred():
            with interrupts_deferred():
                signal.raise_signal(signal.SIGINT)
                reached.append("inner")
            reached.append("outer")
            raise ValueError

    with pytest.raises(KeyboardInterrupt) as caught:
        body()
    assert reached == ["inner", "outer"]
    assert isinstance(caught.value.__context__, ValueError)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_users_own_is_called_afterwards() -> None:
    called: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: called.append(number))
    with interrupts_deferred():
        signal.raise_signal(signal.SIGINT)
        assert not called
    assert called == [signal.SIGINT]


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_what_no_handler_is_called_for_stays(handler: signal.Handlers) -> None:
    signal.signal(signal.SIGINT, handler)
    with interrupts_deferred():
        assert signal.getsignal(signal.SIGINT) is handler


def test_other_threads_have_nothing_to_defer() -> None:
    seen: list[object] = []

    def body() -> None:
        with interrupts_deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


@posix
def test_sessions_interrupted_at_random_moments_compute_right_answers() -> None:
    outcome = in_a_process(seed=17, count=4)
    assert not outcome.failures
    assert outcome.raised + outcome.dropped == outcome.sent == 4


_CUT_FAMILY = """
import sys

def interrupt(frame, event, _):
    entry = frame.f_locals.get("entry") if event == "call" and frame.f_code.co_name == "register" else None
    if getattr(entry, "name", "") == "add":
        sys.setprofile(None)
        raise KeyboardInterrupt

sys.setprofile(interrupt)
try:
    import fuser_lab.nvfuser_direct
except KeyboardInterrupt:
    import fuser_lab.nvfuser_direct as nvfuser_direct
    from fuser_lab.ops import OPS, promotion, registry
    print(OPS is registry.OPS, "exp" in OPS, "sum" in OPS, promotion.register is registry.register)
"""


def test_a_family_of_ops_that_is_cut_in_half_is_registered_anew() -> None:
    done = subprocess.run([sys.executable, "-c", _CUT_FAMILY], capture_output=True, text=True, check=False)
    assert done.stdout == "True True True True\n", done.stderr


_CUT_IMPORT = """
import importlib.abc, signal, sys
import fuser_lab as fl

class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "fuser_lab.ops.reduction":
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
try:
    fl.FusionDefinition
except KeyboardInterrupt:
    with fl.FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.define_tensor([-1]), [0]))
    print("right")
"""


def test_ops_are_imported_as_a_whole() -> None:
    done = subprocess.run([sys.executable, "-c", _CUT_IMPORT], capture_output=True, text=True, check=False)
    assert done.stdout == "right\n", done.stderr


_IMPORTERS = """
import importlib.abc, signal, sys, threading

class Watching(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("numba", "llvmlite"):
            handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
            raised.add(handled and threading.current_thread() is threading.main_thread())

raised = set()
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Watching())
from tests.interrupts import compute
compute(1)
print(raised)
"""


def test_numba_is_imported_where_no_interrupt_is_raised(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTERS], env={**os.environ, "FUSER_LAB_CACHE": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )
    assert done.stdout == "{False}\n", done.stderr


@posix
def test_an_import_is_finished_though_waiting_for_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = tmp_path / "slow_to_import"
    package.mkdir()
    # As in asyncio: if ``part`` has been imported and ``slow_to_import`` has not, ``part`` is never bound again.
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
